"""The loss: −log p(y | x), summed over the tokens of a batch, and what may be added to it.

B rows, T target steps, N tokens that count, D width, V vocabulary.
"""

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from regard.data.batching import Batch
from regard.data.tokens.tokenizers import UNKNOWN
from regard.models.contracts import Decoded, Padded
from regard.models.ensemble import average_distributions
from regard.models.seq2seq import Seq2Seq
from regard.ops.chunked_loss import Loss, chunked_loss
from regard.ops.consistency import consistency_loss
from regard.ops.cross_entropy import IGNORE_INDEX, cross_entropy
from regard.runs.settings import Consistency, NoConsistency, Shares, TrainingSettings
from regard.training.distillation import Distillation
from regard.training.machine import uses_bfloat16

NO_CONSISTENCY = NoConsistency()


def token_loss(model: Seq2Seq, batch: Batch, label_smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    """−Σ log p(y_t | y_<t, x) over the batch's tokens, and how many there are; padding counts for nothing.

    In training, what the model's mechanisms bring of their own is added.
    """
    return Objective(label_smoothing)(model, batch), batch.target.lengths_B.sum()


@dataclass(frozen=True)
class Objective:
    """What training makes small: the loss, with smoothed labels, dropped words, and consistency or teachers where they
    are set.
    """

    label_smoothing: float = 0.0
    word_dropout: float = 0.0
    consistency: Consistency = NO_CONSISTENCY
    halved: bool = False
    """Whether matrix products are worked out in bfloat16."""
    teaching: Distillation | None = None

    @classmethod
    def of(cls, settings: TrainingSettings, device: torch.device, teaching: Distillation | None = None) -> "Objective":
        halved = uses_bfloat16(settings, device)
        return cls(settings.label_smoothing, settings.word_dropout, settings.consistency, halved, teaching)

    def told(self) -> str:
        taught = f", taught by {self.teaching.told}" if self.teaching is not None else ""
        return (" in bfloat16" if self.halved else "") + taught

    def at(self, position: float) -> "Objective":
        """The objective at a position of the schedule: consistency may start later than the rest."""
        if self.consistency.kind == "none" or position >= self.consistency.start_step:
            return self
        return replace(self, consistency=NO_CONSISTENCY)

    def __call__(self, model: Seq2Seq, batch: Batch) -> Tensor:
        """The sum over the batch's tokens."""
        with torch.autocast(batch.source.tokens_BT.device.type, torch.bfloat16, enabled=self.halved):
            return self._sum(model, batch)

    def _sum(self, model: Seq2Seq, batch: Batch) -> Tensor:
        source, given = self._with_gaps(batch, self.word_dropout)
        target = batch.target
        if self.consistency.kind == "none":
            decoded = model(source, given)
            features_ND, tokens_N = _counted(decoded.features, target)
            if self.teaching is None:
                total = _cross_entropy(decoded, features_ND, tokens_N, self.label_smoothing)
            else:
                total = _taught(self.teaching, batch, decoded, features_ND, tokens_N, self.label_smoothing)
            return total + _terms(decoded, target)
        # Both passes are the halves of one batch.
        again, given_again = source, given
        if self.consistency.kind == "simcut":
            again, given_again = self._with_gaps(batch, self.consistency.cut)
        twice = Padded(torch.cat([source.tokens_BT, again.tokens_BT]), source.lengths_B.repeat(2))
        decoded = model(twice, torch.cat([given, given_again]))
        (first_ND, tokens_N), (second_ND, _) = (_counted(half, target) for half in decoded.features.chunk(2))
        shares = self.consistency.shares
        total = _two_passes(decoded, first_ND, second_ND, tokens_N, shares, self.label_smoothing)
        doubled = Padded(target.tokens_BT.repeat(2, 1), target.lengths_B.repeat(2))
        return total + 0.5 * _terms(decoded, doubled)

    @staticmethod
    def _with_gaps(batch: Batch, share: float) -> tuple[Padded, Tensor]:
        """The batch's two inputs with a share of their tokens unknown; the start stays."""
        if not share:
            return batch.source, batch.given
        source_BS, given_BT = batch.source.tokens_BT, batch.given
        gaps_BS = torch.rand(source_BS.shape, device=source_BS.device) < share
        gaps_BT = torch.rand(given_BT.shape, device=given_BT.device) < share
        gaps_BT[:, 0] = False
        source = Padded(source_BS.masked_fill(gaps_BS, UNKNOWN), batch.source.lengths_B)
        return source, given_BT.masked_fill(gaps_BT, UNKNOWN)


class LeavesGradient(Protocol):
    """Works gradients out in its own way."""

    def begin(self) -> None:
        """Leave no gradient on the model."""

    def __call__(self, batch: Batch, tokens: int) -> Tensor:
        """Add the gradient of a batch's loss, divided by a number of tokens, to what lies on the model → that loss."""


def backward(
    model: Seq2Seq, batches: list[Batch], objective: Objective, pieces: int = 1, recorder: LeavesGradient | None = None
) -> tuple[Tensor, int]:
    """Leave the gradient of the mean loss on the model, worked out in so many pieces → (loss, tokens).

    A recorder works it out in the objective's place, always in the same memory.
    """
    gradient = recorder or _Afresh(model, objective)
    gradient.begin()
    tokens = max(1, sum(batch.tokens for batch in batches))  # nothing but padding weighs nothing
    shares = [gradient(piece, tokens) for batch in batches for piece in batch.cut(pieces)]
    return torch.stack(shares).sum(), tokens


@dataclass(frozen=True)
class _Afresh:
    """Gradients worked out as they come."""

    model: Seq2Seq
    objective: Objective

    def begin(self) -> None:
        self.model.zero_grad(set_to_none=True)

    def __call__(self, batch: Batch, tokens: int) -> Tensor:
        return leave_gradient(self.model, batch, self.objective, 1 / tokens)


def leave_gradient(model: Seq2Seq, batch: Batch, objective: Objective, share: Tensor | float) -> Tensor:
    """Add the gradient of a share of the loss to what lies on the model → that share."""
    loss = objective(model, batch) * share
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def _counted(features_BTD: Tensor, target: Padded) -> tuple[Tensor, Tensor]:
    """The features and tokens that count; on a GPU all, since it would have to wait to be told how many do."""
    if features_BTD.is_cuda:
        return all_with_padding_passed_over(features_BTD, target)
    return features_BTD[target.valid_BT], target.tokens_BT[target.valid_BT]


def all_with_padding_passed_over(features_BTD: Tensor, target: Padded) -> tuple[Tensor, Tensor]:
    """Padding gets features of nothing, and a token that the loss passes over."""
    features_BTD = features_BTD.masked_fill(~target.valid_BT.unsqueeze(-1), 0.0)
    return features_BTD.flatten(0, 1), target.tokens_BT.masked_fill(~target.valid_BT, IGNORE_INDEX).flatten()


def _chunked(loss: Loss, decoded: Decoded, *inputs: Tensor) -> Tensor:
    return chunked_loss(loss, inputs, decoded.weights, decoded.vocabulary)


def _cross_entropy(decoded: Decoded, features_ND: Tensor, tokens_N: Tensor, label_smoothing: float) -> Tensor:
    def loss(features_ND: Tensor, tokens_N: Tensor) -> Tensor:
        return cross_entropy(decoded.output(features_ND), tokens_N, label_smoothing)

    return _chunked(loss, decoded, features_ND, tokens_N)


def _two_passes(
    decoded: Decoded, first_ND: Tensor, second_ND: Tensor, tokens_N: Tensor, shares: Shares, label_smoothing: float
) -> Tensor:
    """What two passes of one model cost together; gradients flow through both."""

    def part(first_ND: Tensor, second_ND: Tensor, tokens_N: Tensor) -> Tensor:
        return consistency_loss(decoded.output(first_ND), decoded.output(second_ND), tokens_N, shares, label_smoothing)

    return _chunked(part, decoded, first_ND, second_ND, tokens_N)


def _taught(
    teaching: Distillation,
    batch: Batch,
    decoded: Decoded,
    features_ND: Tensor,
    tokens_N: Tensor,
    label_smoothing: float,
) -> Tensor:
    """What a student's pass costs beside its teachers', who see every word and learn nothing."""
    with torch.no_grad():
        said = [teacher(batch.source, batch.given) for teacher in teaching.models]

    def part(features_ND: Tensor, tokens_N: Tensor, *theirs: Tensor) -> Tensor:
        with torch.no_grad():
            answer_NV = average_distributions([each.output(own_ND) for each, own_ND in zip(said, theirs, strict=True)])
        return consistency_loss(answer_NV, decoded.output(features_ND), tokens_N, teaching.shares, label_smoothing)

    theirs = [_counted(each.features, batch.target)[0] for each in said]
    return _chunked(part, decoded, features_ND, tokens_N, *theirs)


def _terms(decoded: Decoded, target: Padded) -> Tensor:
    """What the mechanisms behind a model add, as functions of the targets' log-probabilities."""
    total = decoded.features.new_zeros((), dtype=torch.float32)
    if decoded.terms:
        log_p_BTV = decoded.logits_BTV.float().log_softmax(-1)
        log_p_BT = log_p_BTV.gather(-1, target.tokens_BT.unsqueeze(-1)).squeeze(-1)
        for term in decoded.terms:
            total = total + term(log_p_BT, target.valid_BT)
    return total
