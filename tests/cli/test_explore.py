"""`regard explore` as a process with a socket."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from regard.cli.explore import find_newest_run
from regard.errors import ModelError
from regard.explorer.server import DEFAULT_PORT, is_loopback, listen
from regard.runs.folder import RunFolder
from tests_command import HANG, Result

Run = Callable[..., Result]


@contextmanager
def start(*words: str | Path, cwd: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start the server, and return the URL that it prints."""
    command = [sys.executable, "-m", "regard", "explore", *map(str, words), "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd)
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def fetch(url: str, body: Any = None) -> Any:
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, content, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=HANG) as response:
        return json.load(response)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C is another event on Windows")
def test_the_newest_run_is_served_until_ctrl_c(small_run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "runs").symlink_to(small_run.path.parent, target_is_directory=True)
    with start("--port", "0", cwd=tmp_path) as (process, url):
        assert url.startswith("http://127.0.0.1:")
        [model] = fetch(f"{url}api/models")
        assert model["source_kind"] == "text"
        trace = fetch(f"{url}api/trace", {"model": "0", "source": {"text": "3 mai 2009"}})
        assert trace["format"] >= 3
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=HANG)
        assert (process.returncode, out) == (0, "")
        assert "Traceback" not in err


@pytest.mark.posix
def test_the_gallery_needs_no_run_and_does_not_import_torch(tmp_path: Path) -> None:
    program = (
        "import sys, atexit; atexit.register(lambda: print('torch' in sys.modules)); from regard.cli import main;"
        "sys.argv = ['regard', 'explore', '--gallery', '--port', '0', '--no-browser']; main()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stdout is not None
        with urllib.request.urlopen(process.stdout.readline().strip(), timeout=HANG) as page:
            assert "luong-local-p" in page.read().decode()
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=HANG)[0] == "False\n"


def test_the_gallery_shows_no_run(cli: Run, small_run: RunFolder) -> None:
    done = cli("explore", small_run.path, "--gallery", "--no-browser")
    assert done.returncode == 2
    assert "Omit --gallery or RUN" in done.stderr


def test_a_server_for_other_machines_needs_a_token(cli: Run, small_run: RunFolder) -> None:
    done = cli("explore", small_run.path, "--host", "0.0.0.0", "--no-browser")
    assert done.returncode == 2
    assert "Add --token TOKEN" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--host", "", "--token", "secret"), "Use 127.0.0.1 for this machine only, or 0.0.0.0"),
        (("--host", "a..b", "--token", "secret"), "Use an address of this machine"),
        (("--token", " "), "--token is empty"),
        (("--token", "\udcff"), "--token is not valid UTF-8"),
    ],
)
def test_an_address_or_a_token_that_cannot_be_used_is_rejected(
    cli: Run, small_run: RunFolder, words: tuple[str, ...], message: str
) -> None:
    done = cli("explore", small_run.path, "--no-browser", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in " ".join(done.stderr.split())


def test_a_folder_that_is_not_a_run_is_rejected(cli: Run, tmp_path: Path) -> None:
    done = cli("explore", tmp_path, "--no-browser")
    assert done.returncode == 4
    assert "does not contain a model" in done.stderr
    none = cli("explore", "--no-browser")
    assert none.returncode == 4
    assert "There is no run in the folder runs" in none.stderr


def test_without_the_packages_of_the_extra_the_command_to_install_them_is_printed(
    small_run: RunFolder, tmp_path: Path
) -> None:
    (tmp_path / "fastapi.py").write_text("raise ImportError")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", "regard", "explore", str(small_run.path), "--no-browser"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2
    assert "pip install 'regard[explorer]'" in done.stderr.replace("\n", " ")


def test_a_free_port_is_used_if_the_default_is_taken(cli: Run, small_run: RunFolder) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        done = cli("explore", small_run.path, "--port", port, "--no-browser")
        assert done.returncode == 2
        assert "the port is in use" in done.stderr
    try:
        with socket.create_server(("127.0.0.1", DEFAULT_PORT)), listen("127.0.0.1", None) as other:
            assert other.getsockname()[1] != DEFAULT_PORT
    except OSError:  # another program has the port: it is as taken as it can be
        with listen("127.0.0.1", None) as other:
            assert other.getsockname()[1] != DEFAULT_PORT


def test_the_newest_run_is_the_one_written_last(tmp_path: Path) -> None:
    for age, name in enumerate(("new", "old")):
        (tmp_path / name / "checkpoints" / "step-1").mkdir(parents=True)
        (tmp_path / name / "config.yaml").write_text("")
        os.utime(tmp_path / name / "checkpoints", (1000 - age, 1000 - age))
    assert find_newest_run(tmp_path) == tmp_path / "new"
    with pytest.raises(ModelError, match="Train a model first"):
        find_newest_run(tmp_path / "none")


def test_only_addresses_of_this_machine_are_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.0.0.2", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.1.7", "example.org")))
