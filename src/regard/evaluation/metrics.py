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
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from regard.arguments import check_integer, check_seed
from regard.data.corpora import Pairs, RawSource, identify
from regard.errors import ArgumentTypeError, ConfigError, DataError
from regard.evaluation.captions import CiderScorer, Words, compute_rouge_l, tokenize_caption
from regard.evaluation.settings import Metric
from regard.formatting import quantity
from regard.quantities import Count, OptionalCount
from regard.version import __version__

log = logging.getLogger(__name__)

Statistics = NDArray[np.float64]
Interval = tuple[float, float]

RESAMPLES = 1_000

Lowercase = Annotated[bool, Field(description="compare texts in lower case")]

References = Annotated[
    Literal["by_line", "by_source", "auto"],
    Field(
        description="by_line: each line has its own references; by_source: lines with the same source share their "
        "references; auto: by_source if every source has the same number of references, and more than one"
    ),
]


@dataclass(frozen=True)
class EvaluationSet:
    """Sources, each with one or more references."""

    sources: list[RawSource]
    references: list[list[str]]

    @classmethod
    def from_pairs(cls, pairs: Pairs) -> "EvaluationSet":
        return cls(list(pairs.sources), [[target] for target in pairs.targets])

    @classmethod
    def from_lists(cls, sources: Sequence[RawSource], references: Sequence[str | Sequence[str]]) -> "EvaluationSet":
        """Build from sources and, for each, a reference or a list of references."""
        if len(sources) != len(references):
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

    def confidence_interval(self, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
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


def percentile_interval(values_R: Statistics, level: float = 0.95) -> Interval:
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
    try:
        format(0.5, format_spec)
    except (TypeError, ValueError):
        raise ConfigError(f"format_spec must be a format for numbers, such as '.2f', not {format_spec!r}.") from None
    Metric.registry.register(
        Metric,
        name,
        compute,
        higher_is_better=higher_is_better,
        needs_predictions=needs_predictions,
        format_spec=format_spec,
        unit=unit,
    )


def _compute_loss(outputs: ModelOutputs) -> MetricStatistics:
    """−log p of the references in nats, averaged over all their tokens."""
    return _average_losses(outputs, lambda nats: nats)


def _compute_perplexity(outputs: ModelOutputs) -> MetricStatistics:
    """exp(loss). Values are comparable only between models with the same vocabulary."""
    return _average_losses(outputs, lambda nats: math.exp(nats) if nats < 700 else math.inf)


def _average_losses(outputs: ModelOutputs, of_average: Callable[[float], float]) -> MetricStatistics:
    signature = _signature("token", outputs.evaluation_set, "by_line")
    return MetricStatistics(outputs.losses_N2, lambda totals: of_average(totals[0] / totals[1]), signature)


def _compute_accuracy(outputs: ModelOutputs) -> MetricStatistics:
    """The share of sources whose prediction equals one of their references, from 0 to 1."""
    rows = [
        (compose_accents(outputs.predictions[line]) in map(compose_accents, references), 1)
        for line, references in outputs.evaluation_set.group_references().items()
    ]
    signature = _signature("sequence", outputs.evaluation_set)
    return MetricStatistics(np.array(rows, dtype=np.float64), lambda totals: totals[0] / totals[1], signature)


def _compute_ser(outputs: ModelOutputs) -> MetricStatistics:
    """The share of sources whose prediction equals none of their references, in percent: 100 (1 − accuracy).

    Papers on grapheme-to-phoneme conversion call this WER, because each of their sequences is a word.
    """
    return replace(_compute_accuracy(outputs), compute_value=lambda totals: 100 * (1 - totals[0] / totals[1]))


def _compute_wer(outputs: ModelOutputs) -> MetricStatistics:
    """100 Σ edits / Σ reference length, over space-separated words (as in speech recognition).

    Edits are insertions, deletions and substitutions, so the rate can exceed 100. Edits and length are those of the
    closest reference of each source; if several are equally close, of the longest.
    """
    return _compute_edits(outputs, str.split, "word")


def _compute_per(outputs: ModelOutputs) -> MetricStatistics:
    """The same as `wer`, for text whose space-separated symbols are phonemes."""
    return _compute_edits(outputs, str.split, "symbol")


def _compute_cer(outputs: ModelOutputs) -> MetricStatistics:
    """The same as `wer` over characters, including spaces."""
    return _compute_edits(outputs, str, "character")


def _compute_edits(outputs: ModelOutputs, split: Callable[[str], Sequence[str]], unit: str) -> MetricStatistics:
    from rapidfuzz.distance.Levenshtein import distance

    def count_edits(prediction: str, references: Iterable[str]) -> tuple[int, int]:
        """Return the edit distance to the closest reference and its length; the longest breaks ties."""
        predicted, expected = split(compose_accents(prediction)), [split(compose_accents(text)) for text in references]
        edits, length = min((distance(predicted, tokens), -len(tokens)) for tokens in expected)
        return edits, -length

    def rate(totals: list[float]) -> float:
        edits, length = totals
        return 100 * edits / length if length else 100.0 * bool(edits)

    rows = [
        count_edits(outputs.predictions[line], references)
        for line, references in outputs.evaluation_set.group_references().items()
    ]
    return MetricStatistics(np.array(rows, dtype=np.float64), rate, _signature(unit, outputs.evaluation_set))


def compose_accents(text: str) -> str:
    """Compose accents (NFC), so that the same letters compare equal in any encoding."""
    return unicodedata.normalize("NFC", text)


def _signature(unit: str, evaluation_set: EvaluationSet, by: References = "by_source") -> str:
    normalization = "" if unit == "token" else "|norm:nfc"
    return f"nrefs:{_count_references(evaluation_set, by)}|unit:{unit}{normalization}|version:regard-{__version__}"


def _count_references(evaluation_set: EvaluationSet, by: References) -> int | str:
    """Return the number of references of each source, or `var` if it varies."""
    counts = {len(references) for references in evaluation_set.group_references(by).values()}
    return counts.pop() if len(counts) == 1 else "var"


def _compute_bleu(
    outputs: ModelOutputs,
    tokenize: Annotated[
        Literal["13a", "none", "intl", "char", "zh", "coco"],
        Field(description="a tokenizer of sacrebleu, or coco: lowercase words without punctuation"),
    ] = "13a",
    lowercase: Lowercase = False,
    max_order: Annotated[Count, Field(le=4, description="maximum n-gram order: 4 is BLEU-4")] = 4,
    smooth: Annotated[
        Literal["exp", "floor", "add-k", "none"], Field(description="smoothing if no n-gram of some order matches")
    ] = "exp",
    references: References = "by_line",
) -> MetricStatistics:
    """Corpus BLEU (Papineni et al. 2002), computed by sacrebleu (Post 2018).

    With `tokenize: none`, words are split at spaces only. This is the value in papers that tokenize both sides
    beforehand; it is not comparable with the value under `13a` on untokenized text. BLEU-1 to BLEU-4 of papers on
    captioning are `max_order: 1` to `4` with `tokenize: coco`, `smooth: none` and `references: by_source`.
    """
    from sacrebleu.metrics.bleu import BLEU

    coco = tokenize == "coco"
    scorer = BLEU(
        lowercase or coco,
        # Turn off sacrebleu's warning about tokenized text, which would repeat at every validation: see
        # `warn_if_tokenized`.
        force=True,
        tokenize="none" if coco else tokenize,
        smooth_method=smooth,
        max_ngram_order=max_order,
    )
    if coco:
        scorer.tokenizer, scorer.tokenizer_signature = _CocoTokenizer(), _CocoTokenizer().signature()
    statistics = _compute_with_sacrebleu(scorer, outputs, references)
    order = "" if max_order == 4 else f"|order:{max_order}"
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
    tokenizing = [
        metric
        for metric in metrics
        if metric.kind == "bleu" and metric.model_dump()["tokenize"] not in {"none", "coco"}
    ]
    if tokenizing and sum(endings) > len(endings) / 2:
        log.warning(
            "The references look tokenized, and %s tokenizes them again. Use bleu:tokenize=none to split them at "
            "spaces only, as in published results on tokenized text.",
            tokenizing[0].label,
        )


def _compute_chrf(
    outputs: ModelOutputs,
    word_order: Annotated[OptionalCount, Field(le=4, description="also count word n-grams up to this order")] = 0,
    lowercase: Lowercase = False,
    references: References = "by_line",
) -> MetricStatistics:
    """Corpus chrF (Popović 2015), computed by sacrebleu; chrF++ with `word_order: 2`."""
    from sacrebleu.metrics.chrf import CHRF

    return _compute_with_sacrebleu(CHRF(word_order=word_order, lowercase=lowercase), outputs, references)


def _compute_ter(
    outputs: ModelOutputs,
    normalized: Annotated[bool, Field(description="separate punctuation from words first")] = False,
    case_sensitive: Annotated[bool, Field(description="distinguish upper and lower case")] = False,
    references: References = "by_line",
) -> MetricStatistics:
    """Translation edit rate (Snover et al. 2006), computed by sacrebleu: insertions, deletions, substitutions and
    shifts of words.
    """
    from sacrebleu.metrics.ter import TER

    return _compute_with_sacrebleu(TER(normalized=normalized, case_sensitive=case_sensitive), outputs, references)


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


CaptionTokenization = Annotated[
    Literal["coco", "none"],
    Field(description="coco: lowercase words without punctuation; none: split at spaces only"),
]


def _compute_rouge_l(
    outputs: ModelOutputs, tokenize: CaptionTokenization = "coco", references: References = "by_source"
) -> MetricStatistics:
    """ROUGE-L (Lin 2004) as in the COCO caption evaluation, averaged over the sources.

    F_β, with β = 1.2, of the longest common subsequence of words. Precision and recall are each the maximum over the
    references.
    """
    captions, signature = _tokenize_captions(outputs, tokenize, references)
    return MetricStatistics.average([100 * compute_rouge_l(*caption) for caption in captions], signature)


def _compute_cider(
    outputs: ModelOutputs, tokenize: CaptionTokenization = "coco", references: References = "by_source"
) -> MetricStatistics:
    """CIDEr-D (Vedantam et al. 2015) as in the COCO caption evaluation, averaged over the sources: 0 to 10.

    The tf-idf weighted cosine of n-grams of up to 4 words, clipped, with a Gaussian penalty on the difference in length
    (σ = 6). Document frequencies are counted in the references of the evaluation set, so values on different sets are
    not comparable. A confidence interval resamples the sources, and keeps these frequencies. Papers print 100 times
    this value.
    """
    captions, signature = _tokenize_captions(outputs, tokenize, references)
    scorer = CiderScorer([references for _, references in captions])
    return MetricStatistics.average([scorer.score(*caption) for caption in captions], signature)


def _tokenize_captions(
    outputs: ModelOutputs, tokenize: CaptionTokenization, by: References
) -> tuple[list[tuple[Words, list[Words]]], str]:
    """Return the words of each prediction and of its references, and the signature of the metric."""
    split: Callable[[str], Words] = tokenize_caption if tokenize == "coco" else str.split
    grouped = outputs.evaluation_set.group_references(by)
    captions = [(split(outputs.predictions[line]), list(map(split, texts))) for line, texts in grouped.items()]
    count = _count_references(outputs.evaluation_set, by)
    return captions, f"nrefs:{count}|tok:{tokenize}|version:regard-{__version__}"


register_metric("loss", _compute_loss, needs_predictions=False, format_spec=".4f")
register_metric("perplexity", _compute_perplexity, needs_predictions=False)
register_metric("accuracy", _compute_accuracy, higher_is_better=True, format_spec=".2%")
register_metric("ser", _compute_ser, unit="%")
register_metric("wer", _compute_wer, unit="%")
register_metric("per", _compute_per, unit="%")
register_metric("cer", _compute_cer, unit="%")
register_metric("bleu", _compute_bleu, higher_is_better=True)
register_metric("chrf", _compute_chrf, higher_is_better=True)
register_metric("ter", _compute_ter)
register_metric("rouge_l", _compute_rouge_l, higher_is_better=True)
register_metric("cider", _compute_cider, higher_is_better=True, format_spec=".4f")
