"""The schedule of a run: it maps steps to positions, and a deadline rescales it.

Settings are written for a schedule of `training.steps` positions: warm-up, decay, validations, saves. Usually a step
advances the schedule by one position. A deadline (`training.minutes`) changes how many steps the schedule takes, by
the speed measured while training; the positions, and the settings that refer to them, do not change. The segments are
saved with every checkpoint, so the learning rate and the steps of validation remain pure functions of the step.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from regard.data.batching import Encoded
from regard.data.order import ByPairs, ByTokens, Order
from regard.errors import DataError, quantity
from regard.training.settings import RunSettings, TrainingSettings

log = logging.getLogger(__name__)

VALIDATION_SHARE = 0.2
"""Validations are thinned out if they would take more than this share of the remaining time."""

_FIRST_CHECK, _CHECKS = 0.02, 0.03
"""Shares of the whole time: before the speed is measured first, and between later measurements."""

_TOLERANCE = 0.01
"""The schedule is left alone if it would end this close to the deadline, as a share of the whole time."""

_RESERVE = 0.01, 3.0
"""Time reserved for the end of the process: a share of the whole time, and the most seconds."""

_FEWEST_STEPS = 3
"""Steps that a measurement needs."""

_SLOWER = 1.6
"""One thread is tried if steps on several become slower by this factor."""


@dataclass(frozen=True)
class Segment:
    """From `step` on, at `position`, the schedule advances evenly and ends at the step `end`."""

    step: int
    position: float
    end: int
    thinning: int = 1
    """Only every n-th validation takes place."""
    threads: int | None = None
    """CPU threads, where they are fewer than the settings allow."""


@dataclass(frozen=True)
class Schedule:
    """A piecewise linear map from steps to positions of a schedule of `length` positions."""

    length: int
    segments: tuple[Segment, ...]

    @classmethod
    def of(cls, length: int, end: int | None = None) -> Self:
        """A schedule of one segment, which takes `end` steps (by default one for each position)."""
        return cls(length, (Segment(0, 0.0, end or length),))

    @property
    def current(self) -> Segment:
        return self.segments[-1]

    @property
    def end(self) -> int:
        """The number of steps, unless the schedule is revised."""
        return self.current.end

    def position(self, step: int) -> float:
        """The position of a run in the schedule after `step` steps."""
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
        """How many validations follow a step, the last one included."""
        return -(-self.length // every) - int(self.position(step) // every)

    def revised(self, step: int, **changes: Any) -> Self:
        """The same schedule up to `step`, followed by a segment with these changes."""
        segment = replace(self.current, step=step, position=self.position(step), **changes)
        kept = self.segments if step > self.current.step else self.segments[:-1]
        return replace(self, segments=(*kept, segment))

    def _segment(self, step: int) -> Segment:
        """The segment that leads to a step: a revision after step n applies from n + 1 on."""
        return next((segment for segment in reversed(self.segments) if segment.step < step), self.segments[0])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Self:
        return cls(state["length"], tuple(Segment(**segment) for segment in state["segments"]))


def order_of(data: Encoded, settings: RunSettings) -> Order:
    """The batch sampler of a run."""
    training = settings.training
    if training.batch_tokens is None:
        return ByPairs(data.sources.lengths, training.batch_size, settings.seed, data.sources.lengths_in)
    longest = min(training.longest or training.batch_tokens, training.batch_tokens)
    lengths_N2 = data.lengths_N2
    order = ByTokens(lengths_N2, training.batch_tokens, settings.seed, longest, data.lengths_in)
    left_out = int((lengths_N2.max(1) > longest).sum())
    if left_out == len(data):
        raise DataError(
            f"Every training pair has more than {longest:,} tokens on a side. Raise training.batch_tokens"
            f"{' or training.longest' if training.longest else ''}."
        )
    if left_out:
        log.warning("%s of more than %d tokens on a side left out of training.", quantity(left_out, "pair"), longest)
    return order


def steps_per_epoch(order: Order, training: TrainingSettings) -> float:
    """Optimizer steps in one pass over the training pairs."""
    return order.steps_per_epoch / training.accumulate


def most_steps(order: Order, training: TrainingSettings) -> int | None:
    """The number of steps in `max_epochs` passes over the training pairs; None if there is no such limit."""
    if training.max_epochs is None:
        return None
    return max(1, round(training.max_epochs * steps_per_epoch(order, training)))


def schedule_of(order: Order, training: TrainingSettings) -> Schedule:
    """The schedule of a new run."""
    most = most_steps(order, training)
    return Schedule.of(training.steps, None if most is None else min(training.steps, most))


@dataclass
class Deadline:
    """Rescales a schedule so that the run ends on time, by the speed that it measures."""

    seconds: float
    """The time that the whole run may take."""
    started: float
    """When it started, by `clock`."""
    most: int | None = None
    """The most steps, whatever time is left."""
    threads: int = 1
    """CPU threads that the settings allow."""
    validations_after: int = 0
    """Validations after the last step."""
    validation_steps: float = 0.0
    """Estimated duration of a validation, in steps; used until one has been measured."""
    clock: Callable[[], float] = time.monotonic
    _steps: int = field(default=0, init=False)
    _busy: float = field(default=0.0, init=False)
    """Seconds that the steps since the last check took."""
    _pace: float | None = field(default=None, init=False)
    """Seconds per step: a moving average, in which recent steps count more."""
    _overhead: float | None = field(default=None, init=False)
    """Seconds that the last validation and its checkpoint took."""
    _checked: float = field(default=0.0, init=False)
    _before: float | None = field(default=None, init=False)
    """Seconds per step on all threads, before one thread was tried."""

    def __post_init__(self) -> None:
        self._checked = self.clock() - (_CHECKS - _FIRST_CHECK) * self.seconds

    @property
    def left(self) -> float:
        """Seconds until the run has to end."""
        share, most = _RESERVE
        return self.started + self.seconds - min(share * self.seconds, most) - self.clock()

    @property
    def pace(self) -> float | None:
        """Seconds per step."""
        return self._pace

    def note_step(self, seconds: float) -> None:
        self._steps += 1
        self._busy += seconds

    def note_validation(self, seconds: float) -> None:
        self._overhead = seconds

    def is_due(self) -> bool:
        """Whether it is time to measure and revise."""
        return self._steps >= _FEWEST_STEPS and self.clock() - self._checked >= _CHECKS * self.seconds

    def revise(self, schedule: Schedule, step: int, validate_every: int) -> Schedule:
        """Rescale the schedule after `step` to end on time; return it unchanged if it already does."""
        recent = self._busy / self._steps
        threads = self._threads(schedule.current.threads, recent)
        unsettled = self._pace is None or threads != schedule.current.threads
        self._pace = recent if self._pace is None or unsettled else 0.7 * recent + 0.3 * self._pace
        self._steps, self._busy, self._checked = 0, 0.0, self.clock()
        overhead = self.validation_steps * self._pace if self._overhead is None else self._overhead
        left = max(0.0, self.left)
        thinning = schedule.current.thinning
        while (to_come := schedule.validations_after(step, thinning * validate_every)) > 1:
            if to_come * overhead <= VALIDATION_SHARE * left:
                break
            thinning += 1
        overheads = (to_come + self.validations_after) * overhead
        end = step + max(1, int((left - overheads) / self._pace))
        if self.most is not None:
            end = max(step + 1, min(end, self.most))
        off = abs(end - schedule.end) * self._pace
        same = (thinning, threads) == (schedule.current.thinning, schedule.current.threads)
        if same and off <= _TOLERANCE * self.seconds:
            return schedule
        return schedule.revised(step, end=end, thinning=thinning, threads=threads)

    def _threads(self, now: int | None, recent: float) -> int | None:
        """Switch to one thread if several have become much slower, because they wait for cores that another process
        keeps busy. Switch back for good if one thread is slower still.
        """
        if self.threads == 1:
            return None
        if self._before is None and self._pace is not None and recent > _SLOWER * self._pace:
            self._before = recent
            return 1
        return None if now == 1 and self._before is not None and recent > self._before else now
