"""A worker of a corpus job: it loads a model once, and predicts blocks of lines.

It runs in a process of its own (`python -m regard.cluster.block_predictor`), in an actor of Ray, or in the process of
the job. Requests and responses are JSON values. This module imports torch when a model is loaded.
"""

import io
import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, TypedDict, final
from zipfile import ZipFile

from regard.api.line_prediction import LineOptions, LinePredictor, PredictedLines, PredictionCounts
from regard.config import Settings
from regard.data.tokens.processes import read_message, write_message
from regard.errors import ConfigError, ModelError, RegardError, is_memory_failure
from regard.formatting import quantity, shorten, to_json
from regard.quantities import OptionalCount, Threads
from regard.registry import import_plugins
from regard.runs.folder import RunFolder
from regard.runs.stored_checkpoint import OPTIMIZER, Checkpoint

_MIN_FAILURES = 8
"""If at least this number of lines of a block are predicted, and prediction fails for each, the model is unusable."""


class BlockRequest(TypedDict):
    """Consecutive lines of a file. `first` is the index of the first line in the file, and `problems` contains what is
    wrong with the lines that could not be read, by the index in `lines`.
    """

    first: int
    lines: list[str]
    problems: list[tuple[int, str]]


class BlockResponse(TypedDict):
    """The output of a block: `text` with its lines, what is wrong with the lines without a prediction, counts for the
    summary, and notes. The first item of a note is equal for notes of the same kind.
    """

    text: str
    problems: list[tuple[int, str]]
    counts: dict[str, Any]
    notes: list[tuple[str, str]]


class WorkerSettings(Settings):
    """What a worker needs to predict: the run folder and the name of the checkpoint of each model, and options."""

    models: tuple[tuple[str, str], ...]
    options: LineOptions
    plugins: tuple[str, ...] = ()
    threads: Threads | None = None
    """The number of CPU threads; by default, torch chooses it."""
    index: OptionalCount = 0
    """The number of the worker on its machine. If there are several GPUs, it selects one."""


@final
class BlockPredictor:
    """Predicts blocks. A line for which prediction fails has a problem instead; the others are predicted."""

    def __init__(self, settings: WorkerSettings) -> None:
        import torch

        from regard.api.model import Model

        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        import_plugins(settings.plugins)
        gpus = torch.cuda.device_count()
        device = f"cuda:{settings.index % gpus}" if gpus > 1 else "auto"
        located = [
            (RunFolder(Path(folder)), Checkpoint(RunFolder(Path(folder)).checkpoints / name))
            for folder, name in settings.models
        ]
        self._options = settings.options
        self._predictor = LinePredictor(Model.from_checkpoints(located, device), settings.options)

    def predict(self, request: BlockRequest) -> BlockResponse:
        """Predict a block. Raise RegardError if the model or the options are not usable."""
        with _CollectNotes() as notes:
            failed: list[str] = []
            problems = dict(request["problems"])
            predicted = self._predict(request["lines"], problems, request["first"], failed)
        readable = len(request["lines"]) - len(predicted.problems) + len(failed)
        if len(failed) == readable >= _MIN_FAILURES:
            message = f"Prediction fails for each of {quantity(readable, 'line')}. The first problem: {failed[0]}"
            raise ModelError(message)
        return {
            "text": "".join(f"{line}\n" for line in predicted.lines),
            "problems": list(predicted.problems.items()),
            "counts": asdict(predicted.counts),
            "notes": notes,
        }

    def _predict(
        self, lines: Sequence[str], problems: Mapping[int, str], first: int, failed: list[str]
    ) -> PredictedLines:
        """Predict lines. If that fails, predict each half of them, down to the lines that cause the failure."""
        try:
            return self._predictor.predict_block(lines, problems, first)
        except ConfigError:
            raise
        except Exception as error:  # models and plugins can fail in any way
            reason = _describe(error)
        if len(lines) == 1:
            failed.append(reason)
            return PredictedLines(
                self._options.format_problem(lines[0], reason), {0: reason}, PredictionCounts(sources=1)
            )
        middle = len(lines) // 2
        after = {index - middle: problem for index, problem in problems.items()}
        left = self._predict(lines[:middle], problems, first, failed)
        return left + self._predict(lines[middle:], after, first + middle, failed)


def _describe(error: Exception) -> str:
    if is_memory_failure(error):
        return "Out of memory."
    return str(error) if isinstance(error, RegardError) else shorten(f"{type(error).__name__}: {error}", 500)


class _CollectNotes(logging.Handler):
    """Within a block of code, collect the notes that regard logs, with the kind of each."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._notes: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._notes.append((str(record.msg), record.getMessage()))

    def __enter__(self) -> list[tuple[str, str]]:
        logger = logging.getLogger("regard")
        self._before = logger.handlers, logger.propagate
        logger.handlers, logger.propagate = [self], False
        return self._notes

    def __exit__(self, *_: object) -> None:
        logger = logging.getLogger("regard")
        logger.handlers, logger.propagate = self._before


def pack_models(models: Sequence[tuple[str, str]], plugins: Sequence[str]) -> bytes:
    """Return an archive of what another machine needs to predict: the files of models, each with the path of its run
    folder and the name of its checkpoint, and plugins in files.
    """
    archive = io.BytesIO()
    with ZipFile(archive, "w", strict_timestamps=False) as files:
        for number, (folder, name) in enumerate(models):
            run = RunFolder(Path(folder))
            weights = (path for path in (run.checkpoints / name).iterdir() if path.name != OPTIMIZER)
            for path in (run.config, *run.path.glob("tokenizer*.json"), *weights):
                files.write(path, f"{_locate_model(number, folder)}/{path.relative_to(run.path)}")
        for number, plugin in enumerate(plugins):
            if plugin.endswith(".py"):
                files.write(plugin, f"plugins/{number}/{Path(plugin).name}")
    return archive.getvalue()


@contextmanager
def unpack_models(
    archive: bytes, models: Sequence[tuple[str, str]], plugins: Sequence[str]
) -> Iterator[tuple[tuple[tuple[str, str], ...], tuple[str, ...]]]:
    """Within a block of code, write the files of an archive, and return the models and plugins with their paths."""
    with tempfile.TemporaryDirectory(prefix="regard-model-") as folder:
        with ZipFile(io.BytesIO(archive)) as files:
            files.extractall(folder)
        yield (
            tuple((f"{folder}/{_locate_model(number, path)}", name) for number, (path, name) in enumerate(models)),
            tuple(
                f"{folder}/plugins/{number}/{Path(plugin).name}" if plugin.endswith(".py") else plugin
                for number, plugin in enumerate(plugins)
            ),
        )


def _locate_model(number: int, folder: str) -> str:
    """Return the path of a model in an archive. The folder keeps its name, which can contain the languages."""
    return f"models/{number}/{Path(folder).name}"


def load_packed(settings: WorkerSettings, archive: bytes) -> BlockPredictor:
    """Load the models of an archive. Its files are removed when the models are in memory."""
    with unpack_models(archive, settings.models, settings.plugins) as (models, plugins):
        return BlockPredictor(settings.model_copy(update={"models": models, "plugins": plugins}))


class ErrorResponse(TypedDict):
    """An error that ends the job: the name of its class, and its message."""

    error: tuple[str, str]


def to_response(error: RegardError) -> ErrorResponse:
    return {"error": (type(error).__name__, str(error))}


def _serve(requests: IO[bytes], responses: IO[bytes]) -> None:
    """Read the settings, then predict blocks until the end of the stream. An error is the last response."""

    def respond(response: Mapping[str, Any]) -> None:
        write_message(responses, to_json(response, ensure_ascii=False).encode())
        responses.flush()

    try:
        predictor = BlockPredictor(WorkerSettings.model_validate_json(read_message(requests) or b"{}"))
        respond({})
        while (message := read_message(requests)) is not None:
            respond(predictor.predict(json.loads(message)))
    except RegardError as error:
        respond(to_response(error))


if __name__ == "__main__":
    # What plugins and libraries print to stdout must not get into the responses.
    with open(os.dup(sys.stdout.fileno()), "wb") as pipe:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        _serve(sys.stdin.buffer, pipe)
