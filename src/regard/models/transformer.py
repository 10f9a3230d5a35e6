"""The Transformer (Vaswani et al. 2017) and its options: self-attention, cross-attention and feed-forward layers.

B rows, T target steps, S source positions, D width, H heads, V vocabulary.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from regard.attention.attention import Role
from regard.attention.equation import per_query, zero_masked_slots
from regard.attention.kv_cache import (
    CacheIndirection,
    KVCache,
    LayerCache,
    PreallocatedIndirection,
    PreallocatedKVCache,
)
from regard.attention.memory import Past, PreparedMemory
from regard.attention.multihead import MultiHeadAttention, PackedProjection
from regard.attention.settings import Score
from regard.models.contracts import (
    Decoded,
    Decoder,
    Encoder,
    Memory,
    Tokens,
    check_memory,
    check_step_types,
    check_supervised_head,
    check_targets,
    check_token,
    check_tokens_source,
)
from regard.models.embedding import Embedding
from regard.models.settings import TransformerBlocks, TransformerEncoderSettings, TransformerModel
from regard.ops.cost import CostPart
from regard.ops.layers import Dropout, LayerNorm, Linear, add_dropout, add_norm


def build_norm(settings: TransformerBlocks) -> nn.Module:
    if settings.normalization == "rms":
        return nn.RMSNorm(settings.size, eps=settings.epsilon or 1e-6)
    # With post-norm, the normalized output is also the residual input of the next sublayer.
    return LayerNorm(settings.size, eps=settings.epsilon or 1e-5, autocast_output=settings.norm == "pre")


def _build_attention(settings: TransformerBlocks, score: Score, role: Role) -> MultiHeadAttention:
    multihead = MultiHeadAttention(
        settings.size,
        settings.heads,
        score=score,
        scope="causal" if role == "decoder-self" else "global",
        dropout=settings.attention_dropout,
        rotary=settings.rotates and role != "cross",
        role=role,
    )
    multihead.attention.finite_memory = True
    return multihead


@final
class FeedForward(nn.Module):
    """W₂ φ(W₁ x + b₁) + b₂, φ = ReLU, GELU or SiLU; SwiGLU is W₂ (SiLU(W₁ x) ⊙ W₃ x) (Shazeer 2020)."""

    def __init__(self, settings: TransformerBlocks) -> None:
        super().__init__()
        self.activation = settings.activation
        gates = 2 if settings.activation == "swiglu" else 1
        self.inner = Linear(settings.size, gates * settings.feedforward)
        self.outer = Linear(settings.feedforward, settings.size)
        self.dropout = Dropout(settings.activation_dropout)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inner(x, relu=self.activation == "relu")
        if self.activation == "swiglu":
            gate, value = hidden.chunk(2, dim=-1)
            hidden = nn.functional.silu(gate) * value
        elif self.activation == "gelu":
            hidden = nn.functional.gelu(hidden)
        elif self.activation == "silu":
            hidden = nn.functional.silu(hidden)
        output: Tensor = self.outer(self.dropout(hidden))
        return output


@final
class Residual(nn.Module):
    """Post-norm LN(x + f(x)), as published, or pre-norm x + f(LN(x)) (Xiong et al. 2020)."""

    def __init__(self, settings: TransformerBlocks) -> None:
        super().__init__()
        self.norm = build_norm(settings)
        self.dropout = Dropout(settings.dropout)
        self.pre_norm = settings.norm == "pre"

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return self.add_output(x, sublayer(self.normalize_input(x)))

    def normalize_input(self, x: Tensor) -> Tensor:
        """Return the input of the sublayer: normalized with pre-norm."""
        inputs: Tensor = self.norm(x) if self.pre_norm else x
        return inputs

    def add_output(self, x: Tensor, output: Tensor) -> Tensor:
        """Return the sum of x and the output of the sublayer: normalized with post-norm."""
        if self.pre_norm:
            return add_dropout(x, output, self.dropout)
        return add_norm(x, output, self.norm, self.dropout)


@final
class EncoderLayer(nn.Module):
    """Self-attention, followed by a feed-forward layer."""

    def __init__(self, settings: TransformerBlocks, score: Score) -> None:
        super().__init__()
        self.attention = _build_attention(settings, score, "encoder-self")
        self.feedforward = FeedForward(settings)
        self.after_attention, self.after_feedforward = Residual(settings), Residual(settings)

    def forward(self, x_BSD: Tensor, allowed_BS: Tensor) -> Tensor:
        x_BSD = self.after_attention(x_BSD, lambda x: self.attention(x, allowed=allowed_BS)[0])
        output: Tensor = self.after_feedforward(x_BSD, self.feedforward)
        return output

    def cost_parts(self, layer: int) -> list[CostPart]:
        return [
            CostPart("self-attention", (self.attention, self.after_attention), layer),
            CostPart("feed-forward", (self.feedforward, self.after_feedforward), layer),
        ]


@final
class TransformerEncoder(Encoder[Tokens]):
    """Self-attention layers over the source. The summary is the average of their outputs over positions."""

    is_capturable = True

    def __init__(self, settings: TransformerEncoderSettings, vocabulary: int) -> None:
        super().__init__()
        self.embedding = Embedding(settings, vocabulary)
        self.run_layer = _run_checkpointed if settings.gradient_checkpointing else _run_layer
        self.layers = nn.ModuleList(EncoderLayer(settings, settings.score) for _ in range(settings.layers))
        self.norm = build_norm(settings) if settings.norm == "pre" else nn.Identity()
        self._size = settings.size
        init_weights(self.layers)

    @property
    def size(self) -> int:
        return self._size

    @property
    def token_embedding(self) -> nn.Embedding:
        return self.embedding.tokens

    @property
    def shardable_modules(self) -> tuple[nn.Module, ...]:
        return tuple(self.layers)

    def cost_parts(self) -> list[CostPart]:
        layers = (layer for layer in self.layers if isinstance(layer, EncoderLayer))
        return [
            CostPart("embedding", (self.embedding,)),
            *(part for number, layer in enumerate(layers, start=1) for part in layer.cost_parts(number)),
            CostPart("normalization", (self.norm,)),
        ]

    def forward(self, source: Tokens) -> Memory:
        check_tokens_source(source, self.token_embedding)
        x_BSD, valid_BS = self.embedding(source.tokens_BT), source.valid_BT
        for layer in self.layers:
            x_BSD = self.run_layer(layer, x_BSD, valid_BS)
        slots_BSD = self.norm(x_BSD).masked_fill(~valid_BS.unsqueeze(-1), 0.0)
        summary_BD = slots_BSD.sum(1) / source.lengths_B.clamp(min=1).unsqueeze(-1)
        return Memory(slots_BSD, valid_BS, summary_BD, source.tokens_BT)


class LayerKeys(NamedTuple):
    """What a decoder layer receives once per source: the keys of its cross-attention, and the packed projections of its
    self-attention, for use in `step`.
    """

    cross: PreparedMemory
    self_projections: PackedProjection | None


class LayersState(NamedTuple):
    """The state of the decoder layers: the KV cache, and the past of each cross-attention that has a separate one."""

    cache: KVCache | PreallocatedKVCache
    pasts: tuple[Past | None, ...]


class TransformerState(NamedTuple):
    """The number of tokens so far in each row, and the state of the layers."""

    past: Past
    layers: LayersState


@final
class DecoderLayer(nn.Module):
    """Masked self-attention and cross-attention, followed by a feed-forward layer."""

    def __init__(self, settings: TransformerModel) -> None:
        super().__init__()
        self.self_attention = _build_attention(settings, settings.self_score, "decoder-self")
        self.cross_attention = _build_attention(settings, settings.cross_score, "cross")
        self.feedforward = FeedForward(settings)
        self.after_self, self.after_cross = Residual(settings), Residual(settings)
        self.after_feedforward = Residual(settings)

    def forward(self, x_BTD: Tensor, keys: PreparedMemory, *, weights: bool = False) -> tuple[Tensor, Tensor | None]:
        """Run all steps at once → (outputs, weights of the cross-attention if requested)."""
        x_BTD = self.after_self(x_BTD, lambda x: self.self_attention(x)[0])
        past = self.cross_attention.attention.begin(keys)
        query_BTD = self.after_cross.normalize_input(x_BTD)
        attended = self.cross_attention.read(query_BTD, keys, past, weights=weights)
        x_BTD = self.after_cross.add_output(x_BTD, attended.context_BTD)
        return self.after_feedforward(x_BTD, self.feedforward), attended.weights if weights else None

    def step(
        self,
        x_B1D: Tensor,
        layer_cache: LayerCache,
        indirection: CacheIndirection | PreallocatedIndirection,
        past: Past,
        keys: LayerKeys,
    ) -> tuple[Tensor, LayerCache, Past]:
        """Run one step, given the previous steps and the past of the cross-attention."""
        read_B1D, layer_cache = self.self_attention.extend(
            self.after_self.normalize_input(x_B1D), layer_cache, indirection, keys.self_projections
        )
        x_B1D = self.after_self.add_output(x_B1D, read_B1D)
        attended = self.cross_attention.read(self.after_cross.normalize_input(x_B1D), keys.cross, past)
        x_B1D = self.after_cross.add_output(x_B1D, attended.context_BTD)
        return self.after_feedforward(x_B1D, self.feedforward), layer_cache, attended.past

    def cost_parts(self, layer: int) -> list[CostPart]:
        return [
            CostPart("self-attention", (self.self_attention, self.after_self), layer),
            CostPart("cross-attention", (self.cross_attention, self.after_cross), layer),
            CostPart("feed-forward", (self.feedforward, self.after_feedforward), layer),
        ]


@final
class TransformerDecoder(Decoder):
    """Layers of masked self-attention and cross-attention, followed by a linear layer to the vocabulary.

    A memory of another width than the decoder is projected first.
    """

    def __init__(self, settings: TransformerModel, vocabulary: int, memory_size: int) -> None:
        super().__init__()
        self._memory_size = memory_size
        self.bridge = nn.Identity() if memory_size == settings.size else nn.Linear(memory_size, settings.size)
        self.embedding = Embedding(settings, vocabulary)
        self.run_layer = _run_checkpointed if settings.gradient_checkpointing else _run_layer
        layers = settings.decoder_layers or settings.layers
        self.layers = nn.ModuleList(DecoderLayer(settings) for _ in range(layers))
        self.norm = build_norm(settings) if settings.norm == "pre" else nn.Identity()
        self.output = nn.Linear(settings.size, vocabulary, bias=settings.output_bias)
        self.supervised: tuple[int, int] | None = None
        """The layer and head whose weights are returned in training, from 0."""
        init_weights(self.layers)
        if settings.output_bias:
            nn.init.zeros_(self.output.bias)
        if settings.tied == "none":
            nn.init.normal_(self.output.weight, std=settings.size**-0.5)
        else:
            self.output.weight = self.embedding.tokens.weight

    @property
    def token_embedding(self) -> nn.Embedding:
        return self.embedding.tokens

    @property
    def shardable_modules(self) -> tuple[nn.Module, ...]:
        # The keys of the cross-attention of all layers are computed before the first layer.
        return tuple(module for layer in self._layers() for module in (layer.self_attention, layer.feedforward))

    def cost_parts(self) -> list[CostPart]:
        return [
            CostPart("embedding", (self.embedding,)),
            CostPart("memory projection", (self.bridge,)),
            *(part for number, layer in enumerate(self._layers(), start=1) for part in layer.cost_parts(number)),
            CostPart("normalization", (self.norm,)),
            CostPart("output projection", (self.output,)),
        ]

    def supervise_attention(self, layer: int | None, head: int) -> None:
        """Supervise a head of a layer, by default of the second to last (Garg et al. 2019)."""
        layers = self._layers()
        layer = max(1, len(layers) - 1) if layer is None else layer
        check_supervised_head(layer, head, len(layers), layers[0].cross_attention.attention.heads)
        self.supervised = layer - 1, head - 1

    def begin(self, memory: Memory) -> tuple[tuple[LayerKeys, ...], TransformerState]:
        layers = self._layers()
        packed = (layer.self_attention.packed() for layer in layers)
        keys = [LayerKeys(*pair) for pair in zip(self._prepare_keys(memory), packed, strict=True)]
        rows, device = memory.slots_BSD.shape[0], memory.slots_BSD.device
        attentions = [layer.cross_attention.attention for layer in layers]
        pasts = (
            attention.begin(key.cross) if attention.stepwise else None
            for attention, key in zip(attentions, keys, strict=True)
        )
        past = Past(torch.zeros(rows, dtype=torch.long, device=device))
        fused = self.embedding.learned is None and all(layer.self_attention.attention.fused for layer in layers)
        cache = KVCache.begin((layer.self_attention.empty_cache(rows) for layer in layers), rows, device, fused=fused)
        return tuple(keys), TransformerState(past, LayersState(cache, tuple(pasts)))

    def step(
        self, token_B: Tensor, state: TransformerState, keys: tuple[LayerKeys, ...]
    ) -> tuple[Tensor, TransformerState]:
        check_step_types(state, keys, TransformerState, tuple)
        check_token(token_B, state.past.position_B.shape[0], self.token_embedding)
        cache, pasts = state.layers
        x_B1D = self.embedding(token_B.unsqueeze(1), cache.start, cache.max_steps)
        indirection = cache.next_step(x_B1D)
        layer_caches: list[LayerCache] = []
        new_pasts: list[Past | None] = []
        for layer, layer_cache, layer_past, layer_keys in zip(self._layers(), cache.layers, pasts, keys, strict=True):
            x_B1D, layer_cache, past = layer.step(x_B1D, layer_cache, indirection, layer_past or state.past, layer_keys)
            layer_caches.append(layer_cache)
            new_pasts.append(past if layer_past else None)
        past = state.past._replace(position_B=state.past.position_B + 1)
        layers = LayersState(cache.advance(indirection, layer_caches), tuple(new_pasts))  # type: ignore[arg-type]
        return self.output(self.norm(x_B1D)).squeeze(1), TransformerState(past, layers)

    def forward(self, tokens_BT: Tensor, memory: Memory) -> Decoded:
        layers = zip(self._layers(), self._prepare_keys(memory), strict=True)
        check_targets(tokens_BT, memory.slots_BSD.shape[0], self.token_embedding)
        x_BTD = self.embedding(tokens_BT)
        supervised_layer, head = self.supervised if self.supervised and self.training else (None, 0)
        alignment_BTS = None
        for index, (layer, key) in enumerate(layers):
            x_BTD, weights = self.run_layer(layer, x_BTD, key, weights=index == supervised_layer)
            if weights is not None:
                alignment_BTS = weights if weights.dim() == 3 else weights[:, head]
        parameters = tuple(self.output.parameters())
        return Decoded(self.norm(x_BTD), self.output, self.output.out_features, parameters, alignment_BTS=alignment_BTS)

    def _prepare_keys(self, memory: Memory) -> tuple[PreparedMemory, ...]:
        check_memory(memory, self.output.weight, slot_size=self._memory_size, summary_size=None)
        # All layers read these slots, so they are set to zero once, and not the keys and values of each layer.
        slots_BSD = self.bridge(zero_masked_slots(memory.slots_BSD, per_query(memory.allowed_BS)))
        return tuple(layer.cross_attention.prepare(slots_BSD, allowed=memory.allowed_BS) for layer in self._layers())

    def _layers(self) -> list[DecoderLayer]:
        return [layer for layer in self.layers if isinstance(layer, DecoderLayer)]


def _run_layer(layer: nn.Module, x: Tensor, mask_or_keys: Any, **options: bool) -> Any:
    return layer(x, mask_or_keys, **options)


def _run_checkpointed(layer: nn.Module, x: Tensor, mask_or_keys: Any, **options: bool) -> Any:
    """Run a layer with gradient checkpointing: recompute its activations in the backward pass (Chen et al. 2016)."""
    return checkpoint(partial(layer, **options), x, mask_or_keys, use_reentrant=False)


def init_weights(layers: nn.Module) -> None:
    """Initialize matrices as the paper's authors do (Glorot and Bengio 2010), and biases to zero."""
    for module in layers.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
