"""The cost of a model: parameters, multiply-adds, attention weights and memory, as formulas in the lengths of a pair.

S source positions, T target steps, K hypotheses of a beam.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from regard.attention.attention import ROLES, Role
from regard.attention.record import find_attentions
from regard.inspection.explain.cost_measurement import (
    PartCost,
    ShapeCache,
    count_decoder,
    count_encoder,
    measure_activations,
    measure_cache,
    measure_keys,
    measure_state,
)
from regard.models.seq2seq import Seq2Seq
from regard.ops.cost import Cost, K, S, T, sum_costs

BYTES_PER_PARAMETER = 4
"""The size of a float32."""

ADAM_TENSORS = 3
"""The tensors that training with Adam keeps for each parameter: its gradient and two moments."""


class Lengths(NamedTuple):
    """The lengths of a pair, in positions as the model reads them, and the beam size."""

    source: int
    target: int
    beam: int = 1


@dataclass(frozen=True)
class Part:
    """A part of a model, or several identical layers, with their total cost and their number of parameters."""

    side: str
    """encoder or decoder."""
    name: str
    layers: tuple[int, ...]
    """The numbers of the layers, from 1; empty if the part does not belong to one of several layers."""
    parameters: int
    tied: bool
    """Whether it shares parameters with a part before it, which are counted there."""
    forward: Cost
    search: Cost

    @property
    def label(self) -> str:
        if not self.layers:
            return self.name
        if len(self.layers) == 1:
            return f"layer {self.layers[0]}: {self.name}"
        return f"layers {self.layers[0]}–{self.layers[-1]} (× {len(self.layers)}): {self.name}"


@dataclass(frozen=True)
class RoleWeights:
    """The attention weights of all attentions with one role, for one pair."""

    role: Role
    attentions: int
    """The number of attentions, one for each layer."""
    heads: int
    """The number of heads of all attentions together."""
    computed: Cost
    """In a forward pass. Masked weights are computed too."""
    visible: Cost
    """The largest number of weights that are not masked."""

    def count_visible(self, lengths: Lengths) -> float:
        """Return the largest number of visible weights. A window can be wider than a short source."""
        return min(self.visible(*lengths), self.computed(*lengths))


@dataclass(frozen=True)
class MemoryCost:
    """Memory in bytes, in float32."""

    parameters: int
    training: int
    """Parameters; for those that are trained, also gradients and the state of Adam."""
    activations: Cost
    """What autograd keeps for the backward pass, for each pair of a training batch."""
    keys: Cost
    """What decoding keeps for each source."""
    state: Cost
    """What decoding keeps for each hypothesis, with the KV cache."""

    @property
    def decoding(self) -> Cost:
        return self.keys + K * self.state


@dataclass(frozen=True)
class ModelCost:
    """The cost of a model for one pair."""

    parts: tuple[Part, ...]
    weights: tuple[RoleWeights, ...]
    memory: MemoryCost
    fixed_slots: int | None
    """The number of source positions, if it does not depend on the source."""

    @property
    def parameters(self) -> int:
        return sum(part.parameters for part in self.parts)

    @property
    def forward(self) -> Cost:
        """The multiply-adds of a forward pass with a given target."""
        return sum_costs(part.forward for part in self.parts)

    @property
    def search(self) -> Cost:
        """The multiply-adds of decoding with a beam of K hypotheses."""
        return sum_costs(part.search for part in self.parts)

    @property
    def crossover(self) -> int | None:
        """The smallest length S = T at which the terms of degree 2 exceed all others; None if there are none."""
        return find_crossover(self.forward)

    @property
    def growth(self) -> str:
        """How the cost grows with the lengths: `O(S + T)`, `O(S·T)`."""
        return describe_growth(self.forward)


def compute_cost(model: Seq2Seq) -> ModelCost:
    """Compute the cost of a model. Its weights may be on the device `meta`.

    The encoder and the decoder run at a few lengths. Each time, the multiply-adds of each part are counted, and a
    polynomial in the lengths is fitted to the counts; the same for the bytes that a model keeps. Parts of identical
    layers become one row of the table.
    """
    slots = model.encoder.fixed_slots
    with ShapeCache():
        return ModelCost(compute_parts(model), _count_weights(model, slots), _measure_memory(model, slots), slots)


def compute_parts(model: Seq2Seq) -> tuple[Part, ...]:
    """Compute the multiply-adds and parameters of the parts of a model."""
    encoder = model.encoder
    sides = {
        "encoder": count_encoder(encoder),
        "decoder": count_decoder(model.decoder, encoder.size, encoder.fixed_slots),
    }
    counted: set[int] = set()
    parts: list[Part] = []
    for side, costs in sides.items():
        parts += merge_layers(_count_parameters(side, cost, counted) for cost in costs)
    return tuple(parts)


def _count_parameters(side: str, cost: PartCost, counted: set[int]) -> Part:
    """Count the parameters of a part that are not counted yet, so that a tied parameter is counted once."""
    own = {id(parameter): parameter.numel() for parameter in cost.parameters}
    new = {key: number for key, number in own.items() if key not in counted}
    counted.update(new)
    name, _, layer = cost.part
    layers = () if layer is None else (layer,)
    return Part(side, name, layers, sum(new.values()), len(new) < len(own), cost.forward, cost.search)


def merge_layers(parts: Iterable[Part]) -> list[Part]:
    """Merge consecutive layers whose parts are identical."""
    blocks = [list(block) for _, block in groupby(parts, key=lambda part: part.layers)]
    merged: list[list[Part]] = []
    for _, same in groupby(blocks, key=_signature):
        layers = list(same)
        if not layers[0][0].layers:  # not a layer: equal neighbors are different parts
            merged += layers
            continue
        merged.append([_merge(list(column)) for column in zip(*layers, strict=True)])
    return [part for block in merged for part in block]


def _signature(block: Sequence[Part]) -> list[tuple[object, ...]]:
    return [(bool(p.layers), p.name, p.parameters, p.tied, p.forward, p.search) for p in block]


def _merge(parts: Sequence[Part]) -> Part:
    first = parts[0]
    return Part(
        first.side,
        first.name,
        tuple(layer for part in parts for layer in part.layers),
        sum(part.parameters for part in parts),
        first.tied,
        sum_costs(part.forward for part in parts),
        sum_costs(part.search for part in parts),
    )


def _count_weights(model: Seq2Seq, slots: int | None) -> tuple[RoleWeights, ...]:
    lengths: dict[Role, tuple[Cost, Cost]] = {"encoder-self": (S, S), "decoder-self": (T, T), "cross": (T, S)}
    found = []
    for role in ROLES:
        attentions = find_attentions(model, role).values()
        if not attentions:
            continue
        queries, keys = lengths[role]
        heads = sum(attention.heads for attention in attentions)
        visible = sum_costs(a.heads * a.scope.visible_weights(queries, keys) for a in attentions)
        computed = heads * queries * keys
        weights = RoleWeights(role, len(attentions), heads, computed.with_source(slots), visible.with_source(slots))
        found.append(weights)
    return tuple(found)


def _measure_memory(model: Seq2Seq, slots: int | None) -> MemoryCost:
    decoder, size = model.decoder, model.encoder.size
    parameters = BYTES_PER_PARAMETER * sum(parameter.numel() for parameter in model.parameters())
    trained = BYTES_PER_PARAMETER * sum(p.numel() for p in model.parameters() if p.requires_grad)
    training = parameters + ADAM_TENSORS * trained
    keys, state = measure_keys(decoder, size), measure_state(decoder, size) + measure_cache(decoder)
    activations = measure_activations(model)
    return MemoryCost(parameters, training, activations, keys.with_source(slots), state.with_source(slots))


def find_crossover(cost: Cost) -> int | None:
    """Return the smallest length S = T at which the terms of degree 2 exceed all others; None if there are none."""
    if not cost.is_known or not cost.attention_terms.terms:
        return None
    quadratic = cost.attention_terms(1, 1)
    rest = cost - cost.attention_terms
    constant = rest(0, 0)
    linear = rest(1, 1) - constant
    root = (linear + math.sqrt(linear**2 + 4 * quadratic * constant)) / (2 * quadratic)
    return math.floor(root) + 1


def describe_growth(cost: Cost) -> str:
    """Return how a cost grows with the lengths: the terms that no other term dominates."""
    if not cost.is_known:
        return "unknown"
    lengths = {exponents[:2] for exponents in cost.terms}
    leading = [a for a in lengths if not any(a != b and a[0] <= b[0] and a[1] <= b[1] for b in lengths)]
    terms = Cost({(s, t, 0): 1.0 for s, t in leading})
    return f"O({terms.format(lambda _: '1') if terms.terms else '1'})"


def to_json(cost: ModelCost, lengths: Lengths) -> dict[str, Any]:
    """Return the formulas, as coefficients of their terms, and their values at some lengths."""

    def both(formula: Cost) -> dict[str, Any]:
        return {"formula": formula.to_json(), "value": formula(*lengths)}

    memory = cost.memory
    return {
        "lengths": {**lengths._asdict(), "source": cost.fixed_slots or lengths.source},
        "parts": [
            {
                "side": part.side,
                "name": part.name,
                "layers": list(part.layers),
                "parameters": part.parameters,
                "tied": part.tied,
                "forward": both(part.forward),
                "search": both(part.search),
            }
            for part in cost.parts
        ],
        "multiply_adds": {"forward": both(cost.forward), "search": both(cost.search)},
        "growth": cost.growth,
        "crossover": cost.crossover,
        "attention_weights": [
            {
                "role": weights.role,
                "layers": weights.attentions,
                "heads": weights.heads,
                "computed": both(weights.computed),
                "visible": {**both(weights.visible), "value": weights.count_visible(lengths)},
            }
            for weights in cost.weights
        ],
        "memory_bytes": {
            "parameters": memory.parameters,
            "training": memory.training,
            "activations": both(memory.activations),
            "keys": both(memory.keys),
            "state": both(memory.state),
            "decoding": both(memory.decoding),
        },
    }
