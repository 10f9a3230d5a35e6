"""Corpus jobs whose processes and machines are killed: the output is complete, in order, and without duplicates."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from regard.cluster.job_folder import FAILURES, WORK
from regard.cluster.ray_pool import Node, check_nodes, connect
from regard.errors import ConfigError
from regard.runs.folder import RunFolder
from regard.version import __version__
from tests_command import HANG, Result, run_preloaded
from tests_ray import LocalCluster, start_cluster

LINES, BLOCK = 3_000, 50

POISON = """
import os, signal
from regard.data.source_readers import TextReader

read = TextReader.read

def read_or_die(self, sources):
    if "poison" in sources:
        os.kill(os.getpid(), signal.SIGKILL)
    return read(self, sources)

TextReader.read = read_or_die
"""
"""A plugin that kills a worker that reads a certain line."""


class Corpus(NamedTuple):
    """A folder with an input file, the predictions of `regard predict` for it, and the command of a job."""

    folder: Path
    expected: str
    command: list[str]

    def start(self, *options: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "regard", *self.command, *options],
            cwd=self.folder,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def finish(self, *options: str) -> Result:
        return run_preloaded([*self.command, *options], b"", self.folder, HANG)

    def read_index(self) -> list[dict[str, Any]]:
        """Return the lines of the index."""
        path = self.folder / "out" / WORK / "a.txt.index"
        complete = path.read_text().split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in complete]

    def wait_for(self, blocks: int, job: "subprocess.Popen[str]") -> None:
        """Wait until some blocks are finished, while the job is running."""
        deadline = time.monotonic() + HANG
        while len(self.read_index()) < blocks:
            assert job.poll() is None, job.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def check(self) -> None:
        """Check the output, and that each block was predicted once."""
        assert (self.folder / "out" / "a.txt").read_text() == self.expected
        *blocks, _ = self.read_index()
        assert sorted(block["number"] for block in blocks) == list(range(LINES // BLOCK))


SOURCES = "".join(f"{number % 28 + 1} mai {1000 + number}\n" for number in range(LINES))


@pytest.fixture(scope="module")
def expected(small_run: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The predictions of one process."""
    done = run_preloaded(["predict", str(small_run.path)], SOURCES.encode(), tmp_path_factory.mktemp("plain"), HANG)
    assert done.stdout.count("\n") == LINES
    return done.stdout


@pytest.fixture
def corpus(small_run: RunFolder, tmp_path: Path, expected: str) -> Corpus:
    (tmp_path / "a.txt").write_text(SOURCES)
    job = ["predict", str(small_run.path), "--input", "a.txt", "--output", "out", "--block-lines", str(BLOCK)]
    return Corpus(tmp_path, expected, job)


def find_workers(process: "subprocess.Popen[str]") -> list[int]:
    """Return the worker processes of a job, which any of its threads may have started."""
    tasks = Path(f"/proc/{process.pid}/task").glob("*/children")
    return sorted(int(pid) for task in tasks for pid in task.read_text().split())


@pytest.mark.slow
def test_a_job_that_is_killed_resumes_without_repeating_finished_blocks(corpus: Corpus) -> None:
    before: list[dict[str, Any]] = []
    for options in ([], ["--workers", "2"]):
        with corpus.start(*options) as job:
            corpus.wait_for(len(before) + 3, job)
            job.send_signal(signal.SIGKILL)
        assert [line for line in corpus.read_index() if line in before] == before  # a repeated block has another offset
        before = corpus.read_index()
        assert not (corpus.folder / "out" / "a.txt").exists()
    with corpus.start() as job:
        corpus.wait_for(len(before) + 3, job)
        job.send_signal(signal.SIGINT)
        _, stderr = job.communicate(timeout=HANG)
        assert job.returncode == 75
        assert "Stopped by SIGINT." in stderr
        assert "Run the same command to resume." in stderr
    done = corpus.finish()
    assert done.returncode == 0, done.stderr
    corpus.check()
    assert [line for line in corpus.read_index() if line in before] == before
    assert "All files were predicted before." in corpus.finish().stderr


@pytest.mark.slow
def test_blocks_of_workers_that_are_killed_are_predicted_again(corpus: Corpus) -> None:
    with corpus.start("--workers", "2") as job:
        for blocks in (3, 10):
            corpus.wait_for(blocks, job)
            os.kill(find_workers(job)[0], signal.SIGKILL)
        _, stderr = job.communicate(timeout=HANG)
    assert job.returncode == 0, stderr
    assert "It is predicted again." in stderr
    corpus.check()


@pytest.mark.slow
def test_the_line_that_kills_its_worker_is_found(corpus: Corpus) -> None:
    lines = (corpus.folder / "a.txt").read_text().splitlines()[:100]
    lines[77] = "poison"
    (corpus.folder / "a.txt").write_text("".join(f"{line}\n" for line in lines))
    (corpus.folder / "plugin.py").write_text(POISON)
    done = corpus.finish("--workers", "1", "--import", "plugin.py", "--block-lines", "4")
    assert done.returncode == 1, done.stderr
    expected = corpus.expected.splitlines()[:100]
    expected[77] = ""
    assert (corpus.folder / "out" / "a.txt").read_text().splitlines() == expected
    [failure] = map(json.loads, (corpus.folder / "out" / FAILURES).read_text().splitlines())
    assert (failure["file"], failure["line"]) == ("a.txt", 78)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    pytest.importorskip("ray", reason="ray is missing; install it with: pip install -e '.[test]'")
    with start_cluster(1, 1, 1) as cluster:
        yield cluster


@pytest.mark.slow
def test_a_machine_that_does_not_have_regard_is_reported_first(
    corpus: Corpus, cluster: LocalCluster, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "sitecustomize.py").write_text("import sys\nsys.modules['regard'] = None\n")
    node = cluster.add(env_vars={"PYTHONPATH": str(tmp_path / "other")})
    done = corpus.finish("--cluster", cluster.address)
    cluster.kill(node)
    assert done.returncode == 2
    assert "does not have the package regard. Install regard" in done.stderr
    assert not corpus.read_index()


@pytest.mark.slow
def test_the_blocks_of_a_machine_that_is_killed_are_predicted_by_the_others(
    corpus: Corpus, cluster: LocalCluster
) -> None:
    cluster.kill(cluster.add())  # Ray lists this machine for some more seconds
    with corpus.start("--cluster", cluster.address) as job:
        corpus.wait_for(10, job)
        cluster.kill(cluster.nodes[0])
        _, stderr = job.communicate(timeout=HANG)
    assert job.returncode == 0, stderr
    assert "with 3 workers" in stderr
    corpus.check()


@pytest.mark.slow
def test_a_cluster_that_cannot_be_reached_is_an_error(corpus: Corpus) -> None:
    pytest.importorskip("ray", reason="ray is missing; install it with: pip install -e '.[test]'")
    reasons = {"127.0.0.1:9": "refused", "nowhere": "has no port", "ray://127.0.0.1:9": "is not supported"}
    for address, reason in reasons.items():
        done = corpus.finish("--cluster", address)
        assert done.returncode == 2
        assert f"--cluster {address}: the Ray cluster cannot be reached" in done.stderr
        assert reason in done.stderr


def test_a_cluster_needs_the_package_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'regard\[ray\]', or use --workers"):
        connect("local")


def test_all_machines_need_this_version_of_regard() -> None:
    here = Node("10.0.0.1", __version__, "3.11.4")
    check_nodes([here, here])
    with pytest.raises(ConfigError, match=r"10.0.0.2 of the cluster does not have the package regard. .*Python 3.11.9"):
        check_nodes([here, Node("10.0.0.2", None, "3.11.9")])
    with pytest.raises(ConfigError, match=r"10.0.0.2 of the cluster has regard 9.9, and this machine"):
        check_nodes([here, Node("10.0.0.2", "9.9", "3.11.4")])
