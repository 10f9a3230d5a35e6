"""Selections: from scores to weights over the visible slots.

B rows, H heads, T queries, S memory slots.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple, final

import entmax
import torch
from torch import Tensor, nn

from regard.attention import equation, settings


class Selected(NamedTuple):
    """Weights to read with; for a sampled choice also what learning by reward needs."""

    weights_BHTS: Tensor
    log_prob_BT: Tensor | None = None
    entropy_BT: Tensor | None = None


class Selection(nn.Module, ABC):
    """a = select(e | allowed): weights that sum to 1 over what may be seen, and are 0 elsewhere."""

    marginal: bool = False
    """Whether the weights are probabilities of the one slot that is read, to be summed over in the output."""
    uses_past: bool = False
    """Whether it needs to know what was believed at the step before."""

    @abstractmethod
    def forward(self, scores_BHTS: Tensor, allowed_BHTS: Tensor) -> Selected: ...


@final
class Softmax(Selection):
    """a_j = exp(e_j) / Σ_i exp(e_i): soft, differentiable, reads everything."""

    def forward(self, scores_BHTS: Tensor, allowed_BHTS: Tensor) -> Selected:
        return Selected(equation.softmax(scores_BHTS, allowed_BHTS))


@final
class Sparse(Selection):
    """Sparsemax (Martins & Astudillo 2016) and 1.5-entmax (Peters et al. 2019): soft, with exact zeros."""

    def __init__(self, transform: Callable[[Tensor, int], Tensor]) -> None:
        super().__init__()
        self.transform = transform

    def forward(self, scores_BHTS: Tensor, allowed_BHTS: Tensor) -> Selected:
        # Low enough never to be chosen, high enough for the sums over sorted scores not to overflow.
        wide = scores_BHTS.float() if scores_BHTS.dtype in {torch.float16, torch.bfloat16} else scores_BHTS
        weights = self.transform(wide.masked_fill(~allowed_BHTS, -1e7), -1).masked_fill(~allowed_BHTS, 0.0)
        return Selected(weights.to(scores_BHTS.dtype))


@final
class StraightThrough(Selection):
    """A one-hot sample forward, the gradient of the soft sample backward (Gumbel; Jang et al. 2017); argmax at test."""

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, scores_BHTS: Tensor, allowed_BHTS: Tensor) -> Selected:
        if not self.training:
            return Selected(_one_hot(scores_BHTS, allowed_BHTS))
        uniform = torch.rand_like(scores_BHTS).clamp_(1e-9, 1 - 1e-7)
        soft = equation.softmax((scores_BHTS - (-uniform.log()).log()) / self.temperature, allowed_BHTS)
        return Selected(_one_hot(soft, allowed_BHTS) + soft - soft.detach())


@final
class Hard(Selection):
    """One position, sampled in training, the likeliest at test (Xu et al. 2015).

    It learns by REINFORCE: with reward R = log p(y | ã) of a row, baseline b ← 0.9 b + 0.1 mean R, it descends

        −λ_r (R − b) Σ_t log a_t(ã_t) − λ_e Σ_t H[a_t]

    beside the loss itself. With probability `soft` a step reads the soft context in place of its sample.
    """

    baseline: Tensor

    def __init__(self, *, entropy: float = 0.02, reward: float = 0.2, soft: float = 0.5) -> None:
        super().__init__()
        self.entropy, self.reward, self.soft = entropy, reward, soft
        self.register_buffer("baseline", torch.zeros(()))

    def forward(self, scores_BHTS: Tensor, allowed_BHTS: Tensor) -> Selected:
        if not self.training:
            return Selected(_one_hot(scores_BHTS, allowed_BHTS))
        soft = equation.softmax(scores_BHTS, allowed_BHTS)
        seen_BHT1 = allowed_BHTS.any(-1, keepdim=True)
        # A query that may see nothing still needs something to draw from; what it draws is weighted with nothing.
        chances = torch.where(seen_BHT1, soft.detach(), 1.0).flatten(0, -2)
        drawn = torch.multinomial(chances, 1).view_as(seen_BHT1)
        sample = torch.zeros_like(soft).scatter_(-1, drawn, 1.0).masked_fill(~allowed_BHTS, 0.0)
        reads_soft = torch.rand_like(soft[:, :1, :, :1]) < self.soft
        log_soft = soft.clamp_min(torch.finfo(soft.dtype).tiny).log()
        chosen_BHT = log_soft.gather(-1, drawn).masked_fill(reads_soft | ~seen_BHT1, 0.0).squeeze(-1)
        return Selected(
            torch.where(reads_soft, soft, sample),
            log_prob_BT=chosen_BHT.sum(1),
            entropy_BT=-(soft * log_soft).sum(-1).sum(1),
        )

    def surrogate(self, log_prob_BT: Tensor, entropy_BT: Tensor, log_p_BT: Tensor, valid_BT: Tensor) -> Tensor:
        """What to add to the loss, summed over the batch; the baseline moves on."""
        reward_B = log_p_BT.detach().masked_fill(~valid_BT, 0.0).sum(-1)
        advantage_B = reward_B - self.baseline
        if self.training:
            self.baseline.mul_(0.9).add_(0.1 * reward_B.mean())
        taken_B = log_prob_BT.masked_fill(~valid_BT, 0.0).sum(-1)
        spread_B = entropy_BT.masked_fill(~valid_BT, 0.0).sum(-1)
        return -(self.reward * advantage_B * taken_B + self.entropy * spread_B).sum()


@final
class HardExact(Selection):
    """One position is read, and the output sums over which: p(y) = Σ_j a_j p(y | v_j) (Wu et al. 2018)."""

    marginal = True

    def forward(self, scores_BHTS: Tensor, allowed_BHTS: Tensor) -> Selected:
        return Selected(equation.softmax(scores_BHTS, allowed_BHTS))


@final
class HardMonotonic(Selection):
    """One position that never goes back, summed over exactly (Wu & Cotterell 2019).

    From position i the next is j ≥ i with p(j | i) = exp(e_j) / Σ_{k ≥ i} exp(e_k). With the belief β(i) about the
    last position, given all that was said, the position now is j with probability

        a_j = exp(e_j) Σ_{i ≤ j} β(i) / Σ_{k ≥ i} exp(e_k)

    and what is said updates the belief: β(j) ∝ a_j p(y | v_j). The product over steps of Σ_j a_j p(y | v_j) is the
    sum over all monotonic alignments: the forward algorithm, one step at a time.
    """

    marginal = True
    uses_past = True

    def forward(self, scores_BHTS: Tensor, allowed_BHTS: Tensor) -> Selected:
        """The first step: nothing has been read, and every position can be reached."""
        return Selected(equation.softmax(scores_BHTS, allowed_BHTS))

    def advance(self, scores_BHTS: Tensor, allowed_BHTS: Tensor, belief_BHS: Tensor) -> Selected:
        """The probabilities of the position now, from the belief about the one before."""
        lowest = torch.finfo(scores_BHTS.dtype).min / 4
        shown = scores_BHTS.masked_fill(~allowed_BHTS, lowest)
        shown = shown - shown.amax(-1, keepdim=True)
        rest = shown.flip(-1).logcumsumexp(-1).flip(-1)
        log_belief = belief_BHS.clamp_min(torch.finfo(shown.dtype).tiny).log().unsqueeze(-2)
        # Slots that may not be seen have nothing behind them to go to, and no belief rests there.
        arriving = (log_belief - rest).masked_fill(~allowed_BHTS, lowest).logcumsumexp(-1)
        weights = (shown + arriving).exp().masked_fill(~allowed_BHTS, 0.0)
        total = weights.sum(-1, keepdim=True)
        return Selected(weights / torch.where(total > 0, total, 1.0))


def _one_hot(scores_BHTS: Tensor, allowed_BHTS: Tensor) -> Tensor:
    """1 at the highest score that may be seen; all 0 where nothing may."""
    lowest = torch.finfo(scores_BHTS.dtype).min
    highest = scores_BHTS.masked_fill(~allowed_BHTS, lowest).argmax(-1, keepdim=True)
    return torch.zeros_like(scores_BHTS).scatter_(-1, highest, 1.0).masked_fill(~allowed_BHTS, 0.0)


SELECTIONS: dict[str, Callable[..., Selection]] = {
    "softmax": Softmax,
    "sparsemax": lambda: Sparse(entmax.sparsemax),
    "entmax15": lambda: Sparse(entmax.entmax15),
    "straight_through": StraightThrough,
    "hard": Hard,
    "hard_exact": HardExact,
    "hard_monotonic": HardMonotonic,
}


def build_selection(choice: settings.Selection) -> Selection:
    return SELECTIONS[choice.kind](**choice.model_dump(exclude={"kind"}))
