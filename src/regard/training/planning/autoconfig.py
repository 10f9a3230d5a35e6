"""Automatic configuration: choose settings from statistics of the training pairs, and give a reason for each choice."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, NamedTuple

from regard.config import resolve
from regard.data.corpora import count_pairs
from regard.data.settings import FilesData
from regard.data.survey.problems import describe_unreadable
from regard.data.survey.scripts import Characters
from regard.data.survey.statistics import compute_statistics, correlate_order, usual_length
from regard.data.survey.survey import RowSample, Split, without_warnings
from regard.data.tokens.pretokenization import TAB
from regard.errors import DataError
from regard.formatting import quantity
from regard.runs.folder import INIT_FROM, read_inherited_settings
from regard.runs.settings import RunSettings

TextKind = Literal["sentences", "words", "symbols"]

_UNSPACED_SCRIPTS = {"Han", "Hiragana", "Katakana", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan"}
"""Scripts that do not separate words by spaces."""

VOCABULARIES = ((20_000, 2_000), (500_000, 8_000), (5_000_000, 16_000), (math.inf, 32_000))
"""(pairs, size): the vocabulary size for fewer than this number of pairs."""

MAX_EPOCHS = ((1_000, 100), (5_000, 200), (20_000, 100), (100_000, 60), (1_000_000, 30), (math.inf, 10))
"""(pairs, epochs): without a deadline, the maximum number of epochs for fewer than this number of pairs."""

_MIN_SYMBOL_COUNT = 4
"""Symbols occur at least this often on average; words that are mostly distinct are not symbols."""

_MIN_ORDER_CORRELATION = 0.3
"""The correlation of positions from which targets are treated as following the order of their sources. Pronunciations
reach 0.68 to 0.92, inflections 0.36 to 0.72, unrelated pairs about 0, reversed ones −0.6 to −0.9.
"""

_SURVEYED_PAIRS = 20_000
"""The approximate number of pairs that settings are chosen from. Of larger files, every n-th line is used."""

_SUBWORD_PAIRS = 1_000
"""The approximate number of pairs that the number of subwords is estimated from. It affects the batch size of a
small corpus, and has no effect for a large one.
"""

_ENOUGH_SENTENCES, _ENOUGH_WORDS = 5_000, 500
"""A note is printed if there are fewer pairs of sentences, or of words."""

_ORDER_SAMPLES = 2_000
"""The number of pairs on which the order is measured."""

MIN_STEPS = 500
"""The minimum number of steps if there is time, even for a small corpus."""

_MIN_BATCH_TOKENS, _MIN_BATCHES = 256, 10
"""The minimum number of tokens in a batch, and of batches in an epoch. The first takes precedence."""

_MIN_KEPT_LETTERS = 0.6
"""At least this share of the letters of inflected forms also occurs in their lemmas. For translations, it is lower."""

_FINE_TUNING_FACTOR = 1 / 3
"""The learning rate of fine-tuning, as a share of the learning rate of a new model."""


class ChosenSettings(NamedTuple):
    """Settings, and a list of sentences that explain them to the user."""

    settings: RunSettings
    reasons: list[str]


@dataclass
class Choices:
    """The groups of settings that have been chosen so far."""

    groups: dict[str, Any] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)

    def add(self, reason: str, **groups: Any) -> None:
        self.groups |= groups
        self.reasons.append(reason)

    def note_few(self, count: int, noun: str, enough: int) -> None:
        """Add a note if there are few pairs or images."""
        if count < enough:
            self.reasons.append(
                f"Note: the corpus has only {quantity(count, noun)}: a good model usually needs more than {enough:,}. "
                f"More {noun}s improve the model more than additional training time."
            )


def choose(data: FilesData, overrides: Mapping[str, Any], *, cuda: bool) -> ChosenSettings:
    """Choose the tokenizer, the model and the schedule from the training pairs. Overrides take precedence; those of the
    data are already in `data`.
    """
    files = data.files("train")
    assert files is not None
    split = Split.of_files(str(files), files)
    rows = RowSample(split, -(-count_pairs(files) // _SURVEYED_PAIRS))
    survey, facts = compute_statistics(split._replace(read=rows.read), Characters(), sample_size=_SUBWORD_PAIRS)
    if not facts["pairs"]:
        raise DataError(f"{data.train} contains no usable pair: {describe_unreadable(survey)}")
    facts["sampled"], facts["pairs"] = facts["pairs"], rows.pairs
    choices = Choices()
    kinds = (detect_text_kind(facts["source"]), detect_text_kind(facts["target"]))
    scripts = [next(iter(facts[side]["scripts"]), "none") for side in ("source", "target")]
    _describe_data(choices, facts, kinds, scripts)
    init_from = overrides.get(INIT_FROM)
    if init_from is None:
        choices.note_few(facts["pairs"], "pair", _ENOUGH_SENTENCES if "sentences" in kinds else _ENOUGH_WORDS)
        _choose_tokenizer(choices, facts, kinds, scripts)
        monotonic = _suits_monotonic_attention(facts, kinds) and _measure_order(split, kinds) >= _MIN_ORDER_CORRELATION
        _choose_model(choices, facts["pairs"], monotonic=monotonic, cuda=cuda)
    else:
        monotonic = _inherit_model(choices, overrides)
    max_length = max(usual_length(side.chars_N) for side in (survey.source, survey.target))
    _choose_training(choices, facts, kinds, max_length, monotonic=monotonic, cuda=cuda)
    if init_from is not None:
        _lower_learning_rate(choices)
    base = {"data": data.model_dump(mode="json"), "about": f"{facts['pairs']:,} pairs of {data.train}"}
    settings = resolve(RunSettings, base, {**choices.groups, **overrides})
    requested = select_overrides("tokenizer", overrides)
    tags_set = any("tags" in f"{key} {value}" for key, value in requested.items())
    if init_from is None and "tags" in facts and not tags_set:
        # Only now is the kind of tokenizer known: an override may have replaced the one that was chosen.
        key = "tokenizer.source.tags" if settings.tokenizer.kind == "pair" else "tokenizer.tags"
        settings = resolve(RunSettings, settings.model_dump(mode="json"), {key: True})
    set_by_user = [f"Set by you: {key}={value}." for key, value in overrides.items() if key != INIT_FROM]
    return ChosenSettings(settings, choices.reasons + set_by_user)


def select_overrides(prefix: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the overrides whose keys start with a prefix, without that prefix."""
    return {key.removeprefix(prefix): value for key, value in overrides.items() if key.startswith(prefix)}


def detect_text_kind(side: Mapping[str, Any]) -> TextKind:
    """Whether one side of the pairs contains sentences, single words, or symbols separated by spaces (phonemes)."""
    words, chars = side["words"]["median"], side["chars"]["median"]
    letters_per_word = side["total_chars"] / max(1, side["total_words"]) - 1
    repeated = side["total_words"] >= _MIN_SYMBOL_COUNT * side["distinct_words"]
    if words >= 2 and side["distinct_words"] <= 400 and letters_per_word <= 3 and repeated:
        return "symbols"
    unspaced = next(iter(side["scripts"]), "") in _UNSPACED_SCRIPTS
    return "sentences" if words >= 3 or (unspaced and chars >= 10) else "words"


def _describe_data(
    choices: Choices, facts: Mapping[str, Any], kinds: tuple[TextKind, TextKind], scripts: Sequence[str]
) -> None:
    sides = " and ".join(
        dict.fromkeys(
            f"{kind} in {script} script" if script != "none" else kind
            for kind, script in zip(kinds, scripts, strict=True)
        )
    )
    tags = facts.get("tags")
    tagged = f", with {tags['distinct']} distinct tags after a tab" if tags else ""
    choices.reasons.append(f"Data: {facts['pairs']:,} pairs of {sides}{tagged}.")


def _choose_tokenizer(
    choices: Choices, facts: Mapping[str, Any], kinds: tuple[TextKind, TextKind], scripts: Sequence[str]
) -> None:
    description, tokenizer = _tokenizer_settings(facts, kinds, scripts)
    tags = ", one token per tag" if facts.get("tags") else ""
    choices.add(f"Tokenizer: {description}{tags}.", tokenizer=tokenizer)


def _tokenizer_settings(
    facts: Mapping[str, Any], kinds: tuple[TextKind, TextKind], scripts: Sequence[str]
) -> tuple[str, dict[str, Any]]:
    """Return a description of the tokens, and the settings of the tokenizer."""
    shared = scripts[0] == scripts[1]
    if "sentences" in kinds:
        size = next(size for pairs, size in VOCABULARIES if facts["pairs"] < pairs)
        alphabet = max(facts["source"]["alphabet"], facts["target"]["alphabet"])
        size = max(size, 2 * alphabet)
        vocabularies = "shared by both sides" if shared else "one vocabulary per side, because the scripts differ"
        settings = {"kind": "bpe", "vocabulary": size, "shared": shared, "max_length": 512}
        return f"BPE with {size:,} subwords, {vocabularies}", settings
    (source, source_side), (target, target_side) = (
        ("space-separated symbols", {"kind": "word"}) if kind == "symbols" else _character_settings(script)
        for kind, script in zip(kinds, scripts, strict=True)
    )
    sides = {"source": source_side, "target": target_side}
    if "symbols" in kinds:
        return f"{source} → {target}", sides
    vocabularies = "shared vocabulary" if shared else "one vocabulary per side"
    if source_side == target_side:
        return f"{source}, {vocabularies}", {**source_side, "shared": shared}
    return f"{source} → {target}, {vocabularies}", sides


def _character_settings(script: str) -> tuple[str, dict[str, Any]]:
    """Return a description of the tokens of one side, and its settings.

    Hangul syllables are decomposed into letters, because most of the thousands of syllables are rare.
    """
    if script == "Hangul":
        return "Hangul letters (한 → ㅎㅏㄴ)", {"kind": "char", "normalization": "nfd"}
    return "characters", {"kind": "char"}


def _choose_model(choices: Choices, pairs: int, *, monotonic: bool, cuda: bool) -> None:
    dropout = 0.3 if pairs < 50_000 else 0.2 if pairs < 500_000 else 0.1
    if monotonic:
        size, dropout = (128, 0.4) if pairs < 50_000 else (256, 0.3)
        choices.add(
            f"Model: LSTM with hard monotonic attention, hidden size {size}, dropout {dropout}, because targets "
            "follow the order of their sources.",
            model={
                "kind": "recurrent", "embedding": size, "dropout": dropout, "attention": "hard-monotonic",
                "encoder": {"cell": "lstm", "hidden": size, "layers": 2, "bidirectional": True, "dropout": dropout},
                "decoder": {"cell": "lstm", "hidden": size, "order": "luong", "input_feeding": False},
            },
        )  # fmt: skip
        return
    if cuda:
        tied = "all" if choices.groups["tokenizer"].get("shared") else "decoder"
        layers, size = (3, 256) if pairs < 20_000 else (6, 512) if pairs > 500_000 else (4, 256)
        choices.add(
            f"Model: Transformer with {layers} + {layers} layers, size {size}, dropout {dropout}, for {pairs:,} pairs "
            "on a GPU.",
            model={
                "kind": "transformer", "size": size, "layers": layers, "heads": size // 64, "feedforward": 4 * size,
                "norm": "pre", "dropout": dropout, "tied": tied,
            },
        )  # fmt: skip
        return
    size = 256 if pairs >= 5_000 else 128
    choices.add(
        f"Model: GRU with additive attention, hidden size {size}, dropout {dropout}, because it learns fastest on a "
        "CPU.",
        model=describe_gru(size, size, size, dropout),
    )


def describe_gru(embedding: int, encoder: int, decoder: int, dropout: float) -> dict[str, Any]:
    """Return the settings of a GRU with additive attention, from the sizes of its parts."""
    return {
        "kind": "recurrent", "embedding": embedding, "dropout": dropout, "attention": "bahdanau",
        "encoder": {"cell": "gru", "hidden": encoder, "bidirectional": True},
        "decoder": {"cell": "gru", "hidden": decoder, "order": "bahdanau"},
    }  # fmt: skip


def _inherit_model(choices: Choices, overrides: Mapping[str, Any]) -> bool:
    """Use the tokenizer and the model of the initial run; return whether its attention is monotonic."""
    reason = f"Tokenizer, model and initial weights: from {overrides[INIT_FROM]}."
    choices.add(reason, **read_inherited_settings(overrides))
    return "hard_monotonic" in str(choices.groups["model"].get("attention"))


def _lower_learning_rate(choices: Choices) -> None:
    """Lower the learning rate for fine-tuning, which preserves more of what the initial weights encode."""
    training = choices.groups["training"]
    training["learning_rate"] = round(training["learning_rate"] * _FINE_TUNING_FACTOR, 6)
    choices.reasons.append(
        f"Fine-tuning: the learning rate is {training['learning_rate']}, a third of that of a new model."
    )


def _suits_monotonic_attention(facts: Mapping[str, Any], kinds: tuple[TextKind, TextKind]) -> bool:
    """Whether the pairs are of a kind that a monotonic alignment suits: words and their pronunciations, or lemmas with
    tags and their inflected forms, which keep most of the letters.
    """
    inflected = set(kinds) == {"words"} and "tags" in facts and facts["letters_kept"] >= _MIN_KEPT_LETTERS
    return inflected or set(kinds) == {"words", "symbols"}


def _measure_order(split: Split, kinds: tuple[TextKind, TextKind]) -> float:
    """Measure on a sample of the pairs how closely targets follow the order of their sources."""
    with without_warnings():
        rows = (row for row in split.read() if not row.problem)
        candidates = list(islice(rows, 10 * _ORDER_SAMPLES))
    every = max(1, len(candidates) // _ORDER_SAMPLES)
    texts = [(row.source.partition(TAB)[0], row.target) for row in candidates[::every]]
    return correlate_order(
        [
            (source.split() if kinds[0] == "symbols" else source, target.split() if kinds[1] == "symbols" else target)
            for source, target in texts
        ]
    )


def _choose_training(
    choices: Choices,
    facts: Mapping[str, Any],
    kinds: tuple[TextKind, TextKind],
    max_length: int,
    *,
    monotonic: bool,
    cuda: bool,
) -> None:
    tokens = max(_estimate_tokens(facts, kinds))
    batch = 512 if monotonic and not cuda else 8_192 if cuda and facts["pairs"] >= 50_000 else 2_048
    # A small corpus is split into several batches, so that an epoch has several updates.
    batch = min(batch, max(_MIN_BATCH_TOKENS, tokens // _MIN_BATCHES))
    batch = max(batch, 2 * max_length)
    epochs = next(epochs for pairs, epochs in MAX_EPOCHS if facts["pairs"] < pairs)
    steps = max(MIN_STEPS, int(1.1 * epochs * tokens / batch))
    transformer = choices.groups["model"]["kind"] == "transformer"
    metric, extra_metrics = {
        "sentences": ("bleu", ["chrf"]),
        "symbols": ("ser", ["per"]),
        "words": ("accuracy", ["cer"]),
    }[kinds[1]]
    choices.add(
        f"Training: {batch:,} tokens per batch; the best checkpoint is selected by {metric}.",
        training={
            "steps": steps, "max_epochs": epochs, "batch_tokens": batch, "max_pair_length": max(256, max_length),
            "warmup": max(50, steps // 20),
            "learning_rate": 0.003 if monotonic else 0.001 if transformer else 0.002,
            "label_smoothing": 0.0 if monotonic else 0.1, "ema_decay": 0.99 if monotonic else 0.0, "precision": "auto",
            "validate_every": max(50, steps // 20), "save_every": max(50, steps // 20), "log_every": 20,
            "validation_pairs": 500, "metric": metric, "extra_metrics": extra_metrics, "patience": 6,
        },
    )  # fmt: skip


def _estimate_tokens(facts: Mapping[str, Any], kinds: tuple[TextKind, TextKind]) -> tuple[int, int]:
    """Estimate the total number of tokens of each side."""
    unit = "subword" if "sentences" in kinds else "char"
    source, target = (
        facts[side]["total_words"] + facts["sampled"] if kind == "symbols" else facts[side]["tokens"][unit]
        for side, kind in zip(("source", "target"), kinds, strict=True)
    )
    scale = facts["pairs"] / facts["sampled"]
    return int(scale * source), int(scale * target)
