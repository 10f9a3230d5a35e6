"""Many texts to ids on all cores: processes of our own that read texts from a pipe and answer with ids.

They are started by name, not forked and not through `multiprocessing`: a script that trains need not guard its main
module, and threads of other libraries cannot hang a child. `python -m regard.data.tokens.workers` is such a process.
"""

import json
import os
import signal
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from typing import IO, NamedTuple

import numpy as np
import tokenizers

from regard.data.ragged import Ids, Ragged, compute_offsets
from regard.data.tokens.tokenizers import Tokenizer
from regard.errors import ResourceError

_SIZE = struct.Struct("<q")

Texts = Sequence[str]


class _Worker(NamedTuple):
    """A process with its tokenizers, one for each side."""

    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, sides: Sequence[Tokenizer]) -> "_Worker":
        command = [sys.executable, "-m", __name__]
        env = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        worker = cls(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env))
        worker.send([side.to_json() for side in sides])
        return worker

    def send(self, message: object) -> None:
        assert self.process.stdin is not None
        try:
            _write(self.process.stdin, json.dumps(message, allow_nan=False).encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self._gone() from None

    def receive(self, sides: int) -> list[Ragged]:
        assert self.process.stdout is not None
        found = []
        for _ in range(sides):
            lengths, ids = (_read(self.process.stdout) for _ in range(2))
            if lengths is None or ids is None:
                raise self._gone()
            flat: Ids = np.frombuffer(ids, np.uint32)
            found.append(Ragged(flat, compute_offsets(np.frombuffer(lengths, np.uint32))))
        return found

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()

    def _gone(self) -> ResourceError:
        code = self.process.wait()
        return ResourceError(
            f"A process that tokenizes ended by itself (code {code}), probably for want of memory. Give the same "
            "command again, with more memory free."
        )


def encode_parallel(
    sides: Sequence[Tokenizer], chunks: Iterator[Sequence[Texts]], processes: int
) -> Iterator[list[Ragged]]:
    """The ids of each chunk, which holds texts for each side; as many chunks at once as there are processes."""
    if processes <= 1:
        for chunk in chunks:
            yield [Ragged.of(side.ids(texts)) for side, texts in zip(sides, chunk, strict=True)]
        return
    everyone: list[_Worker] = []
    busy: deque[_Worker] = deque()
    try:
        everyone += (_Worker.start(sides) for _ in range(processes))
        idle = list(everyone)
        for chunk in chunks:
            if not idle:
                worker = busy.popleft()
                yield worker.receive(len(sides))
                idle.append(worker)
            worker = idle.pop()
            worker.send([list(texts) for texts in chunk])
            busy.append(worker)
        while busy:
            yield busy.popleft().receive(len(sides))
    finally:
        for worker in everyone:
            worker.stop()


def _write(pipe: IO[bytes], message: bytes) -> None:
    pipe.write(_SIZE.pack(len(message)))
    pipe.write(message)


def _read(pipe: IO[bytes]) -> bytes | None:
    """The next message; None where there is no more."""
    size = pipe.read(_SIZE.size)
    if len(size) < _SIZE.size:
        return None
    [length] = _SIZE.unpack(size)
    message = pipe.read(length)
    return message if len(message) == length else None


def _serve(given: IO[bytes], answers: IO[bytes]) -> None:
    """Read tokenizers, then chunks, until there are no more."""
    first = _read(given)
    sides = [Tokenizer(tokenizers.Tokenizer.from_str(text)) for text in json.loads(first or b"[]")]
    while (message := _read(given)) is not None:
        for side, texts in zip(sides, json.loads(message), strict=True):
            rows = side.ids(texts)
            _write(answers, np.fromiter(map(len, rows), np.uint32, len(rows)).tobytes())
            _write(answers, np.fromiter((index for row in rows for index in row), np.uint32).tobytes())
        answers.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started us ends us
    _serve(sys.stdin.buffer, sys.stdout.buffer)
