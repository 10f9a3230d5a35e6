"""The roster of the ranks: how they find each other, which of them respond, and why one is lost.

A collective operation of torch reports only that some connection failed, or that time ran out. Therefore, each rank
keeps another connection to rank 0, on which a thread sends a heartbeat every second. Rank 0 detects at once that a
process has ended, and after half the time-out that it does not respond. It sends the verdict to all ranks. A rank that
fails with an exception sends the reason itself.

A rank that responds may take as long as it needs, for example rank 0 for a validation: the others wait for it in
`Roster.synchronize`.
"""

import itertools
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, NoReturn, final

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore  # typed, unlike in torch.distributed

from regard.errors import ConfigError, RankError, RegardError
from regard.formatting import parse_json, quantity, to_json
from regard.training.ranks import TIMEOUT_VARIABLE, Launch, read_timeout

log = logging.getLogger(__name__)

_BEAT = 1.0
_PATIENCE = 10.0
"""How long, in seconds, a rank waits for the verdict after a connection has failed."""
_NOTICE = 20.0
"""After this time, in seconds, rank 0 reports for which ranks it waits."""
_MAX_HELLO, _MAX_LISTED = 1_000, 8
_TIMED_OUT = "imed out"
"""A part of the message of a collective operation that ran out of time."""


@final
class Roster:
    """The connections of this rank: those of rank 0 to all others, and those of the others to rank 0."""

    def __init__(
        self, rank: int, names: Mapping[int, str], connections: Mapping[int, Connection], timeout: float
    ) -> None:
        self.rank, self.timeout = rank, timeout
        self._names, self._connections = dict(names), dict(connections)
        self._changed = threading.Condition()
        self._calls = dict.fromkeys(sorted({rank, *connections}), 0)
        """The number of collective operations that each rank has started."""
        self._reached = 0
        """The number of collective operations that all ranks have started."""
        self._verdict: str | None = None
        # Rank 0 sends nothing before all ranks have joined.
        self._heard = dict.fromkeys(connections, time.monotonic() + timeout)
        self._closing = False
        self._woken, self._waker = Pipe(duplex=False)
        self._thread = threading.Thread(target=self._run, name="regard-roster", daemon=True)
        self._thread.start()

    def synchronize(self) -> None:
        """Wait until all ranks have called this method. Raise RankError if one is lost."""
        with self._changed:
            number = self._count_call()
            self._wake()
            while self._reached < number:
                if self._verdict is not None:
                    raise RankError(self._verdict)
                self._changed.wait(_BEAT)

    @contextmanager
    def watch(self, *, only_collectives: bool = True) -> Iterator[None]:
        """Raise RankError with the rank that is lost if the block, a collective operation of torch, fails. If the block
        does something else too, its own errors are raised unchanged.
        """
        if only_collectives:
            with self._changed:
                self._count_call()
        try:
            yield
        except RuntimeError as error:
            with self._changed:
                late = [rank for rank, calls in self._calls.items() if calls < self._calls[self.rank]]
                # A rank that ends or does not respond is noticed before time runs out.
                decides = _TIMED_OUT in str(error) and (late or self.rank == 0)
                self._changed.wait_for(lambda: self._verdict is not None, 0 if decides else _PATIENCE)
            if only_collectives:
                self._explain(str(error), late)
            if self._verdict is None:
                raise
            raise RankError(self._verdict) from None

    def fail(self, reason: str) -> None:
        """Send the reason why this rank fails to all ranks."""
        self._decide(f"{self._names[self.rank]} failed: {reason}")

    def close(self) -> None:
        """Leave the roster. The last state, for example a verdict, is sent first."""
        with self._changed:
            self._closing = True
        self._wake()
        self._thread.join(self.timeout)
        for connection in (*self._connections.values(), self._woken, self._waker):
            connection.close()

    def _count_call(self) -> int:
        self._calls[self.rank] += 1
        return self._calls[self.rank]

    def _explain(self, problem: str, late: list[int]) -> None:
        """Decide why a collective operation has failed, if rank 0 has not done so."""
        if _TIMED_OUT in problem and late:
            self._decide(
                f"{' and '.join(self._names[rank] for rank in late)} responded, but did not complete a step within "
                f"{self.timeout:g} s. If steps take that long, increase {TIMEOUT_VARIABLE} (seconds)."
            )
        self._decide(f"The connection between the ranks failed: {problem.partition(chr(10))[0]}")

    def _decide(self, verdict: str) -> None:
        """Set the verdict, unless there is one."""
        with self._changed:
            if self._verdict is None:
                self._verdict = verdict
                self._changed.notify_all()
        self._wake()

    def _wake(self) -> None:
        with suppress(OSError):
            self._waker.send_bytes(b"")

    def _run(self) -> None:
        """Exchange states with the connected ranks, until this rank leaves."""
        connected, urgent, sent_at, left = dict(self._connections), None, 0.0, False
        while not left:
            ranks = {id(connection): rank for rank, connection in connected.items()}
            readable = wait([self._woken, *connected.values()], timeout=min(_BEAT, self.timeout / 8))
            for ready in list[Any](readable):
                if ready is self._woken:
                    ready.recv_bytes()
                elif not self._receive(ranks[id(ready)], ready):
                    del connected[ranks[id(ready)]]
            self._find_silent(connected)
            before, state = urgent, self._get_state()
            # Others may wait for a change; the calls of rank 0 serve only to find out which rank is late.
            urgent, left = {**state, "calls": state["reached" if self.rank == 0 else "calls"]}, state["left"]
            if urgent != before or time.monotonic() - sent_at > _BEAT / 2:
                sent_at = time.monotonic()
                for connection in connected.values():
                    with suppress(OSError):
                        connection.send_bytes(to_json(state).encode())

    def _get_state(self) -> dict[str, Any]:
        """Return the state of this rank, which is sent to the connected ones."""
        with self._changed:
            if self.rank == 0:
                self._reached = min(self._calls.values())
                self._changed.notify_all()
            calls, left = self._calls[self.rank], self._closing
            return {"calls": calls, "reached": self._reached, "verdict": self._verdict, "left": left}

    def _receive(self, rank: int, connection: Connection) -> bool:
        """Read a state of another rank. Return whether the connection is still needed."""
        try:
            state = parse_json(connection.recv_bytes())
        except (EOFError, OSError):
            self._decide(f"{self._names[rank]} has ended: its process was killed, or its machine has failed.")
            return False
        with self._changed:
            self._heard[rank] = time.monotonic()
            self._calls[rank] = max(self._calls[rank], state["calls"])
            if rank == 0:
                self._reached = state["reached"]
            self._changed.notify_all()
        if state["verdict"] is not None:
            self._decide(state["verdict"])
        return not state["left"]

    def _find_silent(self, connected: Mapping[int, Connection]) -> None:
        now = time.monotonic()
        for rank in connected:
            if now - self._heard[rank] > self.timeout / 2:
                self._decide(
                    f"{self._names[rank]} does not respond: its process is stopped, or its machine cannot be reached."
                )


@contextmanager
def join_ranks(launch: Launch) -> Iterator[tuple[Roster, Store]]:
    """Wait until all ranks have been started. Return the roster, and the store in which they find each other."""
    timeout = read_timeout()
    deadline = time.monotonic() + timeout
    store = _open_store(launch, timeout)
    names, connections = _accept(launch, store, deadline) if launch.rank == 0 else _connect(launch, store, deadline)
    roster = Roster(launch.rank, names, connections, timeout)
    try:
        roster.synchronize()
        yield roster, store
    except RankError:
        raise
    except BaseException as error:
        reason = str(error) if isinstance(error, RegardError) else f"{type(error).__name__}: {error}"
        roster.fail(reason)
        raise
    finally:
        roster.close()


def describe_rank(rank: int) -> str:
    return f"Rank {rank} (process {os.getpid()} on {socket.gethostname()})"


_generations = itertools.count()
"""Numbers the groups that this process joins one after the other. All ranks join the same groups."""


def _open_store(launch: Launch, timeout: float) -> Store:
    """Connect to the store of torchrun, or to that of rank 0."""
    provides = launch.rank == 0 and not launch.has_agent
    if not provides:
        _await_address(launch, timeout)
    return PrefixStore(f"regard/{launch.attempt}/{next(_generations)}", _open_address(launch, provides, timeout))


@cache
def _open_address(launch: Launch, provides: bool, timeout: float) -> Store:
    """Open the store once, because another rank may still use it when this one joins the next group."""
    try:
        # The store does not wait for the ranks: `_accept` reports which of them are missing.
        host = "localhost" if provides else launch.host
        return TCPStore(host, launch.port, None, provides, timedelta(seconds=timeout), wait_for_workers=False)
    except RuntimeError as error:
        problem = str(error).partition("\n")[0].rstrip(".")
        raise ConfigError(
            f"Rank {launch.rank} cannot open {launch.address} (MASTER_ADDR, MASTER_PORT): {problem}. Choose another "
            "address or port."
        ) from None


def _await_address(launch: Launch, timeout: float) -> None:
    """Wait until rank 0, or torchrun, accepts connections."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection((launch.host, launch.port), timeout=max(0.1, deadline - time.monotonic())).close()
        except OSError as error:
            if isinstance(error, socket.gaierror) or time.monotonic() > deadline:
                _reject_address(launch, error)
            time.sleep(0.1)
        else:
            return


def _reject_address(launch: Launch, error: OSError) -> NoReturn:
    reason = error.strerror or str(error)
    raise ConfigError(
        f"Rank {launch.rank} of {launch.size} cannot connect to rank 0 at {launch.address}: {reason}. Check the "
        "address (MASTER_ADDR, MASTER_PORT), the firewall, and that rank 0 was started."
    ) from None


def _accept(launch: Launch, store: Store, deadline: float) -> tuple[dict[int, str], dict[int, Connection]]:
    """Wait for the connections of all other ranks."""
    names = {0: describe_rank(0)}
    connections: dict[int, Connection] = {}
    token, notice = secrets.token_hex(), time.monotonic() + _NOTICE
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    with socket.create_server(
        ("", 0), family=family, backlog=launch.size, dualstack_ipv6=family == socket.AF_INET6
    ) as server:
        server.settimeout(0.5)
        store.set("roster", to_json([names[0], server.getsockname()[1], token]))
        while len(connections) < launch.size - 1:
            missing = [rank for rank in range(1, launch.size) if rank not in connections]
            if time.monotonic() > deadline:
                _reject_missing(launch, missing, connections)
            if time.monotonic() > notice:
                log.warning("Waiting for %s to connect to %s.", _list_ranks(missing), launch.address)
                notice = float("inf")
            with suppress(TimeoutError):
                accepted = server.accept()[0]
                connection = _as_connection(accepted)
                hello = _read_hello(connection, token)
                if hello is None or hello["rank"] not in missing:
                    connection.close()
                    continue
                names[hello["rank"]], connections[hello["rank"]] = hello["name"], connection
    return names, connections


def _as_connection(connected: socket.socket) -> Connection:
    connected.settimeout(None)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Connection(connected.detach())


def _read_hello(connection: Connection, token: str) -> dict[str, Any] | None:
    """Return what a rank sends first; None if the connection is not that of a rank."""
    try:
        hello = parse_json(connection.recv_bytes(_MAX_HELLO)) if connection.poll(_PATIENCE) else {}
    except (EOFError, OSError, ValueError):
        return None
    return hello if isinstance(hello, dict) and secrets.compare_digest(str(hello.get("token")), token) else None


def _reject_missing(launch: Launch, missing: list[int], connections: Mapping[int, Connection]) -> NoReturn:
    number = quantity(launch.size - len(missing), "rank")
    verdict = (
        f"{_list_ranks(missing)} of {launch.size} did not connect to {launch.address} within {read_timeout():g} s "
        f"({number} did). Start all ranks within this time, or increase {TIMEOUT_VARIABLE} (seconds)."
    )
    state = {"calls": 0, "reached": 0, "verdict": verdict, "left": True}
    for connection in connections.values():
        with suppress(OSError):
            connection.send_bytes(to_json(state).encode())
    raise RankError(verdict)


def _list_ranks(ranks: list[int]) -> str:
    """Return the numbers of ranks as text.

    >>> _list_ranks([1]), _list_ranks([1, 2, 5])
    ('Rank 1', 'Ranks 1, 2, 5')
    """
    shown = ", ".join(map(str, ranks[:_MAX_LISTED]))
    more = f" and {quantity(len(ranks) - _MAX_LISTED, 'other')}" if len(ranks) > _MAX_LISTED else ""
    return f"Rank{'s' if len(ranks) > 1 else ''} {shown}{more}"


def _connect(launch: Launch, store: Store, deadline: float) -> tuple[dict[int, str], dict[int, Connection]]:
    """Connect to rank 0."""
    try:
        first_name, port, token = parse_json(store.get("roster"))
        connected = socket.create_connection((launch.host, port), timeout=max(0.1, deadline - time.monotonic()))
    except (RuntimeError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it does not respond"
        raise RankError(
            f"Rank {launch.rank} of {launch.size} cannot connect to rank 0 at {launch.address}: {reason}. Check that "
            "rank 0 was started, and the firewall."
        ) from None
    connection = _as_connection(connected)
    name = describe_rank(launch.rank)
    connection.send_bytes(to_json({"rank": launch.rank, "name": name, "token": token}).encode())
    return {0: first_name, launch.rank: name}, {0: connection}
