"""Trains the same run in many forked processes, each with some calls of fsync or rename behind it when it begins.

Under strace, which kills a process at its LAST-th call or has that call fail, this happens to every process at another
call of the run's own:

    strace -f -e trace=fsync,rename -e inject=fsync,rename:signal=SIGKILL:when=LAST python tests_doomed.py FOLDER
    strace -f -e trace=fsync,rename -e inject=fsync,rename:error=EIO:when=LAST python tests_doomed.py FOLDER
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import regard
from tests_shared import SMALL

LAST = 30
SETTINGS = {
    **SMALL,
    "data.train": 60,
    "data.dev": 5,
    "model.dropout": 0.3,
    "training.steps": 2,
    "training.save_every": 1,
    "training.validate_every": 2,
    "training.keep": 1,
}


def spend_syncs(folder: Path, count: int) -> None:
    handle = os.open(folder, os.O_RDONLY)
    for _ in range(count):
        os.fsync(handle)
    os.close(handle)


def spend_renames(folder: Path, count: int) -> None:
    (folder / "spent-0").touch()
    for _ in range(count):
        os.rename(folder / "spent-0", folder / "spent-0")


def train_in_child(spend: Callable[[Path, int], None], folder: Path, count: int, out: Path) -> bool:
    """Whether something happened to it."""
    child = os.fork()
    if child == 0:
        os.environ["REGARD_CACHE"] = str(out / "cache")
        spend(folder, count)
        try:
            regard.train("dates", SETTINGS, out=out)
        except regard.ResourceError:
            os._exit(regard.ResourceError.exit_code)
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
            os._exit(70)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in {0, -signal.SIGKILL, regard.ResourceError.exit_code}:
        sys.exit(f"{out} ended with {code}")
    return code != 0


def main() -> None:
    folder = Path(sys.argv[1])
    regard.train("dates", SETTINGS, out=folder / "undisturbed")  # so that children need not import anything
    for name, spend in (("fsync", spend_syncs), ("rename", spend_renames)):
        for own in range(1, LAST):
            if not train_in_child(spend, folder, LAST - own, folder / f"{name}-{own}"):
                break
        else:
            sys.exit(f"a run has more than {LAST} calls of {name}")


if __name__ == "__main__":
    main()
