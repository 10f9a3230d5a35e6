"""Checkpoints: everything that a run needs to resume bit-identically. A crash at any moment loses at most the
checkpoint that is being written.
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

from regard.config import flatten
from regard.data.source_kinds import build_reader
from regard.data.sources import SourceReader
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


_SMALL_SIZE = 2_048
"""A model is built without a check if its sizes are at most this large, or are part of the shapes of its weights."""

WEIGHTS, OPTIMIZER = "model.safetensors", "optimizer.safetensors"


@dataclass
class RunProgress:
    """The state of a run besides its tensors, saved as state.json in each checkpoint."""

    data: dict[str, str]
    """A hash of each input of training: data files, and the weights of teachers and of the initial model."""
    schedule: Schedule
    """Maps steps to positions of the schedule, with all revisions so far."""
    step: int = 0
    best_step: int | None = None
    best: MetricValues | None = None
    best_name: str | None = None
    """The folder of the best checkpoint, unless it is `step-N`."""
    validations_since_best: int = 0
    plateau_validations: int = 0
    """Validations since the best one or since the last reduction of the learning rate."""
    lr_reductions: int = 0
    """The number of reductions of the learning rate at a plateau."""
    micro_batches: int = 1
    """The number of micro-batches that a batch is split into; doubled when memory runs out."""
    eager: bool = False
    """Whether memory ran out with CUDA graphs, so that they are not used any more."""
    average_tried: bool = False
    """Whether the average of the last checkpoints has been validated."""
    average_lengths: dict[str, float] | None = None
    """The average lengths of `source` and `target` in the training data."""

    def is_finished(self, settings: TrainingSettings) -> bool:
        """Whether all steps have been taken, or validation has not improved for `patience` validations."""
        extended = settings.steps > self.schedule.length
        finished = self.step >= self.schedule.end and not extended
        return finished or self.validations_since_best >= settings.patience

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
    average: Mapping[str, Tensor] | None = None,
) -> Checkpoint:
    """Save everything that a run needs to resume.

    If there is a moving average of the weights, it is saved as the model, and the weights themselves are saved with
    the optimizer.
    """
    weights, state = _tensors(model), _optimizer_tensors(model, optimizer)
    if average is not None:
        state |= {f"weights/{name}": parameter.detach() for name, parameter in model.named_parameters()}
        weights |= average
    return _write(locked, f"step-{progress.step}", weights, state, progress)


def save_average(locked: LockedFolder, model: nn.Module, progress: RunProgress) -> Checkpoint:
    """Save the average of the last checkpoints, without an optimizer: training cannot resume from it."""
    return _write(locked, f"average-{progress.step}", _tensors(model), {}, progress)


def _write(
    locked: LockedFolder, name: str, model: dict[str, Tensor], optimizer: dict[str, Tensor], progress: RunProgress
) -> Checkpoint:
    """Write a draft, sync it, rename it and sync its directory: the checkpoint is complete or does not exist."""
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
                    file: hashlib.sha256(root.read(file)).hexdigest()
                    for file in root.names()
                    if file.startswith("tokenizer") and file.endswith(".json")
                },
            }
            folder.write_synced("manifest.json", to_json(manifest, indent=1).encode())
            folder.sync()
        checkpoints.remove(name)
        checkpoints.rename(draft, name)
        checkpoints.sync()
    return Checkpoint(locked.path / "checkpoints" / name)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights and buffers of a model; a shared tensor (tied embeddings) only under its first name."""
    distinct: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        distinct.setdefault(id(tensor), (name, tensor.detach()))
    return dict(distinct.values())


def prune(
    locked: LockedFolder, keep: int, best_step: int | None, counts: Callable[[int], bool] = lambda _: True
) -> None:
    """Remove all checkpoints but the best and the newest `keep`.

    Damaged checkpoints, and those of steps for which `counts` is false, are not counted towards `keep`.
    """
    kept = 0
    with locked.directory.subdirectory("checkpoints") as checkpoints:
        for checkpoint in RunFolder(locked.path).all_checkpoints():
            if kept < keep:
                kept += counts(checkpoint.step) and checkpoint.find_problem() is None
            elif checkpoint.step != best_step:
                checkpoints.remove(checkpoint.path.name)


def remove_unfinished(locked: LockedFolder) -> None:
    """Remove the unfinished files of a killed process, and rename damaged checkpoints to `damaged-…`."""
    if "checkpoints" not in locked.directory.names():
        return
    with locked.directory.subdirectory("checkpoints") as checkpoints:
        for name in checkpoints.names():
            if name.startswith((".step-", ".average-")):
                checkpoints.remove(name)
        for checkpoint in RunFolder(locked.path).all_checkpoints():
            problem = checkpoint.find_problem()
            if problem is not None:
                new_name = f"damaged-{checkpoint.path.name}"
                log.warning("%s; it is renamed to %s, and the previous checkpoint is used.", problem, new_name)
                checkpoints.remove(new_name)
                checkpoints.rename(checkpoint.path.name, new_name)


class LoadedModel(NamedTuple):
    """A model with the weights of a checkpoint, its settings, the reader of its sources and its tokenizers."""

    settings: RunSettings
    reader: SourceReader
    tokenizers: TokenizerPair
    model: Seq2Seq
    checkpoint: Checkpoint


def load_model(folder: RunFolder, checkpoint: Checkpoint) -> LoadedModel:
    """Load a model from a checkpoint or, if it cannot be read, from the best of the others."""
    settings = folder.settings()
    tokenizers = TokenizerPair.load(folder.path, settings.tokenizer)
    check_sizes(settings, tokenizers, checkpoint)
    model = build_model(settings.model, len(tokenizers.source), len(tokenizers.target))

    def load(candidate: Checkpoint) -> Checkpoint:
        load_weights(model, candidate)
        return candidate

    reader = build_reader(settings.model.encoder_settings, tokenizers, settings.tokenizer.max_length)
    return LoadedModel(settings, reader, tokenizers, model, folder.read_first_readable(checkpoint, load))


def check_sizes(settings: RunSettings, tokenizers: TokenizerPair, checkpoint: Checkpoint) -> None:
    """Raise ModelError if the weights of a checkpoint do not have the sizes of the settings, before memory is allocated
    for a model of these sizes.
    """
    if not _has_unexplained_size(settings, checkpoint):
        return
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        try:
            model = build_model(settings.model, len(tokenizers.source), len(tokenizers.target))
        except (NotImplementedError, RuntimeError):  # a part that computes with its weights when it is built
            return
    _check_shapes(_shapes(_tensors(model)), checkpoint.shapes, checkpoint.path / WEIGHTS)


def _has_unexplained_size(settings: RunSettings, checkpoint: Checkpoint) -> bool:
    """Whether a large number in the settings of the model is not part of any shape. Only then is it worth the time to
    build the model without memory: PyTorch imports its compiler for that.
    """
    sizes = {size for shape in checkpoint.shapes.values() for size in shape}
    declared = (value for value in flatten(settings.model).values() if isinstance(value, int) and value > _SMALL_SIZE)
    return any(all(size % value for size in sizes if size) for value in declared)


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def load_weights(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Load the weights of a checkpoint into a model. Raise ModelError, with the name, if a tensor does not fit."""
    _set_weights(model, read_tensors(checkpoint, WEIGHTS), checkpoint.path / WEIGHTS)


def _set_weights(model: nn.Module, weights: Mapping[str, Tensor], path: Path) -> None:
    expected = _tensors(model)
    _check_shapes(_shapes(expected), _shapes(weights), path)
    check_tensors(weights, {name: parameter.dtype for name, parameter in expected.items()}, path)
    model.load_state_dict(weights, strict=False)  # a shared tensor is saved under one name


def _check_shapes(expected: Mapping[str, tuple[int, ...]], weights: Mapping[str, tuple[int, ...]], path: Path) -> None:
    for name, shape in expected.items():
        if name not in weights:
            raise ModelError(
                f"{path} has no tensor {name}, which the model of its config.yaml requires. The folder may contain "
                "files of different runs."
            )
        if weights[name] != shape:
            raise ModelError(
                f"{path}: the tensor {name} has the shape {weights[name]}, but the model of its config.yaml requires "
                f"{shape}. The folder may contain files of different runs."
            )
    extra = set(weights) - set(expected)
    if extra:
        raise ModelError(
            f"{path} has a tensor that the model of its config.yaml does not have: {min(extra)}. The folder may "
            "contain files of different runs."
        )


class SavedCheckpoint(NamedTuple):
    """A checkpoint in memory: everything that a run needs to resume."""

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
                f"{self.checkpoint.path / 'state.json'} was written by another version of regard ({error}). The model "
                "can be used, but its training cannot be resumed."
            ) from None


def read_newest(folder: RunFolder) -> SavedCheckpoint | None:
    """Read the newest complete checkpoint; None if there is none."""
    for checkpoint in folder.complete_checkpoints():
        path = checkpoint.path / OPTIMIZER
        if not os.path.lexists(path):
            raise ModelError(
                f"{path} is missing, and training cannot be resumed without the state of the optimizer. Copy it from "
                "the original run folder."
            )
        try:
            return SavedCheckpoint(checkpoint, read_tensors(checkpoint, WEIGHTS), read_tensors(checkpoint, OPTIMIZER))
        except UnreadableError as error:
            log.warning("%s The previous checkpoint is used.", error)
    return None


def restore(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    saved: SavedCheckpoint,
    average: Mapping[str, Tensor] | None = None,
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
    if average is not None:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                average[name].copy_(parameter)
                parameter.copy_(tensors[f"weights/{name}"])
    set_random_state(tensors, next(model.parameters()).device)
    return saved.progress


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    tensors = {
        f"{name}/{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }
    return tensors | get_random_state(next(model.parameters()).device)


def get_random_state(device: torch.device) -> dict[str, Tensor]:
    """Return the state of the random number generators that training uses."""
    state = {"random/cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["random/cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["random/cpu"])
    if "random/cuda" in state and device.type == "cuda":
        torch.cuda.set_rng_state(state["random/cuda"], device)
