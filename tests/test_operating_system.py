"""regard works where nothing of Linux is there: `bare_system/sitecustomize.py` takes it away from real processes."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from regard import operating_system
from regard.ops import reference_mode
from tests_command import HANG

BARE = Path(__file__).parent / "bare_system"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems lack it without a simulation")

SETTINGS = (
    "training.steps=6", "training.save_every=2", "training.validate_every=2", "training.keep_checkpoints=2",
    "training.track=tensorboard", "data.train=60", "data.dev=8", "data.test=8",
)  # fmt: skip


def build_environment(*, bare: bool = True) -> dict[str, str]:
    """Return the variables of a process that lacks what Windows lacks, and whose default encoding is not UTF-8."""
    names = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "utf-8"}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return {**environment, **names, "PYTHONPATH": str(BARE)} if bare else environment


def run(folder: Path, *words: str, bare: bool = True, stdin: str = "") -> str:
    """Run `regard …`, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "regard", *words],
        cwd=folder, env=build_environment(bare=bare), input=stdin.encode(), capture_output=True, check=False,
        timeout=HANG,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@contextmanager
def serving(folder: Path, *words: str) -> Iterator[str]:
    """Start a server, yield its URL, and stop it with Ctrl-C."""
    process = subprocess.Popen(
        [sys.executable, "-m", "regard", *words, "--port", "0"],
        cwd=folder, env=build_environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
            process.send_signal(signal.SIGINT)
            assert process.wait(HANG) == 0
        finally:
            process.kill()


def read_weights(run: Path) -> dict[str, bytes]:
    return {str(file.relative_to(run)): file.read_bytes() for file in run.glob("checkpoints/step-*/*.safetensors")}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was stopped with Ctrl-C after its third step, and resumed."""
    folder = tmp_path_factory.mktemp("bare")
    command: list[str | Path] = [
        sys.executable,
        BARE / "stop_after_a_step.py",
        "3",
        "train",
        "dates",
        *SETTINGS,
        "--out",
        "run",
    ]
    assert subprocess.run(command, cwd=folder, env=build_environment(), check=False, timeout=HANG).returncode == 75
    assert [path.name for path in sorted(folder.glob("run/checkpoints/step-*"))] == ["step-2", "step-3"]
    run(folder, "train", "dates", *SETTINGS, "--out", "run")
    return folder


def test_every_module_is_imported() -> None:
    script = BARE / "import_everything.py"
    done = subprocess.run(
        [sys.executable, script], env=build_environment(), capture_output=True, text=True, check=False, timeout=HANG
    )
    assert done.returncode == 0, done.stderr
    assert {"regard.api.model", "regard.serving.server", "regard.cluster.corpus"} <= set(done.stdout.split())


@pytest.mark.slow
def test_a_run_that_is_stopped_and_resumed_has_the_weights_of_one_with_everything(
    trained: Path, tmp_path: Path
) -> None:
    run(tmp_path, "train", "dates", *SETTINGS, "--out", "run", bare=False)
    weights = read_weights(trained / "run")
    assert len(weights) == 4
    assert weights == read_weights(tmp_path / "run")
    events = [json.loads(line) for line in (trained / "run" / "events.jsonl").read_text("utf-8").splitlines()]
    assert [event["step"] for event in events if event["event"] == "validation"] == [2, 4, 6]


@pytest.mark.slow
def test_a_model_predicts_draws_and_is_evaluated(trained: Path) -> None:
    texts = "le 3 février 2009\n2009年5月3日日曜日\n"
    predictions = run(trained, "predict", "run", stdin=texts)
    assert predictions == run(trained, "predict", "run", bare=False, stdin=texts)
    assert len(predictions.splitlines()) == 2
    (trained / "ä.txt").write_text(texts, "utf-8")
    run(trained, "predict", "run", "--input", "ä.txt", "--output", "predictions")
    run(trained, "predict", "run", "--input", "-", "--output", "streamed", stdin=texts)
    assert (trained / "predictions" / "ä.txt").read_text("utf-8") == predictions
    assert (trained / "streamed" / "stdin.txt").read_text("utf-8") == predictions
    assert "年" in run(trained, "look", "run", "-", stdin="2009年5月3日\n")
    run(trained, "look", "run", "-", "-o", "map.png", "-o", "map.html", stdin="2009年5月3日\n")
    assert (trained / "map.png").stat().st_size
    assert "2009年" in (trained / "map.html").read_text("utf-8")
    assert "accuracy" in run(trained, "evaluate", "run")


@pytest.mark.slow
def test_a_model_is_served_and_explored(trained: Path) -> None:
    with serving(trained, "serve", "en:de=run") as url:
        fields = json.dumps({"q": "3 février", "source": "en", "target": "de"}).encode()
        request = urllib.request.Request(f"{url}translate", fields, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=HANG) as response:
            assert json.load(response)["translatedText"]
    with serving(trained, "explore", "run", "--no-browser") as url, urllib.request.urlopen(url, timeout=HANG) as page:
        assert page.status == 200


@pytest.mark.slow
def test_a_sweep_trains_in_several_processes(tmp_path: Path) -> None:
    small = ("training.steps=2", "data.train=20", "data.dev=4", "data.test=4")
    table = run(tmp_path, "sweep", "dates", *small, "training.learning_rate=0.01,0.02", "--workers", "2", "--out", "s")
    assert table.count("1/1") == 2


def test_an_entry_of_a_directory_is_found_even_if_the_directory_is_moved(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    opened = operating_system.OpenDirectory(tmp_path / "one")
    (tmp_path / "one").rename(tmp_path / "two")
    opened.make_directory("inside")
    assert (tmp_path / "two" / "inside").is_dir()
    assert opened.find_path() == tmp_path / "two"
    opened.close()


def test_without_descriptors_links_are_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_HAS_DIRECTORY_DESCRIPTORS", "_NO_FOLLOW"):
        monkeypatch.setattr(operating_system, name, 0)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("precious")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").symlink_to(tmp_path / "outside" / "file")
    (folder / "inside").symlink_to(tmp_path / "outside")
    opened = operating_system.OpenDirectory(folder)
    with pytest.raises(OSError, match="file"):
        opened.open("file", os.O_RDONLY)
    with pytest.raises(NotADirectoryError):
        operating_system.OpenDirectory(folder / "inside", opened)
    for name in ("file", "inside"):
        opened.remove(name)
    assert not opened.names()
    assert (tmp_path / "outside" / "file").read_text() == "precious"


def test_a_build_of_torch_without_onednn_has_no_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    monkeypatch.delattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", raising=False)
    assert not reference_mode.cpu_has_bfloat16.__wrapped__()
