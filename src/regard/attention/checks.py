"""Checks of the arguments of attention.

B rows, T queries, S memory slots, D width.
"""

import torch
from torch import Tensor

from regard.errors import ConfigError
from regard.ops.arguments import check_floating, check_tensors


def check_sequence(name: str, tensor: Tensor, size: int) -> None:
    """Raise an error unless a tensor is (rows, steps, size)."""
    check_tensors(**{name: tensor})
    if tensor.dim() != 3 or tensor.shape[-1] != size:
        raise ConfigError(f"{name} must have the shape (rows, steps, {size}), not {tuple(tensor.shape)}.")


def check_rows(query_BTD: Tensor, keys_BSD: Tensor) -> None:
    """Raise an error unless query and keys have the same number of rows."""
    if query_BTD.shape[0] != keys_BSD.shape[0]:
        raise ConfigError(
            f"query has {query_BTD.shape[0]} rows, but keys has {keys_BSD.shape[0]}. Pass the same number of rows."
        )


def check_memory(keys: Tensor, values: Tensor) -> None:
    """Raise an error if the memory has no slots, or if there is not one value for each key."""
    check_tensors(values=values)
    if keys.shape[1] == 0:
        raise ConfigError(
            f"keys have the shape {tuple(keys.shape)}: the memory is empty, so there is nothing to attend to. "
            "Pass at least one slot per row, and mask slots with `allowed`."
        )
    if values.dim() != 3 or values.shape[:2] != keys.shape[:2]:
        raise ConfigError(
            f"values has the shape {tuple(values.shape)}, but keys has {tuple(keys.shape)}. Pass one value per key."
        )


def check_mask(allowed: Tensor | None, keys_BSD: Tensor, queries: int | None = None) -> None:
    """Raise an error unless the mask is boolean and of shape (B, S) or (B, T, S).

    If the number of queries is not known yet, any T is accepted.
    """
    if allowed is None:
        return
    check_tensors(allowed=allowed)
    if allowed.dtype != torch.bool:
        raise ConfigError(f"allowed must be a boolean tensor (True = visible), not {allowed.dtype}.")
    if allowed.device != keys_BSD.device:
        raise ConfigError(
            f"allowed is on {allowed.device}, but keys is on {keys_BSD.device}. Move it with .to(device)."
        )
    rows, slots = keys_BSD.shape[:2]
    shape, steps = tuple(allowed.shape), "queries" if queries is None else queries
    accepted = {1, *(allowed.shape[1:2] if queries is None else [queries])}
    if shape != (rows, slots) and shape not in {(rows, count, slots) for count in accepted}:
        raise ConfigError(
            f"allowed must have the shape ({rows}, {slots}) or ({rows}, {steps}, {slots}) for (rows, slots) or "
            f"(rows, queries, slots), not {shape}."
        )


def check_inputs(
    query: Tensor | None,
    keys: Tensor,
    values: Tensor | None,
    allowed: Tensor | None,
    sizes: tuple[int, int, int],
    weight: Tensor | None,
) -> None:
    """Raise an error that names the argument, its shape, dtype or device, and the expected one.

    `sizes` are those of the query and of the keys, and the number of heads. The dtype and the device are those of a
    weight of the attention; if it has none, those of the first argument.
    """
    query_size, key_size, heads = sizes
    if query is not None:
        check_sequence("query", query, query_size)
    check_sequence("keys", keys, key_size)
    if query is not None:
        check_rows(query, keys)
    given = {"keys": keys, "values": keys if values is None else values}
    check_memory(**given)
    if given["values"].shape[-1] % heads:
        size = given["values"].shape[-1]
        raise ConfigError(f"values has the size {size}, which is not divisible by {heads} heads.")
    if query is not None:
        given = {"query": query, **given}
    name, first = next(iter(given.items()))
    owner = f"the {name} is" if weight is None else "the attention is"
    check_floating(first if weight is None else weight, owner, **given)
    check_mask(allowed, keys, None if query is None else query.shape[1])
