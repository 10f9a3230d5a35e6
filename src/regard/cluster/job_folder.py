"""The folder of a corpus job on disk: what is finished survives the process, however it ends.

    out/a.txt.gz                     the predictions of in/a.txt.gz, when all of its blocks are finished
    out/failures.jsonl               the lines and files without a prediction, each with the reason
    out/.regard-job/job.json         the model and the options, which must be the same when the job is resumed
    out/.regard-job/a.txt.gz.data    the output of the finished blocks, in the order in which they were finished
    out/.regard-job/a.txt.gz.index   a line of JSON for each finished block; the last line, when the file is finished

A block is finished when its line is in the index. Its output was synced to disk before.
"""

import gzip
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, final

from regard.cluster.block_predictor import BlockResponse
from regard.errors import ConfigError, RunInUseError
from regard.formatting import parse_json, short_path, to_json
from regard.regular_files import open_regular, read_regular
from regard.runs.stored_checkpoint import list_differences

WORK = ".regard-job"
FAILURES = "failures.jsonl"

_COPIED = 1 << 20


class FinishedBlock(NamedTuple):
    """A line of the index. `digest` is a hash of the lines of the input, `offset` and `size` locate the output in the
    data. The first item of a problem is the index of the line in the file.
    """

    number: int
    digest: str
    offset: int
    size: int
    problems: list[tuple[int, str]]
    counts: dict[str, Any]


class FinishedFile(NamedTuple):
    """The last line of the index: the size of the output, and what identifies the version of the input."""

    blocks: int
    size: int
    version: list[int] | None


@final
class OutputFile:
    """An output file, and its finished blocks. One thread writes to it."""

    def __init__(self, out: Path, name: str) -> None:
        self.path = out / name
        self._index_path, self._data_path = (out / WORK / f"{name}.{suffix}" for suffix in ("index", "data"))
        self._zipped = name.endswith(".gz")
        self._open_files: tuple[BinaryIO, BinaryIO] | None = None
        self.blocks: dict[int, FinishedBlock] = {}
        self.finished: FinishedFile | None = None
        self._read()

    def _read(self) -> None:
        """Read the index. What follows a damaged line is ignored: the computer stopped while it was written."""
        with suppress(FileNotFoundError):
            available = self._data_path.stat().st_size if self._data_path.exists() else 0
            for line in read_regular(self._index_path).split(b"\n")[:-1]:
                try:
                    values = parse_json(line)
                    if "blocks" in values:
                        self.finished = FinishedFile(**values)
                    else:
                        block = FinishedBlock(**values)
                        self.blocks[block.number] = block
                except (ValueError, TypeError):
                    break
            if self.finished is None:
                complete = {
                    number: each for number, each in self.blocks.items() if each.offset + each.size <= available
                }
                self.blocks = complete

    @property
    def was_started(self) -> bool:
        return self._index_path.exists()

    def is_intact(self) -> bool:
        """Whether the output of a finished file is still there."""
        with suppress(OSError):
            return self.finished is not None and self.path.stat().st_size == self.finished.size
        return False

    def forget(self) -> None:
        """Remove all finished blocks."""
        self.blocks, self.finished = {}, None
        for path in (self._index_path, self._data_path):
            path.unlink(missing_ok=True)

    def add(self, number: int, digest: str, first: int, response: BlockResponse) -> None:
        """Store the output of a block. `first` is the index of its first line in the file."""
        index, data = self._open()
        content = response["text"].encode()
        content = gzip.compress(content, mtime=0) if self._zipped else content
        offset = data.seek(0, os.SEEK_END)
        data.write(content)
        data.flush()
        os.fsync(data.fileno())
        problems = [(first + position, problem) for position, problem in response["problems"]]
        block = FinishedBlock(number, digest, offset, len(content), problems, response["counts"])
        self._append(index, block._asdict())
        self.blocks[number] = block

    def finish(self, blocks: int, version: list[int] | None) -> None:
        """Write the output of all blocks in order, and move it to its place."""
        index, _ = self._open()
        draft = self._data_path.with_suffix(".draft")
        with open(draft, "wb") as output, open_regular(self._data_path) as stored:
            if self._zipped and not blocks:
                output.write(gzip.compress(b"", mtime=0))
            for number in range(blocks):
                stored.seek(self.blocks[number].offset)
                left = self.blocks[number].size
                while left:
                    left -= output.write(stored.read(min(left, _COPIED)))
            output.flush()
            os.fsync(output.fileno())
            size = output.tell()
        os.replace(draft, self.path)
        self.finished = FinishedFile(blocks, size, version)
        self._append(index, self.finished._asdict())
        self.close()
        self._data_path.unlink()

    def _append(self, index: BinaryIO, line: Mapping[str, Any]) -> None:
        index.write(f"{to_json(line, ensure_ascii=False)}\n".encode())
        index.flush()

    def _open(self) -> tuple[BinaryIO, BinaryIO]:
        """Open the index and the data for appending. An index with a damaged end is replaced."""
        if self._open_files is None:
            draft = self._index_path.with_suffix(".draft")
            with open(draft, "wb") as index:
                for block in self.blocks.values():
                    self._append(index, block._asdict())
            os.replace(draft, self._index_path)
            self._open_files = (open(self._index_path, "ab"), open(self._data_path, "ab"))  # noqa: SIM115
        return self._open_files

    def close(self) -> None:
        if self._open_files is not None:
            for file in self._open_files:
                file.close()
            self._open_files = None


def write_failures(folder: Path, failures: Iterable[Mapping[str, Any]]) -> None:
    """Write the list of failures. Without failures, there is no file."""
    draft = folder / WORK / FAILURES
    with open(draft, "wb") as file:
        file.writelines(f"{to_json(failure, ensure_ascii=False)}\n".encode() for failure in failures)
        is_empty = not file.tell()
    if is_empty:
        draft.unlink()
        (folder / FAILURES).unlink(missing_ok=True)
    else:
        os.replace(draft, folder / FAILURES)


@contextmanager
def open_job_folder(path: Path, identity: Mapping[str, Any]) -> Iterator[Path]:
    """Create or open the output folder of a job, and lock it.

    Raise ConfigError if it cannot be written to, or if it was started with another identity; RunInUseError if another
    process has locked it.
    """
    from filelock import FileLock, Timeout

    work = path / WORK
    try:
        work.mkdir(parents=True, exist_ok=True)
        lock = FileLock(work / "lock")
        lock.acquire(timeout=0)
    except Timeout:
        raise RunInUseError(
            f"{short_path(path)} is in use: another process writes predictions there. Wait for it, or choose another "
            "folder with --output."
        ) from None
    except OSError as error:
        raise ConfigError(
            f"--output {short_path(path)}: the folder cannot be written to ({error.strerror}). Choose another folder."
        ) from None
    try:
        _check_identity(path, identity)
        yield path
    finally:
        lock.release()


def _check_identity(path: Path, identity: Mapping[str, Any]) -> None:
    """Compare the identity of a job with the one that the folder was started with, or store it."""
    file = path / WORK / "job.json"
    now = parse_json(to_json(identity))
    try:
        before = parse_json(read_regular(file))
    except FileNotFoundError:
        draft = file.with_suffix(".draft")
        with open(draft, "wb") as handle:
            handle.write(to_json(now, indent=2).encode())
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(draft, file)
        return
    except ValueError:
        raise ConfigError(f"{short_path(file)} is damaged. Choose another folder with --output.") from None
    changed = {key: (before.get(key), now.get(key)) for key in {**before, **now} if before.get(key) != now.get(key)}
    if changed.pop("model", None):
        raise ConfigError(
            f"{short_path(path)} was started with another model. Use the same model, or choose another folder with "
            "--output."
        )
    if changed:
        raise ConfigError(
            f"{short_path(path)} was started with different options: {list_differences(changed)}. Use the same "
            "options, or choose another folder with --output."
        )
