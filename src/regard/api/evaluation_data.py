"""Test sets and training data of runs: from files, or from the run's own corpus."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from regard.data.corpora import Corpus, Pairs, RawSource, Stream, load_corpus, read_pairs
from regard.data.files import Files
from regard.data.images import captions
from regard.data.images.settings import CaptionsData
from regard.data.settings import DataSettings, FilesData
from regard.errors import ConfigError, DataError
from regard.formatting import short_path
from regard.models.vision.settings import IMAGE
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
        _check_training_files_unchanged(corpus, folder, checkpoint)
    return Pairs.of(corpus.test)


def read_examples(folder: RunFolder, count: int) -> list[RawSource]:
    """Return the first sources of the run's test set; nothing without a test set. Files are read up to these pairs."""
    return [source for source, _ in islice(load_corpus(folder.settings().data).test or (), count)]


def read_training_pairs(folder: RunFolder, files: Files | None = None) -> Iterable[tuple[RawSource, str]]:
    """Read the training pairs of a run, or of files, with the columns of the run's own training file."""
    data = folder.settings().data
    if files is not None:
        return read_pairs(read_like_training(files, data))
    try:
        return load_corpus(data).train
    except DataError as error:
        raise DataError(f"The training data of {folder.path} cannot be read. Give it with --train. {error}") from None


def read_like_training(files: Files, data: DataSettings) -> Files:
    """Use the columns of the training file, unless others are given."""
    return files.read_like(data.train) if isinstance(data, FilesData) else files


def _check_training_files_unchanged(corpus: Corpus, folder: RunFolder, checkpoint: Checkpoint) -> None:
    """Raise DataError if files changed: the test split would differ, and could contain training pairs."""
    before = set(checkpoint.state["data"].values())
    changed = [path for path, fingerprint in corpus.hash_files().items() if fingerprint not in before]
    if changed:
        raise DataError(
            f"{' and '.join(map(short_path, changed))} changed since {folder.path} was trained, so its test set can no "
            "longer be separated from its training pairs. Restore the file, or give a test set with --pairs."
        )


def _read_captions(data: DataSettings, files: Files | None, images: str | Path | None) -> Pairs:
    """Read images with their captions."""
    if data.source_kind != IMAGE:
        raise ConfigError(f"--images: the model reads {data.source_kind}, not images. Use --pairs alone.")
    if images is None:
        raise ConfigError("The model reads images. Give the folder or the zip file of the images with --images.")
    policy = data.bad_images if isinstance(data, CaptionsData) else "error"
    return Pairs.of(captions.read_pairs(CaptionsData(images=str(images), captions=files, bad_images=policy)))
