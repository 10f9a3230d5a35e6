"""Train with several processes on this machine, as torchrun starts them."""

import os
import socket
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests_command import HANG, fork_context


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
