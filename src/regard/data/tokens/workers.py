"""Encode texts on all cores, with worker processes that read texts from a pipe and write ids to another."""

import json
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from typing import IO

import numpy as np
import tokenizers

from regard.data.ragged import Ids, Ragged, compute_offsets
from regard.data.tokens.processes import WorkerProcess, read_message, write_message
from regard.data.tokens.tokenizers import Tokenizer

Texts = Sequence[str]


def _start_worker(sides: Sequence[Tokenizer]) -> WorkerProcess:
    """Start a worker process with one tokenizer for each side."""
    worker = WorkerProcess(__name__, TOKENIZERS_PARALLELISM="false")
    worker.send([side.to_json() for side in sides])
    return worker


def _receive_rows(worker: WorkerProcess, sides: int) -> list[Ragged]:
    rows = []
    for _ in range(sides):
        lengths, ids = worker.receive(), worker.receive()
        flat: Ids = np.frombuffer(ids, np.uint32)
        rows.append(Ragged(flat, compute_offsets(np.frombuffer(lengths, np.uint32))))
    return rows


def encode_parallel(
    sides: Sequence[Tokenizer], chunks: Iterator[Sequence[Texts]], processes: int
) -> Iterator[list[Ragged]]:
    """Encode chunks, each of which contains the texts of each side. Each process encodes one chunk at a time."""
    if processes <= 1:
        for chunk in chunks:
            yield [side.rows(texts) for side, texts in zip(sides, chunk, strict=True)]
        return
    workers: list[WorkerProcess] = []
    busy: deque[WorkerProcess] = deque()
    try:
        workers += (_start_worker(sides) for _ in range(processes))
        idle = list(workers)
        for chunk in chunks:
            if not idle:
                worker = busy.popleft()
                yield _receive_rows(worker, len(sides))
                idle.append(worker)
            worker = idle.pop()
            worker.send([list(texts) for texts in chunk])
            busy.append(worker)
        while busy:
            yield _receive_rows(busy.popleft(), len(sides))
    finally:
        for worker in workers:
            worker.stop()


def _serve(requests: IO[bytes], responses: IO[bytes]) -> None:
    """Read the tokenizers, then encode chunks until the end of the stream."""
    first = read_message(requests)
    sides = [Tokenizer(tokenizers.Tokenizer.from_str(text)) for text in json.loads(first or b"[]")]
    while (message := read_message(requests)) is not None:
        for side, texts in zip(sides, json.loads(message), strict=True):
            rows = side.rows(texts)
            write_message(responses, rows.lengths.astype(np.uint32).tobytes())
            write_message(responses, rows.flat.astype(np.uint32).tobytes())
        responses.flush()


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout.buffer)
