"""Recurrent decoders with attention.

B rows, T target steps, S memory slots, D width, H width of a state, G width of a cell's gates, V vocabulary.
"""

from abc import ABC, abstractmethod
from functools import partial
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from regard.attention import attention as attending
from regard.models.contracts import Decoded, Decoder, LossTerm, Memory, share
from regard.models.readout import Pointed, Readout
from regard.models.settings import RecurrentModel
from regard.ops.dropout import Dropout
from regard.recurrent import layers


class AttentiveState(NamedTuple):
    """The state of each layer, what the attention remembers, the dropout that stays the same, the last output, what is
    fed to the next step, and, where the attention must know what became of it, what each slot would have said.
    """

    layers: layers.State
    past: attending.Past
    masks: tuple[layers.Masks, ...]
    output_BH: Tensor
    fed_BX: Tensor | None = None
    log_p_BSV: Tensor | None = None


class AttentiveKeys(NamedTuple):
    """A memory ready to be attended to; where the output sums over slots, each one's share of the hidden layer; where
    it may copy, the tokens of the source.
    """

    attention: attending.Keys
    readout_BSH: Tensor | None
    tokens_BS: Tensor | None


class _Step(NamedTuple):
    """What a step of recurrence leaves behind for the output layer."""

    output_BH: Tensor
    attended: attending.Attended
    state: AttentiveState

    @property
    def context_BD(self) -> Tensor:
        return self.attended.context_BTD.squeeze(1)


class AttentiveDecoder(Decoder, ABC):
    """A recurrent network that reads the memory at each step.

    Started at s_0 = tanh(W summary), an LSTM's cell likewise. Under a selection that reads one slot and sums over
    which, the state is fed the expected context, and the output is Σ_j a_j p(y_t | h_j).
    """

    def __init__(
        self, settings: RecurrentModel, vocabulary: int, memory: int, *, fed: int, says_from_token: bool
    ) -> None:
        super().__init__()
        hidden, embedding = settings.decoder.hidden, settings.embedding
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.dropout, self.memory_dropout = Dropout(settings.dropout), Dropout(settings.memory_dropout)
        self.bridge = nn.Linear(memory, settings.decoder.start_size)
        self.attention = attending.Attention.from_settings(settings.attention, hidden, memory)
        self.layers = layers.Stack(settings.decoder, embedding + fed)
        self.stacks: tuple[layers.Stack, ...] = (self.layers,)
        self.carried = 0
        """How wide the vector is that a step is fed of the one before, besides its state."""
        self.says_from_token = says_from_token
        self.readout = Readout(
            hidden + embedding if says_from_token else hidden,
            memory,
            settings.readout,
            vocabulary,
            settings.dropout_before_output,
            copy=settings.decoder.copy_source,
        )
        if settings.tied != "none":
            self.readout.share(self.embedding)

    @property
    def stepwise(self) -> bool:
        """Whether a step needs what the one before has read, so that the steps cannot run at once."""
        return True

    @property
    def _copies(self) -> bool:
        return self.readout.generate is not None

    def begin(self, memory: Memory) -> tuple[AttentiveKeys, AttentiveState]:
        keys = self.attention.prepare(self.memory_dropout(memory.slots_BSD), allowed=memory.allowed_BS)
        start = self.layers.start_from(torch.tanh(self.bridge(memory.summary_BD)))
        rows, like = len(memory.slots_BSD), memory.slots_BSD
        masks = tuple(mask for stack in self.stacks for mask in stack.masks(rows, like))
        fed = start[-1][0].new_zeros(rows, self.carried) if self.carried else None
        shares = self.readout.slots(keys.values_BHSD.squeeze(1)) if self.attention.select.marginal else None
        tokens = memory.tokens_BS if self._copies else None
        state = AttentiveState(start, self.attention.begin(keys), masks, start[-1][0], fed)
        return AttentiveKeys(keys, shares, tokens), state

    def step(self, token_B: Tensor, state: AttentiveState, keys: AttentiveKeys) -> tuple[Tensor, AttentiveState]:
        embedded_BD = self.dropout(self.embedding(token_B))
        if self.attention.select.marginal:
            return self._marginal_step(token_B, embedded_BD, state, keys)
        taken = self._advance(self.layers.project(embedded_BD), state, keys)
        return self._say([taken], embedded_BD.unsqueeze(1), keys).logits_BTV.squeeze(1), taken.state

    def forward(self, tokens_BT: Tensor, memory: Memory) -> Decoded:
        keys, state = self.begin(memory)
        if self.attention.select.marginal:
            said = []
            for token_B in tokens_BT.unbind(1):
                logits_BV, state = self.step(token_B, state, keys)
                said.append(logits_BV)
            return Decoded.of_logits(torch.stack(said, 1))
        embedded_BTD = self.dropout(self.embedding(tokens_BT))
        steps = []
        for gates_BG in self.layers.project(embedded_BTD).unbind(1):
            steps.append(self._advance(gates_BG, state, keys))
            state = steps[-1].state
        return self._say(steps, embedded_BTD, keys)

    @abstractmethod
    def _advance(self, gates_BG: Tensor, state: AttentiveState, keys: AttentiveKeys) -> _Step:
        """One step from the token's gates: attend and move on, in this decoder's order."""

    def _known(self, output: Tensor, embedded: Tensor) -> Tensor:
        """What the output layer is told besides the context."""
        return torch.cat([output, embedded], dim=-1) if self.says_from_token else output

    def _attend(self, query_BH: Tensor, state: AttentiveState, keys: AttentiveKeys) -> attending.Attended:
        return self.attention.read(query_BH.unsqueeze(1), keys.attention, state.past, weights=self._copies)

    def _say(self, steps: list[_Step], embedded_BTD: Tensor, keys: AttentiveKeys) -> Decoded:
        outputs_BTH = torch.stack([taken.output_BH for taken in steps], 1)
        contexts_BTD = torch.stack([taken.context_BD for taken in steps], 1)
        weights = [taken.attended.weights for taken in steps if taken.attended.weights is not None]
        pointed = self._pointed(torch.cat(weights, dim=-2) if self._copies else None, keys)
        choices = [taken.attended.choice for taken in steps if taken.attended.choice is not None]
        return self.readout.decoded(self._known(outputs_BTH, embedded_BTD), contexts_BTD, pointed, _terms(choices))

    def _pointed(self, weights: Tensor | None, keys: AttentiveKeys) -> Pointed | None:
        """Where the decoder looked, of several heads in the mean; None where nothing is copied."""
        if weights is None or keys.tokens_BS is None:
            return None
        weights_BTS = weights if weights.dim() == 3 else weights.mean(1)
        return Pointed(weights_BTS, share(keys.tokens_BS, len(weights_BTS)))

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
        shares_BSH = share(keys.readout_BSH, len(token_B))
        log_p_BSV = self.readout.of_each_slot(self._known(taken.output_BH, embedded_BD), shares_BSH)
        assert taken.attended.weights is not None
        weights_BS1 = taken.attended.weights.transpose(1, 2)
        log_a_BS1 = weights_BS1.clamp_min(torch.finfo(weights_BS1.dtype).tiny).log()
        mixed_BV = (log_a_BS1 + log_p_BSV).logsumexp(1).log_softmax(-1)
        kept = log_p_BSV if self.attention.select.uses_past else None
        return mixed_BV, taken.state._replace(log_p_BSV=kept)


@final
class BahdanauDecoder(AttentiveDecoder):
    """Attends from the state before the step (Bahdanau et al. 2015).

        c_t = attention(s_{t−1}, h)
        s_t = f(s_{t−1}, [y_{t−1}; c_t])
        p(y_t) = softmax(V tanh(U [s_t; y_{t−1}; c_t]))

    The paper's output layer has maxout where this has tanh.
    """

    def __init__(self, settings: RecurrentModel, vocabulary: int, memory: int) -> None:
        super().__init__(settings, vocabulary, memory, fed=memory, says_from_token=True)

    def _advance(self, gates_BG: Tensor, state: AttentiveState, keys: AttentiveKeys) -> _Step:
        attended = self._attend(state.output_BH, state, keys)
        gates_BG = self.layers.add_projection(gates_BG, attended.context_BTD.squeeze(1))
        output_BH, after = self.layers.step(gates_BG, state.layers, state.masks)
        return _Step(output_BH, attended, AttentiveState(after, attended.past, state.masks, output_BH))


@final
class ConditionalDecoder(AttentiveDecoder):
    """Attends between two steps, from a state that has read the token before (Firat and Cho 2016; with a `gru` cell the
    conditional GRU of Sennrich et al. 2017).

        s'_t = f(s_{t−1}, y_{t−1})                     c_t = attention(s'_t, h)
        s_t = g(s'_t, c_t)                             p(y_t) = softmax(V tanh(U [s_t; y_{t−1}; c_t]))

    With several layers, g goes on from the state of the last.
    """

    def __init__(self, settings: RecurrentModel, vocabulary: int, memory: int) -> None:
        super().__init__(settings, vocabulary, memory, fed=0, says_from_token=True)
        self.second = layers.Stack(settings.decoder.model_copy(update={"layers": 1}), memory)
        self.stacks = (self.layers, self.second)

    def _advance(self, gates_BG: Tensor, state: AttentiveState, keys: AttentiveKeys) -> _Step:
        between_BH, (*lower, last) = self.layers.step(gates_BG, state.layers, state.masks[:-1])
        attended = self._attend(between_BH, state, keys)
        gates_BG = self.second.project(attended.context_BTD.squeeze(1))
        output_BH, top = self.second.step(gates_BG, (last,), state.masks[-1:])
        return _Step(output_BH, attended, AttentiveState((*lower, *top), attended.past, state.masks, output_BH))


@final
class LuongDecoder(AttentiveDecoder):
    """Attends from the state after the step.

        s_t = f(s_{t−1}, [y_{t−1}; s̃_{t−1}])           c_t = attention(s_t, h)
        s̃_t = tanh(W_c [s_t; c_t])                     p(y_t) = softmax(V s̃_t)

    This is Luong et al. (2015) with input feeding; without it, s_t = f(s_{t−1}, y_{t−1}). In the simple order the
    context itself is fed, s_t = f(s_{t−1}, [y_{t−1}; c_{t−1}]): with an `rnn` cell,
    s_t = tanh(A [y_{t−1}; s_{t−1}; c_{t−1}] + b).
    """

    def __init__(self, settings: RecurrentModel, vocabulary: int, memory: int) -> None:
        order = settings.decoder.order
        fed = {"luong": settings.readout if settings.decoder.input_feeding else 0, "simple": memory}[order]
        super().__init__(settings, vocabulary, memory, fed=fed, says_from_token=False)
        self.carried, self.feeds_context = fed, order == "simple"

    @property
    def stepwise(self) -> bool:
        return bool(self.carried) or self.attention.select.marginal

    def forward(self, tokens_BT: Tensor, memory: Memory) -> Decoded:
        if self.stepwise:
            return super().forward(tokens_BT, memory)
        # Nothing that is read flows back into the states: all steps at once.
        keys, state = self.begin(memory)
        embedded_BTD = self.dropout(self.embedding(tokens_BT))
        outputs_BTH, _ = self.layers(embedded_BTD, state=state.layers)
        attended = self.attention.read(outputs_BTH, keys.attention, state.past, weights=self._copies)
        pointed = self._pointed(attended.weights, keys)
        terms = _terms([attended.choice] if attended.choice is not None else [])
        return self.readout.decoded(outputs_BTH, attended.context_BTD, pointed, terms)

    def _advance(self, gates_BG: Tensor, state: AttentiveState, keys: AttentiveKeys) -> _Step:
        if state.fed_BX is not None:
            gates_BG = self.layers.add_projection(gates_BG, state.fed_BX)
        output_BH, after = self.layers.step(gates_BG, state.layers, state.masks)
        attended = self._attend(output_BH, state, keys)
        context_BD = attended.context_BTD.squeeze(1)
        fed = None
        if self.carried:
            fed = context_BD if self.feeds_context else self.readout.features(output_BH, context_BD)
        return _Step(output_BH, attended, AttentiveState(after, attended.past, state.masks, output_BH, fed))


def _terms(choices: list[attending.SampledPosition]) -> tuple[LossTerm, ...]:
    """What sampled positions add to the loss: they learn from how well things went."""
    joined = attending.join_samples(choices)
    return (partial(joined.selection.surrogate, joined.log_prob_BT, joined.entropy_BT),) if joined else ()
