"""Metrics as settings: their names and options; and how their values are compared, formatted and saved. No torch here.

A metric is chosen by its `kind`. A bare name is short for `{kind: name}`; options can follow the name, as on the
command line: `bleu:tokenize=none,lowercase=true`.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, get_args

import yaml

from regard.config import Settings, resolve
from regard.formatting import quantity
from regard.registry import Choice, Registry, expand_label

BreakdownName = Literal["length", "frequency", "unseen"]
BREAKDOWNS: tuple[BreakdownName, ...] = get_args(BreakdownName)
"""The ways to group sentences in a breakdown; see `breakdown.py`."""


class Metric(Choice):
    """Base class of the metrics.

    Values are in percent, except for `loss` (nats), `perplexity`, `accuracy` (0 to 1) and `cider` (0 to 10).
    """

    registry: ClassVar[Registry] = Registry(
        "metric",
        "regard.evaluation.metrics",
        provided=frozenset({"outputs"}),
        facts=("higher_is_better", "needs_predictions", "format_spec", "unit"),
    )

    higher_is_better: ClassVar[bool] = False
    needs_predictions: ClassVar[bool] = True
    """Whether it evaluates predictions; otherwise it evaluates only the probability of the references."""
    format_spec: ClassVar[str] = ".2f"
    unit: ClassVar[str] = ""

    @classmethod
    def expand(cls, value: Any) -> Any:
        """Expand a label, `bleu:tokenize=none,lowercase=true`, into a mapping."""
        return expand_label(value)

    @property
    def label(self) -> str:
        """The kind, followed by the options that differ from their defaults."""
        options = self.model_dump(mode="json", exclude_defaults=True)
        return self.kind + "".join(
            f"{',' if index else ':'}{name}={yaml.safe_dump(value).splitlines()[0]}"
            for index, (name, value) in enumerate(options.items())
        )

    def format(self, value: float) -> str:
        return f"{value:{self.format_spec}}{self.unit}"


def metric_names() -> list[str]:
    """Return the names of the built-in metrics, and of those that are registered so far."""
    return Metric.registry.names


class _Choice(Settings):
    metric: Metric


def parse_metric(choice: Any) -> Metric:
    """Parse a metric: a label such as `bleu:tokenize=none`, or a mapping with its `kind`."""
    return resolve(_Choice, {"metric": choice}, {}).metric


def parse_metrics(choices: Iterable[Any]) -> list[Metric]:
    """Parse several metrics, and remove duplicates."""
    return list(dict.fromkeys(map(parse_metric, choices)))


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
