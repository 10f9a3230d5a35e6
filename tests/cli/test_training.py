"""`regard train`: data, signals, lock, disk, divergence."""

import gzip
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from regard.runs.folder import RunFolder
from regard.runs.stored_checkpoint import FORMAT
from tests_command import HANG
from tests_shared import SMALL, to_arguments

Run = Callable[..., subprocess.CompletedProcess[str]]
PAIRS = [word for word in to_arguments(SMALL) if not word.startswith("data.")] + ["training.device=cpu"]


def train_dates(changes: Mapping[str, object]) -> list[str]:
    """Return the arguments of a short training."""
    return ["train", "dates", *to_arguments({**SMALL, **changes}), "--out", "run"]


DATES = train_dates({})
LONG = train_dates({"training.steps": 100_000, "training.patience": 100_000})


def start(cwd: Path, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "regard", *arguments]
    return subprocess.Popen(command, cwd=cwd, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def wait_for(process: "subprocess.Popen[str]", word: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if word in line:
            return
    raise AssertionError(f"{word!r} was not printed")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_training_after_the_step_and_saves(cli: Run, tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path, *LONG)
    wait_for(process, "step 15/")
    process.send_signal(number)
    _, message = process.communicate(timeout=HANG)
    assert process.returncode == 75
    assert f"Stopped by {number.name} after step" in message
    newest = RunFolder(tmp_path / "run").newest()
    assert newest is not None
    assert newest.step >= 15
    assert f"after step {newest.step}" in message
    assert cli("predict", "run", "3 mai 2009").returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_training_stops_at_once_and_reports_that_nothing_was_lost(
    tmp_path: Path, number: signal.Signals
) -> None:
    """The signal arrives while settings are chosen. One line of 500,000 characters must not delay it."""
    pairs = [f"number {index}\tNummer {index}" for index in range(100)]
    line = "".join(random.Random(0).choices("abcdefghij", k=500_000))
    (tmp_path / "pairs.tsv").write_text("\n".join([*pairs, f"{line}\tlong"]))
    process = start(tmp_path, "train", "--pairs", "pairs.tsv", "training.device=cpu", "--minutes", "1")
    wait_for(process, "Data:")
    process.send_signal(number)
    _, message = process.communicate(timeout=HANG)
    assert process.returncode == 75
    assert f"Stopped by {number.name} before training started. Run the same command to start again." in message
    assert "Traceback" not in message


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_first_imports_stops_at_once(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "regard", *DATES]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        wait_for(process, "pydantic_core")
        process.send_signal(number)
        _, message = process.communicate(timeout=HANG)
    assert process.returncode == 75
    assert f"regard: Stopped by {number.name}. Run the same command again." in message
    assert "Traceback" not in message


SWALLOWING = """
import os, signal
from contextlib import suppress
from regard.errors import Interrupted
from regard.training.signals import stop_on_signals

try:
    with stop_on_signals() as stop:
        stop.resumed = True
        with suppress(KeyboardInterrupt):  # as native libraries do
            os.kill(os.getpid(), signal.SIGTERM)
except Interrupted as stopped:
    print(stopped, flush=True)
with stop_on_signals() as stop, stop.imports():
    os.kill(os.getpid(), signal.SIGINT)
"""


def test_a_signal_is_not_lost_if_a_library_ignores_the_exception() -> None:
    done = subprocess.run([sys.executable, "-c", SWALLOWING], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("Stopped by SIGTERM before training was resumed. Run the same command to resume.")
    assert done.returncode == 75
    assert done.stderr.startswith("regard: Stopped by SIGINT before training started")


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_full_stderr_does_not_end_training(tmp_path: Path) -> None:
    command = shlex.join([sys.executable, "-m", "regard", *DATES])
    done = subprocess.run(
        ["bash", "-c", f"{command} 2> /dev/full"], cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "run\n")


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_full_stderr_does_not_end_training_from_python(tmp_path: Path) -> None:
    settings = "{" + ", ".join(f"'{key}': {value}" for key, value in SMALL.items()) + "}"
    code = f"import regard; print(regard.train('dates', {settings}, out='run').steps)"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, stderr=full, text=True, check=False
        )
    assert (done.returncode, done.stdout) == (0, "30\n")


WAITING = """
import time
from regard.training.signals import stop_on_signals

with stop_on_signals() as stop:
    stop.deferred = True
    print("ready", flush=True)
    while not stop:
        time.sleep(0.01)
    print("stopping", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_exits_immediately(number: signal.Signals) -> None:
    """The process is in a step that takes a minute."""
    with subprocess.Popen([sys.executable, "-c", WAITING], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in ("ready\n", "stopping\n"):
            assert process.stdout.readline() == line
            process.send_signal(number)
        assert process.wait(timeout=HANG) == 128 + number


def test_equal_sources_cannot_be_split_into_training_and_validation_data(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("one source\tone target\n" * 200)
    (tmp_path / "settings.yaml").write_text("data: {kind: files, train: pairs.tsv}")
    done = cli("train", "settings.yaml", "--out", "run")
    assert done.returncode == 3
    assert "pairs.tsv has 200 pairs with 1 distinct source, which is too few to hold out some" in done.stderr
    assert "pairs with the same source are kept in the same split" in done.stderr


def test_a_run_folder_that_does_not_exist_may_have_been_moved(cli: Run) -> None:
    for words, code in ((["train", "runs/x"], 2), (["explain", "runs/x"], 2), (["predict", "runs/x", "a"], 4)):
        done = cli(*words)
        assert done.returncode == code
        assert "runs/x. If it was moved, pass its new path" in done.stderr


@pytest.mark.slow
def test_a_second_process_is_rejected_and_a_killed_one_releases_the_lock(cli: Run, tmp_path: Path) -> None:
    process = start(tmp_path, *LONG)
    wait_for(process, "step 15/")  # there is a checkpoint
    second = cli(*LONG)
    assert second.returncode == 6
    assert f"process {process.pid} is training there" in second.stderr
    process.kill()
    process.communicate()
    changed = cli(*LONG, "seed=3")
    assert changed.returncode == 2
    assert "seed was 0 and is now 3" in changed.stderr


def test_only_settings_that_may_change_on_resume_can_be_changed(cli: Run, small_run: RunFolder, tmp_path: Path) -> None:
    shutil.copytree(small_run.path, tmp_path / "run")
    changed = cli(*train_dates({"model.embedding": 17, "training.learning_rate": 0.5}))
    assert changed.returncode == 2
    assert "model.embedding was 16 and is now 17" in changed.stderr
    assert "training.learning_rate was 0.012 and is now 0.5" in changed.stderr
    assert "--out" in changed.stderr
    allowed = cli(*train_dates({"training.log_every": 7, "training.keep_checkpoints": 5}))
    assert allowed.returncode == 0
    assert "already been trained" in allowed.stderr


@pytest.mark.parametrize(
    "arguments", [["dates", "--out", "mine"], ["--pairs", "pairs.tsv", "--out", "mine"], ["dates", "--out", "mine/"]]
)
def test_a_config_of_another_program_is_reported_before_torch_is_loaded_and_not_changed(
    cli: Run, tmp_path: Path, arguments: list[str]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.yaml").write_text("trainer: {max_epochs: 3}\n")
    (tmp_path / "pairs.tsv").write_text("a\tb\n" * 100)
    code = (
        "import sys; from regard.cli import main; sys.argv = ['regard', 'train', *sys.argv[1:]]\n"
        "try: main()\n"
        "finally: print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "False\n")
    assert f"mine contains a config.yaml that this version of regard (format {FORMAT}) did not write" in done.stderr
    assert "unknown setting 'trainer'" in done.stderr
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["config.yaml"]
    assert (tmp_path / "mine" / "config.yaml").read_text() == "trainer: {max_epochs: 3}\n"


def test_a_run_folder_as_argument_resumes_the_run(cli: Run, small_run: RunFolder, tmp_path: Path) -> None:
    shutil.copytree(small_run.path, tmp_path / "run")
    done = cli("train", "run")
    assert done.returncode == 0
    assert done.stdout == "run\n"


def test_training_on_data_files(cli: Run, tmp_path: Path) -> None:
    rows = [f"{n}\t{n + 1}\n" for n in range(300)]
    (tmp_path / "train.tsv.gz").write_bytes(gzip.compress("".join(rows[:250]).encode()))
    (tmp_path / "dev.tsv").write_text("".join(rows[250:]))
    command = ["train", "pairs", "data.train=train.tsv.gz", "data.dev=dev.tsv", *PAIRS, "--out", "run"]
    done = cli(*command)
    assert done.returncode == 0, done.stderr
    assert "validation at step 10" in done.stderr
    assert "tokens/s" in done.stderr
    assert len((tmp_path / "run" / "card.md").read_text()) > 100
    evaluated = cli("evaluate", "run")
    assert evaluated.returncode == 3
    assert "without a test set" in evaluated.stderr
    (tmp_path / "dev.tsv").write_text("".join(rows[251:]))
    before = {path: path.read_bytes() for path in (tmp_path / "run").glob("*.json*")}
    changed = cli(*command)
    assert {path: path.read_bytes() for path in (tmp_path / "run").glob("*.json*")} == before
    assert changed.returncode == 3
    assert "dev.tsv: the data has changed since run was started" in changed.stderr


@pytest.mark.slow
def test_a_bare_data_file_is_trained_on(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "numbers.tsv").write_text("".join(f"{n}\t{n + 1}\n" for n in range(300)))
    done = cli("train", "numbers.tsv", *PAIRS)
    assert done.returncode == 0, done.stderr
    assert "numbers.tsv is a data file: training on it as with --pairs numbers.tsv." in done.stderr
    assert done.stdout == "runs/numbers\n"
    missing = cli("train", "other.jsonl.gz")
    assert missing.returncode == 3
    assert "There is no file other.jsonl.gz" in missing.stderr


@pytest.mark.parametrize(
    "arguments",
    [["numbers.tsv", "dev.csv"], ["dates", "numbers.tsv"], ["--pairs", "numbers.tsv", "dev.tsv"]],
    ids=" ".join,
)
def test_a_second_data_file_without_an_option_is_rejected(cli: Run, arguments: list[str]) -> None:
    done = cli("train", *arguments)
    assert done.returncode == 2
    assert f"{arguments[-1]} is not a KEY=VALUE setting. Pass training data with --pairs" in done.stderr


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.tsv", None, "There is no file train.tsv"),
        ("train.tsv", b"", "train.tsv is empty"),
        ("train.tsv", b"one column\n", "train.tsv:1: 1 column instead of 2"),
        ("train.tsv", b"a\tb\n\xe9\tc\n", "train.tsv:2: byte 0 is not UTF-8 (0xe9)"),
        ("train.tsv", b"a\tb\n\0\tc\n", "train.tsv:2: a NUL byte"),
        ("train.tsv", b"a\t" + b"b" * 1_000_000 + b"\n", "train.tsv:1: the line is longer than"),
        ("train.tsv.gz", gzip.compress(b"a\tb\n" * 500, mtime=0)[:-9], "train.tsv.gz is a damaged gzip file"),
    ],
)
def test_unusable_data_is_reported(cli: Run, tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    done = cli("train", "pairs", f"data.train={name}", "--out", "run")
    assert done.returncode == 3
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_unequal_line_counts_and_folders_are_reported(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x\n" * 3)
    (tmp_path / "b").write_text("x\n" * 4)
    done = cli("train", "pairs", "data.train={source: a, target: b}", "--out", "run")
    assert done.returncode == 3
    assert "a has 3 lines and b has 4." in done.stderr
    (tmp_path / "folder").mkdir()
    done = cli("train", "pairs", "data.train=folder", "--out", "run")
    assert done.returncode == 3
    assert "folder is a folder" in done.stderr


def test_divergence_is_reported(cli: Run, tmp_path: Path) -> None:
    done = cli(*train_dates({"training.learning_rate": 1e30, "training.warmup": 0}))
    assert done.returncode == 5
    assert re.search(r"Training diverged at step \d: the loss is (nan|inf)", done.stderr)
    assert "The batch holds the training pairs" in done.stderr
    assert "learning_rate" in done.stderr


@pytest.mark.slow
def test_a_full_disk_is_reported_and_the_run_can_be_resumed(cli: Run, small_run: RunFolder, tmp_path: Path) -> None:
    """A limit on the file size replaces a full disk: the same system call fails."""
    resource = pytest.importorskip("resource")
    (tmp_path / "run").mkdir()
    largest = max(path.stat().st_size for path in small_run.checkpoints.rglob("*"))

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest - 1, largest - 1))

    command = [sys.executable, "-m", "regard", *DATES]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, preexec_fn=limit, check=False)
    assert done.returncode == 7
    assert "run could not be written: File too large" in done.stderr
    assert "Traceback" not in done.stderr
    again = cli(*DATES)
    assert again.returncode == 0
    assert not list((tmp_path / "run" / "checkpoints").glob(".step-*"))
