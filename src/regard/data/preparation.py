"""Prepare a corpus for training: learn tokenizers, encode the training pairs, and load the dev pairs.

The results are computed once, and then memory-mapped from the cache.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from regard.data.batching import EncodedCorpus, EncodedTexts, TokenRows, warn_truncated
from regard.data.cache import cache_key, get_or_build
from regard.data.corpora import Corpus, Pairs, RawSource, identify
from regard.data.guidance import AlignedSide, AlignmentFile, prepare_alignments
from regard.data.ragged import Ragged, RaggedFile, map_ragged
from regard.data.settings import (
    BPESide,
    DataSettings,
    Sampling,
    SentencePieceSide,
    TokenizerSettings,
    UnigramSide,
    sampling_by_side,
    sides,
)
from regard.data.source_readers import TextReader
from regard.data.sources import AugmentedSources, EncodedSources, SourceReader
from regard.data.tokens.segmentation import END_OF_SENTENCE, SampledSide, SegmentationTable, number_words
from regard.data.tokens.sentencepiece import read_bytes
from regard.data.tokens.tokenizers import END, Tokenizer, TokenizerPair
from regard.data.tokens.workers import Chunk, EncodedChunk, encode_chunk, encode_parallel
from regard.errors import DataError
from regard.formatting import quantity, short_path
from regard.regular_files import read_regular

_FORMAT = 4
"""The version of the cache format; increase it when the content of entries changes."""

_CHUNK = 20_000
"""The number of pairs that are tokenized at a time: large enough to use all cores, small enough to save memory."""

_MIN_CHUNKS = 4
"""The minimum number of chunks for which worker processes are started. Starting one takes as long as tokenizing
two chunks.
"""

_PAIRS_PER_SUBWORD = 10
"""Subwords are learned from at most this number of pairs for each token of the vocabulary. In larger corpora, every
n-th pair is used: five to ten pairs per token. For 167,000 pairs of Tatoeba and 8,000 tokens, the sample is a third of
the pairs. It takes a third of the time, and its subwords split texts into about 0.2 % more tokens.
"""

_SIDES = ("source", "target")

Report = Callable[[str], object]


class PreparedData(NamedTuple):
    """The reader of the sources, the tokenizers, the encoded training data and the dev pairs of a run."""

    reader: SourceReader
    tokenizers: TokenizerPair
    train: EncodedCorpus
    dev: Pairs


class PreparationRequest(NamedTuple):
    """A corpus with the hashes of its parts, and the settings to prepare it with."""

    corpus: Corpus
    fingerprint: dict[str, str]
    data: DataSettings
    tokenizer: TokenizerSettings
    seed: int
    reader: SourceReader | None = None
    """The reader of sources that are not text; None for texts, which are tokenized."""
    alignments: AlignmentFile | None = None
    """Word alignments of the training pairs, if their sources are text."""

    @property
    def sides(self) -> tuple[str, ...]:
        """The sides of the corpus that are tokenized."""
        return _SIDES if self.reader is None else _SIDES[1:]


def prepare(request: PreparationRequest, tokenizers: TokenizerPair | None, report: Report) -> PreparedData:
    """Prepare a corpus for training. A resumed run passes its own tokenizers, so that they cannot change."""
    corpus, settings = request.corpus, request.tokenizer
    inputs = (_FORMAT, request.fingerprint, request.data.model_dump(mode="json"))
    if tokenizers is None:
        key = cache_key(*inputs, settings.model_dump(mode="json"), _hash_model_files(settings))
        folder = get_or_build("tokenizers", key, lambda draft: _learn(request, draft, report))
        tokenizers = TokenizerPair.load(folder, settings)
    key = cache_key(*inputs, tokenizers.fingerprint(), settings.max_length, sampling_by_side(settings))
    folder = get_or_build("corpora", key, lambda draft: _encode(request, tokenizers, draft, report))
    rows_by_side = [_open(folder, side, request) for side in request.sides]
    *texts, targets = map(EncodedTexts, rows_by_side)
    if request.reader is None:
        reader: SourceReader = TextReader(tokenizers.source, settings.max_length)
        train = EncodedCorpus(texts[0], targets)
        if request.alignments is not None:
            sides = [
                AlignedSide(tokenizer, settings.max_length, rows if isinstance(rows, SampledSide) else None)
                for tokenizer, rows in zip(tokenizers, rows_by_side, strict=True)
            ]
            aligned = prepare_alignments(corpus, request.fingerprint, request.alignments, sides)
            train = replace(train, alignments=aligned)
        dev = Pairs.of(json.loads(read_regular(folder / "dev.json")))
    else:
        reader = request.reader
        sources: EncodedSources = reader.encode([source for source, _ in corpus.train])
        if corpus.augment is not None:
            sources = AugmentedSources(sources, corpus.augment, request.seed)
        train = EncodedCorpus(sources, targets)
        dev = Pairs.of(corpus.dev)
    if not len(train) or not len(dev):
        raise DataError(_explain_empty_split(corpus, len(train) + len(dev)))
    return PreparedData(reader, tokenizers, train, dev)


def _explain_empty_split(corpus: Corpus, pairs: int) -> str:
    """Return why no pair is left for training or validation after some have been held out by source."""
    name = short_path(corpus.files[0]) if corpus.files else "The corpus"
    sources = len({identify(source) for source, _ in chain(corpus.train, corpus.dev)})
    distinct = "" if sources == pairs else f" with {quantity(sources, 'distinct source')}"
    together = "" if sources == pairs else " (pairs with the same source are kept in the same split)"
    return (
        f"{name} has {quantity(pairs, 'pair')}{distinct}, which is too few to hold out some for validation{together}. "
        f"Add pairs{' with other sources' if together else ''}, or validation data with --dev FILE (data.dev)."
    )


def _hash_model_files(settings: TokenizerSettings) -> list[str]:
    """Return a hash of each SentencePiece model, because a file may change under the same path."""
    paths = [side.path for side in sides(settings) if isinstance(side, SentencePieceSide)]
    return [hashlib.sha256(read_bytes(path)).hexdigest() for path in paths]


def _learn(request: PreparationRequest, folder: Path, report: Report) -> None:
    start = time.monotonic()
    corpus, settings = request.corpus, request.tokenizer
    pairs = _sample_for_subwords(corpus, settings)
    sources = (source for source, _ in pairs) if request.reader is None else ()
    tokenizers = TokenizerPair.build(settings, sources, (target for _, target in pairs))
    _check_unchanged(request)
    tokenizers.save(lambda name, content: (folder / name).write_bytes(content))
    sizes = f"{len(tokenizers.source):,}" + ("" if settings.shared else f" and {len(tokenizers.target):,}")
    report(f"Learned a vocabulary of {sizes} tokens in {time.monotonic() - start:.1f} s.")


def _sample_for_subwords(corpus: Corpus, settings: TokenizerSettings) -> Iterable[tuple[RawSource, str]]:
    """Return the pairs that the tokenizers are learned from. Characters, words and tags are collected from all pairs,
    because each of them needs a token.
    """
    max_pairs = 0
    for side in sides(settings):
        if not isinstance(side, BPESide | UnigramSide) or side.tags:
            return corpus.train
        max_pairs = max(max_pairs, _PAIRS_PER_SUBWORD * side.vocabulary)
    step = -(-corpus.lines // max_pairs)
    return list(islice(corpus.train, 0, None, step) if corpus.unsplit is None else corpus.unsplit.sample(step))


def _encode(request: PreparationRequest, tokenizers: TokenizerPair, folder: Path, report: Report) -> None:
    """Encode a corpus to files in chunks, so that memory does not grow with the corpus."""
    start = time.monotonic()
    max_length = request.tokenizer.max_length
    with ExitStack() as stack:
        writers = [
            stack.enter_context(_SideWriter(folder, side, tokenizer, sampling, max_length))
            for side, tokenizer, sampling in zip(_SIDES, tokenizers, sampling_by_side(request.tokenizer), strict=True)
            if side in request.sides
        ]
        dev: list[tuple[str, str]] = []
        for rows_by_side, held_out in _encode_chunks(writers, request):
            dev += held_out
            for writer, rows in zip(writers, rows_by_side, strict=True):
                writer.write(rows)
    warn_truncated(sum(writer.truncated for writer in writers), max_length, "sequence")
    if request.reader is None:
        dev = dev if _splits_chunks(request) else list(request.corpus.dev)
        (folder / "dev.json").write_text(json.dumps(dev, ensure_ascii=False, allow_nan=False), "utf-8")
    _check_unchanged(request)
    report(f"Tokenized the corpus in {time.monotonic() - start:.1f} s; it is cached in {folder.parent}.")


def _check_unchanged(request: PreparationRequest) -> None:
    """Raise an error if a file no longer matches the hash that is part of the cache key."""
    changed = [name for name, found in request.corpus.hash_files().items() if found != request.fingerprint[name]]
    if changed:
        raise DataError(
            f"{' and '.join(changed)} changed while it was read. Wait until it is complete, and start again."
        )


def _splits_chunks(request: PreparationRequest) -> bool:
    """Whether the dev pairs are held out when chunks are encoded, by the workers, so that files are read once."""
    return request.corpus.unsplit is not None and request.reader is None


def _chunks(request: PreparationRequest) -> Iterator[Chunk]:
    """Yield the texts of each tokenized side, of `_CHUNK` pairs at a time."""
    corpus, sides = request.corpus, [_SIDES.index(side) for side in request.sides]
    if corpus.unsplit is None or not _splits_chunks(request):
        pairs = iter(corpus.train)
        while chunk := list(islice(pairs, _CHUNK)):
            yield [[pair[side] for pair in chunk] for side in sides]
        return
    sources: list[str] = []
    targets: list[str] = []
    for source_block, target_block in corpus.unsplit.read():
        sources += source_block
        targets += target_block
        while len(sources) >= _CHUNK:
            yield [sources[:_CHUNK], targets[:_CHUNK]]
            sources, targets = sources[_CHUNK:], targets[_CHUNK:]
    if sources:
        yield [sources, targets]


def _encode_chunks(writers: "Sequence[_SideWriter]", request: PreparationRequest) -> Iterator[EncodedChunk]:
    """Encode chunks, those of a large corpus on all cores. If segmentations are sampled, use one process, because words
    are numbered in order of first occurrence.
    """
    chunks, unsplit = _chunks(request), request.corpus.unsplit
    shares = unsplit.shares if unsplit is not None and _splits_chunks(request) else None
    if any(writer.sampling is not None for writer in writers):
        return (encode_chunk([writer.encode for writer in writers], chunk, shares) for chunk in chunks)
    first = list(islice(chunks, _MIN_CHUNKS))
    processes = 1 if len(first) < _MIN_CHUNKS else os.cpu_count() or 1
    return encode_parallel([writer.tokenizer for writer in writers], chain(first, chunks), processes, shares)


class _SideWriter:
    """Writes one side of a corpus as token ids, or as word numbers with a table of their segmentations."""

    def __init__(
        self, folder: Path, side: str, tokenizer: Tokenizer, sampling: Sampling | None, max_length: int
    ) -> None:
        self.tokenizer, self.sampling = tokenizer, sampling
        self.truncated = 0
        self._folder, self._side, self._max_length = folder, side, max_length
        self._numbers = {END_OF_SENTENCE: 0}
        self._end = None if side == "source" else END if sampling is None else 0
        self._file = RaggedFile(folder, side, len(tokenizer) if sampling is None else 1 << 31)

    def encode(self, texts: Sequence[str]) -> Ragged:
        if self.sampling is None:
            return self.tokenizer.rows(texts)
        return number_words(self.tokenizer, texts, self._numbers)

    def write(self, rows: Ragged) -> None:
        self.truncated += int((rows.lengths > self._max_length).sum())
        self._file.write(rows.truncate(self._max_length, self._end))

    def __enter__(self) -> "_SideWriter":
        self._file.__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        self._file.__exit__(*failure)
        if self.sampling is not None and failure[0] is None:
            # The table does not depend on the seed of a run, which selects the segmentation of each word in an epoch.
            table = SegmentationTable.sample(self.tokenizer, list(self._numbers), self.sampling, seed=0)
            table.save(self._folder / f"{self._side}.table.npz")


def _open(folder: Path, side: str, request: PreparationRequest) -> TokenRows:
    rows, table = map_ragged(folder, side), folder / f"{side}.table.npz"
    if not table.exists():
        return rows
    return SampledSide(
        rows, SegmentationTable.load(table), request.seed, request.tokenizer.max_length, has_end=side == "target"
    )
