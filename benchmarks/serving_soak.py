"""Does a server lose requests when it is stopped, do slow clients block others, and does its memory grow? Starts the
server in another process, with an application that waits for some milliseconds or with --app, and sends requests.

    python benchmarks/serving_soak.py --rounds 100              # SIGTERM under load
    python benchmarks/serving_soak.py --rounds 100 --workers 2
    python benchmarks/serving_soak.py --slow 200                # slow clients: p99 of others, with and without
    python benchmarks/serving_soak.py --minutes 30              # memory
    python benchmarks/serving_soak.py --minutes 2 --leak 2000   # negative control: 2,000 bytes are kept per request

    python benchmarks/serving_soak.py --rounds 100 --app serving_soak:create_models en:de=runs/en-de  # regard serve
    python benchmarks/serving_soak.py --reloads 20 runs/first runs/second --app serving_soak:create_models en:de=copy

--app MODULE:FUNCTION ARGUMENT… serves the application that the function returns for these arguments. The requests
translate "hello", or the lines of --texts in turn, and a client waits for --pause seconds before each. --reloads
overwrites the last folder of --app with each of two versions in turn, sends SIGHUP, and waits until they are served.
Exits with 1 if a request is lost or fails, if the p99 of others more than doubles, if a slow client is not
disconnected, or if memory grows.
"""

import argparse
import asyncio
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from itertools import cycle
from pathlib import Path
from typing import Any, Final, NamedTuple, final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from regard.formatting import format_bytes, table
from regard.serving.limits import LimitsMiddleware
from regard.serving.server import run_server
from regard.serving.settings import AppOptions, Loading, ModelAddress, RequestLimits, ServerOptions

HANG: Final = 120.0
"""A response that takes longer, in seconds, is taken to hang."""

GROWTH: Final = 0.05
"""Memory grows if the trend over the measurement is more than this share of it."""


def create_demo() -> Starlette:
    """Return an application that answers after 2 to 20 ms."""

    async def translate(request: Request) -> JSONResponse:
        content = await request.json()
        await asyncio.sleep(random.uniform(0.002, 0.02))
        return JSONResponse({"translatedText": content["q"].upper()})

    app = Starlette(routes=[Route("/translate", translate, methods=["POST"])])
    app.add_middleware(LimitsMiddleware, limits=RequestLimits())
    return app


def create_models(*models: str) -> Starlette:
    """Return the application of `regard serve` for some models, SOURCE:TARGET=FOLDER."""
    from regard.serving.app import create_app as create_serving_app

    addresses = tuple(ModelAddress.parse(model) for model in models)
    return create_serving_app(AppOptions(loading=Loading(models=addresses)))


@final
class Leaking:
    """A deliberate leak: keeps some bytes for each request."""

    def __init__(self, app: ASGIApp, size: int) -> None:
        self._app, self._size, self._kept = app, size, list[bytes]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._kept.append(os.urandom(self._size))
        await self._app(scope, receive, send)


def create_app(app: str, arguments: Sequence[str], leak: int) -> Starlette:
    """Return the application under test, with a leak of some bytes per request."""
    module, function = app.split(":")
    created: Starlette = getattr(import_module(module), function)(*arguments)
    if leak:
        created.add_middleware(Leaking, size=leak)
    return created


def serve(options: str, app: str, arguments: Sequence[str], leak: int) -> None:
    """Serve in this process, with options as JSON."""
    run_server(partial(create_app, app, tuple(arguments), leak), ServerOptions.model_validate_json(options))


class Server(NamedTuple):
    """A server in another process, and the host and port of its URL."""

    process: "subprocess.Popen[str]"
    host: str
    port: int


@contextmanager
def running(command: Sequence[str], **options: Any) -> Iterator[Server]:
    """Start a server, wait until it prints its URL, and kill it at the end if it has not stopped."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True, **options) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            url = re.fullmatch(r"https?://(.+):(\d+)/\n", line)
            if url is None:
                raise RuntimeError(f"The server printed {line!r} instead of its URL. See its messages above.")
            yield Server(process, url[1], int(url[2]))
        finally:
            if process.poll() is None:
                process.terminate()  # a supervisor ends its workers
                with suppress(subprocess.TimeoutExpired):
                    process.wait(60)
            process.kill()


class Response(NamedTuple):
    """A response: its status, whether it is the last one of its connection, and its body."""

    status: int
    closes: bool
    body: bytes


async def read_response(reader: asyncio.StreamReader) -> Response:
    """Read a response with a Content-Length. Raise OSError or EOFError if the connection ends before."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = re.search(rb"\r\ncontent-length: (\d+)", head)
    body = await reader.readexactly(int(length[1]) if length else 0)
    return Response(int(head.split(b" ", 2)[1]), b"\r\nconnection: close" in head, body)


@final
class Clients:
    """Clients that send requests one after the other, with or without keep-alive, and what became of the requests.

    Args:
        host: The host of the server.
        port: Its port.
        bodies: The bodies of the requests, which are sent in turn.
        count: The number of clients.
        pause: How many seconds a client waits before each request.

    Attributes:
        outcomes: `answered`; `refused`: no connection was accepted; `lost`: the connection ended before the response;
            `raced`: so did a connection that had been used before, without a byte of a response, and the client can
            send the request again.
        seconds: The time of each request that was answered.
    """

    def __init__(self, host: str, port: int, bodies: Sequence[bytes], count: int, pause: float = 0) -> None:
        self.outcomes: Counter[str] = Counter()
        self.seconds: list[float] = []
        self.failures: list[str] = []
        self._host, self._port, self._count, self._pause, self._stop = host, port, count, pause, False
        head = b"POST /translate HTTP/1.1\r\nHost: server\r\nContent-Type: application/json\r\nContent-Length: "
        self._requests = cycle([b"%s%d\r\n\r\n%s" % (head, len(body), body) for body in bodies])

    async def run(self, until: Callable[[], Any]) -> None:
        """Send requests until a coroutine ends, or the server refuses connections."""
        async with asyncio.TaskGroup() as group:
            for index in range(self._count):
                group.create_task(self._run_client(keep_alive=index % 2 == 0))
            await until()
            self._stop = True

    async def _run_client(self, *, keep_alive: bool) -> None:
        while not self._stop:
            try:
                reader, writer = await asyncio.wait_for(asyncio.open_connection(self._host, self._port), HANG)
            except OSError:
                self.outcomes["refused"] += 1
                return
            used = False
            try:
                while not self._stop:
                    await asyncio.sleep(self._pause)
                    start = time.perf_counter()
                    writer.write(next(self._requests))
                    response = await asyncio.wait_for(read_response(reader), HANG)
                    self.seconds.append(time.perf_counter() - start)
                    self.outcomes["answered" if response.status == 200 else f"status {response.status}"] += 1
                    used = True
                    if response.closes or not keep_alive:
                        break
            except (OSError, EOFError, TimeoutError) as error:
                partial_response = getattr(error, "partial", b"")
                self.outcomes["raced" if used and not partial_response else "lost"] += 1
                self.failures.append(repr(error))
            finally:
                writer.close()


async def stop_under_load(server: Server, load: Clients, seconds: float) -> None:
    """Send requests, stop the server after some seconds, and wait until it refuses connections.

    All its processes receive the signal, as from systemd or a terminal.
    """

    async def stop() -> None:
        await asyncio.sleep(seconds)
        os.killpg(server.process.pid, signal.SIGTERM)
        await asyncio.to_thread(server.process.wait, HANG)

    await load.run(stop)


class SlowClients:
    """Connections that send a byte of their headers or of their body per second, until the server closes them."""

    def __init__(self, host: str, port: int, count: int) -> None:
        self.closed, self.statuses = 0, Counter[int]()
        self._host, self._port, self._count = host, port, count

    async def run(self) -> None:
        await asyncio.gather(*(self._run_client(headers=index % 2 == 0) for index in range(self._count)))

    async def _run_client(self, *, headers: bool) -> None:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        writer.write(b"POST /translate HTTP/1.1\r\nHost: server\r\n")
        if not headers:
            writer.write(b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n")
        try:
            answer = asyncio.create_task(read_response(reader))
            while not answer.done():
                writer.write(b"x")
                await asyncio.wait([answer], timeout=1)
            self.statuses[(await answer).status] += 1
        except (OSError, EOFError):
            pass
        finally:
            writer.close()
        self.closed += 1


def measure_memory(process: int) -> int:
    """Return the bytes of memory that only this process and its children use."""
    total = 0
    for entry in [Path(f"/proc/{process}"), *_list_children(process)]:
        found = re.findall(r"^Private_\w+: +(\d+) kB", (entry / "smaps_rollup").read_text(), re.MULTILINE)
        total += 1024 * sum(map(int, found))
    return total


def _list_children(process: int) -> list[Path]:
    return [Path(f"/proc/{child}") for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def compute_p99(seconds: Sequence[float]) -> float:
    return statistics.quantiles(seconds, n=100)[98]


def create_clients(server: Server, arguments: argparse.Namespace) -> Clients:
    texts = ["hello"] if arguments.texts is None else Path(arguments.texts).read_text().splitlines()
    bodies = [json.dumps({"q": text, "source": "en", "target": "de"}).encode() for text in texts]
    return Clients(server.host, server.port, bodies, arguments.clients, arguments.pause)


def check_stops(command: Callable[..., list[str]], arguments: argparse.Namespace) -> bool:
    """Stop the server under load in each round, and count what became of the requests."""
    totals: Counter[str] = Counter()
    bad_exits = 0
    for number in range(1, arguments.rounds + 1):
        with running(command()) as server:
            seconds = random.uniform(0.1, 1)
            load = create_clients(server, arguments)
            asyncio.run(stop_under_load(server, load, seconds))
            bad_exits += server.process.returncode != 0
        totals += load.outcomes
        for failure in load.failures:
            print(f"round {number}: {failure}", file=sys.stderr)
    print(table(["rounds", "workers", *totals, "lost", "bad exit codes"], [
        [str(value) for value in (arguments.rounds, arguments.workers, *totals.values(), totals["lost"], bad_exits)]
    ]))  # fmt: skip
    return not bad_exits and set(totals) <= {"answered", "refused", "raced"}


def check_slow_clients(command: Callable[..., list[str]], arguments: argparse.Namespace) -> bool:
    """Compare the p99 of other clients with and without slow ones, which are all disconnected."""

    async def measure(server: Server) -> tuple[Clients, Clients, SlowClients]:
        alone, among = create_clients(server, arguments), create_clients(server, arguments)
        slow = SlowClients(server.host, server.port, arguments.slow)
        await alone.run(partial(asyncio.sleep, arguments.seconds))
        await among.run(slow.run)
        return alone, among, slow

    with running(command(header_timeout=arguments.seconds, body_timeout=arguments.seconds)) as server:
        alone, among, slow = asyncio.run(measure(server))
    ratio = compute_p99(among.seconds) / compute_p99(alone.seconds)
    print(table(["slow clients", "closed", "p99 without", "p99 with", "ratio"], [[
        str(arguments.slow), str(slow.closed), f"{1000 * compute_p99(alone.seconds):.1f} ms",
        f"{1000 * compute_p99(among.seconds):.1f} ms", f"{ratio:.2f}",
    ]]))  # fmt: skip
    return slow.closed == arguments.slow and ratio <= 2 and set(alone.outcomes + among.outcomes) == {"answered"}


def check_memory(command: Callable[..., list[str]], arguments: argparse.Namespace) -> bool:
    """Measure the memory under load, after a warm-up of a tenth of the time."""
    samples: list[int] = []

    async def measure(server: Server) -> Clients:
        load = create_clients(server, arguments)

        async def sample() -> None:
            seconds = arguments.minutes * 60
            await asyncio.sleep(seconds / 10)
            for _ in range(100):
                samples.append(measure_memory(server.process.pid))
                print(load.outcomes["answered"], samples[-1], sep="\t", file=sys.stderr)
                await asyncio.sleep(0.9 * seconds / 100)

        await load.run(sample)
        return load

    with running(command()) as server:
        load = asyncio.run(measure(server))
    trend = statistics.linear_regression(range(len(samples)), samples).slope * len(samples)
    growth = trend / statistics.median(samples)
    print(table(["minutes", "requests", "memory at first", "at last", "trend", "verdict"], [[
        f"{arguments.minutes:g}", str(load.outcomes["answered"]), format_bytes(samples[0]), format_bytes(samples[-1]),
        f"{growth:+.1%}", "grows" if growth > GROWTH else "flat",
    ]]))  # fmt: skip
    return growth <= GROWTH and set(load.outcomes) == {"answered"}


def check_reloads(command: Callable[..., list[str]], arguments: argparse.Namespace) -> bool:
    """Replace the weights under load, and count the requests that failed."""
    count, *versions = arguments.reloads
    folder = Path(ModelAddress.parse(arguments.app[-1]).path)
    memory: list[int] = []

    def copy(number: int) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(versions[number % len(versions)], folder)

    with tempfile.TemporaryDirectory() as logs, (Path(logs) / "log").open("w+") as log:

        def count_replaced() -> int:
            return (Path(logs) / "log").read_text().count("The models were replaced")

        async def measure(server: Server) -> Clients:
            load = create_clients(server, arguments)

            async def reload() -> None:
                for number in range(1, int(count) + 1):
                    expected = count_replaced() + arguments.workers
                    await asyncio.to_thread(copy, number)
                    server.process.send_signal(signal.SIGHUP)
                    while count_replaced() < expected:
                        await asyncio.sleep(0.1)
                    memory.append(measure_memory(server.process.pid))

            await load.run(lambda: asyncio.wait_for(reload(), int(count) * HANG))
            return load

        copy(0)
        with running(command(), stderr=log) as server:
            load = asyncio.run(measure(server))
        replaced = count_replaced()
    failed = load.outcomes.total() - load.outcomes["answered"]
    print(table(["replaced", "answered", "failed", "p99", "memory after the first", "after the last"], [[
        str(replaced), str(load.outcomes["answered"]), str(failed), f"{1000 * compute_p99(load.seconds):.0f} ms",
        format_bytes(memory[0]), format_bytes(memory[-1]),
    ]]))  # fmt: skip
    return not failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=0, help="how often the server is stopped under load")
    parser.add_argument("--slow", type=int, default=0, help="the number of slow clients")
    parser.add_argument("--minutes", type=float, default=0, help="how long memory is measured")
    parser.add_argument(
        "--reloads", nargs=3, metavar=("N", "FOLDER", "FOLDER"), help="how often the weights are replaced, and by what"
    )
    parser.add_argument("--leak", type=int, default=0, help="the number of bytes that leak per request")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=10, help="the time-outs with --slow")
    parser.add_argument("--pause", type=float, default=0, help="seconds that a client waits before each request")
    parser.add_argument("--texts", metavar="FILE", help="the lines that are translated")
    parser.add_argument("--app", nargs="+", default=["serving_soak:create_demo"], metavar="WORD")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    app, *words = arguments.app
    if arguments.serve:
        serve(arguments.serve, app, words, arguments.leak)
        return

    def command(**times: float) -> list[str]:
        options = json.dumps({"port": 0, "workers": arguments.workers, "log_format": "text", **times})
        start = "import sys; sys.path.insert(0, sys.argv.pop(1)); import serving_soak; serving_soak.main()"
        given = ["--serve", options, "--leak", str(arguments.leak), "--app", *arguments.app]
        return [sys.executable, "-c", start, str(Path(__file__).parent), *given]

    checks = {
        check_stops: arguments.rounds,
        check_slow_clients: arguments.slow,
        check_memory: arguments.minutes,
        check_reloads: arguments.reloads,
    }
    results = [check(command, arguments) for check, wanted in checks.items() if wanted]
    if not results:
        parser.error("nothing to do: add --rounds, --slow, --minutes or --reloads")
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
