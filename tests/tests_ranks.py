"""Train with several processes on this machine, as torchrun starts them."""

import os
import socket
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests_command import HANG, STREAMS, fork_context, run_main

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess


class Case(NamedTuple):
    """The arguments of `regard.train`."""

    config: str
    overrides: Mapping[str, Any]
    out: Path


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def do_nothing() -> None: ...


def train_with_ranks(
    ranks: int, cases: Sequence[Case], prepare: Callable[[], None] = do_nothing, code: int = 0, timeout: float = HANG
) -> None:
    """Train each case with this number of ranks, one case after the other in one group of processes.

    Each rank first calls `prepare`, and must end with this exit code.
    """
    port, env = str(find_free_port()), dict(os.environ)
    context = fork_context()
    processes = []
    for rank in range(ranks):
        variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
        variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        processes.append(context.Process(target=_train, args=(list(cases), env | variables, prepare)))
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    assert codes == [code] * ranks


def _train(cases: Sequence[Case], env: dict[str, str], prepare: Callable[[], None]) -> None:
    os.environ.clear()
    os.environ.update(env)
    import torch

    import regard
    from regard.training.distributed import open_group

    torch.set_num_threads(1)
    code = 0
    prepare()
    try:
        with open_group():
            for config, overrides, out in cases:
                regard.train(config, overrides, out=out, quiet=True)
    except regard.RegardError as error:
        code = error.exit_code
    except BaseException:
        traceback.print_exc()
        code = 1
    os._exit(code)


class Rank(NamedTuple):
    """A rank that runs `regard …`."""

    process: "ForkServerProcess"
    folder: Path

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def stderr(self) -> str:
        return (self.folder / "stderr").read_text()

    def wait_for(self, text: str) -> None:
        """Wait until the rank has printed a text on stderr."""
        deadline = time.monotonic() + HANG
        while text not in self.stderr:
            assert self.process.is_alive(), self.stderr
            assert time.monotonic() < deadline, self.stderr
            time.sleep(0.01)

    def end(self) -> int:
        """Wait for the end of the process, and return its exit code."""
        self.process.join(HANG)
        assert self.process.exitcode is not None, self.stderr
        return self.process.exitcode


def start_ranks(
    commands: Sequence[Sequence[str]],
    folder: Path,
    env: Mapping[str, str] | None = None,
    missing: Collection[int] = (),
    cwd: Callable[[int], Path] | None = None,
) -> list[Rank]:
    """Start `regard …` as several ranks, each with its own arguments; all but those that are missing."""
    port, ranks = str(find_free_port()), []
    for rank, words in enumerate(commands):
        if rank in missing:
            continue
        streams = folder / f"rank-{rank}"
        streams.mkdir(parents=True, exist_ok=True)
        for name in STREAMS:
            (streams / name).write_bytes(b"")
        variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(len(commands))}
        variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **(env or {})}
        arguments = list(words), cwd(rank) if cwd else folder, str(streams), dict(os.environ) | variables, None
        process = fork_context().Process(target=run_main, args=arguments)
        process.start()
        ranks.append(Rank(process, streams))
    return ranks
