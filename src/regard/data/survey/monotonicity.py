"""Monotonicity: whether targets follow the order of their sources, estimated from the pairs without a model."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

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
