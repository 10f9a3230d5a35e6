"""Teachers: models of other runs, whose answers a student learns from beside those of the data."""

from dataclasses import dataclass
from typing import final

import torch

from regard.data.tokens.tokenizers import TokenizerPair
from regard.errors import ConfigError
from regard.models.seq2seq import Seq2Seq
from regard.training import checkpoint
from regard.training.folder import Checkpoint, RunFolder, open_models
from regard.training.settings import RunSettings, Shares


@final
@dataclass(frozen=True)
class Teaching:
    """Models that teach, and how much their answers, the first of both, count beside the data."""

    models: tuple[Seq2Seq, ...]
    shares: Shares


@final
@dataclass(frozen=True)
class Staff:
    """The runs that a student's settings name, each with the checkpoint that its validation chose."""

    opened: list[tuple[RunFolder, Checkpoint]]

    @classmethod
    def of(cls, student: RunSettings) -> "Staff":
        """They must read and write the student's tokens."""
        if student.training.teachers is None:
            return cls([])
        opened = open_models(*student.training.teachers.runs)
        for folder, _ in opened:
            if folder.settings().tokenizer != student.tokenizer:
                raise ConfigError(
                    f"training.teachers: {folder.path} was trained with other settings of the tokenizer, and a student "
                    f"says what its teachers say in their tokens. Copy `tokenizer:` from {folder.config}."
                )
        return cls(opened)

    def tokenizers(self) -> TokenizerPair | None:
        """Those of all of them, and so the student's."""
        if not self.opened:
            return None
        folder, _ = self.opened[0]
        return TokenizerPair.load(folder.path, folder.settings().tokenizer)

    def fingerprint(self) -> dict[str, str]:
        """A hash of each one's weights."""
        return {str(folder.path): chosen.weights_hash for folder, chosen in self.opened}

    def teach(self, student: RunSettings, device: torch.device) -> Teaching | None:
        if student.training.teachers is None:
            return None
        models = [checkpoint.load_model(*each)[0].to(device).eval().requires_grad_(False) for each in self.opened]
        return Teaching(tuple(models), student.training.teachers.shares)
