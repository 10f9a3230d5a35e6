"""Costs of a model as polynomials in the lengths of a pair.

A cost counts the multiply-adds of matrix products, convolutions and additive scores. Elementwise operations
(activations, normalization, softmax, masks) are not counted, as in torch.utils.flop_counter, which counts two
operations for each multiply-add.

S source positions, T target steps, K hypotheses of a beam.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from regard.formatting import format_count
from regard.ops.reference_mode import reference_mode

Exponents = tuple[int, int, int]
"""The powers of S, T and K in a term."""

SYMBOLS = ("S", "T", "K")

_SUPERSCRIPTS = {1: "", 2: "²", 3: "³"}


@dataclass(frozen=True)
class Cost:
    """A polynomial in S, T and K: the coefficient of each term. A coefficient that is not known is NaN.

    >>> str(512 * S * T + 3 * S)
    '3·S + 512·S·T'
    """

    terms: Mapping[Exponents, float]

    @classmethod
    def constant(cls, value: float) -> "Cost":
        return cls({(0, 0, 0): value}) if value else cls({})

    def __add__(self, other: "Cost | float") -> "Cost":
        terms = dict(self.terms)
        for exponents, coefficient in _to_cost(other).terms.items():
            terms[exponents] = terms.get(exponents, 0) + coefficient
        return Cost({exponents: coefficient for exponents, coefficient in terms.items() if coefficient})

    def __mul__(self, other: "Cost | float") -> "Cost":
        product = Cost({})
        for left, a in self.terms.items():
            for right, b in _to_cost(other).terms.items():
                exponents = (left[0] + right[0], left[1] + right[1], left[2] + right[2])
                product += Cost({exponents: a * b} if a * b else {})
        return product

    __radd__ = __add__
    __rmul__ = __mul__

    def __sub__(self, other: "Cost | float") -> "Cost":
        return self + -1 * _to_cost(other)

    def __call__(self, source: float, target: float, beam: float = 1) -> float:
        """Return the value at these lengths."""
        return sum(coefficient * source**s * target**t * beam**k for (s, t, k), coefficient in self.terms.items())

    def with_source(self, slots: float | None) -> "Cost":
        """Return the cost for a fixed number of source positions; None leaves it variable."""
        if slots is None:
            return self
        return sum_costs(Cost({(0, t, k): c * slots**s}) for (s, t, k), c in self.terms.items())

    def with_beam(self, beam: float) -> "Cost":
        """Return the cost for a beam of this size."""
        return sum_costs(Cost({(s, t, 0): c * beam**k}) for (s, t, k), c in self.terms.items())

    @property
    def is_known(self) -> bool:
        return not any(math.isnan(coefficient) for coefficient in self.terms.values())

    @property
    def without_constant(self) -> "Cost":
        return Cost({exponents: c for exponents, c in self.terms.items() if any(exponents)})

    @property
    def attention_terms(self) -> "Cost":
        """The terms of degree 2 in the lengths: a pair of positions is compared for each of them."""
        return Cost({exponents: c for exponents, c in self.terms.items() if exponents[0] + exponents[1] > 1})

    def __str__(self) -> str:
        return self.format(format_count)

    def format(self, show: Callable[[float], str]) -> str:
        """Return the formula, with coefficients in the given format."""
        if not self.is_known:
            return "unknown"
        ordered = sorted(self.terms.items(), key=lambda term: (sum(term[0][:2]), -term[0][0], term[0][1:]))
        return " + ".join(_format_term(*term, show) for term in ordered) or show(0)

    def to_json(self) -> dict[str, float]:
        """Return the exact coefficient of each term, by its symbols: `{"S·T": 512}`. That of a constant is "1"."""
        return {_format_symbols(exponents) or "1": _exact(c) for exponents, c in self.terms.items()}


S, T, K = Cost({(1, 0, 0): 1}), Cost({(0, 1, 0): 1}), Cost({(0, 0, 1): 1})
NO_COST = Cost({})
UNKNOWN_COST = Cost.constant(math.nan)


def _to_cost(value: Cost | float) -> Cost:
    return value if isinstance(value, Cost) else Cost.constant(value)


def sum_costs(costs: Iterable[Cost]) -> Cost:
    return sum(costs, NO_COST)


def _format_symbols(exponents: Exponents) -> str:
    powers = zip(SYMBOLS, exponents, strict=True)
    return "·".join(f"{symbol}{_SUPERSCRIPTS.get(power, f'^{power}')}" for symbol, power in powers if power)


def _format_term(exponents: Exponents, coefficient: float, show: Callable[[float], str]) -> str:
    symbols, number = _format_symbols(exponents), show(coefficient)
    return symbols if symbols and number == "1" else "·".join(filter(None, (number, symbols)))


def _exact(value: float) -> float:
    """Return an integer as an int, so that it is written without a decimal point."""
    return int(value) if math.isfinite(value) and value == int(value) else value


class MultiplyAdds(NamedTuple):
    """The multiply-adds of an attention, or of a part of it: for each query, each slot, and each pair of the two."""

    per_query: float = 0
    per_slot: float = 0
    per_pair: float = 0

    def combine(self, other: "MultiplyAdds") -> "MultiplyAdds":
        return MultiplyAdds(*(mine + others for mine, others in zip(self, other, strict=True)))

    def cost(self, queries: Cost, slots: Cost, pairs: Cost) -> Cost:
        return self.per_query * queries + self.per_slot * slots + self.per_pair * pairs


@dataclass(frozen=True)
class PartCost:
    """The multiply-adds of a part of a model for one pair, and the parameters of the part."""

    name: str
    forward: Cost
    """With a given target, all steps at once: the forward pass of training."""
    search: Cost
    """With beam search: each step of each hypothesis."""
    parameters: tuple[nn.Parameter, ...] = ()
    layer: int | None = None
    """The number of the layer, from 1, if the part belongs to one of several layers."""

    @classmethod
    def per_source(cls, name: str, cost: Cost, *modules: nn.Module, layer: int | None = None) -> "PartCost":
        """Return the cost of a part that is computed once for each source."""
        return cls(name, cost, cost, parameters_of(*modules), layer)

    @classmethod
    def per_step(cls, name: str, multiply_adds: float, *modules: nn.Module, layer: int | None = None) -> "PartCost":
        """Return the cost of a part that is computed at each step of each hypothesis."""
        return cls(name, multiply_adds * T, multiply_adds * K * T, parameters_of(*modules), layer)

    @classmethod
    def cross_attention(cls, multiply_adds: MultiplyAdds, *modules: nn.Module, layer: int | None = None) -> "PartCost":
        """Return the cost of an attention to the source. All hypotheses share the keys."""
        forward, search = multiply_adds.cost(T, S, S * T), multiply_adds.cost(K * T, S, K * S * T)
        return cls("cross-attention", forward, search, parameters_of(*modules), layer)


def parameters_of(*modules: nn.Module) -> tuple[nn.Parameter, ...]:
    return tuple(parameter for module in modules for parameter in module.parameters())


def count_multiply_adds(function: Callable[[], object]) -> int:
    """Run a function with reference implementations, and count its multiply-adds with the formulas of
    torch.utils.flop_counter. The tensors may be on the device `meta`, on which nothing is computed.
    """
    with reference_mode(), torch.no_grad(), _Counter() as counter:
        function()
    operations: int = counter.operations
    return operations // 2


def count_attention(
    attend: Callable[[Tensor, Tensor], object], query_size: int, key_size: int, device: torch.device
) -> MultiplyAdds:
    """Count the multiply-adds of an attention, a function of queries and keys, for one and two of each. This assumes
    that they are linear in both.
    """

    def count(queries: int, slots: int) -> int:
        query_BTD = torch.zeros(1, queries, query_size, device=device)
        keys_BSD = torch.zeros(1, slots, key_size, device=device)
        return count_multiply_adds(lambda: attend(query_BTD, keys_BSD))

    one, more_queries, more_slots, more = count(1, 1), count(2, 1), count(1, 2), count(2, 2)
    per_pair = more - more_queries - more_slots + one
    return MultiplyAdds(more_queries - one - per_pair, more_slots - one - per_pair, per_pair)


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations. FlopCounterMode would also track modules by name, and confuse a module of the class `Global`
    with its own entry of this name.
    """

    def __init__(self) -> None:
        from torch.utils.flop_counter import flop_registry  # imports Triton if it is installed, which takes a second

        super().__init__()  # type: ignore[no-untyped-call]
        # Products of a matrix and a vector, as in an additive score, are counted too.
        self.formulas = flop_registry | {torch.ops.aten.mv: _count_mv, torch.ops.aten.dot: _count_mv}
        self.operations = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        output = func(*args, **(kwargs or {}))
        formula = self.formulas.get(func.overloadpacket)
        if formula is not None:
            self.operations += formula(*args, **(kwargs or {}), out_val=output)
        return output


def _count_mv(matrix: Tensor, vector: Tensor, *, out_val: object) -> int:
    del vector, out_val
    return 2 * matrix.numel()
