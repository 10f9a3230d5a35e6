"""Trains the same run in many forked processes, each with some calls of fsync or rename behind it when it begins.

Under strace, which kills a process at its LAST-th call or has that call fail, this happens to every process at another
call of the run's own:

    strace -f -e trace=CALLS -e inject=CALLS:signal=SIGKILL:when=LAST python tests_doomed.py FOLDER
    strace -f -e trace=CALLS -e inject=CALLS:error=EIO:when=LAST python tests_doomed.py FOLDER
"""

import os
import platform
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import regard
from tests_shared import SMALL

RENAMES = platform.machine() == "x86_64"
"""Whether there is a call of its own for renames of whole paths."""

CALLS = "fsync,rename,renameat" if RENAMES else "fsync,renameat"
LAST = 30
SETTINGS = {
    **SMALL,
    "data.train": 60,
    "data.dev": 5,
    "model.dropout": 0.3,
    "training.steps": 2,
    "training.save_every": 1,
    "training.validate_every": 2,
    "training.keep_checkpoints": 1,
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


def spend_relative_renames(folder: Path, count: int) -> None:
    (folder / "spent-0").touch()
    handle = os.open(folder, os.O_RDONLY)
    for _ in range(count):
        os.rename("spent-0", "spent-0", src_dir_fd=handle, dst_dir_fd=handle)
    os.close(handle)


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


SPENDERS = {"fsync": spend_syncs, "renameat": spend_relative_renames} | ({"rename": spend_renames} if RENAMES else {})


def main() -> None:
    folder = Path(sys.argv[1])
    regard.train("dates", SETTINGS, out=folder / "undisturbed")  # so that children need not import anything
    for name, spend in SPENDERS.items():
        for own in range(1, LAST):
            if not train_in_child(spend, folder, LAST - own, folder / f"{name}-{own}"):
                break
        else:
            sys.exit(f"a run has more than {LAST} calls of {name}")


if __name__ == "__main__":
    main()
