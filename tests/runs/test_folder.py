"""A run folder that is hostile, moved or hard to read: nothing outside it is written, no good checkpoint is lost."""

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import regard
from regard.data.cache import sha256
from regard.runs.folder import RunFolder
from regard.runs.lock import lock_folder
from regard.training import loop
from regard.training.machine import report_disk_failures
from tests_shared import SMALL, stopped_at

Run = Callable[..., subprocess.CompletedProcess[str]]
ROOT = Path(__file__).parents[2]
SETTINGS = {
    **SMALL,
    "training.steps": 4,
    "training.validate_every": 2,
    "training.save_every": 2,
    "training.keep_checkpoints": 9,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("folder") / "run"
    regard.train("dates", SETTINGS, out=path)
    return path


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def content(path: Path) -> dict[str, bytes]:
    """Every file in a folder."""
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    "name",
    [
        "card.md",
        ".card.md",
        ".lock",
        "config.yaml",
        ".config.yaml",
        ".tokenizer.json",
        "events.jsonl",
        ".events.jsonl",
        "checkpoints",
        "checkpoints/.step-6",
        "checkpoints/step-4/state.json",
        "tensorboard",
    ],
)
def test_a_link_in_a_run_is_rejected_and_its_target_left_alone(cli: Run, run: Path, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    place = run / name
    if place.exists():
        shutil.move(place, outside)
    else:
        outside.write_text("precious")
    place.symlink_to(outside)
    before = content(outside) if outside.is_dir() else outside.read_bytes()
    used = [("predict", "run", "8 May"), ("evaluate", "run"), ("look", "run"), ("look", "run", "8 May")]
    for command in [("train", "run"), *(used if name == "card.md" else used[:1])]:
        done = cli(*command)
        assert done.returncode == 4, done.stderr
        assert f"run/{name} is a symbolic link" in done.stderr
    assert (content(outside) if outside.is_dir() else outside.read_bytes()) == before


def make_fifo(path: Path) -> str:
    os.mkfifo(path)
    return "a FIFO"


def make_socket(path: Path) -> str:
    os.chdir(path.parent)  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)
    return "a socket"


@pytest.mark.parametrize("make", [make_fifo, make_socket])
@pytest.mark.parametrize("name", ["config.yaml", "tokenizer.json", ".lock", "notes"])
def test_a_special_file_in_a_run_is_rejected_before_it_is_opened(
    cli: Run, run: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], str], name: str
) -> None:
    monkeypatch.chdir(run)
    (run / name).unlink(missing_ok=True)
    kind = make(run / name)
    for command in (("train", "run"), ("predict", "run", "8 May")):
        done = cli(*command, timeout=20)
        assert done.returncode == 4, done.stderr
        assert f"run/{name} is {kind}" in done.stderr


def test_a_lock_that_is_another_file_by_a_second_name_is_not_written_to(run: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("precious")
    (run / ".lock").unlink()
    os.link(tmp_path / "outside", run / ".lock")
    with pytest.raises(regard.ModelError, match=r"\.lock is a link"):
        regard.train("dates", SETTINGS, out=run)
    assert (tmp_path / "outside").read_text() == "precious"


def test_files_are_written_anew_and_never_through_a_link(tmp_path: Path) -> None:
    """Also where a link is made after the folder was looked at."""
    (tmp_path / "outside").write_text("precious")
    (tmp_path / "elsewhere").mkdir()
    with lock_folder(tmp_path / "run") as locked:
        for name in ("card.md", ".card.md"):
            (tmp_path / "run" / name).symlink_to(tmp_path / "outside")
        os.link(tmp_path / "outside", tmp_path / "run" / "config.yaml")
        (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "elsewhere")
        locked.directory.write("card.md", b"ours")
        locked.directory.write("config.yaml", b"ours")
        with pytest.raises(OSError), locked.directory.subdirectory("checkpoints"):  # noqa: PT011 - the number varies
            pass
        locked.directory.remove("checkpoints")
    assert not (tmp_path / "run" / "card.md").is_symlink()
    assert content(tmp_path / "run")["card.md"] == content(tmp_path / "run")["config.yaml"] == b"ours"
    assert (tmp_path / "outside").read_text() == "precious"
    assert (tmp_path / "elsewhere").is_dir()


def test_the_path_to_a_run_may_be_a_link(cli: Run, run: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(run)
    assert cli("train", "latest").returncode == 0
    assert cli("predict", "latest", "8 May 2001").returncode == 0


@pytest.fixture
def moving(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], object]], None]:
    """Have something happen after a step."""

    def after(step: int, happens: Callable[[], object]) -> None:
        take = loop.take_step

        def taken(run: loop.TrainingState) -> tuple[float, int]:
            found = take(run)
            if run.progress.step == step:
                happens()
            return found

        monkeypatch.setattr(loop, "take_step", taken)

    return after


Moving = Callable[[int, Callable[[], object]], None]


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_run_that_is_moved_while_it_trains_stops_where_it_went(
    trained: Path, tmp_path: Path, moving: Moving, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    shutil.copytree(trained, tmp_path / "other")

    def swap() -> None:
        (tmp_path / "run").rename(tmp_path / "moved")
        (tmp_path / "other").rename(tmp_path / "run")

    before = content(tmp_path / "other")
    with monkeypatch.context():
        moving(step, swap)
        with pytest.raises(regard.RunInUseError, match=rf"was moved to .*moved .*after step {step} is saved there"):
            regard.train(
                "dates",
                {**SETTINGS, "training.keep_checkpoints": 1, "training.track": "tensorboard"},
                out=tmp_path / "run",
            )
    assert content(tmp_path / "run") == before
    monkeypatch.undo()
    assert RunFolder(tmp_path / "moved").all_checkpoints()[0].step == step
    regard.train(tmp_path / "moved")
    ends = [load_file(path / "checkpoints/step-4/model.safetensors") for path in (trained, tmp_path / "moved")]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_a_run_that_is_removed_while_it_trains_ends_with_a_message(tmp_path: Path, moving: Moving) -> None:
    moving(3, lambda: shutil.rmtree(tmp_path / "run"))
    with pytest.raises(regard.RunInUseError, match=r"run or the \.lock in it was moved, removed or replaced"):
        regard.train("dates", SETTINGS, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_lock_that_another_process_has_taken_is_respected(tmp_path: Path, moving: Moving) -> None:
    """As when somebody removed the lock by hand and started a second process."""

    def replace() -> None:
        (tmp_path / "run" / ".lock").unlink()
        (tmp_path / "run" / ".lock").write_text("1")

    moving(3, replace)
    with pytest.raises(regard.RunInUseError, match="replaced"):
        regard.train("dates", SETTINGS, out=tmp_path / "run")
    assert [entry.step for entry in RunFolder(tmp_path / "run").all_checkpoints()] == [2]


def test_a_link_that_leads_elsewhere_later_does_not_stop_a_run(tmp_path: Path, moving: Moving) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (tmp_path / "latest").symlink_to("one")

    def lead_elsewhere() -> None:
        (tmp_path / "latest").unlink()
        (tmp_path / "latest").symlink_to("two")

    moving(1, lead_elsewhere)
    regard.train("dates", SETTINGS, out=tmp_path / "latest")
    assert RunFolder(tmp_path / "one").all_checkpoints()[0].step == 4
    assert not list((tmp_path / "two").iterdir())


FILES = ["manifest.json", "state.json", "model.safetensors", "optimizer.safetensors"]


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_cannot_be_read_makes_the_checkpoint_before_it_serve(
    run: Path, trained: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """A directory in its place, which root cannot read as a file either."""
    file = run / "checkpoints" / "step-4" / name
    file.unlink()
    file.mkdir()
    assert regard.load(run).step == 2
    assert f"{file} cannot be read (Is a directory); the checkpoint before it is used." in caplog.text
    assert regard.train(run).steps == 4
    ends = [load_file(path / "checkpoints/step-4/model.safetensors") for path in (trained, run)]
    assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace injects what goes wrong, and is not installed")
@pytest.mark.parametrize(
    ("file", "inject", "command"),
    [
        ("model.safetensors", "read:error=EIO", "predict"),
        ("model.safetensors", "openat:error=EIO:when=3+", "predict"),  # after its hash was checked
        ("optimizer.safetensors", "openat:error=EACCES", "train"),
    ],
)
def test_an_error_of_the_disk_makes_the_checkpoint_before_it_serve(
    run: Path, file: str, inject: str, command: str
) -> None:
    path = run / "checkpoints" / "step-4" / file
    call = inject.partition(":")[0]
    trace = ["strace", "-f", "--seccomp-bpf", "-o", os.devnull, "-P", str(path), "-e", f"trace={call}"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    words = [command, str(run), *(["3 mai 2009"] if command == "predict" else [])]
    words = [*trace, "-e", f"inject={inject}", sys.executable, "-m", "regard", *words]
    done = subprocess.run(words, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{path} cannot be read (" in done.stderr
    assert "space" not in done.stderr


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (
            errno.EIO,
            "corpus.tsv could not be read or written: Input/output error. Earlier checkpoints are valid: check",
        ),
        (
            errno.ENOSPC,
            "runs/a could not be written: No space left on device. Earlier checkpoints are valid: free some",
        ),
    ],
)
def test_a_failing_disk_is_not_reported_as_a_full_one(number: int, message: str) -> None:
    with pytest.raises(regard.ResourceError, match=message), report_disk_failures(RunFolder(Path("runs/a"))):
        raise OSError(number, os.strerror(number), "corpus.tsv")


def test_where_no_checkpoint_can_be_read_it_is_said_which(cli: Run, run: Path) -> None:
    for step in (2, 4):
        state = run / "checkpoints" / f"step-{step}" / "state.json"
        state.unlink()
        state.mkdir()
    done = cli("predict", "run", "3 mai 2009")
    assert done.returncode == 4
    assert "step-4/state.json cannot be read (Is a directory), and no earlier checkpoint is valid" in done.stderr


def change(run: Path, file: str, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change the newest checkpoint's tensors, with a manifest that agrees."""
    path = run / "checkpoints" / "step-4"
    tensors = load_file(path / file)
    edit(tensors)
    save_file(tensors, path / file)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"][file] = sha256(path / file)
    (path / "manifest.json").write_text(json.dumps(manifest))


def keep_newest(run: Path) -> None:
    shutil.rmtree(run / "checkpoints" / "step-2")


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_weights_that_are_not_finite_are_rejected_by_name(cli: Run, run: Path, value: float) -> None:
    keep_newest(run)
    name = "encoder.embedding.weight"
    change(run, "model.safetensors", lambda tensors: tensors[name][3, 0:1].fill_(value))
    for command in (
        ["predict", "run", "8 May 2001"],
        ["predict", "run", "--json", "--beam", "3", "8 May"],
        ["train", "run"],
    ):
        done = cli(*command)
        assert (done.returncode, done.stdout) == (4, "")
        assert f"model.safetensors: the tensor {name} contains NaN or infinity" in done.stderr


@pytest.mark.parametrize("search", [[], ["--beam", "3"], ["--set", "sample=true"]])
def test_a_model_that_computes_nan_from_finite_weights_is_rejected(cli: Run, run: Path, search: list[str]) -> None:
    keep_newest(run)

    def overflow(tensors: dict[str, torch.Tensor]) -> None:
        for tensor in tensors.values():
            tensor.fill_(1e38)

    change(run, "model.safetensors", overflow)
    done = cli("predict", "run", "8 May 2001", *search)
    assert (done.returncode, done.stdout) == (4, "")
    assert "The model computes values that are not finite" in done.stderr


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int32, torch.float8_e4m3fn])
def test_weights_of_another_type_are_rejected_by_name(cli: Run, run: Path, dtype: torch.dtype) -> None:
    keep_newest(run)
    name = "encoder.embedding.weight"
    change(run, "model.safetensors", lambda tensors: tensors.update({name: tensors[name].to(dtype)}))
    done = cli("predict", "run", "8 May 2001")
    assert done.returncode == 4
    assert f"the tensor {name} has the type {str(dtype).removeprefix('torch.')} and must have float32" in done.stderr


def test_an_optimizer_that_is_not_finite_is_rejected_by_name(run: Path) -> None:
    keep_newest(run)
    name = "encoder.embedding.weight/exp_avg"
    change(run, "optimizer.safetensors", lambda tensors: tensors[name].fill_(torch.nan))
    with pytest.raises(regard.ModelError, match=rf"optimizer.safetensors: the tensor {name} contains NaN"):
        regard.train(run)
    assert regard.load(run).step == 4


def test_weights_that_are_not_finite_are_never_saved(
    tmp_path: Path, moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[loop.TrainingState] = []
    start = loop.start_training

    def started(*args: Any) -> loop.TrainingState:
        runs.append(start(*args))
        return runs[0]

    monkeypatch.setattr(loop, "start_training", started)
    moving(3, lambda: next(runs[0].model.parameters()).data.fill_(torch.inf))
    settings = {**SETTINGS, "training.save_every": 3}
    with pytest.raises(regard.DivergedError, match=r"by step 3: .* contains NaN or infinity\. Nothing was saved"):
        regard.train("dates", settings, out=tmp_path / "run")
    assert [entry.step for entry in RunFolder(tmp_path / "run").all_checkpoints()] == [2]


def test_a_manifest_cannot_name_files_outside_the_run(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = run / "checkpoints" / "step-4" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"]["../../../../../../../../dev/zero"] = "0"
    path.write_text(json.dumps(manifest))
    assert regard.load(run).step == 2
    assert "lists a file outside the run folder" in caplog.text


def test_a_stopped_run_is_resumed_through_a_descriptor_that_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    with stopped_at(3, monkeypatch):
        regard.train("dates", SETTINGS, out=tmp_path / "run")
    regard.train("dates", SETTINGS, out=tmp_path / "run")
    after = len(os.listdir("/proc/self/fd")) if before else 0
    assert after <= before + 2  # torch and the data may hold some of their own
