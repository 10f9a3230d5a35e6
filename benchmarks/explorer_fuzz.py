"""Does the server of the explorer survive malformed requests? Starts `regard explore` on three small models, sends
calls with wrong paths, methods, headers and bodies through a socket, and counts the statuses of the responses. Exits
with 1 after a status of 5xx, an incomplete response, a server that sends nothing for 30 s, or a traceback of it.

    python benchmarks/explorer_fuzz.py --calls 10000
"""

import argparse
import base64
import copy
import io
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from PIL import Image

import regard
from regard.formatting import table

SECONDS: Final = 30.0
"""A server that sends nothing for longer counts as a hang. A stream sends its progress meanwhile."""

TRAINING: Final = {
    "data.train": 200, "data.dev": 8, "data.test": 8, "training.steps": 4, "training.warmup": 1,
    "training.batch_size": 16, "training.validate_every": 4, "training.save_every": 4,
}  # fmt: skip

MODELS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "gru": ("dates", {"model.embedding": 8, "model.encoder.hidden": 8, "model.decoder.hidden": 8}),
    "transformer": (
        "dates",
        {"model": {"kind": "transformer", "size": 8, "feedforward": 8, "layers": 2, "heads": 2, "positions": "rotary"}},
    ),
    "captioner": ("scenes", {}),
}
"""The preset and the settings of each model, in the order of their ids."""


class Call(NamedTuple):
    """A request, as it is written to the socket."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    @property
    def declares_length(self) -> bool:
        """Whether the headers declare a length of the body, which may be wrong."""
        return any(name in ("Content-Length", "Transfer-Encoding") for name, _ in self.headers)

    @property
    def endpoint(self) -> str:
        """The path without a query."""
        return re.split("[?#]", self.path, maxsplit=1)[0]

    def encode(self, host: str) -> bytes:
        """Return the bytes of the request. Headers of the call replace those that every request needs."""
        given = {name.lower() for name, _ in self.headers}
        needed = (("Host", host), ("Content-Length", str(len(self.body))), ("Connection", "close"))
        headers = [*self.headers, *((name, value) for name, value in needed if name.lower() not in given)]
        lines = [f"{self.method} {self.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
        return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogatepass") + self.body


def make_image() -> str:
    """Return a small image file as base64."""
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


ATTENTIONS: Final = {
    "0": "decoder.attention",
    "1": "decoder.layers.0.cross_attention.attention",
    "2": "decoder.attention",
}
"""A cross-attention of each model, by id."""


def list_edits(attention: str) -> list[dict[str, Any]]:
    """Return a valid edit of each kind."""
    return [
        {"kind": "force_token", "step": 0, "token": "1"},
        {"kind": "set_row", "attention": attention, "head": 0, "step": 0, "weights": [1.0] + [0.0] * 9},
        {"kind": "mask_keys", "attention": attention, "head": None, "step": 1, "keys": [0, 1]},
        {"kind": "uniform_row", "attention": attention, "head": None, "step": None},
        {"kind": "ablate_head", "attention": attention, "head": 0},
        {"kind": "replace_source", "position": 0, "text": "4"},
        {"kind": "delete_source", "position": 0},
        {"kind": "mask_source", "position": 0},
        {"kind": "mask_region", "cells": [0]},
    ]


SEARCH: Final[dict[str, Any]] = {
    "beam": 2, "nbest": 2, "length_penalty": 0.6, "coverage_penalty": 0.1, "groups": 1, "diversity_penalty": 0.5,
    "sample": False, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "mbr_samples": 0, "no_repeat_ngram": 2,
    "repetition_penalty": 1.1, "loop_guard": False, "min_length": 1, "seed": 0, "prefix": "2",
    "must_contain": ["-"], "banned": ["9"],
}  # fmt: skip
SAMPLING: Final = {"sample": True, "temperature": 1.0, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "seed": 1}
SOURCES: Final = [{"text": "3 mai 2009"}, {"text": "3 mai 2009"}, {"text": ""}, {"example": 0}]
IMAGES: Final = [{"image": make_image()}, {"example": 0}]

# Characters that parsers, encoders and terminals treat specially.
TEXTS: Final = (
    "", "\0", "\ud800", "\u202e", "👩\u200d👧", "é", "</script>", "../../etc/passwd", "%s%n", "x" * 2_001, "字" * 300,
)  # fmt: skip
NUMBERS: Final = (
    0, -1, 1, 50, 51, 2**31, 2**63 - 1, 2**63, 2**64, 10**400, -0.0, 1e-320, 1e308, float("nan"), float("inf"),
)  # fmt: skip

texts = st.sampled_from(TEXTS) | st.text(max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.sampled_from(NUMBERS) | st.integers() | st.floats() | texts,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(texts, children, max_size=3),
    max_leaves=8,
)


def list_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value within a JSON value, the value itself excluded."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield (*path, key)
        yield from list_paths(child, (*path, key))


@st.composite
def damaged(draw: st.DrawFn, body: dict[str, Any]) -> Any:
    """Replace, remove or add up to three values at random places of a valid body."""
    body = copy.deepcopy(body)
    for _ in range(draw(st.sampled_from([0, 1, 1, 2, 3]))):
        paths = list(list_paths(body))
        if not paths:
            break
        *parents, key = draw(st.sampled_from(paths))
        parent: Any = body
        for each in parents:
            parent = parent[each]
        match draw(st.sampled_from(["replace", "replace", "remove", "add"])):
            case "replace":
                parent[key] = draw(values)
            case "remove":
                del parent[key]
            case "add" if isinstance(parent, dict):
                parent[draw(texts)] = draw(values)
            case "add":
                parent.append(draw(values))
    return body


@st.composite
def bodies(draw: st.DrawFn, path: str) -> Any:
    """A body for a path: valid, damaged, or any other JSON value."""
    search = draw(st.sampled_from([{}, {"beam": 3}, SEARCH, SAMPLING]))
    model = draw(st.sampled_from("012"))
    body: dict[str, Any] = {"model": model, "search": search}
    if path == "/api/corpus":
        body["limit"] = 2
    elif path == "/api/corpus/metrics":
        body = {"models": [model], "search": search, "indices": [0, 1]}
    elif path == "/api/neighbors":
        body = {"model": model, "source": draw(st.sampled_from(IMAGES if model == "2" else SOURCES)), "tokens": [5, 6]}
    else:
        body["source"] = draw(st.sampled_from(IMAGES if model == "2" else SOURCES))
        body["target"] = draw(st.sampled_from([None, None, "2009-05-03"]))
    if path == "/api/attribution":
        body |= {
            "methods": draw(st.lists(st.sampled_from(["gradient_x_input", "occlusion", "value_zeroing"]), max_size=2)),
            "contrast": draw(st.sampled_from([None, "2010", {"step": 0, "token": "1"}])),
            "baseline": "zero", "integration_steps": 2, "previous": draw(st.booleans()), "normalize": False,
        }  # fmt: skip
    elif path in ("/api/trace", "/api/attention"):
        body |= {
            "edits": draw(st.lists(st.sampled_from(list_edits(ATTENTIONS[model])), max_size=2)),
            "queries": draw(st.booleans()), "states": draw(st.booleans()), "candidates": 3,
            "summary": draw(st.booleans()),
        }  # fmt: skip
    if path == "/api/attention":
        body["names"] = [ATTENTIONS[model]]
    return draw(values if draw(st.sampled_from([True] + [False] * 9)) else damaged(body))


STREAMS: Final = ("/api/corpus", "/api/neighbors", "/api/attribution")
POSTS: Final = (*STREAMS, "/api/trace", "/api/attention", "/api/corpus/metrics")
GETS: Final = ("/", "/app.js", "/app.css", "/api/models", "/api/models/0/card")
VISIBLE: Final = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF, exclude_characters="\x7f"), max_size=30)

paths = st.sampled_from(POSTS) | st.sampled_from((*POSTS, *GETS)) | VISIBLE.map(lambda text: f"/{text}")
hostile_headers = st.tuples(
    st.sampled_from(
        ("Host", "Origin", "Content-Type", "Content-Length", "Cookie", "Authorization", "Sec-Fetch-Site", "Range",
         "Transfer-Encoding", "Expect", "Accept-Encoding", "Upgrade", "X-Forwarded-Host", "If-Modified-Since")
    ),
    VISIBLE | st.sampled_from(("", "null", "chunked", "0", "9" * 11, "-1", "bytes=5-2", "h2c", "evil.example", "gzip")),
)  # fmt: skip

DAMAGES: Final = (*["none"] * 14, "method", "headers", "header", "binary", "truncated", "suffix")


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """A call of the API that is wrong in some way, or in none."""
    path = draw(paths)
    method = "POST" if path in POSTS else "GET"
    headers = [("Content-Type", "application/json")]
    body = json.dumps(draw(bodies(path))).encode() if method == "POST" else b""
    match draw(st.sampled_from(DAMAGES)):
        case "method":
            method = draw(st.sampled_from(("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "X")))
        case "headers":
            headers = draw(st.lists(hostile_headers, max_size=3))
        case "header":
            headers.append(draw(hostile_headers))
        case "binary":
            body = draw(st.binary(max_size=100))
        case "truncated":
            body = body[: draw(st.integers(0, len(body)))]
        case "suffix":
            path += draw(st.sampled_from(("?", "/", "%00", "%2e%2e%2f", "?token=x&token=%ff", "#x", "//")))
    return Call(method, path, tuple(headers), body)


NOT_HTTP: Final = b"Invalid HTTP request received."
"""The response of the HTTP parser, which the application does not see."""


def check_response(call: Call, status: int, content: bytes) -> str | None:
    """Return what is wrong with a response; None if a client can use it."""
    if status == 0 and call.declares_length:  # the client has closed its side before the server responded
        return None
    if not 200 <= status < 500:
        return f"status {status}"
    if call.method == "HEAD" or not call.endpoint.startswith("/api/") or content == NOT_HTTP:
        return None
    try:
        if status >= 400:
            return None if json.loads(content)["error"]["message"] else "an error without a message"
        if call.endpoint in STREAMS:
            lines = [json.loads(line) for line in content.splitlines()]
            bugs = [line for line in lines if "bug" in line.get("error", {}).get("message", "")]
            return str(bugs) if bugs or not lines else None
        json.loads(content)
    except (ValueError, KeyError, TypeError) as error:
        return f"the response is not valid: {error!r}"
    return None


class Response(NamedTuple):
    """The parts of an HTTP response; `status` is 0 if the server closed the connection without one."""

    status: int
    complete: bool
    content: bytes


def exchange(address: tuple[str, int], call: Call) -> Response:
    """Send a request, and read the response until the server closes the connection."""
    with socket.create_connection(address, SECONDS) as connection:
        connection.sendall(call.encode(f"{address[0]}:{address[1]}"))
        if call.declares_length:  # the server may wait for more bytes, until the client closes its side
            connection.shutdown(socket.SHUT_WR)
        received = _receive_all(connection)
    head, _, content = received.partition(b"\r\n\r\n")
    status = re.match(rb"HTTP/1.1 (\d+)", head)
    if b"transfer-encoding: chunked" not in head.lower():
        return Response(int(status[1]) if status else 0, True, content)
    chunks = []
    while content:
        size, _, content = content.partition(b"\r\n")
        chunks.append(content[: int(size, 16)])
        content = content[int(size, 16) + 2 :]
    return Response(int(status[1]) if status else 0, chunks[-1:] == [b""], b"".join(chunks))


def _receive_all(connection: socket.socket) -> bytes:
    """Return the bytes up to the end of the connection, also if the server resets it."""
    received = b""
    with suppress(ConnectionResetError):
        while part := connection.recv(1 << 16):
            received += part
    return received


def train_models(folder: Path) -> list[Path]:
    """Train a GRU, a Transformer and a captioner for a few steps."""
    for name, (preset, changes) in MODELS.items():
        regard.train(preset, {**TRAINING, **changes}, out=folder / name, quiet=True)
    return [folder / name for name in MODELS]


@contextmanager
def serve(runs: Sequence[Path], log: Path) -> Iterator[tuple[str, int]]:
    """Start `regard explore`, and return its address. Its stderr is written to a file."""
    command = [sys.executable, "-m", "regard", "explore", *map(str, runs), "--no-browser", "--port", "0"]
    with log.open("wb") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=dict(os.environ))
    try:
        assert process.stdout is not None
        url = urlsplit(process.stdout.readline().strip())
        assert url.hostname is not None, log.read_text()
        assert url.port is not None
        yield url.hostname, url.port
        assert process.poll() is None, "the server has exited"
    finally:
        process.terminate()
        process.wait()


class Tally:
    """Statuses, times and problems of all calls."""

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.problems: list[str] = []
        self.slowest: tuple[float, Call | None] = (0.0, None)

    def send(self, address: tuple[str, int], call: Call) -> None:
        """Send a call, and keep what is wrong with the response."""
        start = time.perf_counter()
        try:
            response = exchange(address, call)
        except TimeoutError:
            problem: str | None = f"no byte for {SECONDS:.0f} s"
        else:
            self.statuses[response.status] += 1
            problem = check_response(call, response.status, response.content)
            if not response.complete:
                problem = "the response is incomplete"
        self.slowest = max(self.slowest, (time.perf_counter() - start, call), key=itemgetter(0))
        if problem is not None:
            self.problems.append(f"{problem}: {call}")


def run(count: int, number: int) -> int:
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "stderr.txt"
        with serve(train_models(Path(folder)), log) as address:
            start = time.perf_counter()

            @seed(number)
            @settings(
                max_examples=count, deadline=None, database=None, phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )  # fmt: skip
            @given(calls())
            def send(call: Call) -> None:
                tally.send(address, call)

            send()
            seconds = time.perf_counter() - start
        messages = log.read_text()
    if "Traceback" in messages:
        tally.problems.append(messages)
    statuses = [(str(status or "closed"), f"{number:,}") for status, number in sorted(tally.statuses.items())]
    print(table(("status", "calls"), statuses))
    print(f"{tally.statuses.total():,} calls in {seconds:.0f} s")
    print(f"the slowest took {tally.slowest[0]:.1f} s: {tally.slowest[1]}")
    print(f"{len(tally.problems)} problems")
    print("\n".join(tally.problems[:20]))
    return int(bool(tally.problems))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=10_000, help="number of calls")
    parser.add_argument("--seed", type=int, default=0, help="seed of the calls")
    options = parser.parse_args()
    sys.exit(run(options.calls, options.seed))
