"""The attention weights of hypotheses.

A model is recorded while it runs: the encoder when it encodes the sources, and the decoder in a pass over hypotheses or
given targets (teacher forcing). If each sentence has one hypothesis, the search is recorded instead of such a pass, but
not on a GPU, because steps that are recorded cannot run as CUDA graphs.

B sentences, N hypotheses of all sentences, T target steps, S memory slots, H heads.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.attention import Role
from regard.attention.record import Recording, record
from regard.data.batching import pad
from regard.data.tokens.tokenizers import START
from regard.decoding.search import AttentionWeights, Hypothesis
from regard.decoding.steps import run_encoder
from regard.models.contracts import Decoded, Grid, Memory, Source, reorder
from regard.models.seq2seq import Seq2Seq

Array = NDArray[Any]

NBest = list[list[Hypothesis]]
"""The hypotheses of each sentence, best first."""


class Encoded(NamedTuple):
    """Encoded sources: their memory, the recording of the encoder, and their lengths."""

    memory: Memory
    recording: Recording
    length_B: Tensor

    def select(self, rows: Sequence[int]) -> "Encoded":
        """Return some of the sources."""
        rows_N = torch.tensor(rows, device=self.length_B.device)
        calls = {name: [weights[rows_N] for weights in calls] for name, calls in self.recording.calls.items()}
        return Encoded(reorder(self.memory, rows_N), replace(self.recording, calls=calls), self.length_B[rows_N])


def encode(model: Seq2Seq, source: Source, recorded: AbstractContextManager[Recording]) -> Encoded:
    """Run the encoder; see `run_encoder`. `recorded` is the result of `record`, which selects what is recorded."""
    with recorded as recording:
        memory = run_encoder(model.encoder, source)
    return Encoded(memory, recording, source.length_hint_B)


def decode(
    model: Seq2Seq, memory: Memory, nbest: NBest, recorded: AbstractContextManager[Recording]
) -> tuple[Decoded, Recording]:
    """Run the decoder over all hypotheses, which are the rows of its output."""
    device = memory.allowed_BS.device
    rows_N = torch.tensor([row for row, hypotheses in enumerate(nbest) for _ in hypotheses], device=device)
    inputs = pad([[START, *hypothesis.tokens] for hypotheses in nbest for hypothesis in hypotheses]).to(device)
    with recorded as recording:
        decoded: Decoded = model.decoder(inputs.tokens_BT, reorder(memory, rows_N))
    return decoded, recording


@dataclass(frozen=True)
class BatchWeights:
    """The attention weights of a batch, by name: those of the encoder with a row per sentence, those of the decoder
    with a row per hypothesis. `slots_B` are the numbers of visible memory slots, and `layout` is their arrangement.
    Attentions in `backward` number queries and slots from the end of the source.
    """

    encoder: dict[str, AttentionWeights]
    decoder: dict[str, AttentionWeights]
    roles: dict[str, Role]
    slots_B: list[int]
    layout: Grid | None
    backward: set[str]

    @classmethod
    def of_hypotheses(cls, model: Seq2Seq, encoded: Encoded, nbest: NBest) -> "BatchWeights":
        """Run the decoder over the hypotheses, and return the weights."""
        return cls.of_pass(encoded, decode(model, encoded.memory, nbest, record(model))[1])

    @classmethod
    def of_pass(cls, encoded: Encoded, decoding: Recording) -> "BatchWeights":
        """Return the weights of a pass of the decoder over all hypotheses."""
        return cls._of(encoded, decoding, {name: to_array(weights) for name, weights in decoding.weights.items()})

    @classmethod
    def of_search(cls, encoded: Encoded, decoding: Recording, sentences: Sequence[Tensor]) -> "BatchWeights | None":
        """Return the weights of a search with one hypothesis per sentence. `sentences` contains the index of
        the sentence of each row, for each step. Return None if there are no steps, or if the number of calls of an
        attention varies between steps.
        """
        if not sentences or any(len(calls) % len(sentences) for calls in decoding.calls.values()):
            return None
        rows = len(encoded.length_B)
        weights = {name: _stack(calls, sentences, rows) for name, calls in decoding.calls.items() if calls}
        return cls._of(encoded, decoding, weights)

    @classmethod
    def _of(cls, encoded: Encoded, decoding: Recording, weights: Mapping[str, AttentionWeights]) -> "BatchWeights":
        roles = decoding.roles
        encoder = encoded.recording.weights.items()
        return cls(
            {name: to_array(part) for name, part in encoder if encoded.recording.roles[name] == "encoder-self"},
            {name: part for name, part in weights.items() if roles[name] != "encoder-self"},
            roles,
            encoded.memory.allowed_BS.sum(-1).tolist(),
            encoded.memory.layout,
            encoded.recording.backward,
        )

    def attach(self, nbest: NBest) -> NBest:
        """Return the hypotheses with their weights, truncated to their lengths."""
        rows = iter(range(sum(map(len, nbest))))
        return [
            [
                hypothesis._replace(attentions=self._cut(sentence, next(rows), hypothesis), layout=self.layout)
                for hypothesis in hypotheses
            ]
            for sentence, hypotheses in enumerate(nbest)
        ]

    def _cut(self, sentence: int, row: int, hypothesis: Hypothesis) -> dict[str, AttentionWeights]:
        """Return the weights of one hypothesis. There is no row for the end token."""
        steps, slots = len(hypothesis.tokens), self.slots_B[sentence]
        encoder = {name: weights[sentence, ..., :slots, :slots] for name, weights in self.encoder.items()}
        encoder |= {name: np.flip(encoder[name], (-2, -1)) for name in self.backward & encoder.keys()}
        columns: dict[Role, int] = {"decoder-self": steps, "cross": slots}
        decoder = {
            name: weights[row, ..., :steps, : columns[self.roles[name]]] for name, weights in self.decoder.items()
        }
        return encoder | decoder

    def rank_by_coverage(self, nbest: NBest, weight: float) -> NBest:
        """Add β Σ_j log min(Σ_t a_tj, 1) to the rank of each hypothesis (Wu et al. 2016), and sort again.
        The weights are those of the last cross-attention, averaged over its heads; the end token has a row.
        """
        cross = [weights for name, weights in self.decoder.items() if self.roles[name] == "cross"]
        if not cross:
            return nbest
        last_NTS = cross[-1] if cross[-1].ndim == 3 else cross[-1].mean(1)
        rows = iter(last_NTS)
        reranked = []
        for slots, hypotheses in zip(self.slots_B, nbest, strict=True):
            scored = []
            for hypothesis in hypotheses:
                covered_S = next(rows)[: len(hypothesis.tokens) + 1, :slots].sum(0)
                coverage = float(np.log(covered_S.clip(1e-9, 1.0)).sum())
                scored.append(hypothesis._replace(rank=hypothesis.rank + weight * coverage))
            reranked.append(sorted(scored, key=lambda hypothesis: hypothesis.sort_key))
        return reranked


def _stack(calls: Sequence[Tensor], sentences: Sequence[Tensor], rows: int) -> AttentionWeights:
    """Stack the last call of each step, with a row for each sentence. Self-attention has one more slot at each step."""
    calls_per_step = len(calls) // len(sentences)
    *heads, _, slots = calls[-1].shape[1:]
    stacked = np.zeros((rows, *heads, len(sentences), slots), dtype=np.float32)
    for step, (sentence_N, call) in enumerate(zip(sentences, calls[calls_per_step - 1 :: calls_per_step], strict=True)):
        stacked[sentence_N.numpy(), ..., step, : call.shape[-1]] = call.float().numpy()[..., 0, :]
    return stacked


def to_array(tensor: Tensor) -> Array:
    """Return a tensor as an array: float32, or the dtype of integers and masks."""
    tensor = tensor.detach().float() if tensor.is_floating_point() else tensor.detach()
    array: Array = np.ascontiguousarray(tensor.cpu().numpy())
    return array
