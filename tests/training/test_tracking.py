"""TensorBoard shows each step of a run once, even after the run was killed and resumed."""

import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import regard
from regard.runs.directory import lock_folder
from regard.runs.events import EventLog, read_events
from regard.runs.folder import RunFolder
from regard.training import loop
from regard.training.callbacks import TensorBoard
from regard.training.state import TrainingState
from regard.training.step import take_step
from tests_shared import SMALL

TRACKED = {**SMALL, "training.steps": 20, "training.track": "tensorboard"}


Curves = dict[str, list[tuple[int, float]]]


def read_scalars(path: Path) -> Curves:
    """Read the curves with TensorBoard."""
    events = EventAccumulator(str(path), purge_orphaned_data=True).Reload()
    return {tag: [(point.step, point.value) for point in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def read_numbers(path: Path) -> Curves:
    """Read the same curves from events.jsonl."""
    curves: Curves = {}
    for event in read_events(path):
        for name, value in event.items():
            if name not in {"event", "step", "time", "best", "signatures", "attentions"}:
                curves.setdefault(f"{event['event']}/{name}", []).append((event["step"], float(value)))
    return curves


def are_equal(one: Curves, other: Curves) -> bool:
    return one.keys() == other.keys() and all(
        [step for step, _ in one[tag]] == [step for step, _ in other[tag]]
        and [value for _, value in one[tag]] == pytest.approx([value for _, value in other[tag]], rel=1e-6)
        for tag in one
    )


@pytest.mark.slow
def test_a_run_killed_between_checkpoints_writes_each_step_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(run: TrainingState) -> tuple[float, int]:
        if run.progress.step == 17:  # after the checkpoint of step 10 and the log of step 15
            raise KeyboardInterrupt
        return take_step(run)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "take_step", die)
        with pytest.raises(KeyboardInterrupt):
            regard.train("dates", TRACKED, out=tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    before = read_scalars(folder.path / "tensorboard")
    assert [step for step, _ in before["train/loss"]] == [5, 10, 15]
    regard.train("dates", TRACKED, out=folder.path)
    after = read_scalars(folder.path / "tensorboard")
    assert [step for step, _ in after["train/loss"]] == [5, 10, 15, 20]
    assert are_equal(after, read_numbers(folder.events))


def test_without_the_start_mark_a_step_would_be_written_twice(tmp_path: Path) -> None:
    """The negative control of the test above: the start mark hides the overwritten steps."""
    with lock_folder(tmp_path) as locked:
        for step in (0, 0):
            board = TensorBoard(locked.directory, step)
            board.write("train", step=5, loss=1.0)
            board.close()
        assert read_scalars(tmp_path)["train/loss"] == [(5, 1.0)]
        board = TensorBoard(locked.directory, 5)
        board.write("train", step=5, loss=2.0)
        board.close()
    assert read_scalars(tmp_path)["train/loss"] == [(5, 1.0), (5, 2.0)]


def test_only_numbers_of_events_with_a_step_are_written(tmp_path: Path) -> None:
    with lock_folder(tmp_path) as locked:
        board, log = TensorBoard(locked.directory, 0), EventLog(locked.directory, lambda _: True)
        with board, log:
            for writer in (board, log):
                writer.write("validation", step=7, best=True, bleu=31.5, signature="nrefs:1")
                writer.write("note", text="no step", size=3)
    assert read_scalars(tmp_path) == {"validation/bleu": [(7, 31.5)]}
    assert [event["event"] for event in read_events(tmp_path / "events.jsonl")] == ["validation", "note"]


def test_nothing_is_tracked_by_default(small_run: RunFolder) -> None:
    assert not (small_run.path / "tensorboard").exists()


def test_without_the_package_training_fails_with_the_command_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "tensorboard", raising=False)
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(regard.ConfigError, match=r"pip install 'regard\[track\]'"):
        regard.train("dates", TRACKED, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
