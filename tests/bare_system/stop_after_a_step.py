"""Run `regard` with the arguments after the first, and interrupt it with Ctrl-C after this number of steps."""

import signal
import sys

from regard.cli import main
from regard.training import loop
from regard.training.state import TrainingState
from regard.training.step import take_step

[count, *words] = sys.argv[1:]


def take_step_and_stop(state: TrainingState) -> tuple[float, int]:
    result = take_step(state)
    if state.progress.step == int(count):
        signal.raise_signal(signal.SIGINT)
    return result


loop.take_step = take_step_and_stop  # type: ignore[attr-defined]  # it is an import of the module
sys.argv[1:] = words
main()
