"""Signals interrupt a process that waits for a worker."""

import signal
from collections.abc import Iterator

import pytest

from regard.data.tokens.processes import WorkerProcess


class Interrupted(Exception):  # noqa: N818
    """Raised by the handler of a signal."""


@pytest.fixture
def _alarm() -> Iterator[None]:
    """Raise an exception when the timer of this process expires."""

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.posix
@pytest.mark.usefixtures("_alarm")
def test_a_signal_interrupts_the_wait_for_a_worker() -> None:
    """The worker waits for texts, so it does not send a message."""
    worker = WorkerProcess("regard.data.tokens.bpe_learner")
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(Interrupted):
            worker.receive()
    finally:
        worker.stop()
