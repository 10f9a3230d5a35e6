"""Checkpoints: everything a run needs to go on to the bit, written so that a crash at any moment loses at
most the checkpoint being written.
"""

import hashlib
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save as serialize
from torch import Tensor, nn

from regard.data.tokens.tokenizers import TokenizerPair
from regard.errors import DivergedError, ModelError
from regard.evaluation.values import MetricValues
from regard.formatting import to_json
from regard.models.seq2seq import Seq2Seq, build_model
from regard.runs.folder import FORMAT, Checkpoint, RunFolder, UnreadableError
from regard.runs.lock import LockedFolder
from regard.runs.schedule import Schedule
from regard.runs.settings import RunSettings, TrainingSettings
from regard.runs.tensors import check_tensors, first_not_finite, read_tensors

log = logging.getLogger(__name__)


WEIGHTS, OPTIMIZER = "model.safetensors", "optimizer.safetensors"


@dataclass
class RunProgress:
    """How far a run has come; with the tensors of a checkpoint, all that it needs to go on."""

    data: dict[str, str]
    """A hash of each part of what is learned from."""
    schedule: Schedule
    """Maps each step to its position in the schedule, with all revisions so far."""
    step: int = 0
    best_step: int | None = None
    best: MetricValues | None = None
    best_name: str | None = None
    """The folder of the best checkpoint, where it is not that of its step."""
    stale: int = 0
    """Validations since the best one."""
    waited: int = 0
    """Validations since the best one or the last fall of the learning rate."""
    falls: int = 0
    """How often the learning rate has fallen on a plateau."""
    pieces: int = 1
    """The number of micro-batches that a batch is processed as; doubled when memory runs out."""
    eager: bool = False
    """Whether memory ran out with CUDA graphs, so that none are used."""
    averaged: bool = False
    """Whether the mean of the last checkpoints has been tried."""

    def is_over(self, settings: TrainingSettings) -> bool:
        """Whether all steps have been taken, or validation has not improved for as long as the settings allow."""
        extended = settings.steps > self.schedule.length
        return (self.step >= self.schedule.end and not extended) or self.stale >= settings.patience

    def to_json(self) -> dict[str, Any]:
        best = {"step": self.best_step, "name": self.best_name, **self.best.to_json()} if self.best else {}
        return {**asdict(self), "best": best}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> "RunProgress":
        best = MetricValues.from_json(state["best"]) if state["best"] else None
        return cls(**{**state, "best": best, "schedule": Schedule.from_json(state["schedule"])})


def save(
    locked: LockedFolder,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: RunProgress,
    averaged: Mapping[str, Tensor] | None = None,
) -> Checkpoint:
    """Save all that a run needs to resume.

    If there is a moving average of the weights, it is saved as the model, and the weights themselves are saved with
    the optimizer.
    """
    weights, state = _tensors(model), _optimizer_tensors(model, optimizer)
    if averaged is not None:
        state |= {f"weights/{name}": parameter.detach() for name, parameter in model.named_parameters()}
        weights |= averaged
    return _write(locked, f"step-{progress.step}", weights, state, progress)


def save_average(locked: LockedFolder, model: nn.Module, progress: RunProgress) -> Checkpoint:
    """A model to be used, which no training goes on from."""
    return _write(locked, f"mean-{progress.step}", _tensors(model), {}, progress)


def _write(
    locked: LockedFolder, name: str, model: dict[str, Tensor], optimizer: dict[str, Tensor], progress: RunProgress
) -> Checkpoint:
    """Write beside, sync, rename, sync: the checkpoint is there whole or not at all."""
    broken = first_not_finite(model) or first_not_finite(optimizer)
    if broken is not None:
        raise DivergedError(
            f"Training diverged by step {progress.step:,}: {broken} contains NaN or infinity. Nothing was saved; "
            "earlier checkpoints are valid. Try a lower training.learning_rate or a longer training.warmup."
        )
    draft = f".{name}"
    root = locked.directory
    with root.subdirectory("checkpoints") as checkpoints:
        checkpoints.remove(draft)
        with checkpoints.subdirectory(draft) as folder:
            files: dict[str, str] = {}

            def add(file: str, content: bytes) -> None:
                folder.write_synced(file, content)
                files[file] = hashlib.sha256(content).hexdigest()

            add(WEIGHTS, serialize(model))
            if optimizer:
                add(OPTIMIZER, serialize(optimizer))
            add("state.json", to_json(progress.to_json(), indent=1).encode())
            manifest = {
                "format": FORMAT,
                "files": files,
                "shapes": {name: list(tensor.shape) for name, tensor in model.items()},
                "tokenizers": {
                    own: hashlib.sha256(root.read(own)).hexdigest()
                    for own in root.names()
                    if own.startswith("tokenizer") and own.endswith(".json")
                },
            }
            folder.write_synced("manifest.json", to_json(manifest, indent=1).encode())
            folder.sync()
        checkpoints.remove(name)
        checkpoints.rename(draft, name)
        checkpoints.sync()
    return Checkpoint(locked.path / "checkpoints" / name)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """A model's weights and buffers; one that goes by several names (tied embeddings) by its first alone."""
    distinct: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        distinct.setdefault(id(tensor), (name, tensor.detach()))
    return dict(distinct.values())


def prune(
    locked: LockedFolder, keep: int, best_step: int | None, counts: Callable[[int], bool] = lambda _: True
) -> None:
    """Remove old checkpoints. Only whole ones count towards those to keep, and of these only the steps that `counts`
    says; the best always stays.
    """
    whole = 0
    with locked.directory.subdirectory("checkpoints") as checkpoints:
        for checkpoint in RunFolder(locked.path).all_checkpoints():
            if whole < keep:
                whole += counts(checkpoint.step) and checkpoint.problem() is None
            elif checkpoint.step != best_step:
                checkpoints.remove(checkpoint.path.name)


def remove_unfinished(locked: LockedFolder) -> None:
    """Remove the unfinished files of a killed process, and set damaged checkpoints aside."""
    if "checkpoints" not in locked.directory.names():
        return
    with locked.directory.subdirectory("checkpoints") as checkpoints:
        for name in checkpoints.names():
            if name.startswith((".step-", ".mean-")):
                checkpoints.remove(name)
        for checkpoint in RunFolder(locked.path).all_checkpoints():
            problem = checkpoint.problem()
            if problem is not None:
                log.warning("%s; it is set aside, and the checkpoint before it is used.", problem)
                aside = f"damaged-{checkpoint.path.name}"
                checkpoints.remove(aside)
                checkpoints.rename(checkpoint.path.name, aside)


class LoadedModel(NamedTuple):
    """A run's model as a checkpoint has it, and what goes with it."""

    settings: RunSettings
    tokenizers: TokenizerPair
    model: Seq2Seq
    checkpoint: Checkpoint


def load_model(folder: RunFolder, chosen: Checkpoint) -> LoadedModel:
    settings = folder.settings()
    tokenizers = TokenizerPair.load(folder.path, settings.tokenizer)
    model = build_model(settings.model, len(tokenizers.source), len(tokenizers.target))

    def load(checkpoint: Checkpoint) -> Checkpoint:
        load_weights(model, checkpoint)
        return checkpoint

    return LoadedModel(settings, tokenizers, model, folder.first_readable(chosen, load))


def load_weights(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Put a checkpoint's weights into a model; a tensor that does not fit is named."""
    _set_weights(model, read_tensors(checkpoint, WEIGHTS), checkpoint.path / WEIGHTS)


def _set_weights(model: nn.Module, found: Mapping[str, Tensor], path: Path) -> None:
    expected = _tensors(model)
    for name, parameter in expected.items():
        if name not in found:
            raise ModelError(f"{path} has no tensor {name}, which its config.yaml asks for.")
        if found[name].shape != parameter.shape:
            raise ModelError(
                f"{path}: the tensor {name} has the shape {tuple(found[name].shape)}, and the config.yaml beside "
                f"it makes it {tuple(parameter.shape)}. Were the files of two runs mixed?"
            )
    extra = set(found) - set(expected)
    if extra:
        raise ModelError(f"{path} has a tensor that its config.yaml does not know: {min(extra)}.")
    check_tensors(found, {name: parameter.dtype for name, parameter in expected.items()}, path)
    model.load_state_dict(found, strict=False)  # a matrix that goes by two names is there once


class SavedCheckpoint(NamedTuple):
    """A checkpoint in memory: all that a run needs to resume."""

    checkpoint: Checkpoint
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]

    @property
    def state(self) -> dict[str, Any]:
        return self.checkpoint.state

    @property
    def progress(self) -> RunProgress:
        try:
            return RunProgress.from_json(self.state)
        except (TypeError, KeyError) as error:
            raise ModelError(
                f"{self.checkpoint.path / 'state.json'} was written by another version of regard ({error}): the model "
                "can be used, but its training cannot be resumed."
            ) from None


def read_newest(folder: RunFolder) -> SavedCheckpoint | None:
    """The newest checkpoint that is complete and can be read; None if there is none."""
    for checkpoint in folder.complete():
        path = checkpoint.path / OPTIMIZER
        if not os.path.lexists(path):
            raise ModelError(f"{path} is missing: without the state of the optimizer, training cannot be resumed.")
        try:
            return SavedCheckpoint(checkpoint, read_tensors(checkpoint, WEIGHTS), read_tensors(checkpoint, OPTIMIZER))
        except UnreadableError as error:
            log.warning("%s The checkpoint before it is used.", error)
    return None


def restore(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    saved: SavedCheckpoint,
    averaged: Mapping[str, Tensor] | None = None,
) -> RunProgress:
    """Restore a model, its optimizer, the average of its weights and the random generators from a checkpoint."""
    path, tensors = saved.checkpoint.path, saved.optimizer
    dtypes = {name: torch.uint8 if name.startswith("random/") else torch.float32 for name in tensors}
    check_tensors(tensors, dtypes, path / OPTIMIZER)
    _set_weights(model, saved.weights, path / WEIGHTS)
    for name, parameter in model.named_parameters():
        prefix = f"{name}/"
        state = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        optimizer.state[parameter] = {key: value.to(parameter.device) for key, value in state.items()}
    if averaged is not None:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                averaged[name].copy_(parameter)
                parameter.copy_(tensors[f"weights/{name}"])
    set_random_state(tensors, next(model.parameters()).device)
    return saved.progress


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    tensors = {
        f"{name}/{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }
    return tensors | random_state(next(model.parameters()).device)


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The state of the random generators that training draws from."""
    state = {"random/cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["random/cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["random/cpu"])
    if "random/cuda" in state and device.type == "cuda":
        torch.cuda.set_rng_state(state["random/cuda"], device)
