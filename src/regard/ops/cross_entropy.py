"""Cross-entropy with label smoothing, summed over tokens: the reference, and Triton kernels for a GPU.

N tokens, V vocabulary.
"""

from torch import Tensor, nn

from regard.ops import triton

IGNORE_INDEX = -100
"""The target that does not contribute to the loss, as in `torch.nn.functional.cross_entropy`."""


def reference_cross_entropy(logits_NV: Tensor, tokens_N: Tensor, label_smoothing: float) -> Tensor:
    return nn.functional.cross_entropy(
        logits_NV, tokens_N, reduction="sum", label_smoothing=label_smoothing, ignore_index=IGNORE_INDEX
    )


def cross_entropy(logits_NV: Tensor, tokens_N: Tensor, label_smoothing: float) -> Tensor:
    """−Σ_n log p(y_n) with label smoothing, in float32."""
    if triton.is_usable(logits_NV):
        from regard.ops.triton import cross_entropy as kernel

        return kernel.cross_entropy(logits_NV, tokens_N, label_smoothing, IGNORE_INDEX).sum()
    return reference_cross_entropy(logits_NV.float(), tokens_N, label_smoothing)
