"""Settings, models, batches and distillation for tests, and a way to stop a run."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import regard
from regard.config import Settings, resolve
from regard.data.batching import Batch, EncodedCorpus, EncodedTexts
from regard.data.ragged import Ragged
from regard.data.settings import CharSide
from regard.data.source_readers import build_reader
from regard.data.tokens.tokenizers import END, Tokenizer, TokenizerPair
from regard.decoding.predictor import Predictor
from regard.decoding.settings import DecodingSettings
from regard.models.seq2seq import Seq2Seq, build_model
from regard.models.settings import ModelSettings
from regard.runs.settings import RunSettings, Teachers
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
    "decoding.max_length_ratio": 0.5,
    "decoding.max_length_extra": 6,
}
"""Overrides with which `dates` trains for a second. An untrained model predicts until the length limit."""


def thin(values: Iterable[Any], every: int = 5) -> list[Any]:
    """Return the parameters of a test: `make test` runs the first of every few, and `make test-all` runs all."""
    slow = pytest.mark.slow
    return [pytest.param(value, marks=slow) if number % every else value for number, value in enumerate(values)]


def build_untrained(
    base: Mapping[str, Any], changes: Mapping[str, Any], data: str = "dates", gain: float = 2.0
) -> regard.Model:
    """Return an untrained model of texts of the characters a to m, with weights that are larger by a gain, so that
    attention is not uniform. The data determines the kind of its sources.
    """
    torch.manual_seed(1)
    overrides = {f"model.{key}": value for key, value in changes.items()}
    settings = resolve(RunSettings, {"data": {"kind": data}, "model": dict(base)}, overrides)
    tokenizer = Tokenizer.of(CharSide(), ["abcdefghijklm"])
    network = build_model(settings.model, len(tokenizer), len(tokenizer)).eval()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.mul_(1.0 if "norm" in name or "sharpening" in name else gain)
    limits = DecodingSettings(max_length_ratio=0.5, max_length_extra=0)
    reader = build_reader(settings.model.encoder_settings, TokenizerPair(tokenizer, tokenizer), 50)
    return regard.Model(Predictor(network, reader, tokenizer, limits, 50), settings, step=0)


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
