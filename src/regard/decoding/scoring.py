"""The log-probabilities of given targets.

B rows, T target steps, D width, N tokens.
"""

import torch
from torch import Tensor, nn

from regard.data.batching import Batch
from regard.models.seq2seq import Seq2Seq
from regard.ops.chunked_loss import rows_per_chunk

MAX_LOGITS = 1 << 24
"""The maximum number of logits of a batch: 64 MiB of float32. Some decoders return the logits of a batch at once."""


def target_log_probs(model: Seq2Seq, batch: Batch) -> Tensor:
    """Return log p of each target token given the source and the previous tokens, (B, T); zeros for padding."""
    decoded = model(batch.source, batch.decoder_inputs)
    tokens_BT, valid_BT = batch.target.tokens_BT, batch.target.valid_BT
    rows = rows_per_chunk(decoded.features.device, decoded.vocabulary)
    chunks = zip(torch.split(decoded.features[valid_BT], rows), torch.split(tokens_BT[valid_BT], rows), strict=True)
    losses = [
        nn.functional.cross_entropy(decoded.output(features_ND).float(), tokens_N, reduction="none")
        for features_ND, tokens_N in chunks
    ]
    log_p_BT = torch.zeros(tokens_BT.shape, dtype=torch.float64, device=tokens_BT.device)
    log_p_BT[valid_BT] = -torch.cat(losses).double()
    return log_p_BT
