"""Measure what a model costs: the multiply-adds of its parts, and memory in bytes.

Encoder and decoder run with a few short sources and targets, on the device of their weights. If this is `meta`, only
shapes are computed. A polynomial of degree 2 in the lengths is then fitted to the results. What cannot be measured is
unknown, for example if a plugin reads values of tensors, which `meta` does not have.

The multiply-adds are those of matrix products, convolutions and additive scores. Elementwise operations (activations,
normalization, softmax, masks) are not counted, as in torch.utils.flop_counter, which counts two operations for each
multiply-add.

S source positions, T target steps, K hypotheses of a beam, B rows.
"""

import logging
import operator
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from regard.attention.record import find_attentions
from regard.models.contracts import Decoder, Encoder, Memory, Source, map_state
from regard.models.seq2seq import Seq2Seq
from regard.ops.cost import UNKNOWN_COST, Cost, CostPart, Exponents, K, T
from regard.ops.reference_mode import reference_mode

log = logging.getLogger(__name__)

_CONSTANT: tuple[Exponents, ...] = ((0, 0, 0),)
_LINEAR: tuple[Exponents, ...] = (*_CONSTANT, (1, 0, 0))
_QUADRATIC: tuple[Exponents, ...] = (*_LINEAR, (2, 0, 0))
_TARGET: tuple[Exponents, ...] = (*_CONSTANT, (0, 1, 0), (0, 2, 0))
_BOTH: tuple[Exponents, ...] = (*_QUADRATIC, (0, 1, 0), (0, 2, 0), (1, 1, 0))


class PartCost(NamedTuple):
    """The multiply-adds of a part of a model for one pair, and the parameters of the part."""

    part: CostPart
    forward: Cost
    """With a given target, all steps at once: the forward pass of training."""
    search: Cost
    """With beam search: each step of each hypothesis."""
    parameters: tuple[nn.Parameter, ...]


def count_encoder(encoder: Encoder[Any]) -> list[PartCost]:
    """Count the multiply-adds of the parts of an encoder."""
    parts = _Parts(encoder, encoder.cost_parts())
    terms = _QUADRATIC if encoder.fixed_slots is None else _CONSTANT
    costs = parts.fit(lambda source, _: encoder(_example_source(encoder, source)), terms)
    return parts.combine(costs, costs)


def count_decoder(decoder: Decoder, memory_size: int, fixed_slots: int | None) -> list[PartCost]:
    """Count the multiply-adds of the parts of a decoder, at once with a given target, and step by step."""
    parts, device = _Parts(decoder, decoder.cost_parts()), _device(decoder)
    terms = _BOTH if fixed_slots is None else _TARGET

    def run_forward(source: int, target: int) -> Tensor:
        memory = _zero_memory(fixed_slots or source, memory_size, device)
        logits_BTV: Tensor = decoder(_zero_tokens(target, device), memory).logits_BTV
        return logits_BTV

    def run_steps(source: int, target: int) -> None:
        _run_steps(decoder, _zero_memory(fixed_slots or source, memory_size, device), target)

    greedy = parts.fit(run_steps, terms, shortest_target=0)
    search = [_add_hypotheses(part, cost) for part, cost in zip(parts.parts, greedy, strict=True)]
    return parts.combine(parts.fit(run_forward, terms), search)


def _add_hypotheses(part: CostPart, greedy: Cost) -> Cost:
    """Return the cost of a search for K hypotheses, given that for one. What does not depend on T is computed once.

    A self-attention compares step t with t steps, so that its cost contains c (T² + T). The fused path compares each
    hypothesis with the steps of all K, and masks those of the others.
    """
    once = Cost({exponents: value for exponents, value in greedy.terms.items() if not exponents[1]})
    compared = greedy.terms.get((0, 2, 0), 0) * (T * T + T)
    attentions = (attention for m in part.modules for attention in find_attentions(m, "decoder-self").values())
    is_shared = any(attention.fused for attention in attentions)
    return once + K * (greedy - once - compared) + (K * K if is_shared else K) * compared


class _Parts:
    """The parts of an encoder or a decoder, and which of them each module belongs to."""

    def __init__(self, root: nn.Module, parts: Sequence[CostPart]) -> None:
        self.root = root
        listed = {id(module): index for index, part in enumerate(parts) for module in part.modules}
        self.parts = [*parts] if id(root) in listed else [*parts, CostPart("other parameters", (root,))]
        self.owners: dict[int, int] = {}

        def assign(module: nn.Module, owner: int) -> None:
            self.owners[id(module)] = listed.get(id(module), owner)
            for child in module.children():
                assign(child, self.owners[id(module)])

        assign(root, len(parts))

    def fit(
        self, run: Callable[[int, int], object], terms: tuple[Exponents, ...], shortest_target: int = 2
    ) -> list[Cost]:
        """Return the multiply-adds of each part in a function of the lengths S and T."""

        def count(source: int, target: int) -> list[int]:
            with reference_mode(), torch.no_grad(), _Counter(self.owners, self.root) as counter:
                run(source, target)
            return [counter.operations[index] // 2 for index in range(len(self.parts))]

        return _fit_if_possible(count, terms, shortest_target) or [UNKNOWN_COST] * len(self.parts)

    def combine(self, forward: Sequence[Cost], search: Sequence[Cost]) -> list[PartCost]:
        """Return the costs of the parts that have parameters or compute something."""
        parameters: list[list[nn.Parameter]] = [[] for _ in self.parts]
        for module in self.root.modules():
            parameters[self.owners[id(module)]] += module.parameters(recurse=False)
        costs = map(PartCost, self.parts, forward, search, map(tuple, parameters))
        return [cost for cost in costs if cost.parameters or cost.forward.terms]


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations of each part with the formulas of torch.utils.flop_counter. An operation belongs to the
    innermost module that is running, whichever of its methods was called.
    """

    def __init__(self, owners: Mapping[int, int], root: nn.Module) -> None:
        from torch.utils.flop_counter import flop_registry  # imports Triton if it is installed, which takes a second

        super().__init__()  # type: ignore[no-untyped-call]
        # Products of a matrix and a vector, as in an additive score, are counted too.
        self.formulas = flop_registry | {torch.ops.aten.mv: _count_mv, torch.ops.aten.dot: _count_mv}
        self.owners, self.root = owners, root
        self.operations: Counter[int] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        output = func(*args, **(kwargs or {}))
        formula = self.formulas.get(func.overloadpacket)
        if formula is not None:
            self.operations[self._find_part()] += formula(*args, **(kwargs or {}), out_val=output)
        return output

    def _find_part(self) -> int:
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            owner = self.owners.get(id(frame.f_locals.get("self")))
            if owner is not None:
                return owner
            frame = frame.f_back
        return self.owners[id(self.root)]


def _count_mv(matrix: Tensor, vector: Tensor, *, out_val: object) -> int:
    del vector, out_val
    return 2 * matrix.numel()


class ShapeCache(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Remembers the shapes of results on the device `meta`, where torch computes them in Python, which is slow. The
    layers of a model apply the same operations to the same shapes.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.results: dict[Any, list[tuple[Any, ...]]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if func.is_view or func._schema.is_mutable:
            return func(*args, **kwargs)
        key = (func, _describe(args), _describe(tuple(kwargs.items())))
        if key not in self.results:
            result = func(*args, **kwargs)
            tensors = result if isinstance(result, tuple) else (result,)
            if all(isinstance(tensor, Tensor) and tensor.is_meta for tensor in tensors):
                self.results[key] = [(tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors]
            return result
        tensors = tuple(
            torch.empty_strided(*layout, dtype=dtype, device="meta") for *layout, dtype in self.results[key]
        )
        return tensors if len(func._schema.returns) > 1 else tensors[0]


def _describe(argument: Any) -> Any:
    """Return what the shapes of a result depend on."""
    if isinstance(argument, Tensor):
        return argument.shape, argument.stride(), argument.dtype, argument.device
    if isinstance(argument, tuple | list):
        return tuple(map(_describe, argument))
    return type(argument), argument


def fit_costs(
    measure: Callable[[int, int], Sequence[float]], terms: tuple[Exponents, ...], shortest_target: int = 2
) -> list[Cost]:
    """Return the polynomials with these terms whose values a function of the lengths S and T returns."""
    lengths = [(2 + s, shortest_target + t) for s, t, _ in terms]
    matrix = np.array([[source**s * target**t for s, t, _ in terms] for source, target in lengths], dtype=float)
    # The inverse consists of multiples of 1/2, so that the coefficients are exact.
    doubled_inverse = np.rint(2 * np.linalg.inv(matrix)).astype(int).tolist()
    costs = []
    for values in zip(*(measure(*pair) for pair in lengths), strict=True):
        doubled = [sum(map(operator.mul, row, values)) for row in doubled_inverse]
        coefficients = [value / 2 if value % 2 else value // 2 for value in doubled]
        costs.append(Cost({exponents: value for exponents, value in zip(terms, coefficients, strict=True) if value}))
    return costs


def _fit_if_possible(
    measure: Callable[[int, int], Sequence[float]], terms: tuple[Exponents, ...], shortest_target: int = 2
) -> list[Cost] | None:
    try:
        return fit_costs(measure, terms, shortest_target)
    except Exception as error:  # a plugin can fail in any way on the device meta
        log.debug("A cost cannot be measured: %s: %s", type(error).__name__, error)
        return None


def _fit_bytes(measure: Callable[[int, int], int], terms: tuple[Exponents, ...]) -> Cost:
    costs = _fit_if_possible(lambda source, target: [measure(source, target)], terms)
    return UNKNOWN_COST if costs is None else costs[0]


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
            return _fit_bytes(measure, _TARGET)
        # What does not depend on the lengths are copies of weights, which all pairs of a batch share.
        return _fit_bytes(measure, _BOTH).without_constant
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

    return _fit_bytes(measure, _LINEAR)


def measure_state(decoder: Decoder, memory_size: int) -> Cost:
    """Return the bytes of the state of a hypothesis, without a KV cache."""

    def measure(source: int, target: int) -> int:
        del target
        with torch.no_grad(), reference_mode():
            state = _run_steps(decoder, _zero_memory(source, memory_size, _device(decoder)), 1)
        return _count_bytes(state)

    return _fit_bytes(measure, _LINEAR)


def measure_cache(decoder: Decoder) -> Cost:
    """Return the bytes of the KV cache of a hypothesis: the keys and values of all self-attentions of the decoder."""
    per_step = 0
    for attention in find_attentions(decoder, "decoder-self").values():
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
    tokens_BS = torch.zeros(rows, slots, dtype=torch.long, device=device)
    return Memory(slots_BSD, allowed_BS, summary_BD, tokens_BS, cells_BSD=torch.zeros_like(slots_BSD))


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
