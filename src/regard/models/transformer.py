"""The Transformer (Vaswani et al. 2017): self-attention, cross-attention and feed-forward layers, and their options.

B rows, T target steps, S source positions, D width, H heads, V vocabulary.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from regard.attention.attention import Keys, Past
from regard.attention.kv_cache import Cache, PreallocatedCache, PreallocatedSteps, Steps, Store
from regard.attention.multihead import MultiHeadAttention, Packed
from regard.attention.positions import LearnedPositions, sinusoidal_positions
from regard.attention.settings import Score
from regard.models.contracts import Decoded, Decoder, Encoder, Memory, Padded
from regard.models.settings import TransformerModel
from regard.ops.dropout import Dropout
from regard.ops.layer_norm import LayerNorm


def _norm(settings: TransformerModel) -> nn.Module:
    if settings.normalization == "rms":
        return nn.RMSNorm(settings.size, eps=1e-6)
    # After each part, what is normalized is also what the next part's answer is added to.
    return LayerNorm(settings.size, for_products=settings.norm == "pre")


def _attention(settings: TransformerModel, score: Score, scope: str, *, turned: bool) -> MultiHeadAttention:
    return MultiHeadAttention(
        settings.size,
        settings.heads,
        score=score.model_dump(),
        scope=scope,
        dropout=settings.attention_dropout,
        rotary=turned and settings.positions == "rotary",
    )


@final
class FeedForward(nn.Module):
    """W₂ φ(W₁ x + b₁) + b₂, φ = ReLU or GELU; SwiGLU is W₂ (SiLU(W₁ x) ⊙ W₃ x) (Shazeer 2020)."""

    def __init__(self, settings: TransformerModel) -> None:
        super().__init__()
        self.activation = settings.activation
        gates = 2 if settings.activation == "swiglu" else 1
        self.inner = nn.Linear(settings.size, gates * settings.feedforward)
        self.outer = nn.Linear(settings.feedforward, settings.size)
        self.dropout = Dropout(settings.activation_dropout)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inner(x)
        if self.activation == "swiglu":
            gate, value = hidden.chunk(2, dim=-1)
            hidden = nn.functional.silu(gate) * value
        else:
            hidden = torch.relu(hidden) if self.activation == "relu" else nn.functional.gelu(hidden)
        made: Tensor = self.outer(self.dropout(hidden))
        return made


@final
class Residual(nn.Module):
    """LN(x + f(x)) as published; x + f(LN(x)) with the norm before (Xiong et al. 2020)."""

    def __init__(self, settings: TransformerModel) -> None:
        super().__init__()
        self.norm = _norm(settings)
        self.dropout = Dropout(settings.dropout)
        self.first = settings.norm == "pre"

    def forward(self, x: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        return self.leave(x, part(self.enter(x)))

    def enter(self, x: Tensor) -> Tensor:
        """What the part is given."""
        given: Tensor = self.norm(x) if self.first else x
        return given

    def leave(self, x: Tensor, made: Tensor) -> Tensor:
        """X with what the part made of it."""
        after: Tensor = x + (self.dropout(made) if self.training else made)
        return after if self.first else self.norm(after)


@final
class Embedding(nn.Module):
    """√d · token + position."""

    def __init__(self, settings: TransformerModel, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, settings.size)
        nn.init.normal_(self.tokens.weight, std=settings.size**-0.5)
        self.scale = math.sqrt(settings.size)
        self.dropout = Dropout(settings.dropout)
        learned = settings.positions == "learned"
        self.learned = LearnedPositions(settings.max_positions, settings.size) if learned else None
        self.has_waves = settings.positions == "sinusoidal"

    def forward(self, tokens_BT: Tensor, start: int | Tensor = 0, room: int | None = None) -> Tensor:
        """The vectors of tokens of which the first stands at position `start`, and none at `room` or beyond."""
        x_BTD = self.tokens(tokens_BT) * self.scale
        if self.learned is not None:
            assert isinstance(start, int)
            x_BTD = x_BTD + self.learned.span(start, tokens_BT.shape[1])
        if self.has_waves:
            if room is None:
                assert isinstance(start, int)
                room = start + tokens_BT.shape[1]
            places = 1 << max(8, (room - 1).bit_length())
            waves_TD = _waves(places, x_BTD.shape[-1], x_BTD.dtype, x_BTD.device)
            if isinstance(start, Tensor):
                x_BTD = x_BTD + waves_TD.index_select(0, start)
            else:
                x_BTD = x_BTD + waves_TD[start : start + tokens_BT.shape[1]]
        dropped: Tensor = self.dropout(x_BTD)
        return dropped


_KNOWN_WAVES: dict[tuple[int, int, torch.dtype, torch.device], Tensor] = {}


def _waves(places: int, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Sinusoidal positions, worked out once; they stay where they are, since recorded work may read them there."""
    key = places, size, dtype, device
    if key not in _KNOWN_WAVES:
        with torch.inference_mode(False):
            _KNOWN_WAVES[key] = sinusoidal_positions(places, size).to(device, dtype)
    return _KNOWN_WAVES[key]


# As torch.compiler.assume_constant_result does it, which would load the whole compiler first: seconds at each start.
_waves._dynamo_marked_constant = True  # type: ignore[attr-defined]


@final
class EncoderLayer(nn.Module):
    """Self-attention, then a feed-forward layer."""

    def __init__(self, settings: TransformerModel) -> None:
        super().__init__()
        self.attention = _attention(settings, settings.encoder_score, "global", turned=True)
        self.feedforward = FeedForward(settings)
        self.after_attention, self.after_feedforward = Residual(settings), Residual(settings)

    def forward(self, x_BSD: Tensor, allowed_BS: Tensor) -> Tensor:
        x_BSD = self.after_attention(x_BSD, lambda x: self.attention(x, allowed=allowed_BS)[0])
        made: Tensor = self.after_feedforward(x_BSD, self.feedforward)
        return made


@final
class TransformerEncoder(Encoder):
    """Layers of self-attention over the source; the summary is the mean of their outputs."""

    def __init__(self, settings: TransformerModel, vocabulary: int) -> None:
        super().__init__()
        self.embedding = Embedding(settings, vocabulary)
        self.through = _again if settings.gradient_checkpointing else _once
        self.layers = nn.ModuleList(EncoderLayer(settings) for _ in range(settings.layers))
        self.norm = _norm(settings) if settings.norm == "pre" else nn.Identity()
        _draw(self.layers)

    def forward(self, source: Padded) -> Memory:
        x_BSD, valid_BS = self.embedding(source.tokens_BT), source.valid_BT
        for layer in self.layers:
            x_BSD = self.through(layer, x_BSD, valid_BS)
        slots_BSD = self.norm(x_BSD).masked_fill(~valid_BS.unsqueeze(-1), 0.0)
        summary_BD = slots_BSD.sum(1) / source.lengths_B.clamp(min=1).unsqueeze(-1)
        return Memory(slots_BSD, valid_BS, summary_BD, source.tokens_BT)


class LayerKeys(NamedTuple):
    """What a decoder layer is given once per source: the memory for its cross-attention, and the projections of its
    self-attention packed for steps.
    """

    cross: Keys
    own: Packed | None


class LayersState(NamedTuple):
    """What the decoder's layers remember: the steps so far, and the past of each cross-attention that needs its own."""

    cache: Cache | PreallocatedCache
    pasts: tuple[Past | None, ...]


class TransformerState(NamedTuple):
    """How many tokens each row has been given, and what the layers remember."""

    past: Past
    layers: LayersState


@final
class DecoderLayer(nn.Module):
    """Masked self-attention, cross-attention, then a feed-forward layer."""

    def __init__(self, settings: TransformerModel) -> None:
        super().__init__()
        self.self_attention = _attention(settings, settings.self_score, "causal", turned=True)
        self.cross_attention = _attention(settings, settings.cross_score, "global", turned=False)
        self.feedforward = FeedForward(settings)
        self.after_self, self.after_cross = Residual(settings), Residual(settings)
        self.after_feedforward = Residual(settings)

    def forward(self, x_BTD: Tensor, keys: Keys) -> Tensor:
        """All steps at once."""
        x_BTD = self.after_self(x_BTD, lambda x: self.self_attention(x)[0])
        past = self.cross_attention.attention.begin(keys)
        x_BTD = self.after_cross(x_BTD, lambda x: self.cross_attention.read(x, keys, past).context_BTD)
        made: Tensor = self.after_feedforward(x_BTD, self.feedforward)
        return made

    def step(
        self, x_B1D: Tensor, store: Store | None, steps: Steps | PreallocatedSteps, past: Past, keys: LayerKeys
    ) -> tuple[Tensor, Store, Past]:
        """One step, given the steps before it and the past of the cross-attention."""
        read_B1D, store = self.self_attention.extend(self.after_self.enter(x_B1D), store, steps, keys.own)
        x_B1D = self.after_self.leave(x_B1D, read_B1D)
        attended = self.cross_attention.read(self.after_cross.enter(x_B1D), keys.cross, past)
        x_B1D = self.after_cross.leave(x_B1D, attended.context_BTD)
        return self.after_feedforward(x_B1D, self.feedforward), store, attended.past


@final
class TransformerDecoder(Decoder):
    """Layers of masked self-attention and cross-attention, then a linear layer to the vocabulary."""

    def __init__(self, settings: TransformerModel, vocabulary: int) -> None:
        super().__init__()
        self.embedding = Embedding(settings, vocabulary)
        self.through = _again if settings.gradient_checkpointing else _once
        layers = settings.decoder_layers or settings.layers
        self.layers = nn.ModuleList(DecoderLayer(settings) for _ in range(layers))
        self.norm = _norm(settings) if settings.norm == "pre" else nn.Identity()
        self.output = nn.Linear(settings.size, vocabulary, bias=False)
        _draw(self.layers)
        if settings.tied == "none":
            nn.init.normal_(self.output.weight, std=settings.size**-0.5)
        else:
            self.output.weight = self.embedding.tokens.weight

    def begin(self, memory: Memory) -> tuple[tuple[LayerKeys, ...], TransformerState]:
        layers = self._layers()
        packed = (layer.self_attention.packed() for layer in layers)
        keys = [LayerKeys(*both) for both in zip(self._keys(memory), packed, strict=True)]
        rows, device = len(memory.slots_BSD), memory.slots_BSD.device
        attentions = [layer.cross_attention.attention for layer in layers]
        pasts = (part.begin(key.cross) if part.stepwise else None for part, key in zip(attentions, keys, strict=True))
        start = Past(torch.zeros(rows, dtype=torch.long, device=device))
        fused = self.embedding.learned is None and all(layer.self_attention.attention.fused for layer in layers)
        cache = Cache.begin(rows, device, fused=fused)
        return tuple(keys), TransformerState(start, LayersState(cache, tuple(pasts)))

    def step(
        self, token_B: Tensor, state: TransformerState, keys: tuple[LayerKeys, ...]
    ) -> tuple[Tensor, TransformerState]:
        cache, pasts = state.layers
        x_B1D = self.embedding(token_B.unsqueeze(1), cache.start, cache.room)
        steps = cache.taking(x_B1D.dtype)
        stores: list[Store] = []
        after: list[Past | None] = []
        for index, (layer, own) in enumerate(zip(self._layers(), pasts, strict=True)):
            store = cache.stores[index] if cache.stores else None
            x_B1D, store, past = layer.step(x_B1D, store, steps, own or state.past, keys[index])
            stores.append(store)
            after.append(past if own else None)
        past = state.past._replace(position_B=state.past.position_B + 1)
        layers = LayersState(cache.after(steps, stores), tuple(after))  # type: ignore[arg-type]
        return self.output(self.norm(x_B1D)).squeeze(1), TransformerState(past, layers)

    def forward(self, tokens_BT: Tensor, memory: Memory) -> Decoded:
        x_BTD = self.embedding(tokens_BT)
        for layer, key in zip(self._layers(), self._keys(memory), strict=True):
            x_BTD = self.through(layer, x_BTD, key)
        return Decoded(self.norm(x_BTD), self.output, self.output.out_features, (self.output.weight,))

    def _keys(self, memory: Memory) -> tuple[Keys, ...]:
        return tuple(
            layer.cross_attention.prepare(memory.slots_BSD, allowed=memory.allowed_BS) for layer in self._layers()
        )

    def _layers(self) -> list[DecoderLayer]:
        return [layer for layer in self.layers if isinstance(layer, DecoderLayer)]


def _once(layer: nn.Module, x: Tensor, given: Any) -> Tensor:
    made: Tensor = layer(x, given)
    return made


def _again(layer: nn.Module, x: Tensor, given: Any) -> Tensor:
    """Nothing within the layer is kept for its gradient; it is worked out again when needed (Chen et al. 2016)."""
    made: Tensor = checkpoint(layer, x, given, use_reentrant=False)
    return made


def _draw(layers: nn.Module) -> None:
    """Matrices as the paper's authors drew them (Glorot and Bengio 2010), biases at zero."""
    for module in layers.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
