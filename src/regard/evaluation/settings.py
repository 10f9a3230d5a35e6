"""What a model can be measured by: the names, their options, and how their values read. No torch here.

A measure is a choice by `kind`; a bare name is shorthand for it, and a name with options can be written in one
word, as it is at the command line: `bleu:tokenize=none,lowercase=true`.
"""

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal

import yaml
from pydantic import BeforeValidator, Field

from regard.config import Settings, parse_override, resolve

References = Annotated[
    Literal["by_line", "by_source", "auto"],
    Field(
        description="by_line: each line has its own reference; by_source: the lines with the same source share theirs; "
        "auto: by_source where every source has the same number of references, and more than one"
    ),
]


class Metric(Settings):
    """The parent of the measures, which are final.

    Values are on the customary scale: per cent for all but `loss` (nats), `perplexity` and `accuracy` (0 to 1).
    """

    higher_is_better: ClassVar[bool] = False
    of_answers: ClassVar[bool] = True
    """Whether it judges what the model says; the others judge the probability of the references alone."""
    style: ClassVar[str] = ".2f"
    unit: ClassVar[str] = ""

    kind: str

    @property
    def label(self) -> str:
        """Its name in one word, with the options that are not at their defaults."""
        options = self.model_dump(mode="json", exclude_defaults=True)
        return self.kind + "".join(
            f"{',' if place else ':'}{name}={yaml.safe_dump(value).splitlines()[0]}"
            for place, (name, value) in enumerate(options.items())
        )

    def told(self, value: float) -> str:
        return f"{value:{self.style}}{self.unit}"


class Loss(Metric):
    """−log p of a reference's tokens, the mean over all of them, in nats."""

    of_answers: ClassVar[bool] = False
    style: ClassVar[str] = ".4f"
    kind: Literal["loss"] = "loss"


class Perplexity(Metric):
    """e to the loss. It depends on what a token is: only models with the same vocabulary compare."""

    of_answers: ClassVar[bool] = False
    kind: Literal["perplexity"] = "perplexity"


class Accuracy(Metric):
    """The share of sources whose answer is one of their references to the letter, from 0 to 1."""

    higher_is_better: ClassVar[bool] = True
    style: ClassVar[str] = ".2%"
    kind: Literal["accuracy"] = "accuracy"


class WordErrorRate(Metric):
    """The share of sources whose answer is none of their references, in per cent: 100 (1 − accuracy).

    This is how grapheme-to-phoneme conversion counts the words of a dictionary. The rate of speech recognition, edits
    over white-space-separated words, is `per`.
    """

    unit: ClassVar[str] = "%"
    kind: Literal["wer"] = "wer"


class SymbolErrorRate(Metric):
    """100 Σ edits / Σ length, over symbols (phonemes, words) with white space between.

    The edits are those to the closest reference of a source, the length is that reference's; of references that are
    equally close the longest counts.
    """

    unit: ClassVar[str] = "%"
    kind: Literal["per"] = "per"


class CharacterErrorRate(Metric):
    """The same over characters, white space among them."""

    unit: ClassVar[str] = "%"
    kind: Literal["cer"] = "cer"


class Bleu(Metric):
    """BLEU of the corpus (Papineni et al. 2002) as sacrebleu computes it (Post 2018).

    With `tokenize: none` words are what white space separates: the figure of papers that tokenize both sides first,
    and not comparable with that of `13a` on plain text.
    """

    higher_is_better: ClassVar[bool] = True
    kind: Literal["bleu"] = "bleu"
    tokenize: Literal["13a", "none", "intl", "char", "zh"] = "13a"
    lowercase: bool = False
    smooth: Literal["exp", "floor", "add-k", "none"] = Field("exp", description="where no n-gram of a length matches")
    references: References = "by_line"


class Chrf(Metric):
    """chrF of the corpus (Popović 2015) as sacrebleu computes it; with `word_order: 2` it is chrF++."""

    higher_is_better: ClassVar[bool] = True
    kind: Literal["chrf"] = "chrf"
    word_order: int = Field(0, ge=0, le=4, description="n-grams of words up to this length count too")
    lowercase: bool = False
    references: References = "by_line"


class Ter(Metric):
    """Translation edit rate (Snover et al. 2006) as sacrebleu computes it: words moved, put in, left out, replaced."""

    kind: Literal["ter"] = "ter"
    normalized: bool = Field(False, description="punctuation is set apart first")
    case_sensitive: bool = False
    references: References = "by_line"


def _spell_out(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    kind, _, options = value.partition(":")
    return {"kind": kind, **dict(parse_override(option) for option in options.split(",") if option)}


AnyMetric = (
    Loss | Perplexity | Accuracy | WordErrorRate | SymbolErrorRate | CharacterErrorRate | Bleu | Chrf | Ter
)  # fmt: skip
MetricChoice = Annotated[AnyMetric, Field(discriminator="kind"), BeforeValidator(_spell_out)]

KINDS = ("loss", "perplexity", "accuracy", "wer", "per", "cer", "bleu", "chrf", "ter")


class _Choice(Settings):
    metric: MetricChoice


def parse_metric(choice: Any) -> Metric:
    """A measure from its name, with or without options, or a mapping with its `kind`."""
    return resolve(_Choice, {"metric": choice}, {}).metric


def parse_metrics(choices: Iterable[Any]) -> list[Metric]:
    """Several, each but once."""
    return list(dict.fromkeys(map(parse_metric, choices)))
