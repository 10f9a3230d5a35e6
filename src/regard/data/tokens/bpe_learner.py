"""Learn the merges of BPE (Sennrich et al. 2016) with the `tokenizers` library.

The library learns in one native call, which signals cannot interrupt. Therefore, unless the texts are short, a worker
process learns from them. It is killed if the parent is interrupted.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from typing import IO, Any

import tokenizers
from tokenizers import models, trainers

from regard.data.tokens.processes import WorkerProcess, read_message, write_message
from regard.formatting import to_json

_MAX_CHARACTERS = 100_000
"""If the texts have fewer characters in total, this process learns the merges, which takes less than a second."""

_MESSAGE_CHARACTERS = 1_000_000
"""The approximate number of characters in a message to the worker process."""


def learn_merges(
    learner: tokenizers.Tokenizer, texts: Iterable[str], *, size: int, min_count: int, alphabet: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the BPE model that is learned from texts, in the format of the `tokenizers` library.

    Args:
        learner: Its normalizer and its pre-tokenizer are applied to the texts. For each merge, the library reads
            all words with this merge, so words should not be longer than `MAX_WORD_LENGTH`.
        texts: The texts, which are read once.
        size: The maximum number of tokens.
        min_count: The minimum count of a pair of tokens to be merged.
        alphabet: Characters to include, even if they do not occur in the texts.
    """
    options = {"vocab_size": size, "min_frequency": min_count, "initial_alphabet": sorted(alphabet)}
    chunks = split_by_length(texts, _MESSAGE_CHARACTERS)
    first = next(chunks, [])
    if sum(map(len, first)) < _MAX_CHARACTERS:
        return _learn(learner, first, options)
    worker = WorkerProcess(__name__)
    try:
        worker.send([learner.to_str(), options])
        worker.send(first)
        for chunk in chunks:
            worker.send(chunk)
        worker.send([])
        model: dict[str, Any] = json.loads(worker.receive())
        return model
    finally:
        worker.stop()


def split_by_length(texts: Iterable[str], characters: int) -> Iterator[list[str]]:
    """Yield lists of texts, in order. A list ends as soon as it has this number of characters."""
    chunk: list[str] = []
    total = 0
    for text in texts:
        chunk.append(text)
        total += len(text)
        if total >= characters:
            yield chunk
            chunk, total = [], 0
    if chunk:
        yield chunk


def _learn(learner: tokenizers.Tokenizer, texts: Iterable[str], options: dict[str, Any]) -> dict[str, Any]:
    learner.model = models.BPE()
    learner.train_from_iterator(texts, trainers.BpeTrainer(show_progress=False, **options))
    model: dict[str, Any] = json.loads(learner.to_str())["model"]
    return model


def _read_texts(requests: IO[bytes]) -> Iterator[str]:
    """Yield the texts of all messages. An empty list is the last one; without it, the parent process has ended."""
    while (message := read_message(requests)) is not None:
        texts = json.loads(message)
        if not texts:
            return
        yield from texts
    sys.exit(1)


def _serve(requests: IO[bytes], responses: IO[bytes]) -> None:
    """Read the learner and the texts, and write the model."""
    text, options = json.loads(read_message(requests) or b"[null, {}]")
    model = _learn(tokenizers.Tokenizer.from_str(text), _read_texts(requests), options)
    write_message(responses, to_json(model).encode())
    responses.flush()


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout.buffer)
