"""The embedding of a Transformer: tokens and positions.

B rows, T positions, D width.
"""

import math
from typing import final

import torch
from torch import Tensor, nn

from regard.attention.positions import LearnedPositions, sinusoidal_positions
from regard.errors import ConfigError
from regard.models.settings import TransformerLayers
from regard.ops.layers import Dropout

EXPORTED_POSITIONS = 4096
"""The number of sinusoidal positions in an exported graph."""


def embed(embedding: nn.Embedding, tokens: Tensor) -> Tensor:
    """Embed tokens. On a CPU, raise ConfigError for a token that is not in the vocabulary."""
    if torch.compiler.is_compiling():
        embedded: Tensor = embedding(tokens)
        return embedded
    try:
        embedded = embedding(tokens)
    except IndexError:
        wrong = int(tokens.max()) if int(tokens.min()) >= 0 else int(tokens.min())
        size = embedding.num_embeddings
        raise ConfigError(
            f"Token ids must be between 0 and {size - 1} (the vocabulary has {size} tokens), but one is {wrong}."
        ) from None
    return embedded


@final
class Embedding(nn.Module):
    """√d · token + position."""

    def __init__(self, settings: TransformerLayers, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, settings.size)
        nn.init.normal_(self.tokens.weight, std=settings.size**-0.5)
        self.scale = math.sqrt(settings.size)
        self.dropout = Dropout(settings.dropout)
        learned = settings.positions == "learned"
        self.learned = LearnedPositions(settings.max_positions, settings.size) if learned else None
        self.sinusoidal = settings.positions == "sinusoidal"

    def forward(self, tokens_BT: Tensor, start: int | Tensor = 0, max_length: int | None = None) -> Tensor:
        """Embed tokens at the positions from `start` on, all below `max_length`."""
        x_BTD = embed(self.tokens, tokens_BT) * self.scale
        if self.learned is not None:
            assert not isinstance(start, Tensor)
            x_BTD = x_BTD + self.learned.span(start, tokens_BT.shape[1])
        if self.sinusoidal:
            if max_length is None:
                assert not isinstance(start, Tensor)
                max_length = start + tokens_BT.shape[1]
            # An exported graph reads sequences of any length up to this one.
            is_exporting = torch.compiler.is_exporting()
            positions = EXPORTED_POSITIONS if is_exporting else 1 << max(8, (max_length - 1).bit_length())
            sinusoids_TD = _get_sinusoids(positions, x_BTD.shape[-1], x_BTD.dtype, x_BTD.device)
            if isinstance(start, Tensor):
                x_BTD = x_BTD + sinusoids_TD.index_select(0, start)
            else:
                x_BTD = x_BTD + sinusoids_TD[start : start + tokens_BT.shape[1]]
        dropped: Tensor = self.dropout(x_BTD)
        return dropped

    def prepare_export(self) -> None:
        """Compute the positions of an exported graph. While it is traced, tensors have no values."""
        weight = self.tokens.weight
        _get_sinusoids(EXPORTED_POSITIONS, weight.shape[1], weight.dtype, weight.device)


_SINUSOIDS: dict[tuple[int, int, torch.dtype, torch.device], Tensor] = {}


def _get_sinusoids(positions: int, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return sinusoidal positions, computed once. The tensor stays at its address, because CUDA graphs may read it."""
    key = positions, size, dtype, device
    if key not in _SINUSOIDS:
        with torch.inference_mode(False):
            _SINUSOIDS[key] = sinusoidal_positions(positions, size).to(device, dtype)
    return _SINUSOIDS[key]


# Equivalent to torch.compiler.assume_constant_result, which would import the compiler and take seconds at startup.
_get_sinusoids._dynamo_marked_constant = True  # type: ignore[attr-defined]
