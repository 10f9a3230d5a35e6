"""Recurrent decoders with attention.

B rows, T target steps, S memory slots, D width, H width of a state, G width of a cell's gates, V vocabulary.
"""

from abc import ABC, abstractmethod
from functools import partial
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from regard.attention.attention import Attended, Attention, Keys, Past
from regard.attention.selections import SampledPosition, join_samples
from regard.models.contracts import Decoded, Decoder, LossTerm, Memory, repeat_for_hypotheses
from regard.models.readout import CopyAttention, Readout
from regard.models.settings import RecurrentModel
from regard.ops.dropout import Dropout
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
    """log p(y | h_j) for each slot j, if the next token updates the belief about the position."""


class AttentiveKeys(NamedTuple):
    """What a decoder computes once per source."""

    attention: Keys
    readout_slots_BSH: Tensor | None
    """The contribution of each slot to the hidden layer of the output, if the output is marginalized over slots."""
    tokens_BS: Tensor | None
    """The source tokens, if the decoder can copy them."""


class _StepOutput(NamedTuple):
    """The results of a recurrent step that the output layer needs."""

    output_BH: Tensor
    attended: Attended
    state: AttentiveState

    @property
    def context_BD(self) -> Tensor:
        return self.attended.context_BTD.squeeze(1)


class AttentiveDecoder(Decoder, ABC):
    """A recurrent decoder that attends to the memory at each step.

    The initial state is s_0 = tanh(W summary), also for the cell state of an LSTM. With a selection that marginalizes
    over the slot that is read, the network receives the expected context, and the output is Σ_j a_j p(y_t | h_j).
    """

    def __init__(
        self, settings: RecurrentModel, vocabulary: int, memory: int, *, extra_inputs: int, readout_uses_token: bool
    ) -> None:
        super().__init__()
        hidden, embedding = settings.decoder.hidden, settings.embedding
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.dropout, self.memory_dropout = Dropout(settings.dropout), Dropout(settings.memory_dropout)
        self.bridge = nn.Linear(memory, settings.decoder.initial_state_size)
        self.attention = Attention.from_settings(settings.attention, hidden, memory, role="cross")
        self.layers = layers.Stack(settings.decoder, embedding + extra_inputs)
        self.stacks: tuple[layers.Stack, ...] = (self.layers,)
        self.feed_size = 0
        """The width of the vector that a step receives from the previous one besides its state."""
        self.readout_uses_token = readout_uses_token
        self.readout = Readout(
            hidden + embedding if readout_uses_token else hidden,
            memory,
            settings.readout,
            vocabulary,
            settings.dropout_before_output,
            copy=settings.decoder.copy_source,
        )
        if settings.tied != "none":
            self.readout.tie_to(self.embedding)

    @property
    def token_embedding(self) -> nn.Embedding:
        return self.embedding

    @property
    def stepwise(self) -> bool:
        """Whether a step depends on the context of the previous one, so that steps cannot run in parallel."""
        return True

    @property
    def stepwise_modules(self) -> tuple[nn.Module, ...]:
        return self.stacks if self.stepwise else ()

    @property
    def _can_copy(self) -> bool:
        return self.readout.generate is not None

    def begin(self, memory: Memory) -> tuple[AttentiveKeys, AttentiveState]:
        keys = self.attention.prepare(self.memory_dropout(memory.slots_BSD), allowed=memory.allowed_BS)
        initial = self.layers.init_state_from(torch.tanh(self.bridge(memory.summary_BD)))
        rows, like = len(memory.slots_BSD), memory.slots_BSD
        masks = tuple(mask for stack in self.stacks for mask in stack.sample_masks(rows, like))
        feed = initial[-1][0].new_zeros(rows, self.feed_size) if self.feed_size else None
        slots = self.readout.project_slots(keys.values_BHSD.squeeze(1)) if self.attention.select.marginal else None
        tokens = memory.tokens_BS if self._can_copy else None
        state = AttentiveState(initial, self.attention.begin(keys), masks, initial[-1][0], feed)
        return AttentiveKeys(keys, slots, tokens), state

    def step(self, token_B: Tensor, state: AttentiveState, keys: AttentiveKeys) -> tuple[Tensor, AttentiveState]:
        embedded_BD = self.dropout(self.embedding(token_B))
        if self.attention.select.marginal:
            return self._marginal_step(token_B, embedded_BD, state, keys)
        output = self._advance(self.layers.project(embedded_BD), state, keys)
        return self._read_out([output], embedded_BD.unsqueeze(1), keys).logits_BTV.squeeze(1), output.state

    def forward(self, tokens_BT: Tensor, memory: Memory) -> Decoded:
        keys, state = self.begin(memory)
        if self.attention.select.marginal:
            logits = []
            for token_B in tokens_BT.unbind(1):
                logits_BV, state = self.step(token_B, state, keys)
                logits.append(logits_BV)
            return Decoded.from_logits(torch.stack(logits, 1))
        embedded_BTD = self.dropout(self.embedding(tokens_BT))
        steps = []
        for gates_BG in self.layers.project(embedded_BTD).unbind(1):
            steps.append(self._advance(gates_BG, state, keys))
            state = steps[-1].state
        return self._read_out(steps, embedded_BTD, keys)

    @abstractmethod
    def _advance(self, gates_BG: Tensor, state: AttentiveState, keys: AttentiveKeys) -> _StepOutput:
        """Run one step from the projected token: attend and update the state, in the order of this decoder."""

    def _readout_inputs(self, output: Tensor, embedded: Tensor) -> Tensor:
        """Return the inputs of the output layer besides the context."""
        return torch.cat([output, embedded], dim=-1) if self.readout_uses_token else output

    def _attend(self, query_BH: Tensor, state: AttentiveState, keys: AttentiveKeys) -> Attended:
        return self.attention.read(query_BH.unsqueeze(1), keys.attention, state.past, weights=self._can_copy)

    def _read_out(self, steps: list[_StepOutput], embedded_BTD: Tensor, keys: AttentiveKeys) -> Decoded:
        outputs_BTH = torch.stack([step.output_BH for step in steps], 1)
        contexts_BTD = torch.stack([step.context_BD for step in steps], 1)
        weights = [step.attended.weights for step in steps if step.attended.weights is not None]
        copy_attention = self._copy_attention(torch.cat(weights, dim=-2) if self._can_copy else None, keys)
        samples = [step.attended.sample for step in steps if step.attended.sample is not None]
        inputs_BTD = self._readout_inputs(outputs_BTH, embedded_BTD)
        return self.readout.decode(inputs_BTD, contexts_BTD, copy_attention, _loss_terms(samples))

    def _copy_attention(self, weights: Tensor | None, keys: AttentiveKeys) -> CopyAttention | None:
        """Return the attention to copy from, averaged over heads; None if the decoder does not copy."""
        if weights is None or keys.tokens_BS is None:
            return None
        weights_BTS = weights if weights.dim() == 3 else weights.mean(1)
        return CopyAttention(weights_BTS, repeat_for_hypotheses(keys.tokens_BS, len(weights_BTS)))

    def _marginal_step(
        self, token_B: Tensor, embedded_BD: Tensor, state: AttentiveState, keys: AttentiveKeys
    ) -> tuple[Tensor, AttentiveState]:
        """Return log Σ_j a_j p(y | h_j): the predictions of all slots, weighted by the probability of reading each."""
        if state.log_p_BSV is not None:
            token_BS1 = token_B.view(-1, 1, 1).expand(-1, state.log_p_BSV.shape[1], 1)
            likelihood_BS = state.log_p_BSV.gather(-1, token_BS1).squeeze(-1).exp()
            state = state._replace(past=self.attention.observe(state.past, likelihood_BS))
        output = self._advance(self.layers.project(embedded_BD), state, keys)
        assert keys.readout_slots_BSH is not None
        slots_BSH = repeat_for_hypotheses(keys.readout_slots_BSH, len(token_B))
        log_p_BSV = self.readout.log_probs_per_slot(self._readout_inputs(output.output_BH, embedded_BD), slots_BSH)
        assert output.attended.weights is not None
        weights_BS1 = output.attended.weights.transpose(1, 2)
        log_a_BS1 = weights_BS1.clamp_min(torch.finfo(weights_BS1.dtype).tiny).log()
        mixture_BV = (log_a_BS1 + log_p_BSV).logsumexp(1).log_softmax(-1)
        observed = log_p_BSV if self.attention.select.uses_past else None
        return mixture_BV, output.state._replace(log_p_BSV=observed)


@final
class BahdanauDecoder(AttentiveDecoder):
    """Attend with the state before the step (Bahdanau et al. 2015).

        c_t = attention(s_{t−1}, h)
        s_t = f(s_{t−1}, [y_{t−1}; c_t])
        p(y_t) = softmax(V tanh(U [s_t; y_{t−1}; c_t]))

    The output layer uses tanh, where the paper uses maxout.
    """

    def __init__(self, settings: RecurrentModel, vocabulary: int, memory: int) -> None:
        super().__init__(settings, vocabulary, memory, extra_inputs=memory, readout_uses_token=True)

    def _advance(self, gates_BG: Tensor, state: AttentiveState, keys: AttentiveKeys) -> _StepOutput:
        attended = self._attend(state.output_BH, state, keys)
        gates_BG = self.layers.add_projection(gates_BG, attended.context_BTD.squeeze(1))
        output_BH, after = self.layers.step(gates_BG, state.layers, state.masks)
        return _StepOutput(output_BH, attended, AttentiveState(after, attended.past, state.masks, output_BH))


@final
class ConditionalDecoder(AttentiveDecoder):
    """Attend between two recurrent steps, with a state that has read the previous token (Firat and Cho 2016; with a
    `gru` cell the conditional GRU of Sennrich et al. 2017).

        s'_t = f(s_{t−1}, y_{t−1})                     c_t = attention(s'_t, h)
        s_t = g(s'_t, c_t)                             p(y_t) = softmax(V tanh(U [s_t; y_{t−1}; c_t]))

    With several layers, g continues from the state of the last.
    """

    def __init__(self, settings: RecurrentModel, vocabulary: int, memory: int) -> None:
        super().__init__(settings, vocabulary, memory, extra_inputs=0, readout_uses_token=True)
        self.second = layers.Stack(settings.decoder.model_copy(update={"layers": 1}), memory)
        self.stacks = (self.layers, self.second)

    def _advance(self, gates_BG: Tensor, state: AttentiveState, keys: AttentiveKeys) -> _StepOutput:
        between_BH, (*lower, last) = self.layers.step(gates_BG, state.layers, state.masks[:-1])
        attended = self._attend(between_BH, state, keys)
        gates_BG = self.second.project(attended.context_BTD.squeeze(1))
        output_BH, top = self.second.step(gates_BG, (last,), state.masks[-1:])
        return _StepOutput(output_BH, attended, AttentiveState((*lower, *top), attended.past, state.masks, output_BH))


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

    @property
    def stepwise(self) -> bool:
        return bool(self.feed_size) or self.attention.select.marginal

    def forward(self, tokens_BT: Tensor, memory: Memory) -> Decoded:
        if self.stepwise:
            return super().forward(tokens_BT, memory)
        # The states do not depend on the contexts, so all steps run at once.
        keys, state = self.begin(memory)
        embedded_BTD = self.dropout(self.embedding(tokens_BT))
        outputs_BTH, _ = self.layers(embedded_BTD, state=state.layers)
        attended = self.attention.read(outputs_BTH, keys.attention, state.past, weights=self._can_copy)
        copy_attention = self._copy_attention(attended.weights, keys)
        loss_terms = _loss_terms([attended.sample] if attended.sample is not None else [])
        return self.readout.decode(outputs_BTH, attended.context_BTD, copy_attention, loss_terms)

    def _advance(self, gates_BG: Tensor, state: AttentiveState, keys: AttentiveKeys) -> _StepOutput:
        if state.feed_BX is not None:
            gates_BG = self.layers.add_projection(gates_BG, state.feed_BX)
        output_BH, after = self.layers.step(gates_BG, state.layers, state.masks)
        attended = self._attend(output_BH, state, keys)
        context_BD = attended.context_BTD.squeeze(1)
        feed = None
        if self.feed_size:
            feed = context_BD if self.feeds_context else self.readout.features(output_BH, context_BD)
        return _StepOutput(output_BH, attended, AttentiveState(after, attended.past, state.masks, output_BH, feed))


def _loss_terms(samples: list[SampledPosition]) -> tuple[LossTerm, ...]:
    """Return the loss term of sampled positions (REINFORCE), if there are any."""
    joined = join_samples(samples)
    return (partial(joined.surrogate, joined.log_prob_BT, joined.entropy_BT),) if joined else ()
