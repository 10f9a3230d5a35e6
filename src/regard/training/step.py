"""One training step: batches, gradients, clipping, update."""

import logging
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from regard.data.batching import Batch
from regard.errors import DivergedError, RankError, ResourceError
from regard.models.seq2seq import Seq2Seq
from regard.ops.cuda_graphs import is_out_of_memory
from regard.training.checkpointing import save
from regard.training.cuda_graphs import GraphedGradient
from regard.training.objective import LossModule, Objective
from regard.training.optim import clip_gradients, set_learning_rate
from regard.training.state import TrainingState

log = logging.getLogger(__name__)


def take_step(state: TrainingState) -> tuple[float, int]:
    """Update the weights once. Return the average loss per token, and the number of tokens."""
    step, training = state.progress.step, state.settings.training
    batches, tokens = state.prefetched.pop(step) if step in state.prefetched else state.batches(step)
    set_learning_rate(state.optimizer, state.learning_rate(step + 1))
    objective = state.objective.at(state.progress.schedule.position(step))
    if state.gradient is not None and state.gradient.objective != objective:
        state.gradient = GraphedGradient(state.model, objective)
    loss_: Tensor | None = None
    before = [buffer.clone() for buffer in state.changing_buffers]
    try:
        loss_ = compute_gradients(state.compiled, objective, batches, tokens, state.gradient, state.sharded)
    except RuntimeError as error:
        if not is_out_of_memory(error) or state.sharded is not None:  # the other ranks wait for weights of this one
            raise
    try:
        loss_ = state.group.sum_gradients(state.parameters, loss_)
        state.group.average_changes(state.changing_buffers, before)
    except RankError:
        for buffer, earlier in zip(state.changing_buffers, before, strict=True):
            buffer.copy_(earlier)  # the state after the previous step is saved
        raise
    if loss_ is None:  # not in the handler, whose traceback would keep the memory of the failed step
        _reduce_memory(state, batches)
        return take_step(state)
    norm_ = clip_gradients(state.parameters, training.max_grad_norm, state.group.combine_norms)
    if state.device.type == "cuda" and step + 1 < state.progress.schedule.end:
        state.prefetched = {step + 1: state.batches(step + 1)}  # while the GPU computes
    loss, norm = torch.stack([loss_, norm_]).tolist()
    if not np.isfinite([loss, norm]).all():
        raise DivergedError(
            f"Training diverged at step {step + 1:,}: the loss is {loss} and its gradient is no longer finite. "
            f"The weights were not updated. The batch holds the training pairs {_describe_pairs(state.pairs(step))}. "
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
    micro_batches: Sequence[Batch],
    tokens: int | None = None,
    graphed: GraphedGradient | None = None,
    sharded: LossModule | None = None,
) -> Tensor:
    """Set the gradients of a model to those of the loss, and return it: the sum over micro-batches, divided by a number
    of tokens, by default theirs. If the model is sharded, `sharded` computes the loss.
    """
    tokens = tokens or sum(batch.tokens for batch in micro_batches)
    losses = []
    if graphed is None:
        model.zero_grad(set_to_none=True)
    else:
        graphed.zero_grad()
    for batch in micro_batches:
        seed_generators(batch.target.tokens_BT.device, batch.seed)
        scale = 1 / tokens if batch.tokens else 0.0  # a batch of padding has none
        if graphed is None:
            loss: Tensor = (objective(model, batch) if sharded is None else sharded(objective, batch)) * scale
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        else:
            losses.append(graphed(batch, scale))
    return torch.stack(losses).sum()


def seed_generators(device: torch.device, seed: int) -> None:
    """Seed the random numbers of a micro-batch. They do not depend on what was computed before, or by which rank."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)


def _reduce_memory(state: TrainingState, batches: Sequence[Batch]) -> None:
    """After an out-of-memory error, stop using CUDA graphs, or else use twice as many micro-batches.

    Both change the rounding, and which random numbers are used for which pair. So the state is saved before the step is
    repeated: a run that is killed resumes in the same way.
    """
    progress = state.progress
    if state.gradient is not None:
        progress.eager = True
        state.release_cuda_graphs()
        remedy = "CUDA graphs are not used any more"
    elif max(state.group.maximum([len(batch.ids) for batch in batches])) == 1:
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
    save(state)


def _describe_pairs(ids: Sequence[int]) -> str:
    """Return the numbers of some training pairs."""
    shown = ", ".join(map(str, ids[:8]))
    return f"{shown} … ({len(ids)} in all)" if len(ids) > 8 else shown
