"""Sweeps: the search space, proposals that do not depend on timing, results of real runs, and resuming."""

import json
import math
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.cluster.sweep import workers
from regard.cluster.sweep.results import shorten_keys
from regard.cluster.sweep.space import Choices, Range, parse_mapping, parse_words, split_choices
from regard.cluster.sweep.study import JOURNAL, Job, Outcome, Plan, Run, make_plan, open_sweep
from regard.errors import ConfigError, DataError, Interrupted, RunInUseError
from regard.evaluation.settings import MetricValues
from tests_command import Result
from tests_seed import DAILY_SEED
from tests_shared import SMALL, stop_at, thin, to_arguments

pytest.importorskip("optuna", reason="optuna is missing; install it with: pip install -e '.[test]'")

Cli = Callable[..., Result]

TINY = {
    **SMALL,
    "data.train": 60,
    "data.dev": 8,
    "data.test": 8,
    "training.steps": 4,
    "training.validate_every": 2,
    "training.save_every": 2,
    "training.diagnostics": 0,
    "training.metric": "loss",
}
RATE, WIDTH = "training.learning_rate", "model.decoder.hidden"


def test_words_are_choices_ranges_or_fixed_values() -> None:
    words = [f"{RATE}=log(1e-4,1e-2)", "model.attention=bahdanau,luong-general", "training.steps=5"]
    space, fixed = parse_words([*words, "training.extra_metrics=[bleu,chrf]", "about='a, b'", f"{WIDTH}=int(8,32,8)"])
    assert space.dimensions == {
        RATE: Range("log", 1e-4, 1e-2),
        "model.attention": Choices({"bahdanau": "bahdanau", "luong-general": "luong-general"}),
        WIDTH: Range("int", 8, 32, 8),
    }
    assert fixed == {"training.steps": 5, "training.extra_metrics": ["bleu", "chrf"], "about": "a, b"}
    assert parse_words(["training.steps=1,2"])[0].dimensions["training.steps"].probes == [1, 2]
    assert split_choices("[1,2],{a: 1, b: 2},'x,y',don't, z") == ["[1,2]", "{a: 1, b: 2}", "'x,y'", "don't", "z"]


def test_a_mapping_is_the_same_space_as_words() -> None:
    space = parse_mapping({RATE: "log(1e-4,1e-2)", "model.attention": ["bahdanau", "luong-general"], "x": [True, [1]]})
    words = [f"{RATE}=log(1e-4,1e-2)", "model.attention=bahdanau,luong-general", "x=true,[1]"]
    assert space == parse_words(words)[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["training.learning_rte=1,2"], "Did you mean 'learning_rate'"),
        (["model.attention=bahdanau,luong-genral"], "Did you mean 'luong-general'"),
        ([f"{RATE}=log(1e-2,1e-4)"], "empty or reversed"),
        ([f"{RATE}=log(1e-2,1e-2)"], "empty or reversed"),
        ([f"{RATE}=log(0,1)"], "must be above 0"),
        ([f"{RATE}=uniform(-1,1)"], "greater than 0"),
        ([f"{RATE}=normal(0,1)"], "'normal' is not a range"),
        ([f"{RATE}=uniform(0,x)"], "must be numbers"),
        ([f"{RATE}=uniform(1)"], "two finite ends"),
        ([f"{WIDTH}=uniform(8,16)"], "valid integer"),
        ([f"{WIDTH}=int(8,20,5)"], "multiple of the step"),
        ([f"{WIDTH}=8,,16"], "a choice is empty"),
        ([f"{WIDTH}=8,8"], "given twice"),
        (["seed=1,2"], "use --seeds"),
        (["training.metric=loss,cer"], "cannot vary"),
        ([f"{RATE}=1", f"{RATE}=2,3"], "is set twice"),
    ],
)
def test_invalid_values_are_rejected_before_the_first_trial(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_of(*words, trials=3)


def test_a_range_needs_a_number_of_trials_and_a_grid_is_not_pruned() -> None:
    with pytest.raises(ConfigError, match="--trials N"):
        plan_of(f"{RATE}=log(1e-4,1e-2)", trials=None)
    with pytest.raises(ConfigError, match="A grid is a comparison"):
        plan_of(f"{WIDTH}=8,16", trials=None, prune=True)
    assert plan_of(f"{WIDTH}=8,16", trials=2).trials is None, "a search of all combinations is a grid"


def test_columns_have_short_and_distinct_names() -> None:
    keys = ["model.encoder.hidden", "model.decoder.hidden", "training.steps"]
    assert list(shorten_keys(keys).values()) == ["encoder.hidden", "decoder.hidden", "steps"]


def plan_of(*words: str, trials: int | None, prune: bool = False, seeds: int = 1, finalists: int | None = None) -> Plan:
    space, fixed = parse_words(words)
    return make_plan("dates", fixed, space, trials=trials, seeds=seeds, finalists=finalists, prune=prune)


SEARCH = (f"{RATE}=log(1e-4,1e-2)", "model.attention=bahdanau,luong-general", "training.metric=loss")


def invent_outcome(parameters: dict[str, Any]) -> Outcome:
    """Return a result without training: a rate of 0.001 is best, and a high one with one mechanism diverges."""
    loss = abs(math.log10(parameters[RATE]) + 3)
    if loss > 0.9 and parameters["model.attention"] == "bahdanau":
        return Outcome(0.1, failure="diverged. Lower the rate.")
    return Outcome(0.1, MetricValues(8, {"loss": loss}, {}))


def run_invented(plan: Plan, folder: Path, lag: int, order: random.Random, reopen: float = 0.0) -> list[dict[str, Any]]:
    """Run a sweep without training. Up to `lag` runs end in a random order; sometimes the sweep is killed and opened
    again. Return the parameters of all trials.
    """
    while True:
        with open_sweep(plan, folder, lag) as state:
            running: list[Run] = []
            while True:
                waiting = [run for run in state.due() if run not in running]
                running += waiting[: lag - len(running)]
                if not running:
                    return state.parameters
                run = running.pop(order.randrange(len(running)))
                state.record(run, invent_outcome(state.parameters[run.trial]))
                if order.random() < reopen:
                    break


@pytest.mark.parametrize("lag", thin([3, 1]))
def test_proposals_do_not_depend_on_the_order_in_which_runs_end(tmp_path: Path, lag: int) -> None:
    plan = plan_of(*SEARCH, trials=14, seeds=2)
    expected = run_invented(plan, tmp_path / "a", lag, random.Random(0))
    rng = random.Random(DAILY_SEED)
    assert run_invented(plan, tmp_path / "b", lag, rng) == expected
    assert run_invented(plan, tmp_path / "c", lag, rng, reopen=0.4) == expected, "killed and resumed"
    assert run_invented(plan_of(*SEARCH, "seed=1", trials=14), tmp_path / "d", lag, rng) != expected
    shorter = plan_of(*SEARCH, trials=12, seeds=2)
    assert run_invented(shorter, tmp_path / "e", lag, rng) == expected[:12]
    assert run_invented(plan, tmp_path / "e", lag, rng) == expected, "extended"


def test_a_search_finds_better_values_than_random_ones_and_trains_the_best_with_new_seeds(tmp_path: Path) -> None:
    plan = plan_of(*SEARCH, "seed=5", trials=24, seeds=3, finalists=2)
    run_invented(plan, tmp_path, 1, random.Random(0))
    with open_sweep(plan, tmp_path, 1) as state:
        distances = [abs(math.log10(parameters[RATE]) + 3) for parameters in state.parameters]
        assert sum(distances[12:]) < 0.8 * sum(distances[:12])
        first, second = state.finalists
        assert distances[first] == min(distances)
        assert state.seeds == [6, 7, 8], "not the seed for which they were selected"
        assert all(state.outcomes(trial, state.seeds).keys() == {6, 7, 8} for trial in (first, second))
        assert set(state.importance()) == {RATE, "model.attention"}
        assert sum(state.importance().values()) == pytest.approx(1)


def test_a_sweep_remembers_which_trials_were_compared_on_the_test_set(tmp_path: Path) -> None:
    plan = plan_of(*SEARCH, trials=4)
    with open_sweep(plan, tmp_path, 1) as state:
        assert state.record_test([Run(2, 0), Run(1, 0)]) == []
    with open_sweep(plan, tmp_path, 1) as state:
        assert state.record_test([Run(1, 0), Run(2, 0)]) == [], "the same command, repeated"
        assert state.record_test([Run(1, 0), Run(3, 0)]) == [1, 2]


def test_a_journal_with_an_incomplete_line_and_a_lock_is_repaired(tmp_path: Path) -> None:
    plan = plan_of(*SEARCH, trials=4)
    expected = run_invented(plan, tmp_path, 1, random.Random(0))
    with (tmp_path / JOURNAL).open("ab") as handle:
        handle.write(b'{"op_code":2,"work')
    (tmp_path / f"{JOURNAL}.lock").touch()
    assert run_invented(plan, tmp_path, 1, random.Random(0)) == expected
    assert not (tmp_path / f"{JOURNAL}.lock").exists()


def test_a_changed_space_or_setting_is_rejected_with_the_differences(tmp_path: Path) -> None:
    run_invented(plan_of(*SEARCH, trials=4), tmp_path, 1, random.Random(0))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    for words, folder, message in [
        (
            (f"{RATE}=log(1e-5,1e-2)", *SEARCH[1:]),
            tmp_path,
            "learning_rate was 'log.0.0001,0.01.' and is now 'log.1e-05",
        ),
        ((*SEARCH, "training.steps=7"), tmp_path, "training.steps was .* and is now 7"),
        (SEARCH[:1], tmp_path, "model.attention was 'bahdanau,luong-general' and is now None"),
        (SEARCH, tmp_path / "other", "is not the folder of a sweep"),
    ]:
        with pytest.raises(ConfigError, match=message), open_sweep(plan_of(*words, trials=4), folder, 1):
            pass
    with (
        pytest.raises(ConfigError, match="has 4 trials already"),
        open_sweep(plan_of(*SEARCH, trials=3), tmp_path, 1),
    ):
        pass
    plan = plan_of(*SEARCH, "training.log_every=3", trials=4)
    with open_sweep(plan, tmp_path, 1), pytest.raises(RunInUseError), open_sweep(plan, tmp_path, 1):
        pass


def test_a_search_stops_runs_that_are_worse_than_the_median(tmp_path: Path) -> None:
    plan = plan_of(*SEARCH, trials=12, prune=True)
    with open_sweep(plan, tmp_path, 2) as state:
        while due := state.due():
            job = state.job(due[0])
            known = list(range(due[0].trial - 1))
            losses = sorted(state.outcomes(n, [0])[0].validations[2] for n in known)
            expected = (losses[(len(losses) - 1) // 2] + losses[len(losses) // 2]) / 2 if len(known) >= 5 else None
            assert job.medians.get(2) == (None if expected is None else pytest.approx(expected))
            loss = abs(math.log10(state.parameters[due[0].trial][RATE]) + 3)
            state.record(due[0], Outcome(0.1, MetricValues(8, {"loss": loss}, {}), validations={2: loss}))


def without_times(folder: Path) -> dict[str, Any]:
    """Return the results without durations and speeds."""
    document: dict[str, Any] = json.loads((folder / "sweep.json").read_text())
    for trial in document["trials"]:
        for run in trial["runs"]:
            del run["seconds"]
    for system in document["test"]["systems"]:
        del system["sentences_per_second"], system["tokens_per_second"], system["run"]
    return document


def test_a_grid_is_trained_reported_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run is interrupted, and resumed in its folder. One of the choices diverges."""
    space = {RATE: [1e-3, 1e30]}
    with stop_at(3, monkeypatch):
        regard.sweep("dates", space, TINY, seeds=2, out=tmp_path / "a", quiet=True)
    result = regard.sweep("dates", space, TINY, seeds=2, out=tmp_path / "a", quiet=True)
    assert [trial.values[RATE] for trial in result.trials] == ["0.001", "1e+30"]
    assert {seed: "diverged" in reason for seed, reason in result.trials[1].failures.items()} == {0: True, 1: True}
    scores = [outcome.best.loss for outcome in result.best.runs.values() if outcome.best]
    assert result.best.score == pytest.approx(sum(scores) / 2)
    assert result.best.deviation == pytest.approx(abs(scores[0] - scores[1]) / math.sqrt(2))
    assert result.comparison is not None
    assert [group.name for group in result.comparison.numbers.seed_groups] == ["learning_rate=0.001"]
    assert "failed: Training diverged" in str(result)
    for name in ("report.html", "history.svg", "importance.svg"):
        assert (tmp_path / "a" / name).stat().st_size > 1000
    undisturbed = regard.train("dates", {**TINY, RATE: 1e-3}, out=tmp_path / "run", quiet=True)
    assert undisturbed.best == result.best.runs[0].best
    plan = make_plan("dates", TINY, parse_mapping(space), trials=None, seeds=2, finalists=None, prune=False)
    with open_sweep(plan, tmp_path / "a", 1) as state:
        assert not state.due()


def test_if_all_runs_fail_the_sweep_fails_with_the_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError, match=r"All 2 runs of .* failed: Training diverged"):
        regard.sweep("dates", {RATE: [1e29, 1e30]}, TINY, out=tmp_path)
    assert (
        "run 2/2: trial 1, seed 0 (training.learning_rate=1e+30): failed: Training diverged" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Give a preset, a file or a run"),
        (("dates", "training.steps=5", "--trials", "3"), "There is nothing to search"),
        (("dates", f"{RATE}=log(2,1)", "--trials", "3"), "empty or reversed"),
        (("dates", f"{RATE}=1,2", "--seeds", "0"), "--seeds"),
        (("dates", f"{RATE}=1,2", "--workers", "0"), "--workers"),
    ],
)
def test_bad_commands_are_usage_errors(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    done = cli("sweep", *arguments)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr


def test_a_missing_extra_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"pip install 'regard\[sweep\]'"):
        regard.sweep("dates", {RATE: [1e-3, 1e-2]}, out=tmp_path)


KILLED = {**TINY, "training.steps": 30, "training.validate_every": 10, "training.log_every": 1}


def start_sweep(folder: Path, *options: str) -> "subprocess.Popen[bytes]":
    words = [*to_arguments(KILLED), f"{RATE}=log(1e-4,1e-1)", "model.attention=bahdanau,luong-general"]
    command = [sys.executable, "-m", "regard", "sweep", "dates", *words, "--trials", "5", "--seeds", "2"]
    with folder.with_suffix(".log").open("ab") as log:
        return subprocess.Popen([*command, "--finalists", "2", *options, "--out", str(folder)], stdout=log, stderr=log)


def finish_sweep(folder: Path, *options: str) -> None:
    assert start_sweep(folder, *options).wait() == 0, folder.with_suffix(".log").read_text()


def wait_for_steps(folder: Path, count: int, process: "subprocess.Popen[bytes]") -> None:
    """Wait until the runs have logged a number of steps together."""
    while process.poll() is None:
        logs = [path.read_bytes() for path in folder.glob("trial-*/seed-*/events.jsonl")]
        if sum(log.count(b'"train"') for log in logs) >= count:
            return
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("count", ["1", "2"])
def test_a_killed_sweep_ends_with_the_same_trials_and_results(tmp_path: Path, count: str) -> None:
    finish_sweep(tmp_path / "a", "--workers", count)
    rng = random.Random(DAILY_SEED)
    for steps in (rng.randint(1, 40), rng.randint(41, 140), rng.randint(141, 240)):
        process = start_sweep(tmp_path / "b", "--workers", count)
        wait_for_steps(tmp_path / "b", steps, process)
        process.kill()
        process.wait()
    finish_sweep(tmp_path / "b", "--workers", count)
    document = without_times(tmp_path / "b")
    assert document == without_times(tmp_path / "a")
    assert "used before the sweep was extended" not in (tmp_path / "b.log").read_text()
    finish_sweep(tmp_path / "b", "--workers", count, "--finalists", "3")
    tested = ", ".join(map(str, sorted(document["finalists"])))
    assert f"used before the sweep was extended, for these trials: {tested}." in (tmp_path / "b.log").read_text()


@pytest.mark.slow
def test_a_signal_stops_all_workers_which_save_their_states(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    process = start_sweep(folder, "--workers", "2")
    wait_for_steps(folder, 5, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == Interrupted.exit_code
    message = "Stopped by SIGTERM; the state is saved. Run the same command to resume."
    assert message in folder.with_suffix(".log").read_text()
    assert list(folder.glob("trial-*/seed-*/checkpoints/step-*/state.json"))


@pytest.mark.slow
def test_a_killed_worker_is_a_failed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run is trained in a new process."""
    plan = plan_of(*to_arguments(KILLED), f"{RATE}=0.001,0.002,0.003", trials=None)
    start, started = workers._start, []

    def start_and_kill(environment: dict[str, str]) -> Any:
        started.append(start(environment))
        if len(started) == 1:
            started[0].process.kill()
        return started[-1]

    monkeypatch.setattr(workers, "_start", start_and_kill)
    with open_sweep(plan, tmp_path, 1) as state, workers.SweepDisplay(state, quiet=True) as display:
        workers.run_in_processes(state, workers.choose_environments(1, 1, 0), display)
        outcomes = [state.outcomes(trial, [0])[0] for trial in (0, 1, 2)]
    assert outcomes[0].failure == "the process was killed by SIGKILL, probably because memory ran out"
    assert outcomes[1].best is not None
    assert outcomes[2].best is not None
    assert len(started) == 2
    assert all(worker.process.exitcode is not None for worker in started)


def test_gpus_are_assigned_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    gpus = [variables["CUDA_VISIBLE_DEVICES"] for variables in workers.choose_environments(3, 1, 2)]
    assert gpus == ["4", "6", "4"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert workers.choose_environments(1, 2, 0) == [{"OMP_NUM_THREADS": "2"}]


def test_a_run_that_is_stopped_early_keeps_its_validations(tmp_path: Path) -> None:
    """The best loss so far is compared with the median at the same step."""
    plan = plan_of(*to_arguments(TINY), f"{RATE}=1e-3,1e-2", trials=None)
    with open_sweep(plan, tmp_path / "sweep", 1) as state:
        job = state.job(Run(0, 0))
    stopped = workers.train_run(Job(job.run, job.settings, (), {2: 0.0}), tmp_path / "stopped")
    assert (stopped.stopped_early, stopped.best, list(stopped.validations)) == (True, None, [2])
    finished = workers.train_run(Job(job.run, job.settings, (), {2: 1e9}), tmp_path / "finished")
    assert (finished.stopped_early, list(finished.validations)) == (False, [2, 4])
    assert Outcome.from_json(json.loads(json.dumps(finished.to_json()))) == finished
