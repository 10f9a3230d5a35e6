"""Checks of the arguments of encoders and decoders. They do not read values on a GPU, and do not affect compilation.

B rows, T target steps, S memory slots, D width.
"""

from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import ArgumentTypeError, ConfigError
from regard.formatting import quantity
from regard.models.contracts import Memory, Tokens
from regard.ops.arguments import check_floating, check_integers, check_same_device, check_tensors, has_values


def check_tokens_source(source: object, embedding: nn.Embedding) -> None:
    """Raise an error unless a source is a batch of tokens on the device of an embedding, with lengths in range."""
    if not isinstance(source, Tokens):
        raise ArgumentTypeError(f"source must be a regard.Tokens, not {type(source).__name__}.")
    check_same_device("source.tokens_BT", source.tokens_BT, "the encoder", embedding.weight.device)
    lengths_B, steps = source.lengths_B, source.tokens_BT.shape[1]
    if len(lengths_B) and has_values(lengths_B) and not 0 <= int(lengths_B.min()) <= int(lengths_B.max()) <= steps:
        raise ConfigError(
            f"source.lengths_B must be between 0 and the number of steps, {steps}, not {lengths_B.tolist()}."
        )


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


def check_memory(memory: object, weight: Tensor, slot_size: int | None, summary_size: int | None) -> None:
    """Raise an error unless a memory has slots and a summary of these sizes, and matches a weight of the decoder. A
    size of None means that the decoder does not use this part.
    """
    if not isinstance(memory, Memory):
        raise ArgumentTypeError(
            f"memory must be a regard.Memory, as an encoder returns it, not {type(memory).__name__}."
        )
    rows = None
    if slot_size is not None:
        slots_BSD = _check_part("memory.slots_BSD", memory.slots_BSD, ("rows", "slots", slot_size), weight)
        rows = slots_BSD.shape[0]
        allowed_BS: Any = memory.allowed_BS
        check_tensors(**{"memory.allowed_BS": allowed_BS})
        if allowed_BS.dtype != torch.bool or allowed_BS.shape != slots_BSD.shape[:2]:
            raise ConfigError(
                f"memory.allowed_BS must be boolean with the shape {tuple(slots_BSD.shape[:2])} (rows, slots), not "
                f"{allowed_BS.dtype} with the shape {tuple(allowed_BS.shape)}."
            )
    if summary_size is not None:
        _check_part("memory.summary_BD", memory.summary_BD, ("rows" if rows is None else rows, summary_size), weight)


def _check_part(name: str, tensor: Any, shape: tuple[str | int, ...], weight: Tensor) -> Tensor:
    """Raise an error unless a tensor is floating-point and has this shape; an axis with a name has any size."""
    check_tensors(**{name: tensor})
    assert isinstance(tensor, Tensor)
    matches = tensor.dim() == len(shape) and all(
        isinstance(size, str) or actual == size for actual, size in zip(tensor.shape, shape, strict=True)
    )
    if not matches:
        raise ConfigError(f"{name} must have the shape ({', '.join(map(str, shape))}), not {tuple(tensor.shape)}.")
    check_floating(weight, "the decoder is", **{name: tensor})
    return tensor


def check_targets(tokens_BT: object, rows: int, embedding: nn.Embedding) -> None:
    """Raise an error unless tokens are (rows, steps) with the rows of the memory, on the device of an embedding."""
    check_integers("tokens", tokens_BT, "rows", "steps")
    assert isinstance(tokens_BT, Tensor)
    _check_rows_and_device("tokens", tokens_BT, rows, "the memory", embedding)


def check_token(token_B: object, rows: int, embedding: nn.Embedding) -> None:
    """Raise an error unless there is one token for each row of a state, on the device of an embedding."""
    check_integers("token", token_B, "rows")
    assert isinstance(token_B, Tensor)
    _check_rows_and_device("token", token_B, rows, "the state", embedding)


def check_step_types(state: object, keys: object, state_type: type, keys_type: type) -> None:
    """Raise an error unless the state and the keys of a step have the types that `begin` returns."""
    if not isinstance(state, state_type):
        raise ArgumentTypeError(f"state must be what `begin` or the last step returned, not {type(state).__name__}.")
    if not isinstance(keys, keys_type):
        raise ArgumentTypeError(f"keys must be what `begin` returned, not {type(keys).__name__}.")


def _check_rows_and_device(name: str, tokens: Tensor, rows: int, owner: str, embedding: nn.Embedding) -> None:
    if tokens.shape[0] != rows:
        raise ConfigError(
            f"{name} has {quantity(tokens.shape[0], 'row')}, but {owner} has {rows}. Pass the same number of rows."
        )
    check_same_device(name, tokens, "the decoder", embedding.weight.device)
