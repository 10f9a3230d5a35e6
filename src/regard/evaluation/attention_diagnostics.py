"""Attention diagnostics: what the attention weights of a model look like, head by head, at a step of training.

This module is used to read the event log, so it does not import torch. `attention_statistics` computes the values.
"""

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from regard.formatting import quantity

if TYPE_CHECKING:
    from regard.attention.attention import Role

STATISTICS = ("entropy", "coverage", "monotonicity", "diagonal_distance", "redundancy", "dead_heads")
"""The names of the values that are averaged over the heads of a role (dead heads are counted)."""

DEAD_WEIGHT = 0.9
"""A head is dead if it puts this share of its weight, on average, on one position of every source."""

DEAD_ENTROPY = 0.99
"""A head is dead if its normalized entropy is, on average, at least this: its weights are nearly uniform."""

_DIGITS = 4
_MAX_NAMED = 4
"""The number of dead heads that a message names."""


@dataclass(frozen=True)
class HeadStatistics:
    """The statistics of a head, averaged over target tokens or pairs. NaN if they are not defined.

    Attributes:
        entropy: Normalized entropy: 0 if one key has all the weight, 1 if all visible keys have the same.
        coverage: Share of the keys that were attended to: the average over keys of min(1, total weight).
        monotonicity: Share of steps whose expected position is not left of that of the previous step.
        diagonal_distance: Distance of the expected position from the diagonal, as a share of the length.
        top_position: The position with the largest average weight, counted from 0, or from −1 at the end.
        top_weight: The average weight of this position.
    """

    entropy: float
    coverage: float
    monotonicity: float
    diagonal_distance: float
    top_position: int
    top_weight: float

    @property
    def dead(self) -> "Literal['one position', 'uniform'] | None":
        """Why the head does not use its input, or None if it does."""
        if self.top_weight >= DEAD_WEIGHT:
            return "one position"
        return "uniform" if self.entropy >= DEAD_ENTROPY else None

    @property
    def position_name(self) -> str:
        """The position with the largest average weight, in words."""
        names = {0: "first", -1: "last"}
        from_end = f"{-self.top_position} from the end"
        return names.get(self.top_position, from_end if self.top_position < 0 else f"number {self.top_position + 1}")


@dataclass(frozen=True)
class AttentionStatistics:
    """The statistics of an attention of the model. Layers are counted from 1 within a role.

    `redundancy` is the average similarity of two heads, 1 − Jensen–Shannon divergence in bits; NaN for a single head.
    """

    name: str
    role: "Role"
    layer: int
    redundancy: float
    heads: tuple[HeadStatistics, ...]


class DeadHead(NamedTuple):
    """A head that does not use its input. Layers and heads are counted from 1."""

    role: "Role"
    layer: int
    head: int
    statistics: HeadStatistics


@dataclass(frozen=True)
class AttentionDiagnostics:
    """The statistics of every attention of a model on some pairs, with forced decoding of the targets."""

    pairs: int
    attentions: tuple[AttentionStatistics, ...]

    @property
    def roles(self) -> "list[Role]":
        return list(dict.fromkeys(attention.role for attention in self.attentions))

    @property
    def dead_heads(self) -> list[DeadHead]:
        return [
            DeadHead(attention.role, attention.layer, number, head)
            for attention in self.attentions
            for number, head in enumerate(attention.heads, start=1)
            if head.dead
        ]

    def averages(self, role: "Role") -> dict[str, float]:
        """Return each of STATISTICS for a role: averages over heads (or layers, for redundancy), and the number of dead
        heads. Values that are not defined are left out.
        """
        attentions = [attention for attention in self.attentions if attention.role == role]
        heads = [head for attention in attentions for head in attention.heads]
        values: dict[str, Iterable[float]] = {
            "entropy": (head.entropy for head in heads),
            "coverage": (head.coverage for head in heads),
            "monotonicity": (head.monotonicity for head in heads),
            "diagonal_distance": (head.diagonal_distance for head in heads),
            "redundancy": (attention.redundancy for attention in attentions),
        }
        finite = {name: [value for value in entries if math.isfinite(value)] for name, entries in values.items()}
        averages = {name: round(statistics.fmean(entries), _DIGITS) for name, entries in finite.items() if entries}
        return {**averages, "dead_heads": sum(head.dead is not None for head in heads)}

    def describe_dead_heads(self) -> str:
        """Describe the heads that do not use their input, in one or two sentences; empty if there are none."""
        total = sum(len(attention.heads) for attention in self.attentions)
        dead = self.dead_heads
        at_one = [head for head in dead if head.statistics.dead == "one position"]
        uniform = [head for head in dead if head.statistics.dead == "uniform"]
        sentences = []
        if at_one:
            names = [f"{_name(head)} ({head.statistics.position_name})" for head in at_one]
            verb = "attends" if len(at_one) == 1 else "attend"
            sentences.append(f"{len(at_one)} of {quantity(total, 'head')} {verb} to one position only: {_join(names)}.")
        if uniform:
            verb = "has" if len(uniform) == 1 else "have"
            names = [_name(head) for head in uniform]
            sentences.append(f"{len(uniform)} of {quantity(total, 'head')} {verb} uniform weights: {_join(names)}.")
        return " ".join(sentences)

    def to_json(self) -> dict[str, Any]:
        """Return the averages of each role under `ROLE/STATISTIC`, and the statistics of every head."""
        averages = {f"{role}/{name}": value for role in self.roles for name, value in self.averages(role).items()}
        attentions = []
        for attention in self.attentions:
            heads = [{**_round(asdict(head)), "dead": head.dead} for head in attention.heads]
            attentions.append({**_round(asdict(attention)), "heads": heads})
        return {"pairs": self.pairs, **averages, "attentions": attentions}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Read what `to_json` returned. JSON has null in place of NaN."""
        attentions = []
        for entry in document["attentions"]:
            heads: list[dict[str, Any]] = [
                {name: math.nan if value is None else value for name, value in head.items() if name != "dead"}
                for head in entry["heads"]
            ]
            redundancy = math.nan if entry["redundancy"] is None else entry["redundancy"]
            attentions.append(
                AttentionStatistics(
                    entry["name"],
                    entry["role"],
                    entry["layer"],
                    redundancy,
                    tuple(HeadStatistics(**head) for head in heads),
                )
            )
        return cls(document["pairs"], tuple(attentions))


def _round(values: Mapping[str, Any]) -> dict[str, Any]:
    """Round the numbers, and replace NaN with None, as in JSON."""
    return {
        name: (round(value, _DIGITS) if math.isfinite(value) else None) if isinstance(value, float) else value
        for name, value in values.items()
    }


def _name(head: DeadHead) -> str:
    return f"{head.role} layer {head.layer} head {head.head}"


def _join(names: list[str]) -> str:
    more = [f"and {len(names) - _MAX_NAMED} more"] if len(names) > _MAX_NAMED else []
    return ", ".join([*names[:_MAX_NAMED], *more])
