"""Recurrent encoders and decoders.

B rows, T target steps, S memory slots, D width, H width of a state, G width of a cell's gates, V vocabulary.
"""

from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from regard.attention import attention as attending
from regard.models.contracts import Decoder, Encoder, Memory, Padded
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
        self.layers = layers.GRU.from_settings(settings, embedding, bidirectional=settings.bidirectional)

    @property
    def size(self) -> int:
        return self.layers.output_size

    def forward(self, source: Padded) -> Memory:
        embedded_BSD = self.dropout(self.embedding(source.tokens_BT))
        slots_BSD, state = self.layers(embedded_BSD, source.lengths_B)
        summary_BD = torch.cat(state[-self.layers.directions :], dim=-1)
        return Memory(slots_BSD, source.valid_BT, summary_BD)


class AttentiveState(NamedTuple):
    """The state of each layer, and what the attention remembers."""

    layers: layers.State
    past: attending.Past | None


@final
class BahdanauDecoder(Decoder):
    """A recurrent decoder that attends from the state before each step (Bahdanau et al. 2015).

        c_t = attention(s_{t−1}, h)
        s_t = f(s_{t−1}, [y_{t−1}; c_t])
        p(y_t) = softmax(V tanh(U [s_t; y_{t−1}; c_t]))

    Started at s_0 = tanh(W summary). The paper's output layer has maxout where this has tanh.
    """

    def __init__(self, settings: RecurrentModel, vocabulary: int, memory_size: int) -> None:
        super().__init__()
        hidden, embedding = settings.decoder.hidden, settings.embedding
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.dropout = nn.Dropout(settings.dropout)
        self.bridge = nn.Linear(memory_size, hidden * settings.decoder.layers)
        self.attention = attending.Attention.from_settings(settings.attention, hidden, memory_size)
        self.layers = layers.GRU.from_settings(settings.decoder, embedding + memory_size, bidirectional=False)
        self.readout = nn.Linear(hidden + embedding + memory_size, hidden)
        self.output = nn.Linear(hidden, vocabulary)

    def begin(self, memory: Memory) -> tuple[attending.Keys, AttentiveState]:
        keys = self.attention.prepare(memory.slots_BSD, allowed=memory.allowed_BS)
        start = torch.tanh(self.bridge(memory.summary_BD)).chunk(len(self.layers.cells), dim=-1)
        return keys, AttentiveState(tuple(start), self.attention.begin(keys))

    def step(self, token_B: Tensor, state: AttentiveState, keys: attending.Keys) -> tuple[Tensor, AttentiveState]:
        embedded_BD = self.dropout(self.embedding(token_B))
        output_BH, context_BD, state = self._advance(self.layers.project(embedded_BD), state, keys)
        return self._logits(output_BH, embedded_BD, context_BD), state

    def forward(self, tokens_BT: Tensor, memory: Memory) -> Tensor:
        keys, state = self.begin(memory)
        embedded_BTD = self.dropout(self.embedding(tokens_BT))
        outputs, contexts = [], []
        for gates_BG in self.layers.project(embedded_BTD).unbind(1):
            output_BH, context_BD, state = self._advance(gates_BG, state, keys)
            outputs.append(output_BH)
            contexts.append(context_BD)
        return self._logits(torch.stack(outputs, 1), embedded_BTD, torch.stack(contexts, 1))

    def _advance(
        self, gates_BG: Tensor, state: AttentiveState, keys: attending.Keys
    ) -> tuple[Tensor, Tensor, AttentiveState]:
        """Attend, then step with the token's gates and the context → (output_BH, context_BD, state)."""
        attended = self.attention.read(state.layers[-1].unsqueeze(1), keys, state.past)
        context_BD = attended.context_BTD.squeeze(1)
        output_BH, after = self.layers.step(self.layers.add_projection(gates_BG, context_BD), state.layers)
        return output_BH, context_BD, AttentiveState(after, attended.past)

    def _logits(self, output: Tensor, embedded: Tensor, context: Tensor) -> Tensor:
        features = torch.tanh(self.readout(torch.cat([output, embedded, context], dim=-1)))
        logits: Tensor = self.output(self.dropout(features))
        return logits
