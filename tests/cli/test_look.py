"""`regard look` in a terminal: with color, without color, and with right-to-left text."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from regard.cli import look
from regard.runs.folder import RunFolder

Run = Callable[..., subprocess.CompletedProcess[str]]


def look_on_a_terminal(monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    """Return the output of `regard look` on a pseudo-terminal with colors."""
    pty = pytest.importorskip("pty")
    try:
        leader, follower = pty.openpty()
    except OSError:
        pytest.skip("there is no pseudo-terminal: mount devpts on /dev/pts")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    chunks: list[bytes] = []

    def read() -> None:
        try:
            while chunk := os.read(leader, 1 << 12):
                chunks.append(chunk)
        except OSError:  # how Linux reports that the other end is closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(follower, "w", encoding="utf-8") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        look.command.main(list(words), standalone_mode=False)
    reader.join()
    os.close(leader)
    return b"".join(chunks).decode()


def test_without_color_the_heat_map_is_drawn_in_shades(
    small_run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (str(small_run.path), "3 mai 2009")
    monkeypatch.delenv("NO_COLOR", raising=False)
    colored = look_on_a_terminal(monkeypatch, *words)
    assert "\x1b[48;" in colored
    monkeypatch.setenv("NO_COLOR", "1")
    shaded = look_on_a_terminal(monkeypatch, *words)
    assert "\x1b" not in shaded
    look.command.main(list(words), standalone_mode=False)
    assert shaded.replace("\r\n", "\n") == capsys.readouterr().out
    assert "░" in shaded


def test_right_to_left_texts_are_isolated_in_the_terminal(cli: Run, small_run: RunFolder) -> None:
    done = cli("look", small_run.path, "3 مايو 2009")
    assert done.stdout.startswith("\u20683 مايو 2009\u2069 → ")
    assert "3 ␣ \u2068م\u2069 \u2068ا\u2069 " in done.stdout
