"""Metrics as settings: their names and options; and how their values are compared, formatted and saved. No torch here.

A metric is chosen by its `kind`. A bare name is short for `{kind: name}`; options can follow the name, as on the
command line: `bleu:tokenize=none,lowercase=true`.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

import yaml
from pydantic import Field

from regard.config import Settings, resolve
from regard.errors import ConfigError
from regard.formatting import quantity
from regard.overrides import parse_overrides
from regard.quantities import Count, OptionalCount
from regard.registry import Choice, Registry

References = Annotated[
    Literal["by_line", "by_source", "auto"],
    Field(
        description="by_line: each line has its own references; by_source: lines with the same source share their "
        "references; auto: by_source if every source has the same number of references, and more than one"
    ),
]


class Metric(Choice):
    """Base class of the metrics.

    Values are in percent, except for `loss` (nats), `perplexity`, `accuracy` (0 to 1) and `cider` (0 to 10).
    """

    registry: ClassVar[Registry] = Registry(
        "metric",
        "regard.evaluation.metrics",
        provided=frozenset({"outputs"}),
        facts=("higher_is_better", "needs_predictions", "format_spec", "unit"),
    )

    higher_is_better: ClassVar[bool] = False
    needs_predictions: ClassVar[bool] = True
    """Whether it evaluates predictions; otherwise it evaluates only the probability of the references."""
    format_spec: ClassVar[str] = ".2f"
    unit: ClassVar[str] = ""

    @classmethod
    def expand(cls, value: Any) -> Any:
        """Expand a label, `bleu:tokenize=none,lowercase=true`, into a mapping."""
        if not isinstance(value, str):
            return value
        kind, _, options = value.partition(":")
        return {"kind": kind, **parse_overrides(filter(None, options.split(",")))}

    @property
    def label(self) -> str:
        """The kind, followed by the options that differ from their defaults."""
        options = self.model_dump(mode="json", exclude_defaults=True)
        return self.kind + "".join(
            f"{',' if index else ':'}{name}={yaml.safe_dump(value).splitlines()[0]}"
            for index, (name, value) in enumerate(options.items())
        )

    def format(self, value: float) -> str:
        return f"{value:{self.format_spec}}{self.unit}"


def check_format(spec: Any) -> str:
    """Return the format of a metric. Raise ConfigError if numbers cannot be formatted with it."""
    try:
        format(0.5, spec)
    except (TypeError, ValueError):
        raise ConfigError(f"format_spec must be a format for numbers, such as '.2f', not {spec!r}.") from None
    return str(spec)


class Loss(Metric):
    """−log p of the references in nats, averaged over all their tokens."""

    needs_predictions: ClassVar[bool] = False
    format_spec: ClassVar[str] = ".4f"
    kind: Literal["loss"] = "loss"


class Perplexity(Metric):
    """exp(loss). Values are comparable only between models with the same vocabulary."""

    needs_predictions: ClassVar[bool] = False
    kind: Literal["perplexity"] = "perplexity"


class Accuracy(Metric):
    """The share of sources whose prediction equals one of their references, from 0 to 1."""

    higher_is_better: ClassVar[bool] = True
    format_spec: ClassVar[str] = ".2%"
    kind: Literal["accuracy"] = "accuracy"


class SequenceErrorRate(Metric):
    """The share of sources whose prediction equals none of their references, in percent: 100 (1 − accuracy).

    Papers on grapheme-to-phoneme conversion call this WER, because each of their sequences is a word.
    """

    unit: ClassVar[str] = "%"
    kind: Literal["ser"] = "ser"


class WordErrorRate(Metric):
    """100 Σ edits / Σ reference length, over space-separated words (as in speech recognition).

    Edits are insertions, deletions and substitutions, so the rate can exceed 100. Edits and length are those of the
    closest reference of each source; if several are equally close, of the longest.
    """

    unit: ClassVar[str] = "%"
    kind: Literal["wer"] = "wer"


class PhonemeErrorRate(Metric):
    """The same as `wer`, for text whose space-separated symbols are phonemes."""

    unit: ClassVar[str] = "%"
    kind: Literal["per"] = "per"


class CharacterErrorRate(Metric):
    """The same as `wer` over characters, including spaces."""

    unit: ClassVar[str] = "%"
    kind: Literal["cer"] = "cer"


class Bleu(Metric):
    """Corpus BLEU (Papineni et al. 2002), computed by sacrebleu (Post 2018).

    With `tokenize: none`, words are split at spaces only. This is the value in papers that tokenize both sides
    beforehand; it is not comparable with the value under `13a` on untokenized text. BLEU-1 to BLEU-4 of papers on
    captioning are `max_order: 1` to `4` with `tokenize: coco`, `smooth: none` and `references: by_source`.
    """

    higher_is_better: ClassVar[bool] = True
    kind: Literal["bleu"] = "bleu"
    tokenize: Literal["13a", "none", "intl", "char", "zh", "coco"] = Field(
        "13a", description="a tokenizer of sacrebleu, or coco: lowercase words without punctuation"
    )
    lowercase: bool = False
    max_order: Count = Field(4, ge=1, le=4, description="maximum n-gram order: 4 is BLEU-4")
    smooth: Literal["exp", "floor", "add-k", "none"] = Field(
        "exp", description="smoothing if no n-gram of some order matches"
    )
    references: References = "by_line"


class Chrf(Metric):
    """Corpus chrF (Popović 2015), computed by sacrebleu; chrF++ with `word_order: 2`."""

    higher_is_better: ClassVar[bool] = True
    kind: Literal["chrf"] = "chrf"
    word_order: OptionalCount = Field(0, ge=0, le=4, description="also count word n-grams up to this order")
    lowercase: bool = False
    references: References = "by_line"


class Ter(Metric):
    """Translation edit rate (Snover et al. 2006), computed by sacrebleu: insertions, deletions, substitutions and
    shifts of words.
    """

    kind: Literal["ter"] = "ter"
    normalized: bool = Field(False, description="separate punctuation from words first")
    case_sensitive: bool = False
    references: References = "by_line"


CaptionTokenization = Annotated[
    Literal["coco", "none"],
    Field(description="coco: lowercase words without punctuation; none: split at spaces only"),
]


class RougeL(Metric):
    """ROUGE-L (Lin 2004) as in the COCO caption evaluation, averaged over the sources.

    F_β, with β = 1.2, of the longest common subsequence of words. Precision and recall are each the maximum over the
    references.
    """

    higher_is_better: ClassVar[bool] = True
    kind: Literal["rouge_l"] = "rouge_l"
    tokenize: CaptionTokenization = "coco"
    references: References = "by_source"


class Cider(Metric):
    """CIDEr-D (Vedantam et al. 2015) as in the COCO caption evaluation, averaged over the sources: 0 to 10.

    The tf-idf weighted cosine of n-grams of up to 4 words, clipped, with a Gaussian penalty on the difference in length
    (σ = 6). Document frequencies are counted in the references of the evaluation set, so values on different sets are
    not comparable. A confidence interval resamples the sources, and keeps these frequencies. Papers print 100 times
    this value.
    """

    higher_is_better: ClassVar[bool] = True
    format_spec: ClassVar[str] = ".4f"
    kind: Literal["cider"] = "cider"
    tokenize: CaptionTokenization = "coco"
    references: References = "by_source"


def metric_names() -> list[str]:
    """Return the names of the metrics that are registered so far."""
    return list(Metric.registry.settings)


class _Choice(Settings):
    metric: Metric


def parse_metric(choice: Any) -> Metric:
    """Parse a metric: a label such as `bleu:tokenize=none`, or a mapping with its `kind`."""
    return resolve(_Choice, {"metric": choice}, {}).metric


def parse_metrics(choices: Iterable[Any]) -> list[Metric]:
    """Parse several metrics, and remove duplicates."""
    return list(dict.fromkeys(map(parse_metric, choices)))


@dataclass(frozen=True)
class MetricValues:
    """The values of metrics on a number of pairs, by label. Those of a validation always include the loss."""

    pairs: int
    values: dict[str, float]
    signatures: dict[str, str]

    @property
    def loss(self) -> float:
        return self.values["loss"]

    def __getitem__(self, name: str) -> float:
        """Return the value with this label, or of this kind if only one has it."""
        if name in self.values:
            return self.values[name]
        matches = [value for label, value in self.values.items() if label.partition(":")[0] == name]
        if len(matches) != 1:
            raise KeyError(f"'{name}' matches {len(matches)} of the computed metrics: {', '.join(self.values)}.")
        return matches[0]

    def better_than(self, other: "MetricValues | None", metric: Metric) -> bool:
        """Whether these values are better by the metric; the loss breaks ties."""
        return other is None or self._rank(metric) > other._rank(metric)

    def _rank(self, metric: Metric) -> tuple[float, float]:
        value = self.values[metric.label]
        signed = (value if metric.higher_is_better else -value, -self.loss)
        first, second = (-math.inf if math.isnan(part) else part for part in signed)
        return first, second

    def describe(self, metric: Metric) -> str:
        """Describe the values in one line, with this metric first."""
        others = [label for label in self.values if label != metric.label]
        values = [f"{label} {parse_metric(label).format(self.values[label])}" for label in (metric.label, *others)]
        return f"{', '.join(values)} on {quantity(self.pairs, 'pair')}"

    def to_json(self) -> dict[str, Any]:
        return {"pairs": self.pairs, **self.values, "signatures": self.signatures}

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Self:
        """Read what `to_json` returned. JSON has null in place of NaN."""
        others = {"step", "name", "pairs", "signatures"}
        values = {label: math.nan if value is None else value for label, value in state.items() if label not in others}
        return cls(state["pairs"], values, dict(state["signatures"]))
