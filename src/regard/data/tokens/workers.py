"""Encode texts on all cores, with worker processes that read texts from a pipe and write ids to another.

A worker is started as `python -m regard.data.tokens.workers`, instead of with `fork` or `multiprocessing`: training
scripts need no `if __name__ == "__main__"`, and threads of other libraries cannot deadlock a child.
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
    """A worker process, with one tokenizer for each side."""

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
        except OSError:  # BrokenPipeError, except on Windows
            raise self._error() from None

    def receive(self, sides: int) -> list[Ragged]:
        assert self.process.stdout is not None
        rows = []
        for _ in range(sides):
            lengths, ids = (_read(self.process.stdout) for _ in range(2))
            if lengths is None or ids is None:
                raise self._error()
            flat: Ids = np.frombuffer(ids, np.uint32)
            rows.append(Ragged(flat, compute_offsets(np.frombuffer(lengths, np.uint32))))
        return rows

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()

    def _error(self) -> ResourceError:
        code = self.process.wait()
        return ResourceError(
            f"A worker process of the tokenizer ended with code {code}, probably because it ran out of memory. Free "
            "some memory, and run the command again."
        )


def encode_parallel(
    sides: Sequence[Tokenizer], chunks: Iterator[Sequence[Texts]], processes: int
) -> Iterator[list[Ragged]]:
    """Encode chunks, each of which contains the texts of each side. Each process encodes one chunk at a time."""
    if processes <= 1:
        for chunk in chunks:
            yield [Ragged.of(side.ids(texts)) for side, texts in zip(sides, chunk, strict=True)]
        return
    workers: list[_Worker] = []
    busy: deque[_Worker] = deque()
    try:
        workers += (_Worker.start(sides) for _ in range(processes))
        idle = list(workers)
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
        for worker in workers:
            worker.stop()


def _write(pipe: IO[bytes], message: bytes) -> None:
    pipe.write(_SIZE.pack(len(message)))
    pipe.write(message)


def _read(pipe: IO[bytes]) -> bytes | None:
    """Read the next message; None at the end of the stream."""
    size = pipe.read(_SIZE.size)
    if len(size) < _SIZE.size:
        return None
    [length] = _SIZE.unpack(size)
    message = pipe.read(length)
    return message if len(message) == length else None


def _serve(requests: IO[bytes], responses: IO[bytes]) -> None:
    """Read the tokenizers, then encode chunks until the end of the stream."""
    first = _read(requests)
    sides = [Tokenizer(tokenizers.Tokenizer.from_str(text)) for text in json.loads(first or b"[]")]
    while (message := _read(requests)) is not None:
        for side, texts in zip(sides, json.loads(message), strict=True):
            rows = side.ids(texts)
            _write(responses, np.fromiter(map(len, rows), np.uint32, len(rows)).tobytes())
            _write(responses, np.fromiter((index for row in rows for index in row), np.uint32).tobytes())
        responses.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process stops its workers
    _serve(sys.stdin.buffer, sys.stdout.buffer)
