"""Pooling agrees with torch, in outputs and gradients."""

import pytest
import torch
from torch import nn

from regard.models.vision.convolutional import AveragePooling


@pytest.mark.parametrize(("shape", "grid"), [((6, 8), (3, 4)), ((7, 5), (3, 2)), ((3, 4), (5, 6)), ((1, 9), (1, 1))])
def test_average_pooling_agrees_with_torch(shape: tuple[int, int], grid: tuple[int, int]) -> None:
    x = torch.randn(2, 3, *shape, dtype=torch.float64, requires_grad=True)
    expected = nn.AdaptiveAvgPool2d(grid)(x)
    actual = AveragePooling(shape, grid).double()(x)
    torch.testing.assert_close(actual, expected)
    coefficients = torch.randn_like(expected)
    gradients = [torch.autograd.grad((pooled * coefficients).sum(), x)[0] for pooled in (actual, expected)]
    torch.testing.assert_close(*gradients)


def test_averages_are_exact_in_half_precision() -> None:
    """The matrices contain only zeros and ones, so that bfloat16 rounds the result alone."""
    x = torch.full((1, 1, 6, 9), 3.0, dtype=torch.bfloat16)
    assert torch.equal(AveragePooling((6, 9), (2, 3))(x), torch.full((1, 1, 2, 3), 3.0, dtype=torch.bfloat16))
