"""Teachers: models of other runs, whose answers a student learns from beside those of the data."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, final

import torch

from regard.data.settings import other_tokens
from regard.data.tokens.tokenizers import TokenizerPair
from regard.errors import ConfigError, ModelError
from regard.formatting import short_path
from regard.models.seq2seq import Seq2Seq
from regard.runs import checkpoints
from regard.runs.checkpoints import RunProgress
from regard.runs.folder import RunFolder, open_models
from regard.runs.settings import RunSettings, Shares

log = logging.getLogger(__name__)

TEACHER = "teacher "
"""What the name of a teacher begins with among what a run learns from."""


@final
@dataclass(frozen=True)
class Distillation:
    """Models that teach, and how much their answers, the first of both, count beside the data."""

    models: tuple[Seq2Seq, ...]
    shares: Shares
    told: str = ""
    """Who they are."""


class TeacherModels(NamedTuple):
    """The runs that teach another: what they say, the tokens that they and so their student say it in, and a hash of
    each one's weights.
    """

    teaching: Distillation | None = None
    tokenizers: TokenizerPair | None = None
    fingerprint: Mapping[str, str] = {}


def load_teachers(student: RunSettings, device: torch.device) -> TeacherModels:
    """Those that a student's settings name, each as its validation chose it; where none are named, nobody."""
    teachers = student.training.teachers
    if teachers is None:
        return TeacherModels()
    try:
        opened = open_models(*teachers.runs)
    except ModelError as error:
        raise ModelError(f"training.teachers: {error}") from None
    loaded = [checkpoints.load_model(*each) for each in opened]
    for (folder, _), own in zip(opened, loaded, strict=True):
        _refuse_other_tokens(folder, own.settings, student)
        _warn_if_unfinished(folder, own.settings)
    models = tuple(own.model.to(device).eval().requires_grad_(False) for own in loaded)
    used = [(folder.path, own.checkpoint) for (folder, _), own in zip(opened, loaded, strict=True)]
    told = " and ".join(f"{short_path(path)} (step {chosen.step:,})" for path, chosen in used)
    hashes = {f"{TEACHER}{path}": chosen.weights_hash for path, chosen in used}
    return TeacherModels(Distillation(models, teachers.shares, told), loaded[0].tokenizers, hashes)


def teachers_in(data: Mapping[str, str] | str) -> dict[str, str]:
    """The teachers in the saved state of a run, each with the hash of its weights."""
    return {} if isinstance(data, str) else {name: own for name, own in data.items() if name.startswith(TEACHER)}


def _refuse_other_tokens(teacher: RunFolder, settings: RunSettings, student: RunSettings) -> None:
    changed = [f"tokenizer.{key}" for key in other_tokens(settings.tokenizer, student.tokenizer)]
    if changed:
        raise ConfigError(
            f"training.teachers: {teacher.path} was trained with another {', '.join(changed)}, and a student says "
            f"what its teachers say in their tokens. Copy `tokenizer:` from {teacher.config}."
        )


def _warn_if_unfinished(teacher: RunFolder, settings: RunSettings) -> None:
    newest = teacher.newest()
    if newest is None:
        return
    progress = RunProgress.from_json(newest.state)
    if not progress.is_over(settings.training):
        log.warning(
            "%s teaches as it is after %d of its %d steps; if it is trained on, its students cannot be.",
            teacher.path, newest.step, progress.schedule.end,
        )  # fmt: skip
