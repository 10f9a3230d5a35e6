"""The corpus: the predictions of a model for its test set (or its dev set), and metrics of several models on it.

T target steps, S memory slots.
"""

import hashlib
import math
import os
from collections import OrderedDict, defaultdict
from collections.abc import Generator, Hashable, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np

from regard.api.model import Model
from regard.data.corpora import RawSource, identify
from regard.decoding.search import AttentionWeights
from regard.errors import ConfigError
from regard.evaluation.alignment import normalized_entropy
from regard.evaluation.comparison import System, SystemComparison
from regard.evaluation.metrics import EvaluationSet, ModelOutputs, compose_accents, compute_statistics
from regard.evaluation.settings import Metric, parse_metric
from regard.evaluation.significance import SignificanceTest
from regard.explorer.schemas import RequestError
from regard.formatting import to_json
from regard.inspection.prediction import Prediction
from regard.runs.pairs import HeldOutPairs

BATCH: Final = 16
"""The number of pairs that are predicted in one step. Between two steps, the model serves other requests."""

MAX_SEARCHES: Final = 8
"""The number of searches whose rows a model keeps."""

Row = dict[str, Any]


class CorpusPredictions:
    """The predictions of a model for its held-out pairs, each computed once for a search. The rows of the searches that
    were used last are kept in memory. Call the methods in the thread of the model, except `read`.

    Args:
        model: The model.
        held_out: The pairs.
    """

    def __init__(self, model: Model, held_out: HeldOutPairs) -> None:
        self._model, self.held_out = model, held_out
        self._searches: OrderedDict[str, list[Row]] = OrderedDict()

    @cached_property
    def identity(self) -> str:
        """A hash of the pairs. Models with the same identity can be compared pair by pair."""
        digest, reader = hashlib.sha256(), self._model.predictor.reader
        for source, target in self.held_out.pairs:
            digest.update(f"{reader.fingerprint(source)}\n{target}\n".encode("utf-8", "surrogatepass"))
        return digest.hexdigest()[:16]

    def stream(self, limit: int, search: dict[str, Any]) -> Generator[dict[str, Any], None, None]:
        """Yield what is predicted, then the rows of the first pairs with the progress. At most one batch is predicted
        between two values. Known rows are yielded at once.
        """
        split, pairs, size = self.held_out
        total = min(limit, len(pairs))
        yield {"total": total, "size": size, "most": len(pairs), "split": split, "pairs": self.identity}
        rows, sent = self._open(search), 0
        while sent < total:
            if sent == len(rows):
                rows += self._predict(sent, search)
            batch = rows[sent:total]
            sent += len(batch)
            yield {"rows": batch, "progress": sent / total}

    def read(self, indices: Sequence[int], search: dict[str, Any]) -> list[Row]:
        """Return rows that were predicted before. Raise RequestError if one was not. It can be called in any thread."""
        rows = self._searches.get(to_json(search, sort_keys=True), [])
        if indices and max(indices) >= len(rows):
            raise RequestError(
                409,
                f"Row {max(indices)} has not been predicted with this search. Request /api/corpus with it first.",
                "indices",
            )
        return [rows[index] for index in indices]

    def _open(self, search: dict[str, Any]) -> list[Row]:
        """Return the known rows of a search. Forget the search that was not used for the longest time."""
        key = to_json(search, sort_keys=True)
        rows = self._searches.setdefault(key, [])
        self._searches.move_to_end(key)
        if len(self._searches) > MAX_SEARCHES:
            self._searches.popitem(last=False)
        return rows

    def _predict(self, first: int, search: dict[str, Any]) -> list[Row]:
        pairs = self.held_out.pairs
        sources = pairs.sources[first : first + BATCH]
        predictions = self._model.predict(sources, first_index=first, **search)
        return [
            describe_row(index, prediction, pairs.sources[index], pairs.targets[index], self._references)
            for index, prediction in enumerate(predictions, first)
        ]

    @cached_property
    def _references(self) -> dict[Hashable, set[str]]:
        """The references of each source."""
        references: dict[Hashable, set[str]] = defaultdict(set)
        for source, target in self.held_out.pairs:
            references[identify(source)].add(compose_accents(target))
        return references


def describe_row(
    index: int, prediction: Prediction, source: RawSource, target: str, references: dict[Hashable, set[str]]
) -> Row:
    """Return a row of the table. `index` is that of the pair in its split."""
    weights_TS = prediction.attention
    return {
        "index": index,
        "source": name_source(source, index),
        "prediction": prediction.text,
        "reference": target,
        "correct": compose_accents(prediction.text) in references[identify(source)],
        "unknown": prediction.unknown,
        "score": prediction.score,
        "confidence": compute_confidence(prediction),
        "length": len(prediction.source_tokens),
        "entropy": compute_entropy(weights_TS),
        "coverage": compute_coverage(weights_TS),
    }


def name_source(source: RawSource, index: int) -> str:
    """Return a text, the name of a file, or the number of another source, counted from 1 as on the page."""
    if isinstance(source, str | os.PathLike):
        return os.fspath(source)
    return f"Image {index + 1}"


def compute_confidence(prediction: Prediction) -> float:
    """Return the geometric mean of the probabilities of the output tokens, with the end token."""
    return math.exp(prediction.score / max(1, len(prediction.tokens) + (not prediction.truncated)))


def compute_entropy(weights_TS: AttentionWeights) -> float | None:
    """Return the normalized entropy −Σ a_j log a_j / log S, averaged over the steps that have weight; None if there is
    no such step, or one slot.
    """
    sums_T = weights_TS.sum(-1, dtype=np.float64)
    if weights_TS.shape[-1] < 2 or not (sums_T > 0).any():
        return None
    return float(normalized_entropy(weights_TS[sums_T > 0].astype(np.float64)).mean())


def compute_coverage(weights_TS: AttentionWeights) -> float | None:
    """Return the average over slots of min(1, total weight); None without slots."""
    if not weights_TS.shape[-1]:
        return None
    return float(np.minimum(weights_TS.sum(0, dtype=np.float64), 1).mean())


def choose_metrics(models: Sequence[Model]) -> list[Metric]:
    """Return the metrics of the models that evaluate predictions, those that chose a checkpoint first, and accuracy."""
    training = [model.settings.training for model in models]
    chosen = [each.metric for each in training] + [metric for each in training for metric in each.extra_metrics]
    needed = [metric for metric in chosen if metric.needs_predictions]
    return list(dict.fromkeys([*needed, parse_metric("accuracy")]))


def compare_rows(rows_of: dict[str, list[Row]], metrics: Sequence[Metric]) -> dict[str, Any]:
    """Return metrics with 95 % confidence intervals, and the differences from the first model on the same pairs.

    Args:
        rows_of: The rows of each model, of the same pairs.
        metrics: The metrics.
    """
    test = SignificanceTest()
    first = next(iter(rows_of.values()))
    evaluation_set = EvaluationSet.from_lists([row["source"] for row in first], [row["reference"] for row in first])
    systems = []
    for name, rows in rows_of.items():
        predictions = [row["prediction"] for row in rows]
        outputs = ModelOutputs(evaluation_set, predictions, np.zeros((0, 2)))
        systems.append(System(name, predictions, {metric: compute_statistics(metric, outputs) for metric in metrics}))
    comparison = SystemComparison(systems, evaluation_set, list(metrics), systems[0], test, "holm")
    return {
        "rows": len(first),
        "test": test.describe(),
        "metrics": [
            {
                "metric": metric.label,
                "higher_is_better": metric.higher_is_better,
                "models": [_describe_value(comparison, system, metric) for system in systems],
            }
            for metric in metrics
        ],
    }


def _describe_value(comparison: SystemComparison, system: System, metric: Metric) -> dict[str, Any]:
    value, interval = system.statistics[metric].value, comparison.interval(system, metric)
    tested = comparison.differences.get((system.name, metric))
    difference = tested and {
        "value": tested.difference.value,
        "interval": tested.difference.interval,
        "text": [_sign(metric, each) for each in (tested.difference.value, *tested.difference.interval)],
        "p_value": tested.corrected_p_value,
        "significant": tested.significant,
    }
    return {
        "model": system.name,
        "value": value,
        "interval": interval,
        "text": [metric.format(each) for each in (value, *interval)],
        "difference": difference,
    }


def _sign(metric: Metric, value: float) -> str:
    """Format a difference with its sign."""
    return f"{'+' if value > 0 else ''}{metric.format(value)}"


def check_same_pairs(corpora: dict[str, CorpusPredictions]) -> None:
    """Raise ConfigError if models were given other pairs."""
    if len({corpus.identity for corpus in corpora.values()}) > 1:
        raise ConfigError(
            "The models have different test sets, so their predictions cannot be compared pair by pair. Request models "
            "whose streams have the same value of `pairs`."
        )
