"""Models on a Ray cluster: the same answers as in one process, also if copies of a model end or are replaced."""

import json
import os
import shutil
import signal
import sys
import threading
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click
import httpx
import pytest

import regard
from regard.cli.serve import command
from regard.cluster.ray_pool import Node, check_nodes
from regard.errors import ConfigError
from regard.runs.folder import RunFolder
from regard.serving.settings import AppOptions, Loading, ModelAddress, Replicas, RequestLimits
from regard.version import __version__
from tests_app import Client, open_client
from tests_command import HANG
from tests_ray import LocalCluster, start_cluster

pytest.importorskip("ray.serve", reason="ray[serve] is missing; install it with: pip install -e '.[test]'")

TEXTS = [f"{day} mai {year}" for day in range(1, 11) for year in (1989, 2009)]

leaves_sockets = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@contextmanager
def serve_on(cluster: LocalCluster, folder: Path, replicas: str, queue: int = 1_000) -> Iterator[Client]:
    from regard.serving.cluster import ClusterLoader, open_cluster

    loading = Loading(models=(ModelAddress(path=str(folder), languages=("en", "de")),), queue=queue)
    options = AppOptions(loading=loading, limits=RequestLimits(timeout=HANG), watch=0)
    with (
        open_cluster(cluster.address, Replicas.parse(replicas)) as opened,
        open_client(options, ClusterLoader(opened)) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Three machines with one CPU each."""
    with start_cluster(1, 1, 1) as started:
        yield started


@pytest.fixture
def folder(small_run: RunFolder, tmp_path: Path) -> Path:
    """A model with a unique name, which the processes of its replicas have."""
    return Path(shutil.copytree(small_run.path, tmp_path / f"model-{uuid.uuid4().hex[:8]}"))


def translate(client: Client, text: str, **options: Any) -> httpx.Response:
    return client.post("/translate", json={"q": text, "source": "en", "target": "de", **options})


def predict_locally(folder: Path) -> list[str]:
    model = regard.load(folder, device="cpu")
    search = model.settings.training.validation_search.model_dump()
    return [prediction.text for prediction in model.predict(TEXTS, **search)]


def find_replicas(folder: Path) -> list[int]:
    """Return the IDs of the processes with a replica of a model."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            title = path.read_bytes()
        except OSError:  # it has ended
            continue
        if title.startswith(f"ray::ServeReplica:regard-{folder.name}:".encode()):
            found.append(int(path.parent.name))
    return found


@contextmanager
def asking(client: Client, expected: Sequence[Sequence[str]]) -> Iterator[threading.Semaphore]:
    """Within a block of code, translate all the time, and check that each text has one of its expected translations.
    The semaphore counts the answers.
    """
    ended, answered = threading.Event(), threading.Semaphore(0)

    def ask() -> None:
        while not ended.is_set():
            for number, text in enumerate(TEXTS):
                answer = translate(client, text)
                answered.release()
                assert answer.status_code == 200, answer.text
                assert answer.json()["translatedText"] in {each[number] for each in expected}

    with ThreadPoolExecutor(4) as pool:
        tasks = [pool.submit(ask) for _ in range(4)]
        try:
            yield answered
        finally:
            ended.set()
    for task in tasks:
        task.result()


def wait_for(count: int, answered: threading.Semaphore) -> None:
    for _ in range(count):
        assert answered.acquire(timeout=HANG)


@pytest.mark.slow
@leaves_sockets
def test_models_on_a_cluster_answer_as_in_one_process_while_replicas_are_killed_and_replaced(
    cluster: LocalCluster, folder: Path, second_run: RunFolder
) -> None:
    import ray

    loading = Loading(models=(ModelAddress(path=str(folder), languages=("en", "de")),))
    with open_client(AppOptions(loading=loading)) as client:
        answers = read_all(client)
    expected = predict_locally(folder)
    with serve_on(cluster, folder, "3") as client:
        assert read_all(client) == answers

        with asking(client, [expected]) as answered:
            for _ in range(3):
                wait_for(20, answered)
                os.kill(find_replicas(folder)[0], signal.SIGKILL)
            ray.kill(ray.get_actor("manager", "regard-serve"))  # it keeps the files that new replicas load
            for process in find_replicas(folder):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            wait_for(100, answered)

        shutil.rmtree(folder)
        shutil.copytree(second_run.path, folder)
        updated = predict_locally(folder)
        with asking(client, [expected, updated]) as answered:
            wait_for(20, answered)
            assert client.reload()
            wait_for(20, answered)
        assert [translate(client, text).json()["translatedText"] for text in TEXTS] == updated

        tokenizer = next(folder.glob("tokenizer*.json"))
        content = tokenizer.read_text()
        processes = set(find_replicas(folder))
        tokenizer.write_text("{}")
        with asking(client, [updated]) as answered:
            assert not client.reload()
            wait_for(20, answered)
        tokenizer.write_text(content)
        assert client.reload()
        assert set(find_replicas(folder)) == processes, "an equal version does not restart the replicas"
    assert not find_replicas(folder), "the replicas end with the server"


def read_all(client: Client) -> list[Any]:
    """Return what each kind of request returns, with rounded numbers."""
    translated = translate(client, TEXTS[0], alternatives=2, regard={"align": True, "attention": True, "beam": 3})
    assert translated.status_code == 200
    document = json.loads(translated.text, parse_float=lambda number: round(float(number), 4))
    stream = client.get("/stream", params={"q": TEXTS[0], "source": "en", "target": "de"})
    page = client.get("/explore", params={"q": TEXTS[0], "source": "en", "target": "de"})
    invalid = translate(client, TEXTS[0], regard={"must_contain": ["☃"]})
    assert (stream.status_code, page.status_code, invalid.status_code) == (200, 200, 400)
    assert "event: end" in stream.text
    return [document, stream.text, page.text, invalid.json()]


@pytest.mark.slow
@leaves_sockets
def test_a_full_queue_answers_503_and_accepted_requests_are_answered(cluster: LocalCluster, folder: Path) -> None:
    """The only replica is paused: one request waits, and the replica has at most 64."""
    expected = dict(zip(TEXTS, predict_locally(folder), strict=True))
    count, room = 80, 65
    with serve_on(cluster, folder, "1", queue=1) as client, ThreadPoolExecutor(count) as pool:
        [process] = find_replicas(folder)
        os.kill(process, signal.SIGSTOP)
        try:
            pending = {pool.submit(translate, client, TEXTS[number % len(TEXTS)]) for number in range(count)}
            done: set[Future[httpx.Response]] = set()
            while len(done) < count - room:
                finished, pending = wait(pending, HANG, FIRST_COMPLETED)
                done |= finished
        finally:
            os.kill(process, signal.SIGCONT)
        assert {answer.result().status_code for answer in done} == {503}
        assert all(answer.result().headers["Retry-After"] for answer in done)
        rest = [answer.result() for answer in pending]
        assert {answer.status_code for answer in rest} <= {200, 503}
        texts = {answer.json()["translatedText"] for answer in rest if answer.status_code == 200}
        assert texts
        assert texts <= set(expected.values())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cluster", "127.0.0.1:1"], "cannot be reached"),
        (["--cluster", "nonsense"], "cannot be reached"),
        (["--cluster", "local", "--replicas", "4-2"], "MIN-MAX"),
        (["--cluster", "local", "--replicas", "0"], "MIN-MAX"),
        (["--replicas", "2"], "needs --cluster"),
    ],
)
def test_wrong_options_are_reported_before_the_server_starts(
    words: list[str], message: str, small_run: RunFolder
) -> None:
    with pytest.raises((click.UsageError, ConfigError), match=message):
        command.main([str(small_run.path), *words], standalone_mode=False)


@pytest.mark.parametrize("name", ["ray", "ray.serve"])
def test_a_missing_package_is_reported_with_the_remedy(
    name: str, small_run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("ray.serve")
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf"the package {name}, .* pip install 'regard\[ray\]'"):
        command.main([str(small_run.path), "--cluster", "127.0.0.1:1"], standalone_mode=False)


def test_a_machine_of_the_cluster_without_ray_serve_is_reported() -> None:
    with pytest.raises(ConfigError, match=r"10.0.0.2 .* fastapi\. Run pip install 'regard\[ray,serve\]'"):
        check_nodes([Node("10.0.0.2", __version__, "3.11.9", "fastapi")])


def test_replicas_are_a_number_or_a_range() -> None:
    assert Replicas.parse("3") == Replicas(minimum=3, maximum=3)
    assert Replicas.parse("1-4") == Replicas(minimum=1, maximum=4)
