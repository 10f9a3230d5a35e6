"""Two runs with the same settings end with the same weights, bit for bit, for every kind of model."""

from pathlib import Path

import pytest
import torch

import determinism

KINDS = determinism.list_kinds(captcha=None)


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="the order of additions varies on a GPU only")
@pytest.mark.parametrize("name", KINDS)
def test_two_runs_on_a_gpu_are_identical(name: str, tmp_path: Path) -> None:
    first, second = (determinism.train(*KINDS[name], tmp_path / folder) for folder in ("first", "second"))
    assert first == second
