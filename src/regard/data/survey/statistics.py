"""The statistics of surveyed pairs: how many, how long, in which scripts, of how many words, and how many tokens."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from regard.data.survey.scripts import NO_SCRIPT, Characters
from regard.data.survey.survey import SideStatistics, Split, Survey, survey_split
from regard.data.tokens.vocabularies import MANY_TAGS

_SAMPLE = 10_000
"""Pairs from which subwords are learned, to estimate how many of them there will be."""

SUBWORDS = 8_000

_RARE = 12
"""Characters outside the main script that are shown."""

_BARS = " ▁▂▃▄▅▆▇█"
_BINS = 24


@dataclass
class _Words:
    """Distinct words, by their hashes, merged now and then so that memory holds."""

    parts: list[NDArray[np.int64]] = field(default_factory=list)
    waiting: int = 0

    def add(self, texts: Sequence[str]) -> None:
        words = " ".join(texts).split()
        self.parts.append(np.unique(np.fromiter(map(hash, words), np.int64, len(words))))
        self.waiting += len(self.parts[-1])
        if self.waiting > 4_000_000:
            self.count()

    def count(self) -> int:
        self.parts = [np.unique(np.concatenate([*self.parts, np.zeros(0, np.int64)]))]
        self.waiting = 0
        return len(self.parts[0])


@dataclass
class _Sample:
    """Every n-th pair, with n doubled whenever there are twice too many."""

    pairs: list[tuple[str, str]] = field(default_factory=list)
    every: int = 1
    seen: int = 0

    def add(self, sources: Sequence[str], targets: Sequence[str]) -> None:
        first = -self.seen % self.every
        self.pairs += zip(sources[first :: self.every], targets[first :: self.every], strict=True)
        self.seen += len(sources)
        while len(self.pairs) > 2 * _SAMPLE:
            self.pairs, self.every = self.pairs[::2], 2 * self.every


def compute_statistics(
    split: Split, characters: Characters, *, tagged: bool | None = None
) -> tuple[Survey, dict[str, Any]]:
    """A split's survey, and its statistics under plain names."""
    words, sample = (_Words(), _Words()), _Sample()

    def watch(sources: list[str], targets: list[str]) -> None:
        words[0].add(sources)
        words[1].add(targets)
        sample.add(sources, targets)

    survey = survey_split(split, characters, watch, tagged=tagged)
    found: dict[str, Any] = {"name": split.name, "pairs": len(survey), "bad_lines": survey.bad_lines}
    if not len(survey):
        return survey, found
    found["distinct_pairs"] = len(np.unique(survey.pairs_N))
    for place, (name, side) in enumerate((("source", survey.source), ("target", survey.target))):
        texts = [pair[place] for pair in sample.pairs]
        found[name] = _side(side, characters, words[place].count(), _subwords_per_character(texts))
    if survey.tagged and len(survey.tags) <= MANY_TAGS:  # else what came later was text
        tags = survey.tags.total()
        found["tags"] = {"distinct": len(survey.tags), "mean": round(tags / len(survey), 3)}
        for unit in found["source"]["tokens"]:
            found["source"]["tokens"][unit] += tags
        found["letters_kept"] = round(_letters_kept(sample.pairs), 3)
    ratio_N = survey.target.chars_N / np.maximum(survey.source.chars_N, 1)
    found["length_ratio"] = _quantiles(ratio_N)
    return survey, found


def _letters_kept(pairs: Sequence[tuple[str, str]]) -> float:
    """The share of the targets' letters that stand in their sources, wherever they do."""
    kept = sum((Counter(source.lower()) & Counter(target.lower())).total() for source, target in pairs)
    return kept / max(1, sum(len(target) for _, target in pairs))


def _side(side: SideStatistics, characters: Characters, types: int, rate: float) -> dict[str, Any]:
    letters: dict[str, int] = {}
    for code, count in side.counts.items():
        script = characters.script_of(chr(code))
        letters[script] = letters.get(script, 0) + count
    letters.pop(NO_SCRIPT, None)
    scripts = dict(sorted(letters.items(), key=lambda entry: -entry[1]))
    main = next(iter(scripts), None)
    outside = {
        chr(code): count
        for code, count in side.counts.most_common()
        if not (chr(code).isascii() or characters.script_of(chr(code)) == main)
    }
    total, tokens = int(side.chars_N.sum()), int(side.words_N.sum())
    return {
        "distinct": len(np.unique(side.hashes_N)),
        "chars": _quantiles(side.chars_N),
        "words": _quantiles(side.words_N),
        "total_chars": total,
        "total_words": tokens,
        "distinct_words": types,
        "alphabet": len(side.counts),
        "scripts": {name: count / sum(letters.values()) for name, count in scripts.items()},
        "outside_main_script": dict(list(outside.items())[:_RARE]),
        # An end is a token of its own.
        "tokens": {"char": total + len(side.chars_N), "subword": round(rate * total) + len(side.chars_N)},
        "histogram": histogram(side),
    }


def _quantiles(values_N: NDArray[np.uint32] | NDArray[np.float64]) -> dict[str, float]:
    middle, most, nearly = np.quantile(values_N, [0.5, 0.95, 0.99])
    return {
        "mean": round(float(np.mean(values_N)), 3),
        "median": round(float(middle), 3),
        "p95": round(float(most), 3),
        "p99": round(float(nearly), 3),
        "max": round(float(np.max(values_N)), 3),
    }


def histogram(side: SideStatistics) -> dict[str, Any]:
    """Lengths in words (of single words in characters), in bins up to 99 %; the last holds what is longer."""
    by_words = float(np.median(side.words_N)) >= 3
    values_N = side.words_N if by_words else side.chars_N
    last = max(1, int(np.quantile(values_N, 0.99)))
    width = -(-(last + 1) // _BINS)
    counts = np.bincount(np.minimum(values_N // width, last // width))
    return {"unit": "words" if by_words else "characters", "bin": width, "counts": counts.tolist()}


def bars(counts: Sequence[int]) -> str:
    """A histogram in one line; what is there at all is seen."""
    highest = max(counts)
    return "".join(_BARS[max(1, round(8 * count / highest)) if count else 0] for count in counts)


def _subwords_per_character(texts: Sequence[str]) -> float:
    """Measured on a sample, with subwords learned from it by byte-pair encoding."""
    characters = sum(map(len, texts))
    if not characters:
        return 0.0
    usable = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(usable, trainers.BpeTrainer(vocab_size=SUBWORDS, show_progress=False))
    pieces = sum(len(encoded.ids) for encoded in tokenizer.encode_batch(usable))
    return pieces / characters
