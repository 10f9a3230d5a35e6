"""Ranks that are killed, hang, fail, are missing, or differ: every other rank ends with the name of the rank and the
reason, and the same command resumes.
"""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from regard.errors import ConfigError, DataError, RankError
from regard.runs.folder import RunFolder
from regard.training.ranks import count_ranks, get_rank, read_timeout
from tests_command import HANG
from tests_ranks import Rank, start_ranks
from tests_shared import SMALL

ROOT = Path(__file__).parents[2]
STEPS = 40
SETTINGS = {
    **SMALL,
    "model.dropout": 0.2,
    "training.steps": STEPS,
    "training.save_every": 20,
    "training.validate_every": 20,
    "training.log_every": 1,
    "training.device": "cpu",
}
VARIABLES = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29400"}


def with_settings(changes: dict[str, object]) -> list[str]:
    """Return the command with some changes of its settings."""
    return ["train", "dates", *(f"{key}={value}" for key, value in {**SETTINGS, **changes}.items()), "--out", "run"]


COMMAND = with_settings({})

PAUSE = """
import os, time
from regard.training import loop

take_step = loop.take_step

def take_step_or_pause(state):
    while state.group.rank == {rank} and state.progress.step == {step} and not os.path.exists("lost"):
        time.sleep(0.05)
    return take_step(state)

loop.take_step = take_step_or_pause
"""
"""A plugin: a rank waits after a step until it is lost, so that the run does not end before, even on a slow machine."""


def pause(rank: int, step: int, folder: Path) -> list[str]:
    """Write a plugin that pauses a rank after a step, and return the option that imports it."""
    (folder / "pause.py").write_text(PAUSE.format(rank=rank, step=step))
    return ["--import", "pause.py"]


def send_signal(number: signal.Signals, rank: Rank, folder: Path) -> None:
    """Send a signal to a rank that is paused. From now on, `pause` has no effect."""
    os.kill(rank.pid, number)
    (folder / "lost").touch()


def load_checkpoint(run: Path, step: int = STEPS) -> dict[str, torch.Tensor]:
    folder = run / "checkpoints" / f"step-{step}"
    return load_file(folder / "model.safetensors") | load_file(folder / "optimizer.safetensors")


def are_equal(run: Path, expected: Path) -> bool:
    first, second = load_checkpoint(run), load_checkpoint(expected)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted")
    assert [rank.end() for rank in start_ranks([COMMAND] * 3, folder)] == [0, 0, 0]
    return folder / "run"


def test_a_killed_rank_ends_the_others_with_its_name_and_the_state_is_saved(tmp_path: Path) -> None:
    ranks = start_ranks([COMMAND + pause(1, 2, tmp_path)] * 2, tmp_path)
    ranks[0].wait_for("step 2/")
    send_signal(signal.SIGKILL, ranks[1], tmp_path)
    assert ranks[0].end() == RankError.exit_code
    newest = RunFolder(tmp_path / "run").newest()
    assert newest is not None
    assert newest.step == 2
    assert ranks[0].stderr.splitlines()[-1] == (
        f"regard: Rank 1 (process {ranks[1].pid} on {socket.gethostname()}) has ended: its process was killed, or its "
        f"machine has failed. The state after step 2 is saved. Run the same command to resume."
    )


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_the_same_command_resumes_after_a_rank_was_killed(uninterrupted: Path, tmp_path: Path, lost: int) -> None:
    command = COMMAND + pause(lost, 22, tmp_path)
    ranks = start_ranks([command] * 3, tmp_path)
    ranks[0].wait_for("step 22/")
    send_signal(signal.SIGKILL, ranks[lost], tmp_path)
    survivors = [rank for rank in ranks if rank is not ranks[lost]]
    assert [rank.end() for rank in survivors] == [RankError.exit_code] * 2
    for survivor in survivors:
        assert f"Rank {lost} (process {ranks[lost].pid} on " in survivor.stderr
        assert "Run the same command to resume." in survivor.stderr
        assert "Traceback" not in survivor.stderr
    newest = RunFolder(tmp_path / "run").newest()
    assert newest is not None
    assert newest.step == (22 if lost else 20)
    assert [rank.end() for rank in start_ranks([command] * 3, tmp_path)] == [0, 0, 0]
    assert are_equal(tmp_path / "run", uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
def test_a_sharded_run_resumes_from_its_last_checkpoint(tmp_path: Path, lost: int) -> None:
    command = with_settings({"training.shard": True})
    assert [rank.end() for rank in start_ranks([command] * 2, tmp_path / "uninterrupted")] == [0, 0]
    command += pause(lost, 25, tmp_path)
    ranks = start_ranks([command] * 2, tmp_path)
    ranks[0].wait_for("step 25/")
    send_signal(signal.SIGKILL, ranks[lost], tmp_path)
    survivor = ranks[1 - lost]
    assert survivor.end() == RankError.exit_code
    assert f"Rank {lost} (process {ranks[lost].pid} on " in survivor.stderr
    assert "is saved" not in survivor.stderr
    newest = RunFolder(tmp_path / "run").newest()
    assert newest is not None
    assert newest.step == 20
    assert [rank.end() for rank in start_ranks([command] * 2, tmp_path)] == [0, 0]
    assert are_equal(tmp_path / "run", tmp_path / "uninterrupted" / "run")


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
def test_a_stopped_rank_ends_the_others_by_the_timeout_with_its_name(tmp_path: Path, lost: int) -> None:
    ranks = start_ranks([COMMAND + pause(lost, 2, tmp_path)] * 2, tmp_path, {"REGARD_RANK_TIMEOUT": "16"})
    try:
        ranks[0].wait_for("step 2/")
        send_signal(signal.SIGSTOP, ranks[lost], tmp_path)
        survivor = ranks[1 - lost]
        assert survivor.end() == RankError.exit_code
        assert f"Rank {lost} (process {ranks[lost].pid} on " in survivor.stderr
        assert "does not respond: its process is stopped, or its machine cannot be reached." in survivor.stderr
        assert (RunFolder(tmp_path / "run").newest() is not None) == (lost == 1)
    finally:
        os.kill(ranks[lost].pid, signal.SIGKILL)


@pytest.mark.slow
def test_ranks_wait_longer_than_the_timeout_for_one_that_responds(tmp_path: Path) -> None:
    (tmp_path / "slow_validation.py").write_text(
        "import time\nfrom regard.training import checkpointing\n\n"
        "validate = checkpointing.validate\n\n"
        "def validate_slowly(*arguments):\n"
        "    time.sleep(20)\n"
        "    return validate(*arguments)\n\n"
        "checkpointing.validate = validate_slowly\n"
    )
    command = [*with_settings({"training.steps": 5}), "--import", "slow_validation.py"]
    ranks = start_ranks([command] * 2, tmp_path, {"REGARD_RANK_TIMEOUT": "16"})
    assert [rank.end() for rank in ranks] == [0, 0], ranks[0].stderr


@pytest.mark.slow
@pytest.mark.parametrize("late", [0, 1])
def test_a_rank_that_responds_but_does_not_complete_a_step_is_named(tmp_path: Path, late: int) -> None:
    (tmp_path / "slow_step.py").write_text(
        "import time\nfrom regard.training import loop\n\n"
        "take_step = loop.take_step\n\n"
        "def take_step_slowly(state):\n"
        f"    time.sleep(20 * (state.group.rank == {late} and state.progress.step == 3))\n"
        "    return take_step(state)\n\n"
        "loop.take_step = take_step_slowly\n"
    )
    command = [*COMMAND, "--import", "slow_step.py"]
    ranks = start_ranks([command] * 3, tmp_path, {"REGARD_RANK_TIMEOUT": "12"})
    assert [rank.end() for rank in ranks] == [RankError.exit_code] * 3
    for rank in ranks:
        assert f"Rank {late} (process {ranks[late].pid} on " in rank.stderr
        assert "responded, but did not complete a step within 12 s." in rank.stderr


def test_the_reason_why_one_rank_fails_is_sent_to_the_others(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("".join(f"{number}\t{number}\n" for number in range(300)))
    (tmp_path / "other").mkdir()
    command = ["train", "pairs", "data.train=/proc/self/cwd/train.tsv", "--out", str(tmp_path / "run")]
    ranks = start_ranks([command] * 3, tmp_path, cwd=lambda rank: tmp_path / "other" if rank == 2 else tmp_path)
    assert [rank.end() for rank in ranks] == [RankError.exit_code] * 2 + [DataError.exit_code]
    for rank in ranks[:2]:
        assert f"Rank 2 (process {ranks[2].pid} on " in rank.stderr
        assert "failed: There is no file /proc/self/cwd/train.tsv." in rank.stderr


def test_different_data_is_rejected_on_all_ranks(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        lines = (f"{word}\t{word + number}\n" for word in range(300))
        (tmp_path / str(number) / "train.tsv").write_text("".join(lines))
    command = ["train", "pairs", "data.train=/proc/self/cwd/train.tsv", "--out", str(tmp_path / "run")]
    ranks = start_ranks([command] * 2, tmp_path, cwd=lambda rank: tmp_path / str(rank))
    assert [rank.end() for rank in ranks] == [DataError.exit_code] * 2
    for rank in ranks:
        assert f"Rank 1 (process {ranks[1].pid} on " in rank.stderr
        assert "differs from rank 0 in /proc/self/cwd/train.tsv: " in rank.stderr
    assert RunFolder(tmp_path / "run").newest() is None


def test_different_arguments_are_rejected_on_all_ranks(tmp_path: Path) -> None:
    ranks = start_ranks([COMMAND, with_settings({"data.test": 41})], tmp_path)
    assert [rank.end() for rank in ranks] == [ConfigError.exit_code] * 2
    for rank in ranks:
        assert f"Rank 1 (process {ranks[1].pid} on " in rank.stderr
        assert "differs from rank 0 in argument 5 of the command: data.test=41 instead of data.test=40." in rank.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("the version of torch", "torch.__version__ = '0.0'"),
        ("the version of regard", "version.__version__ = '0.0'"),
        ("the source code of regard (SHA-256)", "version.__file__ = __file__"),
    ],
)
def test_different_software_is_rejected_on_all_ranks(tmp_path: Path, what: str, line: str) -> None:
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        content = f"import torch\nfrom regard import version\n{line}\n" if number else ""
        (tmp_path / str(number) / "plugin.py").write_text(content)
    command = [*COMMAND, "--import", "plugin.py"]
    ranks = start_ranks([command] * 2, tmp_path, cwd=lambda rank: tmp_path / str(rank))
    assert [rank.end() for rank in ranks] == [ConfigError.exit_code] * 2
    assert all(f"differs from rank 0 in {what}: " in rank.stderr for rank in ranks)


@pytest.mark.slow
def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    ranks = start_ranks([COMMAND] * 3, tmp_path, {"REGARD_RANK_TIMEOUT": "16"}, missing={1})
    assert [rank.end() for rank in ranks] == [RankError.exit_code] * 2
    assert all("Rank 1 of 3 did not connect to 127.0.0.1:" in rank.stderr for rank in ranks)


def test_a_missing_first_rank_and_an_unreachable_address_are_reported(tmp_path: Path) -> None:
    env = {"REGARD_RANK_TIMEOUT": "1"}
    (absent,) = start_ranks([COMMAND] * 2, tmp_path / "absent", env, missing={0})
    (unknown,) = start_ranks(
        [COMMAND] * 2, tmp_path / "unknown", {**env, "MASTER_ADDR": "unknown.invalid"}, missing={0}
    )
    assert [absent.end(), unknown.end()] == [ConfigError.exit_code] * 2
    assert "Rank 1 of 2 cannot connect to rank 0 at 127.0.0.1:" in absent.stderr
    assert "Connection refused" in absent.stderr
    assert "Rank 1 of 2 cannot connect to rank 0 at unknown.invalid:" in unknown.stderr


def test_more_ranks_than_pairs_in_a_step_are_rejected(tmp_path: Path) -> None:
    ranks = start_ranks([with_settings({"training.batch_size": 2})] * 3, tmp_path)
    assert [rank.end() for rank in ranks] == [ConfigError.exit_code] * 3
    assert all("A step has 2 pairs on average, too few for 3 ranks." in rank.stderr for rank in ranks)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RANK": None}, "WORLD_SIZE is set, but RANK is not"),
        ({"WORLD_SIZE": None}, "RANK is set, but WORLD_SIZE is not"),
        ({"RANK": "one"}, "RANK must be a number from 0 to 1000000, not 'one'"),
        ({"RANK": "2"}, "RANK=2, but WORLD_SIZE=2: ranks are numbered from 0 to 1"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE must be a number from 1 to 1000000, not '0'"),
        ({"MASTER_ADDR": None}, "MASTER_ADDR, the address of rank 0, is not set"),
        ({"MASTER_PORT": None}, "MASTER_PORT must be a number from 1 to 65535, not ''"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT must be a number from 1 to 65535, not 'http'"),
        ({"LOCAL_RANK": "-1"}, "LOCAL_RANK must be a number from 0 to 1000000, not '-1'"),
    ],
)
def test_wrong_variables_are_rejected(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, str | None], message: str
) -> None:
    for name, value in (VARIABLES | change).items():
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as raised:
        count_ranks()
    assert message in str(raised.value)
    assert get_rank() == 0


@pytest.mark.parametrize("value", ["0", "soon", "nan", "-3"])
def test_a_wrong_timeout_is_rejected(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("REGARD_RANK_TIMEOUT", value)
    with pytest.raises(ConfigError, match="REGARD_RANK_TIMEOUT must be a number of seconds from 1 to 1000000"):
        read_timeout()


@pytest.mark.slow
def test_torchrun_restarts_and_resumes_by_itself(uninterrupted: Path, tmp_path: Path) -> None:
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node=3", "--max-restarts=1"]
    command = [sys.executable, "-m", *launcher, "-m", "regard", *COMMAND, "--import", "kill_once.py"]
    (tmp_path / "kill_once.py").write_text(
        "import os, signal\nfrom regard.training import loop\n\n"
        "take_step = loop.take_step\n\n"
        "def take_step_or_die(state):\n"
        "    if state.group.rank == 1 and state.progress.step == 30 and not os.path.exists('killed'):\n"
        "        open('killed', 'w').close()\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return take_step(state)\n\n"
        "loop.take_step = take_step_or_die\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "killed").exists()
    assert "The state after step 30 is saved." in done.stderr
    assert "from step 30 " in done.stderr
    assert are_equal(tmp_path / "run", uninterrupted)
