"""Finders: what they suggest is where the loss falls fastest, and they leave nothing behind."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from regard.config import resolve
from regard.errors import DataError
from regard.runs.settings import RunSettings
from regard.training.lr_finder import find_batch, find_learning_rate, steepest
from tests_shared import SMALL, words

SETTINGS = resolve(RunSettings, "dates", SMALL)


def test_the_steepest_fall_is_found_before_the_loss_bursts() -> None:
    rates = np.geomspace(1e-6, 1, 61)
    losses = 3 - 2 / (1 + (1e-3 / rates) ** 2) + np.where(rates > 1e-1, 100 * rates, 0)
    assert steepest(list(zip(rates.tolist(), losses.tolist(), strict=True))) == pytest.approx(1e-3, rel=0.3)


def test_a_learning_rate_is_found_that_learns() -> None:
    found = find_learning_rate(SETTINGS, steps=60)
    assert 1e-4 < found.suggestion < 0.3
    assert [rate for rate, _ in found.tried] == sorted(rate for rate, _ in found.tried)


def test_batches_are_doubled_while_that_is_faster() -> None:
    found = find_batch(SETTINGS, smallest=128)
    sizes = [size for size, _ in found.tried]
    assert all(after == 2 * before for before, after in pairwise(sizes))
    assert found.suggestion in sizes


def test_of_little_data_everything_is_one_batch() -> None:
    found = find_batch(SETTINGS, smallest=1 << 20)
    assert len(found.tried) == 1


def test_a_loss_that_never_was_a_number_is_told() -> None:
    with pytest.raises(DataError, match="no learning rate can be found"):
        steepest([])


def test_at_the_command_line_a_setting_is_printed_and_nothing_written(
    cli: Callable[..., object], tmp_path: Path
) -> None:
    done = cli("train", "dates", *words(SMALL), "--find", "learning-rate")
    assert done.returncode == 0, done.stderr  # type: ignore[attr-defined]
    key, value = done.stdout.strip().split("=")  # type: ignore[attr-defined]
    assert key == "training.learning_rate"
    assert 1e-5 < float(value) < 1
    assert not (tmp_path / "runs").exists()
