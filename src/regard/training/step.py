"""One training step: batches, gradients, clipping, update."""

import logging

import numpy as np
import torch
from torch import Tensor

from regard.data.batching import Batch
from regard.errors import DivergedError, ResourceError
from regard.models.seq2seq import Seq2Seq
from regard.ops.cuda_graphs import is_out_of_memory
from regard.runs import checkpoints
from regard.training.checkpointing import save
from regard.training.cuda_graphs import GraphedGradient
from regard.training.objective import Objective
from regard.training.optim import clip_gradients, set_learning_rate
from regard.training.state import TrainingState

log = logging.getLogger(__name__)


def take_step(state: TrainingState) -> tuple[float, int]:
    """Update the weights once. Return the average loss per token, and the number of tokens."""
    step, training = state.progress.step, state.settings.training
    batches = state.prefetched.pop(step, None) or state.batches(step)
    set_learning_rate(state.optimizer, state.learning_rate(step + 1))
    objective = state.objective.at(state.progress.schedule.position(step))
    if state.gradient is not None and state.gradient.objective != objective:
        state.gradient = GraphedGradient(state.model, objective)
    random, out_of_memory = checkpoints.get_random_state(state.device), False
    try:
        loss_, tokens = compute_gradients(
            state.compiled, objective, batches, state.progress.micro_batches, state.gradient
        )
    except RuntimeError as error:
        out_of_memory = is_out_of_memory(error)
        if not out_of_memory:
            raise
    if out_of_memory:  # not in the handler, whose traceback would keep the memory of the failed step
        _reduce_memory(state, batches, random)
        return take_step(state)
    norm_ = clip_gradients(state.parameters, training.max_grad_norm)
    if state.device.type == "cuda" and step + 1 < state.progress.schedule.end:
        state.prefetched = {step + 1: state.batches(step + 1)}  # while the GPU computes
    loss, norm = torch.stack([loss_, norm_]).tolist()
    if not np.isfinite([loss, norm]).all():
        raise DivergedError(
            f"Training diverged at step {step + 1:,}: the loss is {loss} and its gradient is no longer finite. "
            f"The weights were not updated. The batch holds the training pairs {_describe_pairs(batches)}. "
            "Try a lower training.learning_rate or a longer training.warmup."
        )
    state.update()
    state.progress.step = step + 1
    if state.average is not None:
        state.average.update(step + 1)
    return loss, tokens


def compute_gradients(
    model: Seq2Seq,
    objective: Objective,
    batches: list[Batch],
    micro_batches: int = 1,
    graphed: GraphedGradient | None = None,
) -> tuple[Tensor, int]:
    """Set the gradients of a model to those of the average loss per token. Return that loss, and the tokens.

    Each batch is processed as a number of micro-batches, whose gradients are accumulated.
    """
    tokens = max(1, sum(batch.tokens for batch in batches))  # a batch of padding has none
    losses = []
    if graphed is None:
        model.zero_grad(set_to_none=True)
    else:
        graphed.zero_grad()
    for micro_batch in (part for batch in batches for part in batch.split(micro_batches)):
        if graphed is None:
            loss = objective(model, micro_batch) * (1 / tokens)
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        else:
            losses.append(graphed(micro_batch, 1 / tokens))
    return torch.stack(losses).sum(), tokens


def _reduce_memory(state: TrainingState, batches: list[Batch], random: dict[str, Tensor]) -> None:
    """After an out-of-memory error, stop using CUDA graphs, or else use twice as many micro-batches.

    Both change the rounding, and which random numbers are used for which pair. So the random state before the step
    is restored and the state is saved before the step is repeated: a run that is killed resumes in the same way.
    """
    progress = state.progress
    if state.gradient is not None:
        progress.eager = True
        state.release_cuda_graphs()
        remedy = "CUDA graphs are not used any more"
    elif progress.micro_batches >= max(len(batch.ids) for batch in batches):
        longest = max(int(batch.source.length_hint_B.max()) for batch in batches)
        raise ResourceError(
            f"Out of memory at step {progress.step + 1:,}, even with a batch of one pair (the longest source has "
            f"length {longest}). Use a smaller model or a smaller tokenizer.max_length."
        )
    else:
        progress.micro_batches *= 2
        remedy = f"each batch is processed as {progress.micro_batches} micro-batches"
    log.warning(
        "Out of memory at step %d: from now on, %s. The weights differ in rounding from those of a run with more "
        "memory.", progress.step + 1, remedy,
    )  # fmt: skip
    checkpoints.set_random_state(random, state.device)
    save(state)


def _describe_pairs(batches: list[Batch]) -> str:
    """The numbers of the training pairs in some batches."""
    ids = [index for batch in batches for index in batch.ids]
    shown = ", ".join(map(str, ids[:8]))
    return f"{shown} … ({len(ids)} in all)" if len(ids) > 8 else shown
