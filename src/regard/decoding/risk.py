"""Minimum Bayes risk: of several answers, the one that is most like the others."""

from collections.abc import Callable, Sequence

from sacrebleu.metrics.chrf import CHRF

from regard.decoding.search import Hypothesis


def least_risk(drawn: Sequence[Hypothesis], decode: Callable[[list[int]], str]) -> list[Hypothesis]:
    """The answers ranked by their mean chrF against all that were drawn (Eikema and Aziz 2020); each but once."""
    metric = CHRF()
    texts = [decode(answer.tokens) for answer in drawn]
    distinct = dict(zip(reversed(texts), reversed(drawn), strict=True))
    ranked = []
    for text, answer in distinct.items():
        likeness = sum(float(metric.sentence_score(text, [other]).score) for other in texts) / len(texts)
        ranked.append(answer._replace(rank=likeness))
    return sorted(ranked, key=lambda answer: (-answer.rank, -answer.score))
