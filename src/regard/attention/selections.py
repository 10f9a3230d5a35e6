"""Selections: convert scores to weights over the visible slots.

B rows, H heads, T queries, S memory slots.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple, final

import entmax
import torch
from pydantic import Field
from torch import Tensor, nn

from regard.attention import equation, settings
from regard.attention.mechanisms import MECHANISMS, Mechanism, add_mechanism
from regard.config import TRAINING_ONLY
from regard.quantities import Fraction, PositiveWeight, Temperature, Weight

Gradient = Literal["exact", "REINFORCE", "straight-through"]


class SampledSlot(NamedTuple):
    """Sampled slots, for REINFORCE: their log-probabilities, the entropies, and the loss term computed from them.

    `surrogate(log_prob_BT, entropy_BT, log_p_BT, valid_BT)` is summed over the batch and added to the loss; log_p_BT
    are the log-probabilities of the targets.
    """

    surrogate: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    log_prob_BT: Tensor
    entropy_BT: Tensor
    probabilities_BHTS: Tensor
    """The distributions that the slots were sampled from."""


def join_samples(samples: list[SampledSlot]) -> SampledSlot | None:
    """Concatenate the samples of several steps; return None if there are none."""
    if not samples:
        return None
    return SampledSlot(
        samples[0].surrogate,
        torch.cat([sample.log_prob_BT for sample in samples], dim=1),
        torch.cat([sample.entropy_BT for sample in samples], dim=1),
        torch.cat([sample.probabilities_BHTS for sample in samples], dim=2),
    )


class Selected(NamedTuple):
    """Attention weights, and the sampled slots if the weights are a sample."""

    weights_BHTS: Tensor
    sample: SampledSlot | None = None


class Selection(nn.Module, ABC):
    """a = select(e | allowed): weights that sum to 1 over the visible slots, and are 0 elsewhere."""

    is_softmax: bool = False
    """Whether the weights are the softmax of the scores, which fused kernels compute."""
    marginal: bool = False
    """Whether the output distribution is marginalized over the slot that is read, with the weights as probabilities."""
    uses_past: bool = False
    """Whether it depends on the belief about the slot that was read last."""
    restricts_slots: bool = False
    """Whether it restricts the visible slots itself, so that it cannot be combined with a scope."""
    gradient: Gradient = "exact"
    """How the gradient of the scores is computed in training: exactly, or from a sample."""

    def __init__(self) -> None:
        super().__init__()

    @abstractmethod
    def forward(self, scores_BHTS: Tensor, allowed_BHTS: Tensor, belief_BHS: Tensor | None = None) -> Selected:
        """Compute weights from the scores. `belief_BHS` is the probability that each slot was read last; it is
        None at the first step, and for a selection that does not use the past.
        """


@final
class Softmax(Selection):
    """a_j = exp(e_j) / Σ_i exp(e_i): soft and differentiable; every slot gets some weight."""

    is_softmax = True

    def forward(self, scores_BHTS: Tensor, allowed_BHTS: Tensor, belief_BHS: Tensor | None = None) -> Selected:
        del belief_BHS
        return Selected(equation.softmax(scores_BHTS, allowed_BHTS))


@final
class Sparse(Selection):
    """Sparsemax (Martins & Astudillo 2016) and 1.5-entmax (Peters et al. 2019): soft, with exact zeros."""

    def __init__(self, transform: Callable[[Tensor, int], Tensor]) -> None:
        super().__init__()
        self.transform = transform

    def forward(self, scores_BHTS: Tensor, allowed_BHTS: Tensor, belief_BHS: Tensor | None = None) -> Selected:
        del belief_BHS
        # Low enough never to be selected, high enough that sums over sorted scores do not overflow.
        wide = scores_BHTS.float() if scores_BHTS.dtype in {torch.float16, torch.bfloat16} else scores_BHTS
        weights = self.transform(wide.masked_fill(~allowed_BHTS, -1e7), -1).masked_fill(~allowed_BHTS, 0.0)
        return Selected(weights.to(scores_BHTS.dtype))


@final
class StraightThrough(Selection):
    """A one-hot Gumbel sample with the gradient of the soft sample (Jang et al. 2017); argmax in evaluation mode."""

    gradient = "straight-through"

    def __init__(
        self,
        temperature: Annotated[
            Temperature, Field(json_schema_extra=TRAINING_ONLY, description="lower values make samples harder")
        ] = 1.0,
    ) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, scores_BHTS: Tensor, allowed_BHTS: Tensor, belief_BHS: Tensor | None = None) -> Selected:
        del belief_BHS
        if not self.training:
            return Selected(_one_hot(scores_BHTS, allowed_BHTS))
        uniform = torch.rand_like(scores_BHTS).clamp_(1e-9, 1 - 1e-7)
        soft = equation.softmax((scores_BHTS - (-uniform.log()).log()) / self.temperature, allowed_BHTS)
        return Selected(_one_hot(soft, allowed_BHTS) + soft - soft.detach())


@final
class Hard(Selection):
    """One slot, sampled in training; the most likely one in evaluation mode (Xu et al. 2015).

    It is trained with REINFORCE. With reward R = log p(y | ã) of a row and baseline b ← 0.9 b + 0.1 mean R, the term

        −λ_r (R − b) Σ_t log a_t(ã_t) − λ_e Σ_t H[a_t]

    is added to the loss. With probability `soft`, a step uses the soft context instead of the sampled slot; the
    paper decides this for all steps of a row at once.
    """

    gradient = "REINFORCE"
    baseline: Tensor

    def __init__(
        self,
        *,
        entropy: Annotated[
            Weight, Field(json_schema_extra=TRAINING_ONLY, description="λ_e, the weight of the entropy bonus")
        ] = 0.02,
        reward: Annotated[
            PositiveWeight, Field(json_schema_extra=TRAINING_ONLY, description="λ_r, the weight of the reward")
        ] = 0.2,
        soft: Annotated[
            Fraction,
            Field(
                json_schema_extra=TRAINING_ONLY,
                description="probability of using the soft context instead of the sample",
            ),
        ] = 0.5,
    ) -> None:
        super().__init__()
        self.entropy, self.reward, self.soft = entropy, reward, soft
        self.register_buffer("baseline", torch.zeros(()))

    def forward(self, scores_BHTS: Tensor, allowed_BHTS: Tensor, belief_BHS: Tensor | None = None) -> Selected:
        del belief_BHS
        if not self.training:
            return Selected(_one_hot(scores_BHTS, allowed_BHTS))
        soft = equation.softmax(scores_BHTS, allowed_BHTS)
        nonempty_BHT1 = allowed_BHTS.any(-1, keepdim=True)
        # `multinomial` needs a positive probability even for a query without visible slots; its sample gets no weight.
        probabilities = torch.where(nonempty_BHT1, soft.detach(), 1.0).flatten(0, -2)
        slot_BHT1 = torch.multinomial(probabilities, 1).view_as(nonempty_BHT1)
        sample = torch.zeros_like(soft).scatter_(-1, slot_BHT1, 1.0).masked_fill(~allowed_BHTS, 0.0)
        use_soft = torch.rand_like(soft[:, :1, :, :1]) < self.soft
        log_soft = soft.clamp_min(torch.finfo(soft.dtype).tiny).log()
        log_prob_BHT = log_soft.gather(-1, slot_BHT1).masked_fill(use_soft | ~nonempty_BHT1, 0.0).squeeze(-1)
        entropy_BT = -(soft * log_soft).sum(-1).sum(1)
        sampled = SampledSlot(self.surrogate, log_prob_BHT.sum(1), entropy_BT, soft)
        return Selected(torch.where(use_soft, soft, sample), sampled)

    def surrogate(self, log_prob_BT: Tensor, entropy_BT: Tensor, log_p_BT: Tensor, valid_BT: Tensor) -> Tensor:
        """Return the term to add to the loss, summed over the batch, and update the baseline."""
        reward_B = log_p_BT.detach().masked_fill(~valid_BT, 0.0).sum(-1)
        advantage_B = reward_B - self.baseline
        if self.training:
            self.baseline.mul_(0.9).add_(0.1 * reward_B.mean())
        log_prob_B = log_prob_BT.masked_fill(~valid_BT, 0.0).sum(-1)
        entropy_B = entropy_BT.masked_fill(~valid_BT, 0.0).sum(-1)
        return -(self.reward * advantage_B * log_prob_B + self.entropy * entropy_B).sum()


@final
class HardExact(Selection):
    """One slot, marginalized exactly in the output: p(y) = Σ_j a_j p(y | v_j) (Wu et al. 2018)."""

    marginal = True

    def forward(self, scores_BHTS: Tensor, allowed_BHTS: Tensor, belief_BHS: Tensor | None = None) -> Selected:
        del belief_BHS
        return Selected(equation.softmax(scores_BHTS, allowed_BHTS))


@final
class HardMonotonic(Selection):
    """One slot that never moves back, marginalized exactly (Wu & Cotterell 2019).

    From slot i, the next slot is j ≥ i with p(j | i) = exp(e_j) / Σ_{k ≥ i} exp(e_k). Let the belief β(i) be
    the distribution of the previous slot, given the tokens so far. Then the probability of slot j is

        a_j = exp(e_j) Σ_{i ≤ j} β(i) / Σ_{k ≥ i} exp(e_k)

    and the next token y updates the belief: β(j) ∝ a_j p(y | v_j). The product over steps of Σ_j a_j p(y | v_j) is the
    sum over all monotonic alignments: the forward algorithm, one step at a time.
    """

    marginal = True
    uses_past = True
    restricts_slots = True

    def forward(self, scores_BHTS: Tensor, allowed_BHTS: Tensor, belief_BHS: Tensor | None = None) -> Selected:
        """Return the probabilities of the current slot. At the first step, every slot can be reached."""
        if belief_BHS is None:
            return Selected(equation.softmax(scores_BHTS, allowed_BHTS))
        lowest = torch.finfo(scores_BHTS.dtype).min / 4
        masked = scores_BHTS.masked_fill(~allowed_BHTS, lowest)
        masked = masked - masked.amax(-1, keepdim=True)
        log_tail = masked.flip(-1).logcumsumexp(-1).flip(-1)
        log_belief = belief_BHS.clamp_min(torch.finfo(masked.dtype).tiny).log().unsqueeze(-2)
        # Masked slots have no belief and no successors.
        arriving = (log_belief - log_tail).masked_fill(~allowed_BHTS, lowest).logcumsumexp(-1)
        weights = (masked + arriving).exp().masked_fill(~allowed_BHTS, 0.0)
        total = weights.sum(-1, keepdim=True)
        return Selected(weights / torch.where(total > 0, total, 1.0))


def _one_hot(scores_BHTS: Tensor, allowed_BHTS: Tensor) -> Tensor:
    """Return 1 at the highest visible score, else 0; all zeros for a query without visible slots."""
    lowest = torch.finfo(scores_BHTS.dtype).min
    highest = scores_BHTS.masked_fill(~allowed_BHTS, lowest).argmax(-1, keepdim=True)
    return torch.zeros_like(scores_BHTS).scatter_(-1, highest, 1.0).masked_fill(~allowed_BHTS, 0.0)


def register_selection(name: str, selection: Callable[..., Selection]) -> None:
    """Register a selection: a subclass of `Selection`, or a function that builds one. Its parameters are options."""
    registry = settings.Selection.registry
    registry.register(settings.Selection, name, selection)
    if name in registry.plugins:
        citation = f"registered by {registry.plugins[name]}"
        add_mechanism(Mechanism(name, MECHANISMS["bahdanau"].equation, citation, "additive", select=name))


register_selection("softmax", Softmax)
register_selection("hard", Hard)
register_selection("hard_exact", HardExact)
register_selection("hard_monotonic", HardMonotonic)
register_selection("straight_through", StraightThrough)
register_selection("sparsemax", lambda: Sparse(entmax.sparsemax))
register_selection("entmax15", lambda: Sparse(entmax.entmax15))
