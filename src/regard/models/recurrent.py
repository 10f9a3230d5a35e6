"""Recurrent encoders and decoders.

B rows, T target steps, S memory slots, D width, H width of a state, G width of a cell's gates, V vocabulary.
"""

from functools import partial
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from regard.attention import attention as attending
from regard.models.contracts import Decoded, Decoder, Encoder, LossTerm, Memory, Padded
from regard.models.settings import EncoderSettings, RecurrentModel
from regard.recurrent import layers


@final
class RecurrentEncoder(Encoder):
    """h_1 … h_S: the states of a recurrent network over the source, of both directions side by side.

    The summary is the last state of each direction of the top layer.
    """

    def __init__(self, settings: EncoderSettings, vocabulary: int, embedding: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.dropout = nn.Dropout(dropout)
        self.layers = layers.Stack(
            settings,
            embedding,
            bidirectional=settings.bidirectional,
            learned_start=settings.initial_state == "learned",
        )

    @property
    def size(self) -> int:
        return self.layers.output_size

    def forward(self, source: Padded) -> Memory:
        embedded_BSD = self.dropout(self.embedding(source.tokens_BT))
        slots_BSD, state = self.layers(embedded_BSD, source.lengths_B)
        summary_BD = torch.cat([cell[0] for cell in state[-self.layers.directions :]], dim=-1)
        return Memory(slots_BSD, source.valid_BT, summary_BD)


class AttentiveState(NamedTuple):
    """The state of each layer, what the attention remembers, the dropout that stays the same, the last output, and,
    where the attention must know what became of it, what each slot would have said at the last step.
    """

    layers: layers.State
    past: attending.Past
    masks: tuple[layers.Masks, ...]
    output_BH: Tensor
    log_p_BSV: Tensor | None = None


class AttentiveKeys(NamedTuple):
    """A memory ready to be attended to; where the output sums over slots, each one's share of the hidden layer."""

    attention: attending.Keys
    readout_BSH: Tensor | None


class _Step(NamedTuple):
    """What a step of recurrence leaves behind for the output layer."""

    output_BH: Tensor
    attended: attending.Attended
    state: AttentiveState

    @property
    def context_BD(self) -> Tensor:
        return self.attended.context_BTD.squeeze(1)


@final
class BahdanauDecoder(Decoder):
    """A recurrent decoder that attends from the state before each step (Bahdanau et al. 2015).

        c_t = attention(s_{t−1}, h)
        s_t = f(s_{t−1}, [y_{t−1}; c_t])
        p(y_t) = softmax(V tanh(U [s_t; y_{t−1}; c_t]))

    Started at s_0 = tanh(W summary), an LSTM's cell likewise. The paper's output layer has maxout where this has tanh.
    Under a selection that reads one slot and sums over which, the state is fed the expected context, and the output is
    Σ_j a_j p(y_t | h_j).
    """

    def __init__(self, settings: RecurrentModel, vocabulary: int, memory_size: int) -> None:
        super().__init__()
        hidden, embedding = settings.decoder.hidden, settings.embedding
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.dropout = nn.Dropout(settings.dropout)
        self.bridge = nn.Linear(memory_size, settings.decoder.start_size)
        self.attention = attending.Attention.from_settings(settings.attention, hidden, memory_size)
        self.layers = layers.Stack(settings.decoder, embedding + memory_size)
        self.readout = nn.Linear(hidden + embedding + memory_size, hidden)
        self.output = nn.Linear(hidden, vocabulary)

    def begin(self, memory: Memory) -> tuple[AttentiveKeys, AttentiveState]:
        keys = self.attention.prepare(memory.slots_BSD, allowed=memory.allowed_BS)
        start = self.layers.start_from(torch.tanh(self.bridge(memory.summary_BD)))
        masks = self.layers.masks(len(memory.slots_BSD), memory.slots_BSD)
        readout = None
        if self.attention.select.marginal:
            slots_BSD = keys.values_BHSD.squeeze(1)
            readout = nn.functional.linear(slots_BSD, self.readout.weight[:, -slots_BSD.shape[-1] :])
        return AttentiveKeys(keys, readout), AttentiveState(start, self.attention.begin(keys), masks, start[-1][0])

    def step(self, token_B: Tensor, state: AttentiveState, keys: AttentiveKeys) -> tuple[Tensor, AttentiveState]:
        embedded_BD = self.dropout(self.embedding(token_B))
        if self.attention.select.marginal:
            return self._marginal_step(token_B, embedded_BD, state, keys)
        taken = self._advance(self.layers.project(embedded_BD), state, keys)
        return self._logits(taken.output_BH, embedded_BD, taken.context_BD), taken.state

    def forward(self, tokens_BT: Tensor, memory: Memory) -> Decoded:
        keys, state = self.begin(memory)
        if self.attention.select.marginal:
            said = []
            for token_B in tokens_BT.unbind(1):
                logits_BV, state = self.step(token_B, state, keys)
                said.append(logits_BV)
            return Decoded(torch.stack(said, 1))
        embedded_BTD = self.dropout(self.embedding(tokens_BT))
        steps = []
        for gates_BG in self.layers.project(embedded_BTD).unbind(1):
            steps.append(self._advance(gates_BG, state, keys))
            state = steps[-1].state
        outputs_BTH = torch.stack([taken.output_BH for taken in steps], 1)
        contexts_BTD = torch.stack([taken.context_BD for taken in steps], 1)
        choices = [taken.attended.choice for taken in steps if taken.attended.choice is not None]
        return Decoded(self._logits(outputs_BTH, embedded_BTD, contexts_BTD), _terms(choices))

    def _advance(self, gates_BG: Tensor, state: AttentiveState, keys: AttentiveKeys) -> _Step:
        """Attend, then step with the token's gates and the context."""
        attended = self.attention.read(state.output_BH.unsqueeze(1), keys.attention, state.past)
        gates_BG = self.layers.add_projection(gates_BG, attended.context_BTD.squeeze(1))
        output_BH, after = self.layers.step(gates_BG, state.layers, state.masks)
        return _Step(output_BH, attended, AttentiveState(after, attended.past, state.masks, output_BH))

    def _logits(self, output: Tensor, embedded: Tensor, context: Tensor) -> Tensor:
        features = torch.tanh(self.readout(torch.cat([output, embedded, context], dim=-1)))
        logits: Tensor = self.output(self.dropout(features))
        return logits

    def _marginal_step(
        self, token_B: Tensor, embedded_BD: Tensor, state: AttentiveState, keys: AttentiveKeys
    ) -> tuple[Tensor, AttentiveState]:
        """Log Σ_j a_j p(y | h_j), each slot's own answer weighted by the probability that it is the one read."""
        if state.log_p_BSV is not None:
            said_BS1 = token_B.view(-1, 1, 1).expand(-1, state.log_p_BSV.shape[1], 1)
            likelihood_BS = state.log_p_BSV.gather(-1, said_BS1).squeeze(-1).exp()
            state = state._replace(past=self.attention.observe(state.past, likelihood_BS))
        taken = self._advance(self.layers.project(embedded_BD), state, keys)
        assert keys.readout_BSH is not None
        known_BD = torch.cat([taken.output_BH, embedded_BD], dim=-1)
        known_BH = nn.functional.linear(known_BD, self.readout.weight[:, : known_BD.shape[-1]], self.readout.bias)
        features_BSH = torch.tanh(known_BH.unsqueeze(1) + keys.readout_BSH)
        log_p_BSV = self.output(self.dropout(features_BSH)).log_softmax(-1)
        assert taken.attended.weights is not None
        weights_BS1 = taken.attended.weights.transpose(1, 2)
        log_a_BS1 = weights_BS1.clamp_min(torch.finfo(weights_BS1.dtype).tiny).log()
        mixed_BV = (log_a_BS1 + log_p_BSV).logsumexp(1).log_softmax(-1)
        kept = log_p_BSV if self.attention.select.uses_past else None
        return mixed_BV, taken.state._replace(log_p_BSV=kept)


def _terms(choices: list[attending.Choice]) -> tuple[LossTerm, ...]:
    """What sampled positions add to the loss: they learn from how well things went."""
    joined = attending.join_choices(choices)
    return (partial(joined.selection.surrogate, joined.log_prob_BT, joined.entropy_BT),) if joined else ()
