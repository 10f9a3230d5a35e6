"""Every preset is valid, has a description, and builds a model."""

import pytest

from regard.config import flatten, presets, resolve
from regard.models.seq2seq import build_model
from regard.runs.settings import RunSettings


@pytest.mark.parametrize("name", list(presets()))
def test_a_preset_is_valid_builds_a_model_and_is_unchanged_by_serialization(name: str) -> None:
    settings = resolve(RunSettings, name, {})
    assert settings.about
    assert resolve(RunSettings, settings.model_dump(mode="json"), {}) == settings
    model = build_model(settings.model, 50, 50)
    assert sum(parameter.numel() for parameter in model.parameters()) > 0
    assert "training.steps" in flatten(settings)
