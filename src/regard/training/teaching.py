"""Teachers: models of other runs, whose answers a student learns from beside those of the data."""

import logging
from dataclasses import dataclass
from typing import final

import torch

from regard.config import differences
from regard.data.tokens.tokenizers import TokenizerPair
from regard.errors import ConfigError, ModelError
from regard.models.seq2seq import Seq2Seq
from regard.training import checkpoint
from regard.training.folder import Checkpoint, RunFolder, open_models
from regard.training.settings import RunSettings, Shares

log = logging.getLogger(__name__)

TEACHER = "teacher "
"""What the name of a teacher begins with among what a run learns from."""

_SAMPLING = ("dropout", "alpha", "drawn", "sampled")
"""Settings of a tokeniser that change no token: how segmentations are drawn in training."""


@final
@dataclass(frozen=True)
class Teaching:
    """Models that teach, and how much their answers, the first of both, count beside the data."""

    models: tuple[Seq2Seq, ...]
    shares: Shares
    told: str = ""
    """Who they are."""


@final
@dataclass(frozen=True)
class Staff:
    """The runs that a student's settings name, each with the checkpoint that its validation chose."""

    opened: list[tuple[RunFolder, Checkpoint]]
    shares: Shares | None = None

    @classmethod
    def of(cls, student: RunSettings) -> "Staff":
        """They must read and write the student's tokens."""
        teachers = student.training.teachers
        if teachers is None:
            return cls([])
        try:
            opened = open_models(*teachers.runs)
        except ModelError as error:
            raise ModelError(f"training.teachers: {error}") from None
        for folder, _ in opened:
            _refuse_other_tokens(folder, student)
            _warn_if_unfinished(folder)
        return cls(opened, teachers.shares)

    def tokenizers(self) -> TokenizerPair | None:
        """Those of all of them, and so the student's."""
        if not self.opened:
            return None
        folder, _ = self.opened[0]
        return TokenizerPair.load(folder.path, folder.settings().tokenizer)

    def fingerprint(self) -> dict[str, str]:
        """A hash of each one's weights."""
        return {f"{TEACHER}{folder.path}": chosen.weights_hash for folder, chosen in self.opened}

    def teach(self, device: torch.device) -> Teaching | None:
        if self.shares is None:
            return None
        models = [checkpoint.load_model(*each)[0].to(device).eval().requires_grad_(False) for each in self.opened]
        told = " and ".join(f"{folder.path} (step {chosen.step:,})" for folder, chosen in self.opened)
        return Teaching(tuple(models), self.shares, told)


def _refuse_other_tokens(teacher: RunFolder, student: RunSettings) -> None:
    changed = differences(teacher.settings().tokenizer, student.tokenizer)
    matters = [f"tokenizer.{key}" for key in changed if key.split(".")[-1] not in _SAMPLING]
    if matters:
        raise ConfigError(
            f"training.teachers: {teacher.path} was trained with another {', '.join(matters)}, and a student says "
            f"what its teachers say in their tokens. Copy `tokenizer:` from {teacher.config}."
        )


def _warn_if_unfinished(teacher: RunFolder) -> None:
    newest, training = teacher.newest(), teacher.settings().training
    state = newest.state if newest is not None else {}
    if state and state["step"] < training.steps and state["stale"] < training.patience:
        log.warning(
            "%s teaches as it is after %d of its %d steps; if it is trained on, its students cannot be.",
            teacher.path, state["step"], training.steps,
        )  # fmt: skip
