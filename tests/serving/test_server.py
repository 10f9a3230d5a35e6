"""The processes of a server: requests are answered until the end, and slow clients do not block others."""

import asyncio
import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from regard.errors import ConfigError
from regard.serving.server import run_server
from regard.serving.settings import RequestLimits, ServerOptions
from serving_soak import Clients, Server, SlowClients, stop_under_load
from tests_serving import SECONDS, build_command, build_env, start

BODY = b'{"q": "a"}'


class Client:
    """A connection that sends requests as bytes."""

    def __init__(self, server: Server) -> None:
        self.stream = socket.create_connection((server.host, server.port), SECONDS)

    def send(self, path: str, body: dict[str, Any] | None = None) -> None:
        content = b"" if body is None else json.dumps(body).encode()
        method = "GET" if body is None else "POST"
        self.stream.sendall(f"{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(content)}\r\n\r\n".encode())
        self.stream.sendall(content)

    def receive(self) -> http.client.HTTPResponse:
        response = http.client.HTTPResponse(self.stream)
        response.begin()
        response.read_body = response.read()  # type: ignore[attr-defined]
        return response

    def is_closed(self) -> bool:
        """Wait until the server closes the connection without sending anything."""
        return self.stream.recv(1) == b""


@contextmanager
def connect(server: Server) -> Iterator[Client]:
    client = Client(server)
    with client.stream:
        yield client


def get(server: Server, path: str, body: dict[str, Any] | None = None) -> Any:
    """Send a request on a new connection, and return the JSON of its response."""
    with connect(server) as client:
        client.send(path, body)
        return json.loads(client.receive().read_body)  # type: ignore[attr-defined]


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "The condition did not become true."
        time.sleep(0.05)


def stop(server: Server) -> int:
    server.process.send_signal(signal.SIGTERM)
    return server.process.wait(SECONDS)


def list_processes(server: Server, count: int) -> set[int]:
    """Return the ids of the worker processes, once as many answer."""
    found: set[int] = set()

    def are_found() -> bool:
        found.add(get(server, "/describe")["process"])
        return len(found) >= count

    wait_until(are_found)
    return found


def test_a_stopped_server_answers_requests_that_have_arrived_and_then_refuses_connections(tmp_path: Path) -> None:
    with start(tmp_path) as server, connect(server) as busy, connect(server) as used, connect(server) as fresh:
        busy.send("/translate", {"q": "a", "seconds": 1})
        used.send("/translate", {"q": "a"})
        assert used.receive().getheader("connection") is None
        server.process.send_signal(signal.SIGTERM)
        ends = False
        while not ends:
            used.send("/translate", {"q": "a"})
            ends = used.receive().getheader("connection") == "close"
        fresh.send("/translate", {"q": "a"})
        assert fresh.receive().getheader("connection") == "close"
        assert busy.receive().status == 200
        assert all(client.is_closed() for client in (busy, used, fresh))
        assert server.process.wait(SECONDS) == 0
        assert (tmp_path / "stopped").exists()
        with pytest.raises(ConnectionRefusedError):
            Client(server)


@pytest.mark.slow
def test_connections_that_wait_to_be_accepted_are_served(tmp_path: Path) -> None:
    """While the event loop is blocked, the kernel completes connections. No new one is accepted after the signal."""
    with start(tmp_path) as server, connect(server) as blocking:
        blocking.send("/block?seconds=2", None)
        time.sleep(0.5)
        waiting = [Client(server) for _ in range(50)]
        for client in waiting:
            client.send("/translate", {"q": "a"})
        server.process.send_signal(signal.SIGTERM)
        outcomes = []
        while server.process.poll() is None:
            try:
                with connect(server) as late:
                    late.send("/translate", {"q": "a"})
                    outcomes.append(str(late.receive().status))
            except ConnectionRefusedError:
                outcomes.append("refused")
                break
        assert set(outcomes) <= {"200", "refused"}
        assert outcomes[-1] == "refused"
        assert [client.receive().status for client in (blocking, *waiting)] == [200] * 51
        for client in waiting:
            client.stream.close()
        assert server.process.wait(SECONDS) == 0


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_no_request_is_lost_if_a_server_stops_under_load(tmp_path: Path, workers: int) -> None:
    with start(tmp_path, workers=workers) as server:
        load = Clients(server.host, server.port, [b'{"q": "a", "seconds": 0.05}'], 16)
        asyncio.run(stop_under_load(server, load, 0.5))
        assert server.process.returncode == 0
    assert load.outcomes["answered"] > 16
    assert set(load.outcomes) == {"answered", "refused"}, load.failures
    assert "Traceback" not in (tmp_path / "stderr").read_text()


@pytest.mark.slow
def test_requests_that_take_too_long_are_cancelled_when_the_server_stops(tmp_path: Path) -> None:
    with start(tmp_path, drain=1.5) as server, connect(server) as client:
        client.send("/wait")
        get(server, "/describe")
        assert stop(server) == 0
        assert client.receive().status == 503
        assert client.is_closed()
    assert (tmp_path / "cancelled").exists()
    assert "Cancelled 1 request that did not finish within 1.5 s after the signal." in (tmp_path / "stderr").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_second_signal_ends_the_server_at_once(tmp_path: Path, workers: int) -> None:
    with start(tmp_path, workers=workers) as server, connect(server) as client:
        client.send("/wait")
        get(server, "/describe")
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert stop(server) == 143
        with pytest.raises(ConnectionRefusedError):
            wait_until(lambda: Client(server).stream.close())


@pytest.mark.slow
def test_slow_clients_do_not_block_others_and_are_disconnected(tmp_path: Path) -> None:
    async def run(server: Server) -> tuple[Clients, SlowClients]:
        slow, others = SlowClients(server.host, server.port, 200), Clients(server.host, server.port, [BODY], 4)
        await others.run(slow.run)
        return others, slow

    with start(tmp_path, header_timeout=3, body_timeout=3) as server:
        others, slow = asyncio.run(run(server))
        assert stop(server) == 0
    assert set(others.outcomes) == {"answered"}
    assert (slow.closed, set(slow.statuses)) == (200, {408})


@pytest.mark.slow
def test_a_connection_that_sends_nothing_or_nothing_more_is_closed(tmp_path: Path) -> None:
    with start(tmp_path, header_timeout=1, keep_alive=1, body_timeout=1) as server:
        with connect(server) as silent:
            assert silent.is_closed()
        with connect(server) as idle:
            idle.send("/describe")
            assert idle.receive().status == 200
            assert idle.is_closed()
        with connect(server) as slow:  # the answer does not need the body, which is ignored for some time
            slow.stream.sendall(b"POST /describe HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n1")
            assert slow.receive().status == 405
            assert slow.is_closed()


@pytest.mark.slow
def test_requests_that_are_not_http_are_answered_with_an_error(tmp_path: Path) -> None:
    with start(tmp_path) as server:
        for request, status in (
            (b"\x16\x03\x01 hello\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 100_000, 431),
        ):
            with connect(server) as client:
                client.stream.sendall(request)
                response = client.receive()
                assert response.status == status
                assert set(json.loads(response.read_body)) == {"error"}  # type: ignore[attr-defined]


@pytest.mark.posix
@pytest.mark.slow
def test_workers_share_the_port_and_dead_ones_are_replaced(tmp_path: Path) -> None:
    with start(tmp_path, workers=2) as server:
        first = list_processes(server, 2)
        assert server.process.pid not in first
        os.kill(first.pop(), signal.SIGKILL)
        assert len(list_processes(server, 2) | first) == 2
        (tmp_path / "model").write_text("second")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: {get(server, "/describe")["model"] for _ in range(20)} == {"second"})
        (tmp_path / "model").write_text("broken")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: (tmp_path / "stderr").read_text().count("The model is broken.") == 2)
        assert get(server, "/describe")["model"] == "second"
        os.kill(first.pop(), signal.SIGKILL)  # its successor cannot load the model, and is started again later
        wait_until(lambda: (tmp_path / "stderr").read_text().count("The model is broken.") == 4)
        assert get(server, "/describe")["model"] == "second"
        (tmp_path / "model").write_text("second")
        list_processes(server, 2)
        with connect(server) as client:
            client.send("/metrics")
            text = client.receive().read_body.decode()  # type: ignore[attr-defined]
        found = re.search(r'requests_total{endpoint="/describe",method="GET",status="200"} (\d+)', text)
        assert found is not None
        assert int(found[1]) >= 20  # of all workers, also of those that have ended
        assert stop(server) == 0


@pytest.mark.slow
def test_workers_end_with_their_supervisor(tmp_path: Path) -> None:
    with start(tmp_path, workers=2) as server:
        list_processes(server, 2)
        server.process.kill()
        with pytest.raises(ConnectionRefusedError):
            wait_until(lambda: Client(server).stream.close())


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_failure_at_the_start_is_reported_once(tmp_path: Path, workers: int) -> None:
    (tmp_path / "model").write_text("broken")
    command = build_command(tmp_path, workers=workers)
    done = subprocess.run(command, capture_output=True, text=True, env=build_env(), timeout=SECONDS, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "regard: The model is broken. Train it again.\n"


@pytest.mark.slow
def test_a_worker_that_dies_at_the_start_ends_the_server(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("killed")
    command = build_command(tmp_path, workers=2)
    done = subprocess.run(command, capture_output=True, text=True, env=build_env(), timeout=SECONDS, check=False)
    assert done.returncode == 7
    assert "A worker ended with exit code 9 before it was ready." in done.stderr


@pytest.mark.posix
@pytest.mark.slow
def test_sighup_reloads_a_server_with_one_process(tmp_path: Path) -> None:
    with start(tmp_path) as server:
        (tmp_path / "model").write_text("second")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: get(server, "/describe")["model"] == "second")
        assert stop(server) == 0


def make_certificate(folder: Path, name: str) -> tuple[str, str]:
    """Return the files of a self-signed certificate for 127.0.0.1, and of its key."""
    if which("openssl") is None:
        pytest.skip("needs the command openssl: install the package openssl of the system")
    certificate, key = str(folder / f"{name}.pem"), str(folder / f"{name}.key")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", f"/CN={name}",
         "-addext", "subjectAltName=IP:127.0.0.1", "-out", certificate, "-keyout", key],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


@pytest.mark.posix
@pytest.mark.slow
def test_tls_with_a_certificate_that_is_renewed(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "first")
    with start(tmp_path, certificate=certificate, private_key=key, header_timeout=3) as server:

        def find_name(trusted: str) -> str:
            context = ssl.create_default_context(cafile=trusted)
            with Client(server).stream as stream, context.wrap_socket(stream, server_hostname=server.host) as secure:
                connection = http.client.HTTPConnection(server.host)
                connection.sock = secure
                connection.request("GET", "/describe")
                assert json.loads(connection.getresponse().read())["scheme"] == "https"
                return dict(pair for (pair,) in secure.getpeercert()["subject"])["commonName"]  # type: ignore

        assert find_name(certificate) == "first"
        with connect(server) as silent:  # the handshake has a time-out, too
            assert silent.is_closed()
        other, other_key = make_certificate(tmp_path, "second")
        trusted = tmp_path / "both.pem"
        trusted.write_text(Path(certificate).read_text() + Path(other).read_text())
        os.replace(other, certificate)
        os.replace(other_key, key)
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: find_name(str(trusted)) == "second")
        assert stop(server) == 0


def test_options_that_cannot_work_are_rejected(tmp_path: Path) -> None:
    def create_app() -> Any:
        raise AssertionError("No application is created.")

    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for options, message in (
            ({"port": taken.getsockname()[1]}, "the port is in use"),
            ({"host": "192.0.2.1"}, "--host 192.0.2.1: "),
            ({"host": "ä..b"}, "is not a host name"),
            ({"private_key": "a.key"}, "--private-key needs --certificate"),
            ({"certificate": "missing.pem"}, "--certificate missing.pem: the file cannot be read"),
            ({"certificate": str(broken)}, "are not a certificate and its key in PEM format"),
        ):
            with pytest.raises(ConfigError, match=message):
                run_server(create_app, ServerOptions.model_validate({"port": 0, **options}))


@pytest.mark.slow
def test_limits_hold_on_a_socket(tmp_path: Path) -> None:
    with start(tmp_path, RequestLimits(max_body=1_000, timeout=0.5)) as server:
        assert "within 0.5 s" in get(server, "/wait")["error"]
        wait_until((tmp_path / "cancelled").exists)
        assert "larger than" in get(server, "/translate", {"q": "a" * 1_000})["error"]
        with connect(server) as client:
            chunks = b"".join(b"64\r\n%s\r\n" % (b"x" * 100) for _ in range(20))
            head = b"POST /translate HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
            client.stream.sendall(head + chunks + b"0\r\n\r\n")
            assert client.receive().status == 413
        assert stop(server) == 0
        lines = [json.loads(line) for line in (tmp_path / "stderr").read_text().splitlines()]
    assert [line["status"] for line in lines] == [504, 413, 413]
