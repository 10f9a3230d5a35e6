"""Predictor: a model with the reader of its sources and the tokenizer of its targets, which predicts and scores."""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn

from regard.attention.attention import Role
from regard.attention.record import Recording, attention_roles, record
from regard.data.batching import Batch, pad
from regard.data.corpora import RawSource
from regard.data.sampler import batch_by_length
from regard.data.sources import SourceItem, SourceReader
from regard.data.tokens.tokenizers import END, PAD, START, UNKNOWN, Tokenizer, UnknownTokens
from regard.decoding.beam import BeamStep, beam_search
from regard.decoding.constraints import NO_CONSTRAINTS, Constraints, RequiredPhrases, TokenConstraints
from regard.decoding.engine import GREEDY, Engine, Request
from regard.decoding.rules import (
    BannedPhrases,
    ForcedPrefix,
    MinLength,
    NoRepeatNgram,
    RepetitionPenalty,
    ReportTokens,
    Rule,
)
from regard.decoding.search import (
    Hypothesis,
    Sampler,
    SpecialTokens,
    choose_most_likely,
    decode_stepwise,
    rank_by_risk,
    remove_loops,
)
from regard.decoding.settings import DecodingSettings, SearchSettings
from regard.decoding.tracing import TracedSearch, TraceOptions, trace_hypotheses
from regard.decoding.weights import BatchWeights, Encoded, encode
from regard.errors import ModelError
from regard.models.contracts import Source
from regard.models.seq2seq import Seq2Seq
from regard.ops.hooks import mark_recorded
from regard.ops.int8 import find_int8_obstacle
from regard.ops.losses import rows_per_chunk
from regard.ops.reference_mode import full_precision

log = logging.getLogger(__name__)

SPECIAL_TOKENS = SpecialTokens(START, END, suppressed=(PAD, UNKNOWN, START))

_BATCHES_PER_WINDOW = 64
"""When pairs are scored, the pairs of this number of batches are tokenized and sorted by length together."""


MIN_LOG_PROB = -(2.0**24)
"""The lowest valid log-probability of a token besides −∞. Below it, float32 cannot represent a difference of 1."""

_CAUSE = (
    "Its weights have diverged or are damaged. Use another checkpoint, or train the model again with a lower "
    "training.learning_rate."
)

DIVERGED = f"The model computes values that are not finite, so it cannot predict anything. {_CAUSE}"

MAX_LOGITS = 1 << 24
"""The maximum number of logits of a batch: 64 MiB of float32. Some decoders return the logits of a batch at once."""


_ROWS = 64
"""The default number of sources in a batch."""

_GPU_ROWS, _ROWS_PER_GIB, _TOKENS_PER_ROW, _GPU_LOGITS = 1024, 16, 32, 1 << 26
"""The limits of a batch on a GPU: sources, sources per GiB of memory, tokens with padding per source, and logits of a
step (256 MiB).
"""


class BatchLimits(NamedTuple):
    """The maximum size of a batch: the number of sources, and of their tokens with padding; None for any number."""

    rows: int
    tokens: int | None = None


@final
@dataclass(frozen=True)
class Predictor(Engine):
    """A model, the reader of its sources, the tokenizer of its targets, and the length limits of its predictions."""

    name: ClassVar[str] = "torch"

    model: Seq2Seq
    reader: SourceReader
    tokenizer: Tokenizer
    limits: DecodingSettings
    max_length: int

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.model.parameters()).dtype

    @property
    def attention_roles(self) -> dict[str, Role]:
        """The role of each attention of the model, by name."""
        return attention_roles(self.model)

    def collate(self, sources: Sequence[SourceItem]) -> Source:
        """Return sources as a batch on the device of the model."""
        return self.reader.collate(sources).to(self.device)

    def find_obstacle(self, request: Request) -> str | None:
        return find_int8_obstacle(self.device, self.dtype) if request.precision == "int8" else None

    def find_difference(self, request: Request) -> str | None:
        """Return None in float32, which is the reference."""
        return "int8 rounds weights and states." if request.precision == "int8" else None

    def predict(
        self,
        sources: Sequence[SourceItem],
        search: SearchSettings = GREEDY,
        constraints: Constraints = NO_CONSTRAINTS,
        *,
        batch_size: int | None = None,
        attention: bool = False,
        indices: Sequence[int] | None = None,
        history: list[BeamStep] | None = None,
    ) -> list[list[Hypothesis]]:
        """Return the `nbest` hypotheses for each source, best first, with attention weights if requested. For the
        batches, see `limit_batches`.

        Samples depend on the seed and on the index of the source, and not on other sources. `indices` are those of
        `sources` in the complete input; by default, they are counted from 0.
        The hypothesis for an empty source is empty. Loops are removed from greedy hypotheses (`loop_guard`).
        """
        predictions: dict[int, list[Hypothesis]] = {}
        with self.inference():
            limits = self.limit_batches(search, batch_size, attention=attention)
            for rows in batch_by_length([source.length for source in sources], *limits):
                numbers = rows if indices is None else [indices[row] for row in rows]
                task = _Task(search, constraints.select(rows), numbers, history)
                nbest = self._predict_batch([sources[row] for row in rows], task, attention=attention)
                predictions.update(zip(rows, nbest, strict=True))
        return [predictions[row] for row in range(len(sources))]

    def predict_stepwise(self, source: SourceItem, report: Callable[[list[int]], object]) -> list[int]:
        """Return the tokens that greedy search predicts for a source. Report those before each step, while it runs."""
        with self.inference():
            encoded = encode(self.model, self.collate([source]), nullcontext(Recording()))
            limit_B = self.limit_lengths(encoded.length_B)
            inputs = self.model.decoder, encoded.memory, SPECIAL_TOKENS, limit_B, choose_most_likely
            [[hypothesis]] = decode_stepwise(*inputs, [ReportTokens(report)])
        _check_finite([[hypothesis]])
        shortened = remove_loops(hypothesis, source.tokens)
        return hypothesis.tokens if shortened is None else shortened

    def limit_lengths(self, length_B: Tensor) -> Tensor:
        """Return the maximum number of tokens of a prediction, with END, given the length of its source."""
        limits_B = (length_B * self.limits.max_length_ratio + self.limits.max_length_extra).long()
        return torch.where(length_B > 0, limits_B, 0)

    def limit_batches(
        self, search: SearchSettings, batch_size: int | None = None, *, attention: bool = False
    ) -> BatchLimits:
        """Return the maximum size of a batch: `batch_size` sources. By default, 64; on a GPU, as many as its memory
        holds easily, because a step takes hardly longer for a large batch. Attention weights need more memory.
        """
        if batch_size is not None:
            return BatchLimits(batch_size)
        if self.device.type != "cuda" or attention or self.reader.vocabulary_size is None:
            return BatchLimits(_ROWS)
        gigabytes = torch.cuda.get_device_properties(self.device).total_memory / 2**30
        hypotheses = max(search.beam, search.nbest, search.mbr_samples)
        rows = min(_GPU_ROWS, int(gigabytes * _ROWS_PER_GIB), _GPU_LOGITS // (hypotheses * len(self.tokenizer)))
        return BatchLimits(max(rows, _ROWS), max(rows, _ROWS) * _TOKENS_PER_ROW)

    def trace(
        self,
        source: SourceItem,
        search: SearchSettings,
        constraints: Constraints,
        options: TraceOptions,
    ) -> TracedSearch:
        """Return the `nbest` hypotheses for one source with their attention weights, and how they were computed."""
        history: list[BeamStep] = []
        [nbest] = self.predict([source], search, constraints, history=history)
        with self.inference():
            steps = history if search.uses_beam else None
            return trace_hypotheses(self.model, self.collate([source]), nbest, steps, self.tokenizer, options)

    def trace_target(self, source: SourceItem, target: str, options: TraceOptions) -> TracedSearch:
        """Return a given target as the hypothesis for a source, and how likely each of its tokens is."""
        [ids] = self.tokenizer.ids([target])
        with self.inference():
            given = [Hypothesis(ids, 0.0, truncated=False)]
            traced = trace_hypotheses(self.model, self.collate([source]), given, None, self.tokenizer, options)
        score = sum(step.log_prob for step in traced.steps[0])
        return traced._replace(nbest=[traced.nbest[0]._replace(score=score, rank=score)])

    def score(self, sources: Iterable[RawSource], targets: Iterable[str], *, batch_size: int = 64) -> list[float]:
        """Return log p(target | source) of each pair. Memory use does not depend on the number of pairs.

        Log a warning if texts contain characters or words without a token: they are scored as the unknown token.
        """
        scores: list[float] = []
        unknown = UnknownTokens()
        pairs = zip(sources, targets, strict=True)
        while window := list(islice(pairs, _BATCHES_PER_WINDOW * batch_size)):
            scores += self._score_window(window, batch_size, unknown)
        if unknown:
            log.warning(
                "The model has no token for %s (in %d of the %d pairs). The scores of these pairs are computed with "
                "the unknown token instead.",
                unknown, unknown.texts, len(scores),
            )  # fmt: skip
        return scores

    @contextmanager
    def inference(self) -> Iterator[None]:
        """Within the block, the model is in evaluation mode, computes no gradients, and does not round to TF32."""
        with self.evaluation(), torch.inference_mode():
            yield

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Within the block, the model is in evaluation mode, and does not round to TF32. It can compute gradients."""
        is_evaluated = not any(module.training for module in self.model.modules())  # setting it again takes longer
        was_training = self.model.training
        if not is_evaluated:
            self.model.eval()
        try:
            with full_precision(self.dtype):
                yield
        finally:
            if not is_evaluated:
                self.model.train(was_training)

    def _score_window(
        self, pairs: Sequence[tuple[RawSource, str]], batch_size: int, unknown: UnknownTokens
    ) -> list[float]:
        """Score some pairs, in batches of similar length. Collect their unknown tokens."""
        sources = self.reader.read([source for source, _ in pairs])
        targets = [[*ids, END] for ids in self.tokenizer.ids([target for _, target in pairs])]
        for item, ids, (_, text) in zip(sources, targets, pairs, strict=True):
            unknown.add([*item.unknown, *(self.tokenizer.find_unknown([text])[0] if UNKNOWN in ids else ())])
        lengths = [source.length + len(target) for source, target in zip(sources, targets, strict=True)]
        scores = [0.0] * len(pairs)
        with self.inference():
            for rows in batch_by_length(lengths, batch_size, MAX_LOGITS // len(self.tokenizer)):
                source = self.collate([sources[row] for row in rows])
                target = pad([targets[row] for row in rows]).to(self.device)
                batch_scores = target_log_probs(self.model, Batch(source, target, rows, 0)).sum(-1).tolist()
                for row, value in zip(rows, batch_scores, strict=True):
                    scores[row] = value
        return scores

    def _predict_batch(
        self, sources: Sequence[SourceItem], task: "_Task", *, attention: bool
    ) -> list[list[Hypothesis]]:
        """Encode the sources and decode them. If a greedy hypothesis has a loop, score the tokens without the loop."""
        source = self.collate(sources)
        encoded = encode(self.model, source, record(self.model) if attention else nullcontext(Recording()))
        discard_search = mark_recorded()
        nbest = self._decode(encoded, task, attention=attention)
        if task.guards_loops:
            removed = {row: remove_loops(greedy, sources[row].tokens) for row, [greedy] in enumerate(nbest)}
            forced = {row: [*tokens, END] for row, tokens in removed.items() if tokens is not None}
            if forced:
                rows = list(forced)
                if len(rows) == len(nbest):  # a recording contains the search that the predictions come from
                    discard_search()
                again = self._decode(encoded.select(rows), task.force(rows, list(forced.values())), attention=attention)
                for row, [hypothesis] in zip(rows, again, strict=True):
                    nbest[row] = [hypothesis._replace(looped=True)]
        return nbest

    def _decode(self, encoded: Encoded, task: "_Task", *, attention: bool) -> list[list[Hypothesis]]:
        """Search, rank the hypotheses, and record their attention weights if requested."""
        search = task.search
        if attention and search.has_one_hypothesis and self.device.type == "cpu":
            sentences: list[Tensor] = []
            with record(self.model) as decoding:
                nbest = self._search(encoded, task, sentences)
            weights = BatchWeights.of_search(encoded, decoding, sentences)
            return (weights or BatchWeights.of_hypotheses(self.model, encoded, nbest)).attach(nbest)
        nbest = self._search(encoded, task)
        if search.coverage_penalty:
            weights = BatchWeights.of_hypotheses(self.model, encoded, nbest)
            nbest = weights.rank_by_coverage(weights.attach(nbest) if attention else nbest, search.coverage_penalty)
        if search.mbr_samples:
            nbest = [rank_by_risk(samples, self.tokenizer.decode) for samples in nbest]
        nbest = [hypotheses[: search.nbest] for hypotheses in nbest]
        if attention and not search.coverage_penalty:
            nbest = BatchWeights.of_hypotheses(self.model, encoded, nbest).attach(nbest)
        return nbest

    def _search(self, encoded: Encoded, task: "_Task", sentences: list[Tensor] | None = None) -> list[list[Hypothesis]]:
        """Run the strategy that is set in `search`, under the rules and constraints. If it chooses one token after
        another, append the indices of the sentences of each step to `sentences`.
        """
        search, limits_B = task.search, self.limit_lengths(encoded.length_B)
        constraints = task.constraints.tokenize(self.tokenizer, self.max_length)
        limits_B = constraints.extend_limits(limits_B)
        rules = _build_rules(search, constraints, limits_B)
        inputs = (self.model.decoder, encoded.memory, SPECIAL_TOKENS, limits_B)
        if search.is_random:
            generators = [np.random.default_rng([search.seed, index]) for index in task.indices]
            sampler = Sampler(generators, search)
            nbest = decode_stepwise(*inputs, sampler, rules, search.mbr_samples or search.nbest, sentences)
            nbest = [sorted(samples, key=lambda sample: -sample.score) for samples in nbest]
        elif not search.uses_beam:
            nbest = decode_stepwise(*inputs, choose_most_likely, rules, history=sentences)
        else:
            if search.coverage_penalty:  # which ranks all hypotheses in the beam again
                search = search.model_copy(update={"nbest": search.beam})
            nbest = beam_search(*inputs, search, rules, task.history)
        _check_finite(nbest)
        return nbest


def target_log_probs(model: Seq2Seq, batch: Batch) -> Tensor:
    """Return log p of each target token given the source and the previous tokens, (B, T); zeros for padding.

    Raise ModelError if a log-probability is NaN, or below `MIN_LOG_PROB`.
    """
    decoded = model(batch.source, batch.decoder_inputs)
    tokens_BT, valid_BT = batch.target.tokens_BT, batch.target.valid_BT
    rows = rows_per_chunk(decoded.features.device, decoded.vocabulary)
    chunks = zip(torch.split(decoded.features[valid_BT], rows), torch.split(tokens_BT[valid_BT], rows), strict=True)
    losses = [
        nn.functional.cross_entropy(decoded.output(features_ND).float(), tokens_N, reduction="none")
        for features_ND, tokens_N in chunks
    ]
    log_p_BT = torch.zeros(tokens_BT.shape, dtype=torch.float64, device=tokens_BT.device)
    log_p_N = -torch.cat(losses).double()
    invalid = log_p_N[log_p_N.isnan() | (log_p_N.isfinite() & (log_p_N < MIN_LOG_PROB))]
    if len(invalid):
        raise ModelError(
            f"The model computes the log-probability {float(invalid[0]):.3g} for a target token, so its scores are not "
            f"valid. {_CAUSE}"
        )
    log_p_BT[valid_BT] = log_p_N
    return log_p_BT


def _check_finite(nbest: Sequence[Sequence[Hypothesis]]) -> None:
    """Raise ModelError if the model computes NaN. A beam of NaN contains no hypothesis at all."""
    if not all(hypotheses and not math.isnan(hypotheses[0].score) for hypotheses in nbest):
        raise ModelError(DIVERGED)


class _Task(NamedTuple):
    """What to do with a batch: the search with its constraints and history, and the indices of its sources."""

    search: SearchSettings
    constraints: Constraints
    indices: Sequence[int]
    history: list[BeamStep] | None

    @property
    def guards_loops(self) -> bool:
        """Whether to remove loops. They are kept under constraints, which the shortened text might not satisfy."""
        unconstrained = not self.constraints and not self.search.min_length
        return self.search.loop_guard and self.search.is_greedy and unconstrained

    def force(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> "_Task":
        """Return the task of generating given tokens for some of the sources."""
        indices = [self.indices[row] for row in rows]
        return self._replace(constraints=Constraints(prefix_ids=tokens), indices=indices)


def _build_rules(search: SearchSettings, constraints: TokenConstraints, limits_B: Tensor) -> list[Rule]:
    """Build the rules in order: required phrases and prefixes are last, because they override the others."""
    rules: list[Rule] = []
    if search.min_length:
        rules.append(MinLength(END, search.min_length))
    if search.no_repeat_ngram:
        rules.append(NoRepeatNgram(search.no_repeat_ngram))
    if search.repetition_penalty > 1:
        rules.append(RepetitionPenalty(search.repetition_penalty))
    if constraints.banned:
        rules.append(BannedPhrases(constraints.banned))
    if any(constraints.phrases):
        rules.append(RequiredPhrases(constraints.phrases, limits_B.tolist(), END))
    if any(constraints.prefixes):
        rules.append(ForcedPrefix(constraints.prefixes))
    return rules
