"""The correspondence between a Marian model (Junczys-Dowmunt et al. 2018) in Transformers and our Transformer.

Both are the post-norm Transformer of Vaswani et al. (2017), with two differences. The positions of Marian are all sines
followed by all cosines, and ours alternate. This is a permutation of the model dimensions, which is applied to the
weights. And the special tokens have other ids, which is a permutation of the vocabulary.

D model dimensions, F feed-forward dimensions.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from regard.data.tokens.tokenizers import START
from regard.export.foreign_weights import ForeignWeights


class Parameter(NamedTuple):
    """A tensor of a layer: its name in Transformers and in regard, its shape, and the axis of the model dimensions."""

    theirs: str
    ours: str
    shape: tuple[int, ...]
    axis: int | None


_ATTENTION = {"q_proj": ("to_query", 1), "k_proj": ("to_key", 1), "v_proj": ("to_value", 1), "out_proj": ("output", 0)}
_ENCODER = {"self_attn": "attention"}
_DECODER = {"self_attn": "self_attention", "encoder_attn": "cross_attention"}
_ENCODER_NORMS = {"self_attn": "after_attention", "final": "after_feedforward"}
_DECODER_NORMS = {"self_attn": "after_self", "encoder_attn": "after_cross", "final": "after_feedforward"}


def list_layer_parameters(size: int, feedforward: int, encoder: int, decoder: int) -> Iterator[Parameter]:
    """Yield the tensors of all layers."""
    sides = (("encoder", encoder, _ENCODER, _ENCODER_NORMS), ("decoder", decoder, _DECODER, _DECODER_NORMS))
    for side, layers, attentions, norms in sides:
        for layer in range(layers):
            theirs, ours = f"model.{side}.layers.{layer}", f"{side}.layers.{layer}"
            for their_attention, our_attention in attentions.items():
                for their_name, (our_name, axis) in _ATTENTION.items():
                    names = f"{theirs}.{their_attention}.{their_name}", f"{ours}.{our_attention}.{our_name}"
                    yield from _list_linear(*names, (size, size), axis)
            yield from _list_linear(f"{theirs}.fc1", f"{ours}.feedforward.inner", (feedforward, size), 1)
            yield from _list_linear(f"{theirs}.fc2", f"{ours}.feedforward.outer", (size, feedforward), 0)
            for their_norm, our_norm in norms.items():
                for name in ("weight", "bias"):
                    yield Parameter(
                        f"{theirs}.{their_norm}_layer_norm.{name}", f"{ours}.{our_norm}.norm.{name}", (size,), 0
                    )


def _list_linear(theirs: str, ours: str, shape: tuple[int, int], axis: int) -> Iterator[Parameter]:
    yield Parameter(f"{theirs}.weight", f"{ours}.weight", shape, axis)
    yield Parameter(f"{theirs}.bias", f"{ours}.bias", shape[:1], 0 if axis == 0 else None)


EMBEDDINGS: Mapping[str, dict[str, tuple[str, ...]]] = {
    "all": {
        "encoder.embedding.tokens.weight": (
            "model.shared.weight",
            "model.encoder.embed_tokens.weight",
            "model.decoder.embed_tokens.weight",
            "lm_head.weight",
        )
    },
    "decoder": {
        "encoder.embedding.tokens.weight": ("model.encoder.embed_tokens.weight",),
        "decoder.embedding.tokens.weight": ("model.decoder.embed_tokens.weight", "lm_head.weight"),
    },
    "none": {
        "encoder.embedding.tokens.weight": ("model.encoder.embed_tokens.weight",),
        "decoder.embedding.tokens.weight": ("model.decoder.embed_tokens.weight",),
        "decoder.output.weight": ("lm_head.weight",),
    },
}
"""For each value of model.tied, our embeddings (V, D) with their names in Transformers: the first is the one that is
saved, and the others are tied to it.
"""

BIAS = "final_logits_bias"
"""The bias of the logits, (1, V), in Transformers."""

IGNORED = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
"""Tensors that are not read: sinusoidal positions are computed."""


def alternate_positions(size: int) -> Tensor:
    """Return the dimension of a Marian model for each of our dimensions: a sine, its cosine, the next sine, …"""
    return torch.arange(size).view(2, -1).t().flatten()


_NEVER = -100.0
"""Added to the logit of the start token if Marian has no separate start token. In float32, adding e^-100 to a sum of at
least 1 does not change it.
"""


def convert_weights(
    weights: ForeignWeights,
    size: int,
    feedforward: int,
    layers: tuple[int, int],
    vocabulary: int,
    ids: list[int],
    tied: str,
) -> dict[str, Tensor]:
    """Return the weights with our names, and with dimensions and tokens in our order. `ids` are those of our tokens."""
    weights.ignore(*IGNORED)
    order_D, ids_V = alternate_positions(size), torch.tensor(ids)
    converted = {
        name: weights.take(*theirs, shape=(vocabulary, size))[ids_V][:, order_D]
        for name, theirs in EMBEDDINGS[tied].items()
    }
    for theirs, ours, shape, axis in list_layer_parameters(size, feedforward, *layers):
        tensor = weights.take(theirs, shape=shape)
        converted[ours] = tensor if axis is None else tensor.index_select(axis, order_D)
    bias_V = weights.take(BIAS, shape=(1, vocabulary))[0][ids_V] if BIAS in weights else torch.zeros(len(ids))
    if len(ids) > vocabulary:
        bias_V[START] += _NEVER
    if bias_V.any():
        converted["decoder.output.bias"] = bias_V
    return converted
