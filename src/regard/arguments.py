"""Checks of arguments, where users pass them. An error names the argument, its value, and what is expected.

A wrong type raises ArgumentTypeError, which is a TypeError. A wrong value, shape, dtype or device raises ConfigError,
which is a ValueError.

B rows, T queries, S memory slots, D width.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from regard.errors import ArgumentTypeError, ConfigError, is_iterable
from regard.formatting import did_you_mean, quantity, quote
from regard.quantities import MAX_SEED


def check_type(name: str, value: Any, types: Any, expected: str) -> Any:
    """Return the value, which must be an instance of the type, or of one of several. `expected` describes it in the
    message.
    """
    if not isinstance(value, types):
        raise ArgumentTypeError(f"{name} must be {expected}, not {type(value).__name__}.")
    return value


def check_integer(name: str, value: Any, minimum: int = 1, maximum: int = 10**9) -> int:
    """Return an integer of at least `minimum` and at most `maximum`. A bool is not an integer."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ArgumentTypeError(f"{name} must be an integer of at least {minimum}, not {value!r}.")
    if value < minimum:
        raise ConfigError(f"{name} must be an integer of at least {minimum}, not {quote(value)}.")
    if value > maximum:
        raise ConfigError(f"{name} must be an integer of at most {maximum:,}, not {quote(value)}.")
    return value


def check_seed(name: str, value: Any) -> int:
    return check_integer(name, value, 0, MAX_SEED)


def check_flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ArgumentTypeError(f"{name} must be True or False, not {value!r}.")
    return value


def check_text(name: str, text: Any) -> str:
    checked: str = check_type(name, text, str, "one text (str)")
    return checked


def check_texts(name: str, texts: Any) -> list[str]:
    """Return the texts as a list. Raise ArgumentTypeError for anything else, with its index."""
    if isinstance(texts, bytes | Mapping) or not is_iterable(texts):
        raise ArgumentTypeError(f"{name} must be a text (str) or a list of texts, not {type(texts).__name__}.")
    return [check_type(f"{name}[{index}]", text, str, "a text (str)") for index, text in enumerate(texts)]


def check_list(name: str, value: Any, expected: str) -> list[Any]:
    if isinstance(value, str | bytes | Mapping) or not is_iterable(value):
        raise ArgumentTypeError(f"{name} must be {expected}, not {type(value).__name__}.")
    return list(value)


def check_references(references: Any) -> list[str | list[str]]:
    """Return references as a list: a text, or a list of texts, for each source."""
    listed = check_list("references", references, "a list of texts, or of lists of texts")
    return [
        entry if isinstance(entry, str) else check_texts(f"references[{index}]", entry)
        for index, entry in enumerate(listed)
    ]


def check_metrics(metrics: Any) -> list[Any]:
    """Return the metrics as a list; a name is a single metric."""
    listed = [metrics] if isinstance(metrics, str) else check_list("metrics", metrics, "a list of names or mappings")
    if not listed:
        raise ConfigError("metrics is empty. Name at least one, for example metrics=['bleu'], or omit it.")
    return listed


DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int8
)}  # fmt: skip


def check_device(device: str | torch.device, argument: str = "device") -> torch.device:
    """Return the device; "auto" is the GPU if there is one, else the CPU."""
    check_type(argument, device, str | torch.device, "a name ('cpu', 'cuda', 'cuda:1') or a torch.device")
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        parsed = torch.device(device)
    except RuntimeError:
        parsed = None
    if parsed is None or parsed.type not in {"cpu", "cuda"}:
        raise ConfigError(f"{argument}={device}: not a supported device. Use cpu, cuda or cuda:N.")
    if parsed.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"{argument}={device}: no CUDA device is available. Use cpu or auto.")
    if parsed.type == "cuda" and parsed.index is not None and parsed.index >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise ConfigError(f"{argument}={device}: there is no such GPU. The last one is cuda:{last}.")
    return parsed


def check_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """Return the dtype of the weights of a model."""
    check_type("dtype", dtype, str | torch.dtype, "a torch.dtype or its name ('float32')")
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ConfigError(
            f"dtype={name}: not a supported dtype.{did_you_mean(name, DTYPES)} Available: {', '.join(DTYPES)}."
        )
    return DTYPES[name]


def check_tensors(**arguments: object) -> None:
    """Raise an error that names the first argument that is not a tensor."""
    for name, value in arguments.items():
        check_type(name, value, Tensor, "a tensor")


def check_integers(name: str, tokens: Any, *axes: str) -> None:
    """Raise an error unless an argument is a tensor of integers with these axes."""
    check_tensors(**{name: tokens})
    if tokens.dtype not in (torch.int64, torch.int32):
        raise ConfigError(f"{name} must be a tensor of integers (int64 or int32), not {tokens.dtype}.")
    if tokens.dim() != len(axes):
        shape = f"({', '.join(axes)}{',' if len(axes) == 1 else ''})"
        raise ConfigError(f"{name} must have the shape {shape}, not {tuple(tokens.shape)}.")


def check_same_device(name: str, tensor: Tensor, owner: str, device: torch.device) -> None:
    if tensor.device != device:
        raise ConfigError(f"{name} is on {tensor.device}, but {owner} is on {device}. Move one with .to(device).")


def has_values(tensor: Tensor) -> bool:
    """Whether the values of a tensor can be checked. Reading them on a GPU would synchronize, and there are no values
    during compilation.
    """
    return tensor.device.type == "cpu" and type(tensor) is Tensor and not torch.compiler.is_compiling()


def check_floating(like: Tensor, owner: str, **arguments: Tensor) -> None:
    """Raise an error unless tensors are floating-point, on the device of `like`, and of its dtype.

    The dtype may differ under autocast, which converts it. `owner` is what `like` belongs to, for the message.
    """
    for name, tensor in arguments.items():
        if not tensor.is_floating_point():
            raise ConfigError(
                f"{name} must be a floating-point tensor, not {tensor.dtype}. Convert it, for example with .float()."
            )
        if tensor.device != like.device:
            raise ConfigError(f"{name} is on {tensor.device}, but {owner} on {like.device}. Move one with .to(device).")
        if tensor.dtype != like.dtype and not torch.is_autocast_enabled(like.device.type):
            raise ConfigError(f"{name} is {tensor.dtype}, but {owner} {like.dtype}. Convert one with .to(dtype).")


def check_sequence(name: str, tensor: Tensor, size: int) -> None:
    """Raise an error unless a tensor is (rows, steps, size)."""
    check_tensors(**{name: tensor})
    if tensor.dim() != 3 or tensor.shape[-1] != size:
        raise ConfigError(f"{name} must have the shape (rows, steps, {size}), not {tuple(tensor.shape)}.")


def _check_mask(allowed: Tensor | None, keys_BSD: Tensor, queries: int | None = None) -> None:
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
    counts = (1, allowed.shape[1] if queries is None else queries)
    if shape not in [(rows, slots), *((rows, count, slots) for count in counts)]:
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
    """Check the inputs of an attention. An error names the argument, its shape, dtype or device, and the expected one.

    `sizes` are those of the query and of the keys, and the number of heads. The dtype and the device are those of a
    weight of the attention; if it has none, those of the first argument.
    """
    query_size, key_size, heads = sizes
    if query is not None:
        check_sequence("query", query, query_size)
    check_sequence("keys", keys, key_size)
    if query is not None and query.shape[0] != keys.shape[0]:
        raise ConfigError(
            f"query has {quantity(query.shape[0], 'row')}, but keys has {keys.shape[0]}. Pass the same number of rows."
        )
    values = keys if values is None else values
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
    if values.shape[-1] % heads:
        raise ConfigError(f"values has the size {values.shape[-1]}, which is not divisible by {heads} heads.")
    given = {"keys": keys, "values": values} if query is None else {"query": query, "keys": keys, "values": values}
    like, owner = (keys, "the keys are") if query is None else (query, "the query is")
    if weight is not None:
        like, owner = weight, "the attention is"
    check_floating(like, owner, **given)
    _check_mask(allowed, keys, None if query is None else query.shape[1])
