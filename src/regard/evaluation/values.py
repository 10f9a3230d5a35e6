"""Values of metrics: how they are compared, described and saved."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from regard.evaluation.settings import Metric, parse_metric
from regard.formatting import quantity


@dataclass(frozen=True)
class MetricValues:
    """The values of metrics on a number of pairs, by label. Those of a validation always include the loss."""

    pairs: int
    values: dict[str, float]
    signatures: dict[str, str]

    @property
    def loss(self) -> float:
        return self.values["loss"]

    def __getitem__(self, name: str) -> float:
        """Return the value with this label, or of this kind if only one has it."""
        if name in self.values:
            return self.values[name]
        matches = [value for label, value in self.values.items() if label.partition(":")[0] == name]
        if len(matches) != 1:
            raise KeyError(f"'{name}' matches {len(matches)} of the computed metrics: {', '.join(self.values)}.")
        return matches[0]

    def better_than(self, other: "MetricValues | None", metric: Metric) -> bool:
        """Whether these values are better by the metric; the loss breaks ties."""
        return other is None or self._rank(metric) > other._rank(metric)

    def _rank(self, metric: Metric) -> tuple[float, float]:
        value = self.values[metric.label]
        signed = (value if metric.higher_is_better else -value, -self.loss)
        first, second = (-math.inf if math.isnan(part) else part for part in signed)
        return first, second

    def describe(self, metric: Metric) -> str:
        """Describe the values in one line, with this metric first."""
        others = [label for label in self.values if label != metric.label]
        values = [f"{label} {parse_metric(label).format(self.values[label])}" for label in (metric.label, *others)]
        return f"{', '.join(values)} on {quantity(self.pairs, 'pair')}"

    def to_json(self) -> dict[str, Any]:
        return {"pairs": self.pairs, **self.values, "signatures": self.signatures}

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Self:
        """Read what `to_json` returned. JSON has null in place of NaN."""
        others = {"step", "name", "pairs", "signatures"}
        values = {label: math.nan if value is None else value for label, value in state.items() if label not in others}
        return cls(state["pairs"], values, dict(state["signatures"]))
