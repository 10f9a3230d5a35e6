"""A model that was exported to ONNX, run with ONNX Runtime. Its files are checked before anything is run.

B rows, K hypotheses of a row, N = B K, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from regard.errors import ConfigError, ModelError
from regard.regular_files import open_regular, read_regular

Array = NDArray[Any]
Arrays = tuple[Array, ...]

ENCODER, DECODER, DESCRIPTION = "encoder.onnx", "decoder.onnx", "model.json"


class TensorDescription(BaseModel):
    """An input of a graph. Each axis is a size, or the name of one: rows, hypotheses, slots, steps or steps+1."""

    model_config = ConfigDict(strict=True, extra="forbid")

    name: str
    dtype: Literal["float32", "int64", "bool"]
    shape: list[int | str]

    def empty(self, rows: int) -> Array:
        """Return a part of the state that has no steps yet, without the axis for hypotheses."""
        return np.zeros((rows, *(0 if isinstance(size, str) else size for size in self.shape[2:])), self.dtype)


class OnnxDescription(BaseModel):
    """The file model.json: the inputs and outputs of the graphs, and what a search needs to know."""

    model_config = ConfigDict(strict=True, extra="forbid")

    format: Literal["regard-onnx-1"] = "regard-onnx-1"
    source_kind: str
    source: list[TensorDescription]
    """The inputs of encoder.onnx."""
    keys: list[TensorDescription]
    """The first outputs of encoder.onnx, and inputs of decoder.onnx. They stay constant, and have no axis for
    hypotheses.
    """
    state: list[TensorDescription]
    """Inputs of decoder.onnx. Its outputs are `logits` and, in the same order, the next state."""
    initial: list[str]
    """The parts of the state that are outputs of encoder.onnx, for one hypothesis, without this axis. The others are
    empty before the first step.
    """
    vocabulary: Annotated[int, Field(gt=0)]
    start: int
    end: int
    suppressed: list[int]
    """Tokens that are never generated."""
    max_length_ratio: float
    max_length_extra: int

    @property
    def encoder_outputs(self) -> list[str]:
        return [*(part.name for part in self.keys), *self.initial]

    @property
    def decoder_inputs(self) -> list[str]:
        return ["token", *(part.name for part in (*self.keys, *self.state))]

    @property
    def decoder_outputs(self) -> list[str]:
        return ["logits", *(f"next_{part.name}" for part in self.state)]


@final
class OnnxModel:
    """The encoder and a decoder step of an exported model. The interface is that of `Decoder`, with arrays.

    Args:
        folder: The folder that `regard export --to onnx` has written.
        threads: The number of CPU threads; by default, ONNX Runtime chooses it.

    Raises:
        ModelError: A file is missing, damaged or not written by `regard export`.
        ConfigError: ONNX Runtime is not installed.
    """

    def __init__(self, folder: str | Path, threads: int = 0) -> None:
        self.folder = Path(folder)
        self.description = description = _read_description(self.folder / DESCRIPTION)
        source = [part.name for part in description.source]
        self._encoder = _open_graph(self.folder / ENCODER, source, description.encoder_outputs, threads)
        self._decoder = _open_graph(
            self.folder / DECODER, description.decoder_inputs, description.decoder_outputs, threads
        )

    def begin(self, source: Sequence[Array]) -> tuple[Arrays, Arrays]:
        """Return the keys of a batch of sources, and the initial state: one row for each source."""
        description = self.description
        inputs = {
            part.name: np.asarray(array, part.dtype) for part, array in zip(description.source, source, strict=True)
        }
        outputs = dict(zip(description.encoder_outputs, self._encoder.run(None, inputs), strict=True))
        rows = len(source[0])
        state = (outputs[part.name] if part.name in outputs else part.empty(rows) for part in description.state)
        return tuple(outputs[part.name] for part in description.keys), tuple(state)

    def step(self, token_N: Array, state: Arrays, keys: Arrays) -> tuple[Array, Arrays]:
        """Run one step from the previous tokens → (logits_NV, state). The rows of a sentence, its hypotheses, are
        adjacent; the keys have one row for each sentence.
        """
        rows = len(keys[0]) if keys else len(token_N)
        hypotheses = len(token_N) // rows
        by_row = [part.reshape(rows, hypotheses, *part.shape[1:]) for part in (token_N, *state)]
        arrays = [by_row[0], *keys, *by_row[1:]]
        inputs = dict(zip(self.description.decoder_inputs, arrays, strict=True))
        logits_NV, *after = (part.reshape(len(token_N), *part.shape[2:]) for part in self._decoder.run(None, inputs))
        return logits_NV, tuple(after)


def _read_description(path: Path) -> OnnxDescription:
    try:
        return OnnxDescription.model_validate_json(_read(path))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ModelError(f"{path} was not written by regard export --to onnx: {where} {first['msg']}.") from None


def _read(path: Path) -> bytes:
    try:
        return read_regular(path)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}. Export the model again.") from None


def _open_graph(path: Path, inputs: Sequence[str], outputs: Sequence[str], threads: int) -> Any:
    """Check a graph, and return a session of ONNX Runtime. Nothing is run before the check."""
    try:
        import onnx
        import onnxruntime
    except ImportError:
        raise ConfigError(
            "Models in the format onnx require the packages onnx and onnxruntime, which are not installed. Run pip "
            "install 'regard[export]'."
        ) from None
    content = _read(path)
    try:
        model = onnx.load_from_string(content)
    except Exception:  # of protobuf, which has no public exception
        raise ModelError(f"{path} is damaged: it is not an ONNX model. Export the model again.") from None
    external = _check_graph(path, model, inputs, outputs)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    # Threads that wait actively for the next step would slow down the search in between.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(
            str(path) if external else content, options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # ONNX Runtime raises errors of many types
        reason = str(error).strip().splitlines()[0]
        raise ModelError(f"{path} is damaged: ONNX Runtime reports: {reason}. Export the model again.") from None


def _check_graph(path: Path, model: Any, inputs: Sequence[str], outputs: Sequence[str]) -> bool:
    """Raise ModelError for a graph that is not the one in model.json, for operators that are not those of ONNX, and for
    weights outside of the folder. Return whether weights are stored in another file.
    """
    found = [part.name for part in model.graph.input], [part.name for part in model.graph.output]
    if found != (list(inputs), list(outputs)):
        raise ModelError(f"{path} does not have the inputs and outputs in {DESCRIPTION}. Export the model again.")
    graphs = list(_list_graphs(model))
    custom = {node.domain for graph in graphs for node in graph.node} - {"", "ai.onnx"}
    custom -= {function.domain for function in model.functions}
    if custom:
        raise ModelError(f"{path} uses operators of {sorted(custom)[0]!r}, which are not those of ONNX.")
    locations = set(_list_external(graphs))
    for location in locations:
        name = PurePosixPath(location)
        if name.name != location or not _is_regular(path.parent / name):
            raise ModelError(f"{path} refers to weights in {location!r}, which is not a file in the same folder.")
    return bool(locations)


def _list_graphs(model: Any) -> Iterator[Any]:
    """Yield the graph, its functions, and the bodies of their loops and branches."""
    remaining = [model.graph, *model.functions]
    while remaining:
        graph = remaining.pop()
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                remaining += [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def _list_external(graphs: Sequence[Any]) -> Iterator[str]:
    """Yield the location of each tensor that is stored in another file."""
    tensors = [tensor for graph in graphs for tensor in getattr(graph, "initializer", ())]
    tensors += [
        part
        for graph in graphs
        for sparse in getattr(graph, "sparse_initializer", ())
        for part in (sparse.values, sparse.indices)
    ]
    for graph in graphs:
        for node in graph.node:
            for attribute in node.attribute:
                tensors += [attribute.t, *attribute.tensors]
    for tensor in tensors:
        locations = [entry.value for entry in tensor.external_data if entry.key == "location"]
        if locations or tensor.data_location == 1:
            yield locations[0] if locations else ""


def _is_regular(path: Path) -> bool:
    try:
        with open_regular(path):
            return not path.is_symlink()
    except OSError:
        return False
