"""Settings for pairs that nobody has set anything for: chosen from what the pairs are like, each with its reason."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, NamedTuple

from regard.config import resolve
from regard.data.settings import FilesData
from regard.data.survey.monotonicity import correlate_order
from regard.data.survey.problems import describe_unreadable
from regard.data.survey.scripts import Characters
from regard.data.survey.statistics import compute_statistics
from regard.data.survey.survey import Split, without_warnings
from regard.data.tokens.pretokenization import TAB
from regard.errors import DataError
from regard.runs.settings import RunSettings
from regard.training.finetuning import INIT_FROM, inherited_settings

Form = Literal["sentences", "words", "symbols"]

_UNSPACED = {"Han", "Hiragana", "Katakana", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan"}
"""Scripts in which no space stands between words."""

VOCABULARIES = ((20_000, 2_000), (500_000, 8_000), (5_000_000, 16_000))
"""(pairs, size): the vocabulary for fewer than this number of pairs; 32,000 for more."""

_PASSES = ((1_000, 100), (5_000, 200), (20_000, 100), (100_000, 60), (1_000_000, 30))
"""(pairs, passes): without a deadline, the most passes over fewer than this number of pairs; 10 for more."""

_REPEATED = 4
"""Symbols occur at least this often on average; words that are mostly distinct are not symbols."""

_SAME_ORDER = 0.3
"""The correlation of positions from which targets are treated as following the order of their sources. Pronunciations
reach 0.68 to 0.92, inflections 0.36 to 0.72, unrelated pairs about 0, reversed ones −0.6 to −0.9.
"""

_SAMPLED = 2_000
"""Pairs on which the order is measured."""

FEWEST_STEPS = 500
"""Steps that even a small corpus gets, if there is time."""

_SMALLEST_BATCH, _FEWEST_BATCHES = 256, 10
"""The fewest tokens in a batch, and the fewest batches in an epoch unless they would be smaller than that."""

_MOST_LETTERS = 0.6
"""So many letters of a form stand in its lemma; of a word in another language fewer do."""

_FINE_TUNING_RATE = 1 / 3
"""The learning rate of fine-tuning, as a share of that of a new model."""


class ChosenSettings(NamedTuple):
    """Settings, and for people why they are what they are."""

    settings: RunSettings
    reasons: list[str]


@dataclass
class _Choice:
    """Groups of settings as they are decided on."""

    keys: dict[str, Any] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)

    def settle(self, reason: str, **keys: Any) -> None:
        self.keys |= keys
        self.reasons.append(reason)


def choose(data: FilesData, overrides: Mapping[str, Any], *, cuda: bool) -> ChosenSettings:
    """Look at the training pairs and decide on tokenizer, model and schedule; what is overridden stands."""
    files = resolve(FilesData, data.model_dump(mode="json"), _below("data.", overrides)).files("train")
    assert files is not None
    split = Split.of_files(str(files), files)
    survey, facts = compute_statistics(split, Characters())
    if not facts["pairs"]:
        raise DataError(f"{data.train}: no pair is left to use: {describe_unreadable(survey)}")
    choice = _Choice()
    forms = (form_of(facts["source"]), form_of(facts["target"]))
    scripts = [next(iter(facts[side]["scripts"]), "none") for side in ("source", "target")]
    _describe_data(choice, facts, forms, scripts)
    start = overrides.get(INIT_FROM)
    if start is None:
        _tokenizer(choice, facts, forms, scripts)
        in_order = _may_be_in_order(facts, forms) and _order(split, forms) >= _SAME_ORDER
        _model(choice, facts["pairs"], in_order=in_order, cuda=cuda)
    else:
        in_order = _inherit(choice, str(start))
    _training(choice, facts, forms, in_order=in_order, cuda=cuda)
    if start is not None:
        _fine_tune(choice)
    chosen = {"data": data.model_dump(mode="json"), "about": f"{facts['pairs']:,} pairs of {data.train}"}
    settings = resolve(RunSettings, chosen, {**choice.keys, **overrides})
    wished = _below("tokenizer", overrides)
    if start is None and "tags" in facts and not any("tags" in f"{key} {value}" for key, value in wished.items()):
        # Of whatever tokenizer it came to be.
        place = "tokenizer.source.tags" if settings.tokenizer.kind == "pair" else "tokenizer.tags"
        settings = resolve(RunSettings, settings.model_dump(mode="json"), {place: True})
    given = [f"Set by you: {key}={value}." for key, value in overrides.items() if key != INIT_FROM]
    return ChosenSettings(settings, choice.reasons + given)


def _below(prefix: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    return {key.removeprefix(prefix): value for key, value in overrides.items() if key.startswith(prefix)}


def form_of(side: Mapping[str, Any]) -> Form:
    """What stands on one side: sentences, single words, or a string of few symbols with spaces between (phonemes)."""
    words, chars = side["words"]["median"], side["chars"]["median"]
    letters_per_word = side["total_chars"] / max(1, side["total_words"]) - 1
    repeated = side["total_words"] >= _REPEATED * side["distinct_words"]
    if words >= 2 and side["distinct_words"] <= 400 and letters_per_word <= 3 and repeated:
        return "symbols"
    unspaced = next(iter(side["scripts"]), "") in _UNSPACED
    return "sentences" if words >= 3 or (unspaced and chars >= 10) else "words"


def _describe_data(choice: _Choice, facts: Mapping[str, Any], forms: tuple[Form, Form], scripts: Sequence[str]) -> None:
    seen = " and ".join(
        dict.fromkeys(
            f"{form} in {script} script" if script != "none" else form
            for form, script in zip(forms, scripts, strict=True)
        )
    )
    tags = facts.get("tags")
    marked = f", with {tags['distinct']} different tags after a tab" if tags else ""
    choice.reasons.append(f"Data: {facts['pairs']:,} pairs of {seen}{marked}.")


def _tokenizer(choice: _Choice, facts: Mapping[str, Any], forms: tuple[Form, Form], scripts: Sequence[str]) -> None:
    told, tokenizer = _segmentation(facts, forms, scripts)
    each = ", each tag a token" if facts.get("tags") else ""
    choice.settle(f"Tokenizer: {told}{each}.", tokenizer=tokenizer)


def _segmentation(
    facts: Mapping[str, Any], forms: tuple[Form, Form], scripts: Sequence[str]
) -> tuple[str, dict[str, Any]]:
    """What the tokens are called, and the tokenizer's settings."""
    alike = scripts[0] == scripts[1]
    if "sentences" in forms:
        size = next((size for pairs, size in VOCABULARIES if facts["pairs"] < pairs), 32_000)
        alphabet = max(facts["source"]["alphabet"], facts["target"]["alphabet"])
        size = max(size, 2 * alphabet)
        both = "one vocabulary for both sides, which share a script" if alike else "a vocabulary for each script"
        settings = {"kind": "bpe", "vocabulary": size, "shared": alike, "max_length": 512}
        return f"{size:,} subwords (BPE), {both}", settings
    (source, source_side), (target, target_side) = (
        ("symbols as they stand", {"kind": "word"}) if form == "symbols" else _characters(script)
        for form, script in zip(forms, scripts, strict=True)
    )
    sides = {"source": source_side, "target": target_side}
    if "symbols" in forms:
        return f"{source} → {target}", sides
    both = "one alphabet" if alike else "an alphabet for each script"
    if source_side == target_side:
        return f"{source}, {both}", {**source_side, "shared": alike}
    return f"{source} → {target}, {both}", sides


def _characters(script: str) -> tuple[str, dict[str, Any]]:
    """What the tokens are called, and the settings of a side: one of hundreds of syllables would rarely be seen."""
    if script == "Hangul":
        return "letters that 한 is taken apart into, ㅎㅏㄴ", {"kind": "char", "normalization": "nfd"}
    return "characters", {"kind": "char"}


def _model(choice: _Choice, pairs: int, *, in_order: bool, cuda: bool) -> None:
    dropout = 0.3 if pairs < 50_000 else 0.2 if pairs < 500_000 else 0.1
    if in_order:
        size, dropout = (128, 0.4) if pairs < 50_000 else (256, 0.3)
        choice.settle(
            f"Model: LSTM of {size} with hard monotonic attention, dropout {dropout}: answers follow the order of what "
            "they answer.",
            model={
                "kind": "recurrent", "embedding": size, "dropout": dropout, "attention": "hard-monotonic",
                "encoder": {"cell": "lstm", "hidden": size, "layers": 2, "bidirectional": True, "dropout": dropout},
                "decoder": {"cell": "lstm", "hidden": size, "order": "luong", "input_feeding": False},
            },
        )  # fmt: skip
        return
    if cuda:
        tied = "all" if choice.keys["tokenizer"].get("shared") else "decoder"
        layers, size = (3, 256) if pairs < 20_000 else (6, 512) if pairs > 500_000 else (4, 256)
        choice.settle(
            f"Model: Transformer of {layers} + {layers} layers, {size} wide, dropout {dropout}, for so many pairs.",
            model={
                "kind": "transformer", "size": size, "layers": layers, "heads": size // 64, "feedforward": 4 * size,
                "norm": "pre", "dropout": dropout, "tied": tied,
            },
        )  # fmt: skip
        return
    size = 256 if pairs >= 5_000 else 128
    choice.settle(
        f"Model: GRU of {size} with additive attention, dropout {dropout}: without a GPU it learns fastest.",
        model={
            "kind": "recurrent", "embedding": size, "dropout": dropout, "attention": "bahdanau",
            "encoder": {"cell": "gru", "hidden": size, "bidirectional": True},
            "decoder": {"cell": "gru", "hidden": size, "order": "bahdanau"},
        },
    )  # fmt: skip


def _inherit(choice: _Choice, start: str) -> bool:
    """The tokenizer and the model of the run to start from; returns whether it aligns in order."""
    choice.settle(f"Tokenizer, model and initial weights: those of {start}.", **inherited_settings(start))
    return "hard_monotonic" in str(choice.keys["model"].get("attention"))


def _fine_tune(choice: _Choice) -> None:
    """A lower learning rate keeps more of what the initial weights encode."""
    training = choice.keys["training"]
    training["learning_rate"] = round(training["learning_rate"] * _FINE_TUNING_RATE, 6)
    choice.reasons.append(f"Fine-tuning: the learning rate is {training['learning_rate']}, a third of the usual one.")


def _may_be_in_order(facts: Mapping[str, Any], forms: tuple[Form, Form]) -> bool:
    """Whether the pairs are of a kind that a monotonic alignment suits: letters and sounds, or words that tags inflect,
    which keep most of their letters.
    """
    inflects = set(forms) == {"words"} and "tags" in facts and facts["letters_kept"] >= _MOST_LETTERS
    return inflects or set(forms) == {"words", "symbols"}


def _order(split: Split, forms: tuple[Form, Form]) -> float:
    """How far targets follow the order of their sources, measured on some of the pairs."""
    with without_warnings():
        rows = (row for row in split.read() if not row.problem)
        sampled = list(islice(rows, 10 * _SAMPLED))
    every = max(1, len(sampled) // _SAMPLED)
    texts = [(row.source.partition(TAB)[0], row.target) for row in sampled[::every]]
    return correlate_order(
        [
            (source.split() if forms[0] == "symbols" else source, target.split() if forms[1] == "symbols" else target)
            for source, target in texts
        ]
    )


def _training(
    choice: _Choice, facts: Mapping[str, Any], forms: tuple[Form, Form], *, in_order: bool, cuda: bool
) -> None:
    tokens = max(_tokens(facts, forms))
    longest = max(facts[side]["chars"]["p99"] for side in ("source", "target"))
    usual = 512 if in_order and not cuda else 8_192 if cuda and facts["pairs"] >= 50_000 else 2_048
    # A small corpus is split into several batches, so that an epoch has several updates.
    usual = min(usual, max(_SMALLEST_BATCH, tokens // _FEWEST_BATCHES))
    batch = max(usual, 2 * int(longest))
    passes = next((passes for pairs, passes in _PASSES if facts["pairs"] < pairs), 10)
    steps = max(FEWEST_STEPS, int(1.1 * passes * tokens / batch))
    transformer = choice.keys["model"]["kind"] == "transformer"
    metric, also = {"sentences": ("bleu", ["chrf"]), "symbols": ("wer", ["per"]), "words": ("accuracy", ["cer"])}[
        forms[1]
    ]
    choice.settle(
        f"Training: {batch:,} tokens per batch; the best model is chosen by {metric}.",
        training={
            "steps": steps, "max_epochs": passes, "batch_tokens": batch, "max_pair_length": max(256, int(longest)),
            "warmup": max(50, steps // 20),
            "learning_rate": 0.003 if in_order else 0.001 if transformer else 0.002,
            "label_smoothing": 0.0 if in_order else 0.1, "ema_decay": 0.99 if in_order else 0.0, "precision": "auto",
            "validate_every": max(50, steps // 20), "save_every": max(50, steps // 20), "log_every": 20,
            "validation_pairs": 500, "metric": metric, "extra_metrics": also, "patience": 6,
        },
    )  # fmt: skip


def _tokens(facts: Mapping[str, Any], forms: tuple[Form, Form]) -> tuple[int, int]:
    """About how many tokens each side has in all."""
    unit = "subword" if "sentences" in forms else "char"
    source, target = (
        facts[side]["total_words"] + facts["pairs"] if form == "symbols" else facts[side]["tokens"][unit]
        for side, form in zip(("source", "target"), forms, strict=True)
    )
    return int(source), int(target)
