"""Sweeps on a Ray cluster: the same trials and results as in local processes, also if a machine fails."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.cluster.sweep.space import parse_words
from regard.cluster.sweep.study import Job, Run, make_plan, open_sweep
from regard.cluster.sweep.tune import RunStore, copy_files, pack, unpack, use_copies
from regard.cluster.sweep.workers import train_run
from regard.config import resolve
from regard.data.images.settings import CaptionsData
from regard.data.settings import FilesData
from regard.errors import ConfigError
from regard.runs.folder import RunFolder
from regard.runs.settings import RunSettings
from tests_ray import start_cluster
from tests_shared import SMALL, to_arguments

pytest.importorskip("optuna", reason="optuna is missing; install it with: pip install -e '.[test]'")
pytest.importorskip("ray", reason="ray is missing; install it with: pip install -e '.[test]'")

TINY = {
    **SMALL,
    "data.train": 60,
    "data.dev": 8,
    "data.test": 8,
    "training.steps": 40,
    "training.validate_every": 10,
    "training.save_every": 5,
    "training.diagnostics": 0,
    "training.metric": "loss",
}
WORDS = [*to_arguments(TINY), "training.learning_rate=log(1e-4,1e-1)"]


def run_sweep(folder: Path, *options: str) -> dict[str, Any]:
    """Run a sweep in a new process, and return its trials without durations."""
    command = [sys.executable, "-m", "regard", "sweep", "dates", *WORDS, "--trials", "3", "--seeds", "2"]
    done = subprocess.run(
        [*command, "--finalists", "1", *options, "--out", str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Configuration for experiment" not in done.stdout + done.stderr, "the output of Ray Tune"
    document = json.loads((folder / "sweep.json").read_text())
    runs = {run["folder"]: {**run, "seconds": 0} for trial in document["trials"] for run in trial["runs"]}
    return {"runs": runs, "finalists": document["finalists"], "values": [t["values"] for t in document["trials"]]}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_sweep_on_a_cluster_equals_a_local_one_even_if_a_machine_fails(tmp_path: Path) -> None:
    """The head node has no CPU for runs. One of the two other nodes is killed after the first checkpoint."""
    local = run_sweep(tmp_path / "local", "--workers", "2")
    with start_cluster(0, 1, 1) as cluster:
        killed = threading.Event()

        def kill_a_node() -> None:
            while not list((tmp_path / "ray").glob("trial-*/seed-*/checkpoints/step-*/state.json")):
                time.sleep(0.05)
            cluster.kill(cluster.nodes[0])
            killed.set()

        threading.Thread(target=kill_a_node, daemon=True).start()
        found = run_sweep(tmp_path / "ray", "--workers", "2", "--cluster", cluster.address)
        assert killed.is_set()
    assert found == local
    assert not list((tmp_path / "ray").glob("trial-*/.seed*"))
    assert regard.load(tmp_path / "ray" / "trial-000" / "seed-0").predict("3 mai 2009").score < 0


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", "cannot be reached"),
        ("nonsense", "cannot be reached"),
        ("ray://127.0.0.1:10001", "on a machine of the cluster"),
    ],
)
def test_an_address_that_cannot_be_used_is_reported_before_training(address: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        regard.sweep("dates", {"training.learning_rate": [1e-3, 1e-2]}, cluster=address, out=tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()


def read_from(head: Path) -> Callable[[str], bytes | list[str] | None]:
    """Return a function that reads files below /nowhere as the machine of the sweep, where `head` is this folder."""
    store = RunStore(str(head))
    return lambda path: store.read(path.replace("/nowhere", str(head), 1))


def make_job(settings: dict[str, Any]) -> Job:
    return Job(Run(0, 0), resolve(RunSettings, settings, {}).model_dump(mode="json"), (), {})


def test_data_files_are_sent_to_a_machine_that_does_not_have_them(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    contents = {"train.de.tsv": "a\tb\n", "dev.tsv": "c\td\n", "captions.txt": "1.png\te\n", "images/1.png": "f"}
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    train, dev = "train.{language}.tsv", "dev.tsv"
    corpora: list[dict[str, Any]] = [
        {"folder": "/nowhere", "train": train, "language": "de", "dev": dev},
        {"folder": "/nowhere", "train": train, "language": ["de"]},
        {"train": "/nowhere/train.de.tsv", "dev": "/nowhere/dev.tsv"},
    ]
    for number, data in enumerate(corpora):
        job = make_job({"data": {"kind": "files", **data}, "tokenizer": {"kind": "char", "tags": True}})
        moved = resolve(RunSettings, copy_files(job, tmp_path / str(number), read_from(tmp_path)).settings, {}).data
        assert isinstance(moved, FilesData)
        files = [moved.files("train"), moved.files("dev")]
        found = [Path(path).read_text() for each in files if each is not None for path in each.paths]
        assert found == ["a\tb\n", "c\td\n"][: 1 + ("dev" in data)]
    captions = {"kind": "captions", "folder": "/nowhere", "images": "images", "captions": "captions.txt"}
    settings = resolve(RunSettings, "scenes", {}).model_dump(mode="json")
    copied = copy_files(make_job({**settings, "data": captions}), tmp_path / "x", read_from(tmp_path))
    pictured = resolve(RunSettings, copied.settings, {}).data
    assert isinstance(pictured, CaptionsData)
    assert Path(pictured.image_path, "1.png").read_text() == "f"
    here = make_job({"data": {"kind": "files", "folder": str(tmp_path), "train": "dev.tsv"}})
    assert copy_files(here, tmp_path / "copy", read_from(tmp_path)) == here
    absent = make_job({"data": {"kind": "files", "train": "/nowhere/absent"}})
    assert copy_files(absent, tmp_path / "copy", read_from(tmp_path)) == absent


def test_models_and_plugins_are_sent_and_the_run_resumes_on_another_machine(
    small_run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is first trained with copies in one folder, and resumed with copies in another."""
    monkeypatch.setattr("regard.registry._imported", {})
    (tmp_path / "model").symlink_to(small_run.path)
    (tmp_path / "plugin.py").write_text("from pathlib import Path\n\nPath(__file__).with_suffix('.imported').touch()\n")
    models = {"training.init_from": "/nowhere/model", "training.teachers": "/nowhere/model"}
    settings = resolve(RunSettings, "dates", {**TINY, **models, "training.steps": 2}).model_dump(mode="json")
    archive = None
    for machine in ("one", "two"):
        folder, data = tmp_path / machine / "run", tmp_path / machine / "data"
        if archive is not None:
            unpack(archive, folder)
        job = copy_files(Job(Run(0, 0), settings, ("/nowhere/plugin.py",), {}), data, read_from(tmp_path))
        assert (data / "nowhere" / "plugin.imported").exists()
        use_copies(RunFolder(folder), data)
        assert train_run(job, folder).failure is None
        archive = pack(folder, data)
    unpack(archive or b"", tmp_path / "result")
    stored = RunFolder(tmp_path / "result").settings().training
    assert stored.init_from == "/nowhere/model"
    assert stored.teachers is not None
    assert stored.teachers.runs == ("/nowhere/model",)


def test_a_run_folder_is_sent_and_replaced_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "weights").write_bytes(b"1")
    (tmp_path / "run" / ".lock").touch()
    store = RunStore(str(tmp_path / "sweep"))
    assert store.fetch("trial-000/seed-0") is None
    store.save("trial-000/seed-0", pack(tmp_path / "run"))
    (tmp_path / "run" / "checkpoints" / "weights").write_bytes(b"2")
    store.save("trial-000/seed-0", pack(tmp_path / "run"))
    (tmp_path / "run" / "config.yaml").write_text("folder: /node/data/corpus")
    store.save("trial-000/seed-0", pack(tmp_path / "run", Path("/node/data")))
    unpack(store.fetch("trial-000/seed-0") or b"", tmp_path / "copy")
    assert (tmp_path / "copy" / "config.yaml").read_text() == "folder: /corpus"
    assert {path.name for path in (tmp_path / "copy").rglob("*")} == {"checkpoints", "config.yaml", "weights"}
    assert (tmp_path / "copy" / "checkpoints" / "weights").read_bytes() == b"2"
    assert [path.name for path in (tmp_path / "sweep" / "trial-000").iterdir()] == ["seed-0"]


def test_proposals_of_a_resumed_search_depend_on_the_first_number_of_workers(tmp_path: Path) -> None:
    space, fixed = parse_words(WORDS)
    plan = make_plan("dates", fixed, space, trials=5, seeds=1, finalists=None, prune=False)
    with open_sweep(plan, tmp_path, 3) as state:
        assert len(state.due()) == 3
    with open_sweep(plan, tmp_path, 8) as state:
        assert len(state.due()) == 3
