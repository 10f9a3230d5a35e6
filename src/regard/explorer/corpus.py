"""The test set (or the dev set) of a run as a table: pairs with predictions, scores, and statistics of attention.

T target steps, S memory slots.
"""

import os
from collections.abc import Generator
from typing import Any, Final

import numpy as np

from regard.api.model import Model
from regard.data.corpora import Pairs, RawSource
from regard.decoding.search import Weights
from regard.evaluation.alignment import normalized_entropy
from regard.inspection.prediction import Prediction

BATCH: Final = 16
"""The number of pairs that are predicted in one step. Between two steps, the model serves other requests."""


def predict_rows(model: Model, pairs: Pairs, search: dict[str, Any]) -> Generator[dict[str, Any], None, None]:
    """Yield the number of pairs, then rows with the progress after each batch."""
    yield {"total": len(pairs)}
    for first in range(0, len(pairs), BATCH):
        rows = slice(first, first + BATCH)
        predictions = model.predict(pairs.sources[rows], first_index=first, **search)
        for index, (prediction, target) in enumerate(zip(predictions, pairs.targets[rows], strict=True), first):
            yield {"row": describe_row(index, prediction, pairs.sources[index], target)}
        yield {"progress": min(1.0, (first + BATCH) / len(pairs))}


def describe_row(index: int, prediction: Prediction, source: RawSource, target: str) -> dict[str, Any]:
    """Return a row of the table. `index` is that of the pair in its split."""
    weights_TS = prediction.attention
    return {
        "index": index,
        "source": source if isinstance(source, str) else _name(source, index),
        "prediction": prediction.text,
        "reference": target,
        "score": prediction.score,
        "length": len(prediction.source_tokens),
        "entropy": compute_entropy(weights_TS),
        "coverage": compute_coverage(weights_TS),
    }


def _name(source: RawSource, index: int) -> str:
    return os.fspath(source) if isinstance(source, os.PathLike) else f"image {index}"


def compute_entropy(weights_TS: Weights) -> float | None:
    """Return the normalized entropy −Σ a_j log a_j / log S, averaged over the steps that have weight; None if there is
    no such step, or one slot.
    """
    sums_T = weights_TS.sum(-1, dtype=np.float64)
    if weights_TS.shape[-1] < 2 or not (sums_T > 0).any():
        return None
    return float(normalized_entropy(weights_TS[sums_T > 0].astype(np.float64)).mean())


def compute_coverage(weights_TS: Weights) -> float | None:
    """Return the average over slots of min(1, total weight); None without slots."""
    if not weights_TS.shape[-1]:
        return None
    return float(np.minimum(weights_TS.sum(0, dtype=np.float64), 1).mean())
