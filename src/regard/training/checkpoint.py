"""Checkpoints: everything a run needs to go on to the bit, written so that a crash at any moment loses at
most the checkpoint being written.
"""

import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import torch
from safetensors.torch import load_file
from safetensors.torch import save as serialize
from torch import Tensor, nn

from regard.data.cache import sha256
from regard.data.tokens.tokenizers import TokenizerPair
from regard.errors import ModelError
from regard.models.seq2seq import Seq2Seq, build_model
from regard.training.folder import FORMAT, Checkpoint, RunFolder, sync
from regard.training.scores import Scores
from regard.training.settings import RunSettings
from regard.training.weights import MovingAverage


@dataclass
class Progress:
    """How far a run has come; with the tensors of a checkpoint, all that it needs to go on."""

    data: dict[str, str]
    """A hash of each part of what is learned from."""
    step: int = 0
    best_step: int | None = None
    best: Scores | None = None
    best_name: str | None = None
    """The folder of the best checkpoint, where it is not that of its step."""
    stale: int = 0
    """Validations since the best one."""
    waited: int = 0
    """Validations since the best one or the last fall of the learning rate."""
    falls: int = 0
    """How often the learning rate has fallen on a plateau."""
    pieces: int = 1
    """In how many pieces a batch is worked out; doubled when memory gives out."""
    averaged: bool = False
    """Whether the mean of the last checkpoints has been tried."""

    def to_json(self) -> dict[str, Any]:
        best = {"step": self.best_step, "name": self.best_name, **self.best.to_json()} if self.best else {}
        return {**asdict(self), "best": best}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> "Progress":
        best = Scores.from_json(state["best"]) if state["best"] else None
        return cls(**{**state, "best": best})


def save(
    folder: RunFolder,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    average: MovingAverage | None = None,
) -> Checkpoint:
    """All that a run needs to go on. Where an average of the weights is used, it is the model, and the weights that it
    is of stand with the optimiser.
    """
    moving = _optimizer_tensors(model, optimizer)
    if average is not None:
        moving |= {f"weights/{name}": parameter.detach().clone() for name, parameter in model.named_parameters()}
    with average.in_place_of(model) if average is not None else nullcontext():
        return _write(folder, f"step-{progress.step}", _tensors(model), moving, progress)


def save_mean(folder: RunFolder, model: nn.Module, progress: Progress) -> Checkpoint:
    """A model to be used, which no training goes on from."""
    return _write(folder, f"mean-{progress.step}", _tensors(model), {}, progress)


def _write(
    folder: RunFolder, name: str, model: dict[str, Tensor], optimizer: dict[str, Tensor], progress: Progress
) -> Checkpoint:
    """Write beside, sync, rename, sync: the checkpoint is there whole or not at all."""
    folder.checkpoints.mkdir(exist_ok=True)
    final, draft = folder.checkpoints / name, folder.checkpoints / f".{name}"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    # Serialised here and written by Python, a full disk raises OSError like everywhere else.
    (draft / "model.safetensors").write_bytes(serialize(model))
    if optimizer:
        (draft / "optimizer.safetensors").write_bytes(serialize(optimizer))
    (draft / "state.json").write_text(json.dumps(progress.to_json(), indent=1), "utf-8")
    files = {entry.name: sha256(entry) for entry in sorted(draft.iterdir())}
    shapes = {name: list(tensor.shape) for name, tensor in model.items()}
    tokenizers = {entry.name: sha256(entry) for entry in sorted(folder.path.glob("tokenizer*.json"))}
    manifest = {"format": FORMAT, "files": files, "shapes": shapes, "tokenizers": tokenizers}
    (draft / "manifest.json").write_text(json.dumps(manifest, indent=1), "utf-8")
    for entry in draft.iterdir():
        sync(entry)
    sync(draft)
    shutil.rmtree(final, ignore_errors=True)
    draft.rename(final)
    sync(folder.checkpoints)
    return Checkpoint(final)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """A model's weights and buffers; one that goes by several names (tied embeddings) by its first alone."""
    distinct: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        distinct.setdefault(id(tensor), (name, tensor.detach()))
    return dict(distinct.values())


def prune(folder: RunFolder, keep: int, best_step: int | None, counts: Callable[[int], bool] = lambda _: True) -> None:
    """Remove old checkpoints. Only whole ones count towards those to keep, and of these only the steps that `counts`
    says; the best always stays.
    """
    whole = 0
    for checkpoint in folder.all_checkpoints():
        if whole < keep:
            whole += counts(checkpoint.step) and checkpoint.problem() is None
        elif checkpoint.step != best_step:
            shutil.rmtree(checkpoint.path)


class Loaded(NamedTuple):
    """A run's model as a checkpoint has it, and what goes with it."""

    settings: RunSettings
    tokenizers: TokenizerPair
    model: Seq2Seq


def load_model(folder: RunFolder, chosen: Checkpoint) -> Loaded:
    settings = folder.settings()
    tokenizers = TokenizerPair.load(folder.path, settings.tokenizer)
    model = build_model(settings.model, len(tokenizers.source), len(tokenizers.target))
    load_weights(model, chosen)
    return Loaded(settings, tokenizers, model)


def load_weights(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Put a checkpoint's weights into a model; a tensor that does not fit is named."""
    path = checkpoint.path / "model.safetensors"
    found = _read(path)
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
    model.load_state_dict(found, strict=False)  # a matrix that goes by two names is there once


def restore(
    model: nn.Module, optimizer: torch.optim.Optimizer, checkpoint: Checkpoint, average: MovingAverage | None = None
) -> Progress:
    """Set a model, its optimiser, its weights' average and the random generators to where a checkpoint left them."""
    path = checkpoint.path / "optimizer.safetensors"
    if not path.exists():
        raise ModelError(f"{path} is missing: this is a model without its optimiser, and cannot be trained on.")
    load_weights(model, checkpoint)
    tensors = _read(path)
    for name, parameter in model.named_parameters():
        prefix = f"{name}/"
        state = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        optimizer.state[parameter] = {key: value.to(parameter.device) for key, value in state.items()}
    if average is not None:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                average.weights[name].copy_(parameter)
                parameter.copy_(tensors[f"weights/{name}"])
    torch.set_rng_state(tensors["random/cpu"])
    if "random/cuda" in tensors and next(model.parameters()).is_cuda:
        torch.cuda.set_rng_state(tensors["random/cuda"], next(model.parameters()).device)
    try:
        return Progress.from_json(checkpoint.state)
    except (TypeError, KeyError) as error:
        raise ModelError(
            f"{checkpoint.path / 'state.json'} was written by another version of regard ({error}): the model can be "
            "used, and not be trained on."
        ) from None


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    tensors = {
        f"{name}/{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }
    tensors["random/cpu"] = torch.get_rng_state()
    if next(model.parameters()).is_cuda:
        tensors["random/cuda"] = torch.cuda.get_rng_state(next(model.parameters()).device)
    return tensors


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (safetensors.SafetensorError, OSError) as error:
        raise ModelError(f"{path} is damaged: {error}. Copy it again from where it was trained.") from None
