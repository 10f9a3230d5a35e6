"""Word alignments of pairs, by forced decoding with one model, or with two models of opposite directions."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from regard.config import resolve
from regard.errors import ArgumentTypeError
from regard.evaluation.aligner import Aligner, Pair
from regard.evaluation.alignment import AlignmentSettings, Symmetrization, WordAlignment
from regard.ops.arguments import check_integer

if TYPE_CHECKING:
    from regard.api.model import Model


def build_aligner(model: "Model", options: dict[str, Any], batch_size: int = 64) -> Aligner:
    """Return the aligner of a model, with options from `AlignmentSettings`."""
    check_integer("batch_size", batch_size)
    return Aligner.of(model.predictor, resolve(AlignmentSettings, {}, options), batch_size=batch_size)


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
    aligner = build_aligner(model, options, batch_size)
    if reverse is None:
        return aligner.align(pairs)
    selected = {"attention", "layer", "head"}
    shared = {name: value for name, value in options.items() if name not in selected}
    return aligner.align_symmetrized(build_aligner(reverse, shared, batch_size), pairs, symmetrization)


def check_pairs(pairs: Any) -> list[Pair]:
    """Return pairs as a list. Raise ArgumentTypeError, with the index, for an item that is not a pair of texts."""
    if isinstance(pairs, str | bytes) or not isinstance(pairs, Iterable):
        raise ArgumentTypeError(f"pairs must be a list of (source, target) pairs, not {type(pairs).__name__}.")
    checked = []
    for index, pair in enumerate(pairs):
        if not (isinstance(pair, tuple | list) and len(pair) == 2 and all(isinstance(text, str) for text in pair)):
            raise ArgumentTypeError(f"pairs[{index}] must be a pair of texts (source, target), not {pair!r}.")
        checked.append((pair[0], pair[1]))
    return checked
