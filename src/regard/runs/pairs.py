"""Test sets and training data of runs: from files, or from the run's own corpus."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

from regard.data.corpora import Corpus, Pairs, RawSource, Stream, load_corpus, read_pairs
from regard.data.images import captions
from regard.data.images.settings import CaptionsData
from regard.data.settings import DataSettings, Files, FilesData
from regard.errors import ConfigError, DataError, RegardError
from regard.formatting import short_path
from regard.models.settings import IMAGE
from regard.runs.folder import RunFolder
from regard.runs.stored_checkpoint import Checkpoint


def read_test_set(
    folder: RunFolder, checkpoint: Checkpoint, files: Files | None = None, images: str | Path | None = None
) -> Pairs:
    """Read the pairs of files, with the columns of the training file; without files, the run's test set."""
    data = folder.settings().data
    if images or (files and data.source_kind == IMAGE):
        return _read_captions(data, files, images)
    if files is not None:
        return read_pairs(read_like_training(files, data))
    corpus = load_corpus(data)
    if corpus.test is None:
        raise DataError(
            f"{folder.path} was trained without a test set. Give one with --pairs, or --source and --target."
        )
    if isinstance(corpus.test, Stream):
        _check_unchanged(corpus, checkpoint, folder, "test", ", or give a test set with --pairs")
    return Pairs.of(corpus.test)


class HeldOutPairs(NamedTuple):
    """Pairs that a run was not trained on, and the split that contains them."""

    split: Literal["test", "dev"]
    pairs: Pairs
    size: int | None = None
    """The number of pairs in the split, of which `pairs` are the first; None if it was not read completely."""


def read_held_out(folder: RunFolder, count: int, unchanged_since: Checkpoint | None = None) -> HeldOutPairs:
    """Read the first pairs of the run's test set, or of its dev set if it has no test set.

    Files are read only up to these pairs. With `unchanged_since`, they are read completely, and pairs are counted. If
    files from which pairs are held out have changed since this checkpoint, raise DataError: the pairs could be training
    pairs now.
    """
    corpus = load_corpus(folder.settings().data)
    splits: tuple[tuple[Literal["test", "dev"], Pairs | Stream | None], ...]
    splits = (("test", corpus.test), ("dev", corpus.dev))
    for split, pairs in splits:
        first = Pairs.of(islice(pairs or (), count))
        if not len(first):
            continue
        if unchanged_since is None:
            return HeldOutPairs(split, first)
        if isinstance(pairs, Stream):
            _check_unchanged(corpus, unchanged_since, folder, split)
        return HeldOutPairs(split, first, sum(1 for _ in pairs or ()))
    raise DataError(f"{folder.path} was trained without a test set and without a dev set.")


def read_training_pairs(
    folder: RunFolder, files: Files | None = None, remedy: str = ""
) -> Iterator[tuple[RawSource, str]]:
    """Yield the training pairs of a run, or of files, with the columns of the run's own training file. `remedy` is what
    to do if those of the run cannot be read.
    """
    data = folder.settings().data
    if files is not None:
        yield from read_pairs(read_like_training(files, data))
        return
    try:
        yield from load_corpus(data).train
    except RegardError as error:
        raise DataError(f"The training pairs of this model cannot be read. {remedy}{error}") from None


def read_like_training(files: Files, data: DataSettings) -> Files:
    """Use the columns of the training file, unless others are given."""
    return files.read_like(data.train) if isinstance(data, FilesData) else files


def _check_unchanged(corpus: Corpus, checkpoint: Checkpoint, folder: RunFolder, split: str, remedy: str = "") -> None:
    """Raise an error if files from which pairs are held out have changed: the pairs could be training pairs now."""
    before = set(checkpoint.state["data"].values())
    changed = [path for path, fingerprint in corpus.hash_files().items() if fingerprint not in before]
    if changed:
        raise DataError(
            f"{' and '.join(map(short_path, changed))} changed since {folder.path} was trained, so its {split} set can "
            f"no longer be separated from its training pairs. Restore the file{remedy}."
        )


def _read_captions(data: DataSettings, files: Files | None, images: str | Path | None) -> Pairs:
    """Read images with their captions."""
    if data.source_kind != IMAGE:
        raise ConfigError(f"--images: the model reads {data.source_kind}, not images. Use --pairs alone.")
    if images is None:
        raise ConfigError("The model reads images. Give the folder or the zip file of the images with --images.")
    policy = data.bad_images if isinstance(data, CaptionsData) else "error"
    return Pairs.of(captions.read_pairs(CaptionsData(images=str(images), captions=files, bad_images=policy)))
