"""Corpora: pairs of sequences from TSV, CSV, JSONL and parallel files, and from what is built in."""

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from regard.data import dates, pronunciations, sequences
from regard.data.files import Files
from regard.data.lines import count_lines, open_file
from regard.data.pinning import check_present, reject_pipes
from regard.data.readers import read_rows
from regard.data.settings import SPLITS, Data, DatesData, FilesData, PronounceData, SequencesData, SplitName
from regard.errors import DataError
from regard.formatting import quantity

log = logging.getLogger(__name__)

HELD_BACK_SHARE, FEWEST_HELD_BACK, HELD_BACK = 0.05, 50, 2_000
"""Without dev files, the share of the training pairs that is kept for validation, and about how many at the least (of a
small corpus no more than a fifth) and at the most.
"""

TEST_SHARE, FEWEST_FOR_TEST, MOST_FOR_TEST = 0.05, 1_000, 1_000
"""Without dev and test files: the share of the training pairs that is held back for testing, the fewest pairs that a
corpus must have for this, and about the most pairs that are held back.
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

    def first(self, count: int | None) -> "Pairs":
        """The first `count` pairs; all of them if it is None."""
        return Pairs(self.sources[:count], self.targets[:count])


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
    test: Pairs | Stream | None = None
    """The pairs of test files, or a stream of those that are held back from the training files."""
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
    if settings.folder:
        check_present(settings)
    test = read_pairs(judged, skip_bad_lines=keep_going) if judged else None
    files = (*learned.paths, *(chosen.paths if chosen else ()))
    reject_pipes(files)
    counted = tuple(own.paths[0] for own in learned.by_language.values())
    everything = partial(stream_pairs, learned, skip_bad_lines=keep_going, drop_empty=True)
    if chosen:
        dev = read_pairs(chosen, skip_bad_lines=keep_going, drop_empty=True)
        kept = Stream(partial(_unseen, dev, everything, str(chosen))) if settings.dev_unseen else dev
        return Corpus(Stream(everything), kept, test, files, counted)
    held_back = _held_back(settings, _lines(counted))

    def split(name: SplitName) -> Iterator[tuple[str, str]]:
        """By a hash of the source, so that no source is in two splits and the order of the lines does not matter."""
        return (pair for pair in everything() if held_back.split_of(pair[0]) == name)

    train, kept_back, test_back = (Stream(partial(split, name)) for name in SPLITS)
    return Corpus(train, kept_back, test_back if held_back.test else test, files, counted)


class HeldBack(NamedTuple):
    """The shares of the sources of the training files that are kept for validation and for testing."""

    dev: float
    test: float

    def split_of(self, source: str) -> SplitName:
        place = share(source)
        return "dev" if place < self.dev else "test" if place >= 1 - self.test else "train"


def _held_back(settings: FilesData, pairs: int) -> HeldBack:
    """5 % of the pairs for validation; a larger share of a small corpus, and about `HELD_BACK` pairs of a large one."""
    if settings.dev is not None:
        return HeldBack(0.0, 0.0)
    dev = min(max(HELD_BACK_SHARE, min(0.2, FEWEST_HELD_BACK / pairs)), HELD_BACK / pairs)
    wanted = settings.test is None and settings.test_split and pairs >= FEWEST_FOR_TEST
    return HeldBack(dev, min(TEST_SHARE, MOST_FOR_TEST / pairs) if wanted else 0.0)


def describe_held_out(settings: FilesData) -> str | None:
    """A message with the number of pairs that are held back from training; None if none are."""
    learned = settings.files("train")
    assert learned is not None
    pairs = _lines(own.paths[0] for own in learned.by_language.values())
    dev, test = _held_back(settings, pairs)
    if not dev:
        return None
    count = f"about {quantity(round(dev * pairs), 'pair')} for validation"
    if test:
        count += f", and about {quantity(round(test * pairs), 'pair')} as a test set for `regard evaluate`"
    return f"Held back by source sentence: {count} (--dev FILE, --test FILE and data.test_split=false change that)."


def _unseen(dev: Pairs, train: Callable[[], Iterator[tuple[str, str]]], name: str) -> Iterator[tuple[str, str]]:
    """The pairs whose source is not learned from: a model that learns by heart would be wrong on the others."""
    asked = set(dev.sources)
    seen = {source for source, _ in train() if source in asked}
    left = [pair for pair in dev if pair[0] not in seen]
    if len(left) < len(dev):
        log.warning(
            "%s: %d of %s left out of validation, because their source is in the training data (data.dev_unseen).",
            name, len(dev) - len(left), quantity(len(dev), "pair"),
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
                remedy = row.remedy or "Correct the line, or choose the columns to read (--columns A B)."
                raise DataError(f"{row.place}: {row.problem}. {remedy} data.bad_lines=skip ignores such lines.")
            bad.append(row.place)
        elif drop_empty and not (row.source.strip() and row.target.strip()):
            empty.append(row.place)
        else:
            used = True
            yield row.source, row.target
    left_out = [
        f"{quantity(len(places), 'line')} {what} left out, the first at {places[0]}"
        for places, what in ((bad, "without a pair"), (empty, "with an empty side"))
        if places
    ]
    for told in left_out:
        log.warning("%s: %s.", files, told)
    if not used:
        why = "; ".join(left_out) or "the file has no data lines"
        raise DataError(f"{files}: no pair is left to use: {why}. Check the files and their columns.")


def _lines(paths: Iterable[str]) -> int:
    return max(1, sum(map(count_lines, paths)))


def share(text: str) -> float:
    """A number in [0, 1) that depends on the text alone."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
