"""Prediction with ONNX Runtime on a CPU (https://onnxruntime.ai).

The search is that of regard. ONNX Runtime computes the encoder and the steps of the decoder, as exported to ONNX.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, final

import torch
from torch import Tensor

from regard.data.sources import SourceItem
from regard.decoding.constraints import NO_CONSTRAINTS, Constraints
from regard.decoding.engine import GREEDY, Engine, Request
from regard.decoding.predictor import Predictor
from regard.decoding.search import Hypothesis
from regard.decoding.settings import SearchSettings
from regard.engines.conversion import Conversion, find_conversion_obstacle
from regard.export.exporter import TrainedModel
from regard.export.onnx import OnnxExporter
from regard.export.onnx_model import Arrays, OnnxModel
from regard.models.contracts import Decoded, Decoder, Encoder, Source
from regard.models.embedding import EXPORTED_POSITIONS, Embedding
from regard.models.seq2seq import Seq2Seq

Tensors = tuple[Tensor, ...]


@final
class OnnxEngine(Engine):
    """Predicts with ONNX Runtime, on as many threads as torch."""

    name: ClassVar[str] = "onnx"

    def __init__(self, predictor: Predictor, model: TrainedModel) -> None:
        self._torch, self._model = predictor, model
        self._conversion = Conversion(model, OnnxExporter(), self._load)

    def find_obstacle(self, request: Request) -> str | None:
        obstacle = find_conversion_obstacle(
            self._torch, self._model, OnnxExporter(), ("onnx", "onnxscript", "onnxruntime"), "export"
        )
        if obstacle is not None:
            return obstacle
        if request.precision != "float32":
            return f"it does not support {request.precision}. Use float32, or another engine."
        longest = torch.tensor([self._torch.max_length])
        limit = max(self._torch.max_length, int(self._torch.limit_lengths(longest)))
        has_sinusoids = any(isinstance(part, Embedding) and part.sinusoidal for part in self._model.network.modules())
        if has_sinusoids and limit > EXPORTED_POSITIONS:
            return (
                f"a prediction can have {limit:,} tokens, and an exported graph with sinusoidal positions has "
                f"{EXPORTED_POSITIONS:,} positions. Use the engine torch."
            )
        requested = ["attention weights"] * request.attention
        if request.search.coverage_penalty:  # it is computed from the attention weights
            requested.append(f"coverage_penalty={request.search.coverage_penalty}")
        return f"{requested[0]} cannot be requested. Omit this, or use the engine torch." if requested else None

    def find_difference(self, request: Request) -> str | None:
        del request
        return None

    def predict(
        self,
        sources: Sequence[SourceItem],
        search: SearchSettings = GREEDY,
        constraints: Constraints = NO_CONSTRAINTS,
        *,
        batch_size: int | None = None,
        attention: bool = False,
        indices: Sequence[int] | None = None,
    ) -> list[list[Hypothesis]]:
        """Return the `nbest` hypotheses for each source, given a request without an obstacle."""
        assert not attention
        predictor = self._conversion.open()
        return predictor.predict(sources, search, constraints, batch_size=batch_size, indices=indices)

    def _load(self, folder: Path) -> Predictor:
        """Return the predictor with an exported model."""
        model, network = OnnxModel(folder, threads=torch.get_num_threads()), self._model.network
        return replace(self._torch, model=Seq2Seq(_OnnxEncoder(model, network.encoder), _OnnxDecoder(model)))


class _EncoderOutput(NamedTuple):
    """The output of the encoder graph, used as the memory: the keys and the state that `_OnnxDecoder.begin` returns."""

    keys: Tensors
    state: Tensors


@final
class _OnnxEncoder(Encoder[Source]):
    """Runs the encoder graph. `reference` is the encoder that it was exported from."""

    def __init__(self, model: OnnxModel, reference: Encoder[Any]) -> None:
        super().__init__()
        self.model, self.reference = model, reference

    @property
    def size(self) -> int:
        return self.reference.size

    def forward(self, source: Source) -> Any:
        keys, state = self.model.begin(_to_arrays(source.tensors))
        return _EncoderOutput(_to_tensors(keys), _to_tensors(state))


@final
class _OnnxDecoder(Decoder):
    """Runs the graph of a decoder step."""

    def __init__(self, model: OnnxModel) -> None:
        super().__init__()
        self.model = model

    def begin(self, memory: Any) -> tuple[Tensors, Tensors]:
        return memory.keys, memory.state

    def step(self, token_B: Tensor, state: Tensors, keys: Tensors) -> tuple[Tensor, Tensors]:
        logits_BV, after = self.model.step(token_B.numpy(), _to_arrays(state), _to_arrays(keys))
        return torch.from_numpy(logits_BV), _to_tensors(after)

    def forward(self, tokens_BT: Tensor, memory: Any) -> Decoded:
        raise NotImplementedError("Only single steps are exported. Call `step`.")


def _to_arrays(tensors: Tensors) -> Arrays:
    return tuple(tensor.numpy() for tensor in tensors)


def _to_tensors(arrays: Arrays) -> Tensors:
    return tuple(torch.from_numpy(array) for array in arrays)
