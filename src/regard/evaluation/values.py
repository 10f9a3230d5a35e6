"""Scores: what a model reached, as it is told, compared and kept."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from regard.evaluation.settings import Metric, parse_metric
from regard.formatting import quantity


@dataclass(frozen=True)
class MetricValues:
    """What a model reaches on some pairs: the value of each measure by its label, and of those that answered
    in validation always the loss.
    """

    pairs: int
    values: dict[str, float]
    signatures: dict[str, str]

    @property
    def loss(self) -> float:
        return self.values["loss"]

    def __getitem__(self, name: str) -> float:
        """By its label, or by its kind where there is one of the kind."""
        if name in self.values:
            return self.values[name]
        alike = [value for label, value in self.values.items() if label.partition(":")[0] == name]
        if len(alike) != 1:
            raise KeyError(f"'{name}' names {len(alike)} of what was measured: {', '.join(self.values)}.")
        return alike[0]

    def better_than(self, other: "MetricValues | None", metric: Metric) -> bool:
        """Whether this is the better model; what is equal by the metric is decided by the loss."""
        return other is None or self._rank(metric) > other._rank(metric)

    def _rank(self, metric: Metric) -> tuple[float, float]:
        value = self.values[metric.label]
        signed = (value if metric.higher_is_better else -value, -self.loss)
        first, second = (-math.inf if math.isnan(part) else part for part in signed)
        return first, second

    def told(self, metric: Metric) -> str:
        """In a line for people, that by which models are chosen first."""
        rest = [label for label in self.values if label != metric.label]
        values = [f"{label} {parse_metric(label).told(self.values[label])}" for label in (metric.label, *rest)]
        return f"{', '.join(values)} on {quantity(self.pairs, 'pair')}"

    def to_json(self) -> dict[str, Any]:
        return {"pairs": self.pairs, **self.values, "signatures": self.signatures}

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Self:
        """Also reads an earlier format, with only accuracy and loss. JSON has null in place of NaN."""
        other = {"step", "name", "pairs", "signatures"}
        values = {name: math.nan if value is None else value for name, value in state.items() if name not in other}
        return cls(state["pairs"], values, dict(state.get("signatures", {})))
