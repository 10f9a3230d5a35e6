"""Alignments of the words or tokens of pairs, by forced decoding with one model, or with two of opposite directions."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.arguments import check_integer
from regard.config import resolve
from regard.data.corpora import Pairs
from regard.data.pharaoh import GoldLinks, read_alignments
from regard.errors import ArgumentTypeError, DataError, is_iterable
from regard.evaluation.aligner import Aligner, Pair, count_words, has_single_words
from regard.evaluation.alignment import AlignmentSettings, Symmetrization, WordAlignment
from regard.formatting import quantity, short_path

if TYPE_CHECKING:
    from regard.api.model import Model

log = logging.getLogger(__name__)

_EXAMINED_PAIRS = 1000
"""The number of pairs that determine by default whether words or tokens are aligned."""

_HEAD_OPTIONS = {"attention", "layer", "head"}
"""The options that select attention weights."""


def choose_unit(options: dict[str, Any], pairs: Iterable[Pair]) -> tuple[dict[str, Any], Iterator[Pair]]:
    """Choose whether to align words or tokens, unless the options set it. Return the options and the pairs."""
    remaining = iter(pairs)
    if options.get("tokens") is not None:
        return options, remaining
    first = list(islice(remaining, _EXAMINED_PAIRS))
    return {**options, "tokens": has_single_words(first)}, chain(first, remaining)


def build_aligner(model: "Model", options: dict[str, Any], batch_size: int = 64) -> Aligner:
    """Return the aligner of a model, with options from `AlignmentSettings`."""
    check_integer("batch_size", batch_size)
    settings = resolve(AlignmentSettings, {}, {**_supervised_head(model, options), **options})
    return Aligner.of(model.predictor, settings, batch_size=batch_size)


def _supervised_head(model: "Model", options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that select the head that guided alignment supervised, unless others are given."""
    guided = model.settings.training.guided_alignment
    if guided is None or model.members > 1 or _HEAD_OPTIONS & options.keys():
        return {}
    return {"layer": guided.find_layer(model.settings.model), "head": guided.head, "shift": guided.shift}


def align_pairs(
    model: "Model",
    pairs: Iterable[Pair],
    reverse: "Model | None",
    symmetrization: Symmetrization,
    options: dict[str, Any],
    batch_size: int = 64,
) -> Iterator[WordAlignment]:
    """Yield the alignment of each pair. With `reverse`, a model of the opposite direction, it is symmetrized.

    The options apply to both models, except those that select an attention: the reverse model uses its default.
    """
    options, pairs = choose_unit(options, pairs)
    aligner = build_aligner(model, options, batch_size)
    if reverse is None:
        return aligner.align(pairs)
    shared = {name: value for name, value in options.items() if name not in _HEAD_OPTIONS}
    return aligner.align_symmetrized(build_aligner(reverse, shared, batch_size), pairs, symmetrization)


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


def check_pairs(pairs: Any) -> list[Pair]:
    """Return pairs as a list. Raise ArgumentTypeError, with the index, for an item that is not a pair of texts."""
    if isinstance(pairs, str | bytes) or not is_iterable(pairs):
        raise ArgumentTypeError(f"pairs must be a list of (source, target) pairs, not {type(pairs).__name__}.")
    checked = []
    for index, pair in enumerate(pairs):
        if not (isinstance(pair, tuple | list) and len(pair) == 2 and all(isinstance(text, str) for text in pair)):
            raise ArgumentTypeError(f"pairs[{index}] must be a pair of texts (source, target), not {pair!r}.")
        checked.append((pair[0], pair[1]))
    return checked
