"""A plugin with one part of each kind, as a user would write it: only public names of regard are used."""

import random
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

import regard


class Manhattan(regard.Score):
    """Minus the distance of query and key, scaled by a learned factor."""

    equation = "e = −γ ‖q − k‖₁"
    equal_sizes = True

    def __init__(self, query_size: int, key_size: int, heads: int = 1, *, gamma: float = 1.0) -> None:
        super().__init__(query_size, key_size, heads)
        self.gamma = nn.Parameter(torch.tensor(gamma))

    def prepare(self, keys_BSD: Tensor) -> Tensor:
        return self.split(keys_BSD)

    def forward(self, query_BTD: Tensor, prepared: Tensor, past_BHS: Tensor | None) -> Tensor:
        del past_BHS
        return -self.gamma * (self.split(query_BTD).unsqueeze(3) - prepared.unsqueeze(2)).abs().sum(-1)


class WaitK(regard.Scope):
    """Query t sees the first t + k slots, as in simultaneous translation (Ma et al. 2019)."""

    def __init__(self, k: Annotated[int, Field(gt=0, description="slots visible to the first query")] = 3) -> None:
        super().__init__()
        self.k = k

    def forward(self, inputs: regard.ScopeInput) -> regard.ScopeOutput:
        return regard.ScopeOutput(inputs.slots_S < inputs.positions_BT.unsqueeze(-1) + self.k)


class TopK(regard.Selection):
    """Softmax over the k highest scores."""

    def __init__(self, k: int = 3) -> None:
        super().__init__()
        self.k = k

    def forward(self, scores_BHTS: Tensor, allowed_BHTS: Tensor, belief_BHS: Tensor | None = None) -> regard.Selected:
        del belief_BHS
        lowest = torch.finfo(scores_BHTS.dtype).min
        masked = scores_BHTS.masked_fill(~allowed_BHTS, lowest)
        kth = masked.topk(min(self.k, masked.shape[-1]), dim=-1).values[..., -1:]
        chosen = allowed_BHTS & (masked >= kth)
        return regard.Selected(masked.masked_fill(~chosen, lowest).softmax(-1).masked_fill(~chosen, 0.0))


class MinimalGatedUnit(regard.Cell):
    """f = σ(W_f x + R_f h), n = tanh(W_n x + R_n (f ⊙ h)), h' = (1 − f) ⊙ h + f ⊙ n (Zhou et al. 2016)."""

    def __init__(self, input_size: int, hidden_size: int, *, forget_bias: float = 0.0) -> None:
        super().__init__(input_size, hidden_size, width=2 * hidden_size, layer_norm=False)
        nn.init.constant_(self.bias_input[:hidden_size], forget_bias)

    def step(self, gates_BG: Tensor, state: tuple[Tensor, ...], mask_BH: Tensor | None = None) -> tuple[Tensor, ...]:
        (previous_BH,) = state
        h_BH = previous_BH if mask_BH is None else previous_BH * mask_BH
        x_f, x_n = gates_BG.chunk(2, dim=-1)
        R_f, R_n = self.weight_state.chunk(2)
        forget = torch.sigmoid(x_f + h_BH @ R_f.t())
        candidate = torch.tanh(x_n + (forget * h_BH) @ R_n.t())
        return (torch.lerp(previous_BH, candidate, forget),)


class ConvolutionalEncoder(regard.Encoder[regard.Tokens]):
    """Token embeddings, followed by a convolution over neighboring tokens."""

    def __init__(self, vocabulary: int, embedding: int, *, width: int = 3, channels: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.convolution = nn.Conv1d(embedding, channels, width, padding="same")

    @property
    def size(self) -> int:
        return self.convolution.out_channels

    def forward(self, source: regard.Tokens) -> regard.Memory:
        valid_BT1 = source.valid_BT.unsqueeze(-1)
        embedded_BTD = self.embedding(source.tokens_BT).masked_fill(~valid_BT1, 0.0)
        slots_BSD = torch.relu(self.convolution(embedded_BTD.transpose(1, 2))).transpose(1, 2)
        slots_BSD = slots_BSD.masked_fill(~valid_BT1, 0.0)
        summary_BD = slots_BSD.sum(1) / source.lengths_B.clamp_min(1).unsqueeze(1)
        return regard.Memory(slots_BSD, source.valid_BT, summary_BD, source.tokens_BT)


class PlainKeys(NamedTuple):
    attention: Any


class PlainState(NamedTuple):
    hidden_BH: Tensor
    past: Any


class PlainDecoder(regard.Decoder):
    """The simplest decoder with attention: a torch cell, an attention and a linear layer."""

    def __init__(self, vocabulary: int, memory_size: int, embedding: int, dropout: float, *, hidden: int = 32) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.cell = nn.GRUCell(embedding, hidden)
        self.bridge = nn.Linear(memory_size, hidden)
        self.attention = regard.Attention(hidden, memory_size, score="general")
        self.output = nn.Linear(hidden + memory_size, vocabulary)

    def begin(self, memory: regard.Memory) -> tuple[PlainKeys, PlainState]:
        keys = self.attention.prepare(memory.slots_BSD, allowed=memory.allowed_BS)
        return PlainKeys(keys), PlainState(torch.tanh(self.bridge(memory.summary_BD)), self.attention.begin(keys))

    def step(self, token_B: Tensor, state: PlainState, keys: PlainKeys) -> tuple[Tensor, PlainState]:
        hidden_BH = self.cell(self.dropout(self.embedding(token_B)), state.hidden_BH)
        attended = self.attention.read(hidden_BH.unsqueeze(1), keys.attention, state.past)
        logits_BV = self.output(torch.cat([hidden_BH, attended.context_BTD.squeeze(1)], dim=-1))
        return logits_BV, PlainState(hidden_BH, attended.past)

    def forward(self, tokens_BT: Tensor, memory: regard.Memory) -> regard.Decoded:
        keys, state = self.begin(memory)
        logits = []
        for token_B in tokens_BT.unbind(1):
            logits_BV, state = self.step(token_B, state, keys)
            logits.append(logits_BV)
        return regard.Decoded.from_logits(torch.stack(logits, dim=1))


def load_shifted(letters: int = 8, train: int = 400, dev: int = 40, seed: int = 0) -> regard.Corpus:
    """Strings of letters, and the same strings with each letter replaced by the next one."""
    generator = random.Random(seed)
    alphabet = "abcdefghijklmnopqrstuvwxyz"[: letters + 1]
    texts = ["".join(generator.choices(alphabet[:-1], k=generator.randint(3, 7))) for _ in range(train + dev)]
    pairs = [(text, "".join(alphabet[alphabet.index(letter) + 1] for letter in text)) for text in texts]
    return regard.Corpus(regard.Pairs.of(pairs[:train]), regard.Pairs.of(pairs[train:]))


def compute_length_error(outputs: regard.ModelOutputs, signed: bool = False) -> regard.MetricStatistics:
    """The difference between the lengths of prediction and reference in characters, averaged over sentences."""
    rows = zip(outputs.predictions, outputs.evaluation_set.references, strict=True)
    errors = [float(len(prediction) - len(references[0])) for prediction, references in rows]
    return regard.MetricStatistics.average(errors if signed else [abs(error) for error in errors])


regard.register_score("manhattan", Manhattan)
regard.register_scope("wait_k", WaitK)
regard.register_selection("top_k", TopK)
regard.register_cell("mgu", MinimalGatedUnit)
regard.register_encoder("convolutional", ConvolutionalEncoder)
regard.register_decoder("plain", PlainDecoder)
regard.register_corpus("shifted", load_shifted)
regard.register_metric("length_error", compute_length_error, format_spec=".2f", unit=" characters")
