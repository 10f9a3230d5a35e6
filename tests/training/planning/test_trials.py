"""The learning rate and batch size finders suggest plausible values, and leave no files behind."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from regard.config import resolve
from regard.errors import DataError
from regard.runs.settings import RunSettings
from regard.training.planning.trials import find_batch_tokens, find_learning_rate, find_steepest_descent
from tests_command import Result
from tests_shared import SMALL, to_arguments

SETTINGS = resolve(RunSettings, "dates", SMALL)


def test_steepest_descent_is_found_before_the_loss_diverges() -> None:
    rates = np.geomspace(1e-6, 1, 61)
    losses = 3 - 2 / (1 + (1e-3 / rates) ** 2) + np.where(rates > 1e-1, 100 * rates, 0)
    trials = list(zip(rates.tolist(), losses.tolist(), strict=True))
    assert find_steepest_descent(trials) == pytest.approx(1e-3, rel=0.3)


@pytest.mark.slow
def test_suggested_learning_rate_is_plausible() -> None:
    result = find_learning_rate(SETTINGS, steps=60)
    assert 1e-4 < result.suggestion < 0.3
    assert [rate for rate, _ in result.trials] == sorted(rate for rate, _ in result.trials)


def test_batches_are_doubled_while_training_becomes_faster() -> None:
    result = find_batch_tokens(SETTINGS, min_tokens=128)
    sizes = [size for size, _ in result.trials]
    assert all(after == 2 * before for before, after in pairwise(sizes))
    assert result.suggestion in sizes


def test_batches_are_not_larger_than_the_corpus() -> None:
    result = find_batch_tokens(SETTINGS, min_tokens=1 << 20)
    assert len(result.trials) == 1


def test_a_loss_that_is_never_finite_is_an_error() -> None:
    with pytest.raises(DataError, match="No learning rate can be suggested: the loss is not finite"):
        find_steepest_descent([])


@pytest.mark.slow
def test_the_command_line_prints_a_setting_and_writes_nothing(cli: Callable[..., Result], tmp_path: Path) -> None:
    done = cli("train", "dates", *to_arguments(SMALL), "--find", "learning-rate")
    assert done.returncode == 0, done.stderr
    key, value = done.stdout.strip().split("=")
    assert key == "training.learning_rate"
    assert 1e-5 < float(value) < 1
    assert not (tmp_path / "runs").exists()
