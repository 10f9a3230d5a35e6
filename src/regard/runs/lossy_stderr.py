"""A stderr that drops messages that cannot be written: a full disk or a closed terminal must not end a training run."""

import io
import os
import sys
from typing import Any, TextIO


class _LossyFile(io.FileIO):
    """A file that ignores errors when it is written to."""

    def write(self, content: Any, /) -> int:
        try:
            return super().write(content) or 0
        except OSError:
            return len(memoryview(content).cast("B"))


def open_lossy_stderr() -> TextIO:
    """Return a stream that writes to the current stderr and ignores errors.

    If `sys.stderr` was replaced by an object that is not a file, as in a notebook, or is a Windows console, return it.
    """
    stream = sys.stderr
    if stream is None or getattr(stream, "closed", False):
        return open(os.devnull, "w", encoding="utf-8")
    buffer = getattr(stream, "buffer", None)
    if type(getattr(buffer, "raw", buffer)) is not io.FileIO:
        return stream
    raw = _LossyFile(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=stream.encoding, errors=stream.errors, line_buffering=True)
