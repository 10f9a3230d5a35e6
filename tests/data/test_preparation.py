"""The cache: entries are built once, equal the result in memory, and are built again if anything changes."""

import json
import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.config import resolve
from regard.data import cache, preparation
from regard.data.batching import EncodedCorpus, EncodedTexts, TokenRows
from regard.data.corpora import Pairs, load_corpus
from regard.data.held_out import HeldOutShares
from regard.data.ragged import Ragged, RaggedFile, map_ragged
from regard.data.settings import BPETokenizer, CharTokenizer, Files, FilesData, TokenizerSettings
from regard.data.sources import EncodedSources
from regard.data.tokens.tokenizers import END, TokenizerPair
from regard.data.tokens.workers import encode_parallel
from regard.errors import DataError, ResourceError
from regard.runs.settings import RunSettings
from tests_command import HANG

ROWS = st.lists(st.lists(st.integers(0, 70_000), max_size=5), max_size=8)


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def token_rows(side: EncodedSources) -> TokenRows:
    assert isinstance(side, EncodedTexts)
    return side.rows


def to_ragged(side: EncodedSources) -> Ragged:
    rows = token_rows(side)
    assert isinstance(rows, Ragged)
    return rows


def write_data(tmp_path: Path, pairs: int = 60) -> FilesData:
    path = tmp_path / "train.tsv"
    path.write_text("".join(f"word{n}\tWORD{n}\n" for n in range(pairs)))
    return FilesData(train=Files(path=str(path)))


def prepare(
    settings: FilesData,
    messages: list[str] | None = None,
    tokenizer: TokenizerSettings = CharTokenizer(),  # noqa: B008 - frozen
    seed: int = 0,
) -> preparation.PreparedData:
    corpus = load_corpus(settings)
    request = preparation.PreparationRequest(corpus, corpus.fingerprint(), settings, tokenizer, seed)
    return preparation.prepare(request, None, (messages if messages is not None else []).append)


@given(rows=ROWS, data=st.data())
def test_rows_are_selected_as_from_a_list(rows: list[list[int]], data: st.DataObject) -> None:
    ragged = Ragged.of(rows)
    indices = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=6)) if rows else []
    selected = ragged.take(indices)
    assert [selected[index].tolist() for index in range(len(selected))] == [rows[index] for index in indices]
    assert ragged.lengths.tolist() == [len(row) for row in rows]


@given(rows=ROWS, max_length=st.integers(0, 6), end=st.none() | st.integers(0, 9))
def test_rows_are_truncated_and_get_an_end(rows: list[list[int]], max_length: int, end: int | None) -> None:
    truncated = Ragged.of(rows).truncate(max_length, end).rows()
    assert truncated == [[*row[:max_length], *([] if end is None else [end])] for row in rows]


@pytest.mark.parametrize(("max_id", "dtype"), [(65_535, np.uint16), (65_536, np.uint32)])
def test_rows_are_stored_with_the_smallest_dtype(tmp_path: Path, max_id: int, dtype: type) -> None:
    with RaggedFile(tmp_path, "x", max_id) as file:
        file.write(Ragged.of([[1, max_id - 1], []]))
        file.write(Ragged.of([[7]]))
    mapped = map_ragged(tmp_path, "x")
    assert [mapped[index].tolist() for index in range(3)] == [[1, max_id - 1], [], [7]]
    assert mapped.flat.dtype == dtype
    assert isinstance(mapped.flat, np.memmap)
    assert isinstance(mapped.offsets.base, np.memmap)


def test_an_empty_file_can_be_mapped(tmp_path: Path) -> None:
    with RaggedFile(tmp_path, "x", 10):
        pass
    assert len(map_ragged(tmp_path, "x")) == 0


def test_mapped_data_equals_data_in_memory(tmp_path: Path) -> None:
    settings = write_data(tmp_path)
    prepared = prepare(settings)
    corpus = load_corpus(settings)
    in_memory = EncodedCorpus.of(corpus.train, prepared.reader, prepared.tokenizers.target, 1_000)
    assert len(prepared.train) == len(in_memory) > 0
    sources, targets = to_ragged(prepared.train.sources), to_ragged(prepared.train.targets)
    for index in range(len(in_memory)):
        assert sources[index].tolist() == to_ragged(in_memory.sources)[index].tolist()
        assert targets[index].tolist() == to_ragged(in_memory.targets)[index].tolist()
        assert targets[index][-1] == END
    assert list(prepared.dev) == list(corpus.dev)


def test_a_corpus_is_tokenized_once(tmp_path: Path) -> None:
    settings = write_data(tmp_path)
    first: list[str] = []
    second: list[str] = []
    prepare(settings, first)
    prepare(settings, second)
    assert [line.split()[0] for line in first] == ["Learned", "Tokenized"]
    assert second == []


def test_a_changed_file_gets_another_entry(tmp_path: Path) -> None:
    before = prepare(write_data(tmp_path))
    after = prepare(write_data(tmp_path, pairs=61))
    assert len(after.train) + len(after.dev) == len(before.train) + len(before.dev) + 1


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "no manifest"])
def test_a_damaged_entry_is_built_again(tmp_path: Path, cache_folder: Path, damage: str) -> None:
    settings = write_data(tmp_path)
    expected = to_ragged(prepare(settings).train.sources).flat.tolist()
    [ids] = (cache_folder / "corpora").glob("*/source.uint16")
    if damage == "truncate":
        ids.write_bytes(ids.read_bytes()[:-2])
    elif damage == "flip":
        ids.write_bytes(bytes([ids.read_bytes()[0] ^ 1]) + ids.read_bytes()[1:])
    elif damage == "remove":
        ids.unlink()
    else:
        (ids.parent / "manifest.json").unlink()
    messages: list[str] = []
    assert to_ragged(prepare(settings, messages).train.sources).flat.tolist() == expected
    assert len(messages) == 1


def test_without_the_hashes_a_flipped_byte_would_not_be_detected(
    tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = write_data(tmp_path)
    expected = to_ragged(prepare(settings).train.sources).flat.tolist()
    [ids] = (cache_folder / "corpora").glob("*/source.uint16")
    ids.write_bytes(bytes([ids.read_bytes()[0] ^ 1]) + ids.read_bytes()[1:])

    def read_hash(path: Path) -> str:
        hashes: dict[str, str] = json.loads((path.parent / "manifest.json").read_text())
        return hashes[path.name]

    monkeypatch.setattr(cache, "sha256", read_hash)
    assert to_ragged(prepare(settings).train.sources).flat.tolist() != expected


SLOW_BUILD = """
import sys, time
from regard.data.cache import get_or_build

def build(folder):
    (folder / "first").write_text("first")
    print("building", flush=True)
    time.sleep(float(sys.argv[2]))
    (folder / "last").write_text("last")

print(get_or_build("corpora", sys.argv[1], build), flush=True)
"""


def start_build(key: str, seconds: float) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", SLOW_BUILD, key, str(seconds)], stdout=subprocess.PIPE, text=True)


def test_one_of_several_processes_builds_and_the_others_wait(cache_folder: Path) -> None:
    processes = [start_build("key", 0.5) for _ in range(3)]
    outputs = [process.communicate(timeout=HANG)[0].splitlines() for process in processes]
    assert sorted(len(lines) for lines in outputs) == [1, 1, 2]
    assert {lines[-1] for lines in outputs} == {str(cache_folder / "corpora" / "key")}
    assert [entry.name for entry in (cache_folder / "corpora").iterdir()] == ["key"]
    assert (cache_folder / "corpora" / "key" / "last").read_text() == "last"


def test_a_killed_process_leaves_no_entry_and_its_draft_is_removed(cache_folder: Path) -> None:
    killed, alive = start_build("killed", 60), start_build("alive", 1.5)
    for process in (killed, alive):
        assert process.stdout is not None
        assert process.stdout.readline() == "building\n"
    killed.kill()
    killed.communicate()
    assert not (cache_folder / "corpora" / "killed").exists()
    cache.get_or_build("corpora", "other", lambda _: None)
    assert sorted(entry.name for entry in (cache_folder / "corpora").iterdir()) == [".alive", "other"]
    assert alive.communicate(timeout=HANG)[0] == f"{cache_folder / 'corpora' / 'alive'}\n"
    second = start_build("killed", 0)
    assert second.communicate(timeout=HANG)[0].splitlines()[0] == "building"
    names = sorted(entry.name for entry in (cache_folder / "corpora" / "killed").iterdir())
    assert names == ["first", "last", "manifest.json"]


@contextmanager
def limit_file_size(size: int) -> Iterator[None]:
    """Simulate a full disk by a limit on the size of files: the same calls fail."""
    import resource  # Windows has none

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.posix
@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_full_disk_is_reported_at_any_point_of_a_build(tmp_path: Path, cache_folder: Path, dropout: float) -> None:
    settings, bpe = write_data(tmp_path, pairs=1_000), BPETokenizer(vocabulary=100, dropout=dropout, segmentations=4)
    prepare(settings, tokenizer=bpe)
    sizes = sorted({path.stat().st_size for path in cache_folder.glob("*/*/*")})
    assert len(sizes) >= 7
    for size in sizes:
        for kind in ("tokenizers", "corpora"):
            for entry in (cache_folder / kind).iterdir():
                (entry / "manifest.json").unlink()
        with (
            limit_file_size(size - 1),
            pytest.raises(ResourceError, match=r"could not be written: File too large.*REGARD_CACHE"),
        ):
            prepare(settings, tokenizer=bpe)
        assert not list(cache_folder.glob("*/.*"))
        prepare(settings, tokenizer=bpe)


def test_a_file_that_changes_while_it_is_read_is_reported_and_not_cached(tmp_path: Path, cache_folder: Path) -> None:
    settings = write_data(tmp_path)
    path = Path(str(settings.train.path))

    class ChangesFile(list[str]):
        def append(self, message: str) -> None:
            super().append(message)
            path.write_text(path.read_text() + "one\tmore\n")

    with pytest.raises(DataError, match=r"train.tsv changed while it was read"):
        prepare(settings, ChangesFile())
    assert list((cache_folder / "corpora").iterdir()) == []


def test_a_failed_build_leaves_no_files(cache_folder: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise DataError("bad line")

    with pytest.raises(DataError):
        cache.get_or_build("corpora", "key", fail)
    assert list((cache_folder / "corpora").iterdir()) == []


def test_without_a_writable_cache_the_corpus_is_tokenized_for_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "file" / "below"))
    assert len(prepare(write_data(tmp_path)).train)
    assert "for this run only" in caplog.text


def test_too_few_pairs_to_hold_out_some_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "one.tsv"
    path.write_text("a\tb\n")
    with pytest.raises(
        DataError, match=r"one.tsv has 1 pair, which is too few .* Add pairs, or validation data with --dev FILE"
    ):
        prepare(FilesData(train=Files(path=str(path))))


def test_the_cache_folder_depends_on_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("REGARD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_folder() == tmp_path / "regard"
    assert cache.cache_key({"b": 1, "a": 2}) == cache.cache_key(json.loads('{"a": 2, "b": 1}'))


def test_sampled_segmentations_differ_between_epochs_and_seeds_and_decode_to_the_same_text(tmp_path: Path) -> None:
    settings = write_data(tmp_path, pairs=200)
    bpe = BPETokenizer(vocabulary=60, dropout=0.5)
    prepared = prepare(settings, tokenizer=bpe)
    rows = list(range(len(prepared.train)))
    decode = prepared.tokenizers.target.decode
    expected = [target for _, target in load_corpus(settings).train]
    ids_by_epoch = []
    for epoch in range(3):
        batch = prepared.train.targets.rows.take(rows, epoch)
        assert [decode(ids[:-1]) for ids in batch.rows()] == expected
        assert all(ids[-1] == END for ids in batch.rows())
        assert prepared.train.count_target_tokens(rows[5:90], epoch) == sum(map(len, batch.rows()[5:90]))
        ids_by_epoch.append(batch.flat.tolist())
    assert ids_by_epoch[0] != ids_by_epoch[1] != ids_by_epoch[2]
    assert prepared.train.targets.rows.take(rows, 1).flat.tolist() == ids_by_epoch[1]
    assert prepare(settings, tokenizer=bpe, seed=1).train.targets.rows.take(rows, 1).flat.tolist() != ids_by_epoch[1]
    # The segmentation of a pair does not depend on the other pairs of the batch.
    assert prepared.train.targets.rows.take([7], 1)[0].tolist() == prepared.train.targets.rows.take(rows, 1)[7].tolist()
    assert abs(prepared.train.targets.lengths.mean() - np.mean([len(flat) for flat in ids_by_epoch]) / len(rows)) < 1


def test_only_the_requested_side_is_sampled(tmp_path: Path) -> None:
    prepared = prepare(write_data(tmp_path), tokenizer=BPETokenizer(vocabulary=60, dropout=0.5, sampled="source"))
    assert isinstance(prepared.train.targets.rows, Ragged)
    assert not isinstance(token_rows(prepared.train.sources), Ragged)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["char", "bpe", "unigram"])
def test_several_processes_return_the_ids_of_one(kind: str) -> None:
    texts = [f"word{n} over the lazy dog {n % 7}" for n in range(300)]
    settings = resolve(RunSettings, "dates", {"tokenizer": kind, "tokenizer.shared": False}).tokenizer
    if kind != "char":
        settings = settings.model_copy(update={"vocabulary": 80})
    pair = TokenizerPair.build(settings, texts, [text.upper() for text in texts])
    chunks = [
        [texts[start : start + 50], [text.upper() for text in texts[start : start + 50]]] for start in range(0, 300, 50)
    ]

    def encode(processes: int, shares: HeldOutShares | None = None) -> list[tuple[list[Any], list[list[str]]]]:
        encoded = encode_parallel(pair, iter(chunks), processes, shares)
        return [([side.rows() for side in chunk.rows_by_side], list(map(list, chunk.dev))) for chunk in encoded]

    assert encode(2) == encode(1)
    assert encode(2)[5] == ([pair.source.ids(chunks[5][0]), pair.target.ids(chunks[5][1])], [])
    shares = HeldOutShares(dev=0.3, test=0.1)
    split = encode(2, shares)
    assert split == encode(1, shares)
    dev = [source for source in texts if shares.split_of(source) == "dev"]
    assert [pairs for _, pairs in split if pairs]
    assert [source for _, pairs in split for source, _ in pairs] == dev
    train = [source for source in texts if shares.split_of(source) == "train"]
    assert [ids for sides, _ in split for ids in sides[0]] == pair.source.ids(train)


@pytest.mark.slow
def test_workers_are_stopped_when_the_iterator_is_closed() -> None:
    pair = TokenizerPair.build(CharTokenizer(), ["abc"], ["abc"])
    stream = encode_parallel(pair, iter([[["a"], ["b"]]] * 9), processes=2)
    next(stream)
    assert isinstance(stream, Generator)
    stream.close()
    assert not any(b"tokens.workers" in command for command in commands_of_children())


def commands_of_children() -> Iterator[bytes]:
    """Yield the command line of each child process, from /proc because `ps` may not be installed."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process has ended
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == os.getpid():
                yield (entry / "cmdline").read_bytes()


@pytest.mark.slow
def test_a_large_corpus_is_tokenized_by_many_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "_CHUNK", 40)
    settings = write_data(tmp_path, pairs=400)
    processes: list[int] = []

    def record_processes(*args: Any) -> Any:
        processes.append(args[2])
        return encode_parallel(*args)

    monkeypatch.setattr(preparation, "encode_parallel", record_processes)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    prepared = prepare(settings)
    assert processes == [3]
    in_memory = EncodedCorpus.of(load_corpus(settings).train, prepared.reader, prepared.tokenizers.target, 1_000)
    rows = list(range(len(in_memory)))
    assert prepared.train.targets.rows.take(rows).rows() == in_memory.targets.rows.take(rows).rows()
    assert prepared.dev == Pairs.of(load_corpus(settings).dev)


def test_subwords_of_a_large_corpus_are_learned_from_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "_PAIRS_PER_SUBWORD", 1)
    counts: list[int] = []
    build = TokenizerPair.build

    def record_count(settings: Any, sources: Any, targets: Any) -> TokenizerPair:
        listed = list(sources)
        counts.append(len(listed))
        return build(settings, listed, targets)

    monkeypatch.setattr(TokenizerPair, "build", record_count)
    prepare(write_data(tmp_path, pairs=200), tokenizer=BPETokenizer(vocabulary=60))
    prepare(write_data(tmp_path, pairs=200))
    assert counts[0] in range(30, 61)
    assert counts[1] > 150


def test_tags_are_collected_from_all_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "_PAIRS_PER_SUBWORD", 1)
    lines = [f"{number}\tT{number % 7}\t{number}\n" for number in range(200)]
    (tmp_path / "tagged.tsv").write_text("".join(lines))
    settings = resolve(FilesData, {"train": {"path": str(tmp_path / "tagged.tsv"), "columns": ["1+2", 3]}}, {})
    tokenizer = prepare(settings, tokenizer=BPETokenizer(vocabulary=40, tags=True)).tokenizers.source
    assert not any(tokenizer.find_unknown([f"1\tT{number}" for number in range(7)]))


@pytest.mark.parametrize("side", ["sources", "targets"])
def test_sampled_rows_are_truncated_to_max_length(tmp_path: Path, side: str) -> None:
    prepared = prepare(
        write_data(tmp_path, pairs=200), tokenizer=BPETokenizer(vocabulary=60, dropout=0.9, max_length=4)
    )
    rows = getattr(prepared.train, side).rows.take(range(len(prepared.train)), 3).rows()
    assert max(map(len, rows)) == 4 + (side == "targets")
    if side == "targets":
        assert all(row[-1] == END and END not in row[:-1] for row in rows)
        assert prepared.train.count_target_tokens(range(len(rows)), 3) == sum(map(len, rows))
