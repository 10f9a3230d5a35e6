"""What TensorBoard reads is what happened, once, even after a run was killed and went on."""

import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import regard
from regard.runs.events import EventLog, read_events
from regard.runs.folder import RunFolder
from regard.runs.lock import lock_folder
from regard.training import loop, tracking
from tests_shared import SMALL

TRACKED = {**SMALL, "training.steps": 20, "training.track": "tensorboard"}


def scalars(path: Path) -> dict[str, list[tuple[int, float]]]:
    """The curves as TensorBoard itself reads them."""
    found = EventAccumulator(str(path), purge_orphaned_data=True).Reload()
    return {tag: [(point.step, point.value) for point in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def numbers(path: Path) -> dict[str, list[tuple[int, float]]]:
    """The same curves from events.jsonl."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for event in read_events(path):
        for name, value in event.items():
            if name not in {"event", "step", "time", "best", "signatures"}:
                curves.setdefault(f"{event['event']}/{name}", []).append((event["step"], float(value)))
    return curves


def same(one: dict[str, list[tuple[int, float]]], other: dict[str, list[tuple[int, float]]]) -> bool:
    return one.keys() == other.keys() and all(
        [step for step, _ in one[tag]] == [step for step, _ in other[tag]]
        and [value for _, value in one[tag]] == pytest.approx([value for _, value in other[tag]], rel=1e-6)
        for tag in one
    )


def test_a_run_killed_between_checkpoints_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take = loop.take_step

    def die(run: loop.TrainingState) -> tuple[float, int]:
        if run.progress.step == 17:  # the last checkpoint is of step 10, and step 15 has been told
            raise KeyboardInterrupt
        return take(run)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "take_step", die)
        with pytest.raises(KeyboardInterrupt):
            regard.train("dates", TRACKED, out=tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    before = scalars(folder.path / "tensorboard")
    assert [step for step, _ in before["train/loss"]] == [5, 10, 15]
    regard.train("dates", TRACKED, out=folder.path)
    after = scalars(folder.path / "tensorboard")
    assert [step for step, _ in after["train/loss"]] == [5, 10, 15, 20]
    assert same(after, numbers(folder.events))


def test_without_the_mark_steps_would_be_told_twice(tmp_path: Path) -> None:
    """The control of the test above: it is the mark that hides what was overwritten."""
    with lock_folder(tmp_path) as locked:
        for step in (0, 0):
            board = tracking.TensorBoard(locked.directory, step)
            board.write("train", step=5, loss=1.0)
            board.close()
        assert scalars(tmp_path)["train/loss"] == [(5, 1.0)]
        board = tracking.TensorBoard(locked.directory, 5)
        board.write("train", step=5, loss=2.0)
        board.close()
    assert scalars(tmp_path)["train/loss"] == [(5, 1.0), (5, 2.0)]


def test_numbers_are_taken_and_other_things_left(tmp_path: Path) -> None:
    with lock_folder(tmp_path) as locked:
        board = tracking.TensorBoard(locked.directory, 0)
        with EventLog(locked.directory, lambda _: True, [board]) as events:
            events.write("validation", step=7, best=True, bleu=31.5, signature="nrefs:1")
            events.write("note", text="no step", size=3)
    assert scalars(tmp_path) == {"validation/bleu": [(7, 31.5)]}
    assert [event["event"] for event in read_events(tmp_path / "events.jsonl")] == ["validation", "note"]


def test_nothing_is_tracked_unless_asked_for(small_run: RunFolder) -> None:
    assert not (small_run.path / "tensorboard").exists()


def test_without_the_package_nothing_begins_and_the_command_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "tensorboard", raising=False)
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(regard.ConfigError, match=r"pip install 'regard\[track\]'"):
        regard.train("dates", TRACKED, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
