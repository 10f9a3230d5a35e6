"""The recurrent encoder, and the recurrent decoder without attention.

B rows, T target steps, S memory slots, D width, H state width, V vocabulary.
"""

from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from regard.attention.record import find_attentions
from regard.attention.tape import Tape
from regard.models.contracts import (
    Decoded,
    Decoder,
    Encoder,
    Memory,
    Tokens,
    check_memory,
    check_step_types,
    check_targets,
    check_token,
    check_tokens_source,
    repeat_for_hypotheses,
)
from regard.models.embedding import embed
from regard.models.readout import Readout
from regard.models.settings import FixedModel, RecurrentEncoderSettings
from regard.ops.cost import CostPart
from regard.ops.layers import Dropout
from regard.recurrent import layers


@final
class RecurrentEncoder(Encoder[Tokens]):
    """h_1 … h_S: the outputs of a recurrent network over the source, both directions concatenated.

    The summary is q(h_1 … h_S): the last state of each direction of the top layer, or the mean or maximum over all
    positions. A reversed source (Sutskever et al. 2014) is read from its end; its outputs are in the original order.
    """

    is_capturable = True

    def __init__(self, settings: RecurrentEncoderSettings, vocabulary: int, embedding: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.dropout = Dropout(dropout)
        self.layers = layers.Stack(
            settings,
            embedding,
            bidirectional=settings.bidirectional,
            learned_initial_state=settings.initial_state == "learned",
        )
        self.summary, self.reverse = settings.summary, settings.reverse
        for index, cell in enumerate(self.layers.cells):
            for attention in find_attentions(cell).values():
                attention.reads_backward = self._is_backward(index)

    @property
    def size(self) -> int:
        return self.layers.output_size

    @property
    def token_embedding(self) -> nn.Embedding:
        return self.embedding

    @property
    def reads_backward(self) -> bool:
        return self.reverse

    def cost_parts(self) -> list[CostPart]:
        return [CostPart("embedding", (self.embedding,)), *self.layers.cost_parts()]

    def forward(self, source: Tokens) -> Memory:
        check_tokens_source(source, self.embedding)
        embedded_BSD = self.dropout(embed(self.embedding, source.tokens_BT))
        if self.reverse:
            embedded_BSD = layers.reverse_rows(embedded_BSD, source.lengths_B)
        slots_BSD, state = self.layers(embedded_BSD, source.lengths_B)
        if self.reverse:
            slots_BSD = layers.reverse_rows(slots_BSD, source.lengths_B)
        summary_BD, cells_BSD = self._summary(slots_BSD, source, state), self._cell_states(source, state)
        return Memory(slots_BSD, source.valid_BT, summary_BD, source.tokens_BT, cells_BSD=cells_BSD)

    def _cell_states(self, source: Tokens, state: layers.State) -> Tensor | None:
        """Return the cell states of the top layer at all positions, if its cells keep them on a tape."""
        top = [part for cell in state[-self.layers.directions :] for part in cell if isinstance(part, Tape)]
        if not top:
            return None
        hidden, steps = self.layers.settings.hidden, source.tokens_BT.shape[1]
        cells = [tape.values_BHSD[:, 0, :steps, hidden:] for tape in top]
        ordered = [
            layers.reverse_rows(cells_BSH, source.lengths_B) if self._is_backward(index) else cells_BSH
            for index, cells_BSH in enumerate(cells)
        ]
        return torch.cat(ordered, dim=-1)

    def _is_backward(self, index: int) -> bool:
        """Whether the cell with this index reads the source from its end."""
        return bool(index % self.layers.directions) != self.reverse

    def _summary(self, slots_BSD: Tensor, source: Tokens, state: layers.State) -> Tensor:
        if self.summary == "last":
            return torch.cat([cell[0] for cell in state[-self.layers.directions :]], dim=-1)
        if self.summary == "mean":
            return slots_BSD.sum(1) / source.lengths_B.clamp(min=1).unsqueeze(-1)
        max_BD = slots_BSD.masked_fill(~source.valid_BT.unsqueeze(-1), -torch.inf).amax(1)
        return torch.where((source.lengths_B > 0).unsqueeze(-1), max_BD, 0.0)


class FixedState(NamedTuple):
    """The state of each layer, and the variational dropout masks."""

    layers: layers.State
    masks: tuple[layers.DropoutMasks, ...]


@final
class FixedDecoder(Decoder):
    """A recurrent decoder without attention: it sees the source only as one vector c of fixed size.

        s_0 = tanh(W c)
        s_t = f(s_{t−1}, y_{t−1})              p(y_t) = softmax(V tanh(U [s_t; y_{t−1}]))            initial
        s_t = f(s_{t−1}, [y_{t−1}; c])         p(y_t) = softmax(V tanh(U [s_t; y_{t−1}; c]))         every_step

    `initial` follows Sutskever et al. (2014), whose output layer has no hidden layer; `every_step` Cho et al. (2014).
    """

    def __init__(self, settings: FixedModel, vocabulary: int, memory_size: int) -> None:
        super().__init__()
        self.feeds_context = settings.context == "every_step"
        context = memory_size if self.feeds_context else 0
        self.embedding = nn.Embedding(vocabulary, settings.embedding)
        self.dropout = Dropout(settings.dropout)
        self.bridge = nn.Linear(memory_size, settings.decoder.initial_state_size)
        self.layers = layers.Stack(settings.decoder, settings.embedding + context, role="decoder-self")
        inputs = settings.decoder.hidden + settings.embedding
        self.readout = Readout(inputs, context, settings.readout, vocabulary, settings.dropout_before_output)
        if settings.tied != "none":
            self.readout.tie_to(self.embedding)

    @property
    def token_embedding(self) -> nn.Embedding:
        return self.embedding

    def cost_parts(self) -> list[CostPart]:
        return [
            CostPart("embedding", (self.embedding,)),
            CostPart("initial state", (self.bridge,)),
            *self.layers.cost_parts(),
            *self.readout.cost_parts(),
        ]

    def begin(self, memory: Memory) -> tuple[Tensor, FixedState]:
        check_memory(memory, self.bridge.weight, slot_size=None, summary_size=self.bridge.in_features)
        initial = self.layers.init_state_from(torch.tanh(self.bridge(memory.summary_BD)))
        state = FixedState(initial, self.layers.sample_masks(memory.summary_BD.shape[0], memory.summary_BD))
        return memory.summary_BD[:, : None if self.feeds_context else 0], state

    def step(self, token_B: Tensor, state: FixedState, keys: Tensor) -> tuple[Tensor, FixedState]:
        check_step_types(state, keys, FixedState, Tensor)
        check_token(token_B, state.layers[0][0].shape[0], self.embedding)
        embedded_BD = self.dropout(embed(self.embedding, token_B))
        context_BD = repeat_for_hypotheses(keys, token_B.shape[0])
        gates_BG = self.layers.project(torch.cat([embedded_BD, context_BD], dim=-1))
        output_BH, after = self.layers.step(gates_BG, state.layers, state.masks)
        logits_BV = self.readout(torch.cat([output_BH, embedded_BD], dim=-1), context_BD)
        return logits_BV, state._replace(layers=after)

    def forward(self, tokens_BT: Tensor, memory: Memory) -> Decoded:
        context_BD, state = self.begin(memory)
        check_targets(tokens_BT, context_BD.shape[0], self.embedding)
        embedded_BTD = self.dropout(embed(self.embedding, tokens_BT))
        context_BTD = context_BD.unsqueeze(1).expand(-1, tokens_BT.shape[1], -1)
        outputs_BTH, _ = self.layers(torch.cat([embedded_BTD, context_BTD], dim=-1), state=state.layers)
        inputs_BTD = torch.cat([outputs_BTH, embedded_BTD], dim=-1)
        return self.readout.decode(inputs_BTD, context_BTD)
