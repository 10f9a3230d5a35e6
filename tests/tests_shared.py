"""Settings, pairs and teachers that tests share, and a way to stop a run."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from regard.config import Settings
from regard.data.batching import Batch, EncodedCorpus
from regard.data.ragged import Ragged
from regard.data.tokens.tokenizers import END
from regard.models.seq2seq import Seq2Seq
from regard.models.settings import Model
from regard.runs.settings import Teachers
from regard.training import loop
from regard.training.distillation import Distillation

SMALL = {
    "data.train": 400,
    "data.dev": 40,
    "data.test": 40,
    "model.embedding": 16,
    "model.encoder.hidden": 16,
    "model.decoder.hidden": 16,
    "training.steps": 30,
    "training.batch_size": 32,
    "training.warmup": 5,
    "training.validate_every": 10,
    "training.save_every": 10,
    "training.log_every": 5,
}
"""Overrides that make of `dates` a run of a few seconds."""


def three_pairs(*ids: int) -> Batch:
    """Some of three short pairs, in a batch."""
    sources, targets = [[4, 5, 6], [7], [8, 8]], [[5, 6, END], [7, 7, 7, 7, END], [END]]
    return EncodedCorpus(Ragged.of(sources), Ragged.of(targets)).batch(list(ids), torch.device("cpu"))


def teaching(*models: Seq2Seq, weight: float = 0.5) -> Distillation:
    """Models that teach without having been trained."""
    return Distillation(tuple(model.eval() for model in models), Teachers(runs=("-",), weight=weight).loss_weights)


class OneModel(Settings):
    """A model, and nothing else that makes a run."""

    model: Model


def words(settings: dict[str, object]) -> list[str]:
    """Settings as the words of a command."""
    return [f"{key}={value}" for key, value in settings.items()]


@contextmanager
def stopped_at(step: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process dies, as it were, right before it would take the step after this one."""
    take = loop.take_step

    def die(run: loop.TrainingState) -> tuple[float, int]:
        if run.progress.step == step:
            raise KeyboardInterrupt
        return take(run)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "take_step", die)
        with pytest.raises(KeyboardInterrupt):
            yield
