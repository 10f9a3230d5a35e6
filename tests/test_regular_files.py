"""Only regular files are opened: opening a FIFO would block, and a device may have no end."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

import regard
from regard.data.images.captions import load_splits
from regard.data.images.files import read_bytes
from regard.data.images.settings import CaptionsData
from regard.data.lines import is_stream, read_lines
from regard.data.pharaoh import read_alignments
from regard.data.tokens.sentencepiece import read_model
from regard.data.tokens.tokenizer_file import read_tokenizer
from regard.errors import DataError, RegardError
from regard.regular_files import open_regular
from regard.yaml_reader import read_yaml

READERS: dict[str, Callable[[Path], object]] = {
    "settings": read_yaml,
    "text": lambda path: list(read_lines(path)),
    "alignments": lambda path: list(read_alignments(path)),
    "image": lambda path: read_bytes(str(path)),
    "sentencepiece": read_model,
    "tokenizer": read_tokenizer,
    "trace": regard.Trace.load,
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_every_reader_rejects_devices(read: Callable[[Path], object]) -> None:
    # Not /dev/zero: a reader that accepts it would not return.
    with pytest.raises(RegardError, match="it is a device, not a regular file"):
        read(Path(os.devnull))


@pytest.mark.posix
@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize("name", ["a\0b", "a\ud800b"], ids=["nul", "surrogate"])
def test_every_reader_reports_a_name_that_no_file_can_have(read: Callable[[Path], object], name: str) -> None:
    with pytest.raises(RegardError, match="its name contains an invalid character"):
        read(Path(name))


@pytest.mark.posix
def test_opening_a_fifo_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is a FIFO, not a regular file"):
        open_regular(tmp_path / "pipe")


def test_special_files_among_images_are_bad_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    images = tmp_path / "images"
    images.mkdir()
    for name in "abcdefgh":
        Image.new("RGB", (8, 8)).save(images / f"{name}.png")
    os.mkfifo(images / "pipe.png")
    (images / "zero.png").symlink_to("/dev/zero")
    with pytest.raises(DataError, match=r"pipe\.png cannot be read: it is a FIFO.*1 other image"):
        load_splits(CaptionsData(images=str(images)))
    splits = load_splits(CaptionsData(images=str(images), bad_images="skip"))
    assert sorted(text for pairs in splits.values() for _, text in pairs) == list("abcdefgh")


def test_pipes_of_the_shell_are_read() -> None:
    """`regard data check <(command)` passes a descriptor that is open already."""
    reading, writing = os.pipe()
    os.write(writing, b"a\tb\n")
    os.close(writing)
    assert [line.text for line in read_lines(f"/dev/fd/{reading}")] == ["a\tb"]
    os.close(reading)


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="/dev/shm is a folder of Linux")
def test_a_file_in_memory_is_not_a_stream() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        (Path(folder) / "pairs.tsv").write_text("a\tb\n")
        os.mkfifo(Path(folder) / "pipe")
        assert not is_stream(f"{folder}/pairs.tsv")
        assert is_stream(f"{folder}/pipe")
    assert is_stream("/dev/stdin")
