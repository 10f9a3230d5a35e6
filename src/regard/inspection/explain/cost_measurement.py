"""Measure what the parts of a model do not declare: multiply-adds, and memory in bytes.

A module runs with a few short sources and targets, on the device of its weights. If this is `meta`, only shapes are
computed. A polynomial of degree 2 in the lengths is then fitted to the results. What cannot be measured is unknown, for
example if a plugin reads values of tensors, which `meta` does not have.

S source positions, T target steps, K hypotheses of a beam, B rows.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.attention.attention import Attention
from regard.models.contracts import Decoder, Encoder, Memory, Source, map_state
from regard.models.seq2seq import Seq2Seq
from regard.ops.cost import UNKNOWN_COST, Cost, Exponents, K, PartCost, count_multiply_adds, parameters_of
from regard.ops.reference_mode import reference_mode

log = logging.getLogger(__name__)

_LINEAR: tuple[Exponents, ...] = ((0, 0, 0), (1, 0, 0))
_QUADRATIC: tuple[Exponents, ...] = ((0, 0, 0), (1, 0, 0), (2, 0, 0))
_BOTH: tuple[Exponents, ...] = (*_QUADRATIC, (0, 1, 0), (0, 2, 0), (1, 1, 0))
_TARGET: tuple[Exponents, ...] = ((0, 0, 0), (0, 1, 0), (0, 2, 0))

_LENGTHS = {
    _LINEAR: ((2, 2), (3, 2)),
    _QUADRATIC: ((2, 2), (3, 2), (4, 2)),
    _TARGET: ((2, 2), (2, 3), (2, 4)),
    _BOTH: ((2, 2), (3, 2), (4, 2), (2, 3), (2, 4), (3, 3)),
}
"""The pairs of lengths that determine the coefficients of these terms."""


def fit_cost(measure: Callable[[int, int], float], terms: tuple[Exponents, ...]) -> Cost:
    """Return the polynomial with these terms that a function of the lengths S and T computes."""
    lengths = _LENGTHS[terms]
    matrix = np.array([[source**s * target**t for s, t, _ in terms] for source, target in lengths], dtype=float)
    values = np.array([measure(source, target) for source, target in lengths], dtype=float)
    solution = np.linalg.solve(matrix, values)
    # The exact coefficients are multiples of 1/2; the others result from rounding.
    coefficients = [round(2 * value) / 2 for value in solution.tolist()]
    return Cost({exponents: value for exponents, value in zip(terms, coefficients, strict=True) if value})


def _fit_if_possible(measure: Callable[[int, int], float], terms: tuple[Exponents, ...]) -> Cost:
    try:
        return fit_cost(measure, terms)
    except Exception as error:  # a plugin can fail in any way on the device meta
        log.debug("A cost cannot be measured: %s: %s", type(error).__name__, error)
        return UNKNOWN_COST


def encoder_costs(encoder: Encoder[Any]) -> Sequence[PartCost]:
    """Return the multiply-adds that an encoder declares; if it declares none, count them."""
    declared = encoder.costs()
    if declared is not None:
        return declared

    def count(source: int, target: int) -> int:
        del target
        example = _example_source(encoder, source)
        return count_multiply_adds(lambda: encoder(example))

    cost = _fit_if_possible(count, _QUADRATIC)
    return [PartCost(type(encoder).__name__, cost, cost, parameters_of(encoder))]


def decoder_costs(decoder: Decoder, memory_size: int) -> Sequence[PartCost]:
    """Return the multiply-adds that a decoder declares; if it declares none, count them."""
    declared = decoder.costs()
    if declared is not None:
        return declared
    device = _device(decoder)

    def count_forward(source: int, target: int) -> int:
        memory, tokens_BT = _zero_memory(source, memory_size, device), _zero_tokens(target, device)
        return count_multiply_adds(lambda: decoder(tokens_BT, memory).logits_BTV)

    def count_steps(source: int, target: int) -> int:
        memory = _zero_memory(source, memory_size, device)
        return count_multiply_adds(lambda: _run_steps(decoder, memory, target))

    forward = _fit_if_possible(count_forward, _BOTH)
    once = _fit_if_possible(lambda source, _: count_steps(source, 0), _QUADRATIC)
    search = once + K * (_fit_if_possible(count_steps, _BOTH) - once)
    return [PartCost(type(decoder).__name__, forward, search, parameters_of(decoder))]


def measure_activations(model: Seq2Seq) -> Cost:
    """Return the bytes that autograd keeps for the backward pass of one pair, without the parameters."""
    encoder, device = model.encoder, _device(model)

    def measure(source: int, target: int) -> int:
        example = _example_source(encoder, source)
        tokens_BT = _zero_tokens(target, device)
        with _saved_storages(model) as storages, _FusedOnMeta():
            logits_BTV = model(example, tokens_BT).logits_BTV
            nn.functional.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT.flatten())
        return sum(storage.nbytes() for storage in storages.values())

    was_training = model.training
    model.train()
    try:
        if encoder.fixed_slots is not None:
            return _fit_if_possible(measure, _TARGET)
        # What does not depend on the lengths are copies of weights, which all pairs of a batch share.
        return _fit_if_possible(measure, _BOTH).without_constant
    finally:
        model.train(was_training)


def measure_keys(decoder: Decoder, memory_size: int) -> Cost:
    """Return the bytes that a decoder keeps for each source while it decodes, such as projected keys and values."""

    def measure(source: int, target: int) -> int:
        del target
        sizes = []
        for rows in (1, 2):  # packed weights in the keys do not depend on the number of rows
            with torch.no_grad(), reference_mode():
                keys, _ = decoder.begin(_zero_memory(source, memory_size, _device(decoder), rows))
            sizes.append(_count_bytes(keys))
        return sizes[1] - sizes[0]

    return _fit_if_possible(measure, _LINEAR)


def measure_state(decoder: Decoder, memory_size: int) -> Cost:
    """Return the bytes of the state of a hypothesis, without a KV cache."""

    def measure(source: int, target: int) -> int:
        del target
        with torch.no_grad(), reference_mode():
            state = _run_steps(decoder, _zero_memory(source, memory_size, _device(decoder)), 1)
        return _count_bytes(state)

    return _fit_if_possible(measure, _LINEAR)


def measure_cache(decoder: Decoder) -> Cost:
    """Return the bytes of the KV cache of a hypothesis: the keys and values of all self-attentions of the decoder."""
    attentions = [module for module in decoder.modules() if isinstance(module, Attention)]
    per_step = 0
    for attention in attentions:
        if attention.role == "decoder-self":
            with torch.no_grad():
                keys = attention.prepare(torch.zeros(1, 1, attention.key_size, device=_device(decoder)))
            per_step += sum(tensor.nbytes for tensor in (keys.prepared, keys.values_BHSD))
    return Cost({(0, 1, 0): per_step} if per_step else {})


def _device(module: nn.Module) -> torch.device:
    return next(module.parameters()).device


def _example_source(encoder: Encoder[Any], length: int) -> Source:
    source: Source | None = encoder.example_source(length, _device(encoder))
    if source is None:
        raise ValueError(f"{type(encoder).__name__} has no example_source")
    return source


def _zero_tokens(length: int, device: torch.device) -> Tensor:
    return torch.zeros(1, length, dtype=torch.long, device=device)


def _zero_memory(slots: int, size: int, device: torch.device, rows: int = 1) -> Memory:
    allowed_BS = torch.ones(rows, slots, dtype=torch.bool, device=device)
    slots_BSD, summary_BD = torch.zeros(rows, slots, size, device=device), torch.zeros(rows, size, device=device)
    return Memory(slots_BSD, allowed_BS, summary_BD, torch.zeros(rows, slots, dtype=torch.long, device=device))


def _run_steps(decoder: Decoder, memory: Memory, steps: int) -> Any:
    """Decode step by step, and return the last state."""
    keys, state = decoder.begin(memory)
    token_B = torch.zeros(len(memory.slots_BSD), dtype=torch.long, device=memory.slots_BSD.device)
    for _ in range(steps):
        _, state = decoder.step(token_B, state, keys)
    return state


def _count_bytes(state: Any) -> int:
    """Return the bytes of all tensors of a state or of keys, without KV caches, whose size depends on the capacity."""
    sizes: list[int] = []
    map_state(state, lambda leaf: sizes.append(leaf.nbytes) if isinstance(leaf, Tensor) else None, "preallocate")
    return sum(sizes)


@contextmanager
def _saved_storages(model: nn.Module) -> Iterator[dict[int, torch.UntypedStorage]]:
    """Collect the storages of the tensors that autograd keeps for the backward pass, without those of the model."""
    own = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
    storages: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            storages[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield storages


class _FusedOnMeta(TorchFunctionMode):
    """Use the fused kernel of the CPU for scaled dot-product attention on the device `meta`, where torch would choose
    the one that stores all weights. The kernel requires values of the width of the keys, and no dropout.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is not nn.functional.scaled_dot_product_attention or not args[0].is_meta:
            return func(*args, **kwargs)
        query, key, value, mask = args
        if kwargs.get("dropout_p") or value.shape[-1] != key.shape[-1]:
            return func(*args, **kwargs)
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return kernel(query, key, value, attn_mask=mask, scale=kwargs.get("scale"))[0]
