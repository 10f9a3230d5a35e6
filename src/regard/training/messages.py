"""What a run reports to people when it starts, ends or diverges."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from regard.data.batching import Batch
from regard.data.sampler import padding_share
from regard.formatting import quantity
from regard.training.schedule import steps_per_epoch

if TYPE_CHECKING:
    from regard.training.loop import Training


def describe_start(run: "Training") -> str:
    progress, training = run.progress, run.settings.training
    if run.done:
        early = progress.step < progress.schedule.end
        how = f"Raise training.patience ({training.patience}) to continue." if early else ""
        return f"{run.folder.path} has already been trained. {how}".rstrip()
    parameters = sum(parameter.numel() for parameter in run.model.parameters())
    start = f"from step {progress.step:,} " if progress.step else ""
    padding = sum(padding_share(run.order, lengths) for lengths in run.data.train.lengths_in(0).T) / 2
    steps = -(-run.order.steps_per_epoch // training.accumulate)
    return (
        f"Training {parameters:,} parameters on {quantity(len(run.data.train), 'pair')} {start}"
        f"in {run.folder.path}, on {run.predictor.device}{run.objective.told()}. "
        f"An epoch has {quantity(steps, 'step')}; {padding:.0%} of the batches is padding."
    )


def describe_end(run: "Training") -> str:
    progress, training = run.progress, run.settings.training
    early = ""
    if progress.step < progress.schedule.end:
        early = f"; stopped early after {quantity(progress.stale, 'validation')} without improvement"
    best = progress.best.told(training.metric) if progress.best else "not validated"
    which = "average of the last checkpoints" if progress.best_name else f"step {progress.best_step}"
    epochs = progress.step / steps_per_epoch(run.order, training)
    short = ""
    if training.minutes is not None and epochs < 2:
        short = f" Each pair was seen {epochs:.1f} times: more minutes would improve the model."
    return f"Best model: {which}, {best}{early}.{short}"


def describe_pairs(batches: Sequence[Batch]) -> str:
    """The numbers of the training pairs in some batches."""
    ids = [index for batch in batches for index in batch.ids]
    shown = ", ".join(map(str, ids[:8]))
    return f"{shown} … ({len(ids)} in all)" if len(ids) > 8 else shown
