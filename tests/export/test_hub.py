"""Uploads to the Hugging Face Hub, with real requests to a local server."""

import base64
import json
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.export.hub import push_folder
from regard.runs.folder import RunFolder
from tests_command import Result, run_fresh

pytest.importorskip("huggingface_hub", reason="huggingface_hub is missing; install it with: pip install -e '.[test]'")

REPOSITORY, TOKEN = "someone/dates", "hf_secret"


@dataclass
class Hub:
    """A server with the requests of an upload. `status` replaces the answer to a request."""

    watched: Path
    url: str = ""
    status: dict[str, int] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    created: dict[str, Any] = field(default_factory=dict)
    existing: list[set[str]] = field(default_factory=list)
    """The files in the watched folder at each request."""
    uploaded: dict[str, bytes] = field(default_factory=dict)

    def answer(self, path: str, body: bytes, token: str | None) -> tuple[int, dict[str, Any]]:
        [name] = {"create", "validate-yaml", "preupload", "commit"}.intersection(path.split("/"))
        self.requests.append(name)
        self.existing.append({file.name for file in self.watched.iterdir()} if self.watched.is_dir() else set())
        if token != f"Bearer {TOKEN}":
            return 401, {"error": "Invalid username or password."}
        if name in self.status:
            return self.status[name], {"error": "You don't have the rights."}
        if name == "validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if name == "create":
            self.created = json.loads(body)
            return 200, {"url": f"{self.url}/{REPOSITORY}"}
        if name == "preupload":
            files = [{**file, "uploadMode": "regular", "shouldIgnore": False} for file in json.loads(body)["files"]]
            return 200, {"files": files}
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                self.uploaded[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        return 200, {"success": True, "commitOid": "0" * 40, "commitUrl": f"{self.url}/{REPOSITORY}/commit/{'0' * 40}"}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    state = Hub(tmp_path / "out")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, document = state.answer(self.path, body, self.headers["Authorization"])
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("HF_ENDPOINT", state.url)  # for new processes
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", state.url)  # it is read when the package is imported
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield state
    server.shutdown()
    server.server_close()


@pytest.fixture
def folder(hub: Hub) -> Path:
    hub.watched.mkdir()
    (hub.watched / "README.md").write_text("A card\n")
    (hub.watched / "config.json").write_text("{}")
    return hub.watched


def test_a_folder_is_uploaded_in_one_commit(hub: Hub, folder: Path) -> None:
    assert push_folder(folder, REPOSITORY, private=True) == f"{hub.url}/{REPOSITORY}"
    assert hub.requests == ["create", "validate-yaml", "preupload", "commit"]
    assert hub.created == {"name": "dates", "organization": "someone", "visibility": "private"}
    assert hub.uploaded == {"README.md": b"A card\n", "config.json": b"{}"}


@pytest.mark.slow
def test_the_command_uploads_after_everything_is_written(
    hub: Hub, transformer: regard.Model, cli: Callable[..., Result]
) -> None:
    assert transformer.run is not None
    out, arguments = hub.watched, ("--to", "hf", "--push", REPOSITORY)
    done = cli("export", transformer.run.path, "--out", out, *arguments, start=run_fresh)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(out), f"{hub.url}/{REPOSITORY}"]
    assert "visibility" not in hub.created
    assert hub.uploaded == {path.name: path.read_bytes() for path in out.iterdir()}
    assert hub.existing[0] == set(hub.uploaded)


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        ({"create": 403}, regard.ConfigError, r"does not allow writing to someone/dates \(You don't have the rights"),
        ({"commit": 403}, regard.ConfigError, "does not allow writing to someone/dates"),
        ({"preupload": 404}, regard.ConfigError, "does not allow writing to someone/dates"),
        ({"create": 500}, regard.ResourceError, "status 500.*Try again later"),
    ],
)
def test_a_refused_upload_is_explained_and_leaves_the_folder(
    hub: Hub, folder: Path, status: dict[str, int], error: type[Exception], message: str
) -> None:
    hub.status = status
    with pytest.raises(error, match=f"(?s){message}.*hf upload someone/dates .*is complete, but not uploaded"):
        push_folder(folder, REPOSITORY)
    assert not hub.uploaded
    assert len(list(folder.iterdir())) == 2


def test_a_missing_or_wrong_token_is_reported(hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(regard.ConfigError, match=r"hf auth login.*HF_TOKEN"):
        push_folder(folder, REPOSITORY)
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(folder / "no-token"))
    with pytest.raises(regard.ConfigError, match=r"hf auth login.*HF_TOKEN"):
        push_folder(folder, REPOSITORY)


def test_a_server_that_cannot_be_reached_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(regard.ResourceError, match=r"http://127\.0\.0\.1:9 cannot be reached.*Check the network"):
        push_folder(folder, REPOSITORY)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--push", "a/b/c"), "Use USER/NAME"),
        (("--push", "-bad-"), "Use USER/NAME"),
        (("--private",), "--private requires --push"),
        (("--push", REPOSITORY, "--to", "argos:source=en,target=de"), "argos is one file"),
    ],
)
def test_wrong_options_are_rejected_before_anything_is_written(
    small_run: RunFolder, tmp_path: Path, cli: Callable[..., Result], options: tuple[str, ...], message: str
) -> None:
    done = cli("export", small_run.path, "--out", tmp_path / "out", *options)
    assert done.returncode == 2
    assert message in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(regard.ConfigError, match=r"pip install 'regard\[hub\]'"):
        push_folder(tmp_path, REPOSITORY)
