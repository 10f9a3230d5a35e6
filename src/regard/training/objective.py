"""The training objective: cross-entropy, with label smoothing, word dropout, consistency or distillation if set.

B rows, T target steps, N target tokens without padding, D width, V vocabulary.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from regard.data.batching import Batch
from regard.data.tokens.tokenizers import UNKNOWN
from regard.errors import ConfigError
from regard.models.contracts import Decoded, Source, Tokens
from regard.models.ensemble import average_distributions
from regard.models.seq2seq import Seq2Seq
from regard.ops.losses import IGNORE_INDEX, chunked_loss, consistency_loss, cross_entropy
from regard.runs.settings import Consistency, NoConsistency, TrainingSettings
from regard.training.distillation import Distillation
from regard.training.machine import uses_bfloat16

NO_CONSISTENCY = NoConsistency()


@dataclass(frozen=True)
class Objective:
    """The loss that training minimizes, a function of a model and a batch."""

    label_smoothing: float = 0.0
    word_dropout: float = 0.0
    consistency: Consistency = NO_CONSISTENCY
    bfloat16: bool = False
    """Whether matrix products are computed in bfloat16 (autocast)."""
    distillation: Distillation | None = None
    alignment_weight: float = 0.0
    """The weight of the loss of guided alignment, for batches with alignments."""

    @classmethod
    def of(
        cls, settings: TrainingSettings, device: torch.device, distillation: Distillation | None = None
    ) -> "Objective":
        return cls(
            label_smoothing=settings.label_smoothing,
            word_dropout=settings.word_dropout,
            consistency=settings.consistency,
            bfloat16=uses_bfloat16(settings, device),
            distillation=distillation,
            alignment_weight=0.0 if settings.guided_alignment is None else settings.guided_alignment.weight,
        )

    def describe(self) -> str:
        teachers = f", with the teachers {self.distillation.description}" if self.distillation is not None else ""
        alignments = ", with guided alignment" if self.alignment_weight else ""
        return (" in bfloat16" if self.bfloat16 else "") + teachers + alignments

    def at(self, position: float) -> "Objective":
        """The objective at a position of the schedule: the consistency loss may start later than the rest."""
        if self.consistency.kind == "none" or position >= self.consistency.start_step:
            return self
        return replace(self, consistency=NO_CONSISTENCY)

    def __call__(self, model: Seq2Seq, batch: Batch) -> Tensor:
        """Return the loss, summed over the target tokens of the batch."""
        target, distillation = batch.target, self.distillation
        with torch.autocast(target.tokens_BT.device.type, torch.bfloat16, enabled=self.bfloat16):
            source, decoder_input = drop_words(batch, self.word_dropout)
            if self.consistency.kind != "none":
                return self._compare_passes(model, batch, source, decoder_input)
            decoded = model(source, decoder_input)
            teachers: list[Decoded] = []
            if distillation is not None:
                with torch.no_grad():  # without word dropout
                    teachers = [teacher(batch.source, batch.decoder_inputs) for teacher in distillation.models]

            def loss(features_ND: Tensor, tokens_N: Tensor, *teachers_ND: Tensor) -> Tensor:
                if distillation is None:
                    return cross_entropy(decoded.output(features_ND), tokens_N, self.label_smoothing)
                with torch.no_grad():
                    logits = [teacher.output(x_ND) for teacher, x_ND in zip(teachers, teachers_ND, strict=True)]
                    teacher_NV = average_distributions(logits)
                student_NV, weights = decoded.output(features_ND), distillation.loss_weights
                return consistency_loss(teacher_NV, student_NV, tokens_N, weights, self.label_smoothing)

            inputs = select_tokens(decoded.features, target)
            inputs += tuple(select_tokens(teacher.features, target)[0] for teacher in teachers)
            total = chunked_loss(loss, inputs, decoded.output_parameters, decoded.vocabulary)
            return total + loss_terms(decoded, target) + self._alignment_loss(decoded, batch)

    def _compare_passes(self, model: Seq2Seq, batch: Batch, source: Source, decoder_input: Tensor) -> Tensor:
        """Return the loss of two passes of the model, the two halves of one batch. Gradients flow through both."""
        assert self.consistency.kind != "none"
        target, weights = batch.target, self.consistency.loss_weights
        second, second_input = source, decoder_input
        if self.consistency.kind == "simcut":
            second, second_input = drop_words(batch, self.consistency.cut)
        decoded = model(source.concatenate(second), torch.cat([decoder_input, second_input]))

        def loss(first_ND: Tensor, second_ND: Tensor, tokens_N: Tensor) -> Tensor:
            first_NV, second_NV = decoded.output(first_ND), decoded.output(second_ND)
            return consistency_loss(first_NV, second_NV, tokens_N, weights, self.label_smoothing)

        (first_ND, tokens_N), (second_ND, _) = (select_tokens(half, target) for half in decoded.features.chunk(2))
        total = chunked_loss(loss, (first_ND, second_ND, tokens_N), decoded.output_parameters, decoded.vocabulary)
        terms = loss_terms(decoded, target.concatenate(target)) + self._alignment_loss(decoded, batch, passes=2)
        return total + 0.5 * terms

    def _alignment_loss(self, decoded: Decoded, batch: Batch, passes: int = 1) -> Tensor:
        """Return the weighted loss of guided alignment, summed over the passes of a batch; 0 without alignments."""
        if not self.alignment_weight or decoded.alignment_BTS is None or batch.alignment_BTS is None:
            return decoded.features.new_zeros((), dtype=torch.float32)
        return self.alignment_weight * alignment_loss(decoded.alignment_BTS, batch.alignment_BTS.repeat(passes, 1, 1))


class LossModule(nn.Module):
    """The objective as a module, whose parameters can be replaced (`functional_call`) or sharded."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.model = model

    def forward(self, objective: Objective, batch: Batch) -> Tensor:
        return objective(self.model, batch)


def alignment_loss(weights_BTS: Tensor, gold_BTS: Tensor) -> Tensor:
    """Return the cross-entropy −Σ g log a between given distributions g and attention weights a, summed over steps."""
    if weights_BTS.shape != gold_BTS.shape:
        raise ConfigError(
            f"training.guided_alignment: the supervised attention has {weights_BTS.shape[-1]} memory slots for sources "
            f"of {gold_BTS.shape[-1]} tokens. Use an encoder with one slot for each token."
        )
    wide_BTS = weights_BTS.to(torch.promote_types(weights_BTS.dtype, torch.float32))
    # Weights of sparse selections can be exactly zero.
    return -(gold_BTS * wide_BTS.clamp_min(torch.finfo(torch.float32).tiny).log()).sum()


def drop_words(batch: Batch, probability: float) -> tuple[Source, Tensor]:
    """Replace tokens of the source and of the decoder's input with UNKNOWN at random; the start symbol stays."""
    if not probability:
        return batch.source, batch.decoder_inputs
    source, given_BT = batch.source.corrupt(probability, UNKNOWN), batch.decoder_inputs
    dropped_BT = torch.rand(given_BT.shape, device=given_BT.device) < probability
    dropped_BT[:, 0] = False
    return source, given_BT.masked_fill(dropped_BT, UNKNOWN)


def select_tokens(features_BTD: Tensor, target: Tokens) -> tuple[Tensor, ...]:
    """Return the features and the targets of all tokens except padding.

    On a GPU, padding is included and marked (see `flatten_with_ignore_index`), because the number of tokens is not
    known there without synchronization.
    """
    if features_BTD.is_cuda:
        return flatten_with_ignore_index(features_BTD, target)
    return features_BTD[target.valid_BT], target.tokens_BT[target.valid_BT]


def flatten_with_ignore_index(features_BTD: Tensor, target: Tokens) -> tuple[Tensor, ...]:
    """Set the features of padding to zero, and its target to IGNORE_INDEX."""
    features_BTD = features_BTD.masked_fill(~target.valid_BT.unsqueeze(-1), 0.0)
    return features_BTD.flatten(0, 1), target.tokens_BT.masked_fill(~target.valid_BT, IGNORE_INDEX).flatten()


def loss_terms(decoded: Decoded, target: Tokens) -> Tensor:
    """Return the sum of the loss terms of the attention mechanisms, functions of the targets' log-probabilities."""
    total = decoded.features.new_zeros((), dtype=torch.float32)
    if decoded.loss_terms:
        log_p_BTV = decoded.logits_BTV.float().log_softmax(-1)
        log_p_BT = log_p_BTV.gather(-1, target.tokens_BT.unsqueeze(-1)).squeeze(-1)
        for term in decoded.loss_terms:
            total = total + term(log_p_BT, target.valid_BT)
    return total
