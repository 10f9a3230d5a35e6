"""Build the batch sampler and the schedule of a run, and rescale the schedule to meet a deadline."""

import logging
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from regard.data.batching import EncodedCorpus
from regard.data.sampler import BatchSampler, PairBatchSampler, TokenBatchSampler
from regard.errors import DataError
from regard.formatting import quantity
from regard.runs.progress import Schedule
from regard.runs.settings import RunSettings, TrainingSettings

log = logging.getLogger(__name__)


VALIDATION_SHARE = 0.2
"""The maximum share of the remaining time for validations; beyond it, some validations are skipped."""


_FIRST_CHECK, _CHECKS = 0.005, 0.03
"""Shares of the total time: before the first measurement of the speed, and the maximum between later measurements. The
first measurements are close to each other, so that few steps follow a schedule that was planned with a wrong speed.
"""


_TOLERANCE = 0.01
"""The schedule is not revised if it ends this close to the deadline, as a share of the total time."""


_RESERVE, _MIN_RESERVE, _MAX_RESERVE = 0.01, 1.0, 3.0
"""Time reserved for the end of the process: a share of the total time, and a minimum and a maximum in seconds."""


_MIN_STEPS, _ENOUGH_TIME = 3, 0.1
"""The minimum number of steps between two checks. Fewer are enough if they take this share of the total time."""


_MAX_LOADING = 0.5
"""If loading takes more than this share of the total time, a note gives the shortest useful deadline."""


_MAX_LEAD = 1.5
"""The schedule is set back to the share of the steps that are done if it is ahead of it by this factor, because too few
steps had been planned.
"""


_NEWS = 1.5
"""A new number of steps is reported if it differs by this factor from the one reported before."""


_SLOWDOWN = 1.6
"""One thread is tried if steps on several threads become slower by this factor."""


def build_batch_sampler(data: EncodedCorpus, settings: RunSettings) -> BatchSampler:
    """Build the batch sampler of a run."""
    training = settings.training
    if training.batch_tokens is None:
        return PairBatchSampler(data.sources.lengths, training.batch_size, settings.seed, data.sources.epoch_lengths)
    max_length = min(training.max_pair_length or training.batch_tokens, training.batch_tokens)
    lengths_N2 = data.lengths_N2
    sampler = TokenBatchSampler(lengths_N2, training.batch_tokens, settings.seed, max_length, data.epoch_lengths)
    too_long = int((lengths_N2.max(1) > max_length).sum())
    if too_long == len(data):
        raise DataError(
            f"Every training pair has more than {max_length:,} tokens on a side. Increase training.batch_tokens"
            f"{' or training.max_pair_length' if training.max_pair_length else ''}."
        )
    if too_long:
        log.warning("Training skips %s with more than %d tokens on a side.", quantity(too_long, "pair"), max_length)
    return sampler


def steps_per_epoch(sampler: BatchSampler, training: TrainingSettings) -> float:
    """Return the number of optimizer steps in an epoch."""
    return sampler.steps_per_epoch / training.accumulate


def compute_max_steps(sampler: BatchSampler, training: TrainingSettings) -> int | None:
    """Return the number of steps in `max_epochs` epochs, or None if the number of epochs is not limited."""
    if training.max_epochs is None:
        return None
    return max(1, round(training.max_epochs * steps_per_epoch(sampler, training)))


def build_schedule(sampler: BatchSampler, training: TrainingSettings) -> Schedule:
    """Build the schedule of a new run."""
    max_steps = compute_max_steps(sampler, training)
    return Schedule.of(training.steps, None if max_steps is None else min(training.steps, max_steps))


@dataclass
class Deadline:
    """Rescales a schedule to the measured speed, so that the run ends on time."""

    seconds: float
    """The total time of the run."""
    started: float
    """The start of the run, as a reading of `clock`."""
    max_steps: int | None = None
    """The maximum number of steps, even if there is time for more."""
    threads: int = 1
    """The number of CPU threads in the settings."""
    validations_after: int = 0
    """The number of validations after the last step."""
    validation_steps: float = 0.0
    """The estimated duration of a validation, in steps; used until a validation has been measured."""
    clock: Callable[[], float] = time.monotonic
    _durations: list[float] = field(default_factory=list, init=False)
    """The duration of each step since the last check, in seconds."""
    seconds_per_step: float | None = field(default=None, init=False)
    """A moving average, in which recent steps have a larger weight; None before the first check."""
    _validation_seconds: float | None = field(default=None, init=False)
    """The duration of the last validation and its checkpoint."""
    _checked: float = field(default=0.0, init=False)
    """The time of the last check, as a reading of `clock`."""
    _interval: float = field(default=0.0, init=False)
    """The minimum time until the next check, in seconds."""
    _reported: int | None = field(default=None, init=False)
    """The number of steps that was last reported to the user."""
    _seconds_on_all_threads: float | None = field(default=None, init=False)
    """Seconds per step on all threads, before one thread was tried."""

    def __post_init__(self) -> None:
        self._checked, self._interval = self.clock(), _FIRST_CHECK * self.seconds

    @property
    def left(self) -> float:
        """The seconds until the run has to end."""
        reserve = min(max(_RESERVE * self.seconds, _MIN_RESERVE), _MAX_RESERVE)
        return self.started + self.seconds - reserve - self.clock()

    def describe_loading(self) -> str:
        """Return a note if loading leaves little time for training; empty otherwise."""
        loading = self.clock() - self.started
        if loading <= _MAX_LOADING * self.seconds:
            return ""
        problem = "the run ends late" if loading >= self.seconds else "little time is left for training"
        return (
            f"Note: loading took {loading:.0f} seconds, and the deadline is {self.seconds:.0f} seconds, so {problem}. "
            f"The shortest useful deadline is --minutes {loading / _MAX_LOADING / 60 + 0.05:.1f}."
        )

    def is_news(self, before: int, end: int) -> bool:
        """Whether the number of steps, which was `before`, differs enough from the one last reported to report it."""
        self._reported = self._reported or before
        if self._reported / _NEWS < end < self._reported * _NEWS:
            return False
        self._reported = end
        return True

    def note_step(self, seconds: float) -> None:
        """Add the duration of a step to the measurement."""
        self._durations.append(seconds)

    def note_validation(self, seconds: float) -> None:
        """Store the duration of a validation and its checkpoint."""
        self._validation_seconds = seconds

    def is_due(self) -> bool:
        """Whether it is time for the next check of the schedule."""
        enough = len(self._durations) >= _MIN_STEPS or sum(self._durations) >= _ENOUGH_TIME * self.seconds
        return enough and self.clock() - self._checked >= self._interval

    def revise(self, schedule: Schedule, step: int, validate_every: int) -> Schedule:
        """Rescale the schedule after `step` to end on time, and set it back if it is too far ahead. Return it unchanged
        if it already ends on time.
        """
        recent = self._measure_recent_steps()
        threads = self._choose_threads(schedule.current.threads, recent)
        if self.seconds_per_step is None or threads != schedule.current.threads:
            speed = recent
        else:
            speed = 0.7 * recent + 0.3 * self.seconds_per_step
        self.seconds_per_step = speed
        self._durations, self._checked = [], self.clock()
        self._interval = min(2 * self._interval, _CHECKS * self.seconds)
        validation = self.validation_steps * speed if self._validation_seconds is None else self._validation_seconds
        left = max(0.0, self.left)
        thinning = schedule.current.thinning
        while (remaining := schedule.validations_after(step, thinning * validate_every)) > 1:
            if remaining * validation <= VALIDATION_SHARE * left:
                break
            thinning += 1
        validations = (remaining + self.validations_after) * validation
        end = step + max(1, int((left - validations) / speed))
        if self.max_steps is not None:
            end = max(step + 1, min(end, self.max_steps))
        error = abs(end - schedule.end) * speed
        same = (thinning, threads) == (schedule.current.thinning, schedule.current.threads)
        if same and error <= _TOLERANCE * self.seconds:
            return schedule
        position, share = schedule.position(step), schedule.length * step / end
        if position > _MAX_LEAD * share:
            position = share
        return schedule.revised(step, position=position, end=end, thinning=thinning, threads=threads)

    def _measure_recent_steps(self) -> float:
        """Return the average duration of the steps since the last check. The first check excludes the first step,
        which prepares data, memory and kernels, unless it is the only one.
        """
        recent = self._durations[1:] if self.seconds_per_step is None else self._durations
        return statistics.fmean(recent or self._durations)

    def _choose_threads(self, current: int | None, recent: float) -> int | None:
        """Return the number of threads for the next steps, or None for the number in the settings.

        Switch to one thread if several have become much slower, because they wait for cores that another process keeps
        busy. Switch back permanently if one thread is even slower.
        """
        if self.threads == 1:
            return None
        before, average = self._seconds_on_all_threads, self.seconds_per_step
        if before is None and average is not None and recent > _SLOWDOWN * average:
            self._seconds_on_all_threads = recent
            return 1
        return None if current == 1 and before is not None and recent > before else current


def build_deadline(
    training: TrainingSettings, started: float, sampler: BatchSampler, train_pairs: int, dev_pairs: int
) -> Deadline:
    """Build the deadline of a new run that started at `started`, a reading of `time.monotonic`."""
    assert training.minutes is not None
    validation_pairs = min(dev_pairs, training.validation_pairs or dev_pairs)
    return Deadline(
        seconds=60 * training.minutes,
        started=started,
        max_steps=compute_max_steps(sampler, training),
        threads=training.threads,
        validations_after=1 if training.average_checkpoints > 1 else 0,
        validation_steps=validation_pairs * steps_per_epoch(sampler, training) / train_pairs,
        clock=time.monotonic,
    )
