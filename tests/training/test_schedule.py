"""Schedules: a step advances the schedule by one position, unless a deadline rescales it so the run ends on time."""

import json
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from safetensors.torch import load_file
from torch import Tensor

import regard
from regard.api import training as api_training
from regard.errors import ConfigError
from regard.runs.callbacks import Callback, StepInfo, ValidationInfo
from regard.runs.folder import RunFolder
from regard.runs.progress import RunProgress, Schedule
from regard.runs.settings import TrainingSettings
from regard.training import loop, state
from regard.training import schedule as training_schedule
from regard.training.optim import learning_rate
from regard.training.schedule import Deadline
from tests_shared import SMALL, stop_at


class Clock:
    """A clock that a test sets by hand. Reading it takes a microsecond."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 1e-6
        return self.now


class Simulation(NamedTuple):
    """The duration of a simulated run, its last schedule, and the numbers of steps that were reported."""

    seconds: float
    schedule: Schedule
    reported: list[int]


def simulate(
    seconds: float,
    step_seconds: Callable[[float], float],
    length: int = 400,
    *,
    loading: float = 0.0,
    validation_seconds: float = 2.0,
    **options: Any,
) -> Simulation:
    """Simulate training with a deadline: steps take `step_seconds(elapsed)`."""
    clock, reported = Clock(), []
    started, clock.now = clock.now, clock.now + loading
    deadline = Deadline(seconds, started, clock=clock, **options)
    schedule, step = Schedule.of(length), 0
    while step < schedule.end:
        if deadline.is_due():
            before, schedule = schedule, deadline.revise(schedule, step, length // 10)
            if deadline.is_news(before.end, schedule.end):
                reported.append(schedule.end)
        duration = step_seconds(clock.now - started)
        clock.now += duration
        step += 1
        deadline.note_step(duration)
        if schedule.validates(step, length // 10):
            clock.now += validation_seconds
            deadline.note_validation(validation_seconds)
    return Simulation(clock.now - started, schedule, reported)


def test_without_a_deadline_positions_equal_steps() -> None:
    schedule = Schedule.of(100)
    assert [schedule.position(step) for step in range(101)] == list(map(float, range(101)))
    assert [step for step in range(1, 101) if schedule.validates(step, 30)] == [30, 60, 90, 100]


def test_a_revision_changes_only_later_steps_and_reaches_the_new_end() -> None:
    schedule = Schedule.of(100)
    revised = schedule.revised(40, end=60)
    assert [revised.position(step) for step in range(41)] == [schedule.position(step) for step in range(41)]
    assert revised.position(50) == pytest.approx(70)
    assert revised.position(60) == 100
    assert [step for step in range(1, 61) if revised.validates(step, 30)] == [30, 47, 57, 60]
    again = revised.revised(50, end=80)
    assert again.position(49) == revised.position(49)
    assert again.position(65) == pytest.approx(85)


def test_the_learning_rate_is_continuous_across_a_revision() -> None:
    settings = TrainingSettings(steps=100, warmup=10, learning_rate=1.0)
    schedule = Schedule.of(100).revised(30, end=400)
    rates = [learning_rate(schedule.position(step), settings) for step in range(1, 401)]
    assert max(abs(after - before) for before, after in pairwise(rates[10:])) < 0.02
    assert rates[-1] == 0


def test_a_schedule_can_be_saved_as_json() -> None:
    schedule = Schedule.of(100).revised(40, end=60, thinning=2, threads=1)
    assert Schedule.from_json(json.loads(json.dumps(asdict(schedule)))) == schedule


@pytest.mark.parametrize(
    "step_seconds",
    [
        pytest.param(lambda _: 0.25, id="as expected"),
        pytest.param(lambda _: 0.025, id="ten times as fast"),
        pytest.param(lambda _: 2.5, id="ten times as slow"),
        pytest.param(lambda elapsed: 0.1 if elapsed < 60 else 0.4, id="slower from the middle on"),
        pytest.param(lambda elapsed: 0.4 if elapsed < 60 else 0.1, id="faster from the middle on"),
    ],
)
def test_a_run_ends_within_ten_percent_of_its_deadline(step_seconds: Callable[[float], float]) -> None:
    assert 108 <= simulate(120, step_seconds).seconds <= 132


@pytest.mark.parametrize("speed", [1.0, 3.0, 10.0, 1 / 3, 1 / 10])
@pytest.mark.parametrize("busy", [0.0, 0.5], ids=["without load", "beside load"])
def test_a_run_has_nearly_the_schedule_of_the_same_number_of_steps_without_a_deadline(
    speed: float, busy: float
) -> None:
    """Other programs, and a speed that differs from the plan, change the number of steps, but not the share of the
    schedule that a share of the steps advances by. The first measurement takes three steps at least.
    """
    load = random.Random(0)
    schedule = simulate(180, lambda _: 0.15 / speed * (3 if load.random() < busy else 1), length=1_000).schedule
    same_steps = Schedule.of(1_000, schedule.end)
    tolerance = 60 + same_steps.position(3)
    errors = [abs(schedule.position(step) - same_steps.position(step)) for step in range(schedule.end + 1)]
    assert max(errors) < tolerance


@pytest.mark.parametrize(
    "first_steps",
    [
        pytest.param([10.0], id="the first step prepares the data"),
        pytest.param([10.0, *[0.1] * 300], id="many steps capture CUDA graphs"),
        pytest.param([3.0] * 12, id="the first measurement is a hundred times too slow"),
    ],
)
def test_a_slow_start_does_not_advance_the_schedule_by_more_than_its_share_of_the_steps(
    first_steps: list[float],
) -> None:
    durations = iter(first_steps)
    simulated = simulate(600, lambda _: next(durations, 0.03), length=10_000)
    assert 540 <= simulated.seconds <= 660
    same_steps = Schedule.of(10_000, simulated.schedule.end)
    late = range(simulated.schedule.end // 10, simulated.schedule.end + 1)
    assert max(abs(simulated.schedule.position(step) - same_steps.position(step)) for step in late) < 1_000


def test_steps_that_become_slower_do_not_skip_a_part_of_the_schedule() -> None:
    schedule = simulate(120, lambda elapsed: 0.1 if elapsed < 60 else 0.4).schedule
    advances = [schedule.position(step) - schedule.position(step - 1) for step in range(1, schedule.end + 1)]
    assert max(advances) < 8 * schedule.length / schedule.end


@pytest.mark.parametrize("minutes", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("step_seconds", [0.01, 0.3, 3.0])
@pytest.mark.parametrize("loading", [0.1, 0.5])
def test_a_short_run_ends_within_ten_percent_of_its_deadline(
    minutes: float, step_seconds: float, loading: float
) -> None:
    """A validation takes four steps at most, as estimated before the first one."""
    seconds = 60 * minutes
    validation = min(1.0, 4 * step_seconds)
    duration = simulate(
        seconds,
        lambda _: step_seconds,
        loading=loading * seconds,
        validation_seconds=validation,
        validation_steps=validation / step_seconds,
    ).seconds
    assert 0.9 * seconds - step_seconds <= duration <= 1.1 * seconds


def test_a_deadline_that_loading_has_used_up_is_reported_with_the_shortest_useful_time() -> None:
    clock = Clock()
    deadline = Deadline(30, clock.now, clock=clock)
    clock.now += 10
    assert not deadline.describe_loading()
    clock.now += 10
    problem = "loading took 20 seconds, and the deadline is 30 seconds, so little time is left for training."
    assert deadline.describe_loading().startswith(f"Note: {problem}")
    assert deadline.describe_loading().endswith("The shortest useful deadline is --minutes 0.7.")
    clock.now += 20
    assert "the run ends late" in deadline.describe_loading()
    assert simulate(30, lambda _: 1.0, loading=40).schedule.end <= 5


def test_a_new_number_of_steps_is_reported_only_if_it_differs_much() -> None:
    noise = random.Random(0)
    as_expected = simulate(120, lambda _: noise.uniform(0.15, 0.35))
    assert len(as_expected.schedule.segments) > 5
    assert not as_expected.reported
    slower = simulate(120, lambda elapsed: noise.uniform(0.15, 0.35) * (1 if elapsed < 30 else 4))
    assert 1 <= len(slower.reported) <= 3


def test_validations_are_skipped_if_they_would_take_too_long() -> None:
    duration, schedule, _ = simulate(40, lambda _: 0.1)
    assert schedule.current.thinning > 1
    assert 36 <= duration <= 44


def test_a_deadline_does_not_exceed_the_maximum_number_of_steps() -> None:
    simulated, schedule, _ = simulate(120, lambda _: 0.01, max_steps=2_000)
    assert schedule.end == 2_000
    assert simulated < 120 / 2


def test_one_thread_is_tried_if_several_become_slow_and_used_only_if_it_is_faster() -> None:
    def run(seconds_on_one_thread: float) -> list[int | None]:
        clock = Clock()
        deadline = Deadline(100, clock.now, threads=2, clock=clock)
        schedule, step, used = Schedule.of(1000), 0, []
        while clock.now < 180:
            if deadline.is_due():
                schedule = deadline.revise(schedule, step, 100)
                used.append(schedule.current.threads)
            slow = seconds_on_one_thread if schedule.current.threads == 1 else 1.0
            duration = slow if clock.now > 120 else 0.1
            clock.now += duration
            step += 1
            deadline.note_step(duration)
        return used

    faster, slower = run(0.2), run(1.5)
    assert faster[0] is None
    assert faster[-1] == 1
    assert 1 in slower
    assert slower[-1] is None


WITHOUT_STEPS = {key: value for key, value in SMALL.items() if key != "training.steps"}


class TakeTime(Callback):
    """Lets a simulated clock advance during the steps and validations of a run."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def on_step(self, info: StepInfo) -> None:
        del info
        self._clock.now += 0.2

    def on_validation(self, info: ValidationInfo) -> None:
        del info
        self._clock.now += 0.5


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A simulated clock, which training reads."""
    clock = Clock()
    for module in (api_training, loop, training_schedule):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock))
    return clock


@pytest.mark.slow
def test_a_preset_trains_for_the_given_minutes(tmp_path: Path, clock: Clock) -> None:
    started = clock.now
    run = regard.train("dates", WITHOUT_STEPS, out=tmp_path / "run", minutes=0.25, callbacks=TakeTime(clock))
    assert 13.5 <= clock.now - started <= 16.5
    progress = _read_progress(RunFolder(run.path))
    assert progress.schedule.length == 750
    assert run.steps == progress.step == progress.schedule.end


@pytest.mark.slow
def test_a_killed_run_resumes_with_its_saved_schedule(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its final weights are bit-identical to those of an uninterrupted run with the same schedule."""
    overrides = {**WITHOUT_STEPS, "training.save_every": 1, "training.validate_every": 250}
    killed, uninterrupted = RunFolder(tmp_path / "killed"), RunFolder(tmp_path / "uninterrupted")
    with stop_at(8, monkeypatch):
        regard.train("dates", overrides, out=killed.path, minutes=0.1, callbacks=TakeTime(clock))
    schedule = _read_progress(killed).schedule
    assert len(schedule.segments) > 1
    regard.train("dates", overrides, out=killed.path, minutes=0.1)
    assert _read_progress(killed).schedule == schedule
    with monkeypatch.context() as patch:
        patch.setattr(state, "build_schedule", lambda *_: schedule)
        regard.train("dates", overrides, out=uninterrupted.path)
    weights = [_read_weights(folder) for folder in (killed, uninterrupted)]
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0])


def _read_progress(folder: RunFolder) -> RunProgress:
    newest = folder.newest()
    assert newest is not None
    return RunProgress.from_json(newest.state)


def _read_weights(folder: RunFolder) -> dict[str, Tensor]:
    newest = folder.newest()
    assert newest is not None
    return load_file(newest.path / "model.safetensors")


@pytest.mark.skipif(sys.platform != "linux", reason="the start of a process is read from /proc")
def test_a_deadline_on_the_command_line_counts_from_the_start_of_the_process() -> None:
    """Time in which the process waits, for example for a busy core or a slow disk, counts as well."""
    code = """
import time
first = time.monotonic()
time.sleep(0.2)
from regard.operating_system import process_age
waited = time.monotonic() - first
print(process_age() >= waited - 0.02)  # the kernel counts in ticks of 0.01 s
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_minutes_and_steps_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be combined"):
        regard.train("dates", {"training.steps": 5}, out=tmp_path / "run", minutes=1)


@pytest.mark.parametrize("deadline", [["--minutes", "1"], ["training.minutes=1"]], ids=["option", "setting"])
def test_minutes_and_steps_exclude_each_other_on_the_command_line(deadline: list[str], cli: Callable[..., Any]) -> None:
    done = cli("train", "dates", "training.steps=5", *deadline)
    assert done.returncode == 2
    assert "cannot be combined" in done.stderr


def test_the_setting_minutes_is_a_deadline_for_pairs_too(cli: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("".join(f"{number}\t{number}\n" for number in range(100, 400)))
    done = cli("train", "--pairs", "pairs.tsv", "training.minutes=0.05", "training.device=cpu")
    assert done.returncode == 0, done.stderr
    assert "Time: 3 seconds" in done.stderr
    rejected = cli("train", "--pairs", "pairs.tsv", "training.minutes=soon", "--out", "other")
    assert rejected.returncode == 2
    assert "minutes" in rejected.stderr


@pytest.mark.slow
def test_the_number_of_threads_may_change_on_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stop_at(12, monkeypatch):
        regard.train("dates", SMALL, out=tmp_path / "run")
    regard.train("dates", {**SMALL, "training.threads": 2}, out=tmp_path / "run")
