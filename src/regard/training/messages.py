"""What a run prints when it starts and ends, and how to print nothing."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from regard.data.sampler import padding_share
from regard.formatting import quantity
from regard.runs.events import find_attention
from regard.training.schedule import steps_per_epoch
from regard.training.state import TrainingState


def describe_start(state: TrainingState) -> str:
    progress, training = state.progress, state.settings.training
    if state.is_finished:
        early = progress.step < progress.schedule.end
        how = f"Raise training.patience ({training.patience}) to continue." if early else ""
        return f"{state.folder.path} has already been trained. {how}".rstrip()
    parameters = sum(parameter.numel() for parameter in state.model.parameters())
    start = f"from step {progress.step:,} " if progress.step else ""
    padding = sum(padding_share(state.sampler, lengths) for lengths in state.data.train.epoch_lengths(0).T) / 2
    steps = -(-state.sampler.steps_per_epoch // training.accumulate)
    return (
        f"Training {parameters:,} parameters on {quantity(len(state.data.train), 'pair')} {start}"
        f"in {state.folder.path}, on {state.device}{state.objective.describe()}. "
        f"An epoch has {quantity(steps, 'step')}; {padding:.0%} of the tokens in batches are padding."
    )


def describe_end(state: TrainingState) -> str:
    progress, training = state.progress, state.settings.training
    early = ""
    if progress.step < progress.schedule.end:
        early = f"; stopped early after {quantity(progress.validations_since_best, 'validation')} without improvement"
    best = progress.best.describe(training.metric) if progress.best else "not validated"
    which = "average of the last checkpoints" if progress.best_name else f"step {progress.best_step}"
    if progress.best_step == 0:
        which = "the initial weights (step 0)"
    epochs = progress.step / steps_per_epoch(state.sampler, training)
    short = ""
    if training.minutes is not None and epochs < 2:
        seen = (
            f"Each pair was used {epochs:.1f} times"
            if epochs >= 1
            else f"Training used {_percent(epochs)} of the pairs"
        )
        short = f" {seen}: more minutes would improve the model."
    return "\n".join(filter(None, [f"Best model: {which}, {best}{early}.{short}", _describe_attention(state)]))


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else "less than 1%"


def _describe_attention(state: TrainingState) -> str:
    """Describe the heads of the best model that do not use their input; empty if there are none."""
    progress = state.progress
    attention = find_attention(state.folder.events, progress.best_step, progress.best_name)
    return attention.describe_dead_heads() if attention is not None else ""


def print_to_stderr(text: str) -> None:
    print(text, file=sys.stderr)


def print_nothing(text: str) -> None:
    del text


@contextmanager
def silenced_warnings() -> Iterator[None]:
    """Within the block, do not print warnings of regard. Handlers that the user has configured still receive them."""
    # Without any handler, Python prints warnings to stderr.
    logger, handler = logging.getLogger("regard"), logging.NullHandler()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
