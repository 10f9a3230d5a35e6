"""Prediction with CTranslate2 on a CPU, a fast inference engine for Transformers (https://opennmt.net/CTranslate2).

Its greedy search, and its beam search for the most likely hypothesis, follow the rules of regard, with exceptions: all
sentences of a batch have the same length limit, any token can be generated, and loops are kept. A hypothesis for which
an exception matters is recognized, and torch predicts its source again.
"""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, final

import torch

from regard.data.sampler import batch_by_length
from regard.data.sources import SourceItem
from regard.data.tokens.tokenizers import END
from regard.decoding.beam import compute_length_penalty
from regard.decoding.constraints import NO_CONSTRAINTS, Constraints
from regard.decoding.engine import GREEDY, Engine, Request
from regard.decoding.predictor import SPECIAL_TOKENS, Predictor
from regard.decoding.search import Hypothesis, remove_loops
from regard.decoding.settings import Precision, SearchSettings
from regard.decoding.steps import call_before_step
from regard.engines.conversion import Conversion, find_conversion_obstacle
from regard.export.ct2 import CTranslate2Exporter
from regard.export.exporter import TrainedModel, count_positions

_TORCH_ONLY = (
    "coverage_penalty", "groups", "sample", "mbr_samples", "no_repeat_ngram", "repetition_penalty", "min_length",
)  # fmt: skip
"""The settings of a search that CTranslate2 does not have, or that have another meaning there."""

_MAX_PENALTY = 1.0
"""With a higher length penalty, long hypotheses rank above those that CTranslate2 completes first."""

_NEGLIGIBLE_PENALTY = 1e-9
"""A length penalty that does not change scores. With 0, the search ends when the best hypothesis in the beam ends."""


@final
class CTranslate2Engine(Engine):
    """Predicts with CTranslate2. Conversion takes a fraction of the time that loading the model takes."""

    name: ClassVar[str] = "ct2"

    def __init__(self, predictor: Predictor, model: TrainedModel, precision: Precision = "float32") -> None:
        self._torch, self._model = predictor, model
        load = partial(_Translator.load, model=model, precision=precision)
        self._conversion = Conversion(model, CTranslate2Exporter(precision), load)

    def find_obstacle(self, request: Request) -> str | None:
        obstacle = find_conversion_obstacle(self._torch, self._model, CTranslate2Exporter(), ("ctranslate2",), "fast")
        if obstacle is not None:
            return obstacle
        values = {name: getattr(request.search, name) for name in _TORCH_ONLY}
        fields = SearchSettings.model_fields
        requested = [f"{name}={value}" for name, value in values.items() if value != fields[name].default]
        if request.search.uses_beam and request.search.length_penalty > _MAX_PENALTY:
            requested.append(f"length_penalty={request.search.length_penalty}")
        requested += ["attention weights"] * request.attention + ["constraints"] * request.constrained
        return f"{requested[0]} cannot be requested. Omit this, or use the engine torch." if requested else None

    def find_difference(self, request: Request) -> str | None:
        if request.precision == "int8":
            return "int8 rounds weights and states."
        if not _needs_several_hypotheses(request.search):
            return None
        return (
            "its beam search ends when as many hypotheses as the beam size are complete, and that of torch when no "
            "other hypothesis can rank higher"
        )

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
        assert not constraints
        assert not attention
        del indices  # nothing is sampled
        found = self._translate(sources, search, batch_size)
        rows = [row for row, nbest in enumerate(found) if nbest is None]
        again = self._torch.predict([sources[row] for row in rows], search, batch_size=batch_size)
        by_row = dict(zip(rows, again, strict=True))
        return [by_row[row] if nbest is None else nbest for row, nbest in enumerate(found)]

    def _translate(
        self, sources: Sequence[Any], search: SearchSettings, batch_size: int | None
    ) -> list[list[Hypothesis] | None]:
        """Return the hypotheses for each source; None if torch must predict them."""
        translator = self._conversion.open()
        lengths = torch.tensor([source.length for source in sources], dtype=torch.long)
        limits = self._torch.limit_lengths(lengths).tolist()
        found: list[list[Hypothesis] | None] = [None] * len(sources)
        submitted = []
        for rows in batch_by_length(lengths.tolist(), *self._torch.limit_batches(search, batch_size)):
            call_before_step()
            rows = [row for row in rows if limits[row]]
            batch = [sources[row].ids for row in rows]
            submitted.append((rows, translator.submit(batch, max((limits[row] for row in rows), default=0), search)))
        for rows, results in submitted:
            call_before_step()
            for row, result in zip(rows, results, strict=True):
                found[row] = translator.read(result.result(), limits[row], search)
        return found


def _needs_several_hypotheses(search: SearchSettings) -> bool:
    """Whether the most likely hypothesis is not all that is requested."""
    return search.uses_beam and (search.length_penalty > 0 or search.nbest > 1)


class _Translator(NamedTuple):
    """A model of CTranslate2, which reads and writes tokens as text, and its vocabularies."""

    model: Any
    source_tokens: list[str]
    target_ids: dict[str, int]
    positions: int

    @classmethod
    def load(cls, folder: Path, model: TrainedModel, precision: Precision) -> "_Translator":
        """Open a converted model. Each CPU thread of torch translates a batch."""
        from ctranslate2 import Translator

        threads = torch.get_num_threads()
        opened = Translator(str(folder), compute_type=precision, inter_threads=threads, intra_threads=1)
        source, target = (side.tokens(range(len(side))) for side in model.tokenizers)
        target_ids = {token: index for index, token in enumerate(target)}
        return cls(opened, source, target_ids, count_positions(model.settings))

    def submit(self, batch: Sequence[Sequence[int]], limit: int, search: SearchSettings) -> Any:
        """Start the translation of a batch. A hypothesis ends with END, or with a token that must not be generated."""
        several = _needs_several_hypotheses(search)
        return self.model.translate_batch(
            [[self.source_tokens[index] for index in ids] for ids in batch],
            asynchronous=True,
            beam_size=search.beam,
            num_hypotheses=search.beam if several else 1,
            length_penalty=_NEGLIGIBLE_PENALTY if several else 0,
            end_token=[END, *SPECIAL_TOKENS.suppressed],
            return_end_token=True,
            max_input_length=0,
            max_decoding_length=min(limit, self.positions),
            min_decoding_length=0,
            return_scores=True,
        )

    def read(self, result: Any, limit: int, search: SearchSettings) -> list[Hypothesis] | None:
        """Return the n-best hypotheses of a result; None if torch might find others."""
        complete = []
        for tokens, score in zip(result.hypotheses, result.scores, strict=True):
            *ids, last = (self.target_ids[token] for token in tokens)
            if last in SPECIAL_TOKENS.suppressed or math.isnan(score):
                return None
            if last == END and len(tokens) <= limit:
                penalty = compute_length_penalty(len(tokens), search.length_penalty) if search.uses_beam else 1.0
                complete.append(Hypothesis(ids, score, truncated=False, rank=score / penalty))
        nbest = sorted(complete, key=lambda hypothesis: hypothesis.sort_key)[: search.nbest]
        if len(nbest) < search.nbest:
            return None
        if search.is_greedy and search.loop_guard and remove_loops(nbest[0], ()) is not None:
            return None
        return nbest
