"""The progress of a run: its state besides the tensors, saved as state.json in each checkpoint, and its schedule.

The schedule maps steps to positions. Settings are written for a schedule of `training.steps` positions: warm-up, decay,
validations, saves. Usually a step advances the schedule by one position. A deadline (`training.minutes`) adapts the
number of steps to the speed measured while training; the positions, and the settings that refer to them, do not change.
The segments are saved with every checkpoint, so the learning rate and the steps of validation remain pure functions of
the step.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from regard.evaluation.settings import MetricValues
from regard.quantities import Count, OptionalCount, Position, Threads
from regard.runs.settings import TrainingSettings


@dataclass(frozen=True)
class Segment:
    """A linear part of a schedule, from `position` at `step` to the end of the schedule at the step `end`."""

    step: OptionalCount
    position: Position
    end: Count
    thinning: Count = 1
    """Only every n-th validation is run."""
    threads: Threads | None = None
    """The number of CPU threads, if it is lower than in the settings."""


@dataclass(frozen=True)
class Schedule:
    """A piecewise linear map from steps to positions of a schedule of `length` positions."""

    length: Count
    segments: tuple[Segment, ...]

    @classmethod
    def of(cls, length: int, end: int | None = None) -> Self:
        """Build a schedule of one segment with `end` steps (by default one for each position)."""
        return cls(length, (Segment(0, 0.0, end or length),))

    @property
    def current(self) -> Segment:
        return self.segments[-1]

    @property
    def end(self) -> int:
        """The last step, unless the schedule is revised."""
        return self.current.end

    def position(self, step: int) -> float:
        """Return the position in the schedule after `step` steps."""
        segment = self._segment(step)
        if step >= segment.end:
            return float(self.length)
        rate = (self.length - segment.position) / (segment.end - segment.step)
        return segment.position + (step - segment.step) * rate

    def reaches(self, step: int, every: int) -> bool:
        """Whether this step is the first at or beyond a multiple of `every` positions, or the last step."""
        return step == self.end or int(self.position(step) // every) > int(self.position(step - 1) // every)

    def validates(self, step: int, every: int) -> bool:
        return self.reaches(step, every * self._segment(step).thinning)

    def validations_after(self, step: int, every: int) -> int:
        """Return the number of validations after a step, including the last one."""
        return -(-self.length // every) - int(self.position(step) // every)

    def revised(self, step: int, **changes: Any) -> Self:
        """Return the same schedule up to `step`, followed by a segment with these changes. By default, the segment
        continues from the position after `step`.
        """
        changes.setdefault("position", self.position(step))
        segment = replace(self.current, step=step, **changes)
        kept = self.segments if step > self.current.step else self.segments[:-1]
        return replace(self, segments=(*kept, segment))

    def _segment(self, step: int) -> Segment:
        """Return the segment of a step: a revision after step n applies from step n + 1."""
        return next((segment for segment in reversed(self.segments) if segment.step < step), self.segments[0])

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Self:
        return cls(state["length"], tuple(Segment(**segment) for segment in state["segments"]))


@dataclass
class RunProgress:
    """The state of a run besides its tensors, saved as state.json in each checkpoint. A saved state is
    damaged if its values do not have these types, or are out of their ranges.
    """

    data: dict[str, str]
    """A hash of each input of training: data files, and the weights of teachers and of the initial model."""
    schedule: Schedule
    """Maps steps to positions of the schedule, with all revisions so far."""
    step: OptionalCount = 0
    best_step: OptionalCount | None = None
    best: MetricValues | None = None
    best_name: str | None = None
    """The folder of the best checkpoint, unless it is `step-N`."""
    validations_since_best: OptionalCount = 0
    plateau_validations: OptionalCount = 0
    """Validations since the best one or since the last reduction of the learning rate."""
    lr_reductions: OptionalCount = 0
    """The number of reductions of the learning rate at a plateau."""
    micro_batches: Count = 1
    """The number of micro-batches that a batch is split into; doubled when memory runs out."""
    eager: bool = False
    """Whether memory ran out with CUDA graphs, so that they are not used any more."""
    average_tried: bool = False
    """Whether the average of the last checkpoints has been validated."""
    average_lengths: dict[str, float] | None = None
    """The average lengths of `source` and `target` in the training data."""
    ranks: Count = 1
    """The number of processes that trained together."""

    def is_finished(self, settings: TrainingSettings) -> bool:
        """Whether all steps have been taken, or validation has not improved for `patience` validations."""
        extended = settings.steps > self.schedule.length
        finished = self.step >= self.schedule.end and not extended
        return finished or self.validations_since_best >= settings.patience

    def to_json(self) -> dict[str, Any]:
        best = {"step": self.best_step, "name": self.best_name, **self.best.to_json()} if self.best else {}
        return {**asdict(self), "best": best}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> "RunProgress":
        best = MetricValues.from_json(state["best"]) if state["best"] else None
        return cls(**{**state, "best": best, "schedule": Schedule.from_json(state["schedule"])})
