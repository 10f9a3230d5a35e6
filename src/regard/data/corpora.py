"""Corpora: pairs of sequences from TSV, CSV, JSONL and parallel files, and from what is built in."""

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from regard.data import dates, pronunciations, sequences
from regard.data.lines import count_lines, open_file
from regard.data.readers import read_rows
from regard.data.settings import SPLITS, Data, DatesData, Files, FilesData, PronounceData, SequencesData
from regard.errors import DataError

log = logging.getLogger(__name__)

HELD_BACK_SHARE, FEWEST_HELD_BACK, HELD_BACK = 0.05, 50, 2_000
"""Without dev files, the share of the training pairs that is kept for validation, and about how many at the least (of a
small corpus no more than a fifth) and at the most.
"""


@dataclass(frozen=True)
class Pairs:
    """Sources with their targets, in order."""

    sources: list[str] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> "Pairs":
        listed = list(pairs)
        return cls([source for source, _ in listed], [target for _, target in listed])

    def __len__(self) -> int:
        return len(self.sources)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return zip(self.sources, self.targets, strict=True)


@dataclass(frozen=True)
class Stream:
    """Pairs that are read anew whenever they are gone through, so that they need not fit into memory."""

    read: Callable[[], Iterator[tuple[str, str]]]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return self.read()


@dataclass(frozen=True)
class Corpus:
    """The pairs to learn from, to choose by, and (where there are any) to be judged on."""

    train: Pairs | Stream
    dev: Pairs | Stream
    test: Pairs | None = None
    files: tuple[str, ...] = ()
    """Where the training and dev pairs come from, if from files."""
    counted: tuple[str, ...] = ()
    """Of those, the ones that have about a line for each training pair."""

    @property
    def lines(self) -> int:
        """About how many training pairs the files hold; they are read for it."""
        return _lines(self.counted)

    def fingerprint(self) -> dict[str, str]:
        """A hash of each part of what is learned from and chosen by: a resumed run must see the same."""
        return {path: _file_hash(path) for path in self.files} or {
            "training pairs": _pairs_hash(self.train),
            "dev pairs": _pairs_hash(self.dev),
        }


def _file_hash(path: str) -> str:
    with open_file(path) as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _pairs_hash(pairs: Iterable[tuple[str, str]]) -> str:
    digest = hashlib.sha256()
    for source, target in pairs:
        digest.update(f"{source}\n{target}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def load_corpus(settings: Data) -> Corpus:
    return _LOADERS[type(settings)](settings)


def _load_dates(settings: DatesData) -> Corpus:
    sizes = {"train": settings.train, "dev": settings.dev, "test": settings.test}
    return _built_in({name: dates.sample(name, size, settings.seed) for name, size in sizes.items()})


def _built_in(splits: Mapping[str, list[tuple[str, str]]]) -> Corpus:
    train, dev, test = (Pairs.of(splits[name]) for name in ("train", "dev", "test"))
    return Corpus(train, dev, test)


def _load_pronunciations(settings: PronounceData) -> Corpus:
    """Split by a hash of the word, so that nobody is judged on a word whose other pronunciation was learned."""
    splits: dict[str, list[tuple[str, str]]] = {"train": [], "dev": [], "test": []}
    for word, phones in pronunciations.read(settings):
        place = share(word)
        name = "test" if place < settings.test else "dev" if place < settings.test + settings.dev else "train"
        splits[name].append((word, phones))
    for name, pairs in splits.items():
        if not pairs:
            raise DataError(f"{settings.path}: too few words, none is left for {name}. Use a larger dictionary.")
    return _built_in(splits)


def _load_files(settings: FilesData) -> Corpus:
    keep_going = settings.bad_lines == "skip"
    learned, chosen, judged = (settings.files(split) for split in SPLITS)
    assert learned is not None
    missing = next((path for path in learned.paths if not Path(path).exists()), None)
    if missing is not None and settings.folder:
        raise DataError(f"There is no file {missing}. Say where the corpus lies, with data.folder=….")
    test = read_pairs(judged, skip_bad_lines=keep_going) if judged else None
    files = (*learned.paths, *(chosen.paths if chosen else ()))
    for path in filter(os.path.exists, files):
        if not os.path.isfile(path) and not os.path.isdir(path):
            raise DataError(
                f"{path} is no file but a pipe or a device, and what is learned from is read several times. "
                "Write it to a file first."
            )
    counted = tuple(own.paths[0] for own in learned.by_language.values())
    everything = partial(stream_pairs, learned, skip_bad_lines=keep_going, drop_empty=True)
    if chosen:
        dev = read_pairs(chosen, skip_bad_lines=keep_going, drop_empty=True)
        kept = Stream(partial(_unseen, dev, everything, str(chosen))) if settings.unseen else dev
        return Corpus(Stream(everything), kept, test, files, counted)
    held_back = _held_back_share(_lines(counted))

    def split(dev: bool) -> Iterator[tuple[str, str]]:
        """By a hash of the source, so that no source stands on both sides and no order matters."""
        return (pair for pair in everything() if (share(pair[0]) < held_back) == dev)

    return Corpus(Stream(partial(split, False)), Stream(partial(split, True)), test, files, counted)


def _unseen(dev: Pairs, train: Callable[[], Iterator[tuple[str, str]]], name: str) -> Iterator[tuple[str, str]]:
    """The pairs whose source is not learned from: a model that learns by heart would be wrong on the others."""
    asked = set(dev.sources)
    seen = {source for source, _ in train() if source in asked}
    left = [pair for pair in dev if pair[0] not in seen]
    if len(left) < len(dev):
        log.warning(
            "%s: %d of %d pairs are left out of validation, since their source is learned from (data.unseen).",
            name, len(dev) - len(left), len(dev),
        )  # fmt: skip
    if not left:
        raise DataError(f"{name}: every source stands in the training data too. Give other dev files, or none.")
    yield from left


_LOADERS: dict[type, Callable[[Any], Corpus]] = {
    DatesData: _load_dates,
    SequencesData: lambda settings: _built_in(sequences.sample(settings)),
    PronounceData: _load_pronunciations,
    FilesData: _load_files,
}


def read_pairs(files: Files, *, skip_bad_lines: bool = False, drop_empty: bool = False) -> Pairs:
    """The pairs in one file or two, in memory."""
    return Pairs.of(stream_pairs(files, skip_bad_lines=skip_bad_lines, drop_empty=drop_empty))


def stream_pairs(files: Files, *, skip_bad_lines: bool = False, drop_empty: bool = False) -> Iterator[tuple[str, str]]:
    """The pairs in one file or two. A line that is no pair is an error, or skipped and counted."""
    bad: list[str] = []
    empty: list[str] = []
    used = False
    for row in read_rows(files):
        if row.problem:
            if not skip_bad_lines:
                raise DataError(
                    f"{row.place}: {row.problem}. Mend the line, say which columns to read (columns: [a, b]), or leave "
                    "such lines out (data.bad_lines=skip)."
                )
            bad.append(row.place)
        elif drop_empty and not (row.source.strip() and row.target.strip()):
            empty.append(row.place)
        else:
            used = True
            yield row.source, row.target
    for places, what in ((bad, "that are no pairs"), (empty, "with an empty side")):
        if places:
            log.warning("%s: %d lines %s left out, the first at %s.", files, len(places), what, places[0])
    if not used:
        raise DataError(f"{files}: no pair is left to use. Check the files and their columns.")


def _lines(paths: Iterable[str]) -> int:
    return max(1, sum(map(count_lines, paths)))


def _held_back_share(pairs: int) -> float:
    """One pair in twenty; of a small corpus more, of a large one so many as are enough to choose by."""
    return min(max(HELD_BACK_SHARE, min(0.2, FEWEST_HELD_BACK / pairs)), HELD_BACK / pairs)


def share(text: str) -> float:
    """A number in [0, 1) that depends on the text alone."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
