"""Knowledge distillation (Hinton et al. 2015): a student learns from the data and from the models of other runs."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, final

import torch

from regard.data.settings import token_differences
from regard.data.source_readers import build_reader
from regard.data.tokens.tokenizers import TokenizerPair
from regard.errors import ConfigError, ModelError
from regard.formatting import short_path
from regard.models.seq2seq import Seq2Seq
from regard.runs import checkpoints
from regard.runs.checkpoints import LoadedModel
from regard.runs.folder import RunFolder, open_models
from regard.runs.progress import RunProgress
from regard.runs.settings import LossWeights, RunSettings

log = logging.getLogger(__name__)

TEACHER = "teacher "
"""Prefix of a teacher's name in the hashes of the inputs of a run."""


@final
@dataclass(frozen=True)
class Distillation:
    """The teachers, and the weights of the terms of the loss: their distribution is p, the student's is q."""

    models: tuple[Seq2Seq, ...]
    loss_weights: LossWeights
    description: str = ""


class TeacherModels(NamedTuple):
    """The teachers of a run, their tokenizers, which the student uses too, and the hashes of their weights."""

    distillation: Distillation | None = None
    tokenizers: TokenizerPair | None = None
    fingerprint: Mapping[str, str] = {}


def load_teachers(student: RunSettings, device: torch.device) -> TeacherModels:
    """Load the best checkpoint of each teacher that a student's settings name."""
    teachers = student.training.teachers
    if teachers is None:
        return TeacherModels()
    try:
        opened = open_models(*teachers.runs, accept_changes=student.training.accept_changes)
    except ModelError as error:
        raise ModelError(f"training.teachers: {error}") from None
    loaded = [checkpoints.load_model(*run) for run in opened]
    for (folder, _), teacher in zip(opened, loaded, strict=True):
        _check_same_tokens(folder, teacher.settings, student)
        _check_same_sources(folder, teacher, student)
        _warn_if_unfinished(folder, teacher.settings)
    models = tuple(teacher.model.to(device).eval().requires_grad_(False) for teacher in loaded)
    used = [(folder.path, teacher.checkpoint) for (folder, _), teacher in zip(opened, loaded, strict=True)]
    description = " and ".join(f"{short_path(path)} (step {checkpoint.step:,})" for path, checkpoint in used)
    hashes = {f"{TEACHER}{path}": checkpoint.weights_hash for path, checkpoint in used}
    return TeacherModels(Distillation(models, teachers.loss_weights, description), loaded[0].tokenizers, hashes)


def _check_same_tokens(teacher: RunFolder, settings: RunSettings, student: RunSettings) -> None:
    changed = [f"tokenizer.{key}" for key in token_differences(settings.tokenizer, student.tokenizer)]
    if changed:
        raise ConfigError(
            f"training.teachers: {teacher.path} was trained with a different {', '.join(changed)}, so its token "
            f"ids do not match. Copy `tokenizer:` from {teacher.config}."
        )


def _check_same_sources(folder: RunFolder, teacher: LoadedModel, student: RunSettings) -> None:
    reader = build_reader(student.model.encoder_settings, teacher.tokenizers, student.tokenizer.max_length)
    if not reader.is_compatible(teacher.reader):
        raise ConfigError(
            f"training.teachers: the encoder of {folder.path} reads another kind of source, or preprocesses sources "
            "differently. Use an encoder of the same kind with the same preprocessing options."
        )


def _warn_if_unfinished(teacher: RunFolder, settings: RunSettings) -> None:
    newest = teacher.newest()
    if newest is None:
        return
    progress = RunProgress.from_json(newest.state)
    if not progress.is_finished(settings.training):
        log.warning(
            "The teacher %s is not finished: it is at step %d of %d. If you continue its training, this run cannot be "
            "resumed.",
            teacher.path, newest.step, progress.schedule.end,
        )  # fmt: skip
