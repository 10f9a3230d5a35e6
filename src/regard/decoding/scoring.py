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
"""The lowest log-probability of a token besides −∞. Beyond it, float32 does not distinguish logits that differ by 1."""

DIVERGED = (
    "The model computes values that are not finite, so it cannot predict anything. Its weights have diverged or are "
    "damaged. Use another checkpoint, or train the model again with a lower training.learning_rate."
)

MAX_LOGITS = 1 << 24
"""The maximum number of logits of a batch: 64 MiB of float32. Some decoders return the logits of a batch at once."""


def target_log_probs(model: Seq2Seq, batch: Batch) -> Tensor:
    """Return log p of each target token given the source and the previous tokens, (B, T); zeros for padding.

    Raise ModelError if the logits are NaN, or too large to be compared.
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
    if bool((log_p_N.isnan() | (log_p_N.isfinite() & (log_p_N < MIN_LOG_PROB))).any()):
        raise ModelError(
            f"{DIVERGED} A target token has the log-probability {float(log_p_N.nan_to_num(neginf=0.0).min()):.3g}."
        )
    log_p_BT[valid_BT] = log_p_N
    return log_p_BT
