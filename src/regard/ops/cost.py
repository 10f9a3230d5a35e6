"""Costs of a model as polynomials in the lengths of a pair, and the parts whose costs are counted.

S source positions, T target steps, K hypotheses of a beam.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import nn

from regard.formatting import format_count

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
        """The terms of degree 2 in the lengths, which come from comparing pairs of positions."""
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


class CostPart(NamedTuple):
    """A part of an encoder or a decoder, of which the multiply-adds and parameters are counted."""

    name: str
    modules: tuple[nn.Module, ...]
    """Its modules. A module within them that another part lists belongs to that part."""
    layer: int | None = None
    """The number of the layer, from 1, if the part belongs to one of several layers."""
