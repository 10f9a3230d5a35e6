"""Streaming input: low latency on a slow pipe, full batches on a fast one."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import regard
from regard.api import line_prediction
from regard.api.line_prediction import PAUSE, Chunk, LineOptions, LinePredictor, compute_ahead, read_chunks
from regard.data.settings import CharSide
from regard.data.source_readers import TextReader
from regard.data.tokens.tokenizers import Tokenizer
from regard.decoding.settings import SearchSettings
from regard.errors import ModelError
from regard.runs.folder import RunFolder
from tests_command import HANG, NOISE


@pytest.mark.slow
def test_predict_writes_each_line_of_a_pipe_before_the_input_ends(small_run: RunFolder) -> None:
    command = [sys.executable, "-m", "regard", "predict", str(small_run.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        limit = threading.Timer(HANG, process.kill)  # otherwise a missing line would block forever
        limit.start()
        for line in ("3 mai 2009", "", "May 3, 2009"):
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            output = process.stdout.readline()
            assert output.endswith("\n")
            assert bool(output.strip()) == bool(line)
        process.stdin.close()
        assert process.stdout.read() == ""
        assert process.wait(timeout=HANG) == 0
        limit.cancel()


@pytest.mark.slow
def test_predict_exits_if_its_reader_exits_while_the_input_stays_open(small_run: RunFolder) -> None:
    command = [sys.executable, "-m", "regard", "predict", str(small_run.path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.write("3 mai 2009\n")
        process.stdin.flush()
        assert process.wait(timeout=HANG) == 1
        assert NOISE.sub("", process.stderr.read()) == ""


@pytest.fixture
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """No item arrives too late, also on a loaded machine."""
    monkeypatch.setattr(line_prediction, "PAUSE", HANG)


@pytest.mark.usefixtures("_without_pauses")
def test_fast_input_fills_its_chunks() -> None:
    for blocks in ([range(10)], [[number] for number in range(10)], [range(3), range(3, 9), [], [9]]):
        assert list(read_chunks(blocks, 4)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert list(read_chunks([], 4)) == []


def test_a_pause_ends_a_chunk() -> None:
    resume = threading.Event()

    def blocks() -> Iterator[list[int]]:
        yield from ([1], [2])
        assert resume.wait(HANG)
        yield [3]

    chunks = read_chunks(blocks(), 4)
    received = next(chunks)
    while len(received) < 2:  # on a loaded machine, there can be a pause between any two items
        received += next(chunks)
    assert received == [1, 2]
    resume.set()
    assert list(chunks) == [[3]]


def test_slow_steady_input_does_not_delay_items() -> None:
    def blocks() -> Iterator[list[float]]:
        for _ in range(20):
            yield [time.monotonic()]
            time.sleep(PAUSE / 5)

    sizes = []
    for chunk in read_chunks(blocks(), 100):
        sizes.append(len(chunk))
    assert sum(sizes) == 20
    assert len(sizes) > 1


@pytest.mark.usefixtures("_without_pauses")
def test_items_before_a_failure_are_yielded_first() -> None:
    def blocks() -> Iterator[list[int]]:
        yield from ([1, 2], [3])
        raise ValueError("the third was the last")

    chunks = read_chunks(blocks(), 2)
    assert next(chunks) == [1, 2]
    assert next(chunks) == [3]
    with pytest.raises(ValueError, match="the last"):
        next(chunks)


def test_items_are_computed_one_ahead_and_in_order() -> None:
    computed = []

    def items() -> Iterator[int]:
        for number in range(5):
            computed.append(number)
            yield number
        raise ValueError("the fifth was the last")

    ahead = compute_ahead(items())
    assert [next(ahead) for _ in range(2)] == [0, 1]
    assert len(computed) <= 4  # two are used, one waits, and one is being computed
    assert [next(ahead) for _ in range(3)] == [2, 3, 4]
    with pytest.raises(ValueError, match="the last"):
        next(ahead)


def test_a_text_that_occurs_several_times_is_predicted_once_unless_it_is_sampled() -> None:
    reader = TextReader(Tokenizer.of(CharSide(), ["abc"]), 10)
    sources = ["a", "b", "a", "\udc80", "", "b"]
    once = Chunk.read(reader, sources, distinct=True)
    assert [item.label for item in once.items] == ["a", "b", ""]
    assert list(once.rows) == [0, 1, 0, None, 2, 1]
    assert [problem is None for problem in once.problems] == [True, True, True, False, True, True]
    each = Chunk.read(reader, sources, distinct=False)
    assert [item.label for item in each.items] == ["a", "b", "a", "", "b"]
    assert list(each.rows) == [0, 1, 2, None, 3, 4]


def test_closing_predictions_stops_the_search(small_run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search of the second chunk never ends by itself."""
    predictor = LinePredictor(regard.load(small_run.path), LineOptions(search=SearchSettings()))
    search_once, started = predictor._search, threading.Event()

    def search(chunk: Chunk, first_index: int) -> Any:
        found = search_once(chunk, first_index)
        while first_index:
            started.set()
            search_once(chunk, first_index)
        return found

    monkeypatch.setattr(predictor, "_search", search)
    predictions = predictor.predict(predictor.read(["3 mai 2009", "May 3, 2009"]) for _ in range(3))
    assert len(next(predictions).lines) == 2
    assert started.wait(HANG)
    closing = threading.Thread(target=predictions.close, daemon=True)
    closing.start()
    closing.join(HANG)
    assert not closing.is_alive()


def test_a_failure_of_the_search_is_raised(small_run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = LinePredictor(regard.load(small_run.path), LineOptions(search=SearchSettings()))

    def fail(chunk: Chunk, first_index: int) -> Any:
        raise ModelError(f"{len(chunk.sources)} sources from {first_index}")

    monkeypatch.setattr(predictor, "_search", fail)
    with pytest.raises(ModelError, match="1 sources from 7"):
        next(predictor.predict(iter([predictor.read(["3 mai 2009"])]), first_index=7))
