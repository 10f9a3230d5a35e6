"""Build the batch sampler and the schedule of a run, and rescale the schedule to meet a deadline."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from regard.data.batching import EncodedCorpus
from regard.data.sampler import BatchSampler, PairBatchSampler, TokenBatchSampler
from regard.errors import DataError
from regard.formatting import quantity
from regard.runs.schedule import Schedule
from regard.runs.settings import RunSettings, TrainingSettings

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


def build_batch_sampler(data: EncodedCorpus, settings: RunSettings) -> BatchSampler:
    """The batch sampler of a run."""
    training = settings.training
    if training.batch_tokens is None:
        return PairBatchSampler(data.sources.lengths, training.batch_size, settings.seed, data.sources.epoch_lengths)
    longest = min(training.max_pair_length or training.batch_tokens, training.batch_tokens)
    lengths_N2 = data.lengths_N2
    order = TokenBatchSampler(lengths_N2, training.batch_tokens, settings.seed, longest, data.epoch_lengths)
    left_out = int((lengths_N2.max(1) > longest).sum())
    if left_out == len(data):
        raise DataError(
            f"Every training pair has more than {longest:,} tokens on a side. Raise training.batch_tokens"
            f"{' or training.max_pair_length' if training.max_pair_length else ''}."
        )
    if left_out:
        log.warning("%s of more than %d tokens on a side left out of training.", quantity(left_out, "pair"), longest)
    return order


def steps_per_epoch(order: BatchSampler, training: TrainingSettings) -> float:
    """Optimizer steps in one pass over the training pairs."""
    return order.steps_per_epoch / training.accumulate


def max_steps(order: BatchSampler, training: TrainingSettings) -> int | None:
    """The number of steps in `max_epochs` passes over the training pairs; None if there is no such limit."""
    if training.max_epochs is None:
        return None
    return max(1, round(training.max_epochs * steps_per_epoch(order, training)))


def build_schedule(order: BatchSampler, training: TrainingSettings) -> Schedule:
    """The schedule of a new run."""
    most = max_steps(order, training)
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


def build_deadline(
    training: TrainingSettings, started: float, sampler: BatchSampler, train_pairs: int, dev_pairs: int
) -> Deadline:
    """The deadline of a new run that started at `started`, a reading of `time.monotonic`."""
    assert training.minutes is not None
    validated = min(dev_pairs, training.validation_pairs or dev_pairs)
    return Deadline(
        seconds=60 * training.minutes,
        started=started,
        most=max_steps(sampler, training),
        threads=training.threads,
        validations_after=1 if training.average_checkpoints > 1 else 0,
        validation_steps=validated * steps_per_epoch(sampler, training) / train_pairs,
    )
