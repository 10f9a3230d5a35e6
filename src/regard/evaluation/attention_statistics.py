"""Statistics of attention weights, head by head, on given pairs with forced decoding.

The weights a of a row sum to 1; n keys are visible in it. Rows without any weight are left out; rows with n = 1 are
left out where the value is determined by n.

- Entropy: −Σ_s a_s log a_s / log n.
- Coverage: Σ_s min(1, Σ_t a_ts) / S, as in the coverage penalty of Wu et al. (2016), without the logarithm. It is at
  most T / S.
- Expected position: p_t = Σ_s a_ts (s + ½) / S. Monotonicity is the share of steps with p_t ≥ p_(t−1). The distance
  from the diagonal is |p_t − (t + ½) / T|: 0 for the diagonal, ¼ on average for uniform weights.
- Redundancy: 1 − JS(a, b), averaged over the pairs of heads of a layer and over rows, where JS is the Jensen–Shannon
  divergence in bits, with which Clark et al. (2019) compare heads: 1 if all heads have the same weights, 0 if no two of
  them attend to the same key.
- The weight of each position, counted from the start and from the end, averaged over all rows. A head that has nearly
  all its weight on one of them reads the same token whatever the query is (Clark et al. 2019: a "no-op").

B rows (pairs), H heads, T queries, S keys, P pairs of heads.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.attention import Role
from regard.attention.record import Recording, attention_roles, find_attentions, record
from regard.data.batching import Batch, EncodedCorpus
from regard.data.corpora import Pairs
from regard.data.sampler import batch_by_length
from regard.decoding.predictor import Predictor
from regard.evaluation.attention_diagnostics import AttentionDiagnostics, AttentionStatistics, HeadStatistics
from regard.models.contracts import Grid, Memory

_MAX_WEIGHTS = 1 << 18
"""The maximum number of weights of a head in a batch: 2 MiB of float64."""

_TOLERANCE = 1e-3
"""An expected position that is this part of a token to the left of the previous one counts as equal."""


_HEAD_STATISTICS = ("entropy", "coverage", "monotonicity", "diagonal_distance")


def diagnose_attention(predictor: Predictor, encoded: EncodedCorpus) -> AttentionDiagnostics | None:
    """Compute the statistics of every attention of a model. None if it has no attention, or there are no pairs.

    The model is in evaluation mode, and the random number generators of torch are restored.
    """
    roles = attention_roles(predictor.model)
    if not roles or not len(encoded):
        return None
    devices = [predictor.device] if predictor.device.type == "cuda" else []
    totals = {name: AttentionTotals() for name in roles}
    with torch.random.fork_rng(devices=devices), predictor.inference():
        for batch, memory, recording in _decode(predictor, encoded, roles.__contains__, batch_size=len(encoded)):
            for name, weights in recording.weights.items():
                totals[name].add(WeightRows.of(weights, roles[name], memory, batch))
    numbers: dict[Role, int] = {}
    attentions = []
    for name, role in roles.items():
        numbers[role] = numbers.get(role, 0) + 1
        if totals[name].sums:
            attentions.append(totals[name].average(name, role, numbers[role]))
    return AttentionDiagnostics(len(encoded), tuple(attentions)) if attentions else None


def compute_attention_entropy(predictor: Predictor, pairs: Pairs, batch_size: int = 32) -> float | None:
    """Return the normalized entropy of the cross-attention weights, averaged over target tokens, heads and layers.

    The decoder reads the targets of the pairs (teacher forcing), so that models are compared on the same tokens.
    Weights that do not sum to 1 are normalized first. Rows without any weight, and sources with a single slot, are left
    out. None if the model has no cross-attention.
    """
    cross = find_attentions(predictor.model, "cross")
    if not cross:
        return None
    encoded = EncodedCorpus.of(pairs, predictor.reader, predictor.tokenizer, predictor.max_length)
    total, rows = 0.0, 0
    with predictor.inference():
        for batch, memory, recording in _decode(predictor, encoded, cross.__contains__, batch_size):
            for weights in recording.weights.values():
                entropies = WeightRows.of(weights, "cross", memory, batch).normalized_entropies
                total, rows = total + float(entropies.sum()), rows + len(entropies)
    return total / rows if rows else None


@dataclass(frozen=True, eq=False)
class WeightRows:
    """The weights of an attention in a batch, with a sum of 1 in each row that is counted and 0 in the others."""

    weights_BHTS: Tensor
    keys_B: Tensor
    """The number of keys of each pair."""
    queries_B: Tensor
    """The number of queries of each pair."""
    visible_BT: Tensor
    """The number of keys that are visible to each query."""
    counted_BHT: Tensor
    """Whether a row is valid and has weight."""
    role: Role = "cross"
    layout: Grid | None = None
    """How the keys are arranged; None if they are a sequence."""

    @classmethod
    def of(cls, weights: Tensor, role: Role, memory: Memory, batch: Batch) -> "WeightRows":
        """Return the recorded weights of an attention, with masks that depend on its role."""
        target_BT, slots_BS = batch.target.valid_BT, memory.allowed_BS
        queries_BT, keys_BS = {
            "cross": (target_BT, slots_BS),
            "encoder-self": (slots_BS, slots_BS),
            "decoder-self": (target_BT, target_BT),
        }[role]
        queries_BT, keys_BS = _fit(queries_BT, weights.shape[-2]), _fit(keys_BS, weights.shape[-1])
        keys_B = keys_BS.sum(-1)
        visible_BT = keys_B.unsqueeze(-1).expand_as(queries_BT)
        if role == "decoder-self":
            steps_T = torch.arange(1, queries_BT.shape[-1] + 1, device=keys_B.device)
            visible_BT = torch.minimum(visible_BT, steps_T)
        rows = cls.normalize(weights, keys_B, visible_BT, queries_BT)
        return replace(rows, role=role, layout=None if role == "decoder-self" else memory.layout)

    @classmethod
    def normalize(cls, weights: Tensor, keys_B: Tensor, visible_BT: Tensor, valid_BT: Tensor) -> "WeightRows":
        """Divide the weights (B, T, S) or (B, H, T, S) by the sums of their rows."""
        weights_BHTS = (weights.unsqueeze(1) if weights.ndim == 3 else weights).double()
        weights_BHTS = weights_BHTS.masked_fill(~valid_BT[:, None, :, None], 0.0)
        sums_BHT = weights_BHTS.sum(-1)
        normalized_BHTS = weights_BHTS / sums_BHT.clamp_min(torch.finfo(torch.float64).tiny).unsqueeze(-1)
        return cls(normalized_BHTS, keys_B, valid_BT.sum(-1), visible_BT, (sums_BHT > 0) & valid_BT.unsqueeze(1))

    @cached_property
    def varied_BHT(self) -> Tensor:
        """Whether a row is counted and has more than one visible key."""
        return self.counted_BHT & (self.visible_BT > 1).unsqueeze(1)

    @cached_property
    def entropy_BHT(self) -> Tensor:
        """The entropy in nats."""
        entropy_BHT: Tensor = torch.special.entr(self.weights_BHTS).sum(-1)
        return entropy_BHT

    @property
    def normalized_entropy_BHT(self) -> Tensor:
        log_visible_BT = self.visible_BT.clamp_min(2).double().log()
        normalized_BHT: Tensor = self.entropy_BHT / log_visible_BT.unsqueeze(1)
        return normalized_BHT

    @property
    def normalized_entropies(self) -> Tensor:
        """The normalized entropies of all rows that are counted and have more than one visible key, in one list."""
        return self.normalized_entropy_BHT[self.varied_BHT]

    @property
    def coverage_BH(self) -> Tensor:
        return self.weights_BHTS.sum(-2).clamp(max=1.0).sum(-1) / self.keys_B.clamp_min(1).unsqueeze(-1)

    @cached_property
    def expected_position_BHT(self) -> Tensor:
        """The expected position of the key, as a share of the length."""
        centers_S = torch.arange(self.weights_BHTS.shape[-1], device=self.keys_B.device) + 0.5
        return self.weights_BHTS @ centers_S.double() / self.keys_B.clamp_min(1)[:, None, None]

    @property
    def diagonal_distance_BHT(self) -> Tensor:
        centers_T = torch.arange(self.weights_BHTS.shape[-2], device=self.keys_B.device) + 0.5
        diagonal_BT = centers_T.double() / self.queries_B.clamp_min(1).unsqueeze(-1)
        return (self.expected_position_BHT - diagonal_BT.unsqueeze(1)).abs()

    @property
    def moves_BHT(self) -> tuple[Tensor, Tensor]:
        """Whether each step but the first does not move to the left, and whether it and the step before are counted."""
        tolerance_B = _TOLERANCE / self.keys_B.clamp_min(1)
        forward_BHT = self.expected_position_BHT.diff(dim=-1) >= -tolerance_B[:, None, None]
        return forward_BHT, self.counted_BHT[..., 1:] & self.counted_BHT[..., :-1]

    @property
    def similarity_BPT(self) -> tuple[Tensor, Tensor]:
        """1 − Jensen–Shannon divergence in bits of each pair of heads, and whether both rows count."""
        heads = self.weights_BHTS.shape[1]
        first_P, second_P = torch.triu_indices(heads, heads, offset=1, device=self.keys_B.device)
        mixture_BPTS = (self.weights_BHTS[:, first_P] + self.weights_BHTS[:, second_P]) / 2
        entropy_BPT = (self.entropy_BHT[:, first_P] + self.entropy_BHT[:, second_P]) / 2
        divergence_BPT = torch.special.entr(mixture_BPTS).sum(-1) - entropy_BPT
        return 1 - divergence_BPT / math.log(2), self.varied_BHT[:, first_P] & self.varied_BHT[:, second_P]

    @property
    def position_weights(self) -> tuple[Tensor, Tensor]:
        """The total weight of each position in rows with more than one visible key, counted from the start and from the
        end, both (H, S).
        """
        columns_BHS = (self.weights_BHTS * self.varied_BHT.unsqueeze(-1)).sum(-2)
        reversed_BS = self.keys_B.unsqueeze(-1) - 1 - torch.arange(columns_BHS.shape[-1], device=self.keys_B.device)
        index_BHS = reversed_BS.clamp_min(0).unsqueeze(1).expand_as(columns_BHS)
        from_end_BHS = columns_BHS.gather(-1, index_BHS) * (reversed_BS >= 0).unsqueeze(1)
        return columns_BHS.sum(0), from_end_BHS.sum(0)


@dataclass
class AttentionTotals:
    """Sums over the rows of an attention, and the numbers of rows, by head. They stay on the device until the end."""

    sums: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, Tensor] = field(default_factory=dict)

    def add(self, rows: WeightRows) -> None:
        pairs_BH = rows.counted_BHT.any(-1)
        self._add_averaged("entropy", rows.normalized_entropy_BHT, rows.varied_BHT)
        self._add_averaged("coverage", rows.coverage_BH.unsqueeze(-1), pairs_BH.unsqueeze(-1))
        if rows.layout is None:
            self._add_averaged("diagonal_distance", rows.diagonal_distance_BHT, rows.counted_BHT)
            self._add_averaged("monotonicity", *rows.moves_BHT)
        if rows.weights_BHTS.shape[1] > 1:
            self._add_averaged("redundancy", *rows.similarity_BPT)
        from_start_HS, from_end_HS = rows.position_weights
        self._add("from_start", from_start_HS)
        # The last visible key of decoder self-attention is the current token, which is not a fixed position.
        if rows.role != "decoder-self":
            self._add("from_end", from_end_HS)

    def average(self, name: str, role: Role, layer: int) -> AttentionStatistics:
        """Divide the sums by the counts."""
        heads = len(self.sums["entropy"])
        undefined_H = torch.full((heads,), math.nan)
        averages = {key: (self.sums[key] / self.counts[key]).cpu() for key in self.counts}
        columns = {key: averages.get(key, undefined_H).tolist() for key in _HEAD_STATISTICS}
        positions = self._find_top_positions()
        statistics = tuple(
            HeadStatistics(**{key: values[head] for key, values in columns.items()}, **positions[head])
            for head in range(heads)
        )
        redundancy = float(averages["redundancy"].nanmean()) if "redundancy" in averages else math.nan
        return AttentionStatistics(name, role, layer, redundancy, statistics)

    def _find_top_positions(self) -> list[dict[str, Any]]:
        """Return the position with the largest average weight for each head."""
        rows_H1 = self.counts["entropy"].unsqueeze(-1)
        from_start_HS = self.sums["from_start"] / rows_H1
        parts = [from_start_HS]
        if "from_end" in self.sums:
            parts.append(self.sums["from_end"] / rows_H1)
        weights_HS = torch.cat(parts, dim=-1)
        top_weight_H, top_H = weights_HS.max(-1)
        width = from_start_HS.shape[-1]
        position_H = torch.where(top_H < width, top_H, width - 1 - top_H)
        pairs = zip(position_H.tolist(), top_weight_H.tolist(), strict=True)
        return [{"top_position": position, "top_weight": weight} for position, weight in pairs]

    def _add_averaged(self, key: str, values_BHT: Tensor, counted_BHT: Tensor) -> None:
        self._add(key, (values_BHT * counted_BHT).sum((0, 2)))
        counts_H = counted_BHT.sum((0, 2))
        self.counts[key] = self.counts[key] + counts_H if key in self.counts else counts_H

    def _add(self, key: str, values: Tensor) -> None:
        """Add values to a sum. The positions of a batch are padded to those of the longest."""
        if key in self.sums:
            before, width = self.sums[key], max(self.sums[key].shape[-1], values.shape[-1])
            before, values = (nn.functional.pad(part, (0, width - part.shape[-1])) for part in (before, values))
            values = before + values
        self.sums[key] = values


def _decode(
    predictor: Predictor, encoded: EncodedCorpus, chosen: Callable[[str], bool], batch_size: int
) -> Iterator[tuple[Batch, Memory, Recording]]:
    """Decode the targets in batches, and yield the weights of the chosen attentions."""
    sizes = encoded.lengths_N2.max(1) ** 2
    for ids in batch_by_length(sizes, batch_size, _MAX_WEIGHTS):
        batch = encoded.batch(ids, predictor.device)
        with record(predictor.model, chosen) as recording:
            memory = predictor.model.encoder(batch.source)
            predictor.model.decoder(batch.decoder_inputs, memory)
        yield batch, memory, recording


def _fit(mask_BN: Tensor, width: int) -> Tensor:
    """Return the mask, or one that hides nothing if the attention has another number of positions."""
    return mask_BN if mask_BN.shape[-1] == width else mask_BN.new_ones(len(mask_BN), width)
