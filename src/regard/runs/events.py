"""Events: what happens in a run, a JSON line each in `events.jsonl`, and for people on the terminal."""

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
    """Whoever is told of each event as it is written."""

    def write(self, event: str, **values: Any) -> None: ...

    def close(self) -> None: ...


class EventLog:
    """Appends events to a file, and tells the listeners. What a killed run wrote after its last checkpoint is cut
    off first, so that the file tells one story.
    """

    def __init__(
        self,
        directory: Directory,
        has_happened: Callable[[dict[str, Any]], bool],
        listeners: Sequence[EventListener] = (),
    ) -> None:
        content = directory.read(EVENTS) if EVENTS in directory.names() else b""
        draft = f".{EVENTS}"
        # The handle stays with the file, wherever its folder is moved.
        self._handle = directory.create(draft)
        self._handle.writelines(line.encode() for line, event in _lines(content) if has_happened(event))
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
    """The lines that are whole, and the event that each holds."""
    for line in content.decode("utf-8", errors="replace").split("\n")[:-1]:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield f"{line}\n", event


class ProgressDisplay:
    """Tells people on stderr how training goes: a bar on a terminal, plain lines elsewhere."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False)
        self._bar: Progress | None = None
        self._steps = 0
        self._started = (time.monotonic(), 0)

    def begin(self, steps: int, done: int) -> None:
        """So many steps are to be taken, of which some have been."""
        self._steps = steps
        self._started = (time.monotonic(), done)
        if self.console.is_terminal:
            self._bar = Progress(
                TextColumn("step {task.completed:,.0f}/{task.total:,.0f}"),
                BarColumn(),
                TextColumn("{task.fields[news]}"),
                TimeRemainingColumn(),
                console=self.console,
            )
            self._task: TaskID = self._bar.add_task("training", total=steps, completed=done, news="")
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

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    def step(self, step: int, loss: float, tokens_per_second: float) -> None:
        news = f"loss {loss:.4f}  {tokens_per_second:,.0f} tokens/s"
        if self._bar:
            self._bar.update(self._task, completed=step, news=news)
        else:
            self.say(f"step {step:,}/{self._steps:,}  {news}  {self._time_left(step)}")

    def _time_left(self, step: int) -> str:
        began, done = self._started
        seconds = (time.monotonic() - began) / max(1, step - done) * (self._steps - step)
        return f"{int(seconds // 60)}:{int(seconds % 60):02d} left"
