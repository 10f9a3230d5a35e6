"""Data files that are given as URLs: read like local files, downloaded once, and never with a password in a message."""

import gzip
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import regard
from regard.config import resolve
from regard.data import remote_files
from regard.data.corpora import load_corpus, read_pairs, read_pronunciations
from regard.data.images.files import ImageFolder
from regard.data.lines import hash_file, read_lines
from regard.data.pair_files import resolve_files
from regard.data.pharaoh import read_alignments
from regard.data.settings import Files, FilesData
from regard.errors import ConfigError, DataError
from regard.formatting import short_path
from regard.runs.folder import RunFolder
from regard.runs.settings import RunSettings
from tests_command import Result, find_imports
from tests_shared import SMALL

PAIRS = "".join(f"word {number}\tWORD {number}\n" for number in range(200)).encode()
TRAINING = {key: value for key, value in SMALL.items() if not key.startswith("data.")} | {"training.steps": 10}


@pytest.fixture(autouse=True)
def downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "downloads"


@pytest.fixture
def memory() -> Iterator[MemoryFileSystem]:
    """The file system of memory://."""
    files = fsspec.filesystem("memory")
    yield files
    files.store.clear()
    files.pseudo_dirs[:] = [""]


@pytest.fixture
def transfers(memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that have been downloaded."""
    paths: list[str] = []
    get_file = MemoryFileSystem.get_file

    def note(files: MemoryFileSystem, path: str, *arguments: object, **options: object) -> None:
        paths.append(path)
        get_file(files, path, *arguments, **options)

    monkeypatch.setattr(MemoryFileSystem, "get_file", note)
    return paths


def test_a_remote_file_reads_like_the_local_one(memory: MemoryFileSystem, tmp_path: Path) -> None:
    content = gzip.compress(b"a\tb\r\nc\td\r\n")
    (tmp_path / "pairs.tsv.gz").write_bytes(content)
    memory.pipe("/data/pairs.tsv.gz", content)
    local, remote = str(tmp_path / "pairs.tsv.gz"), "memory://data/pairs.tsv.gz"
    assert list(read_lines(remote)) == list(read_lines(local))
    assert hash_file(remote) == hash_file(local)
    for url in (f"file://{local}", f"local://{local}"):
        assert hash_file(url) == hash_file(local)


def test_the_folder_of_the_data_may_be_a_url(memory: MemoryFileSystem) -> None:
    memory.pipe("/corpus/train.en", b"one\ntwo\n")
    memory.pipe("/corpus/train.de", b"eins\nzwei\n")
    memory.pipe("/corpus/dev.tsv", b"three\tdrei\n")
    train = Files(source="train.{language}", target="train.de")
    data = FilesData(folder="memory://corpus", language="en", train=train, dev=Files(path="dev.tsv"))
    corpus = load_corpus(resolve_files(data))
    assert list(corpus.train) == [("one", "eins"), ("two", "zwei")]
    assert list(corpus.dev) == [("three", "drei")]
    assert corpus.files[0] == "memory://corpus/train.en"
    run = resolve(RunSettings, {"data": data.model_dump()}, {})
    assert run.relative_to(Path("run")).within(Path("run")).data == data


def test_other_data_files_may_be_urls(memory: MemoryFileSystem, tmp_path: Path) -> None:
    memory.pipe("/links.gz", gzip.compress(b"0-0 1-2\n"))
    assert [sorted(links.sure) for links in read_alignments("memory://links.gz")] == [[(0, 0), (1, 2)]]
    memory.pipe("/words.dict", b"a AH0\n")
    assert read_pronunciations("memory://words.dict") == [("a", "AH")]
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        archive.writestr("cats/one.png", b"")
    memory.pipe("/photos.zip", (tmp_path / "photos.zip").read_bytes())
    folder = ImageFolder.open("memory://photos.zip")
    assert [folder.relative(image) for image in folder.images] == ["cats/one.png"]


def test_a_file_is_downloaded_once_and_again_when_it_has_changed(
    memory: MemoryFileSystem, transfers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.pipe("/pairs.tsv", b"a\tb\n")
    files = Files(path="memory://pairs.tsv")
    assert list(read_pairs(files)) == list(read_pairs(files)) == [("a", "b")]
    monkeypatch.setattr(remote_files, "_copies", {})  # as in another process
    assert list(read_pairs(files)) == [("a", "b")]
    assert transfers == ["/pairs.tsv"]
    memory.pipe("/pairs.tsv", b"c\td\n")
    assert list(read_pairs(files)) == [("c", "d")]
    assert transfers == ["/pairs.tsv"] * 2


def test_a_copy_that_was_removed_or_damaged_is_downloaded_again(
    memory: MemoryFileSystem, transfers: list[str], downloads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.pipe("/pairs.tsv", b"a\tb\n")
    expected = hash_file("memory://pairs.tsv")
    (copy,) = downloads.glob("*/file.tsv")
    copy.unlink()
    assert hash_file("memory://pairs.tsv") == expected
    copy.write_bytes(b"x\ty\n")
    monkeypatch.setattr(remote_files, "_copies", {})
    assert hash_file("memory://pairs.tsv") == expected
    assert len(transfers) == 3


def test_a_file_without_a_version_is_not_cached(
    memory: MemoryFileSystem, downloads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def modified(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(MemoryFileSystem, "modified", modified)
    memory.pipe("/pairs.tsv", b"a\tb\n")
    before = hash_file("memory://pairs.tsv")
    memory.pipe("/pairs.tsv", b"c\td\n")
    assert hash_file("memory://pairs.tsv") != before
    assert not downloads.exists()


def test_a_file_that_is_replaced_while_it_is_downloaded_is_reported(
    memory: MemoryFileSystem, downloads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.pipe("/pairs.tsv", b"a\tb\n")
    get_file = MemoryFileSystem.get_file

    def replace(files: MemoryFileSystem, path: str, *arguments: object) -> None:
        get_file(files, path, *arguments)
        files.pipe(path, b"c\td\n")

    monkeypatch.setattr(MemoryFileSystem, "get_file", replace)
    with pytest.raises(DataError, match=r"memory://pairs.tsv changed while it was downloaded"):
        hash_file("memory://pairs.tsv")
    assert not list(downloads.iterdir())


def test_problems_are_reported_with_the_line_of_the_url(memory: MemoryFileSystem) -> None:
    memory.pipe("/pairs.tsv", b"a\tb\nno tab\n")
    with pytest.raises(DataError, match=r"memory://pairs.tsv:2: 1 column instead of 2"):
        read_pairs(Files(path="memory://pairs.tsv"))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory://missing.tsv", "There is no file memory://missing.tsv. Check the URL."),
        ("memory://folder", "memory://folder is a folder; a file is required."),
        ("s3://bucket/a.tsv", "requires the package s3fs, which is not installed. Run pip install s3fs."),
        ("gs://bucket/a.tsv", "requires the package gcsfs, which is not installed. Run pip install gcsfs."),
        ("ftp://localhost:1/a.tsv", "Connection refused. Check the URL, the network"),
        ("nfs5://host/a.tsv", "cannot be read: Protocol not known: nfs5. Check the URL, the network"),
        ("file:///missing/a.tsv", "There is no file file:///missing/a.tsv. Check the path."),
    ],
)
def test_a_file_that_cannot_be_read_is_a_data_error(
    memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch, url: str, message: str
) -> None:
    for package in ("s3fs", "gcsfs"):
        monkeypatch.setitem(sys.modules, package, None)
    memory.pipe("/folder/a.tsv", b"a\tb\n")
    with pytest.raises(DataError) as raised:
        hash_file(url)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sftp://me:secret@host/a.tsv", "sftp://me:…@host/a.tsv"),
        ("sftp://me:se/cr@et@host:22/a.tsv", "sftp://me:…@host:22/a.tsv"),
        ("https://host/a.tsv?v=1&X-Amz-Signature=secret", "https://host/a.tsv?v=1&X-Amz-Signature=…"),
        ("hdfs://host:8020/a:b@c.tsv", None),
        ("hdfs://me@host/a.tsv", None),
        ("s3://bucket/a.tsv?versionId=1", None),
    ],
)
def test_a_password_is_hidden_and_rejected(url: str, shown: str | None) -> None:
    assert short_path(url) == (shown or url)
    if shown:
        with pytest.raises(ConfigError, match="contains a password or a signature") as raised:
            hash_file(url)
        assert "secret" not in str(raised.value)


def test_absolute_settings_keep_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train = Files(source="s3://bucket/a.en", target="file://a.de")
    guided = {"training.guided_alignment": "gs://bucket/links"}
    settings = resolve(RunSettings, {"data": FilesData(train=train).model_dump()}, guided).absolute()
    assert isinstance(settings.data, FilesData)
    assert settings.data.train.names == {"source": "s3://bucket/a.en", "target": str(tmp_path / "a.de")}
    assert settings.training.guided_alignment is not None
    assert settings.training.guided_alignment.file == "gs://bucket/links"


def test_a_run_resumes_from_a_url_with_the_same_content(memory: MemoryFileSystem, tmp_path: Path) -> None:
    memory.pipe("/pairs.tsv", PAIRS)
    (tmp_path / "pairs.tsv").write_bytes(PAIRS)
    remote = {"data": {"kind": "files", "train": "memory://pairs.tsv"}}
    run = regard.train(remote, TRAINING, out=tmp_path / "run", quiet=True)
    assert "memory://pairs.tsv" in (run.path / "config.yaml").read_text()
    longer = {**TRAINING, "training.decay": "none"}
    started = regard.train(remote, longer, out=tmp_path / "other", quiet=True)
    local = {"data": {"kind": "files", "train": str(tmp_path / "pairs.tsv")}}
    resumed = regard.train(local, {**longer, "training.steps": 12}, out=started.path, quiet=True)
    assert resumed.steps == 12
    memory.pipe("/pairs.tsv", PAIRS[:-9])
    with pytest.raises(DataError, match=r"memory://pairs.tsv.*: the data has changed since"):
        regard.train(remote, TRAINING, out=run.path, quiet=True)


@pytest.mark.parametrize("command", [("train", "dates", "--out"), ("train", "--pairs", "a.tsv", "--out"), ("predict",)])
def test_a_run_folder_is_local(cli: Callable[..., Result], tmp_path: Path, command: tuple[str, ...]) -> None:
    done = cli(*command, "s3://bucket/run", stdin=b"a\n")
    assert done.returncode == 2
    assert "s3://bucket/run is a URL. A run folder must be on a local or mounted disk" in done.stderr
    with pytest.raises(ConfigError, match="s3://bucket/run is a URL"):
        regard.train(pairs=[("a", "b")], out="s3://bucket/run")
    assert not list(tmp_path.iterdir())


def test_the_command_line_reads_urls_and_reports_no_password(cli: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_bytes(PAIRS)
    settings = [f"{key}={value}" for key, value in TRAINING.items()]
    done = cli("train", f"file://{tmp_path}/pairs.tsv", *settings)
    assert done.returncode == 0, done.stderr
    assert RunFolder(tmp_path / "runs" / "pairs").newest() is not None
    for option in ([], ["--pairs"]):
        rejected = cli("train", *option, "ftp://me:secret@localhost:1/pairs.tsv", "--out", "other")
        assert rejected.returncode == 2
        assert "ftp://me:…@localhost:1/pairs.tsv contains a password" in rejected.stderr
        assert "secret" not in rejected.stderr + rejected.stdout
    unreachable = cli("train", "--pairs", "ftp://localhost:1/pairs.tsv", "--out", "other")
    assert unreachable.returncode == 3
    assert "ftp://localhost:1/pairs.tsv cannot be read" in unreachable.stderr
    assert not (tmp_path / "other").exists()


def test_fsspec_is_imported_only_for_urls(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_bytes(PAIRS)
    local, remote = (find_imports("data", "check", path) for path in (f"{tmp_path}/pairs.tsv", "memory://pairs.tsv"))
    assert "fsspec" not in local.modules
    assert "fsspec" in remote.modules
    assert "There is no file memory://pairs.tsv" in remote.result.stderr
