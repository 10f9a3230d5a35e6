"""Attention entropy: how spread out the weights of a model's cross-attention are.

B rows, T target steps, S memory slots, H heads.
"""

import torch
from torch import Tensor

from regard.attention.record import attention_roles, record
from regard.data.batching import EncodedCorpus
from regard.data.corpora import Pairs
from regard.data.sampler import batch_by_length
from regard.decoding.predictor import Predictor


def compute_attention_entropy(predictor: Predictor, pairs: Pairs, batch_size: int = 32) -> float | None:
    """Return the normalized entropy of the cross-attention weights, averaged over target tokens, heads and layers.

    The entropy of a row of weights a_1 … a_S is −Σ a_j log a_j / log S: 0 if one slot has all the weight, 1 if all
    slots have the same. The decoder reads the targets of the pairs (teacher forcing), so that models are compared on
    the same tokens. Weights that do not sum to 1 are normalized first. Rows without any weight, and sources with a
    single slot, are left out. None if the model has no cross-attention.
    """
    cross = {name for name, role in attention_roles(predictor.model).items() if role == "cross"}
    if not cross:
        return None
    encoded = EncodedCorpus.of(pairs, predictor.reader, predictor.tokenizer, predictor.max_length)
    total, rows = 0.0, 0
    with predictor.inference():
        for ids in batch_by_length(encoded.sources.lengths, batch_size):
            batch = encoded.batch(ids, predictor.device)
            memory = predictor.model.encoder(batch.source)
            with record(predictor.model, cross.__contains__) as recording:
                predictor.model.decoder(batch.decoder_inputs, memory)
            slots_B = memory.allowed_BS.sum(-1)
            for weights in recording.weights.values():
                entropies = compute_normalized_entropies(weights, slots_B, batch.target.valid_BT)
                total, rows = total + float(entropies.sum()), rows + len(entropies)
    return total / rows if rows else None


def compute_normalized_entropies(weights: Tensor, slots_B: Tensor, valid_BT: Tensor) -> Tensor:
    """Return the normalized entropy of each row of weights (B, T, S) or (B, H, T, S) that is valid and has weight."""
    weights_BHTS = (weights.unsqueeze(1) if weights.ndim == 3 else weights).double()
    sums_BHT = weights_BHTS.sum(-1)
    p_BHTS = weights_BHTS / sums_BHT.clamp_min(torch.finfo(torch.float64).tiny).unsqueeze(-1)
    entropy_BHT = torch.special.entr(p_BHTS).sum(-1)
    log_slots_B = slots_B.clamp_min(2).double().log()
    counted_BHT = (sums_BHT > 0) & (slots_B > 1)[:, None, None] & valid_BT.unsqueeze(1)
    normalized_BHT: Tensor = entropy_BHT / log_slots_B[:, None, None]
    return normalized_BHT[counted_BHT]
