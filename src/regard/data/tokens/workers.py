"""Encode texts on all cores, with worker processes that read texts from a pipe and write ids to another."""

import json
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import IO, NamedTuple

import numpy as np
import tokenizers

from regard.data.held_out import HeldOutShares
from regard.data.ragged import Ids, Ragged, compute_offsets
from regard.data.tokens.processes import WorkerProcess, read_message, write_message
from regard.data.tokens.tokenizers import Tokenizer

Chunk = Sequence[list[str]]
"""The texts of each side of some pairs."""


class EncodedChunk(NamedTuple):
    """The ids of each side, and the pairs that are held out for validation."""

    rows_by_side: list[Ragged]
    dev: list[tuple[str, str]]


def encode_chunk(
    encoders: Sequence[Callable[[Sequence[str]], Ragged]], chunk: Chunk, shares: HeldOutShares | None
) -> EncodedChunk:
    """Encode each side of a chunk. If there are shares, split the chunk first, and encode the training pairs."""
    dev: list[tuple[str, str]] = []
    if shares is not None:
        sources, targets = chunk
        splits = shares.split_block((sources, targets))
        chunk, dev = splits["train"], list(zip(*splits["dev"], strict=True))
    return EncodedChunk([encode(texts) for encode, texts in zip(encoders, chunk, strict=True)], dev)


def _start_worker(sides: Sequence[Tokenizer], shares: HeldOutShares | None) -> WorkerProcess:
    """Start a worker process with one tokenizer for each side."""
    worker = WorkerProcess(__name__, TOKENIZERS_PARALLELISM="false")
    worker.send([[side.to_json() for side in sides], shares])
    return worker


def _receive_chunk(worker: WorkerProcess, sides: int) -> EncodedChunk:
    dev = json.loads(worker.receive())
    rows = []
    for _ in range(sides):
        lengths, ids = worker.receive(), worker.receive()
        flat: Ids = np.frombuffer(ids, np.uint32)
        rows.append(Ragged(flat, compute_offsets(np.frombuffer(lengths, np.uint32))))
    return EncodedChunk(rows, dev)


def encode_parallel(
    sides: Sequence[Tokenizer], chunks: Iterator[Chunk], processes: int, shares: HeldOutShares | None = None
) -> Iterator[EncodedChunk]:
    """Encode chunks (see `encode_chunk`). Each process encodes one chunk at a time."""
    if processes <= 1:
        yield from (encode_chunk([side.rows for side in sides], chunk, shares) for chunk in chunks)
        return
    workers: list[WorkerProcess] = []
    busy: deque[WorkerProcess] = deque()
    try:
        workers += (_start_worker(sides, shares) for _ in range(processes))
        idle = list(workers)
        for chunk in chunks:
            if not idle:
                worker = busy.popleft()
                yield _receive_chunk(worker, len(sides))
                idle.append(worker)
            worker = idle.pop()
            worker.send(chunk)
            busy.append(worker)
        while busy:
            yield _receive_chunk(busy.popleft(), len(sides))
    finally:
        for worker in workers:
            worker.stop()


def _serve(requests: IO[bytes], responses: IO[bytes]) -> None:
    """Read the tokenizers and the shares, then encode chunks until the end of the stream."""
    texts, values = json.loads(read_message(requests) or b"[[], null]")
    encoders = [Tokenizer(tokenizers.Tokenizer.from_str(text)).rows for text in texts]
    shares = None if values is None else HeldOutShares(*values)
    while (message := read_message(requests)) is not None:
        encoded = encode_chunk(encoders, json.loads(message), shares)
        write_message(responses, json.dumps(encoded.dev, allow_nan=False).encode())
        for rows in encoded.rows_by_side:
            write_message(responses, rows.lengths.astype(np.uint32).tobytes())
            write_message(responses, rows.flat.astype(np.uint32).tobytes())
        responses.flush()


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout.buffer)
