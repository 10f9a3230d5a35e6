"""Greedy search and sampling, and the batch of hypotheses that they share with beam search (`beam.py`).

A search uses a model only through the `Decoder` contract. Finished sentences are removed from the batch, several at a
time. After the search, samples are ranked by minimum Bayes risk, and the loops of greedy search are removed: it can
repeat a cycle of tokens until the length limit (Holtzman et al. 2020).

B sentences, K hypotheses of each, N = B K, T steps, V vocabulary.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.decoding.cuda_graphs import GraphedDecoder
from regard.decoding.rules import ConstraintProgress, Generated, Rule, SuppressedTokens
from regard.decoding.settings import SearchSettings
from regard.models.contracts import Decoder, Grid, Keys, Memory, State, reorder
from regard.ops.hooks import are_hooks_active, mark_hypotheses

AttentionWeights = NDArray[np.float32]


_before_step: ContextVar[Callable[[], object] | None] = ContextVar("before_step", default=None)


@contextmanager
def call_before_steps(function: Callable[[], object]) -> Iterator[None]:
    """Within the block, call a function before each step of a search in this thread. The function can stop the search
    by raising an exception.
    """
    token = _before_step.set(function)
    try:
        yield
    finally:
        _before_step.reset(token)


class SpecialTokens(NamedTuple):
    """The start token, the end token, and tokens that are never generated."""

    start: int
    end: int
    suppressed: tuple[int, ...] = ()


class Hypothesis(NamedTuple):
    """The tokens of a hypothesis without the end token, its log-probability, whether it was truncated at the length
    limit, and the value by which it is ranked. Its attention weights are added after the search, if requested.
    """

    tokens: list[int]
    score: float
    truncated: bool
    rank: float = 0.0
    looped: bool = False
    """Whether greedy search repeated itself in a loop, which was removed."""
    attentions: Mapping[str, AttentionWeights] = MappingProxyType({})
    """The weights of each attention by name: queries × keys, or heads × queries × keys."""
    layout: Grid | None = None
    """How the memory slots, the keys of a cross-attention, are arranged; None if they are a sequence."""

    @property
    def sort_key(self) -> tuple[bool, float]:
        """Sorts the best hypothesis first, and truncated hypotheses after all others."""
        return self.truncated, -self.rank


ChooseToken = Callable[[Tensor, Tensor], Tensor]
"""Maps log-probabilities (N, V), and the indices of the sentences (B), to a token for each row (N)."""


def choose_most_likely(log_p_NV: Tensor, sentence_B: Tensor) -> Tensor:
    del sentence_B
    return log_p_NV.argmax(-1)


@final
@dataclass(frozen=True)
class Sampler:
    """Sample a token from p^(1 / temperature), restricted to the k most likely tokens, to the most likely tokens whose
    probabilities add up to p (Holtzman et al. 2020), and to tokens at least min_p times as likely as the most likely.
    """

    generators: Sequence[np.random.Generator]
    """The generator of each sentence: the samples of a sentence do not depend on the others in its batch."""
    settings: SearchSettings

    def __call__(self, log_p_NV: Tensor, sentence_B: Tensor) -> Tensor:
        """Choose the token at which the cumulative probability exceeds a uniform random number."""
        hypotheses = len(log_p_NV) // len(sentence_B)
        draws = [self.generators[sentence].random(hypotheses) for sentence in sentence_B.tolist()]
        uniform_N1 = torch.from_numpy(np.concatenate(draws)).to(log_p_NV.device).unsqueeze(1)
        # If all probabilities are NaN, any token is chosen. The score of the hypothesis stays NaN and is reported.
        # In float64, so that rounding, which depends on the batch, practically never changes a choice.
        cumulative_NV = self.probabilities(log_p_NV).nan_to_num(nan=1.0).double().cumsum(-1)
        total_N1 = cumulative_NV[:, -1:]
        below_N1 = (uniform_N1 * total_N1).minimum(total_N1 * (1 - 2**-50))  # a rounded product could be the total
        return torch.searchsorted(cumulative_NV, below_N1, right=True).squeeze(-1)

    def probabilities(self, log_p_NV: Tensor) -> Tensor:
        """Return the probabilities to sample from, not normalized."""
        p_NV = (log_p_NV / self.settings.temperature).softmax(-1)
        if self.settings.top_k:
            threshold_N1 = p_NV.topk(min(self.settings.top_k, p_NV.shape[-1]), dim=-1).values[:, -1:]
            p_NV = p_NV.masked_fill(p_NV < threshold_N1, 0.0)
        if self.settings.top_p < 1:
            sorted_NV, order_NV = (p_NV / p_NV.sum(-1, keepdim=True)).sort(-1, descending=True)
            excluded_NV = (
                sorted_NV.cumsum(-1) - sorted_NV >= self.settings.top_p
            )  # more likely tokens add up to p already
            p_NV = p_NV.masked_fill(excluded_NV.gather(-1, order_NV.argsort(-1)), 0.0)
        return p_NV.masked_fill(p_NV < self.settings.min_p * p_NV.amax(-1, keepdim=True), 0.0)


@dataclass
class SearchBatch:
    """The hypotheses of unfinished sentences. `sentence_B` are the indices of these sentences in the input."""

    decoder: Decoder
    keys: Keys
    state: State
    token_N: Tensor
    generated_NT: Tensor
    sentence_B: Tensor
    rules: Sequence[Rule]
    graphed: GraphedDecoder | None = None
    """Replays the decoder's steps as CUDA graphs; None if they cannot be captured."""

    @classmethod
    def begin(
        cls,
        decoder: Decoder,
        memory: Memory,
        special: SpecialTokens,
        rules: Sequence[Rule],
        rows: Tensor,
        hypotheses: int,
    ) -> "SearchBatch":
        keys, state = decoder.begin(memory)
        sentence_B = torch.arange(len(rows), device=rows.device)
        if hypotheses > 1:
            mark_hypotheses()
            state = reorder(state, sentence_B.repeat_interleave(hypotheses))
        token_N = torch.full((len(rows) * hypotheses,), special.start, device=rows.device)
        generated_NT = token_N.new_empty(len(token_N), 0)
        # A replayed graph has no gradient, and calls no hooks.
        observed = are_hooks_active() or torch.is_grad_enabled()
        can_replay = rows.is_cuda and not observed
        graphed = GraphedDecoder(decoder) if can_replay else None
        rules = [SuppressedTokens(special.suppressed), *rules]
        return cls(decoder, keys, state, token_N, generated_NT, sentence_B, rules, graphed)

    @property
    def hypotheses(self) -> int:
        return len(self.token_N) // len(self.sentence_B)

    @property
    def generated(self) -> Generated:
        return Generated(self.generated_NT, self.sentence_B.repeat_interleave(self.hypotheses))

    def next_log_p(self) -> tuple[Tensor, Tensor]:
        """Take a step of the decoder. Return the log-probabilities of the model, valid where no rule masks them, and
        those adjusted by the rules.
        """
        before_step = _before_step.get()
        if before_step is not None:
            before_step()
        if self.graphed is None:
            logits_NV, self.state = self.decoder.step(self.token_N, self.state, self.keys)
        else:
            steps = self.generated_NT.shape[1]
            logits_NV, self.state = self.graphed.step(self.token_N, self.state, self.keys, steps)
        log_p_NV = _log_softmax(logits_NV.float())
        # A masked token is never generated, so its probability is not needed: rules that only mask may work in place.
        adjusted_NV = log_p_NV if all(rule.only_masks for rule in self.rules) else log_p_NV.clone()
        generated = self.generated
        for rule in self.rules:
            adjusted_NV = rule(adjusted_NV, generated)
        return log_p_NV, adjusted_NV

    def progress(self, vocabulary: int) -> ConstraintProgress | None:
        """Return the progress toward required tokens; None if no rule requires any."""
        by_rule = (rule.progress(self.generated, vocabulary) for rule in self.rules)
        return next((progress for progress in by_rule if progress is not None), None)

    def append(self, token_N: Tensor, parent_N: Tensor | None = None) -> None:
        """Append a token to each hypothesis, or to the hypothesis `parent_N` of the same sentence."""
        if parent_N is not None:
            self.state = reorder(self.state, parent_N, block=self.hypotheses)
            self.generated_NT = self.generated_NT.index_select(0, parent_N)
        self.token_N = token_N
        self.generated_NT = torch.cat([self.generated_NT, token_N.unsqueeze(1)], dim=1)

    def keep_sentences(self, rows_B: Tensor) -> Tensor:
        """Remove all other sentences. Return the previous rows of the remaining hypotheses."""
        offsets_K = torch.arange(self.hypotheses, device=rows_B.device)
        rows_N = (rows_B.unsqueeze(1) * self.hypotheses + offsets_K).flatten()
        self.keys = reorder(self.keys, rows_B)
        self.state = reorder(self.state, rows_N, block=self.hypotheses, blocks=rows_B)
        self.token_N, self.generated_NT = self.token_N[rows_N], self.generated_NT[rows_N]
        self.sentence_B = self.sentence_B[rows_B]
        return rows_N


def _log_softmax(logits_NV: Tensor) -> Tensor:
    """Compute the log-softmax; on a CPU in place and in chunks, because allocating a large tensor costs more there."""
    if logits_NV.device.type != "cpu" or logits_NV.requires_grad:
        return logits_NV.log_softmax(-1)
    for chunk in torch.split(logits_NV, max(1, 2**17 // logits_NV.shape[1])):
        chunk.copy_(chunk.log_softmax(-1))
    return logits_NV


def decode_stepwise(
    decoder: Decoder,
    memory: Memory,
    special: SpecialTokens,
    limits_B: Tensor,
    choose: ChooseToken,
    rules: Sequence[Rule] = (),
    hypotheses: int = 1,
    history: list[Tensor] | None = None,
) -> list[list[Hypothesis]]:
    """Choose one token after another with `choose`, independently for several hypotheses of each sentence. If there is
    a history, append the indices of the sentences of each step.
    """
    results: dict[int, list[Hypothesis]] = {}
    limits_N = limits_B.repeat_interleave(hypotheses)
    batch = SearchBatch.begin(decoder, memory, special, rules, limits_B, hypotheses)
    score_N = torch.zeros(len(limits_N), dtype=torch.float64, device=limits_B.device)
    ended_N = limits_N <= 0
    truncated_N = torch.zeros_like(ended_N)  # with a limit of 0, the empty hypothesis is complete
    while True:
        finished_B = ended_N.view(-1, hypotheses).all(1)
        finished = int(finished_B.sum())
        if worth_compacting(finished, len(finished_B)):
            lengths_N = _lengths(batch.generated_NT, special.end)
            rows_B = finished_B.nonzero().squeeze(1)
            columns = (batch.generated_NT, lengths_N, score_N, truncated_N)
            values = (column.view(len(finished_B), hypotheses, -1)[rows_B].tolist() for column in columns)
            for sentence, *rows in zip(batch.sentence_B[rows_B].tolist(), *values, strict=True):
                results[sentence] = [
                    Hypothesis(tokens[:length], score, truncated, score)
                    for tokens, [length], [score], [truncated] in zip(*rows, strict=True)
                ]
            if finished == len(finished_B):
                break
            rows_N = batch.keep_sentences((~finished_B).nonzero().squeeze(1))
            score_N, limits_N = score_N[rows_N], limits_N[rows_N]
            ended_N, truncated_N = ended_N[rows_N], truncated_N[rows_N]
        if history is not None:
            history.append(batch.sentence_B)
        log_p_NV, adjusted_NV = batch.next_log_p()
        token_N = torch.where(ended_N, special.end, choose(adjusted_NV, batch.sentence_B))
        score_N = score_N + torch.where(ended_N, 0.0, log_p_NV.gather(-1, token_N.unsqueeze(-1)).squeeze(-1))
        batch.append(token_N)
        at_limit_N = batch.generated_NT.shape[1] >= limits_N
        truncated_N = truncated_N | (~ended_N & (token_N != special.end) & at_limit_N)
        ended_N = ended_N | (token_N == special.end) | at_limit_N
    return [results[sentence] for sentence in range(len(results))]


def worth_compacting(finished: int, sentences: int) -> bool:
    """Whether enough sentences of a batch are finished to pay for copying the others into a smaller batch."""
    return finished * 8 >= sentences


def _lengths(generated_NT: Tensor, end: int) -> Tensor:
    """Count the tokens before the first end token."""
    return ((generated_NT == end).cumsum(1) == 0).sum(1)


def rank_by_risk(samples: Sequence[Hypothesis], decode: Callable[[list[int]], str]) -> list[Hypothesis]:
    """Rank the distinct samples by their average chrF against all samples (Eikema and Aziz 2020)."""
    from sacrebleu.metrics.chrf import CHRF  # imported on first use: few searches need it, and it takes 0.1 s

    metric = CHRF()
    texts = [decode(sample.tokens) for sample in samples]
    distinct = dict(zip(reversed(texts), reversed(samples), strict=True))
    ranked = []
    for text, sample in distinct.items():
        similarity = sum(float(metric.sentence_score(text, [other]).score) for other in texts) / len(texts)
        ranked.append(sample._replace(rank=similarity))
    return sorted(ranked, key=lambda sample: (-sample.rank, -sample.score))


MAX_PERIOD = 8
"""The maximum length of a cycle, in tokens."""

MAX_REPEATS = 3
"""A cycle that occurs up to this number of times in a row is not a loop."""

MIN_LOOP = 16
"""The minimum number of tokens of a loop. Shorter repetitions can be correct: a long number can repeat the digit 0."""

MIN_LOOP_AT_LIMIT = 8
"""The same if the hypothesis was truncated in the loop, at the length limit."""

_REPEATED = re.compile(rf"(.{{1,{MAX_PERIOD}}}?)\1{{{MAX_REPEATS},}}", re.DOTALL)


def remove_loops(hypothesis: Hypothesis, source_tokens: Sequence[str]) -> list[int] | None:
    """Return the tokens of a hypothesis with each loop reduced to its first cycle; None if it has no loop.

    If the hypothesis was truncated in a loop, it ends after the first cycle. If the source also repeats a cycle, return
    None, because the repetition may be correct.
    """
    tokens = hypothesis.tokens
    min_loop = MIN_LOOP_AT_LIMIT if hypothesis.truncated else MIN_LOOP
    # Most predictions have too few repeated tokens. This check is much faster than the search below.
    if (len(tokens) - len(set(tokens))) * (MAX_REPEATS + 1) < min_loop * MAX_REPEATS:
        return None
    kept: list[int] = []
    position = 0
    # A character for each token: regular expressions find repetitions faster than a loop over tokens.
    for match in _REPEATED.finditer("".join(map(chr, tokens))):
        at_limit = hypothesis.truncated and len(tokens) - match.end() < len(match[1])
        if match.end() - match.start() >= (MIN_LOOP_AT_LIMIT if at_limit else MIN_LOOP):
            kept += tokens[position : match.end(1)]
            position = len(tokens) if at_limit else match.end()
    if not position or _repeats(source_tokens):
        return None
    return kept + tokens[position:]


def _repeats(tokens: Sequence[str]) -> bool:
    ids = {token: index for index, token in enumerate(dict.fromkeys(tokens))}
    return _REPEATED.search("".join(chr(ids[token]) for token in tokens)) is not None
