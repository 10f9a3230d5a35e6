"""Recurrent decoders with attention.

B rows, T target steps, S memory slots, D width, H width of a state, G width of a cell's gates, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from regard.attention.attention import Attention
from regard.attention.memory import Attended, Past, PreparedMemory
from regard.attention.selections import join_samples
from regard.attention.tape import EARLIER, Tape
from regard.models.contracts import (
    Decoded,
    Decoder,
    LossTerm,
    Memory,
    check_memory,
    check_step_types,
    check_supervised_head,
    check_targets,
    check_token,
    repeat_for_hypotheses,
)
from regard.models.embedding import embed
from regard.models.readout import CopyAttention, Readout
from regard.models.settings import RecurrentModel
from regard.ops.cost import CostPart
from regard.ops.layers import Dropout
from regard.recurrent import layers


class AttentiveState(NamedTuple):
    """The state of a decoder between steps."""

    layers: layers.State
    past: Past
    """The state of the attention."""
    masks: tuple[layers.DropoutMasks, ...]
    """The masks of variational dropout."""
    output_BH: Tensor
    """The output of the last step."""
    feed_BX: Tensor | None = None
    """The vector that input feeding passes to the next step."""
    log_p_BSV: Tensor | None = None
    """log p(y | h_j) for each slot j, if the next token updates the belief about the slot."""
    tape: Tape | None = None
    """The previous outputs, if the decoder attends to them."""


class AttentiveKeys(NamedTuple):
    """What a decoder computes once per source."""

    attention: PreparedMemory
    readout_slots_BSH: Tensor | None
    """The contribution of each slot to the hidden layer of the output, if the output is marginalized over slots."""
    tokens_BS: Tensor | None
    """The source tokens, if the decoder can copy them."""


class _Token(NamedTuple):
    """The embedding of the previous token, and its projection to the gates of the first layer."""

    embedded_BD: Tensor
    gates_BG: Tensor


class _Step(NamedTuple):
    """What a recurrent step computes for the output layer."""

    output_BX: Tensor
    """The output, followed by what the decoder reads from its previous outputs, if it attends to them."""
    context_BD: Tensor
    """The context, scaled by the gate β if there is one."""
    gate_B1: Tensor | None
    attended: Attended
    state: AttentiveState


class AttentiveDecoder(Decoder, ABC):
    """A recurrent decoder that attends to the memory at each step.

    The initial state is s_0 = tanh(W summary), or W summary with a linear bridge; the cell state of an LSTM has a
    matrix of its own, as in Xu et al. (2015). With a selection that marginalizes over the slot that is read, the
    network receives the expected context, and the output is Σ_j a_j p(y_t | h_j).

    With a gate, the context is scaled by β_t = σ(w · q_t + b), where q_t is the query: the state before the step in
    Bahdanau's order, as in Xu et al. (2015). The doubly stochastic penalty λ Σ_j (1 − Σ_t a_tj)² of the same paper is a
    loss term. The paper's output layer is linear; this one has a tanh.

    With intra-attention (Paulus et al. 2018), the decoder also attends to its previous outputs s_1 … s_{t−1}, with the
    query s_t. The output layer reads the result in addition to s_t. At the first step, the result is zero.
    """

    def __init__(
        self, settings: RecurrentModel, vocabulary: int, memory: int, *, extra_inputs: int, readout_uses_token: bool
    ) -> None:
        super().__init__()
        hidden, embedding = settings.decoder.hidden, settings.embedding
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.dropout, self.memory_dropout = Dropout(settings.dropout), Dropout(settings.memory_dropout)
        self.bridge = nn.Linear(memory, settings.decoder.initial_state_size)
        self.bridge_has_tanh = settings.decoder.bridge == "tanh"
        self.attention = Attention.from_settings(settings.attention, hidden, memory, role="cross")
        self.layers = layers.Stack(settings.decoder, embedding + extra_inputs, role="decoder-self")
        intra_score = settings.decoder.intra_attention
        self.intra_attention: Attention | None = None
        if intra_score is not None:
            self.intra_attention = Attention(hidden, hidden, score=intra_score, scope=EARLIER, role="decoder-self")
        self.stacks: tuple[layers.Stack, ...] = (self.layers,)
        self.stepwise = True
        """Whether a step depends on the context of the previous one, so that steps cannot run in parallel."""
        self.feed_size = 0
        """The width of the vector that a step receives from the previous one in addition to the recurrent state."""
        self.reads_cells = False
        """Whether the context contains the cell states of the memory after its slots."""
        self.readout_uses_token = readout_uses_token
        self.readout = Readout(
            hidden * (1 if intra_score is None else 2) + (embedding if readout_uses_token else 0),
            memory,
            settings.readout,
            vocabulary,
            settings.dropout_before_output,
            copy=settings.decoder.copy_source,
        )
        self.gate = nn.Linear(hidden, 1) if settings.decoder.gate else None
        self.doubly_stochastic = settings.decoder.doubly_stochastic
        self.supervised_head: int | None = None
        """The head whose weights are returned in training, from 0."""
        if settings.tied != "none":
            self.readout.tie_to(self.embedding)

    @property
    def token_embedding(self) -> nn.Embedding:
        return self.embedding

    @property
    def stepwise_modules(self) -> tuple[nn.Module, ...]:
        return self.stacks if self.stepwise else ()

    def cost_parts(self) -> list[CostPart]:
        gate = [] if self.gate is None else [CostPart("gate", (self.gate,))]
        marginal = self.attention.select.marginal
        return [
            CostPart("embedding", (self.embedding,)),
            CostPart("initial state", (self.bridge,)),
            *self.layers.cost_parts(),
            *(part._replace(name=f"second {part.name}") for stack in self.stacks[1:] for part in stack.cost_parts()),
            CostPart("cross-attention", (self.attention,)),
            *([] if self.intra_attention is None else [CostPart("self-attention", (self.intra_attention,))]),
            *gate,
            *self.readout.cost_parts("output projection of each slot" if marginal else "output projection"),
        ]

    def supervise_attention(self, layer: int | None, head: int) -> None:
        check_supervised_head(layer or 1, head, 1, self.attention.heads)
        self.supervised_head = head - 1

    @property
    def _can_copy(self) -> bool:
        return self.readout.generate is not None

    @property
    def _has_penalty(self) -> bool:
        return self.training and self.doubly_stochastic > 0

    @property
    def _is_supervised(self) -> bool:
        return self.training and self.supervised_head is not None

    @property
    def _needs_weights(self) -> bool:
        return self._can_copy or self._has_penalty or self._is_supervised

    def begin(self, memory: Memory) -> tuple[AttentiveKeys, AttentiveState]:
        check_memory(memory, self.bridge.weight, self.bridge.in_features, self.bridge.in_features)
        slots_BSD, values = self.memory_dropout(memory.slots_BSD), None
        if self.reads_cells:
            assert memory.cells_BSD is not None, "the settings require an encoder with cell states"
            values = torch.cat([slots_BSD, memory.cells_BSD], dim=-1)
        keys = self.attention.prepare(slots_BSD, values, memory.allowed_BS)
        initial_BX = self.bridge(memory.summary_BD)
        initial = self.layers.init_state_from(torch.tanh(initial_BX) if self.bridge_has_tanh else initial_BX)
        rows, like = memory.slots_BSD.shape[0], memory.slots_BSD
        masks = tuple(mask for stack in self.stacks for mask in stack.sample_masks(rows, like))
        feed = initial[-1][0].new_zeros(rows, self.feed_size) if self.feed_size else None
        slots = self.readout.project_slots(keys.values_BHSD.squeeze(1)) if self.attention.select.marginal else None
        tokens = memory.tokens_BS if self._can_copy else None
        output_BH = initial[-1][0]
        tape = None
        if self.intra_attention is not None:
            tape = Tape.begin(self.intra_attention, output_BH.shape[1], rows, output_BH)
        state = AttentiveState(initial, self.attention.begin(keys), masks, output_BH, feed, tape=tape)
        return AttentiveKeys(keys, slots, tokens), state

    def step(self, token_B: Tensor, state: AttentiveState, keys: AttentiveKeys) -> tuple[Tensor, AttentiveState]:
        check_step_types(state, keys, AttentiveState, AttentiveKeys)
        check_token(token_B, state.output_BH.shape[0], self.embedding)
        if self.attention.select.marginal:
            log_p_BV, step = self._marginal_step(token_B, state, keys)
            return log_p_BV, step.state
        embedded_BD = self.dropout(embed(self.embedding, token_B))
        step = self._advance(_Token(embedded_BD, self.layers.project(embedded_BD)), state, keys)
        return self._read_out([step], embedded_BD.unsqueeze(1), keys).logits_BTV.squeeze(1), step.state

    def forward(self, tokens_BT: Tensor, memory: Memory) -> Decoded:
        keys, state = self.begin(memory)
        check_targets(tokens_BT, state.output_BH.shape[0], self.embedding)
        if self.attention.select.marginal:
            return self._forward_marginal(tokens_BT, state, keys)
        embedded_BTD = self.dropout(embed(self.embedding, tokens_BT))
        if not self.stepwise:
            return self._forward_parallel(embedded_BTD, state, keys)
        steps: list[_Step] = []
        gates_BTG = self.layers.project(embedded_BTD)
        for token in map(_Token, embedded_BTD.unbind(1), gates_BTG.unbind(1)):
            steps.append(self._advance(token, state, keys))
            state = steps[-1].state
        return self._read_out(steps, embedded_BTD, keys)

    @abstractmethod
    def _advance(self, token: _Token, state: AttentiveState, keys: AttentiveKeys) -> _Step:
        """Run one step from the previous token: attend and update the state, in the order of this decoder."""

    def _recall(self, output_BH: Tensor, tape: Tape | None) -> tuple[Tensor, Tape | None]:
        """Attend to the previous outputs on the tape, if there is one. Append the result to the output, and write the
        output to the tape.
        """
        if self.intra_attention is None or tape is None:
            return output_BH, None
        recalled_BH = tape.read(self.intra_attention, output_BH)
        return torch.cat([output_BH, recalled_BH], dim=-1), tape.write(self.intra_attention, output_BH)

    def _recall_all(self, outputs_BTH: Tensor) -> Tensor:
        """The same for all steps at once."""
        if self.intra_attention is None:
            return outputs_BTH
        recalled_BTH, _ = self.intra_attention(outputs_BTH, outputs_BTH, weights=False)
        return torch.cat([outputs_BTH, recalled_BTH], dim=-1)

    def _scale_context(self, query: Tensor, context: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return β c and β; if there is no gate, c and None."""
        if self.gate is None:
            return context, None
        gate = torch.sigmoid(self.gate(query))
        return gate * context, gate

    def _readout_inputs(self, output: Tensor, embedded: Tensor) -> Tensor:
        """Return the inputs of the output layer besides the context."""
        return torch.cat([output, embedded], dim=-1) if self.readout_uses_token else output

    def _read_out(self, steps: list[_Step], embedded_BTD: Tensor, keys: AttentiveKeys) -> Decoded:
        outputs_BTX = torch.stack([step.output_BX for step in steps], 1)
        contexts_BTD = torch.stack([step.context_BD for step in steps], 1)
        inputs_BTD = self._readout_inputs(outputs_BTX, embedded_BTD)
        return self._decode(inputs_BTD, contexts_BTD, [step.attended for step in steps], keys)

    def _forward_parallel(self, embedded_BTD: Tensor, state: AttentiveState, keys: AttentiveKeys) -> Decoded:
        """Run all steps at once: the states do not depend on the contexts, and queries are the states after a step."""
        outputs_BTH, _ = self.layers(embedded_BTD, state=state.layers)
        attended = self.attention.read(outputs_BTH, keys.attention, state.past, weights=self._needs_weights)
        contexts_BTD, _ = self._scale_context(outputs_BTH, attended.context_BTD)
        inputs_BTD = self._readout_inputs(self._recall_all(outputs_BTH), embedded_BTD)
        return self._decode(inputs_BTD, contexts_BTD, [attended], keys)

    def _decode(
        self, inputs_BTD: Tensor, contexts_BTD: Tensor, attended: list[Attended], keys: AttentiveKeys
    ) -> Decoded:
        copy_attention, loss_terms = self._copy_attention(attended, keys), self._loss_terms(attended, keys)
        decoded = self.readout.decode(inputs_BTD, contexts_BTD, copy_attention, loss_terms)
        return self._add_alignment(decoded, attended)

    def _copy_attention(self, attended: list[Attended], keys: AttentiveKeys) -> CopyAttention | None:
        """Return the attention to copy from, averaged over heads; None if the decoder does not copy."""
        if not self._can_copy or keys.tokens_BS is None:
            return None
        weights_BTS = _join_weights([step.weights for step in attended])
        return CopyAttention(weights_BTS, repeat_for_hypotheses(keys.tokens_BS, weights_BTS.shape[0]))

    def _loss_terms(self, attended: list[Attended], keys: AttentiveKeys) -> tuple[LossTerm, ...]:
        """Return the terms of sampled slots (REINFORCE) and of the doubly stochastic penalty, if there are any."""
        terms: list[LossTerm] = []
        sample = join_samples([step.sample for step in attended if step.sample is not None])
        if sample is not None:
            terms.append(partial(sample.surrogate, sample.log_prob_BT, sample.entropy_BT))
        if self._has_penalty:
            # Samples have no gradient, but the distributions that they are drawn from have one.
            weights = [step.weights for step in attended] if sample is None else [sample.probabilities_BHTS]
            visible_BTS = keys.attention.allowed_BTS
            terms.append(partial(penalize_coverage, self.doubly_stochastic, _join_weights(weights), visible_BTS))
        return tuple(terms)

    def _add_alignment(self, decoded: Decoded, attended: list[Attended]) -> Decoded:
        """Add the weights of the supervised head, if there is one."""
        if not self._is_supervised:
            return decoded
        sample = join_samples([step.sample for step in attended if step.sample is not None])
        weights = [step.weights for step in attended] if sample is None else [sample.probabilities_BHTS]
        return replace(decoded, alignment_BTS=_join_weights(weights, self.supervised_head))

    def _forward_marginal(self, tokens_BT: Tensor, state: AttentiveState, keys: AttentiveKeys) -> Decoded:
        log_p, attended = [], []
        for token_B in tokens_BT.unbind(1):
            log_p_BV, step = self._marginal_step(token_B, state, keys)
            state = step.state
            log_p.append(log_p_BV)
            attended.append(step.attended)
        decoded = Decoded.from_logits(torch.stack(log_p, 1), self._loss_terms(attended, keys))
        return self._add_alignment(decoded, attended)

    def _marginal_step(self, token_B: Tensor, state: AttentiveState, keys: AttentiveKeys) -> tuple[Tensor, _Step]:
        """Return log Σ_j a_j p(y | h_j): the predictions of all slots, weighted by the probability of reading each."""
        if state.log_p_BSV is not None:
            token_BS1 = token_B.view(-1, 1, 1).expand(-1, state.log_p_BSV.shape[1], 1)
            likelihood_BS = state.log_p_BSV.gather(-1, token_BS1).squeeze(-1).exp()
            state = state._replace(past=self.attention.observe(state.past, likelihood_BS))
        embedded_BD = self.dropout(embed(self.embedding, token_B))
        step = self._advance(_Token(embedded_BD, self.layers.project(embedded_BD)), state, keys)
        assert keys.readout_slots_BSH is not None
        slots_BSH = repeat_for_hypotheses(keys.readout_slots_BSH, token_B.shape[0])
        if step.gate_B1 is not None:
            slots_BSH = step.gate_B1.unsqueeze(-1) * slots_BSH
        log_p_BSV = self.readout.log_probs_per_slot(self._readout_inputs(step.output_BX, embedded_BD), slots_BSH)
        assert step.attended.weights is not None
        weights_BS1 = step.attended.weights.transpose(1, 2)
        log_a_BS1 = weights_BS1.clamp_min(torch.finfo(weights_BS1.dtype).tiny).log()
        # The maximum cancels in the softmax. Without this, rows without visible slots (log a ≈ −87) lose precision.
        log_a_BS1 = log_a_BS1 - log_a_BS1.detach().amax(1, keepdim=True)
        mixture_BV = (log_a_BS1 + log_p_BSV).logsumexp(1).log_softmax(-1)
        observed = log_p_BSV if self.attention.select.uses_past else None
        return mixture_BV, step._replace(state=step.state._replace(log_p_BSV=observed))


@final
class BahdanauDecoder(AttentiveDecoder):
    """Attend with the state before the step (Bahdanau et al. 2015).

        c_t = attention(s_{t−1}, h)
        s_t = f(s_{t−1}, [y_{t−1}; c_t])
        p(y_t) = softmax(V tanh(U [s_t; y_{t−1}; c_t]))

    The output layer uses tanh; the paper uses maxout.
    """

    def __init__(self, settings: RecurrentModel, vocabulary: int, memory: int) -> None:
        super().__init__(settings, vocabulary, memory, extra_inputs=memory, readout_uses_token=True)

    def _advance(self, token: _Token, state: AttentiveState, keys: AttentiveKeys) -> _Step:
        query_B1H = state.output_BH.unsqueeze(1)
        attended = self.attention.read(query_B1H, keys.attention, state.past, weights=self._needs_weights)
        context_BD, gate_B1 = self._scale_context(state.output_BH, attended.context_BTD.squeeze(1))
        gates_BG = self.layers.add_projection(token.gates_BG, context_BD)
        output_BH, after = self.layers.step(gates_BG, state.layers, state.masks)
        output_BX, tape = self._recall(output_BH, state.tape)
        after_step = AttentiveState(after, attended.past, state.masks, output_BH, tape=tape)
        return _Step(output_BX, context_BD, gate_B1, attended, after_step)


@final
class ConditionalDecoder(AttentiveDecoder):
    """Attend between two recurrent steps, with a state that has read the previous token (Firat and Cho 2016; with a
    `gru` cell the conditional GRU of Sennrich et al. 2017).

        s'_t = f(s_{t−1}, y_{t−1})                     c_t = attention(s'_t, h)
        s_t = g(s'_t, c_t)                             p(y_t) = softmax(V tanh(U [s_t; y_{t−1}; c_t]))

    If f has several layers, g starts from the state of the last layer.
    """

    def __init__(self, settings: RecurrentModel, vocabulary: int, memory: int) -> None:
        super().__init__(settings, vocabulary, memory, extra_inputs=0, readout_uses_token=True)
        self.second = layers.Stack(settings.decoder.model_copy(update={"layers": 1}), memory)
        self.stacks = (self.layers, self.second)

    def _advance(self, token: _Token, state: AttentiveState, keys: AttentiveKeys) -> _Step:
        between_BH, (*lower, last) = self.layers.step(token.gates_BG, state.layers, state.masks[:-1])
        query_B1H = between_BH.unsqueeze(1)
        attended = self.attention.read(query_B1H, keys.attention, state.past, weights=self._needs_weights)
        context_BD, gate_B1 = self._scale_context(between_BH, attended.context_BTD.squeeze(1))
        output_BH, top = self.second.step(self.second.project(context_BD), (last,), state.masks[-1:])
        output_BX, tape = self._recall(output_BH, state.tape)
        after_step = AttentiveState((*lower, *top), attended.past, state.masks, output_BH, tape=tape)
        return _Step(output_BX, context_BD, gate_B1, attended, after_step)


@final
class LuongDecoder(AttentiveDecoder):
    """Attend with the state after the step.

        s_t = f(s_{t−1}, [y_{t−1}; s̃_{t−1}])           c_t = attention(s_t, h)
        s̃_t = tanh(W_c [s_t; c_t])                     p(y_t) = softmax(V s̃_t)

    This is Luong et al. (2015) with input feeding; without it, s_t = f(s_{t−1}, y_{t−1}). In the simple order the
    context itself is fed, s_t = f(s_{t−1}, [y_{t−1}; c_{t−1}]): with an `rnn` cell,
    s_t = tanh(A [y_{t−1}; s_{t−1}; c_{t−1}] + b).
    """

    def __init__(self, settings: RecurrentModel, vocabulary: int, memory: int) -> None:
        order = settings.decoder.order
        feed_size = {"luong": settings.readout if settings.decoder.input_feeding else 0, "simple": memory}[order]
        super().__init__(settings, vocabulary, memory, extra_inputs=feed_size, readout_uses_token=False)
        self.feed_size, self.feeds_context = feed_size, order == "simple"
        self.stepwise = bool(feed_size) or self.attention.select.marginal

    def _advance(self, token: _Token, state: AttentiveState, keys: AttentiveKeys) -> _Step:
        gates_BG = token.gates_BG
        if state.feed_BX is not None:
            gates_BG = self.layers.add_projection(gates_BG, state.feed_BX)
        output_BH, after = self.layers.step(gates_BG, state.layers, state.masks)
        query_B1H = output_BH.unsqueeze(1)
        attended = self.attention.read(query_B1H, keys.attention, state.past, weights=self._needs_weights)
        context_BD, gate_B1 = self._scale_context(output_BH, attended.context_BTD.squeeze(1))
        output_BX, tape = self._recall(output_BH, state.tape)
        feed = None
        if self.feed_size:
            feed = context_BD if self.feeds_context else self.readout.features(output_BX, context_BD)
        after_step = AttentiveState(after, attended.past, state.masks, output_BH, feed, tape=tape)
        return _Step(output_BX, context_BD, gate_B1, attended, after_step)


@final
class DeepFusionDecoder(AttentiveDecoder):
    """An LSTMN that also adds the cell states it reads from the source to its own (Cheng et al. 2016, deep fusion).

        γ̃_t, α̃_t = attention(W_γ [y_{t−1}; γ̃_{t−1}], γ)
        r_t = σ(W_r [γ̃_t; y_{t−1}] + b_r)
        c_t = r_t ⊙ α̃_t + f_t ⊙ c̃_t + i_t ⊙ ĉ_t
        p(y_t) = softmax(V tanh(U [h_t; y_{t−1}; γ̃_t]))

    γ_j and α_j are the hidden and cell states of the encoder, which is also an LSTMN. y_{t−1} is the embedding of the
    previous token. The rest is as in `LSTMNCell`, with x_t = y_{t−1}.
    """

    def __init__(self, settings: RecurrentModel, vocabulary: int, memory: int) -> None:
        super().__init__(settings, vocabulary, memory, extra_inputs=0, readout_uses_token=True)
        self.feed_size, self.reads_cells = memory, True
        self.to_query = nn.Linear(settings.embedding + memory, settings.decoder.hidden, bias=False)
        self.fusion_gate = nn.Linear(memory + settings.embedding, memory)

    def cost_parts(self) -> list[CostPart]:
        return [*super().cost_parts(), CostPart("fusion", (self.to_query, self.fusion_gate))]

    def _advance(self, token: _Token, state: AttentiveState, keys: AttentiveKeys) -> _Step:
        assert state.feed_BX is not None
        query_BH = self.to_query(torch.cat([token.embedded_BD, state.feed_BX], dim=-1))
        attended = self.attention.read(query_BH.unsqueeze(1), keys.attention, state.past, weights=self._needs_weights)
        read_BX, gate_B1 = self._scale_context(query_BH, attended.context_BTD.squeeze(1))
        context_BD, cells_BD = read_BX.chunk(2, dim=-1)
        fused_BD = torch.sigmoid(self.fusion_gate(torch.cat([context_BD, token.embedded_BD], dim=-1))) * cells_BD
        gates_BX = torch.cat([token.gates_BG, fused_BD], dim=-1)
        output_BH, after = self.layers.step(gates_BX, state.layers, state.masks)
        output_BX, tape = self._recall(output_BH, state.tape)
        after_step = AttentiveState(after, attended.past, state.masks, output_BH, context_BD, tape=tape)
        return _Step(output_BX, context_BD, gate_B1, attended, after_step)


def _join_weights(weights: Sequence[Tensor | None], head: int | None = None) -> Tensor:
    """Concatenate the weights of steps, of one head or averaged over heads → (B, T, S)."""
    joined = torch.cat([step for step in weights if step is not None], dim=-2)
    if joined.dim() == 3:
        return joined
    return joined.mean(1) if head is None else joined[:, head]


def penalize_coverage(
    strength: float, weights_BTS: Tensor, visible_BTS: Tensor | None, log_p_BT: Tensor, valid_BT: Tensor
) -> Tensor:
    """Return the doubly stochastic penalty λ Σ_j (1 − Σ_t a_tj)² (Xu et al. 2015), summed over the rows.

    The sums run over the target steps without padding, and over the visible slots.
    """
    del log_p_BT
    wide_BTS = weights_BTS.to(torch.promote_types(weights_BTS.dtype, torch.float32))
    coverage_BS = wide_BTS.masked_fill(~valid_BT.unsqueeze(-1), 0.0).sum(1)
    penalty_BS = (1 - coverage_BS).square()
    if visible_BTS is not None:
        penalty_BS = penalty_BS.masked_fill(~visible_BTS.any(1), 0.0)
    return strength * penalty_BS.sum()
