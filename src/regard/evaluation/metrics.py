"""Metrics: the quality of predictions.

Every metric is a function of sums: each sentence has a row of statistics, and the value is computed from the sum of the
rows. A confidence interval, which needs the value on many resamples of the sentences, is computed without the texts.

N sentences, K statistics, R resamples.
"""

import logging
import math
import unicodedata
from collections.abc import Callable, Hashable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.arguments import check_integer, check_seed
from regard.data.corpora import Pairs, RawSource, identify
from regard.errors import ArgumentTypeError, ConfigError, DataError
from regard.evaluation.captions import CiderScorer, Words, compute_rouge_l, tokenize_caption
from regard.evaluation.settings import (
    Accuracy,
    Bleu,
    CharacterErrorRate,
    Chrf,
    Cider,
    Loss,
    Metric,
    Perplexity,
    PhonemeErrorRate,
    References,
    RougeL,
    SequenceErrorRate,
    Ter,
    WordErrorRate,
    check_format,
)
from regard.formatting import quantity
from regard.version import __version__

log = logging.getLogger(__name__)

Statistics = NDArray[np.float64]

RESAMPLES = 1_000


@dataclass(frozen=True)
class EvaluationSet:
    """Sources, each with one or more references."""

    sources: list[RawSource]
    references: list[list[str]]

    @classmethod
    def from_pairs(cls, pairs: Pairs) -> "EvaluationSet":
        return cls(list(pairs.sources), [[target] for target in pairs.targets])

    @classmethod
    def from_lists(cls, sources: Sequence[Any], references: Sequence[Any] | None) -> "EvaluationSet":
        """Build from a list of pairs, or from sources and, for each, a reference or a list of references."""
        if references is None:
            if isinstance(sources, str) or any(isinstance(pair, str) or len(pair) != 2 for pair in sources):
                raise ConfigError("Pass sources and references, or a list of pairs (source, reference).")
            return cls([source for source, _ in sources], [[reference] for _, reference in sources])
        if isinstance(sources, str) or isinstance(references, str) or len(sources) != len(references):
            raise ConfigError(
                f"Got {quantity(len(sources), 'source')} and {quantity(len(references), 'reference')}. Pass two lists "
                "of the same length, with a reference or a list of references for each source."
            )
        if not all(isinstance(entry, str) or entry for entry in references):
            raise ConfigError("A source has an empty list of references. Pass at least one reference for each source.")
        return cls(list(sources), [[entry] if isinstance(entry, str) else list(entry) for entry in references])

    @property
    def pairs(self) -> Pairs:
        """Each source paired with each of its references."""
        rows = list(zip(self.sources, self.references, strict=True))
        return Pairs(
            [source for source, references in rows for _ in references],
            [reference for _, references in rows for reference in references],
        )

    @property
    def first_pairs(self) -> Pairs:
        """Each source paired with the first of its references."""
        return Pairs(list(self.sources), [references[0] for references in self.references])

    @property
    def distinct_sources(self) -> int:
        """The number of distinct sources."""
        return len(set(map(identify, self.sources)))

    def group_references(self, by: References = "by_source") -> dict[int, list[str]]:
        """Return the references of each line; if grouped by source, only for the first line of each source."""
        first_lines: dict[Hashable, int] = {}
        shared: dict[int, list[str]] = {}
        for line, (source, references) in enumerate(zip(self.sources, self.references, strict=True)):
            shared.setdefault(first_lines.setdefault(identify(source), line), []).extend(references)
        counts = {len(references) for references in shared.values()}
        if by == "by_source" or (by == "auto" and len(counts) == 1 and counts != {1}):
            return shared
        return dict(enumerate(self.references))


@dataclass(frozen=True)
class ModelOutputs:
    """The inputs of metrics: a prediction for each source, and (−log p, tokens) of the reference of each pair."""

    evaluation_set: EvaluationSet
    predictions: list[str]
    losses_N2: Statistics


@dataclass(frozen=True)
class MetricStatistics:
    """The statistics of each sentence, and the function that computes the metric from their sum."""

    statistics_NK: Statistics
    compute_value: Callable[[list[float]], float]
    signature: str
    compute_sentence_value: Callable[[list[float]], float] | None = None
    """Computes the value of a single sentence, for metrics that define it differently, such as BLEU."""

    @classmethod
    def average(cls, values: Sequence[float], signature: str = "") -> "MetricStatistics":
        """Return the statistics of a metric that is the average of one value per sentence."""
        try:
            rows = np.stack([np.asarray(values, np.float64), np.ones(len(values))], axis=1)
        except (TypeError, ValueError):
            raise ArgumentTypeError("values must be a list with a number for each sentence.") from None
        return cls(rows, lambda totals: totals[0] / totals[1], signature)

    @property
    def value(self) -> float:
        return self.compute_value(self.statistics_NK.sum(0).tolist())

    def confidence_interval(
        self, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
    ) -> tuple[float, float]:
        """Compute a confidence interval by bootstrap resampling of the sentences (Efron 1979; Koehn 2004).

        The resamples depend only on the seed and the number of sentences, so two models evaluated on the same set are
        resampled in the same way.
        """
        if not isinstance(level, float) or not 0 < level < 1:
            raise ConfigError(f"level must be a number between 0 and 1, not {level!r}.")
        return percentile_interval(self.resample(resamples, seed), level)

    def resample(self, resamples: int = RESAMPLES, seed: int = 0) -> Statistics:
        """Return the value on each of R resamples of the sentences, drawn with replacement."""
        generator = np.random.default_rng(check_seed("seed", seed))
        count = len(self.statistics_NK)
        sums_RK = np.empty((check_integer("resamples", resamples, maximum=10_000_000), self.statistics_NK.shape[1]))
        for resample in range(resamples):
            sums_RK[resample] = self.statistics_NK[generator.integers(count, size=count)].sum(0)
        return self.compute_values(sums_RK)

    def compute_values(self, sums_RK: Statistics) -> Statistics:
        """Return the value of each row of sums."""
        return np.array([self.compute_value(sums) for sums in sums_RK.tolist()])

    @property
    def sentence_values(self) -> Statistics:
        """The value of each sentence by itself."""
        compute = self.compute_sentence_value or self.compute_value
        return np.array([compute(row) for row in self.statistics_NK.tolist()])


def percentile_interval(values_R: Statistics, level: float = 0.95) -> tuple[float, float]:
    """Return the interval that contains this share of resampled values, with equal shares below and above."""
    with np.errstate(invalid="ignore"):  # ∞ − ∞, of values that are not finite
        low, high = np.quantile(values_R, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def compute_statistics(metric: Metric, outputs: ModelOutputs) -> MetricStatistics:
    if not outputs.evaluation_set.sources:
        raise DataError("There are no pairs to evaluate the model on. Pass at least one source with its reference.")
    statistics: MetricStatistics = metric.build_part(outputs=outputs)
    return statistics


def register_metric(
    name: str,
    compute: Callable[..., MetricStatistics],
    *,
    higher_is_better: bool = False,
    needs_predictions: bool = True,
    format_spec: str = ".2f",
    unit: str = "",
) -> None:
    """Register a metric: a function with a parameter `outputs`, the `ModelOutputs`, that returns `MetricStatistics`.

    Its other parameters are options.

    Args:
        name: The name of the metric in settings and commands.
        compute: The function.
        higher_is_better: Whether a higher value is better.
        needs_predictions: Whether the metric uses the predictions. If not, it uses only the losses of the references.
        format_spec: The format of values in messages and tables.
        unit: Text after the values in messages and tables.

    >>> regard.register_metric("length", compute_length, format_spec=".1f", unit=" words")
    """
    Metric.registry.register(
        Metric,
        name,
        compute,
        higher_is_better=higher_is_better,
        needs_predictions=needs_predictions,
        format_spec=check_format(format_spec),
        unit=unit,
    )


def _compute_loss(settings: Loss | Perplexity, outputs: ModelOutputs) -> MetricStatistics:
    def average(totals: list[float]) -> float:
        nats = totals[0] / totals[1]
        if settings.kind == "loss":
            return nats
        return math.exp(nats) if nats < 700 else math.inf

    return MetricStatistics(outputs.losses_N2, average, _signature("token", outputs.evaluation_set, "by_line"))


def _compute_matches(settings: Accuracy | SequenceErrorRate, outputs: ModelOutputs) -> MetricStatistics:
    def share(totals: list[float]) -> float:
        correct = totals[0] / totals[1]
        return correct if settings.kind == "accuracy" else 100 * (1 - correct)

    rows = [
        (_normalize(outputs.predictions[line]) in map(_normalize, references), 1)
        for line, references in outputs.evaluation_set.group_references().items()
    ]
    return MetricStatistics(np.array(rows, dtype=np.float64), share, _signature("sequence", outputs.evaluation_set))


_UNITS = {"wer": "word", "per": "symbol", "cer": "character"}


def _compute_edits(
    settings: WordErrorRate | PhonemeErrorRate | CharacterErrorRate, outputs: ModelOutputs
) -> MetricStatistics:
    from rapidfuzz.distance.Levenshtein import distance

    def split(text: str) -> Sequence[str]:
        return _normalize(text) if settings.kind == "cer" else _normalize(text).split()

    def count_edits(prediction: Sequence[str], references: Iterable[Sequence[str]]) -> tuple[int, int]:
        """Return the edit distance to the closest reference and its length; the longest breaks ties."""
        edits, length = min((distance(prediction, reference), -len(reference)) for reference in references)
        return edits, -length

    def rate(totals: list[float]) -> float:
        edits, length = totals
        return 100 * edits / length if length else 100.0 * bool(edits)

    rows = [
        count_edits(split(outputs.predictions[line]), map(split, references))
        for line, references in outputs.evaluation_set.group_references().items()
    ]
    signature = _signature(_UNITS[settings.kind], outputs.evaluation_set)
    return MetricStatistics(np.array(rows, dtype=np.float64), rate, signature)


def _normalize(text: str) -> str:
    """Compose accents (NFC), so that the same letters compare equal in any encoding."""
    return unicodedata.normalize("NFC", text)


def _signature(unit: str, evaluation_set: EvaluationSet, by: References = "by_source") -> str:
    normalization = "" if unit == "token" else "|norm:nfc"
    return f"nrefs:{_count_references(evaluation_set, by)}|unit:{unit}{normalization}|version:regard-{__version__}"


def _count_references(evaluation_set: EvaluationSet, by: References) -> int | str:
    """Return the number of references of each source, or `var` if it varies."""
    counts = {len(references) for references in evaluation_set.group_references(by).values()}
    return counts.pop() if len(counts) == 1 else "var"


def _compute_bleu(settings: Bleu, outputs: ModelOutputs) -> MetricStatistics:
    from sacrebleu.metrics.bleu import BLEU

    coco = settings.tokenize == "coco"
    scorer = BLEU(
        settings.lowercase or coco,
        # Turn off sacrebleu's warning about tokenized text, which would repeat at every validation: see
        # `warn_if_tokenized`.
        force=True,
        tokenize="none" if coco else settings.tokenize,
        smooth_method=settings.smooth,
        max_ngram_order=settings.max_order,
    )
    if coco:
        scorer.tokenizer, scorer.tokenizer_signature = _CocoTokenizer(), _CocoTokenizer().signature()
    statistics = _compute_with_sacrebleu(scorer, outputs, settings.references)
    order = "" if settings.max_order == 4 else f"|order:{settings.max_order}"
    # As sacrebleu does for one sentence, ignore n-gram orders that are longer than the sentence.
    sentence_scorer = copy(scorer)
    sentence_scorer.effective_order = True
    return replace(
        statistics,
        signature=statistics.signature + order,
        compute_sentence_value=lambda row: float(sentence_scorer._compute_score_from_stats(list(map(int, row))).score),
    )


class _CocoTokenizer:
    """`tokenize_caption` with the interface of sacrebleu's tokenizers."""

    def signature(self) -> str:
        return "coco"

    def __call__(self, line: str) -> str:
        return " ".join(tokenize_caption(line))


def warn_if_tokenized(evaluation_set: EvaluationSet, metrics: Iterable[Metric]) -> None:
    """Warn if BLEU would tokenize references that look tokenized already."""
    endings = [
        reference.endswith((" .", " ?", " !")) for references in evaluation_set.references for reference in references
    ]
    tokenizing = [metric for metric in metrics if isinstance(metric, Bleu) and metric.tokenize not in {"none", "coco"}]
    if tokenizing and sum(endings) > len(endings) / 2:
        log.warning(
            "The references look tokenized, and %s tokenizes them again. Use bleu:tokenize=none to split them at "
            "spaces only, as in published results on tokenized text.",
            tokenizing[0].label,
        )


def _compute_chrf(settings: Chrf, outputs: ModelOutputs) -> MetricStatistics:
    from sacrebleu.metrics.chrf import CHRF

    scorer = CHRF(word_order=settings.word_order, lowercase=settings.lowercase)
    return _compute_with_sacrebleu(scorer, outputs, settings.references)


def _compute_ter(settings: Ter, outputs: ModelOutputs) -> MetricStatistics:
    from sacrebleu.metrics.ter import TER

    scorer = TER(normalized=settings.normalized, case_sensitive=settings.case_sensitive)
    return _compute_with_sacrebleu(scorer, outputs, settings.references)


def _compute_with_sacrebleu(scorer: Any, outputs: ModelOutputs, by: References) -> MetricStatistics:
    """Use the two parts of sacrebleu's `corpus_score`: the statistics of each sentence, and the score of their sum."""
    grouped = outputs.evaluation_set.group_references(by)
    max_references = max(map(len, grouped.values()))
    padded = [references + [None] * (max_references - len(references)) for references in grouped.values()]
    predictions = [outputs.predictions[line] for line in grouped]
    rows = scorer._extract_corpus_statistics(predictions, list(zip(*padded, strict=True)))
    return MetricStatistics(
        np.array(rows, dtype=np.float64),
        lambda totals: float(scorer._compute_score_from_stats(totals).score),
        str(scorer.get_signature()),
    )


def _compute_rouge_l(settings: RougeL, outputs: ModelOutputs) -> MetricStatistics:
    captions = _tokenize_captions(settings, outputs)
    values = [100 * compute_rouge_l(prediction, references) for prediction, references in captions]
    return MetricStatistics.average(values, _caption_signature(settings, outputs))


def _compute_cider(settings: Cider, outputs: ModelOutputs) -> MetricStatistics:
    captions = _tokenize_captions(settings, outputs)
    scorer = CiderScorer([references for _, references in captions])
    values = [scorer.score(prediction, references) for prediction, references in captions]
    return MetricStatistics.average(values, _caption_signature(settings, outputs))


def _tokenize_captions(settings: RougeL | Cider, outputs: ModelOutputs) -> list[tuple[Words, list[Words]]]:
    """Return the words of each prediction, and of its references."""
    split: Callable[[str], Words] = tokenize_caption if settings.tokenize == "coco" else str.split
    grouped = outputs.evaluation_set.group_references(settings.references)
    return [(split(outputs.predictions[line]), list(map(split, references))) for line, references in grouped.items()]


def _caption_signature(settings: RougeL | Cider, outputs: ModelOutputs) -> str:
    count = _count_references(outputs.evaluation_set, settings.references)
    return f"nrefs:{count}|tok:{settings.tokenize}|version:regard-{__version__}"


Metric.registry.builders |= {
    "loss": _compute_loss,
    "perplexity": _compute_loss,
    "accuracy": _compute_matches,
    "ser": _compute_matches,
    "wer": _compute_edits,
    "per": _compute_edits,
    "cer": _compute_edits,
    "bleu": _compute_bleu,
    "chrf": _compute_chrf,
    "ter": _compute_ter,
    "rouge_l": _compute_rouge_l,
    "cider": _compute_cider,
}
