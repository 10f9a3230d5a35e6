"""The attention weights of hypotheses.

If each sentence has one hypothesis, they are recorded during the search. Otherwise, they are recorded in a pass of the
decoder over the finished hypotheses; also on a GPU, because steps that are recorded cannot run as CUDA graphs.

B sentences, N hypotheses of all sentences, T target steps, S memory slots, H heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from regard.attention.attention import Role
from regard.attention.record import Recording, record
from regard.data.batching import pad
from regard.data.tokens.tokenizers import START
from regard.decoding.search import AttentionWeights, Hypothesis
from regard.models.contracts import Decoded, Decoder, Grid, Keys, Memory, State, reorder
from regard.models.seq2seq import Seq2Seq

NBest = list[list[Hypothesis]]
"""The hypotheses of each sentence, best first."""


class RecordedState(NamedTuple):
    """The state of a decoder whose steps are recorded, and the sentence of each row."""

    inner: State
    sentence_N: Tensor


@final
class RecordedDecoder(Decoder):
    """A decoder that keeps the recorded weights of each of its steps, for a search with one hypothesis per sentence."""

    def __init__(self, decoder: Decoder, recording: Recording) -> None:
        super().__init__()
        self.decoder, self.recording = decoder, recording
        self.steps: list[tuple[Tensor, dict[str, Tensor]]] = []
        """The sentences of the rows, and the weights of each attention."""

    def begin(self, memory: Memory) -> tuple[Keys, RecordedState]:
        keys, state = self.decoder.begin(memory)
        self._take_weights()
        return keys, RecordedState(state, torch.arange(len(memory.allowed_BS)))

    def step(self, token_B: Tensor, state: RecordedState, keys: Keys) -> tuple[Tensor, RecordedState]:
        logits_BV, inner = self.decoder.step(token_B, state.inner, keys)
        self.steps.append((state.sentence_N, self._take_weights()))
        return logits_BV, RecordedState(inner, state.sentence_N)

    def forward(self, tokens_BT: Tensor, memory: Memory) -> Decoded:
        decoded: Decoded = self.decoder(tokens_BT, memory)
        return decoded

    def weights(self, sentences: int) -> dict[str, AttentionWeights]:
        """Return the weights of all steps by name, with a row for each sentence."""
        names = dict.fromkeys(name for _, weights in self.steps for name in weights)
        return {name: self._stack(name, sentences) for name in names}

    def _stack(self, name: str, sentences: int) -> AttentionWeights:
        """Stack the weights of one attention. Self-attention has one more column at each step."""
        parts = {step: weights[name] for step, (_, weights) in enumerate(self.steps) if name in weights}
        *heads, _, columns = list(parts.values())[-1].shape[1:]
        stacked = np.zeros((sentences, *heads, len(self.steps), columns), dtype=np.float32)
        for step, part in parts.items():
            rows = self.steps[step][0].numpy()
            stacked[rows, ..., step, : part.shape[-1]] = _to_numpy(part)[..., 0, :]
        return stacked

    def _take_weights(self) -> dict[str, Tensor]:
        """Remove the weights of the last call of each attention from the recording, and return them."""
        weights = {name: calls[-1] for name, calls in self.recording.calls.items() if calls}
        for calls in self.recording.calls.values():
            calls.clear()
        return weights


@dataclass(frozen=True)
class BatchWeights:
    """The attention weights of a batch, by name: those of the encoder with a row per sentence, those of the decoder
    with a row per hypothesis. `slots_B` are the numbers of visible memory slots, and `layout` is their arrangement.
    """

    encoder: dict[str, AttentionWeights]
    decoder: dict[str, AttentionWeights]
    roles: dict[str, Role]
    slots_B: list[int]
    layout: Grid | None

    @classmethod
    def of_hypotheses(cls, model: Seq2Seq, memory: Memory, encoding: Recording, nbest: NBest) -> "BatchWeights":
        """Run the decoder over the hypotheses and record it. `encoding` is the recording of the encoder."""
        device = memory.allowed_BS.device
        rows_N = torch.tensor([row for row, hypotheses in enumerate(nbest) for _ in hypotheses], device=device)
        inputs = pad([[START, *hypothesis.tokens] for hypotheses in nbest for hypothesis in hypotheses]).to(device)
        with record(model) as decoding:
            model.decoder(inputs.tokens_BT, reorder(memory, rows_N))
        return cls.from_recordings(encoding, decoding, memory)

    @classmethod
    def from_recordings(cls, encoding: Recording, decoding: Recording, memory: Memory) -> "BatchWeights":
        """Return the recorded weights of the encoder, and of a decoder that ran over all hypotheses."""
        return cls(
            _select(encoding, ("encoder-self",)),
            _select(decoding, ("decoder-self", "cross")),
            decoding.roles,
            memory.allowed_BS.sum(-1).tolist(),
            memory.layout,
        )

    @classmethod
    def of_search(cls, decoder: RecordedDecoder, memory: Memory, encoding: Recording) -> "BatchWeights":
        """Return the weights that were recorded during a search."""
        slots_B: list[int] = memory.allowed_BS.sum(-1).tolist()
        roles = decoder.recording.roles
        weights = {name: part for name, part in decoder.weights(len(slots_B)).items() if roles[name] != "encoder-self"}
        return cls(_select(encoding, ("encoder-self",)), weights, roles, slots_B, memory.layout)

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


def _select(recording: Recording, roles: Sequence[Role]) -> dict[str, AttentionWeights]:
    """Return the recorded weights of attentions with one of these roles."""
    return {name: _to_numpy(weights) for name, weights in recording.weights.items() if recording.roles[name] in roles}


def _to_numpy(weights: Tensor) -> AttentionWeights:
    array: AttentionWeights = weights.float().cpu().numpy()
    return array
