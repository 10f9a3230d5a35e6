"""The callbacks of the user: they observe a run, and cannot change its result."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from regard.errors import ArgumentTypeError
from regard.runs.callbacks import Callback, SaveInfo, ScheduleInfo, StepInfo, ValidationInfo

_METHODS = ("on_step", "on_validation", "on_save", "on_schedule")


def check_callbacks(callbacks: Any) -> tuple[Callback, ...]:
    """Return the callbacks of an argument: one object or several, with any of the methods of `Callback`."""
    if callbacks is None:
        return ()
    several = isinstance(callbacks, Iterable) and not _methods(callbacks)
    return tuple(map(_as_callback, callbacks if several else [callbacks]))


def _as_callback(callback: Any) -> Callback:
    if isinstance(callback, Callback) and not isinstance(callback, type):
        return callback
    methods = _methods(callback)
    if isinstance(callback, type) or not methods:
        remedy = f"Create an instance: {callback.__name__}()." if isinstance(callback, type) else "See regard.Callback."
        raise ArgumentTypeError(
            f"callbacks: {callback!r} is not a callback. A callback is an object with one of the methods "
            f"{', '.join(_METHODS)}. {remedy}"
        )
    return _Adapter(methods)


def _methods(callback: object) -> dict[str, Callable[[Any], object]]:
    found = {name: getattr(callback, name, None) for name in _METHODS}
    return {name: method for name, method in found.items() if callable(method)}


class _Adapter(Callback):
    """A callback that has some of the methods."""

    def __init__(self, methods: dict[str, Callable[[Any], object]]) -> None:
        for name, method in methods.items():
            setattr(self, name, method)


class Observers(Callback):
    """Calls the callbacks of the user.

    The random number generators of torch are restored after each call, so that a callback that samples or trains
    another model does not change the run.
    """

    def __init__(self, callbacks: Iterable[Callback], device: torch.device) -> None:
        self._callbacks = tuple(callbacks)
        self._devices = [device] if device.type == "cuda" else []
        self.failure: BaseException | None = None
        """The exception that a callback raised."""

    def on_step(self, info: StepInfo) -> None:
        for callback in self._callbacks:
            with self._isolated():
                callback.on_step(info)

    def on_validation(self, info: ValidationInfo) -> None:
        for callback in self._callbacks:
            with self._isolated():
                callback.on_validation(info)

    def on_save(self, info: SaveInfo) -> None:
        for callback in self._callbacks:
            with self._isolated():
                callback.on_save(info)

    def on_schedule(self, info: ScheduleInfo) -> None:
        for callback in self._callbacks:
            with self._isolated():
                callback.on_schedule(info)

    @contextmanager
    def _isolated(self) -> Iterator[None]:
        try:
            with torch.random.fork_rng(devices=self._devices):
                yield
        except BaseException as error:
            self.failure = error
            raise
