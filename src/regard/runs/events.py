"""Events of training: written to `events.jsonl` as JSON lines, and progress on the terminal."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Self, final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from regard.evaluation.attention_diagnostics import AttentionDiagnostics
from regard.evaluation.settings import Metric
from regard.formatting import open_lossy_stderr, parse_json, to_json
from regard.regular_files import read_regular
from regard.runs.callbacks import Callback, ScheduleInfo, StepInfo, ValidationInfo
from regard.runs.directory import Directory

EVENTS = "events.jsonl"


class EventWriter(Callback, ABC):
    """Writes the progress of a run as events: a name and values. A step is written every `log_every` steps."""

    def __init__(self, log_every: int = 1) -> None:
        self._log_every = log_every

    @abstractmethod
    def write(self, event: str, **values: Any) -> None:
        """Write an event."""

    @abstractmethod
    def close(self) -> None:
        """Close the event file."""

    def on_step(self, info: StepInfo) -> None:
        if info.step % self._log_every == 0:
            speed = round(info.tokens_per_second)
            self.write(
                "train", step=info.step, loss=info.loss, learning_rate=info.learning_rate, tokens_per_second=speed
            )

    def on_validation(self, info: ValidationInfo) -> None:
        of = {"of": info.average} if info.average else {}
        self.write("validation", step=info.step, **of, best=info.best, **info.metrics.to_json())
        if info.attention is not None:
            self.write("attention", step=info.step, **of, **info.attention.to_json())

    def on_schedule(self, info: ScheduleInfo) -> None:
        self.write(
            "schedule",
            step=info.step,
            end=info.steps,
            seconds_per_step=info.seconds_per_step,
            threads=info.threads,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class EventLog(EventWriter):
    """Appends events to `events.jsonl`.

    Of the events that are in the file already, only those for which `keep` is true are kept: the events that a killed
    run wrote after its last checkpoint are removed.
    """

    def __init__(self, directory: Directory, keep: Callable[[dict[str, Any]], bool], log_every: int = 1) -> None:
        super().__init__(log_every)
        content = directory.read(EVENTS) if EVENTS in directory.names() else b""
        # The handle remains valid if the folder is moved.
        self._handle = directory.write_log(EVENTS, (line.encode() for line, event in _lines(content) if keep(event)))

    def write(self, event: str, **values: Any) -> None:
        line = {"event": event, **values, "time": round(time.time(), 3)}
        self._handle.write(f"{to_json(line)}\n".encode())
        self._handle.flush()

    def close(self) -> None:
        self._handle.close()


def read_events(path: Path) -> list[dict[str, Any]]:
    return [event for _, event in _lines(read_regular(path) if path.exists() else b"")]


def find_attention(path: Path, step: int | None, average: str | None = None) -> AttentionDiagnostics | None:
    """Read the statistics of the attention weights that were computed after a step, or of the average of checkpoints
    with this name; None if there are none.
    """
    for event in reversed(read_events(path)):
        if (event.get("event"), event.get("step"), event.get("of")) == ("attention", step, average):
            with suppress(KeyError, TypeError, AttributeError):  # a damaged line is ignored, as one that is not JSON
                return AttentionDiagnostics.from_json(event)
    return None


def _lines(content: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each complete line and its event. Damaged lines are left out."""
    for line in content.decode("utf-8", errors="replace").split("\n")[:-1]:
        try:
            event = parse_json(line)
        except ValueError:
            continue
        if _is_event(event):
            yield f"{line}\n", event


def _is_event(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("event"), str) and isinstance(value.get("step"), int | None)


@final
class CountDisplay:
    """Texts on stderr and, on a terminal, a progress bar.

    Args:
        unit: What is counted, such as steps; None to show a percentage.
        quiet: Whether to print nothing.
    """

    def __init__(self, unit: str | None, *, quiet: bool = False) -> None:
        self._console = Console(file=open_lossy_stderr(), highlight=False, quiet=quiet)
        self._count = f"{unit} {{task.completed:,.0f}}/{{task.total:,.0f}}" if unit else "{task.percentage:>3.0f}%"
        self._shows_bar = self._console.is_terminal and not quiet
        self._bar: Progress | None = None
        self._started = (time.monotonic(), 0)

    def start(self, total: int, done: int = 0) -> None:
        """Show the bar, at `done` of `total` units."""
        self._started = (time.monotonic(), done)
        if self._shows_bar:
            columns = TextColumn(self._count), BarColumn(), TextColumn("{task.fields[status]}")
            self._bar = Progress(*columns, TimeRemainingColumn(), console=self._console)
            self._task: TaskID = self._bar.add_task("", total=total or None, completed=done, status="")
            self._bar.start()

    def stop(self) -> None:
        if self._bar:
            self._bar.stop()

    def print(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def update(self, **fields: Any) -> bool:
        """Update the bar: `total`, `completed` or `status`. Return whether there is one."""
        if self._bar:
            self._bar.update(self._task, **fields)
        return self._bar is not None

    def estimate_left(self, done: int, total: int) -> str:
        """Return the time until all units are done, at the average speed since the start."""
        started, before = self._started
        seconds = (time.monotonic() - started) / max(1, done - before) * max(0, total - done)
        return f"{timedelta(seconds=int(seconds))} left"


class ProgressDisplay(Callback):
    """Shows the progress of training on stderr: a progress bar on a terminal, lines of text elsewhere.

    Args:
        metric: The metric that chooses the best checkpoint.
        log_every: The number of steps between two lines.
        quiet: Whether to print nothing.
    """

    def __init__(self, metric: Metric, log_every: int, *, quiet: bool = False) -> None:
        self._display = CountDisplay("step", quiet=quiet)
        self._metric, self._log_every = metric, log_every

    def start(self, steps: int, done: int) -> None:
        """Start at step `done` of `steps`."""
        self._display.start(steps, done)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._display.stop()

    def print(self, text: str) -> None:
        self._display.print(text)

    def on_step(self, info: StepInfo) -> None:
        if info.step % self._log_every:
            return
        status = f"loss {info.loss:.4f}  {info.tokens_per_second:,.0f} tokens/s"
        if not self._display.update(completed=info.step, status=status):
            left = self._display.estimate_left(info.step, info.steps)
            self.print(f"step {info.step:,}/{info.steps:,}  {status}  {left}")

    def on_validation(self, info: ValidationInfo) -> None:
        mark = ", the best so far" if info.best else ""
        self.print(f"validation at step {info.step:,}: {info.metrics.describe(self._metric)}{mark}")

    def on_schedule(self, info: ScheduleInfo) -> None:
        self._display.update(total=info.steps)
