"""Worker processes that exchange messages with their parent over pipes, and the number of cores that they share.

A worker is started as `python -m MODULE`, instead of with `fork` or `multiprocessing`: training scripts need no
`if __name__ == "__main__"`, and threads of other libraries cannot deadlock a child. While the parent waits for a
message, signals interrupt it, unlike a native function in the same process.
"""

import json
import os
import struct
import subprocess
import sys
from typing import IO, Any

from regard.errors import ResourceError
from regard.operating_system import own_session, usable_cores

_SIZE = struct.Struct("<q")


class WorkerProcess:
    """A process that runs a module. It is in a session of its own, so that Ctrl-C in a terminal does not reach it."""

    def __init__(self, module: str, **environment: str) -> None:
        command = [sys.executable, "-m", module]
        env = {**os.environ, **environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, **own_session()
        )

    def send(self, message: Any) -> None:
        """Send a JSON value."""
        assert self._process.stdin is not None
        try:
            write_message(self._process.stdin, json.dumps(message, allow_nan=False).encode())
            self._process.stdin.flush()
        except OSError:  # BrokenPipeError, except on Windows
            raise self._error() from None

    def receive(self) -> bytes:
        assert self._process.stdout is not None
        message = read_message(self._process.stdout)
        if message is None:
            raise self._error()
        return message

    def kill(self) -> None:
        """End the process. Another thread that waits for a message receives a ResourceError."""
        self._process.kill()

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _error(self) -> ResourceError:
        code = self._process.wait()
        return ResourceError(
            f"A worker process ended with code {code}, probably because it ran out of memory. Free some memory, and "
            "run the command again."
        )


def write_message(pipe: IO[bytes], message: bytes) -> None:
    pipe.write(_SIZE.pack(len(message)))
    pipe.write(message)


def read_message(pipe: IO[bytes]) -> bytes | None:
    """Read the next message; None at the end of the stream."""
    size = pipe.read(_SIZE.size)
    if len(size) < _SIZE.size:
        return None
    [length] = _SIZE.unpack(size)
    message = pipe.read(length)
    return message if len(message) == length else None


def usable_threads() -> int:
    """Return the maximum number of CPU threads: OMP_NUM_THREADS if it is set, else the number of usable cores."""
    requested = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if requested.isdecimal() and int(requested):
        return int(requested)
    return usable_cores()
