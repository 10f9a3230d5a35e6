"""The server process, or several that share one port: accept connections, answer, reload, stop.

A server that is asked to stop (SIGTERM, SIGINT) answers every request that has reached it. `docs/server-life.md`
describes the steps of `_Server.shutdown`, in their order.
"""

import asyncio
import errno
import logging
import os
import selectors
import signal
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import connection, get_context, resource_tracker
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any, Final, final

import click
import h11
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from regard.errors import ConfigError, RegardError, ResourceError, is_memory_failure
from regard.formatting import quantity, to_json
from regard.operating_system import (
    HAS_SIGNAL_MASKS,
    RELOAD_SIGNAL,
    STOP_SIGNALS,
    blocked_signals,
    ignore_attempts_to_connect,
    prepare_listener,
)
from regard.serving.logs import configure_logging
from regard.serving.settings import ServerOptions

log = logging.getLogger(__name__)

MAX_HEADER_BYTES: Final = 65_536
"""The maximum size of the request line and the headers."""

_SHARED_FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"
"""The environment variable with the folder of what workers share: metrics and rates. prometheus-client reads it, too.
"""

_BACKLOG: Final = 2_048
_QUIET: Final = 1.0
"""After how many seconds without data a connection is closed while the server stops. Most clients that have connected
or have received a response send their next request earlier, if they send one soon."""
_TICK: Final = 0.02
_BYTES_PER_SECOND: Final = 50_000
"""The minimum speed of large bodies: the time limit grows by a second each time this many bytes have arrived."""
_STABLE: Final = 60.0
"""A worker that ends after more seconds than this is replaced without a delay."""
_MAX_DELAY: Final = 30.0
_SECONDS_TO_EXIT: Final = 10.0
"""How long a worker may take to exit after all its requests are answered or cancelled."""
_SIGNALS: Final = [*STOP_SIGNALS, *([] if RELOAD_SIGNAL is None else [RELOAD_SIGNAL])]


def run_server(create_app: Callable[[], Starlette], options: ServerOptions) -> None:
    """Serve until SIGTERM or SIGINT. Print the URL on stdout once requests are accepted.

    When it stops, `app.state.is_draining` becomes True. SIGHUP reads the certificate again, and calls the coroutine
    function `app.state.reload` of each process. A second SIGTERM or SIGINT ends the server at once.

    Args:
        create_app: Returns the application. With several workers, it must be importable, and is called in each. If it,
            or the start of its lifespan, raises an exception, this function raises it, too.
        options: Where to listen, and time-outs.
    """
    if options.certificate is not None:
        _load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), options.certificate, options.private_key)
    elif options.private_key is not None:
        raise ConfigError("--private-key needs --certificate, the file of the certificate. Add it.")
    with _bind(options.host, options.port) as listener:
        if options.workers == 1:
            _serve_alone(create_app, options, listener)
        elif not HAS_SIGNAL_MASKS:
            raise ConfigError("--workers: this system does not support several workers. Omit --workers.")
        else:
            _Supervisor(create_app, options, listener).run()


def _bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address, but does not accept connections yet."""
    # asyncio sets TCP_NODELAY only if the protocol is named. Without it, responses of two packets can take 40 ms more.
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        prepare_listener(listener)
        listener.bind((host, port))
    except (UnicodeError, TypeError):  # the codec for host names rejects it
        listener.close()
        raise ConfigError(f"--host {host!r} is not a host name. Use an address of this machine.") from None
    except OSError as error:
        listener.close()
        raise _explain(error, host, port) from None
    listener.setblocking(False)
    return listener


def _explain(error: OSError, host: str, port: int) -> ConfigError:
    match error.errno:
        case errno.EADDRINUSE:
            return ConfigError(f"--port {port}: the port is in use. Choose another one.")
        case errno.EACCES:
            return ConfigError(f"--port {port}: only root may use this port. Use one above 1023.")
    return ConfigError(f"--host {host}: {error.strerror}. Use an address of this machine.")


def _build_url(options: ServerOptions, listener: socket.socket) -> str:
    """Return the URL of the server. A browser cannot open the address 0.0.0.0, which means all addresses."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(options.host, options.host)
    scheme = "http" if options.certificate is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}/"


def _load_certificate(context: ssl.SSLContext, certificate: str, private_key: str | None) -> None:
    """Load a certificate. Raise ConfigError if it is not valid; the context keeps the previous one."""
    for option, path in (("--certificate", certificate), ("--private-key", private_key)):
        if path is not None and not os.access(path, os.R_OK):
            raise ConfigError(f"{option} {path}: the file cannot be read. Check the path and its permissions.")
    try:
        for each in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), context):
            # Without a function, a key with a password would be asked for on the terminal.
            each.load_cert_chain(certificate, private_key, password=lambda: "")
    except (ssl.SSLError, ValueError, OSError) as error:
        raise ConfigError(
            f"--certificate {certificate} and --private-key {private_key or certificate} are not a certificate and its "
            f"key in PEM format, without a password: {error}."
        ) from None


@final
class _Server(uvicorn.Server):
    """One process of the server.

    Args:
        app: The application.
        options: Where it listens, and time-outs.
        listener: The socket. It is closed when the server stops.
        on_ready: Called once connections are accepted.

    Attributes:
        should_exit: If set, the server stops.
        should_reload: If set, the server reloads the certificate and the application.
    """

    def __init__(
        self, app: Starlette, options: ServerOptions, listener: socket.socket, on_ready: Callable[[], object]
    ) -> None:
        config = uvicorn.Config(
            app,
            loop="asyncio",
            ws="none",
            lifespan="off",  # this class runs it: uvicorn would log an exception, and not raise it
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=bool(options.proxies),
            forwarded_allow_ips=list(options.proxies),
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            timeout_keep_alive=options.keep_alive,  # type: ignore[arg-type]  # uvicorn hands it to call_later
            ssl_certfile=options.certificate,
            ssl_keyfile=options.private_key,
        )
        super().__init__(config)
        self.options, self.draining, self.should_reload = options, False, False
        self._app, self._listener, self._on_ready = app, listener, on_ready
        self._lifespan = app.router.lifespan_context(app)
        self._reloading: asyncio.Task[None] | None = None

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave signals to the caller. uvicorn would send SIGTERM to the process again after it has stopped."""
        yield

    async def startup(self, sockets: Sequence[socket.socket] | None = None) -> None:  # noqa: ARG002
        await self._lifespan.__aenter__()
        try:
            server = await asyncio.get_running_loop().create_server(
                partial(_Connection, self),
                sock=self._listener,
                # Accept one connection at a time. Otherwise, one worker could accept all connections that wait.
                backlog=1,
                ssl=self.config.ssl,
                ssl_handshake_timeout=self.options.header_timeout if self.config.ssl else None,
            )
        except OSError as error:
            # Another process may have started to listen since the port was bound.
            raise _explain(error, self.options.host, self.options.port) from None
        self._listener.listen(_BACKLOG)
        self.servers = [server]
        self.started = True
        self._on_ready()

    async def shutdown(self, sockets: Sequence[socket.socket] | None = None) -> None:  # noqa: ARG002
        clock = asyncio.get_running_loop().time
        end = clock() + self.options.drain
        connections: set[Any] = self.server_state.connections
        self.draining = self._app.state.is_draining = True
        ignore_attempts_to_connect(self._listener)
        for each in connections:
            each.announce_end()
        # Connections that are established are served. Those that wait to be accepted would be reset by closing.
        await asyncio.sleep(_QUIET)
        while _is_readable(self._listener) and clock() < end:
            await asyncio.sleep(_TICK)
        for server in self.servers:
            server.close()
        # A connection is in the set as soon as its first task has run and, with TLS, after the handshake.
        await asyncio.sleep(_TICK if self.config.ssl is None else _QUIET)
        tasks = self.server_state.tasks
        while (connections or tasks) and clock() < end:
            for each in list(connections):
                each.check()
            await asyncio.sleep(_TICK)
        if tasks:
            count = quantity(len(tasks), "request")
            log.warning(f"Cancelled {count} that did not finish within {self.options.drain:g} s after the signal.")
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=_SECONDS_TO_EXIT / 2)
        for each in list(connections):
            each.transport.abort()
        await self._lifespan.__aexit__(None, None, None)

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:  # once per second
            for each in list[Any](self.server_state.connections):
                each.check()
        if self.should_reload and (self._reloading is None or self._reloading.done()):
            self.should_reload = False
            self._reloading = asyncio.create_task(self._reload())
        return await super().on_tick(counter)

    async def _reload(self) -> None:
        try:
            if self.config.ssl is not None and self.options.certificate is not None:
                _load_certificate(self.config.ssl, self.options.certificate, self.options.private_key)
            reload = getattr(self._app.state, "reload", None)
            if reload is not None:
                await reload()
        except RegardError as error:
            log.error(f"The reload failed: {error}")
        except Exception:
            log.exception("The reload failed.")


def _is_readable(stream: Any) -> bool:
    """Whether the kernel has data (or a connection) that was not read yet."""
    with selectors.DefaultSelector() as selector:
        try:
            selector.register(stream, selectors.EVENT_READ)
        except ValueError:  # closed
            return False
        return bool(selector.select(0))


@final
class _Connection(H11Protocol):
    """A connection. Headers and bodies must arrive in time, and no request is lost when the server stops."""

    def __init__(self, server: _Server) -> None:
        super().__init__(server.config, server.server_state, server.lifespan.state)
        self._server, self._options = server, server.options
        self._waits_for, self._received = "headers", 0
        self._since = self._active = self.loop.time()

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        if self._server.draining:
            self.announce_end()
        self._note_activity()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._note_activity()

    def timeout_keep_alive_handler(self) -> None:
        if not self._is_readable():
            super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        error = sys.exception()
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        self._end(status, msg if status == 400 else f"The headers have more than {MAX_HEADER_BYTES:,} bytes.")

    def announce_end(self) -> None:
        """Announce in the next response that the connection is closed after it."""
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.default_headers = [*self.server_state.default_headers, CLOSE_HEADER]

    def check(self) -> None:
        """Close the connection if its client is too slow or, while the server stops, does not send a request."""
        now = self.loop.time()
        if self._waits_for and now >= self._since + self._compute_limit():
            self._time_out()
        elif self._server.draining and now >= self._active + _QUIET and self._is_idle() and not self._is_readable():
            self.transport.close()

    def _is_idle(self) -> bool:
        """Whether no byte of the next request has arrived."""
        answered = self.cycle is None or self.cycle.response_complete
        return answered and self.conn.their_state is not h11.SEND_BODY and not self.conn.trailing_data[0]

    def _is_readable(self) -> bool:
        return _is_readable(self.transport.get_extra_info("socket"))

    def _note_activity(self) -> None:
        """Note what the connection waits for, and since when."""
        self._active = self.loop.time()
        if self.conn.their_state is h11.SEND_BODY:
            waits_for = "body"
        elif self.conn.their_state is h11.IDLE and (self.cycle is None or self.conn.trailing_data[0]):
            waits_for = "headers"
        else:
            waits_for = ""
        if waits_for != self._waits_for:
            self._waits_for, self._since, self._received = waits_for, self._active, 0

    def _compute_limit(self) -> float:
        """Return how many seconds the client has to send what the connection waits for."""
        if self._waits_for == "headers":
            return self._options.header_timeout
        answered = self.cycle.response_complete  # then the rest of the body is ignored
        return self._options.body_timeout + (0 if answered else self._received / _BYTES_PER_SECOND)

    def _time_out(self) -> None:
        if self._is_idle() or (self._waits_for == "body" and self.cycle.response_started):
            self.transport.close()
        elif self._waits_for == "headers":
            self._end(408, f"The headers did not arrive within {self._options.header_timeout:g} s.")
        else:
            self.scope["state"]["timed_out"] = True
            self.cycle.disconnected = True  # for the application, the client has gone
            self.cycle.message_event.set()
            self._end(408, f"The body did not arrive within {self._options.body_timeout:g} s.")

    def _end(self, status: int, message: str) -> None:
        """Answer without the application, and close the connection."""
        body = to_json({"error": message}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            CLOSE_HEADER,
        ]
        with suppress(h11.LocalProtocolError):  # a response was started
            response = h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status])
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


@contextmanager
def _handling(handle: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Call a function for each SIGTERM, SIGINT and SIGHUP. Python allows this in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _serve_alone(create_app: Callable[[], Starlette], options: ServerOptions, listener: socket.socket) -> None:
    """Serve in this process."""
    configure_logging(options.log_format)
    server = _Server(create_app(), options, listener, lambda: click.echo(_build_url(options, listener)))

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        if number == RELOAD_SIGNAL:
            server.should_reload = True
        elif server.started and not server.should_exit:
            server.should_exit = True
        else:
            os._exit(128 + number)  # an exception could be lost in a native library

    with _handling(handle):
        server.run()


def _work(
    create_app: Callable[[], Starlette], options: ServerOptions, listener: socket.socket, control: Connection
) -> None:
    """Serve as a worker, until the supervisor orders to stop, or ends.

    SIGINT, SIGTERM and SIGHUP are blocked in a worker, because a terminal or systemd may send them to the supervisor
    and to its workers. The supervisor handles them, and sends orders to the workers.
    """

    def obey() -> None:
        with suppress(EOFError, OSError):
            while control.recv() == "reload":
                server.should_reload = True
        server.should_exit = True

    configure_logging(options.log_format)
    try:
        server = _Server(create_app(), options, listener, lambda: control.send(None))
        threading.Thread(target=obey, daemon=True).start()
        server.run()
    except Exception as error:
        if is_memory_failure(error):
            error = ResourceError("A worker ran out of memory. Use fewer --workers, or smaller models.")
        if not isinstance(error, RegardError):
            raise
        # An exception of a plugin may not be importable in the supervisor.
        kind = next(each for each in type(error).__mro__ if each.__module__ == RegardError.__module__)
        with suppress(OSError):
            control.send(kind(str(error)))
        sys.exit(1)


@final
class _Worker:
    """A worker process, and the pipe to it."""

    def __init__(self, create_app: Callable[[], Starlette], options: ServerOptions, listener: socket.socket) -> None:
        context = get_context("spawn")
        self.control, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(create_app, options, listener, theirs))
        self.ready, self.start, self.error = False, time.monotonic(), None
        self.process.start()
        theirs.close()

    def receive(self) -> None:
        """Note that the worker accepts connections, or why it does not."""
        with suppress(EOFError, OSError):
            while self.control.poll():
                self.error = self.control.recv()
                self.ready = self.error is None

    def send(self, order: str) -> None:
        with suppress(OSError):  # it has ended
            self.control.send(order)

    def describe_end(self) -> str:
        code = self.process.exitcode or 0
        return f"signal {-code}" if code < 0 else f"exit code {code}"


@final
class _Supervisor:
    """Starts workers that share the socket, and starts another for one that has ended."""

    def __init__(self, create_app: Callable[[], Starlette], options: ServerOptions, listener: socket.socket) -> None:
        self._start = partial(_Worker, create_app, options, listener)
        self._options, self._listener = options, listener
        self._workers: list[_Worker] = []
        self._due = [0.0] * options.workers
        self._started, self._short_lives = False, 0
        self._end: float | None = None
        self._wakeup, self._signal = os.pipe()

    def run(self) -> None:
        configure_logging(self._options.log_format)
        resource_tracker.ensure_running()  # it unblocks signals when it is started
        with (
            tempfile.TemporaryDirectory(prefix="regard-serve-") as folder,
            _handling(lambda number, _: os.write(self._signal, bytes([number]))),
        ):
            os.environ[_SHARED_FOLDER] = folder
            try:
                while (self._workers or self._due) and (self._end is None or time.monotonic() < self._end):
                    self._start_due()
                    self._wait()
                    self._handle_signals()
                    for worker in self._workers:
                        worker.receive()
                    for worker in [worker for worker in self._workers if worker.process.exitcode is not None]:
                        self._remove(worker)
                        if self._end is None:
                            self._replace(worker)
                    if not self._started and self._end is None and all(worker.ready for worker in self._workers):
                        self._started = True
                        click.echo(_build_url(self._options, self._listener))
            finally:
                for worker in self._workers:
                    worker.process.kill()
                    worker.process.join()
                del os.environ[_SHARED_FOLDER]
                os.close(self._wakeup)
                os.close(self._signal)

    def _start_due(self) -> None:
        now = time.monotonic()
        for due in [due for due in self._due if due <= now]:
            self._due.remove(due)
            with blocked_signals(*_SIGNALS):  # the worker inherits the mask
                self._workers.append(self._start())

    def _wait(self) -> None:
        """Wait until a signal or a message arrives, a worker ends, a worker must be started, or the time is over."""
        times = [*self._due, *([] if self._end is None else [self._end])]
        seconds = max(0.0, min(times) - time.monotonic()) if times else None
        pipes = [worker.control for worker in self._workers if not worker.ready and worker.error is None]
        connection.wait([self._wakeup, *pipes, *(worker.process.sentinel for worker in self._workers)], seconds)

    def _handle_signals(self) -> None:
        while connection.wait([self._wakeup], 0):
            number = os.read(self._wakeup, 1)[0]
            if number == RELOAD_SIGNAL:
                for worker in self._workers:
                    worker.send("reload")
            elif self._end is None:
                self._stop()
            else:
                sys.exit(128 + number)

    def _stop(self) -> None:
        """Order each worker to stop after it has answered its requests."""
        self._due.clear()
        for worker in self._workers:
            if worker.ready:
                worker.send("stop")
            else:
                worker.process.kill()
        self._listener.close()  # each worker has its own copy
        self._end = time.monotonic() + self._options.drain + 2 * _QUIET + _SECONDS_TO_EXIT

    def _remove(self, worker: _Worker) -> None:
        from prometheus_client.multiprocess import mark_process_dead

        self._workers.remove(worker)
        worker.process.join()
        worker.control.close()
        mark_process_dead(worker.process.pid, os.environ[_SHARED_FOLDER])  # type: ignore[no-untyped-call]

    def _replace(self, worker: _Worker) -> None:
        """Determine when another worker is started for one that has ended."""
        if not self._started or (worker.error is not None and not any(other.ready for other in self._workers)):
            raise worker.error or ResourceError(
                f"A worker ended with {worker.describe_end()} before it was ready. If memory was low, use fewer "
                "--workers; otherwise, see its messages above."
            )
        lived = time.monotonic() - worker.start
        self._short_lives = 0 if lived > _STABLE else self._short_lives + 1
        delay = min(_MAX_DELAY, 0.25 * 2**self._short_lives) if self._short_lives else 0.0
        self._due.append(time.monotonic() + delay)
        reason = worker.describe_end() if worker.error is None else str(worker.error)
        log.error(f"A worker ended ({reason}). Another is started in {delay:g} s.")
