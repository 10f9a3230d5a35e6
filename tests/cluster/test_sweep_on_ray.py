"""Sweeps on a Ray cluster: the same trials and results as in local processes, also if a machine fails."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.cluster.sweep.space import parse_words
from regard.cluster.sweep.study import Job, Run, make_plan, open_sweep
from regard.cluster.sweep.tune import RunStore, copy_data, pack, unpack
from regard.config import resolve
from regard.errors import ConfigError
from regard.runs.settings import RunSettings
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
    from ray.cluster_utils import Cluster

    local = run_sweep(tmp_path / "local", "--workers", "2")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
        cluster.wait_for_nodes()
        killed = threading.Event()

        def kill_a_node() -> None:
            while not list((tmp_path / "ray").glob("trial-*/seed-*/checkpoints/step-*/state.json")):
                time.sleep(0.05)
            cluster.remove_node(nodes[0], allow_graceful=False)
            killed.set()

        threading.Thread(target=kill_a_node, daemon=True).start()
        found = run_sweep(tmp_path / "ray", "--workers", "2", "--cluster", cluster.address)
        assert killed.is_set()
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]
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


def test_data_files_are_sent_to_a_machine_that_does_not_have_them(tmp_path: Path) -> None:
    """The machine of the sweep is simulated by a function that reads files."""
    remote = {"/nowhere/corpus/train.de.tsv": b"a\tb\n", "/nowhere/corpus/dev.tsv": b"c\td\n"}
    settings = [
        {
            "kind": "files",
            "folder": "/nowhere/corpus",
            "train": "train.{language}.tsv",
            "language": "de",
            "dev": "dev.tsv",
        },
        {"kind": "files", "train": "/nowhere/corpus/train.de.tsv", "dev": "/nowhere/corpus/dev.tsv"},
    ]
    for number, data in enumerate(settings):
        tree = resolve(RunSettings, {"data": data}, {}).model_dump(mode="json")
        folder = tmp_path / str(number)
        moved = resolve(RunSettings, copy_data(Job(Run(0, 0), tree, (), {}), folder, remote.get), {}).data
        for split, content in zip(("train", "dev"), remote.values(), strict=True):
            [path] = moved.files(split).paths  # type: ignore[attr-defined]
            assert Path(path).read_bytes() == content
    here = resolve(RunSettings, {"data": {"kind": "files", "train": str(folder / "x")}}, {}).model_dump(mode="json")
    (folder / "x").write_text("a\tb\n")
    assert copy_data(Job(Run(0, 0), here, (), {}), tmp_path / "copy", remote.get) == here


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
