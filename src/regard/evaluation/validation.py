"""Validation and evaluation: decode, and compute metrics.

N pairs.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from regard.data.batching import EncodedCorpus
from regard.data.corpora import Pairs, RawSource, identify
from regard.data.sampler import batch_by_length
from regard.decoding.engine import Engine
from regard.decoding.predictor import Predictor, target_log_probs
from regard.decoding.settings import SearchSettings
from regard.errors import ConfigError, DivergedError, ModelError
from regard.evaluation.breakdown import Breakdown, ScoredSentence, WordCounts, compute_breakdown, find_worst
from regard.evaluation.metrics import (
    EvaluationSet,
    Interval,
    MetricStatistics,
    ModelOutputs,
    Statistics,
    compute_statistics,
)
from regard.evaluation.settings import BreakdownName, Metric, MetricValues
from regard.formatting import quantity, replace_nonfinite, table
from regard.ops.cuda_graphs import release_kept_graphs


@dataclass(frozen=True, repr=False)
class Evaluation:
    """The metrics of a model on an evaluation set, its predictions, and the time they took.

    `evaluation["bleu"]` is the value of a metric. `predictions` contains one for each source, or none if no metric
    needs them. `seconds` is the time of decoding.
    """

    metric_values: MetricValues
    evaluation_set: EvaluationSet
    predictions: list[str]
    search: SearchSettings
    seconds: float
    tokens: int
    statistics: dict[Metric, MetricStatistics] = field(default_factory=dict)
    confidence_intervals: dict[str, Interval] = field(default_factory=dict)
    """95 % confidence intervals by label, if requested."""

    def __getitem__(self, name: str) -> float:
        return self.metric_values[name]

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    def breakdown(
        self, by: BreakdownName = "length", training_pairs: Iterable[tuple[RawSource, str]] | None = None
    ) -> Breakdown:
        """Compute the metrics for groups of sentences. `print` shows them as a table.

        Args:
            by: `length` (of the source), `frequency` (of its rarest word in the training data; also F1 of the words of
                the predictions by frequency), or `unseen` (the number of its words that are not in the training data).
            training_pairs: The training data, for `frequency` and `unseen`.

        >>> print(model.evaluate(pairs).breakdown("length"))
        """
        counts = None if training_pairs is None else WordCounts.of(training_pairs)
        return compute_breakdown(by, self.statistics, self.evaluation_set, self.predictions, counts)

    def worst(self, count: int = 10, metric: str | None = None) -> list[ScoredSentence]:
        """Return the sentences with the worst value of a metric, by default of the first that uses predictions.

        >>> for sentence in model.evaluate(pairs).worst(5, "chrf"):
        ...     print(sentence.source, sentence.prediction, sentence.references)
        """
        chosen = self._find_metric(metric)
        return find_worst(chosen, self.statistics[chosen], self.evaluation_set, self.predictions, count)

    def _find_metric(self, label: str | None) -> Metric:
        """Return the metric with this label, or the only one of this kind."""
        if label is None:
            return min(self.statistics, key=lambda metric: not metric.needs_predictions)
        matches = [metric for metric in self.statistics if label in (metric.label, metric.kind)]
        if len(matches) != 1:
            computed = ", ".join(metric.label for metric in self.statistics)
            raise ConfigError(f"'{label}' is not one of the computed metrics. Choose one of {computed}.")
        return matches[0]

    def __repr__(self) -> str:
        values = [f"{metric.label} {metric.format(self[metric.label])}" for metric in self.statistics]
        return f"Evaluation({', '.join(values)}; {quantity(self.metric_values.pairs, 'pair')})"

    def __str__(self) -> str:
        """Return a table with the value, the confidence interval (if requested) and the signature of each metric."""
        distinct, pairs = self.evaluation_set.distinct_sources, self.metric_values.pairs
        sources = f", {quantity(distinct, 'source')}" if distinct < pairs else ""
        header = ["metric", f"on {quantity(pairs, 'pair')}{sources}", "95 % confidence", "signature"]
        rows = []
        for metric in self.statistics:
            label = metric.label
            interval = " to ".join(map(metric.format, self.confidence_intervals.get(label, ())))
            rows.append([label, metric.format(self[label]), interval, self.metric_values.signatures[label]])
        if not self.confidence_intervals:
            header, *rows = ([*row[:2], row[3]] for row in (header, *rows))
        return table(header, rows)

    def to_json(self) -> dict[str, Any]:
        """Return everything but the predictions; numbers that are not finite become null."""
        labels = [metric.label for metric in self.statistics]
        document = {
            "pairs": self.metric_values.pairs,
            "sources": self.evaluation_set.distinct_sources,
            "values": {label: self[label] for label in labels},
            "signatures": {label: self.metric_values.signatures[label] for label in labels},
            **({"confidence": self.confidence_intervals} if self.confidence_intervals else {}),
            "search": self.search.model_dump(mode="json") if self.predictions else None,
            "seconds": round(self.seconds, 4),
            "tokens_per_second": round(self.tokens_per_second, 1),
        }
        return cast(dict[str, Any], replace_nonfinite(document))


def evaluate(
    predictor: Predictor,
    evaluation_set: EvaluationSet,
    metrics: Sequence[Metric],
    search: SearchSettings,
    *,
    batch_size: int = 256,
    confidence: bool = False,
    engine: Engine | None = None,
) -> Evaluation:
    """Decode the sources with this search, by default with torch, and compute metrics. Nothing is decoded if no metric
    needs predictions.

    A source that occurs several times is decoded once.
    """
    predictions: list[str] = []
    seconds, tokens = 0.0, 0
    if any(metric.needs_predictions for metric in metrics):
        distinct = {identify(source): source for source in evaluation_set.sources}
        start = time.perf_counter()
        nbest = (engine or predictor).predict(
            predictor.reader.read(list(distinct.values())), search, batch_size=batch_size
        )
        decoded = [predictor.tokenizer.decode(best.tokens) for best, *_ in nbest]
        seconds = time.perf_counter() - start
        tokens = sum(len(best.tokens) for best, *_ in nbest)
        text_of = dict(zip(distinct, decoded, strict=True))
        predictions = [text_of[identify(source)] for source in evaluation_set.sources]
    pairs = evaluation_set.pairs
    scored = pairs if any(not metric.needs_predictions for metric in metrics) else Pairs()
    outputs = ModelOutputs(evaluation_set, predictions, compute_losses(predictor, scored, batch_size))
    statistics = {metric: compute_statistics(metric, outputs) for metric in metrics}
    return Evaluation(
        MetricValues(
            len(pairs),
            {metric.label: result.value for metric, result in statistics.items()},
            {metric.label: result.signature for metric, result in statistics.items()},
        ),
        evaluation_set,
        predictions,
        search,
        seconds,
        tokens,
        statistics,
        {metric.label: result.confidence_interval() for metric, result in statistics.items()} if confidence else {},
    )


def validate(predictor: Predictor, pairs: Pairs, metrics: Sequence[Metric], search: SearchSettings) -> MetricValues:
    """Evaluate a model during training, and release the CUDA graphs of the search afterward."""
    try:
        return evaluate(predictor, EvaluationSet.from_pairs(pairs), metrics, search).metric_values
    except ModelError as error:
        raise DivergedError(f"Training diverged. {error}") from None
    finally:
        release_kept_graphs(predictor.device)


def compute_losses(predictor: Predictor, pairs: Pairs, batch_size: int) -> Statistics:
    """Return (−log p, tokens) of each target given its source; the end token is included."""
    encoded = EncodedCorpus.of(pairs, predictor.reader, predictor.tokenizer, predictor.max_length)
    losses_N2 = np.zeros((len(encoded), 2))
    with predictor.inference():
        for ids in batch_by_length(encoded.sources.lengths, batch_size):
            batch = encoded.batch(ids, predictor.device)
            losses_N2[ids, 0] = -target_log_probs(predictor.model, batch).sum(-1).cpu().numpy()
            losses_N2[ids, 1] = batch.target.lengths_B.cpu().numpy()
    return losses_N2
