"""From a corpus to what training works on: tokenizers, token ids, and the pairs to choose by.

All of it is worked out once, and from then on mapped from the cache.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from regard.data.batching import EncodedCorpus, EncodedSide, warn_truncated
from regard.data.cache import cache_key, get_or_build
from regard.data.corpora import Corpus, Pairs
from regard.data.ragged import Ragged, RaggedFile, map_ragged
from regard.data.settings import Data, Sampling, SentencePieceSide, TokenizerSettings, sampling_by_side, sides
from regard.data.tokens.segmentation import END_OF_SENTENCE, Sampled, Segmentations, number_words
from regard.data.tokens.sentencepiece import read_bytes
from regard.data.tokens.tokenizers import END, Tokenizer, TokenizerPair
from regard.data.tokens.workers import encode_parallel
from regard.errors import DataError
from regard.formatting import quantity, short_path

_FORMAT = 2
"""Raised when what is written to the cache changes."""

_CHUNK = 20_000
"""Pairs that are tokenized together: enough to keep all cores at work, few enough to stay small."""

_FEW = 8
"""Chunks below which starting other processes does not pay."""

_SAMPLE = 1_000_000
"""Pairs that subwords are learned from, at the most; of more, every second, third … is taken."""

_SIDES = ("source", "target")

Say = Callable[[str], object]


class PreparedData(NamedTuple):
    """What a run learns from, and what it is validated on."""

    tokenizers: TokenizerPair
    train: EncodedCorpus
    dev: Pairs


class PreparationRequest(NamedTuple):
    """A corpus, a hash of its parts, and how it shall become tokens."""

    corpus: Corpus
    fingerprint: dict[str, str]
    data: Data
    tokenizer: TokenizerSettings
    seed: int


def prepare(request: PreparationRequest, given: TokenizerPair | None, say: Say) -> PreparedData:
    """A corpus in token ids. A run that goes on gives its own tokenizers, so that no other can come to be used."""
    corpus, settings = request.corpus, request.tokenizer
    made_of = (_FORMAT, request.fingerprint, request.data.model_dump(mode="json"))
    if given is None:
        key = cache_key(*made_of, settings.model_dump(mode="json"), _models_read(settings))
        folder = get_or_build("tokenizers", key, lambda place: _learn(request, place, say))
        given = TokenizerPair.load(folder, settings)
    key = cache_key(*made_of, given.fingerprint(), settings.max_length, sampling_by_side(settings))
    folder = get_or_build("corpora", key, lambda place: _encode(request, given, place, say))
    train = EncodedCorpus(*(_open(folder, side, request) for side in _SIDES))
    dev = Pairs.of(json.loads((folder / "dev.json").read_text("utf-8")))
    if not len(train) or not len(dev):
        pairs = len(train) + len(dev)
        name = short_path(corpus.files[0]) if corpus.files else "The corpus"
        raise DataError(
            f"{name} has {quantity(pairs, 'pair')}, too few to hold some back for validation. Give dev files."
        )
    return PreparedData(given, train, dev)


def _models_read(settings: TokenizerSettings) -> list[str]:
    """A hash of each file that a tokenizer is read from: under its name there may be another by now."""
    paths = [Path(side.path) for side in sides(settings) if isinstance(side, SentencePieceSide)]
    return [hashlib.sha256(read_bytes(path)).hexdigest() for path in paths]


def _learn(request: PreparationRequest, place: Path, say: Say) -> None:
    start = time.monotonic()
    corpus, settings = request.corpus, request.tokenizer
    subwords = all(side.kind in {"bpe", "unigram"} for side in sides(settings))
    every = -(-corpus.lines // _SAMPLE) if subwords else 1
    sources = (source for source, _ in islice(corpus.train, 0, None, every))
    targets = (target for _, target in islice(corpus.train, 0, None, every))
    learned = TokenizerPair.build(settings, sources, targets)
    _see_that_it_stayed(request)
    learned.save(lambda name, content: (place / name).write_bytes(content))
    sizes = f"{len(learned.source):,}" + ("" if settings.shared else f" and {len(learned.target):,}")
    say(f"Tokenizer of {sizes} tokens learned in {time.monotonic() - start:.1f} s.")


def _encode(request: PreparationRequest, tokenizers: TokenizerPair, place: Path, say: Say) -> None:
    """To files, a piece at a time: memory does not grow with the corpus."""
    start = time.monotonic()
    corpus, max_length = request.corpus, request.tokenizer.max_length
    with ExitStack() as stack:
        writers = [
            stack.enter_context(_Writer(place, side, tokenizer, sampling, max_length))
            for side, tokenizer, sampling in zip(_SIDES, tokenizers, sampling_by_side(request.tokenizer), strict=True)
        ]
        for found in _rows(writers, _chunks(corpus)):
            for writer, rows in zip(writers, found, strict=True):
                writer.write(rows)
    warn_truncated(sum(writer.cut for writer in writers), max_length, "sequence")
    (place / "dev.json").write_text(json.dumps(list(corpus.dev), ensure_ascii=False, allow_nan=False), "utf-8")
    _see_that_it_stayed(request)
    say(f"Corpus tokenized in {time.monotonic() - start:.1f} s; it is kept in {place.parent} for the next run.")


def _see_that_it_stayed(request: PreparationRequest) -> None:
    """What was read must be what the hash is of, or the cache would keep it under the wrong name."""
    files = request.corpus.files
    now = request.corpus.fingerprint() if files else request.fingerprint
    changed = [name for name in files if now[name] != request.fingerprint[name]]
    if changed:
        raise DataError(
            f"{' and '.join(changed)} changed while it was read. Wait until it is written, and begin again."
        )


def _chunks(corpus: Corpus) -> Iterator[list[tuple[str, ...]]]:
    """The sources and the targets of some pairs at a time."""
    pairs = iter(corpus.train)
    while chunk := list(islice(pairs, _CHUNK)):
        yield list(zip(*chunk, strict=True))


def _rows(writers: "Sequence[_Writer]", chunks: Iterator[list[tuple[str, ...]]]) -> Iterator[list[Ragged]]:
    """The rows of each chunk. A large corpus keeps all cores at work; words are numbered as they come, by one."""
    if any(writer.sampling is not None for writer in writers):
        return ([writer.rows(texts) for writer, texts in zip(writers, chunk, strict=True)] for chunk in chunks)
    first = list(islice(chunks, _FEW))
    processes = 1 if len(first) < _FEW else os.cpu_count() or 1
    return encode_parallel([writer.tokenizer for writer in writers], chain(first, chunks), processes)


class _Writer:
    """One side of a corpus on its way to the disk: in ids, or in words with a table of their segmentations."""

    def __init__(
        self, folder: Path, side: str, tokenizer: Tokenizer, sampling: Sampling | None, max_length: int
    ) -> None:
        self.tokenizer, self.sampling = tokenizer, sampling
        self.cut = 0
        self._folder, self._side, self._longest = folder, side, max_length
        self._numbers = {END_OF_SENTENCE: 0}
        self._end = None if side == "source" else END if sampling is None else 0
        self._file = RaggedFile(folder, side, len(tokenizer) if sampling is None else 1 << 31)

    def rows(self, texts: Sequence[str]) -> Ragged:
        if self.sampling is None:
            return Ragged.of(self.tokenizer.ids(texts))
        return number_words(self.tokenizer, texts, self._numbers)

    def write(self, rows: Ragged) -> None:
        self.cut += int((rows.lengths > self._longest).sum())
        self._file.write(rows.truncate(self._longest, self._end))

    def __enter__(self) -> "_Writer":
        self._file.__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        self._file.__exit__(*failure)
        if self.sampling is not None and failure[0] is None:
            # One table serves every seed: which segmentation is used when is what a run's seed decides.
            table = Segmentations.draw(self.tokenizer, list(self._numbers), self.sampling, seed=0)
            table.save(self._folder / f"{self._side}.table.npz")


def _open(folder: Path, side: str, request: PreparationRequest) -> EncodedSide:
    rows, table = map_ragged(folder, side), folder / f"{side}.table.npz"
    if not table.exists():
        return rows
    return Sampled(rows, Segmentations.load(table), request.seed, request.tokenizer.max_length, side == "target")
