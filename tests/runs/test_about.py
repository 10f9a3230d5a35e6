"""The description of a run: that of its preset, while it is true."""

from pathlib import Path
from typing import Any

import pytest

from regard.config import presets, resolve
from regard.runs.settings import RunSettings


@pytest.mark.parametrize("name", presets())
def test_an_unchanged_preset_has_its_description(name: str) -> None:
    assert resolve(RunSettings, name, {}).true_about == presets()[name]


@pytest.mark.parametrize(
    ("overrides", "about"),
    [
        ({"seed": 3, "data.train": 100}, presets()["dates"]),
        ({"model.kind": "transformer"}, ""),
        ({"training.steps": 10}, ""),
        ({"model.kind": "transformer", "about": "A Transformer of dates"}, "A Transformer of dates"),
    ],
)
def test_a_changed_preset_has_only_a_description_of_its_own(overrides: dict[str, Any], about: str) -> None:
    assert resolve(RunSettings, "dates", overrides).true_about == about


def test_a_folder_with_the_name_of_a_preset_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = resolve(RunSettings, "dates", {})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dates").mkdir()
    assert settings.true_about == presets()["dates"]
