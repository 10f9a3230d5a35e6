"""Validation and evaluation: a model's answers, and what the measures make of them.

B rows, T target steps, D width, N pairs or tokens.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from regard.data.batching import Batch, EncodedCorpus
from regard.data.corpora import Pairs
from regard.data.sampler import batch_by_length
from regard.decoding.predictor import Predictor
from regard.decoding.settings import SearchSettings
from regard.errors import DivergedError, ModelError
from regard.evaluation.metrics import EvaluationSet, MetricStatistics, ModelOutputs, Statistics, judge
from regard.evaluation.settings import Metric
from regard.evaluation.values import MetricValues
from regard.formatting import quantity, table
from regard.models.seq2seq import Seq2Seq
from regard.ops.chunked_loss import rows_per_chunk
from regard.ops.reference_mode import full_precision

Interval = tuple[float, float]


@dataclass(frozen=True, repr=False)
class Evaluation:
    """What a model reached on some questions, its answers, and what they took.

    `evaluation["bleu"]` is a value; `answers` has one for each question, and is empty where only the references were
    scored. `seconds` is the time that the answers took.
    """

    scores: MetricValues
    questions: EvaluationSet
    answers: list[str]
    search: SearchSettings
    seconds: float
    tokens: int
    judgements: dict[Metric, MetricStatistics] = field(default_factory=dict)
    intervals: dict[str, Interval] = field(default_factory=dict)
    """Of 95 % confidence, by label, where they were asked for."""

    def __getitem__(self, name: str) -> float:
        return self.scores[name]

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    def __repr__(self) -> str:
        values = [f"{measure.label} {measure.told(self[measure.label])}" for measure in self.judgements]
        return f"Evaluation({', '.join(values)}; {quantity(self.scores.pairs, 'pair')})"

    def __str__(self) -> str:
        """A table: measure, value, confidence where there is one, signature."""
        distinct = len(set(self.questions.sources))
        of = f", {quantity(distinct, 'source')}" if distinct < self.scores.pairs else ""
        header = ["metric", f"on {quantity(self.scores.pairs, 'pair')}{of}", "95 % confidence", "signature"]
        rows = []
        for measure in self.judgements:
            low_high = self.intervals.get(measure.label, ())
            confidence = " to ".join(map(measure.told, low_high))
            label = measure.label
            rows.append([label, measure.told(self[label]), confidence, self.scores.signatures[label]])
        if not self.intervals:
            header, *rows = ([*row[:2], row[3]] for row in (header, *rows))
        return table(header, rows)

    def to_json(self) -> dict[str, Any]:
        """All but the answers; what is no finite number is null."""
        return {
            "pairs": self.scores.pairs,
            "sources": len(set(self.questions.sources)),
            "values": {measure.label: _finite(self[measure.label]) for measure in self.judgements},
            "signatures": {measure.label: self.scores.signatures[measure.label] for measure in self.judgements},
            **({"confidence": {k: list(map(_finite, v)) for k, v in self.intervals.items()}} if self.intervals else {}),
            "search": self.search.model_dump(mode="json") if self.answers else None,
            "seconds": round(self.seconds, 4),
            "tokens_per_second": round(self.tokens_per_second, 1),
        }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def evaluate(
    predictor: Predictor,
    questions: EvaluationSet,
    metrics: Sequence[Metric],
    search: SearchSettings,
    *,
    batch_size: int = 256,
    confidence: bool = False,
) -> Evaluation:
    """Answers by the search that is given, judged by the measures; where none judges answers, none are looked for.

    A source that stands there several times is answered once.
    """
    answers: list[str] = []
    seconds, tokens = 0.0, 0
    if any(measure.of_answers for measure in metrics):
        distinct = list(dict.fromkeys(questions.sources))
        begun = time.perf_counter()
        found = [best for best, *_ in predictor.predict(distinct, search, batch_size=batch_size)]
        seconds = time.perf_counter() - begun
        tokens = sum(len(answer.target) for answer in found)
        said = dict(zip(distinct, (answer.text for answer in found), strict=True))
        answers = [said[source] for source in questions.sources]
    pairs = questions.pairs
    scored = pairs if any(not measure.of_answers for measure in metrics) else Pairs()
    evidence = ModelOutputs(questions, answers, losses(predictor, scored, batch_size))
    judgements = {measure: judge(measure, evidence) for measure in metrics}
    return Evaluation(
        MetricValues(
            len(pairs),
            {measure.label: judgement.value for measure, judgement in judgements.items()},
            {measure.label: judgement.signature for measure, judgement in judgements.items()},
        ),
        questions,
        answers,
        search,
        seconds,
        tokens,
        judgements,
        {measure.label: judgement.interval() for measure, judgement in judgements.items()} if confidence else {},
    )


def validate(predictor: Predictor, pairs: Pairs, metrics: Sequence[Metric], search: SearchSettings) -> MetricValues:
    """Evaluate a model during training."""
    try:
        return evaluate(predictor, EvaluationSet.of(pairs), metrics, search).scores
    except ModelError as error:
        raise DivergedError(f"Training diverged. {error}") from None


def losses(predictor: Predictor, pairs: Pairs, batch_size: int) -> Statistics:
    """(−log p, tokens) of each target given its source, its end included."""
    encoded = EncodedCorpus.of(pairs, predictor.tokenizers, predictor.max_length)
    found_N2 = np.zeros((len(encoded), 2))
    model = predictor.model
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode(), full_precision():
            for ids in batch_by_length(encoded.sources.lengths, batch_size):
                found_N2[ids] = _losses(model, encoded.batch(ids, predictor.device))
    finally:
        model.train(was_training)
    return found_N2


def _losses(model: Seq2Seq, batch: Batch) -> Statistics:
    decoded = model(batch.source, batch.decoder_inputs)
    tokens_BT, valid_BT = batch.target.tokens_BT, batch.target.valid_BT
    loss_BT = torch.zeros(tokens_BT.shape, dtype=torch.float64, device=tokens_BT.device)
    rows = rows_per_chunk(decoded.features.device, decoded.vocabulary)
    wholes = (decoded.features[valid_BT], tokens_BT[valid_BT])
    parts = zip(*(torch.split(whole, rows) for whole in wholes), strict=True)
    loss_BT[valid_BT] = torch.cat(
        [
            nn.functional.cross_entropy(decoded.output(features_ND).float(), tokens_N, reduction="none")
            for features_ND, tokens_N in parts
        ]
    ).double()
    loss_N2: Statistics = torch.stack([loss_BT.sum(-1), valid_BT.sum(-1)], dim=-1).cpu().numpy()
    return loss_N2
