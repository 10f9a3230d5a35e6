"""Statistics of surveyed pairs: counts, lengths, scripts, words, order, and the expected number of tokens."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from regard.data.survey.scripts import NO_SCRIPT, Characters
from regard.data.survey.survey import SideStatistics, Split, Survey, survey_split
from regard.data.tokens.bpe_learner import learn_merges, split_by_length
from regard.data.tokens.pretokenization import MARK, MAX_WORD_LENGTH
from regard.data.tokens.vocabularies import MAX_TAGS, replace_surrogates

log = logging.getLogger(__name__)

_SAMPLE = 10_000
"""The number of pairs from which subwords are learned to estimate the number of tokens."""

_MAX_CHARACTERS, _MAX_SAMPLE_CHARACTERS = 1_000, 4_000_000
"""For this estimate, texts are truncated to `_MAX_CHARACTERS`, and sampled so that they have about
`_MAX_SAMPLE_CHARACTERS` in total.
"""

SUBWORDS = 8_000
"""The vocabulary size for this estimate."""

_MAX_OUTSIDE = 12
"""The number of characters outside the main script that are listed."""

_BARS = " ▁▂▃▄▅▆▇█"
_BINS = 24


@dataclass
class _Words:
    """Counts distinct words by their hashes, which are merged regularly to bound memory."""

    parts: list[NDArray[np.int64]] = field(default_factory=list)
    unmerged: int = 0

    def add(self, texts: Sequence[str]) -> None:
        words = " ".join(texts).split()
        self.parts.append(np.unique(np.fromiter(map(hash, words), np.int64, len(words))))
        self.unmerged += len(self.parts[-1])
        if self.unmerged > 4_000_000:
            self.count()

    def count(self) -> int:
        self.parts = [np.unique(np.concatenate([*self.parts, np.zeros(0, np.int64)]))]
        self.unmerged = 0
        return len(self.parts[0])


@dataclass
class _Sample:
    """Stores every n-th pair, and doubles n whenever there are twice as many pairs as needed."""

    size: int = _SAMPLE
    pairs: list[tuple[str, str]] = field(default_factory=list)
    step: int = 1
    seen: int = 0

    def add(self, sources: Sequence[str], targets: Sequence[str]) -> None:
        first = -self.seen % self.step
        self.pairs += zip(sources[first :: self.step], targets[first :: self.step], strict=True)
        self.seen += len(sources)
        while len(self.pairs) > 2 * self.size:
            self.pairs, self.step = self.pairs[::2], 2 * self.step


def compute_statistics(
    split: Split, characters: Characters, *, tagged: bool | None = None, sample_size: int = _SAMPLE
) -> tuple[Survey, dict[str, Any]]:
    """Compute the survey of a split and a dictionary of its statistics. The number of subwords is estimated from about
    `sample_size` pairs.
    """
    words, sample = (_Words(), _Words()), _Sample(sample_size)

    def on_batch(sources: list[str], targets: list[str]) -> None:
        words[0].add(sources)
        words[1].add(targets)
        sample.add(sources, targets)

    survey = survey_split(split, characters, on_batch, tagged=tagged)
    longest = max((int(side.chars_N.max()) for side in (survey.source, survey.target) if len(side.chars_N)), default=0)
    if longest > _MAX_CHARACTERS:
        log.warning(
            "%s: the longest text has %s characters. The number of subwords is estimated from the first %s characters "
            "of each text.",
            split.name, f"{longest:,}", f"{_MAX_CHARACTERS:,}",
        )  # fmt: skip
    statistics: dict[str, Any] = {"name": split.name, "pairs": len(survey), "bad_lines": survey.bad_lines}
    if not len(survey):
        return survey, statistics
    statistics["distinct_pairs"] = len(np.unique(survey.pairs_N))
    for index, (name, side) in enumerate((("source", survey.source), ("target", survey.target))):
        texts = [pair[index] for pair in sample.pairs]
        statistics[name] = _side_statistics(side, characters, words[index].count(), _subwords_per_character(texts))
    if survey.tagged and len(survey.tags) <= MAX_TAGS:  # more values are text, not tags
        tags = survey.tags.total()
        statistics["tags"] = {"distinct": len(survey.tags), "mean": round(tags / len(survey), 3)}
        for unit in statistics["source"]["tokens"]:
            statistics["source"]["tokens"][unit] += tags
        statistics["letters_kept"] = round(_share_of_letters_kept(sample.pairs), 3)
    ratio_N = survey.target.chars_N / np.maximum(survey.source.chars_N, 1)
    statistics["length_ratio"] = _quantiles(ratio_N)
    return survey, statistics


def _share_of_letters_kept(pairs: Sequence[tuple[str, str]]) -> float:
    """Return the share of the targets' letters that also occur in their sources, at any position."""
    kept = sum((Counter(source.lower()) & Counter(target.lower())).total() for source, target in pairs)
    return kept / max(1, sum(len(target) for _, target in pairs))


def _side_statistics(
    side: SideStatistics, characters: Characters, distinct_words: int, subwords_per_char: float
) -> dict[str, Any]:
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
        "distinct_words": distinct_words,
        "alphabet": len(side.counts),
        "scripts": {name: count / sum(letters.values()) for name, count in scripts.items()},
        "outside_main_script": dict(list(outside.items())[:_MAX_OUTSIDE]),
        # Each text is followed by an end token.
        "tokens": {"char": total + len(side.chars_N), "subword": round(subwords_per_char * total) + len(side.chars_N)},
        "histogram": histogram(side),
    }


def _quantiles(values_N: NDArray[np.uint32] | NDArray[np.float64]) -> dict[str, float]:
    median, p95, p99 = np.quantile(values_N, [0.5, 0.95, 0.99])
    return {
        "mean": round(float(np.mean(values_N)), 3),
        "median": round(float(median), 3),
        "p95": round(float(p95), 3),
        "p99": round(float(p99), 3),
        "max": round(float(np.max(values_N)), 3),
    }


def usual_length(lengths_N: NDArray[np.uint32]) -> int:
    """Return the length that 99 % of the texts do not exceed, or all but one if there are fewer than 100 texts.

    The quantile is not interpolated, so that one extreme length has no influence on it.
    """
    return int(np.quantile(lengths_N, 0.99, method="lower"))


def histogram(side: SideStatistics) -> dict[str, Any]:
    """Return a histogram of lengths in words, or in characters if most texts are shorter than three words.

    The bins cover 99 % of the texts; the last bin contains all longer ones.
    """
    by_words = float(np.median(side.words_N)) >= 3
    values_N = side.words_N if by_words else side.chars_N
    last = max(1, int(np.quantile(values_N, 0.99)))
    width = -(-(last + 1) // _BINS)
    counts = np.bincount(np.minimum(values_N // width, last // width))
    return {"unit": "words" if by_words else "characters", "bin": width, "counts": counts.tolist()}


def bars(counts: Sequence[int]) -> str:
    """Draw a histogram in one line. A bin that is not empty has a visible bar."""
    highest = max(counts)
    return "".join(_BARS[max(1, round(8 * count / highest)) if count else 0] for count in counts)


def _subwords_per_character(texts: Sequence[str]) -> float:
    """Return the number of subwords per character, with a BPE vocabulary that is learned from the same texts."""
    beginnings = [text[:_MAX_CHARACTERS] for text in texts]
    every = -(-sum(map(len, beginnings)) // _MAX_SAMPLE_CHARACTERS)
    usable = [replace_surrogates(text) for text in beginnings[:: max(1, every)]]
    characters = sum(map(len, usable))
    if not characters:
        return 0.0
    tokenizer = Tokenizer(models.BPE())
    long_words = Regex(f"[^{MARK}]{{{MAX_WORD_LENGTH}}}")
    split = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Split(long_words, "isolated")])
    tokenizer.pre_tokenizer = split
    model = learn_merges(tokenizer, usable, size=SUBWORDS, min_count=0)
    tokenizer.model = models.BPE(model["vocab"], [tuple(merge) for merge in model["merges"]])
    batches = split_by_length(usable, _MAX_SAMPLE_CHARACTERS // 4)
    subwords = sum(len(encoded.ids) for batch in batches for encoded in tokenizer.encode_batch(batch))
    return subwords / characters


_ITERATIONS = 8

_MAX_SYMBOLS, _MAX_COMBINATIONS = 100, 2_000_000
"""The maximum number of symbols on a side of a pair, and of combinations of a source symbol and a target symbol in all
pairs. Longer pairs, and pairs beyond the second limit, are ignored: the number of combinations of a pair is quadratic
in its length.
"""


def correlate_order(pairs: Sequence[tuple[Sequence[str], Sequence[str]]]) -> float:
    """Return the correlation between the positions of target symbols and of the source symbols aligned to them.

    It is 1 if targets follow the order of their sources, −1 if they reverse it, and about 0 if the order is free. The
    alignment is that of IBM Model 1 (Brown et al. 1993): t(y | x), estimated by expectation maximization with a uniform
    prior over positions, so that no order is assumed.
    """
    usable = [pair for pair in pairs if all(1 < len(side) <= _MAX_SYMBOLS for side in pair)]
    if not usable:
        return 0.0
    combinations = np.cumsum([len(source) * len(target) for source, target in usable])
    usable = usable[: max(1, int(np.searchsorted(combinations, _MAX_COMBINATIONS)))]
    sources = _number_symbols([source for source, _ in usable])
    targets = _number_symbols([target for _, target in usable])
    # K: combinations of a source symbol and a target symbol of the same pair. J: target symbols.
    x_K = np.concatenate([np.tile(x_S, len(y_T)) for x_S, y_T in zip(sources, targets, strict=True)])
    y_K = np.concatenate([np.repeat(y_T, len(x_S)) for x_S, y_T in zip(sources, targets, strict=True)])
    position_K = np.concatenate(
        [np.tile(_scaled_positions(x_S), len(y_T)) for x_S, y_T in zip(sources, targets, strict=True)]
    )
    widths_J = np.concatenate([np.full(len(y_T), len(x_S)) for x_S, y_T in zip(sources, targets, strict=True)])
    starts_J = np.concatenate(([0], np.cumsum(widths_J)[:-1]))
    column_K = np.repeat(np.arange(len(widths_J)), widths_J)
    size = int(y_K.max()) + 1
    cell_K = x_K * size + y_K
    t_XY = np.ones((int(x_K.max()) + 1) * size)
    posterior_K = np.zeros(len(cell_K))
    for _ in range(_ITERATIONS):
        likely_K = t_XY[cell_K]
        posterior_K = likely_K / np.add.reduceat(likely_K, starts_J)[column_K]
        counts_XY = np.bincount(cell_K, posterior_K, len(t_XY)).reshape(-1, size)
        t_XY = (counts_XY / np.maximum(counts_XY.sum(1, keepdims=True), 1e-12)).ravel()
    expected_J = np.add.reduceat(posterior_K * position_K, starts_J)
    actual_J = np.concatenate([_scaled_positions(y_T) for y_T in targets])
    product = float((expected_J * actual_J).sum())
    scale = float(np.sqrt((expected_J**2).sum() * (actual_J**2).sum()))
    return product / scale if scale > 0 else 0.0


def _number_symbols(texts: Sequence[Sequence[str]]) -> list[NDArray[np.int64]]:
    numbers: dict[str, int] = {}
    return [np.array([numbers.setdefault(symbol, len(numbers)) for symbol in text], np.int64) for text in texts]


def _scaled_positions(symbols: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return positions scaled to [−1, 1]."""
    return np.linspace(-1.0, 1.0, len(symbols))
