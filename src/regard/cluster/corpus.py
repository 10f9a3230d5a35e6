"""Corpus jobs: predict all lines of many files, in several processes or on the machines of a cluster.

A thread reads the files and splits them into blocks of lines. Each worker has a thread that sends it a block and waits
for the output. The main thread decides what happens next, and is the only one that writes: the output of a finished
block is stored at once (`job_folder.py`), and a file is written when all its blocks are finished.

If a worker dies, its block is predicted again by any worker. If that fails too, the block is split in halves, down to
the line that causes the failure.
"""

import glob
import hashlib
import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, final

from regard.api.line_prediction import LineOptions, PredictionCounts
from regard.cluster.block_predictor import BlockRequest, BlockResponse, WorkerSettings
from regard.cluster.job_folder import FAILURES, OutputFile, open_job_folder, write_failures
from regard.cluster.pools import InProcess, Pool, Worker, WorkerDied
from regard.data.lines import STANDARD_INPUT, Line, display_name, open_texts
from regard.errors import ConfigError, DataError, Interrupted, ResourceError
from regard.formatting import quantity, short_path
from regard.regular_files import read_regular
from regard.runs.events import CountDisplay
from regard.runs.folder import RunFolder
from regard.runs.stored_checkpoint import Checkpoint
from regard.training.signals import StopRequest, stop_on_signals
from regard.urls import is_url

log = logging.getLogger(__name__)

BLOCK_LINES = 2048
"""The default number of lines of a block: several batches, and a loss of seconds or minutes if a worker dies."""

_BLOCK_CHARACTERS = 1 << 22
"""A block ends after this number of characters, whatever its lines."""

_TICK = 0.25
"""The longest time, in seconds, between two looks at the clock and at signals."""

_PAUSE = 0.5
"""The time, in seconds, before another worker is started for one that could not be loaded."""

_STOP_SECONDS = 5.0
"""The longest time to wait for the threads of a job that ends. They end with the process."""

_SECONDS_PER_LINE = 30.0
"""The time between two lines about the progress if stderr is not a terminal."""

_MAX_DEATHS = 24
"""If this number of workers die, plus three for each worker of the pool, while no block is finished, the job ends."""


class CorpusInput(NamedTuple):
    """An input file, and the name of its output file."""

    path: str
    name: str

    @property
    def version(self) -> list[int] | None:
        """The size and the modification time of a regular file; None for a stream."""
        if self.path == STANDARD_INPUT or not os.path.isfile(self.path):
            return None
        status = os.stat(self.path)
        return [status.st_size, status.st_mtime_ns]


def find_inputs(patterns: Sequence[str]) -> list[CorpusInput]:
    """Return the files that match the patterns: names of files or folders, patterns with wildcards, or `-`.

    Raise DataError if there is no file for a pattern, and ConfigError if two files have the same name.
    """
    inputs: dict[str, CorpusInput] = {}
    for path in dict.fromkeys(path for pattern in patterns for path in _expand(pattern)):
        name = "stdin.txt" if path == STANDARD_INPUT else os.path.basename(path)
        other = inputs.setdefault(name, CorpusInput(path, name))
        if other.path != path:
            raise ConfigError(
                f"--input: {short_path(other.path)} and {short_path(path)} have the same name, so their predictions "
                "would be written to the same file. Predict them into different folders, or rename one."
            )
    if FAILURES in inputs:
        raise ConfigError(f"--input: an input must not be named {FAILURES}, which lists the failures. Rename it.")
    return list(inputs.values())


def _expand(pattern: str) -> list[str]:
    """Return the files that a pattern stands for, in order."""
    if pattern == STANDARD_INPUT:
        return [pattern]
    if is_url(pattern) and "*" in pattern:
        raise ConfigError(f"--input {pattern}: patterns are not supported in URLs. Repeat --input for each file.")
    if is_url(pattern) or os.path.isfile(pattern):
        return [pattern]
    if os.path.isdir(pattern):
        entries = sorted(os.scandir(pattern), key=lambda entry: entry.name)
        found = [entry.path for entry in entries if entry.is_file() and not entry.name.startswith(".")]
        problem = "the folder contains no files"
    elif os.path.exists(pattern):
        return [pattern]  # a pipe
    else:
        found = [path for path in sorted(glob.glob(pattern, recursive=True)) if os.path.isfile(path)]
        problem = "no file matches"
    if not found:
        raise DataError(f"--input {pattern}: {problem}. Check the path; quote a pattern so that the shell keeps it.")
    return found


class Block(NamedTuple):
    """Consecutive lines of an input file. `size` is the approximate number of bytes of the file that they take."""

    file: "InputState"
    number: int
    request: BlockRequest
    digest: str
    size: int


class Task(NamedTuple):
    """A block, or a part of it, to be predicted, and the number of workers that have died at it."""

    block: Block
    start: int
    stop: int
    deaths: int = 0

    @property
    def request(self) -> BlockRequest:
        whole = self.block.request
        problems = [(i - self.start, problem) for i, problem in whole["problems"] if self.start <= i < self.stop]
        first, lines = whole["first"] + self.start, whole["lines"][self.start : self.stop]
        return {"first": first, "lines": lines, "problems": problems}


@final
@dataclass
class InputState:
    """An input file, and what is known about its blocks."""

    source: CorpusInput
    output: OutputFile
    blocks: int | None = None
    """The number of blocks, when the file has been read."""
    failure: str | None = None
    """Why the file could not be read."""
    parts: dict[int, list[tuple[int, int, BlockResponse]]] = field(default_factory=dict)
    """The output of parts of blocks that were split: where each part starts and stops."""

    @property
    def is_unchanged(self) -> bool:
        """Whether the file is finished, and neither the input nor the output has changed since."""
        finished, version = self.output.finished, self.source.version
        return finished is not None and finished.version == version is not None and self.output.is_intact()

    @property
    def has_all_blocks(self) -> bool:
        return self.blocks == len(self.output.blocks)

    def add_part(self, task: Task, response: BlockResponse) -> BlockResponse | None:
        """Add the output of a part of a block. Return the output of the block when all parts are there."""
        parts = self.parts.setdefault(task.block.number, [])
        parts.append((task.start, task.stop, response))
        if sum(stop - start for start, stop, _ in parts) < len(task.block.request["lines"]):
            return None
        del self.parts[task.block.number]
        counts = PredictionCounts()
        whole: BlockResponse = {"text": "", "problems": [], "counts": {}, "notes": []}
        for start, _, part in sorted(parts, key=lambda each: each[0]):
            whole["text"] += part["text"]
            whole["problems"] += [(start + index, problem) for index, problem in part["problems"]]
            counts += PredictionCounts(**part["counts"])
        whole["counts"] = asdict(counts)
        return whole


def read_blocks(state: InputState, size: int, *, replace_invalid: bool) -> Iterator[Block]:
    """Read the blocks of a file, which do not depend on what has been finished."""
    number = first = 0
    with open_texts(state.source.path) as (texts, compression):
        while True:
            request: BlockRequest = {"first": first, "lines": [], "problems": []}
            characters = 0
            for text in texts:
                if isinstance(text, Line):
                    if text.problem and not (replace_invalid and text.text):
                        request["problems"].append((len(request["lines"]), text.problem))
                    text = text.text
                request["lines"].append(text)
                characters += len(text)
                if len(request["lines"]) == size or characters > _BLOCK_CHARACTERS:
                    break
            if not request["lines"]:
                return
            content = "".join(f"{line}\n" for line in request["lines"]).encode()
            digest = hashlib.blake2b(content, digest_size=16)
            digest.update(str([index for index, _ in request["problems"]]).encode())
            yield Block(state, number, request, digest.hexdigest(), round(len(content) * compression()))
            number, first = number + 1, first + len(request["lines"])


@final
class _TaskQueue:
    """Tasks for the workers. Blocks wait until there is space; tasks that are put back come first."""

    def __init__(self, space: int) -> None:
        self._space, self._tasks, self._closed, self._loading = space, deque[Task](), False, 0
        self._changed = threading.Condition()

    def put(self, task: Task) -> bool:
        """Add a task when there is space. Return False if the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._tasks) < self._space)
            self._tasks.append(task)
            self._changed.notify_all()
            return not self._closed

    def put_back(self, *tasks: Task) -> None:
        with self._changed:
            self._tasks.extendleft(reversed(tasks))
            self._changed.notify_all()

    @contextmanager
    def loading(self) -> Iterator[bool]:
        """Wait until there are more tasks than workers that are being loaded. Within the block, one more is being
        loaded. Return False if the queue is closed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._tasks) > self._loading)
            self._loading += 1
        try:
            yield not self._closed
        finally:
            with self._changed:
                self._loading -= 1
                self._changed.notify_all()

    def get(self) -> Task | None:
        """Wait for a task; None if the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or bool(self._tasks))
            if self._closed:
                return None
            self._changed.notify_all()
            return self._tasks.popleft()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class _Predicted(NamedTuple):
    task: Task
    response: BlockResponse


class _Died(NamedTuple):
    """A worker died while it predicted a task."""

    task: Task
    reason: str


class _NotLoaded(NamedTuple):
    """A worker died before its model was loaded."""

    reason: str


class _AllRead(NamedTuple):
    """All blocks of a file have been read, and those that are not finished are in the queue."""

    state: InputState
    blocks: int


class _Unreadable(NamedTuple):
    state: InputState
    reason: str


class _Failed(NamedTuple):
    error: BaseException


_Event = _Predicted | _Died | _NotLoaded | _AllRead | _Unreadable | _Failed


@final
class _Workers:
    """The threads of a job: one reads the blocks, and one for each worker waits for it. They report events."""

    def __init__(self, pool: Pool, blocks: Callable[["_Workers"], None]) -> None:
        self._pool = pool
        self.events = queue.Queue[_Event](4 * pool.size)  # if the disk is slow, the workers wait
        self.tasks = _TaskQueue(2 * pool.size)
        self._lock, self._alive, self._stopped = threading.Lock(), set[Worker](), threading.Event()
        reader = threading.Thread(target=self._guard, args=(blocks, self), daemon=True)
        self._threads = [
            threading.Thread(target=self._guard, args=(self._work, index), daemon=True) for index in range(pool.size)
        ]
        for thread in (reader, *self._threads):
            thread.start()

    def _guard(self, function: Callable[[Any], None], argument: Any) -> None:
        try:
            function(argument)
        except BaseException as error:  # raised again by the main thread
            self.events.put(_Failed(error))

    def _work(self, index: int) -> None:
        """Predict tasks with a worker. When it has died, start another one. A task is assigned only to a worker that is
        loaded, because a cluster may have no place for another worker.
        """
        while True:
            with self.tasks.loading() as is_needed:
                if not is_needed:
                    return
                worker = self._start(index)
                try:
                    worker.load()
                except WorkerDied as death:
                    self._end(worker)
                    self.events.put(_NotLoaded(str(death)))
                    self._stopped.wait(_PAUSE)
                    continue
            while (task := self.tasks.get()) is not None:
                try:
                    self.events.put(_Predicted(task, worker.predict(task.request)))
                except WorkerDied as death:
                    self.events.put(_Died(task, str(death)))
                    break
            self._end(worker)

    def _start(self, index: int) -> Worker:
        with self._lock:
            worker = self._pool.start(index)
            self._alive.add(worker)
            if self._stopped.is_set():
                worker.kill()
        return worker

    def _end(self, worker: Worker) -> None:
        with self._lock:
            self._alive.discard(worker)
        worker.kill()
        worker.close()

    def stop(self) -> None:
        """End all workers at once. A worker that waits to be started ends with the pool."""
        self.tasks.close()
        with self._lock:
            self._stopped.set()
            for worker in self._alive:
                worker.kill()
        deadline = time.monotonic() + _STOP_SECONDS
        while any(thread.is_alive() for thread in self._threads) and time.monotonic() < deadline:
            with suppress(queue.Empty):  # a thread may wait for space
                self.events.get(timeout=0.05)
        self._pool.close()


@final
@dataclass
class Job:
    """The files of a job, and its options."""

    folder: Path
    states: list[InputState]
    options: LineOptions
    block_lines: int = BLOCK_LINES
    replace_invalid: bool = False
    skipped_bytes: int = 0
    """The size of the blocks that have been read, but were finished before."""

    @classmethod
    def open(cls, folder: Path, inputs: Iterable[CorpusInput], options: LineOptions, **more: Any) -> "Job":
        """Find out what is finished. Raise ConfigError if an output file exists that was not written by this job."""
        states = [InputState(source, OutputFile(folder, source.name)) for source in inputs]
        for state in states:
            _check_output(state)
        return cls(folder, states, options, **more)

    @property
    def unfinished(self) -> list[InputState]:
        return [state for state in self.states if not state.is_unchanged]

    def read(self, workers: _Workers) -> None:
        """Read the files that are not finished, and add the blocks that are not finished to the queue."""
        for state in self.unfinished:
            try:
                blocks = self._read_file(state, workers.tasks)
            except (DataError, OSError) as error:
                workers.events.put(_Unreadable(state, str(error)))
            else:
                workers.events.put(_AllRead(state, blocks))

    def _read_file(self, state: InputState, tasks: _TaskQueue) -> int:
        """Add the blocks of a file that are not finished to the queue, and return the number of its blocks. Raise
        DataError if the file has changed since a block was finished.
        """
        remove = "" if state.output.finished is None else f"remove {short_path(state.output.path)}, or "
        changed = DataError(
            f"{display_name(state.source.path)} has changed since the job was started. To predict it again, {remove}"
            "choose another folder with --output."
        )
        count, expected = 0, 1 + max(state.output.blocks, default=-1)
        for block in read_blocks(state, self.block_lines, replace_invalid=self.replace_invalid):
            count += 1
            finished = state.output.blocks.get(block.number)
            if finished is not None:
                self.skipped_bytes += block.size
                if finished.digest != block.digest:
                    raise changed
            elif state.output.finished is not None:
                raise changed
            elif not tasks.put(Task(block, 0, len(block.request["lines"]))):
                break
        if count < expected:
            raise changed
        return count

    def list_failures(self) -> Iterator[dict[str, Any]]:
        for state in self.states:
            path = display_name(state.source.path)
            for _, block in sorted(state.output.blocks.items()):
                for index, reason in block.problems:
                    yield {"file": path, "line": index + 1, "reason": reason}
            if state.failure is not None:
                yield {"file": path, "line": None, "reason": state.failure}

    def count(self) -> PredictionCounts:
        """Return the counts of all finished blocks."""
        counts = PredictionCounts()
        for state in self.states:
            for block in state.output.blocks.values():
                counts += PredictionCounts(**block.counts)
        return counts


def _check_output(state: InputState) -> None:
    output, source = state.output, state.source
    if os.path.exists(output.path) and os.path.exists(source.path) and os.path.samefile(output.path, source.path):
        raise ConfigError(f"--output: {short_path(output.path)} is an input itself. Choose another folder.")
    if output.finished is not None and not output.is_intact():
        log.warning("%s was changed or removed, so it is predicted again.", short_path(output.path))
        output.forget()
    elif not output.was_started and os.path.lexists(output.path):
        raise ConfigError(
            f"{short_path(output.path)} exists, and this job did not write it. Remove it, or choose another folder "
            "with --output."
        )


def run_job(job: Job, pool: Pool, request: StopRequest) -> None:
    """Predict all blocks that are not finished, and write the files. A signal stops the job (`Interrupted`)."""
    pending = {id(state) for state in job.unfinished}
    workers = _Workers(pool, job.read)
    deaths = 0
    kinds: set[str] = set()
    try:
        with JobDisplay(job, pool.size) as display:
            while pending:
                display.tick()
                if request:
                    raise Interrupted(_describe_stop(job, request))
                try:
                    event = workers.events.get(timeout=_TICK)
                except queue.Empty:
                    continue
                match event:
                    case _Predicted(task, response):
                        deaths, state = 0, task.block.file
                        _store(task, response, display, kinds)
                    case _Died(task):
                        deaths, state = deaths + 1, task.block.file
                        _check_deaths(deaths, _MAX_DEATHS + 3 * pool.size, event.reason)
                        if tasks := _repeat(event, display):
                            workers.tasks.put_back(*tasks)
                        else:
                            _store(task, _give_up(event, job.options), display, kinds)
                    case _NotLoaded(reason):
                        deaths += 1
                        _check_deaths(deaths, 2 + pool.size, reason)
                        continue
                    case _AllRead(state, blocks):
                        state.blocks = blocks
                    case _Unreadable(state, reason):
                        state.failure = reason
                        display.print(f"regard: {reason}")
                        pending.discard(id(state))
                    case _Failed(error):
                        raise error
                if state.has_all_blocks:
                    _finish(state)
                    pending.discard(id(state))
    finally:
        workers.stop()
        for state in job.states:
            state.output.close()


def predict_corpus(
    models: Sequence[tuple[RunFolder, Checkpoint]],
    inputs: Sequence[CorpusInput],
    out: Path,
    options: LineOptions,
    *,
    block_lines: int = BLOCK_LINES,
    replace_invalid: bool = False,
    build_pool: Callable[[WorkerSettings], Pool] = InProcess,
    plugins: Sequence[str] = (),
) -> Job:
    """Predict files into the folder `out`, or resume. Only what is not finished is predicted."""
    identity = {
        "model": [_hash_model(*model) for model in models],
        **options.model_dump(mode="json", exclude={"search", "batch_size"}),
        **options.search.model_dump(mode="json"),
        "block_lines": block_lines,
        "replace_invalid": replace_invalid,
    }
    located = tuple((str(folder.path.absolute()), checkpoint.path.name) for folder, checkpoint in models)
    settings = WorkerSettings(models=located, options=options, plugins=tuple(plugins))
    with open_job_folder(out, identity) as folder:
        job = Job.open(folder, inputs, options, block_lines=block_lines, replace_invalid=replace_invalid)
        try:
            if not job.unfinished:
                log.warning("All files were predicted before.")
            else:
                pool = build_pool(settings)
                with stop_on_signals() as request:
                    request.deferred = True
                    run_job(job, pool, request)
        finally:
            write_failures(folder, job.list_failures())
    return job


def _hash_model(folder: RunFolder, checkpoint: Checkpoint) -> str:
    """Return a hash of the weights, the settings and the tokenizers of a model."""
    digest = hashlib.sha256(checkpoint.weights_hash.encode())
    for path in (folder.config, *sorted(folder.path.glob("tokenizer*.json"))):
        digest.update(hashlib.sha256(read_regular(path)).digest())
    return digest.hexdigest()


def _store(task: Task, response: BlockResponse, display: "JobDisplay", kinds: set[str]) -> None:
    """Store the output of a block if all its parts are there. Print the first note of each kind."""
    block = task.block
    for kind, note in response["notes"]:
        if kind not in kinds:
            kinds.add(kind)
            display.print(f"note: {note}")
    whole = block.file.add_part(task, response)
    if whole is not None:
        block.file.output.add(block.number, block.digest, block.request["first"], whole)
        display.add(len(block.request["lines"]), block.size)


def _finish(state: InputState) -> None:
    """Write the output of a file, unless it was finished before."""
    if state.output.finished is None:
        assert state.blocks is not None
        state.output.finish(state.blocks, state.source.version)


def _check_deaths(deaths: int, limit: int, reason: str) -> None:
    if deaths > limit:
        raise ResourceError(
            f"{deaths} workers died, one after the other, and no block was finished. The last one: {reason} Use "
            "fewer workers, or a smaller --batch-size. The same command resumes the job."
        )


def _repeat(died: _Died, display: "JobDisplay") -> list[Task]:
    """Return what must be predicted again: the task, or its halves if two workers died at it. Return nothing if two
    workers died at a single line.
    """
    task = died.task
    if task.deaths == 0:
        path, line = display_name(task.block.file.source.path), task.request["first"] + 1
        display.print(f"note: a worker died at the block that starts at {path}, line {line:,}. It is predicted again.")
        return [task._replace(deaths=1)]
    if task.stop - task.start > 1:
        middle = (task.start + task.stop) // 2
        return [task._replace(stop=middle), task._replace(start=middle)]
    return [task._replace(deaths=2)] if task.deaths == 1 else []


def _give_up(died: _Died, options: LineOptions) -> BlockResponse:
    """Return the output of a line at which workers died."""
    reason = f"Workers died when they predicted this line. {died.reason}"
    [source] = died.task.request["lines"]
    text = "".join(f"{line}\n" for line in options.format_problem(source, reason))
    return {"text": text, "problems": [(0, reason)], "counts": asdict(PredictionCounts(sources=1)), "notes": []}


def _describe_stop(job: Job, request: StopRequest) -> str:
    assert request.by is not None
    finished = sum(state.output.finished is not None for state in job.states)
    lines = quantity(job.count().sources, "line")
    return (
        f"Stopped by {request.by.name}. {finished:,} of {quantity(len(job.states), 'file')} and {lines} are finished. "
        "Run the same command to resume."
    )


@final
class JobDisplay:
    """Shows the progress of a job on stderr: a progress bar on a terminal, lines of text elsewhere."""

    def __init__(self, job: Job, workers: int) -> None:
        self._job, self._display = job, CountDisplay(None)
        self._total = sum(version[0] for state in job.unfinished if (version := state.source.version))
        self._lines = self._bytes = 0
        self._started = self._printed = time.monotonic()
        self.print(f"Predicting {quantity(len(job.unfinished), 'file')} with {quantity(workers, 'worker')}.")

    def __enter__(self) -> "JobDisplay":
        self._display.start(self._total)
        return self

    def __exit__(self, *_: object) -> None:
        self._display.stop()

    def print(self, text: str) -> None:
        self._display.print(text)

    def add(self, lines: int, size: int) -> None:
        """Add a block that has been finished."""
        self._lines += lines
        self._bytes += size

    def tick(self) -> None:
        """Update what is displayed."""
        now, skipped = time.monotonic(), self._job.skipped_bytes
        status = f"{quantity(self._lines, 'line')}  {self._lines / max(now - self._started, 1e-9):,.0f} lines/s"
        shows_bar = self._display.update(completed=skipped + self._bytes, status=status)
        if not shows_bar and now - self._printed >= _SECONDS_PER_LINE:
            self._printed = now
            share = (skipped + self._bytes) / self._total if self._total else 0.0
            left = f"  {self._display.estimate_left(self._bytes, self._total - skipped)}" if self._bytes else ""
            self.print(f"{share:.0%}  {status}{left}")
