"""Settings, batches and distillation for tests, and a way to stop a run."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import pytest
import torch

from regard.config import Settings
from regard.data.batching import Batch, EncodedCorpus, EncodedTexts
from regard.data.ragged import Ragged
from regard.data.tokens.tokenizers import END
from regard.models.seq2seq import Seq2Seq
from regard.models.settings import ModelSettings
from regard.runs.objective_settings import Teachers
from regard.training import loop
from regard.training.distillation import Distillation
from regard.training.state import TrainingState

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
"""Overrides with which `dates` trains for a few seconds."""


def make_corpus(sources: Iterable[list[int]], targets: Iterable[list[int]]) -> EncodedCorpus:
    """Return a corpus of token ids."""
    return EncodedCorpus(EncodedTexts(Ragged.of(sources)), EncodedTexts(Ragged.of(targets)))


def make_short_batch(*ids: int) -> Batch:
    """Return a batch of short pairs, selected from three by index."""
    sources, targets = [[4, 5, 6], [7], [8, 8]], [[5, 6, END], [7, 7, 7, 7, END], [END]]
    return make_corpus(sources, targets).batch(list(ids), torch.device("cpu"))


def make_distillation(*models: Seq2Seq, weight: float = 0.5) -> Distillation:
    """Return a distillation with untrained teachers."""
    return Distillation(tuple(model.eval() for model in models), Teachers(runs=("-",), weight=weight).loss_weights)


class ModelOnly(Settings):
    """Settings with a model and nothing else."""

    model: ModelSettings


def to_arguments(settings: Mapping[str, object]) -> list[str]:
    """Return settings as arguments of a command."""
    return [f"{key}={value}" for key, value in settings.items()]


@contextmanager
def stop_at(step: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Interrupt training after this step, as if the process were killed."""
    take_step = loop.take_step  # type: ignore[attr-defined]  # a test may have replaced it

    def take_step_or_stop(run: TrainingState) -> tuple[float, int]:
        if run.progress.step == step:
            raise KeyboardInterrupt
        return take_step(run)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "take_step", take_step_or_stop)
        with pytest.raises(KeyboardInterrupt):
            yield
