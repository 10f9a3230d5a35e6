"""Alignments of the words or tokens of given pairs, from the attention weights of a model (forced decoding).

T target words, S source words, H heads.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, tee
from pathlib import Path
from typing import Any, NamedTuple, final

from regard.data.corpora import Pairs
from regard.data.pharaoh import GoldLinks, Links, read_alignments
from regard.data.tokens.tokenizers import index_words
from regard.decoding.forced import ForcedPair, cross_attentions, map_forced
from regard.decoding.predictor import Predictor
from regard.errors import ConfigError, DataError
from regard.evaluation.alignment import (
    AlignmentScore,
    AlignmentSettings,
    FloatArray,
    Symmetrization,
    WordAlignment,
    merge_words,
    normalized_entropy,
)
from regard.formatting import did_you_mean, quantity, short_path

log = logging.getLogger(__name__)

Pair = tuple[str, str]


class Head(NamedTuple):
    """A head of an attention, counted from 1; None for the average over all heads."""

    attention: str
    layer: int
    head: int | None

    def select(self, pair: ForcedPair) -> FloatArray:
        """Return the weights of this head."""
        weights: FloatArray = pair.weights[self.attention]
        if weights.ndim == 3:
            weights = weights.mean(0) if self.head is None else weights[self.head - 1]
        return weights


@dataclass
class RankedHead:
    """The score of the links of a head, and the entropy of its weights, summed over target words.

    The entropy of a word is divided by that of uniform weights.
    """

    head: Head
    score: AlignmentScore = field(default_factory=AlignmentScore)
    entropy_sum: float = 0.0
    words: int = 0

    @property
    def entropy(self) -> float:
        """The average over target words."""
        return self.entropy_sum / max(1, self.words)

    def add(self, weights_TS: FloatArray, links: Links, reference: GoldLinks | None) -> None:
        """Add the links and weights of a pair."""
        if reference is not None:
            self.score += AlignmentScore.of(links, reference)
        self.entropy_sum += float(normalized_entropy(weights_TS).sum())
        self.words += len(weights_TS)


@final
@dataclass(frozen=True)
class Aligner:
    """A model that aligns words or tokens, with the attention weights that it uses for this."""

    predictor: Predictor
    settings: AlignmentSettings
    head: Head
    batch_size: int = 64

    @classmethod
    def of(cls, predictor: Predictor, settings: AlignmentSettings, *, batch_size: int = 64) -> "Aligner":
        """Return the aligner of a model.

        Raises:
            ConfigError: The model does not read text, has no cross-attention, or lacks the attention or the head.
        """
        if predictor.reader.vocabulary_size is None:
            raise ConfigError(f"The model reads {predictor.reader.noun}s. Only the words of texts can be aligned.")
        return cls(predictor, settings, _choose_head(cross_attentions(predictor.model), settings), batch_size)

    def align(self, pairs: Iterable[Pair]) -> Iterator[WordAlignment]:
        """Yield the alignment of each pair, in order. Memory use does not depend on the number of pairs."""

        def align_pair(pair: ForcedPair) -> WordAlignment:
            links = self.settings.extract_links(self._merge(pair, self.head)) if pair.weights else frozenset()
            if self.settings.tokens:
                return WordAlignment(tuple(pair.source.tokens), tuple(pair.target.texts), links, "tokens")
            return WordAlignment(tuple(pair.source.label.split()), tuple(pair.target_text.split()), links)

        return map_forced(self.predictor, pairs, {self.head.attention}, align_pair, batch_size=self.batch_size)

    def count_units(self, pairs: Sequence[Pair]) -> list[tuple[int, int]]:
        """Return the numbers of words or tokens of the source and the target of each pair."""
        if not self.settings.tokens:
            return count_words(pairs)
        sources = self.predictor.reader.read([source for source, _ in pairs])
        targets = self.predictor.tokenizer.ids([target for _, target in pairs])
        return [(source.length, len(target)) for source, target in zip(sources, targets, strict=True)]

    def align_symmetrized(
        self, reverse: "Aligner", pairs: Iterable[Pair], method: Symmetrization
    ) -> Iterator[WordAlignment]:
        """Yield the alignment of each pair, combined with that of a model of the opposite direction."""
        forward, backward = tee(pairs)
        flipped = ((target, source) for source, target in backward)
        for one, other in zip(self.align(forward), reverse.align(flipped), strict=True):
            yield one.symmetrize(other, method)

    def rank_heads(self, pairs: Iterable[Pair], references: Sequence[GoldLinks] | None = None) -> list[RankedHead]:
        """Score the links of the average over the heads of each layer, and of each single head.

        The lowest alignment error rate is first; without references, the lowest entropy.
        """
        attentions = cross_attentions(self.predictor.model)
        ranked = [
            RankedHead(Head(name, layer, head))
            for layer, (name, heads) in enumerate(attentions.items(), start=1)
            for head in (None, *(range(1, heads + 1) if heads > 1 else ()))
        ]

        def add_pair(pair: ForcedPair) -> None:
            for entry in ranked if pair.weights else ():
                weights_TS = self._merge(pair, entry.head)
                reference = None if references is None else references[pair.number]
                entry.add(weights_TS, self.settings.extract_links(weights_TS), reference)

        for _ in map_forced(self.predictor, pairs, attentions, add_pair, batch_size=self.batch_size):
            pass
        return sorted(ranked, key=lambda entry: entry.entropy if references is None else entry.score.aer)

    def _merge(self, pair: ForcedPair, head: Head) -> FloatArray:
        """Return the weights of a head over words or tokens. The last row of weights predicts the end of the target."""
        weights_TS = head.select(pair)
        weights_TS = weights_TS[1:] if self.settings.shift else weights_TS[:-1]
        if self.settings.tokens:
            return weights_TS
        target_words = index_words(pair.target_text, pair.target.offsets)
        return merge_words(weights_TS, target_words, index_words(pair.source.label, pair.source.offsets))


def has_single_words(pairs: Iterable[Pair]) -> bool:
    """Whether one side of most pairs is a single word, so that a word alignment contains no information."""
    filled = [counts for counts in count_words(pairs) if all(counts)]
    return any(2 * sum(counts[side] == 1 for counts in filled) > len(filled) for side in (0, 1))


def count_words(pairs: Iterable[Pair]) -> list[tuple[int, int]]:
    """Return the numbers of words of the source and the target of each pair."""
    return [(len(source.split()), len(target.split())) for source, target in pairs]


def _choose_head(attentions: Mapping[str, int], settings: AlignmentSettings) -> Head:
    """Return the head that the settings select; by default the average over the heads of the last layer."""
    names = list(attentions)
    if not names:
        raise ConfigError("The model has no attention to the source, so it cannot align words. Use another model.")
    if settings.attention is not None and settings.layer is not None:
        raise ConfigError("attention and layer cannot be combined. Give one of them.")
    if settings.attention is not None and settings.attention not in names:
        raise ConfigError(
            f"'{settings.attention}' is not an attention to the source.{did_you_mean(settings.attention, names)} "
            f"Available: {', '.join(names)}."
        )
    layer = settings.layer or len(names)
    if layer > len(names):
        raise ConfigError(
            f"layer: {layer} is out of range. The model has {quantity(len(names), 'layer')} with attention to the "
            "source, counted from 1."
        )
    name = settings.attention or names[layer - 1]
    heads = attentions[name]
    if settings.head is not None and settings.head > heads:
        raise ConfigError(f"head: {settings.head} is out of range. {name} has {quantity(heads, 'head')}.")
    return Head(name, names.index(name) + 1, settings.head if heads > 1 else None)


_EXAMINED_PAIRS = 1000
"""The number of pairs that determine by default whether words or tokens are aligned."""


def choose_unit(options: dict[str, Any], pairs: Iterable[Pair]) -> tuple[dict[str, Any], Iterator[Pair]]:
    """Choose whether to align words or tokens, unless the options set it. Return the options and the pairs."""
    remaining = iter(pairs)
    if options.get("tokens") is not None:
        return options, remaining
    first = list(islice(remaining, _EXAMINED_PAIRS))
    return {**options, "tokens": has_single_words(first)}, chain(first, remaining)


def read_gold_alignments(
    path: str | Path, pairs: Pairs, *, one_based: bool = False, aligner: Aligner | None = None
) -> list[GoldLinks]:
    """Read a gold file with a line for each pair. Links to words that do not exist are ignored and counted.

    If `aligner` aligns tokens, the links are between tokens.
    """
    gold = list(read_alignments(path, one_based=one_based))
    if len(gold) != len(pairs):
        raise DataError(
            f"{short_path(path)} has {quantity(len(gold), 'line')}, but there are {quantity(len(pairs), 'pair')}. Line "
            "n of the gold file must belong to pair n: give the pairs of this gold file."
        )
    counts = count_words(pairs) if aligner is None else aligner.count_units(list(pairs))
    existing = [links.within(*count) for links, count in zip(gold, counts, strict=True)]
    changed = [number for number, pair in enumerate(zip(gold, existing, strict=True), 1) if pair[0] != pair[1]]
    if changed:
        ignored = sum(len(before.possible - after.possible) for before, after in zip(gold, existing, strict=True))
        counted_from_one = all(min(link) > 0 for links in gold for link in links.possible)
        hint = " If words are counted from 1 in this file, use --one-based." if counted_from_one else ""
        log.warning(
            "%s: ignored %s to words that do not exist, the first in line %d.%s",
            short_path(path), quantity(ignored, "link"), changed[0], hint,
        )  # fmt: skip
    return existing
