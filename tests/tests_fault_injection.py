"""Train the same run in many forked processes, each of which has made some calls of fsync, rename or unlink before it
starts.

strace kills each process at its LAST-th call, or makes that call fail. So each process fails at a different call of the
run:

    strace -f -e trace=CALLS -e inject=CALLS:signal=SIGKILL:when=LAST python tests_fault_injection.py FOLDER
    strace -f -e trace=CALLS -e inject=CALLS:error=EIO:when=LAST python tests_fault_injection.py FOLDER
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
"""Whether the system call rename exists; on other machines there is only renameat."""

CALLS = "fsync,rename,renameat,unlinkat" if RENAMES else "fsync,renameat,unlinkat"
LAST = 30
SETTINGS = {
    **SMALL,
    "data.train": 60,
    "data.dev": 5,
    "data.test": 1,
    "model.dropout": 0.3,
    "training.steps": 2,
    "training.save_every": 1,
    "training.validate_every": 2,
    "training.keep_checkpoints": 1,
}


def make_syncs(folder: Path, count: int) -> None:
    handle = os.open(folder, os.O_RDONLY)
    for _ in range(count):
        os.fsync(handle)
    os.close(handle)


def make_renames(folder: Path, count: int) -> None:
    (folder / "renamed").touch()
    for _ in range(count):
        os.rename(folder / "renamed", folder / "renamed")


def make_relative_renames(folder: Path, count: int) -> None:
    (folder / "renamed").touch()
    handle = os.open(folder, os.O_RDONLY)
    for _ in range(count):
        os.rename("renamed", "renamed", src_dir_fd=handle, dst_dir_fd=handle)
    os.close(handle)


def make_relative_unlinks(folder: Path, count: int) -> None:
    handle = os.open(folder, os.O_RDONLY)
    for _ in range(count):
        (folder / "unlinked").touch()
        os.unlink("unlinked", dir_fd=handle)
    os.close(handle)


def train_in_child(make_calls: Callable[[Path, int], None], folder: Path, count: int, out: Path) -> bool:
    """Train in a forked process; return whether it was killed or failed."""
    child = os.fork()
    if child == 0:
        os.environ["REGARD_CACHE"] = str(out / "cache")
        make_calls(folder, count)
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


CALLERS = {
    "fsync": make_syncs,
    "renameat": make_relative_renames,
    "unlinkat": make_relative_unlinks,
    **({"rename": make_renames} if RENAMES else {}),
}


def main() -> None:
    folder = Path(sys.argv[1])
    regard.train("dates", SETTINGS, out=folder / "undisturbed")  # so that the children have all modules imported
    for name, make_calls in CALLERS.items():
        for call in range(1, LAST):
            if not train_in_child(make_calls, folder, LAST - call, folder / f"{name}-{call}"):
                break
        else:
            sys.exit(f"a run makes more than {LAST} calls of {name}")


if __name__ == "__main__":
    main()
