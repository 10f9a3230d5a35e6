"""Events of training: written to `events.jsonl` as JSON lines, and progress on the terminal."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from regard.formatting import to_json
from regard.runs.directory import Directory

EVENTS = "events.jsonl"


class EventListener(Protocol):
    """Receives each event when it is written."""

    def write(self, event: str, **values: Any) -> None: ...

    def close(self) -> None: ...


class EventLog:
    """Appends events to a file, and passes them to the listeners.

    Of the events that are in the file already, only those for which `keep` is true are kept: the events that a killed
    run wrote after its last checkpoint are removed.
    """

    def __init__(
        self,
        directory: Directory,
        keep: Callable[[dict[str, Any]], bool],
        listeners: Sequence[EventListener] = (),
    ) -> None:
        content = directory.read(EVENTS) if EVENTS in directory.names() else b""
        draft = f".{EVENTS}"
        # The handle remains valid if the folder is moved.
        self._handle = directory.create(draft)
        self._handle.writelines(line.encode() for line, event in _lines(content) if keep(event))
        self._handle.flush()
        directory.rename(draft, EVENTS)
        self._listeners = listeners

    def write(self, event: str, **values: Any) -> None:
        line = {"event": event, **values, "time": round(time.time(), 3)}
        self._handle.write(f"{to_json(line)}\n".encode())
        self._handle.flush()
        for listener in self._listeners:
            listener.write(**line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.close()
        for listener in self._listeners:
            listener.close()


def read_events(path: Path) -> list[dict[str, Any]]:
    return [event for _, event in _lines(path.read_bytes() if path.exists() else b"")]


def _lines(content: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each complete line and its event."""
    for line in content.decode("utf-8", errors="replace").split("\n")[:-1]:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield f"{line}\n", event


class ProgressDisplay:
    """Shows the progress of training on stderr: a progress bar on a terminal, lines of text elsewhere."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False)
        self._bar: Progress | None = None
        self._steps = 0
        self._started = (time.monotonic(), 0)

    def start(self, steps: int, done: int) -> None:
        """Start at step `done` of `steps`."""
        self._steps = steps
        self._started = (time.monotonic(), done)
        if self.console.is_terminal:
            self._bar = Progress(
                TextColumn("step {task.completed:,.0f}/{task.total:,.0f}"),
                BarColumn(),
                TextColumn("{task.fields[status]}"),
                TimeRemainingColumn(),
                console=self.console,
            )
            self._task: TaskID = self._bar.add_task("training", total=steps, completed=done, status="")
            self._bar.start()

    def set_steps(self, steps: int) -> None:
        """Set the number of steps, after a deadline has rescaled the schedule."""
        self._steps = steps
        if self._bar:
            self._bar.update(self._task, total=steps)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def print(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    def step(self, step: int, loss: float, tokens_per_second: float) -> None:
        status = f"loss {loss:.4f}  {tokens_per_second:,.0f} tokens/s"
        if self._bar:
            self._bar.update(self._task, completed=step, status=status)
        else:
            self.print(f"step {step:,}/{self._steps:,}  {status}  {self._time_left(step)}")

    def _time_left(self, step: int) -> str:
        started, done = self._started
        seconds = (time.monotonic() - started) / max(1, step - done) * (self._steps - step)
        return f"{int(seconds // 60)}:{int(seconds % 60):02d} left"
