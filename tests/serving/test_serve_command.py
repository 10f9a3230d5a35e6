"""`regard serve` as a process, and the clients of LibreTranslate."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.runs.folder import RunFolder
from tests_command import HANG, Result

Cli = Callable[..., Result]

TEXT = "3 mai 2009"


@contextmanager
def serving(*words: str, folder: Path) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """Start `regard serve`, and yield its URL and the process. Its log is in the file `log`."""
    command = [sys.executable, "-m", "regard", "serve", *words, "--port", "0"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url, (folder / "log").read_text()
        yield url, process
    finally:
        process.kill()
        process.communicate()


def post(url: str, **fields: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(fields).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=HANG) as response:
        return json.load(response)


def wait_for_log(folder: Path, text: str, count: int) -> None:
    while (folder / "log").read_text().count(text) < count:
        pass


CLIENTS = Path(sys.prefix) / "clients"
"""A client whose package must not be on the path of the other tests."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "install"),
    [("libretranslatepy", "libretranslatepy"), ("argostranslate.apis", f"--no-deps --target {CLIENTS} argostranslate")],
)
def test_a_client_of_libretranslate_works_and_sigterm_ends_the_server(
    name: str, install: str, small_run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(CLIENTS)
    client = pytest.importorskip(name, reason=f"{name} is missing; install it with: pip install {install}")
    model = regard.load(small_run.path, device="cpu")
    search = model.settings.training.validation_search.model_dump()
    with serving(f"en:de={small_run.path}", folder=tmp_path) as (url, process):
        api = client.LibreTranslateAPI(url)
        assert api.translate(TEXT, "en", "de") == model.predict(TEXT, **search).text
        assert [language["code"] for language in api.languages()] == ["en", "de"]
        assert api.detect("This is a sentence.")[0]["language"] == "en"
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG) == 0
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    [logged] = [line for line in lines if line.get("path") == "/translate"]
    assert (logged["status"], logged["characters"]) == (200, len(TEXT))
    assert TEXT not in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_workers_share_the_port_and_the_keys_and_replace_their_models(
    small_run: RunFolder, second_run: RunFolder, tmp_path: Path
) -> None:
    shutil.copytree(small_run.path, tmp_path / "en-de")
    (tmp_path / "keys").write_text("office secret\n")
    arguments = ("en-de", "--workers", "2", "--keys", "keys", "--beam", "2")
    fields = {"q": TEXT, "source": "en", "target": "de"}
    with serving(*arguments, folder=tmp_path) as (url, process):
        with pytest.raises(urllib.error.HTTPError) as refused:
            post(f"{url}translate", **fields)
        assert refused.value.code == 403
        refused.value.close()
        first = post(f"{url}translate", **fields, api_key="secret")["translatedText"]
        assert first == regard.load(small_run.path, device="cpu").predict(TEXT, beam=2).text
        shutil.rmtree(tmp_path / "en-de")
        shutil.copytree(second_run.path, tmp_path / "en-de")
        process.send_signal(signal.SIGHUP)
        wait_for_log(tmp_path, "The models were replaced: en-de.", 2)
        expected = regard.load(second_run.path, device="cpu").predict(TEXT, beam=2).text
        assert {post(f"{url}translate", **fields, api_key="secret")["translatedText"] for _ in range(8)} == {expected}
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG) == 0


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["missing"], 4, "missing"),
        (["english:de={run}"], 2, "'english' is not a language code. Use codes such as en or pt-BR."),
        (["en:de={run}", "en:de={run}/."], 2, "Two models"),
        (["{run}", "--keys", "missing"], 2, "--keys missing: the file cannot be read"),
        (["{run}", "--engine", "ct2"], 2, "The engine ct2 cannot be used"),
        (["{run}", "--private-key", "key.pem"], 2, "--private-key needs --certificate"),
        (["{run}", "--beam", "0"], 2, "greater than 0"),
        ([], 2, "Missing argument"),
    ],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_wrong_argument_is_reported_and_nothing_is_served(
    cli: Cli, small_run: RunFolder, words: list[str], code: int, message: str
) -> None:
    done = cli("serve", *(word.format(run=small_run.path) for word in words), "--port", "0")
    assert (done.returncode, done.stdout) == (code, "")
    assert re.sub(r"\s+", " ", message) in re.sub(r"\s+", " ", done.stderr)
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_reported(cli: Cli, small_run: RunFolder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = cli("serve", str(small_run.path), "--port", str(taken.getsockname()[1]))
    assert done.returncode == 2
    assert "the port is in use. Choose another one." in done.stderr


def test_a_missing_package_is_reported_with_the_extra(small_run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['uvicorn'] = None\n")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "regard", "serve", str(small_run.path)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert done.returncode == 2
    assert "requires the package uvicorn, which is not installed. Run pip install 'regard[serve]'." in done.stderr
