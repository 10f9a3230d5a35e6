"""The cache: made once, the same as in memory, made anew when anything changes, and never trusted half written."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.config import resolve
from regard.data import cache, preparation
from regard.data.batching import EncodedCorpus
from regard.data.corpora import load_corpus
from regard.data.files import Files
from regard.data.ragged import Ragged, RaggedFile, map_ragged
from regard.data.settings import BPETokenizer, CharTokenizer, FilesData, TokenizerSettings
from regard.data.tokens.tokenizers import END, TokenizerPair
from regard.data.tokens.workers import encode_parallel
from regard.errors import DataError, ResourceError
from regard.runs.settings import RunSettings

ROWS = st.lists(st.lists(st.integers(0, 70_000), max_size=5), max_size=8)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def data(tmp_path: Path, pairs: int = 60) -> FilesData:
    path = tmp_path / "train.tsv"
    path.write_text("".join(f"word{n}\tWORD{n}\n" for n in range(pairs)))
    return FilesData(train=Files(path=str(path)))


def prepared(
    settings: FilesData,
    said: list[str] | None = None,
    tokenizer: TokenizerSettings = CharTokenizer(),  # noqa: B008 - frozen
    seed: int = 0,
) -> preparation.PreparedData:
    corpus = load_corpus(settings)
    request = preparation.PreparationRequest(corpus, corpus.fingerprint(), settings, tokenizer, seed)
    return preparation.prepare(request, None, (said if said is not None else []).append)


@given(rows=ROWS, picked=st.data())
def test_rows_are_taken_as_a_list_would_give_them(rows: list[list[int]], picked: st.DataObject) -> None:
    ragged = Ragged.of(rows)
    places = picked.draw(st.lists(st.integers(0, len(rows) - 1), max_size=6)) if rows else []
    taken = ragged.take(places)
    assert [taken[index].tolist() for index in range(len(taken))] == [rows[place] for place in places]
    assert ragged.lengths.tolist() == [len(row) for row in rows]


@given(rows=ROWS, longest=st.integers(0, 6), end=st.none() | st.integers(0, 9))
def test_rows_are_cut_and_ended(rows: list[list[int]], longest: int, end: int | None) -> None:
    found = Ragged.of(rows).truncate(longest, end).rows()
    assert found == [[*row[:longest], *([] if end is None else [end])] for row in rows]


@pytest.mark.parametrize(("largest", "width"), [(65_535, np.uint16), (65_536, np.uint32)])
def test_rows_come_back_from_the_disk_in_as_few_bytes_as_hold_them(tmp_path: Path, largest: int, width: type) -> None:
    with RaggedFile(tmp_path, "x", largest) as file:
        file.write(Ragged.of([[1, largest - 1], []]))
        file.write(Ragged.of([[7]]))
    mapped = map_ragged(tmp_path, "x")
    assert [mapped[index].tolist() for index in range(3)] == [[1, largest - 1], [], [7]]
    assert mapped.flat.dtype == width


def test_nothing_at_all_can_be_written_and_mapped(tmp_path: Path) -> None:
    with RaggedFile(tmp_path, "x", 10):
        pass
    assert len(map_ragged(tmp_path, "x")) == 0


def test_what_is_mapped_is_what_memory_would_hold(tmp_path: Path) -> None:
    settings = data(tmp_path)
    found = prepared(settings)
    corpus = load_corpus(settings)
    held = EncodedCorpus.of(corpus.train, found.tokenizers, 1_000)
    assert len(found.train) == len(held) > 0
    for index in range(len(held)):
        assert found.train.sources[index].tolist() == held.sources[index].tolist()
        assert found.train.targets[index].tolist() == held.targets[index].tolist()
        assert found.train.targets[index][-1] == END
    assert list(found.dev) == list(corpus.dev)


def test_a_corpus_is_tokenized_once(tmp_path: Path) -> None:
    settings = data(tmp_path)
    first: list[str] = []
    again: list[str] = []
    prepared(settings, first)
    prepared(settings, again)
    assert [line.split()[0] for line in first] == ["Tokenizer", "Corpus"]
    assert again == []


def test_another_file_another_entry(tmp_path: Path) -> None:
    before = prepared(data(tmp_path))
    after = prepared(data(tmp_path, pairs=61))
    assert len(after.train) + len(after.dev) == len(before.train) + len(before.dev) + 1


@pytest.mark.parametrize("harm", ["cut", "flip", "remove", "forget"])
def test_an_entry_that_is_not_whole_is_made_anew(tmp_path: Path, own_cache: Path, harm: str) -> None:
    settings = data(tmp_path)
    expected = prepared(settings).train.sources.flat.tolist()
    [ids] = (own_cache / "corpora").glob("*/source.uint16")
    if harm == "cut":
        ids.write_bytes(ids.read_bytes()[:-2])
    elif harm == "flip":
        ids.write_bytes(bytes([ids.read_bytes()[0] ^ 1]) + ids.read_bytes()[1:])
    elif harm == "remove":
        ids.unlink()
    else:
        (ids.parent / "manifest.json").unlink()
    said: list[str] = []
    assert prepared(settings, said).train.sources.flat.tolist() == expected
    assert len(said) == 1


def test_without_the_hash_a_flipped_byte_would_be_learned_from(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = data(tmp_path)
    expected = prepared(settings).train.sources.flat.tolist()
    [ids] = (own_cache / "corpora").glob("*/source.uint16")
    ids.write_bytes(bytes([ids.read_bytes()[0] ^ 1]) + ids.read_bytes()[1:])

    def trust(path: Path) -> str:
        listed: dict[str, str] = json.loads((path.parent / "manifest.json").read_text())
        return listed[path.name]

    monkeypatch.setattr(cache, "sha256", trust)
    assert prepared(settings).train.sources.flat.tolist() != expected


SLOW = """
import sys, time
from regard.data.cache import get_or_build

def build(place):
    (place / "first").write_text("first")
    print("building", flush=True)
    time.sleep(float(sys.argv[2]))
    (place / "last").write_text("last")

print(get_or_build("corpora", sys.argv[1], build), flush=True)
"""


def building(key: str, seconds: float) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", SLOW, key, str(seconds)], stdout=subprocess.PIPE, text=True)


def test_of_two_processes_one_works_and_the_other_waits_for_it(own_cache: Path) -> None:
    processes = [building("key", 0.5) for _ in range(3)]
    said = [process.communicate(timeout=60)[0].splitlines() for process in processes]
    assert sorted(len(lines) for lines in said) == [1, 1, 2]
    assert {lines[-1] for lines in said} == {str(own_cache / "corpora" / "key")}
    assert [entry.name for entry in (own_cache / "corpora").iterdir()] == ["key"]
    assert (own_cache / "corpora" / "key" / "last").read_text() == "last"


def test_a_process_killed_while_it_writes_leaves_no_entry_and_its_remains_go(own_cache: Path) -> None:
    killed, alive = building("killed", 60), building("alive", 1.5)
    for process in (killed, alive):
        assert process.stdout is not None
        assert process.stdout.readline() == "building\n"
    killed.kill()
    killed.communicate()
    assert not (own_cache / "corpora" / "killed").exists()
    cache.get_or_build("corpora", "other", lambda _: None)
    assert sorted(entry.name for entry in (own_cache / "corpora").iterdir()) == [".alive", "other"]
    assert alive.communicate(timeout=60)[0] == f"{own_cache / 'corpora' / 'alive'}\n"
    again = building("killed", 0)
    assert again.communicate(timeout=60)[0].splitlines()[0] == "building"
    names = sorted(entry.name for entry in (own_cache / "corpora" / "killed").iterdir())
    assert names == ["first", "last", "manifest.json"]


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """A limit on the size of files stands in for a full disk: the same calls fail in the same places."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_full_disk_is_told_wherever_the_cache_is_being_written(
    tmp_path: Path, own_cache: Path, dropout: float
) -> None:
    settings, bpe = data(tmp_path, pairs=1_000), BPETokenizer(vocabulary=100, dropout=dropout, segmentations=4)
    prepared(settings, tokenizer=bpe)
    sizes = sorted({path.stat().st_size for path in own_cache.glob("*/*/*")})
    assert len(sizes) >= 7
    for size in sizes:
        for kind in ("tokenizers", "corpora"):
            for entry in (own_cache / kind).iterdir():
                (entry / "manifest.json").unlink()
        with (
            largest_file(size - 1),
            pytest.raises(ResourceError, match=r"could not be written: File too large.*REGARD_CACHE"),
        ):
            prepared(settings, tokenizer=bpe)
        assert not list(own_cache.glob("*/.*"))
        prepared(settings, tokenizer=bpe)


def test_a_file_that_changes_while_it_is_read_is_told_and_nothing_is_kept(tmp_path: Path, own_cache: Path) -> None:
    settings = data(tmp_path)
    path = Path(str(settings.train.path))

    class Meddler(list[str]):
        def append(self, said: str) -> None:
            super().append(said)
            path.write_text(path.read_text() + "one\tmore\n")

    with pytest.raises(DataError, match=r"train.tsv changed while it was read"):
        prepared(settings, Meddler())
    assert list((own_cache / "corpora").iterdir()) == []


def test_a_build_that_fails_leaves_nothing(own_cache: Path) -> None:
    def fail(place: Path) -> None:
        (place / "half").write_text("half")
        raise DataError("bad line")

    with pytest.raises(DataError):
        cache.get_or_build("corpora", "key", fail)
    assert list((own_cache / "corpora").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "file" / "below"))
    assert len(prepared(data(tmp_path)).train)
    assert "for this run only" in caplog.text


def test_too_few_pairs_to_hold_any_back_are_told(tmp_path: Path) -> None:
    path = tmp_path / "one.tsv"
    path.write_text("a\tb\n")
    with pytest.raises(DataError, match=r"one.tsv has 1 pair, too few .* Give dev files"):
        prepared(FilesData(train=Files(path=str(path))))


def test_the_cache_goes_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("REGARD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_folder() == tmp_path / "regard"
    assert cache.cache_key({"b": 1, "a": 2}) == cache.cache_key(json.loads('{"a": 2, "b": 1}'))


def test_sampled_segmentations_differ_between_epochs_and_seeds_and_always_read_the_same(tmp_path: Path) -> None:
    settings = data(tmp_path, pairs=200)
    bpe = BPETokenizer(vocabulary=60, dropout=0.5)
    found = prepared(settings, tokenizer=bpe)
    rows = list(range(len(found.train)))
    decode = found.tokenizers.target.decode
    expected = [target for _, target in load_corpus(settings).train]
    seen = []
    for epoch in range(3):
        batch = found.train.targets.take(rows, epoch)
        assert [decode(ids[:-1]) for ids in batch.rows()] == expected
        assert all(ids[-1] == END for ids in batch.rows())
        seen.append(batch.flat.tolist())
    assert seen[0] != seen[1] != seen[2]
    assert found.train.targets.take(rows, 1).flat.tolist() == seen[1]
    assert prepared(settings, tokenizer=bpe, seed=1).train.targets.take(rows, 1).flat.tolist() != seen[1]
    # A pair is segmented in the same way whatever stands beside it in the batch.
    assert found.train.targets.take([7], 1)[0].tolist() == found.train.targets.take(rows, 1)[7].tolist()
    assert abs(found.train.targets.lengths.mean() - np.mean([len(flat) for flat in seen]) / len(rows)) < 1


def test_only_the_side_that_is_asked_for_is_sampled(tmp_path: Path) -> None:
    found = prepared(data(tmp_path), tokenizer=BPETokenizer(vocabulary=60, dropout=0.5, sampled="source"))
    assert isinstance(found.train.targets, Ragged)
    assert not isinstance(found.train.sources, Ragged)


@pytest.mark.parametrize("kind", ["char", "bpe", "unigram"])
def test_many_processes_find_the_ids_that_one_does(kind: str) -> None:
    texts = [f"word{n} over the lazy dog {n % 7}" for n in range(300)]
    settings = resolve(RunSettings, "dates", {"tokenizer": kind, "tokenizer.shared": False}).tokenizer
    if kind != "char":
        settings = settings.model_copy(update={"vocabulary": 80})
    pair = TokenizerPair.build(settings, texts, [text.upper() for text in texts])
    chunks = [[texts[at : at + 50], [text.upper() for text in texts[at : at + 50]]] for at in range(0, 300, 50)]
    found = [[side.rows() for side in chunk] for chunk in encode_parallel(pair, iter(chunks), processes=2)]
    assert found == [[side.rows() for side in chunk] for chunk in encode_parallel(pair, iter(chunks), processes=1)]
    assert found[5][0] == pair.source.ids(chunks[5][0])


def test_processes_that_tokenise_go_when_nobody_wants_more() -> None:
    pair = TokenizerPair.build(CharTokenizer(), ["abc"], ["abc"])
    stream = encode_parallel(pair, iter([[["a"], ["b"]]] * 9), processes=2)
    next(stream)
    stream.close()
    assert not any(b"tokens.workers" in command for command in commands_of_children())


def commands_of_children() -> Iterator[bytes]:
    """The command line of each child process, read from /proc: a bare machine has no `ps`."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == os.getpid():
                yield (entry / "cmdline").read_bytes()


def test_a_large_corpus_is_tokenized_by_many_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "_CHUNK", 40)
    settings = data(tmp_path, pairs=400)
    asked: list[int] = []
    whole = preparation.encode_parallel

    def watched(*arguments: Any) -> Any:
        asked.append(arguments[2])
        return whole(*arguments)

    monkeypatch.setattr(preparation, "encode_parallel", watched)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    found = prepared(settings)
    assert asked == [3]
    held = EncodedCorpus.of(load_corpus(settings).train, found.tokenizers, 1_000)
    rows = list(range(len(held)))
    assert found.train.targets.take(rows).rows() == held.targets.take(rows).rows()


def test_subwords_of_a_large_corpus_are_learned_from_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "_SAMPLE", 50)
    seen: list[int] = []
    whole = TokenizerPair.build

    def watched(settings: Any, sources: Any, targets: Any) -> TokenizerPair:
        listed = list(sources)
        seen.append(len(listed))
        return whole(settings, listed, targets)

    monkeypatch.setattr(TokenizerPair, "build", watched)
    prepared(data(tmp_path, pairs=200), tokenizer=BPETokenizer(vocabulary=60))
    prepared(data(tmp_path, pairs=200))
    assert seen[0] in range(35, 51)
    assert seen[1] > 150


@pytest.mark.parametrize("side", ["sources", "targets"])
def test_sampled_rows_are_no_longer_than_the_model_takes(tmp_path: Path, side: str) -> None:
    found = prepared(data(tmp_path, pairs=200), tokenizer=BPETokenizer(vocabulary=60, dropout=0.9, max_length=4))
    rows = getattr(found.train, side).take(range(len(found.train)), 3).rows()
    assert max(map(len, rows)) == 4 + (side == "targets")
    if side == "targets":
        assert all(row[-1] == END and END not in row[:-1] for row in rows)
