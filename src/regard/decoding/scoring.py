"""The log-probabilities of given targets.

B rows, T target steps, D width, N tokens.
"""

import torch
from torch import Tensor, nn

from regard.data.batching import Batch
from regard.errors import ModelError
from regard.models.seq2seq import Seq2Seq
from regard.ops.chunked_loss import rows_per_chunk

MIN_LOG_PROB = -(2.0**24)
"""The lowest valid log-probability of a token besides −∞. Below it, float32 cannot represent a difference of 1."""

_CAUSE = (
    "Its weights have diverged or are damaged. Use another checkpoint, or train the model again with a lower "
    "training.learning_rate."
)

DIVERGED = f"The model computes values that are not finite, so it cannot predict anything. {_CAUSE}"

MAX_LOGITS = 1 << 24
"""The maximum number of logits of a batch: 64 MiB of float32. Some decoders return the logits of a batch at once."""


def target_log_probs(model: Seq2Seq, batch: Batch) -> Tensor:
    """Return log p of each target token given the source and the previous tokens, (B, T); zeros for padding.

    Raise ModelError if a log-probability is NaN, or below `MIN_LOG_PROB`.
    """
    decoded = model(batch.source, batch.decoder_inputs)
    tokens_BT, valid_BT = batch.target.tokens_BT, batch.target.valid_BT
    rows = rows_per_chunk(decoded.features.device, decoded.vocabulary)
    chunks = zip(torch.split(decoded.features[valid_BT], rows), torch.split(tokens_BT[valid_BT], rows), strict=True)
    losses = [
        nn.functional.cross_entropy(decoded.output(features_ND).float(), tokens_N, reduction="none")
        for features_ND, tokens_N in chunks
    ]
    log_p_BT = torch.zeros(tokens_BT.shape, dtype=torch.float64, device=tokens_BT.device)
    log_p_N = -torch.cat(losses).double()
    invalid = log_p_N[log_p_N.isnan() | (log_p_N.isfinite() & (log_p_N < MIN_LOG_PROB))]
    if len(invalid):
        raise ModelError(
            f"The model computes the log-probability {float(invalid[0]):.3g} for a target token, so its scores are not "
            f"valid. {_CAUSE}"
        )
    log_p_BT[valid_BT] = log_p_N
    return log_p_BT
