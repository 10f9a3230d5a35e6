"""The loss: −log p(y | x), summed over the tokens of a batch.

B rows, T target steps, V vocabulary.
"""

import torch
from torch import Tensor, nn

from regard.data.batching import Batch
from regard.models.seq2seq import Seq2Seq


def token_loss(model: Seq2Seq, batch: Batch, label_smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    """−Σ log p(y_t | y_<t, x) over the batch's tokens, and how many there are; padding counts for nothing.

    In training, what the model's mechanisms bring of their own is added.
    """
    decoded = model(batch.source, batch.given)
    valid_BT, tokens_BT = batch.target.valid_BT, batch.target.tokens_BT
    logits_NV = decoded.logits_BTV[valid_BT].float()
    total = nn.functional.cross_entropy(
        logits_NV, tokens_BT[valid_BT], reduction="sum", label_smoothing=label_smoothing
    )
    if decoded.terms:
        log_p_BT = decoded.logits_BTV.float().log_softmax(-1).gather(-1, tokens_BT.unsqueeze(-1)).squeeze(-1)
        for term in decoded.terms:
            total = total + term(log_p_BT, valid_BT)
    return total, valid_BT.sum()


def backward(model: Seq2Seq, batch: Batch, label_smoothing: float, pieces: int = 1) -> tuple[float, int]:
    """Leave the gradient of the mean loss on the model, worked out in so many pieces → (loss, tokens)."""
    model.zero_grad(set_to_none=True)
    tokens = int(batch.target.lengths_B.sum())
    loss = 0.0
    for piece in batch.cut(pieces):
        total, _ = token_loss(model, piece, label_smoothing)
        mean = total / tokens
        mean.backward()  # type: ignore[no-untyped-call]
        loss += float(mean.detach())
    return loss, tokens


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether PyTorch could not allocate: CUDA has a class for it, the CPU only words."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
