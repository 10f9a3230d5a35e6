"""The training pairs that are nearest to a source, and to a state of the decoder, as in Seq2Seq-Vis (Strobelt et al.
2018).

Three similarities answer three questions. Which training sources are written similarly? The edit similarity of texts.
Which sources does the encoder represent similarly? The cosine of the averages of the memory slots. Which training
pairs lead the decoder to a similar state, and which token comes next there? The cosine of the features that the output
layer reads. From the vectors of the encoder and of the decoder, the average over the sample is subtracted first:
otherwise, all cosines are close to 1.

N vectors, B pairs of a batch, S memory slots, T target steps, D width.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rapidfuzz import process
from rapidfuzz.distance import Indel

from regard.api.model import Model
from regard.data.batching import pad
from regard.data.corpora import RawSource
from regard.data.sampler import batch_by_length
from regard.data.sources import SourceItem
from regard.data.tokens.tokenizers import END, START
from regard.decoding.predictor import MAX_LOGITS
from regard.decoding.weights import to_array
from regard.errors import ConfigError, DataError
from regard.explorer.corpus import name_source
from regard.inspection.attribution.attribution import END_LABEL
from regard.models.settings import TEXT

MAX_TEXTS: Final = 20_000
"""The maximum number of training sources that are compared as texts. Of more sources, a random sample is kept."""

MAX_PAIRS: Final = 2_000
"""The maximum number of training pairs that are encoded and decoded, evenly spaced in the sample."""

MAX_STATES: Final = 50_000
MAX_VALUES: Final = 1 << 24
"""The maximum number of decoder states, and of their values: 64 MiB. Further pairs are not used."""

COUNT: Final = 10
"""The number of neighbors of each kind."""

_READ: Final = 4_096
_BATCH: Final = 16
"""The number of pairs that are read, or that the model computes, before other requests are served."""

Vectors = NDArray[np.float32]


class TrainingPair(NamedTuple):
    """A training pair, and its number in the training data, counted from 0."""

    number: int
    source: RawSource
    target: str

    def describe(self, similarity: float, **fields: Any) -> dict[str, Any]:
        return {
            "number": self.number,
            "source": name_source(self.source, self.number),
            "target": self.target,
            "similarity": similarity,
            **fields,
        }


@dataclass(frozen=True, eq=False)
class VectorIndex:
    """Vectors of length 1, after subtraction of their average."""

    center_D: Vectors
    vectors_ND: Vectors

    @classmethod
    def of(cls, vectors_ND: Vectors) -> "VectorIndex":
        center_D = vectors_ND.mean(0)
        return cls(center_D, _normalize(vectors_ND - center_D))

    def measure(self, vector_D: Vectors) -> Vectors:
        """Return the cosine of a vector with each of the vectors."""
        cosines_N: Vectors = np.clip(self.vectors_ND @ _normalize(vector_D - self.center_D), -1, 1)
        return cosines_N


def _normalize(vectors: Vectors) -> Vectors:
    unit: Vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    return unit


class TrainingPairs:
    """A sample of training pairs with the states of a model. It depends only on the pairs and the model.

    Args:
        model: The model.
        pairs: The training pairs, which are read once.
    """

    def __init__(self, model: Model, pairs: Iterable[tuple[RawSource, str]]) -> None:
        self._predictor = model.predictor
        self._reads_text = model.settings.model.source_kind == TEXT
        self._count = 0
        self._sample: list[TrainingPair] = []
        self._encoded: list[TrainingPair] = []
        self._tokens: list[list[int]] = []
        """The target tokens of each encoded pair, with the end token."""
        self._parts = self._read(pairs)

    def advance(self) -> float | None:
        """Do a part of the preparation. Return the share that is done; None if it was complete before."""
        return next(self._parts, None)

    def _read(self, pairs: Iterable[tuple[RawSource, str]]) -> Iterator[float]:
        """Sample the pairs (Algorithm R of Vitter 1985), then compute the states of some of them."""
        generator = random.Random(0)
        limit = MAX_TEXTS if self._reads_text else MAX_PAIRS
        remaining = iter(pairs)
        while block := list(islice(remaining, _READ)):
            for source, target in block:
                pair = TrainingPair(self._count, source, target)
                self._count += 1
                if len(self._sample) < limit:
                    self._sample.append(pair)
                elif (place := generator.randrange(self._count)) < limit:
                    self._sample[place] = pair
            yield 0.0
        self._sample.sort(key=lambda pair: pair.number)
        yield from self._compute_states(self._sample[:: -(-len(self._sample) // MAX_PAIRS) or 1])

    def _compute_states(self, pairs: Sequence[TrainingPair]) -> Iterator[float]:
        reader, tokenizer, max_length = self._predictor.reader, self._predictor.tokenizer, self._predictor.max_length
        summaries: list[Vectors] = []
        states: list[Vectors] = []
        for start in range(0, len(pairs), _BATCH):
            if not self._can_hold(states):
                break
            batch = pairs[start : start + _BATCH]
            items = reader.read([pair.source for pair in batch])
            targets = [ids[:max_length] for ids in tokenizer.ids([pair.target for pair in batch])]
            filled = [row for row, item in enumerate(items) if item.length and targets[row]]
            # The features of some decoders are the logits.
            lengths = [len(targets[row]) + 1 for row in filled]
            for places in batch_by_length(lengths, _BATCH, MAX_LOGITS // len(tokenizer)):
                rows = [filled[place] for place in places]
                summaries_BD, states_BTD = self._compute([items[row] for row in rows], [targets[row] for row in rows])
                summaries += list(summaries_BD)
                states += [states_TD[: len(targets[row]) + 1] for states_TD, row in zip(states_BTD, rows, strict=True)]
                self._encoded += [batch[row] for row in rows]
                self._tokens += [[*targets[row], END] for row in rows]
            yield min(1.0, (start + _BATCH) / len(pairs))
        if not states:
            raise DataError("There are no training pairs to compare with. Add the training data, and start again.")
        self._summaries = VectorIndex.of(np.stack(summaries))
        self._states = VectorIndex.of(np.concatenate(states))
        lengths = [len(ids) for ids in self._tokens]
        self._pair_N = np.repeat(np.arange(len(lengths)), lengths)
        self._step_N = np.concatenate([np.arange(length) for length in lengths])

    def _can_hold(self, states: Sequence[Vectors]) -> bool:
        count = sum(map(len, states))
        return count < MAX_STATES and (not states or count * states[0].shape[-1] < MAX_VALUES)

    def _compute(self, items: Sequence[SourceItem], targets: Sequence[Sequence[int]]) -> tuple[Vectors, Vectors]:
        """Return the average memory slot of each source, and the features of the decoder at each step → (B, D) and
        (B, T, D).
        """
        predictor = self._predictor
        with predictor.inference():
            memory = predictor.model.encoder(predictor.collate(items))
            inputs = pad([[START, *ids] for ids in targets]).to(predictor.device)
            features_BTD = predictor.model.decoder(inputs.tokens_BT, memory).features
            allowed_BS1 = memory.allowed_BS.unsqueeze(-1)
            summary_BD = (memory.slots_BSD * allowed_BS1).sum(1) / allowed_BS1.sum(1).clamp(min=1)
        return to_array(summary_BD), to_array(features_BTD)

    def find(self, source: RawSource, tokens: Sequence[int]) -> dict[str, Any]:
        """Return the nearest training pairs of a source, and of the state of the decoder after some output tokens.

        Raises:
            ConfigError: The source is empty, or a token is not in the vocabulary.
        """
        tokenizer = self._predictor.tokenizer
        if any(token >= len(tokenizer) for token in tokens):
            raise ConfigError(f"tokens: the ids of tokens are between 0 and {len(tokenizer) - 1}.")
        [item] = self._predictor.reader.read([source])
        if not item.length:
            raise ConfigError("The source is empty. Type a text.")
        [summary_D], [states_TD] = self._compute([item], [tokens])
        return {
            "size": self._count,
            "texts": len(self._sample) if self._reads_text else 0,
            "pairs": len(self._encoded),
            "states": len(self._pair_N),
            "by_text": self._find_texts(source) if self._reads_text else [],
            "by_encoder": self._find_sources(summary_D),
            "by_state": self._find_states(states_TD[len(tokens)]),
        }

    def _find_texts(self, source: RawSource) -> list[dict[str, Any]]:
        sources = [pair.source for pair in self._sample]
        found = process.extract(source, sources, scorer=Indel.normalized_similarity, limit=COUNT)
        return [self._sample[row].describe(similarity) for _, similarity, row in found]

    def _find_sources(self, summary_D: Vectors) -> list[dict[str, Any]]:
        cosines_N = self._summaries.measure(summary_D)
        nearest = np.argsort(-cosines_N, kind="stable")[:COUNT]
        return [self._encoded[row].describe(float(cosines_N[row])) for row in nearest]

    def _find_states(self, state_D: Vectors) -> list[dict[str, Any]]:
        """Return the nearest states, one for each pair."""
        cosines_N = self._states.measure(state_D)
        nearest: dict[int, int] = {}
        for row in np.argsort(-cosines_N, kind="stable").tolist():
            nearest.setdefault(int(self._pair_N[row]), row)
            if len(nearest) == COUNT:
                break
        return [
            self._encoded[pair].describe(
                float(cosines_N[row]), tokens=self._label(self._tokens[pair]), step=int(self._step_N[row])
            )
            for pair, row in nearest.items()
        ]

    def _label(self, ids: Sequence[int]) -> list[str]:
        return [*self._predictor.tokenizer.tokens(ids[:-1]), END_LABEL]
