"""Sampling from the next-token distribution, and minimum Bayes risk decoding over samples.

N hypotheses, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from sacrebleu.metrics.chrf import CHRF
from torch import Tensor

from regard.decoding.search import Hypothesis


@final
@dataclass(frozen=True)
class Sampler:
    """Sample a token from p^(1 / temperature), restricted to the k most likely tokens, to the most likely tokens whose
    probabilities add up to p (Holtzman et al. 2020), and to tokens at least min_p times as likely as the most likely.
    """

    generators: Sequence[np.random.Generator]
    """The generator of each sentence: the samples of a sentence do not depend on the others in its batch."""
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __call__(self, log_p_NV: Tensor, sentence_B: Tensor) -> Tensor:
        """Choose the token at which the cumulative probability exceeds a uniform random number."""
        hypotheses = len(log_p_NV) // len(sentence_B)
        draws = [self.generators[sentence].random(hypotheses) for sentence in sentence_B.tolist()]
        uniform_N1 = torch.from_numpy(np.concatenate(draws)).to(log_p_NV.device).unsqueeze(1)
        # If all probabilities are NaN, any token is chosen. The score of the hypothesis stays NaN and is reported.
        # In float64, so that rounding, which depends on the batch, practically never changes a choice.
        cumulative_NV = self.probabilities(log_p_NV).nan_to_num(nan=1.0).double().cumsum(-1)
        total_N1 = cumulative_NV[:, -1:]
        below_N1 = (uniform_N1 * total_N1).minimum(total_N1 * (1 - 2**-50))  # a rounded product could be the total
        return torch.searchsorted(cumulative_NV, below_N1, right=True).squeeze(-1)

    def probabilities(self, log_p_NV: Tensor) -> Tensor:
        """Return the probabilities to sample from, not normalized."""
        p_NV = (log_p_NV / self.temperature).softmax(-1)
        if self.top_k:
            threshold_N1 = p_NV.topk(min(self.top_k, p_NV.shape[-1]), dim=-1).values[:, -1:]
            p_NV = p_NV.masked_fill(p_NV < threshold_N1, 0.0)
        if self.top_p < 1:
            sorted_NV, order_NV = (p_NV / p_NV.sum(-1, keepdim=True)).sort(-1, descending=True)
            excluded_NV = sorted_NV.cumsum(-1) - sorted_NV >= self.top_p  # more likely tokens add up to p already
            p_NV = p_NV.masked_fill(excluded_NV.gather(-1, order_NV.argsort(-1)), 0.0)
        return p_NV.masked_fill(p_NV < self.min_p * p_NV.amax(-1, keepdim=True), 0.0)


def rank_by_risk(samples: Sequence[Hypothesis], decode: Callable[[list[int]], str]) -> list[Hypothesis]:
    """Rank the distinct samples by their average chrF against all samples (Eikema and Aziz 2020)."""
    metric = CHRF()
    texts = [decode(sample.tokens) for sample in samples]
    distinct = dict(zip(reversed(texts), reversed(samples), strict=True))
    ranked = []
    for text, sample in distinct.items():
        similarity = sum(float(metric.sentence_score(text, [other]).score) for other in texts) / len(texts)
        ranked.append(sample._replace(rank=similarity))
    return sorted(ranked, key=lambda sample: (-sample.rank, -sample.score))
