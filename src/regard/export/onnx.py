"""Export to ONNX (https://onnx.ai): an encoder and one step of a decoder, for ONNX Runtime and other engines.

B rows, K hypotheses of a row, S memory slots, T steps so far, V vocabulary.
"""

import copy
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from regard.attention.multihead import PackedProjection
from regard.data.tokens.tokenizers import END, PAD, START, UNKNOWN
from regard.errors import ConfigError
from regard.export.exporter import Exporter, TrainedModel
from regard.export.onnx_model import DECODER, DESCRIPTION, ENCODER, OnnxDescription, TensorDescription
from regard.models.contracts import Keys, Source, State, map_state
from regard.models.embedding import Embedding
from regard.models.seq2seq import Seq2Seq
from regard.ops.reference_mode import reference_mode
from regard.recurrent.cells import LSTMNCell

OPSET = 20
"""Supported by ONNX Runtime since 1.17."""

_DTYPES: dict[torch.dtype, Literal["float32", "int64", "bool"]] = {
    torch.float32: "float32",
    torch.int64: "int64",
    torch.bool: "bool",
}

_MAX_BYTES = 2**31
"""The largest file that protocol buffers can hold. Weights of larger graphs are written to a second file."""


@final
class OnnxExporter(Exporter):
    """Two graphs, `encoder.onnx` and `decoder.onnx`, with the tokenizers of the run and a description, `model.json`."""

    def find_obstacle(self, model: TrainedModel) -> str | None:
        encoder, decoder = model.network.encoder, model.network.decoder
        if encoder.example_source(1, torch.device("cpu")) is None:
            return f"the encoder {type(encoder).__name__} does not define `example_source`."
        if any(isinstance(part, LSTMNCell) for part in encoder.modules()):
            return (
                "an encoder with the cell lstmn attends to a memory that grows in a loop. The nearest is "
                "model.encoder.cell=lstm."
            )
        attention = getattr(decoder, "attention", None)
        if attention is not None and attention.select.marginal and attention.select.uses_past:
            return (
                "with the selection hard_monotonic, the first step is not like the others. The nearest is "
                "model.attention.select=hard_exact."
            )
        return None

    def write(self, model: TrainedModel, folder: Path) -> None:
        _check_installed()
        network = copy.deepcopy(model.network).cpu().float().eval()
        for module in network.modules():
            if isinstance(module, Embedding):
                module.prepare_export()
        with torch.no_grad(), reference_mode():
            first, second = (_Example.compute(network, sizes) for sizes in _SIZES)
            axes = {name: _name_axes(name, part, second.tensors[name]) for name, part in first.tensors.items()}
            encoder_graph = _build_encoder(network, first, axes)
            decoder_graph = _build_decoder(network, first, axes)
        _save(encoder_graph, folder / ENCODER)
        _save(decoder_graph, folder / DECODER)
        description = _describe(model, first, axes)
        (folder / DESCRIPTION).write_text(description.model_dump_json(indent=2) + "\n", encoding="utf-8")
        model.tokenizers.save(lambda name, content: (folder / name).write_bytes(content))


def _check_installed() -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise ConfigError(
            "Export to onnx requires the packages onnx and onnxscript, which are not installed. Run pip install "
            "'regard[export]'."
        ) from None


class _Sizes(NamedTuple):
    """The sizes of an example. Each axis of a tensor that differs between two examples is dynamic."""

    rows: int
    hypotheses: int
    slots: int
    steps: int


_SIZES = _Sizes(2, 3, 7, 4), _Sizes(3, 5, 11, 8)


class _Example(NamedTuple):
    """The inputs and outputs of both graphs for some sizes, by name, as nested tuples and as tensors."""

    source: Source
    source_tensors: dict[str, Tensor]
    keys: Keys
    key_tensors: dict[str, Tensor]
    initial: State
    state: State
    state_tensors: dict[str, Tensor]
    """The state after some steps."""

    @classmethod
    def compute(cls, network: Seq2Seq, sizes: _Sizes) -> "_Example":
        source = _make_source(network, sizes)
        keys, initial = network.decoder.begin(network.encoder(source))
        keys, repeat = _remove_packed(keys), torch.arange(sizes.rows).repeat_interleave(sizes.hypotheses)
        state = initial = pytree.tree_map(lambda part: part[repeat] if isinstance(part, Tensor) else part, initial)
        for _ in range(sizes.steps):
            _, state = network.decoder.step(torch.full((len(repeat),), START), state, keys)
        if [_kind(part) for part in pytree.tree_leaves(initial)] != [_kind(part) for part in pytree.tree_leaves(state)]:
            raise ConfigError(
                f"The model cannot be exported to onnx: the state of {type(network.decoder).__name__} has other parts "
                "after a step than before it."
            )
        sources = dict(zip(_name_source(source), source.tensors, strict=True))
        unflattened = {
            name: tensor.unflatten(0, (sizes.rows, sizes.hypotheses))  # type: ignore[no-untyped-call]
            for name, tensor in _name_tensors("state", state).items()
        }
        return cls(source, sources, keys, _name_tensors("keys", keys), initial, state, unflattened)

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {**self.source_tensors, **self.key_tensors, **self.state_tensors}

    @property
    def started(self) -> dict[str, Tensor]:
        """The parts of the initial state that are not empty, which the encoder graph computes."""
        return {name: part for name, part in _name_tensors("state", self.initial).items() if part.numel()}


def _make_source(network: Seq2Seq, sizes: _Sizes) -> Source:
    source = network.encoder.example_source(sizes.slots, torch.device("cpu"))
    assert source is not None
    rows: Source = source.rows(torch.zeros(sizes.rows, dtype=torch.long))
    return rows


def _name_source(source: Source) -> list[str]:
    """Return the names of the tensors of a source, without the letters of their axes."""
    return [field.name.rpartition("_")[0] or field.name for field in fields(source)]  # type: ignore[arg-type]


def _remove_packed(keys: Keys) -> Keys:
    """Remove copies of weights, which are in the graph of the decoder already."""
    return map_state(keys, lambda part: None if isinstance(part, PackedProjection) else part, "reorder")


def _kind(part: Any) -> Any:
    return Tensor if isinstance(part, Tensor) else part


def _name_tensors(prefix: str, tree: Any) -> dict[str, Tensor]:
    """Return the tensors of nested tuples by their path: `state.layers.0.h`."""
    leaves, _ = pytree.tree_flatten_with_path(tree)
    return {prefix + pytree.keystr(path): part for path, part in leaves if isinstance(part, Tensor)}


def _replace_tensors(tree: Any, tensors: Sequence[Tensor]) -> Any:
    """Return nested tuples with other tensors, in the same order."""
    remaining = iter(tensors)
    return pytree.tree_map(lambda part: next(remaining) if isinstance(part, Tensor) else part, tree)


def _name_axes(name: str, first: Tensor, second: Tensor) -> list[int | str]:
    """Return each axis of a tensor: its size, or the name of the size that it is equal to in both examples."""
    pairs = {pair: size for size, pair in zip(_Sizes._fields, zip(*_SIZES, strict=True), strict=True)}
    one_more = {(a + 1, b + 1): f"{size}+1" for (a, b), size in pairs.items() if size == "steps"}
    axes: list[int | str] = []
    for pair in zip(first.shape, second.shape, strict=True):
        axis = pair[0] if pair[0] == pair[1] else {**one_more, **pairs}.get(pair)
        if axis is None:
            raise ConfigError(
                f"The model cannot be exported to onnx: the size {pair[0]} of {name} is not a number of rows, "
                "hypotheses, slots or steps."
            )
        axes.append(axis)
    return axes


@final
class _EncoderGraph(nn.Module):
    """Source → the keys and the initial state of the decoder."""

    def __init__(self, network: Seq2Seq, source: Source) -> None:
        super().__init__()
        self.network, self.source = network, source

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        keys, state = self.network.decoder.begin(self.network.encoder(self.source.with_tensors(tensors)))
        parts = pytree.tree_leaves((_remove_packed(keys), state))
        return tuple(part for part in parts if isinstance(part, Tensor) and part.numel())


@final
class _DecoderGraph(nn.Module):
    """The previous tokens, the keys and the state → the logits of the next tokens, and the next state."""

    def __init__(self, network: Seq2Seq, example: _Example) -> None:
        super().__init__()
        self.decoder, self.example = network.decoder, example

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        (token_BK, *keys_and_state), count = tensors, len(self.example.key_tensors)
        keys = _replace_tensors(self.example.keys, keys_and_state[:count])
        state = _replace_tensors(self.example.state, [part.flatten(0, 1) for part in keys_and_state[count:]])
        logits_NV, state = self.decoder.step(token_BK.flatten(), state, keys)
        parts = [logits_NV, *(part for part in pytree.tree_leaves(state) if isinstance(part, Tensor))]
        return tuple(part.unflatten(0, token_BK.shape) for part in parts)  # type: ignore[no-untyped-call]


_Axes = dict[str, list[int | str]]


def _build_encoder(network: Seq2Seq, example: _Example, axes: _Axes) -> Any:
    outputs = [*example.key_tensors, *example.started]
    return _build_graph(_EncoderGraph(network, example.source), example.source_tensors, outputs, axes)


def _build_decoder(network: Seq2Seq, example: _Example, axes: _Axes) -> Any:
    token_BK = torch.full(_SIZES[0][:2], START)
    inputs = {"token": token_BK, **example.key_tensors, **example.state_tensors}
    outputs = ["logits", *(f"next_{name}" for name in example.state_tensors)]
    return _build_graph(_DecoderGraph(network, example), inputs, outputs, {"token": ["rows", "hypotheses"], **axes})


def _build_graph(module: nn.Module, inputs: dict[str, Tensor], outputs: list[str], axes: _Axes) -> Any:
    """Trace a module, and return it as an ONNX program. All axes with a name have any size."""
    shapes = tuple({axis: size for axis, size in enumerate(axes[name]) if isinstance(size, str)} for name in inputs)
    try:
        with _quiet_export():
            program = torch.onnx.export(
                module.eval(),
                tuple(inputs.values()),
                input_names=list(inputs),
                output_names=outputs,
                dynamic_shapes=(shapes,),
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
    except Exception as error:  # torch raises errors of many types
        reason = str(error.__cause__ or error).strip().splitlines()[0]
        raise ConfigError(
            f"The model cannot be exported to onnx: torch.export cannot trace it ({reason}). A part of a plugin must "
            "not depend on the values of tensors, and must use tensor.shape[0] instead of len(tensor)."
        ) from error
    assert program is not None
    return program


@contextmanager
def _quiet_export() -> Iterator[None]:
    """Hide what torch reports about itself while it exports."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning, module="copyreg|torch")
            warnings.filterwarnings("ignore", message="# The axis name", category=UserWarning)
            warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch|onnx")
            yield
    finally:
        logger.setLevel(level)


def _save(program: Any, path: Path) -> None:
    """Write a graph with its weights. If they are too large for one file, they are written to a second one."""
    size = sum(value.const_value.nbytes for value in program.model.graph.initializers.values() if value.const_value)
    program.save(str(path), external_data=size >= _MAX_BYTES)


def _describe(model: TrainedModel, example: _Example, axes: _Axes) -> OnnxDescription:
    def describe(tensors: dict[str, Tensor]) -> list[TensorDescription]:
        return [
            TensorDescription(name=name, shape=axes[name], dtype=_DTYPES[tensor.dtype])
            for name, tensor in tensors.items()
        ]

    return OnnxDescription(
        source_kind=model.network.encoder.source_kind,
        source=describe(example.source_tensors),
        keys=describe(example.key_tensors),
        state=describe(example.state_tensors),
        initial=list(example.started),
        vocabulary=len(model.tokenizers.target),
        start=START,
        end=END,
        suppressed=[PAD, UNKNOWN, START],
        max_length_ratio=model.settings.decoding.max_length_ratio,
        max_length_extra=model.settings.decoding.max_length_extra,
    )
