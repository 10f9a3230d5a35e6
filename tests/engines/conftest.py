"""Small Transformers with random weights. Some of their predictions end, and some reach the length limit or loop."""

from pathlib import Path

import pytest
import torch

import regard
from regard.data.tokens.tokenizers import END
from regard.models.transformer import TransformerDecoder
from tests_marian import train_transformer


def randomize(path: Path, norm: str, noise: float, bias: float) -> regard.Model:
    settings = {"model.norm": norm, "model.tied": "none", "model.output_bias": True, "training.steps": 1}
    model = train_transformer(path, **settings)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.network.parameters():
            weight.add_(noise * torch.randn(weight.shape, generator=generator))
        decoder = model.network.decoder
        assert isinstance(decoder, TransformerDecoder)
        decoder.output.bias[END] += bias
    return model


@pytest.fixture(scope="session")
def post_norm(tmp_path_factory: pytest.TempPathFactory) -> regard.Model:
    return randomize(tmp_path_factory.mktemp("engines") / "run", "post", 0.25, 2.0)


@pytest.fixture(scope="session")
def pre_norm(tmp_path_factory: pytest.TempPathFactory) -> regard.Model:
    return randomize(tmp_path_factory.mktemp("engines") / "run", "pre", 0.4, 4.0)
