"""Run folders that contain links, are moved, cannot be read or have another format: nothing is written outside the
folder, and no valid checkpoint is lost.
"""

import errno
import json
import os
import re
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
from regard.errors import ModelError
from regard.runs.directory import lock_folder
from regard.runs.folder import RunFolder, open_model
from regard.runs.stored_checkpoint import FORMAT
from regard.training import loop
from regard.training.machine import report_disk_failures
from regard.training.state import TrainingState, start_training
from tests_command import HANG
from tests_shared import SMALL, stop_at

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
    """Return every file in a folder."""
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.posix
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
def test_a_link_in_a_run_is_rejected_and_its_target_is_unchanged(
    cli: Run, run: Path, tmp_path: Path, name: str
) -> None:
    outside = tmp_path / "outside"
    link = run / name
    if link.exists():
        shutil.move(link, outside)
    else:
        outside.write_text("precious")
    link.symlink_to(outside)
    before = content(outside) if outside.is_dir() else outside.read_bytes()
    readers = [("predict", "run", "8 May"), ("evaluate", "run"), ("look", "run"), ("look", "run", "8 May")]
    for command in [("train", "run"), *(readers if name == "card.md" else readers[:1])]:
        done = cli(*command)
        assert done.returncode == 4, done.stderr
        assert f"run/{name} is a symbolic link" in done.stderr
    assert (content(outside) if outside.is_dir() else outside.read_bytes()) == before


def make_fifo(path: Path) -> str:
    os.mkfifo(path)
    return "a FIFO"


def make_socket(path: Path) -> str:
    os.chdir(path.parent)  # the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)
    return "a socket"


@pytest.mark.posix
@pytest.mark.parametrize("make", [make_fifo, make_socket])
@pytest.mark.parametrize("name", ["config.yaml", "tokenizer.json", ".lock", "notes"])
def test_a_special_file_in_a_run_is_rejected_before_it_is_opened(
    cli: Run, run: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], str], name: str
) -> None:
    monkeypatch.chdir(run)
    (run / name).unlink(missing_ok=True)
    kind = make(run / name)
    for command in (("train", "run"), ("predict", "run", "8 May")):
        done = cli(*command, timeout=HANG)
        assert done.returncode == 4, done.stderr
        assert f"run/{name} is {kind}" in done.stderr


@pytest.mark.posix
def test_a_lock_that_is_a_hard_link_is_not_written_to(run: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("precious")
    (run / ".lock").unlink()
    os.link(tmp_path / "outside", run / ".lock")
    with pytest.raises(regard.ModelError, match=r"\.lock is a link"):
        regard.train("dates", SETTINGS, out=run)
    assert (tmp_path / "outside").read_text() == "precious"


def test_files_are_replaced_and_never_written_through_a_link(tmp_path: Path) -> None:
    """Even if the link is created after the folder was checked."""
    (tmp_path / "outside").write_text("precious")
    (tmp_path / "elsewhere").mkdir()
    with lock_folder(tmp_path / "run") as locked:
        for name in ("card.md", ".card.md"):
            (tmp_path / "run" / name).symlink_to(tmp_path / "outside")
        os.link(tmp_path / "outside", tmp_path / "run" / "config.yaml")
        (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "elsewhere")
        locked.directory.write("card.md", b"new")
        locked.directory.write("config.yaml", b"new")
        with pytest.raises(OSError), locked.directory.subdirectory("checkpoints"):  # noqa: PT011 - the number varies
            pass
        locked.directory.remove("checkpoints")
    assert not (tmp_path / "run" / "card.md").is_symlink()
    assert content(tmp_path / "run")["card.md"] == content(tmp_path / "run")["config.yaml"] == b"new"
    assert (tmp_path / "outside").read_text() == "precious"
    assert (tmp_path / "elsewhere").is_dir()


def test_the_path_to_a_run_may_be_a_link(cli: Run, run: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(run)
    assert cli("train", "latest").returncode == 0
    assert cli("predict", "latest", "8 May 2001").returncode == 0


@pytest.fixture
def after_step(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], object]], None]:
    """Run a function after a step of training."""

    def patch(step: int, function: Callable[[], object]) -> None:
        take_step = loop.take_step  # type: ignore[attr-defined]  # a previous call may have replaced it

        def patched(state: TrainingState) -> tuple[float, int]:
            result = take_step(state)
            if state.progress.step == step:
                function()
            return result

        monkeypatch.setattr(loop, "take_step", patched)

    return patch


AfterStep = Callable[[int, Callable[[], object]], None]


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_run_that_is_moved_while_it_trains_stops_and_saves_in_the_moved_folder(
    trained: Path, tmp_path: Path, after_step: AfterStep, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    shutil.copytree(trained, tmp_path / "other")

    def swap() -> None:
        (tmp_path / "run").rename(tmp_path / "moved")
        (tmp_path / "other").rename(tmp_path / "run")

    before = content(tmp_path / "other")
    with monkeypatch.context():
        after_step(step, swap)
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
    expected, weights = (
        load_file(path / "checkpoints/step-4/model.safetensors") for path in (trained, tmp_path / "moved")
    )
    assert all(torch.equal(expected[name], weights[name]) for name in expected)


def test_a_run_that_is_removed_while_it_trains_ends_with_a_message(tmp_path: Path, after_step: AfterStep) -> None:
    after_step(3, lambda: shutil.rmtree(tmp_path / "run"))
    with pytest.raises(regard.RunInUseError, match=r"run and its checkpoints were removed during training"):
        regard.train("dates", SETTINGS, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_lock_that_another_process_has_replaced_stops_training(tmp_path: Path, after_step: AfterStep) -> None:
    """As if a user had removed the lock and started a second process."""

    def replace() -> None:
        (tmp_path / "run" / ".lock").unlink()
        (tmp_path / "run" / ".lock").write_text("1")

    after_step(3, replace)
    with pytest.raises(regard.RunInUseError, match="replaced"):
        regard.train("dates", SETTINGS, out=tmp_path / "run")
    assert [entry.step for entry in RunFolder(tmp_path / "run").all_checkpoints()] == [2]


def test_a_link_that_is_changed_later_does_not_stop_a_run(tmp_path: Path, after_step: AfterStep) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (tmp_path / "latest").symlink_to("one")

    def change_link() -> None:
        (tmp_path / "latest").unlink()
        (tmp_path / "latest").symlink_to("two")

    after_step(1, change_link)
    regard.train("dates", SETTINGS, out=tmp_path / "latest")
    assert RunFolder(tmp_path / "one").all_checkpoints()[0].step == 4
    assert not list((tmp_path / "two").iterdir())


FILES = ["manifest.json", "state.json", "model.safetensors"]


@pytest.mark.parametrize("name", FILES)
def test_the_previous_checkpoint_is_used_if_a_file_cannot_be_read(
    run: Path, trained: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """The file is replaced by a directory, which root cannot read either."""
    file = run / "checkpoints" / "step-4" / name
    file.unlink()
    file.mkdir()
    assert regard.load(run).step == 2
    assert f"{file} cannot be read (Is a directory); the previous checkpoint is used." in caplog.text
    assert regard.train(run).steps == 4
    expected, weights = (load_file(path / "checkpoints/step-4/model.safetensors") for path in (trained, run))
    assert all(torch.equal(expected[key], weights[key]) for key in expected)


OPTIMIZERS = "checkpoints/*/optimizer.safetensors"


def test_a_model_without_the_state_of_the_optimizer_can_be_used_but_not_resumed(cli: Run, run: Path) -> None:
    expected = cli("predict", run, "8 May", "--json")
    for file in run.glob(OPTIMIZERS):
        file.unlink()
    done = cli("predict", run, "8 May", "--json")
    assert (done.returncode, done.stdout, done.stderr) == (0, expected.stdout, "")
    before = content(run)
    resumed = cli("train", run)
    assert resumed.returncode == 4, resumed.stderr
    assert "training cannot be resumed without the state of the optimizer" in resumed.stderr
    assert {**content(run), ".lock": b""} == {**before, ".lock": b""}


def damage(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def replace_by_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("change", [damage, Path.unlink, replace_by_directory])
def test_the_state_of_the_optimizer_does_not_change_which_checkpoint_predicts(
    run: Path, trained: Path, caplog: pytest.LogCaptureFixture, change: Callable[[Path], object]
) -> None:
    """Training resumes from the previous checkpoint, and ends with the same weights."""
    file = run / "checkpoints" / "step-4" / "optimizer.safetensors"
    change(file)
    assert regard.load(run).step == regard.load(trained).step
    assert not caplog.text
    assert regard.train(run).steps == 4
    assert f"{file} " in caplog.text
    expected, weights = (load_file(path / "checkpoints/step-4/model.safetensors") for path in (trained, run))
    assert all(torch.equal(expected[key], weights[key]) for key in expected)
    assert load_file(file)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace, which injects the errors, is not installed")
@pytest.mark.parametrize(
    ("file", "inject", "command"),
    [
        ("model.safetensors", "read:error=EIO", "predict"),
        ("model.safetensors", "openat:error=EIO:when=3+", "predict"),  # after its hash was checked
        ("optimizer.safetensors", "openat:error=EACCES", "train"),
    ],
)
def test_the_previous_checkpoint_is_used_after_a_disk_error(run: Path, file: str, inject: str, command: str) -> None:
    path = run / "checkpoints" / "step-4" / file
    call = inject.partition(":")[0]
    trace = ["strace", "-f", "--seccomp-bpf", "-o", os.devnull, "-P", str(path), "-e", f"trace={call}"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    args = [command, str(run), *(["3 mai 2009"] if command == "predict" else [])]
    args = [*trace, "-e", f"inject={inject}", sys.executable, "-m", "regard", *args]
    done = subprocess.run(args, capture_output=True, text=True, env=env, check=False)
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


def test_the_unreadable_file_is_named_if_no_checkpoint_can_be_read(cli: Run, run: Path) -> None:
    for step in (2, 4):
        state = run / "checkpoints" / f"step-{step}" / "state.json"
        state.unlink()
        state.mkdir()
    done = cli("predict", "run", "3 mai 2009")
    assert done.returncode == 4
    assert "step-4/state.json cannot be read (Is a directory), and no earlier checkpoint is valid" in done.stderr


def change(run: Path, file: str, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change tensors of the newest checkpoint, and update the manifest."""
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
def test_weights_of_another_dtype_are_rejected_by_name(cli: Run, run: Path, dtype: torch.dtype) -> None:
    keep_newest(run)
    name = "encoder.embedding.weight"
    change(run, "model.safetensors", lambda tensors: tensors.update({name: tensors[name].to(dtype)}))
    done = cli("predict", "run", "8 May 2001")
    assert done.returncode == 4
    assert f"the tensor {name} has dtype {str(dtype).removeprefix('torch.')}, expected float32" in done.stderr


def test_an_optimizer_that_is_not_finite_is_rejected_by_name(run: Path) -> None:
    keep_newest(run)
    name = "encoder.embedding.weight/exp_avg"
    change(run, "optimizer.safetensors", lambda tensors: tensors[name].fill_(torch.nan))
    with pytest.raises(regard.ModelError, match=rf"optimizer.safetensors: the tensor {name} contains NaN"):
        regard.train(run)
    assert regard.load(run).step == 4


def test_weights_that_are_not_finite_are_never_saved(
    tmp_path: Path, after_step: AfterStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[TrainingState] = []

    def patched(*args: Any) -> TrainingState:
        states.append(start_training(*args))
        return states[0]

    monkeypatch.setattr(loop, "start_training", patched)
    after_step(3, lambda: next(states[0].model.parameters()).data.fill_(torch.inf))
    settings = {**SETTINGS, "training.save_every": 3}
    with pytest.raises(regard.DivergedError, match=r"by step 3: .* contains NaN or infinity\. Nothing was saved"):
        regard.train("dates", settings, out=tmp_path / "run")
    assert [entry.step for entry in RunFolder(tmp_path / "run").all_checkpoints()] == [2]


def test_a_manifest_must_not_list_files_outside_the_run(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = run / "checkpoints" / "step-4" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"]["../../../../../../../../dev/zero"] = "0"
    path.write_text(json.dumps(manifest))
    assert regard.load(run).step == 2
    assert "lists a file with an invalid name, or outside the run folder" in caplog.text


@pytest.mark.parametrize("part", ["files", "tokenizers"])
@pytest.mark.parametrize("name", ["a\0b", "a\ud800b"], ids=["nul", "surrogate"])
def test_a_manifest_must_not_list_names_that_no_file_can_have(run: Path, part: str, name: str) -> None:
    keep_newest(run)
    path = run / "checkpoints" / "step-4" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest[part][name] = "0"
    path.write_text(json.dumps(manifest))
    with pytest.raises(ModelError, match=r"manifest\.json is damaged: it lists a file with an invalid name"):
        regard.load(run)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors"])
@pytest.mark.parametrize("content", ["kept", "zeros"])
def test_a_sparse_file_is_rejected_before_it_is_hashed(
    run: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str
) -> None:
    checkpoint = RunFolder(run).all_checkpoints()[0]
    path = checkpoint.path / name
    if content == "zeros":
        path.write_bytes(b"")
    os.truncate(path, 200 << 30)

    def fail(*_: object) -> None:
        raise AssertionError("the file was hashed")

    problem = checkpoint.find_optimizer_problem
    if name == "model.safetensors":
        problem = checkpoint.find_problem
    monkeypatch.setattr("hashlib.file_digest", fail)
    assert problem() == f"{path} is damaged: its size does not match its header"


def test_weights_whose_logits_cannot_be_compared_are_reported_by_evaluate(cli: Run, run: Path) -> None:
    keep_newest(run)

    def scale(tensors: dict[str, torch.Tensor]) -> None:
        for tensor in tensors.values():
            tensor *= 1e30

    change(run, "model.safetensors", scale)
    done = cli("evaluate", "run", "--metric", "loss")
    assert (done.returncode, done.stdout) == (4, "")
    assert re.search(r"computes the log-probability (nan|-\d\S*e\+\d+) for a target token", done.stderr)
    assert "Its weights have diverged or are damaged" in done.stderr


def test_stopping_and_resuming_a_run_leaves_no_descriptor_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    with stop_at(3, monkeypatch):
        regard.train("dates", SETTINGS, out=tmp_path / "run")
    regard.train("dates", SETTINGS, out=tmp_path / "run")
    after = len(os.listdir("/proc/self/fd")) if before else 0
    assert after <= before + 2  # torch and the data may hold some open


def set_format(run: Path, version: int) -> None:
    for manifest in run.glob("checkpoints/*/manifest.json"):
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": version}))


OLDER = f"run has format {FORMAT - 1}, and this version of regard reads format {FORMAT}. Train the model again"
NEWER = (
    f"run has format {FORMAT + 1}, and this version of regard reads format {FORMAT}. It was written by a newer version"
)


@pytest.mark.parametrize(("version", "message"), [(FORMAT - 1, OLDER), (FORMAT + 1, NEWER)], ids=["older", "newer"])
@pytest.mark.parametrize(
    "command",
    [
        ("predict", "run", "8 May"),
        ("evaluate", "run"),
        ("look", "run"),
        ("train", "run"),
        ("train", "dates", "--out", "run"),
    ],
)
def test_a_run_of_another_format_is_rejected(
    cli: Run, run: Path, version: int, message: str, command: tuple[str, ...]
) -> None:
    """Even if its settings are unknown, as after they were renamed."""
    set_format(run, version)
    (run / "config.yaml").write_text("training: {clip: 1}\n")
    before = content(run)
    done = cli(*command)
    assert done.returncode == 4, done.stderr
    assert message in done.stderr
    assert content(run) == before


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (("predict", "run", "8 May"), 4, f"config.yaml does not have format {FORMAT}"),
        (("train", "dates", "--out", "run"), 2, f"that this version of regard (format {FORMAT}) did not write"),
    ],
)
def test_a_config_of_another_format_is_rejected_without_checkpoints(
    cli: Run, run: Path, command: tuple[str, ...], code: int, message: str
) -> None:
    shutil.rmtree(run / "checkpoints")
    (run / "config.yaml").write_text("data: dates\ntraining: {clip: 1}\n")
    done = cli(*command)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "config.yaml:2: unknown setting 'training.clip'" in done.stderr


def test_a_process_that_was_killed_holds_no_lock(tmp_path: Path) -> None:
    script = "import os, sys; from pathlib import Path; from regard.runs.directory import lock_folder\n"
    script += "with lock_folder(Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "run")], env=env, check=False)
    assert done.returncode == -9
    with (
        lock_folder(tmp_path / "run"),
        pytest.raises(regard.RunInUseError, match=f"process {os.getpid()} is training"),
        lock_folder(tmp_path / "run"),
    ):
        pass


def rewrite(run: Path, name: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a JSON file of all checkpoints, and its hash in the manifest."""
    for checkpoint in RunFolder(run).all_checkpoints():
        path = checkpoint.path / name
        document = json.loads(path.read_text("utf-8"))
        change(document)
        path.write_text(json.dumps(document), "utf-8")
        if name != "manifest.json":
            manifest = json.loads((checkpoint.path / "manifest.json").read_text("utf-8"))
            manifest["files"][name] = sha256(path)
            (checkpoint.path / "manifest.json").write_text(json.dumps(manifest), "utf-8")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("state.json", {"best": 3}),
        ("state.json", {"best": {"step": "x"}}),
        ("state.json", {"best": {"accuracy": "high"}}),
        ("state.json", {"data": ["a"]}),
        ("state.json", {"average_lengths": {"target": 3.0}}),
        ("state.json", {"schedule": {"length": 4, "segments": []}}),
        ("state.json", {"schedule": {"length": 4, "segments": [{"step": 0, "position": "a", "end": 4}]}}),
        ("state.json", {"step": 10**30}),
        ("state.json", {"micro_batches": 0}),
        ("state.json", {"average_lengths": [1, 2]}),
        ("manifest.json", {"format": "new"}),
        ("manifest.json", {"format": None}),
        ("manifest.json", {"shapes": {"a": "b"}}),
        ("manifest.json", {"shapes": [1]}),
        ("manifest.json", {"files": 7}),
        ("manifest.json", {"files": {"model.safetensors": 1, "state.json": 2}}),
        ("manifest.json", {"tokenizers": {"tokenizer.json": []}}),
        ("manifest.json", {"tokenizer_parts": {"tokenizer.json": "a"}}),
        ("manifest.json", {"settings": ["a"]}),
    ],
    ids=str,
)
def test_a_malformed_file_with_a_correct_hash_is_damaged(run: Path, name: str, change: dict[str, Any]) -> None:
    rewrite(run, name, lambda document: document.update(change))
    problem = RunFolder(run).all_checkpoints()[0].find_problem()
    assert problem is not None
    assert f"{name} is damaged" in problem
    with pytest.raises(ModelError, match="is damaged"):
        open_model(run)


@pytest.mark.parametrize("model", [{"type": "BPE", "vocab": {}, "merges": []}, {"type": "WordLevel"}, None])
def test_a_crafted_tokenizer_is_rejected(cli: Run, run: Path, model: dict[str, Any] | None) -> None:
    path = run / "tokenizer.json"
    document = json.loads(path.read_text("utf-8"))
    document["model"] = model
    document["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    path.write_text(json.dumps(document), "utf-8")
    done = cli("predict", run, "3 mai 2009", "--accept-changes")
    assert done.returncode == 4, done.stderr
    assert re.search(r"tokenizer\.json (was not created by regard|is damaged)", done.stderr)
