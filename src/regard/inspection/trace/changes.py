"""What edits changed: a prediction compared with the prediction without the edits.

H heads, T steps, S keys.
"""

from itertools import takewhile
from typing import NamedTuple

import numpy as np

from regard.decoding.search import AttentionWeights
from regard.inspection.prediction import Prediction

DECIMALS = 6
"""Total variation is rounded, because an attention with edits rounds differently from one without."""


class Changes(NamedTuple):
    """The best prediction without the edits, and how it differs."""

    text: str
    tokens: list[str]
    score: float
    first_step: int | None
    """The first step at which the tokens differ; None if they are the same."""
    variation: dict[str, list[float]]
    """The total variation of the weights of each attention, ½ Σ_j |a_j − a'_j|, at each step of both, averaged over
    heads. An attention with another number of keys than before is left out.
    """


def compare_predictions(before: Prediction, after: Prediction) -> Changes:
    """Compare the best predictions without and with edits."""
    pairs = zip(before.tokens, after.tokens, strict=False)
    common = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    is_same = common == len(before.tokens) == len(after.tokens)
    variation = {}
    for name, weights in after.attentions.items():
        is_target = after.roles[name] == "decoder-self"
        if is_target or weights.shape[-1] == before.attentions[name].shape[-1]:
            variation[name] = _total_variation(before.attentions[name], weights)
    return Changes(before.text, before.tokens, before.score, None if is_same else common, variation)


def _total_variation(before: AttentionWeights, after: AttentionWeights) -> list[float]:
    """Return the total variation of each row that both have. Keys beyond those of the other are not visible in it."""
    rows, columns = np.minimum(before.shape[-2:], after.shape[-2:])
    difference = np.abs(before[..., :rows, :columns] - after[..., :rows, :columns]).sum(-1, dtype=np.float64) / 2
    average_T = difference.mean(0) if difference.ndim == 2 else difference
    rounded: list[float] = np.round(average_T, DECIMALS).tolist()
    return rounded
