"""Attention rollout (Abnar and Zuidema 2020): how much each output depends on each source token, through all layers.

A Transformer layer adds the output of its attention to its input, so half of each row is the position itself:

    Ã_l = ½ A_l + ½ I          R_l = Ã_l R_(l-1),  R_0 = I

for the self-attention A_l of layer l, with rows that are normalized to 1. R_L is the rollout of a self-attention.

A decoder layer has a self-attention A_l and a cross-attention B_l, which reads the rollout E of the encoder (E = I if
the encoder has no self-attention). The dependence of the target positions on the source, C_l, and on the decoder input,
D_l, are

    C_l = ½ Ã_l C_(l-1) + ½ B_l E,  C_0 = 0          D_l = ½ Ã_l D_(l-1),  D_0 = I

The rows of C_l and D_l together sum to 1. The rollout of the cross-attention is C_L with its rows normalized to 1. A
recurrent decoder has no residual connections: its rollout is B E for its last cross-attention B.

S memory slots, T target positions.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from regard.decoding.search import AttentionWeights


def roll_out(layers: Sequence[AttentionWeights]) -> AttentionWeights:
    """Return the rollout R_L of a self-attention, given the weights of its layers."""
    rollout = np.eye(layers[0].shape[-1])
    for weights in layers:
        rollout = _add_residual(weights) @ rollout
    return rollout.astype(np.float32)


def roll_out_cross(
    encoder: Sequence[AttentionWeights], decoder: Sequence[AttentionWeights], cross: Sequence[AttentionWeights]
) -> AttentionWeights:
    """Return the rollout of the cross-attention, given the weights of the layers of each attention.

    `encoder` and `decoder` may be empty: a recurrent encoder or decoder has no self-attention.
    """
    targets, slots = cross[-1].shape
    encoder_SS = roll_out(encoder) if encoder else np.eye(slots)
    if not decoder:
        return _normalize(cross[-1] @ encoder_SS).astype(np.float32)
    source_TS = np.zeros((targets, slots))
    for self_TT, cross_TS in zip(decoder, cross, strict=True):
        source_TS = 0.5 * _add_residual(self_TT) @ source_TS + 0.5 * _normalize(cross_TS) @ encoder_SS
    return _normalize(source_TS).astype(np.float32)


def _add_residual(weights: AttentionWeights) -> NDArray[np.float64]:
    return 0.5 * _normalize(weights) + 0.5 * np.eye(len(weights))


def _normalize(weights: NDArray[np.floating]) -> NDArray[np.float64]:
    """Divide each row by its sum. The maximum over several heads, for example, does not sum to 1."""
    sums = weights.sum(-1, keepdims=True, dtype=np.float64)
    normalized: NDArray[np.float64] = np.divide(weights, sums, out=np.zeros(weights.shape), where=sums > 0)
    return normalized
