"""Corpus jobs: every line once and in order, whatever happens to the workers, the job and the input."""

import gzip
import json
import os
import random
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from regard.api.line_prediction import LineOptions, PredictionCounts
from regard.cluster.block_predictor import BlockPredictor, BlockRequest, BlockResponse, WorkerSettings
from regard.cluster.corpus import CorpusInput, InputState, Job, find_inputs, read_blocks, run_job
from regard.cluster.job_folder import FAILURES, WORK, OutputFile, open_job_folder, write_failures
from regard.cluster.pools import InProcess, Pool, Worker, WorkerDied
from regard.decoding.settings import SearchSettings
from regard.errors import ConfigError, DataError, Interrupted, ModelError, RegardError, ResourceError, RunInUseError
from regard.runs.folder import RunFolder
from regard.training.signals import StopRequest

Run = Callable[..., subprocess.CompletedProcess[str]]
OPTIONS = LineOptions(search=SearchSettings())
IDENTITY = {"model": ["m"], "beam": 1}


def reverse(request: BlockRequest) -> BlockResponse:
    """Predict each line as its reverse."""
    problems = dict(request["problems"])
    lines = ["" if index in problems else line[::-1] for index, line in enumerate(request["lines"])]
    counts = PredictionCounts(sources=len(lines))
    text = "".join(f"{line}\n" for line in lines)
    return {"text": text, "problems": request["problems"], "counts": asdict(counts), "notes": []}


class FakeWorker(Worker):
    def __init__(self, predict: Callable[[BlockRequest], BlockResponse], load: Callable[[], None]) -> None:
        self._predict, self._load = predict, load

    def load(self) -> None:
        self._load()

    def predict(self, request: BlockRequest) -> BlockResponse:
        return self._predict(request)

    def kill(self) -> None:
        pass

    def close(self) -> None:
        pass


class FakePool(Pool):
    """Workers that reverse lines, or fail as a test requires. It counts the lines and the workers."""

    def __init__(
        self,
        predict: Callable[[BlockRequest], BlockResponse] = reverse,
        size: int = 2,
        load: Callable[[], None] = lambda: None,
    ) -> None:
        self._predict, self.size, self._load = predict, size, load
        self.firsts: list[int] = []
        self.started = 0

    def start(self, index: int) -> Worker:
        del index
        self.started += 1
        return FakeWorker(self._count, self._load)

    def _count(self, request: BlockRequest) -> BlockResponse:
        self.firsts.append(request["first"])
        return self._predict(request)

    def close(self) -> None:
        pass


def write_lines(path: Path, count: int) -> list[str]:
    path.parent.mkdir(exist_ok=True)
    lines = [f"{path.name} {number}" if number % 7 else "" for number in range(count)]
    content = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return lines


def run(folder: Path, pool: Pool, pattern: str = "in/*", block_lines: int = 10, stop: bool = False) -> Job:
    """Run a job with the files of a folder, as the command does."""
    request = StopRequest(by=signal.SIGINT if stop else None, deferred=True)
    with open_job_folder(folder / "out", IDENTITY) as out:
        job = Job.open(out, find_inputs([str(folder / pattern)]), OPTIONS, block_lines=block_lines)
        try:
            run_job(job, pool, request)
        finally:
            write_failures(out, job.list_failures())
    return job


def read(path: Path) -> list[str]:
    content = path.read_bytes()
    return (gzip.decompress(content) if path.suffix == ".gz" else content).decode().split("\n")[:-1]


def read_failures(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "out" / FAILURES).read_text().splitlines()]


def test_each_file_has_an_output_with_the_same_name_and_its_lines_in_order(tmp_path: Path) -> None:
    written = {name: write_lines(tmp_path / "in" / name, count) for name, count in
               {"a.txt": 95, "b.txt.gz": 40, "none.txt": 0, "none.gz": 0, "one": 1}.items()}  # fmt: skip
    job = run(tmp_path, FakePool(size=3))
    for name, lines in written.items():
        assert read(tmp_path / "out" / name) == [line[::-1] for line in lines]
    assert job.count().sources == sum(map(len, written.values()))
    assert not (tmp_path / "out" / FAILURES).exists()
    assert not list((tmp_path / "out" / WORK).glob("*.data"))


def test_a_stopped_job_resumes_without_repeating_finished_blocks(tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "in" / "a.txt", 100)
    pool = FakePool(size=1)

    def stop_at_the_fifth(request: BlockRequest) -> BlockResponse:
        if request["first"] == 40:
            raise ResourceError("the disk of the worker is full")
        return reverse(request)

    with pytest.raises(ResourceError):
        run(tmp_path, FakePool(stop_at_the_fifth, size=1))
    assert not (tmp_path / "out" / "a.txt").exists()
    run(tmp_path, pool)
    assert pool.firsts == [40, 50, 60, 70, 80, 90]
    assert read(tmp_path / "out" / "a.txt") == [line[::-1] for line in lines]
    again = FakePool()
    run(tmp_path, again)
    assert not again.started


def test_a_new_input_is_added_to_a_finished_job(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.txt", 30)
    run(tmp_path, FakePool())
    lines = write_lines(tmp_path / "in" / "b.txt", 20)
    pool = FakePool()
    run(tmp_path, pool)
    assert sorted(pool.firsts) == [0, 10]
    assert read(tmp_path / "out" / "b.txt") == [line[::-1] for line in lines]


def test_a_signal_stops_the_job_and_the_message_says_how_to_resume(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.txt", 30)
    with pytest.raises(Interrupted, match=r"Stopped by SIGINT. 0 of 1 file and \d+ lines are finished. Run the same"):
        run(tmp_path, FakePool(), stop=True)


def test_a_block_whose_worker_died_is_predicted_again(tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "in" / "a.txt", 60)
    deaths = Counter[int]()

    def die_once(request: BlockRequest) -> BlockResponse:
        deaths[request["first"]] += 1
        if deaths[request["first"]] == 1:
            raise WorkerDied("killed")
        return reverse(request)

    pool = FakePool(die_once)
    run(tmp_path, pool)
    assert pool.started >= 6
    assert read(tmp_path / "out" / "a.txt") == [line[::-1] for line in lines]
    assert not (tmp_path / "out" / FAILURES).exists()


def test_lines_that_kill_their_worker_are_found_and_the_others_are_predicted(tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "in" / "a.txt", 64)
    deadly = {17, 18, 41}

    def die(request: BlockRequest) -> BlockResponse:
        if deadly & set(range(request["first"], request["first"] + len(request["lines"]))):
            raise WorkerDied("out of memory.")
        return reverse(request)

    run(tmp_path, FakePool(die), block_lines=32)
    expected = ["" if number in deadly else line[::-1] for number, line in enumerate(lines)]
    assert read(tmp_path / "out" / "a.txt") == expected
    failures = read_failures(tmp_path)
    assert [failure["line"] for failure in failures] == [number + 1 for number in sorted(deadly)]
    assert failures[0]["reason"] == "Workers died when they predicted this line. out of memory."


@pytest.mark.parametrize("loading", [True, False])
def test_a_job_ends_if_all_workers_die(tmp_path: Path, loading: bool) -> None:
    write_lines(tmp_path / "in" / "a.txt", 2_000)

    def die(*_: object) -> Any:
        raise WorkerDied("killed.")

    pool = FakePool(load=die) if loading else FakePool(die)
    with pytest.raises(ResourceError, match=r"workers died, one after the other.*The last one: killed. Use fewer"):
        run(tmp_path, pool, block_lines=2_000)
    assert pool.started < 50


def test_lines_that_cannot_be_read_are_listed_and_the_others_are_predicted(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_bytes(b"abc\n\xff\xfeq\ndef\n" + b"x" * 600_000 + b"\nend\n")
    run(tmp_path, FakePool(), block_lines=2)
    assert read(tmp_path / "out" / "a.txt") == ["cba", "", "fed", "", "dne"]
    failures = read_failures(tmp_path)
    assert [(os.path.basename(each["file"]), each["line"]) for each in failures] == [("a.txt", 2), ("a.txt", 4)]
    assert "is not UTF-8" in failures[0]["reason"]
    assert "is longer than" in failures[1]["reason"]


def test_invalid_bytes_are_replaced_if_this_is_requested(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"a\xffb\n\0\n")
    with open_job_folder(tmp_path / "out", IDENTITY) as folder:
        state = InputState(CorpusInput(str(tmp_path / "a.txt"), "a.txt"), OutputFile(folder, "a.txt"))
        [block] = read_blocks(state, 10, replace_invalid=True)
    assert block.request["lines"] == ["a\ufffdb", ""]
    assert [index for index, _ in block.request["problems"]] == [1]


def test_a_damaged_file_does_not_stop_the_others_and_is_read_again_when_it_is_repaired(tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "in" / "a.txt.gz", 5_000)
    other = write_lines(tmp_path / "in" / "b.txt", 25)
    content = (tmp_path / "in" / "a.txt.gz").read_bytes()
    (tmp_path / "in" / "a.txt.gz").write_bytes(content[:-100])
    job = run(tmp_path, FakePool(), block_lines=100)
    assert [state.failure is None for state in job.states] == [False, True]
    assert read(tmp_path / "out" / "b.txt") == [line[::-1] for line in other]
    assert not (tmp_path / "out" / "a.txt.gz").exists()
    [failure] = read_failures(tmp_path)
    assert failure["line"] is None
    assert "damaged gzip file" in failure["reason"]
    (tmp_path / "in" / "a.txt.gz").write_bytes(content)
    run(tmp_path, FakePool(), block_lines=100)
    assert read(tmp_path / "out" / "a.txt.gz") == [line[::-1] for line in lines]
    assert not (tmp_path / "out" / FAILURES).exists()


@pytest.mark.parametrize("change", ["other line", "removed lines", "added lines"])
@pytest.mark.parametrize("finished", [True, False])
def test_an_input_that_has_changed_since_the_job_was_started_is_an_error(
    tmp_path: Path, change: str, finished: bool
) -> None:
    source = tmp_path / "in" / "a.txt"
    lines = write_lines(source, 50)
    predict = partial(fail_at, 30) if not finished else reverse
    try:
        run(tmp_path, FakePool(predict, size=1))
    except ResourceError:
        assert not finished
    changed = {"other line": ["x", *lines[1:]], "removed lines": lines[:20], "added lines": [*lines, "x"]}[change]
    source.write_text("".join(f"{line}\n" for line in changed))
    job = run(tmp_path, FakePool())
    if change == "added lines" and not finished:  # the first blocks are the same
        assert read(tmp_path / "out" / "a.txt") == [line[::-1] for line in changed]
    else:
        assert "in/a.txt has changed since the job was started" in str(job.states[0].failure)


def fail_at(first: int, request: BlockRequest) -> BlockResponse:
    if request["first"] == first:
        raise ResourceError("the disk is full")
    return reverse(request)


def test_an_input_that_was_touched_but_not_changed_is_not_predicted_again(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.txt", 50)
    run(tmp_path, FakePool())
    os.utime(tmp_path / "in" / "a.txt", (1, 1))
    pool = FakePool()
    job = run(tmp_path, pool)
    assert not pool.started
    assert job.states[0].failure is None


def test_an_output_that_was_removed_is_predicted_again(tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "in" / "a.txt", 50)
    run(tmp_path, FakePool())
    (tmp_path / "out" / "a.txt").unlink()
    run(tmp_path, FakePool())
    assert read(tmp_path / "out" / "a.txt") == [line[::-1] for line in lines]


def test_a_file_of_another_origin_is_not_overwritten(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.txt", 5)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.txt").write_text("precious")
    with pytest.raises(ConfigError, match="exists, and this job did not write it"):
        run(tmp_path, FakePool())
    assert (tmp_path / "out" / "a.txt").read_text() == "precious"
    write_lines(tmp_path / "out" / "b.txt", 5)
    with pytest.raises(ConfigError, match="is an input itself"):
        run(tmp_path, FakePool(), "out/b.txt")


def test_a_folder_has_one_job_at_a_time_and_one_identity(tmp_path: Path) -> None:
    with open_job_folder(tmp_path, IDENTITY), pytest.raises(RunInUseError, match="another process writes"):
        open_job_folder(tmp_path, IDENTITY).__enter__()
    with pytest.raises(ConfigError, match="different options: beam was 1 and is now 4"):
        open_job_folder(tmp_path, {**IDENTITY, "beam": 4}).__enter__()
    with pytest.raises(ConfigError, match="another model"):
        open_job_folder(tmp_path, {**IDENTITY, "model": ["other"]}).__enter__()
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written to"):
        open_job_folder(tmp_path / "file" / "out", IDENTITY).__enter__()


def test_a_torn_index_or_lost_data_costs_only_the_blocks_concerned(tmp_path: Path) -> None:
    request: BlockRequest = {"first": 0, "lines": ["abc"], "problems": []}
    with open_job_folder(tmp_path, IDENTITY) as folder:
        output = OutputFile(folder, "a.txt")
        for number in range(3):
            output.add(number, f"{number}", number, reverse(request))
        output.close()
        index, data = (tmp_path / WORK / f"a.txt.{suffix}" for suffix in ("index", "data"))
        complete = index.read_bytes()
        index.write_bytes(complete[:-10])
        assert set(OutputFile(tmp_path, "a.txt").blocks) == {0, 1}
        index.write_bytes(complete)
        os.truncate(data, 5)
        reopened = OutputFile(tmp_path, "a.txt")
        assert set(reopened.blocks) == {0}
        for number in (2, 1):
            reopened.add(number, f"{number}", number, reverse({**request, "lines": [f"line {number}"]}))
        reopened.finish(3, None)
    assert read(tmp_path / "a.txt") == ["cba", "1 enil", "2 enil"]


def test_blocks_do_not_depend_on_what_is_finished_and_long_lines_make_short_blocks(tmp_path: Path) -> None:
    source = tmp_path / "a.txt"
    source.write_text("".join("x" * 500_000 + "\n" for _ in range(20)) + "short\n" * 7)
    with open_job_folder(tmp_path / "out", IDENTITY) as folder:
        state = InputState(CorpusInput(str(source), "a.txt"), OutputFile(folder, "a.txt"))
        blocks = list(read_blocks(state, 100, replace_invalid=False))
    assert [len(block.request["lines"]) for block in blocks] == [9, 9, 9]
    assert [block.request["first"] for block in blocks] == [0, 9, 18]
    assert [block.size for block in blocks] == [9 * 500_001, 9 * 500_001, 2 * 500_001 + 7 * 6]


def test_the_sizes_of_blocks_add_up_to_the_size_of_a_compressed_file(tmp_path: Path) -> None:
    rng = random.Random(1)
    content = "".join(f"{rng.random()}\n" for _ in range(50_000)).encode()
    (tmp_path / "a.gz").write_bytes(gzip.compress(content))
    with open_job_folder(tmp_path / "out", IDENTITY) as folder:
        state = InputState(CorpusInput(str(tmp_path / "a.gz"), "a.gz"), OutputFile(folder, "a.gz"))
        sizes = [block.size for block in read_blocks(state, 1_000, replace_invalid=False)]
    assert sum(sizes) == pytest.approx((tmp_path / "a.gz").stat().st_size, rel=0.2)
    assert max(sizes) < 2 * min(sizes)


def test_inputs_are_files_folders_and_patterns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("in/b.txt", "in/a.txt", "in/c.csv", "in/.hidden", "other/a.txt", "in/[x].txt"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("x\n")
    assert [each.name for each in find_inputs(["in/*.txt"])] == ["[x].txt", "a.txt", "b.txt"]
    assert [each.name for each in find_inputs(["in/"])] == ["[x].txt", "a.txt", "b.txt", "c.csv"]
    assert [each.path for each in find_inputs(["in/[x].txt", "in/c.csv", "in/c.csv"])] == ["in/[x].txt", "in/c.csv"]
    assert [each.name for each in find_inputs(["-"])] == ["stdin.txt"]
    for pattern, message in {"in/*.gz": "no file matches", "missing.txt": "no file matches"}.items():
        with pytest.raises(DataError, match=message):
            find_inputs([pattern])
    Path("empty").mkdir()
    with pytest.raises(DataError, match="the folder contains no files"):
        find_inputs(["empty"])
    with pytest.raises(ConfigError, match=r"in/a.txt and other/a.txt have the same name"):
        find_inputs(["in/*.txt", "other/a.txt"])
    Path("in", FAILURES).write_text("x\n")
    with pytest.raises(ConfigError, match=r"must not be named failures.jsonl"):
        find_inputs(["in"])


@contextmanager
def failing_at(word: str, monkeypatch: pytest.MonkeyPatch, error: Exception) -> Iterator[None]:
    """Within the block, prediction raises an error if a source contains a word."""
    from regard.data.source_readers import TextReader

    read = TextReader.read

    def read_or_fail(self: TextReader, sources: Any) -> Any:
        if any(word in source for source in sources):
            raise error
        return read(self, sources)

    with monkeypatch.context() as patch:
        patch.setattr(TextReader, "read", read_or_fail)
        yield


def test_a_line_for_which_prediction_fails_is_isolated(small_run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    [checkpoint] = {small_run.best().path.name}
    settings = WorkerSettings(models=((str(small_run.path), checkpoint),), options=OPTIONS)
    predictor = BlockPredictor(settings)
    lines = [f"{number} mai 2009" for number in range(1, 12)]
    request: BlockRequest = {"first": 0, "lines": lines, "problems": [(2, "not UTF-8")]}
    whole = predictor.predict(request)
    with failing_at("5 mai", monkeypatch, RuntimeError("bad kernel")):
        partly = predictor.predict(request)
    expected = whole["text"].split("\n")
    expected[4] = ""
    assert partly["text"].split("\n") == expected
    assert partly["problems"] == [(2, "not UTF-8"), (4, "RuntimeError: bad kernel")]
    with (
        failing_at("mai", monkeypatch, RuntimeError("bad kernel")),
        pytest.raises(ModelError, match="each of 10 lines"),
    ):
        predictor.predict(request)
    with failing_at("5 mai", monkeypatch, ConfigError("wrong option")), pytest.raises(ConfigError, match="wrong"):
        predictor.predict(request)


def test_the_command_writes_the_predictions_of_regard_predict(cli: Run, small_run: RunFolder, tmp_path: Path) -> None:
    lines = [f"{number % 28} mai {1900 + number % 150}" for number in range(70)]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt.gz").write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    search = ["--set", "sample=true", "--nbest", "2"]
    plain = cli("predict", small_run.path, *search, stdin="\n".join(lines))
    job = ["predict", small_run.path, "--input", "in/*.gz", "--output", "out", "--block-lines", "32"]
    done = cli(*job, *search)
    assert done.returncode == 0, done.stderr
    assert read(tmp_path / "out" / "a.txt.gz") == plain.stdout.split("\n")[:-1]
    assert "70 lines of 1 file are predicted in out." in done.stderr
    other = cli(*job, "--nbest", "3")
    assert other.returncode == 2
    assert "nbest was 2 and is now 3" in other.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--input", "a"], "must be used together"),
        (["--output", "a", "text"], "must be used together"),
        (["--workers", "2", "text"], "need --input and --output"),
        (["--input", "*.gz", "--output", "out"], "no file matches"),
    ],
)
def test_wrong_options_are_rejected_before_the_model_is_loaded(options: list[str], message: str) -> None:
    import click

    from regard.cli.predict import command

    with pytest.raises((click.UsageError, RegardError), match=message):
        command.main(["missing-model", *options], standalone_mode=False)


def test_one_worker_in_the_process_of_the_job_is_the_default(small_run: RunFolder, tmp_path: Path) -> None:
    settings = WorkerSettings(models=((str(small_run.path), small_run.best().path.name),), options=OPTIONS)
    write_lines(tmp_path / "in" / "a.txt", 15)
    run(tmp_path, InProcess(settings))
    assert len(read(tmp_path / "out" / "a.txt")) == 15
