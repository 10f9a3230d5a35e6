"""Checkpoints: everything that a run needs to resume bit-identically. A crash at any moment loses at most the
checkpoint that is being written.
"""

import hashlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save as serialize
from torch import Tensor, nn

from regard.config import to_yaml
from regard.data.source_readers import build_reader
from regard.data.sources import SourceReader
from regard.data.tokens.tokenizers import TokenizerPair
from regard.errors import DivergedError, ModelError
from regard.formatting import to_json
from regard.models.seq2seq import Seq2Seq, build_model
from regard.runs.directory import LOCK, Directory, LockedFolder, lock_folder
from regard.runs.folder import RunFolder
from regard.runs.progress import RunProgress
from regard.runs.settings import RunSettings
from regard.runs.stored_checkpoint import (
    FORMAT,
    OPTIMIZER,
    WEIGHTS,
    Checkpoint,
    UnreadableError,
    describe_settings,
    hash_tokenizer_parts,
)
from regard.runs.tensors import (
    check_shapes,
    check_sizes,
    check_tensors,
    collect_tensors,
    first_not_finite,
    get_shapes,
    read_tensors,
)

log = logging.getLogger(__name__)


class SavedTensors(NamedTuple):
    """The tensors of a checkpoint."""

    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]


def collect_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, average: Mapping[str, Tensor] | None = None
) -> SavedTensors:
    """Return all tensors that a run needs to resume.

    If there is a moving average of the weights, it is saved as the model, and the weights themselves are saved with
    the optimizer.
    """
    weights, state = collect_tensors(model), _optimizer_tensors(model, optimizer)
    if average is not None:
        state |= {f"weights/{name}": parameter.detach() for name, parameter in model.named_parameters()}
        weights |= average
    return SavedTensors(weights, state)


def save(locked: LockedFolder, settings: RunSettings, tensors: SavedTensors, progress: RunProgress) -> Checkpoint:
    """Save everything that a run needs to resume."""
    return _write(locked, settings, f"step-{progress.step}", *tensors, progress)


def save_average(locked: LockedFolder, settings: RunSettings, model: nn.Module, progress: RunProgress) -> Checkpoint:
    """Save the average of the last checkpoints, without an optimizer: training cannot resume from it."""
    return _write(locked, settings, f"average-{progress.step}", collect_tensors(model), None, progress)


def save_model(
    path: Path,
    settings: RunSettings,
    tokenizers: TokenizerPair,
    weights: Mapping[str, Tensor],
    progress: RunProgress,
) -> None:
    """Write a model to an empty folder as a run with one checkpoint, without an optimizer."""
    weights = {name: tensor.cpu().float().contiguous() for name, tensor in weights.items()}
    with lock_folder(path) as locked:
        tokenizers.save(locked.directory.write)
        locked.directory.write("config.yaml", to_yaml(settings.relative_to(path)).encode())
        _write(locked, settings, f"step-{progress.step}", weights, None, progress)
    (path / LOCK).unlink()


def _write(
    locked: LockedFolder,
    settings: RunSettings,
    name: str,
    model: dict[str, Tensor],
    optimizer: dict[str, Tensor] | None,
    progress: RunProgress,
) -> Checkpoint:
    """Write a draft, sync it, rename it and sync its directory: the checkpoint is complete or does not exist."""
    broken = first_not_finite(model) or first_not_finite(optimizer or {})
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
            if optimizer is not None:  # it is empty before the first step
                add(OPTIMIZER, serialize(optimizer))
            add("state.json", to_json(progress.to_json(), indent=1).encode())
            manifest = _describe(files, model, settings, root)
            folder.write_synced("manifest.json", to_json(manifest, indent=1).encode())
            folder.sync()
        old = _hide(checkpoints, name)
        checkpoints.rename(draft, name)
        checkpoints.sync()
        checkpoints.remove(old)
    return Checkpoint(locked.path / "checkpoints" / name)


def _describe(
    files: Mapping[str, str], model: Mapping[str, Tensor], settings: RunSettings, root: Directory
) -> dict[str, Any]:
    """Return the manifest of a checkpoint: what its files must contain, and what its predictions depend on."""
    names = [name for name in root.names() if name.startswith("tokenizer") and name.endswith(".json")]
    tokenizers = {name: root.read(name) for name in names}
    return {
        "format": FORMAT,
        "files": files,
        "shapes": {name: list(tensor.shape) for name, tensor in model.items()},
        "settings": describe_settings(settings),
        "tokenizers": {name: hashlib.sha256(content).hexdigest() for name, content in tokenizers.items()},
        "tokenizer_parts": {
            name: hash_tokenizer_parts(content, root.path / name) for name, content in tokenizers.items()
        },
    }


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
                valid = checkpoint.find_problem() is None and checkpoint.find_optimizer_problem() is None
                kept += counts(checkpoint.step) and valid
            elif checkpoint.step != best_step:
                checkpoints.remove(_hide(checkpoints, checkpoint.path.name))


def _hide(checkpoints: Directory, name: str) -> str:
    """Rename a checkpoint, if it exists, to a hidden name, and return this name.

    A process that is killed while it removes the files of a checkpoint would leave one that is reported as damaged.
    """
    hidden = f".removed-{name}"
    checkpoints.remove(hidden)
    if name in checkpoints.names():
        checkpoints.rename(name, hidden)
    return hidden


def remove_unfinished(locked: LockedFolder) -> None:
    """Remove the unfinished files of a killed process, and rename damaged checkpoints to `damaged-…`."""
    if "checkpoints" not in locked.directory.names():
        return
    with locked.directory.subdirectory("checkpoints") as checkpoints:
        for name in checkpoints.names():
            if name.startswith((".step-", ".average-", ".removed-")):
                checkpoints.remove(name)
        for checkpoint in RunFolder(locked.path).all_checkpoints():
            problem = checkpoint.find_problem()
            if problem is not None:
                new_name = f"damaged-{checkpoint.path.name}"
                log.warning("%s. The checkpoint is renamed to %s, and is not used.", problem, new_name)
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


def load_weights(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Load the weights of a checkpoint into a model. Raise ModelError, with the name, if a tensor does not fit."""
    _set_weights(model, read_tensors(checkpoint, WEIGHTS), checkpoint.path / WEIGHTS)


def _set_weights(model: nn.Module, weights: Mapping[str, Tensor], path: Path) -> None:
    expected = collect_tensors(model)
    check_shapes(get_shapes(expected), get_shapes(weights), path)
    check_tensors(weights, {name: parameter.dtype for name, parameter in expected.items()}, path)
    model.load_state_dict(weights, strict=False)  # a shared tensor is saved under one name


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
    """Read the newest checkpoint from which training can resume; None if there is no complete checkpoint.

    Raise ModelError if there are complete checkpoints, but none with the state of the optimizer: training from scratch
    would replace a model that can be used.
    """
    problems = []
    for checkpoint in folder.complete_checkpoints():
        problem = checkpoint.find_optimizer_problem()
        if problem is not None:
            log.warning("%s. Training cannot resume from this checkpoint.", problem)
            problems.append(problem)
            continue
        try:
            return SavedCheckpoint(checkpoint, read_tensors(checkpoint, WEIGHTS), read_tensors(checkpoint, OPTIMIZER))
        except UnreadableError as error:
            log.warning("%s Training cannot resume from this checkpoint.", error)
    if problems:
        raise ModelError(
            f"{problems[0]}, and training cannot be resumed without the state of the optimizer. Copy {OPTIMIZER} from "
            f"the original run folder, or start a new run with `regard train --from {folder.path} --out DIR`."
        )
    return None


def restore(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    saved: SavedCheckpoint,
    average: Mapping[str, Tensor] | None = None,
) -> RunProgress:
    """Restore a model, its optimizer and the average of its weights from a checkpoint."""
    path = saved.checkpoint.path
    # Earlier versions of regard also saved the state of the random number generators.
    tensors = {name: tensor for name, tensor in saved.optimizer.items() if not name.startswith("random/")}
    check_tensors(tensors, dict.fromkeys(tensors, torch.float32), path / OPTIMIZER)
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
    return saved.progress


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}/{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }
