"""Greedy search and sampling, and the batch of hypotheses that they share with beam search (`beam.py`).

A search uses a model only through the `Decoder` contract. Finished sentences are removed from the batch, several at a
time. After the search, samples are ranked by minimum Bayes risk, and the loops of greedy search are removed: it can
repeat a cycle of tokens until the length limit (Holtzman et al. 2020).

B sentences, K hypotheses of each, N = B K, T steps, at most C, V vocabulary.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.decoding.rules import Generated, Rule, SuppressedTokens
from regard.decoding.settings import SearchSettings
from regard.decoding.steps import StepRunner, capture_unsupported_reason, round_up
from regard.models.contracts import Decoder, Grid, Keys, Memory, State, reorder
from regard.ops import triton
from regard.ops.hooks import mark_hypotheses

AttentionWeights = NDArray[np.float32]


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


class ChooseToken(ABC):
    """Chooses the next token of each hypothesis from log-probabilities. Instances that choose alike are equal."""

    generators: Sequence[np.random.Generator] = ()
    """The generator of each sentence, if random numbers are needed."""

    @abstractmethod
    def __call__(self, log_p_NV: Tensor, uniform_N: Tensor) -> Tensor:
        """Return a token for each row, given a uniform random number for each."""


@final
@dataclass(frozen=True)
class _MostLikely(ChooseToken):
    def __call__(self, log_p_NV: Tensor, uniform_N: Tensor) -> Tensor:
        del uniform_N
        return log_p_NV.argmax(-1)


choose_most_likely = _MostLikely()


@final
@dataclass(frozen=True)
class Sampler(ChooseToken):
    """Sample a token from p^(1 / temperature), restricted to the k most likely tokens, to the most likely tokens whose
    probabilities add up to p (Holtzman et al. 2020), and to tokens at least min_p times as likely as the most likely.
    """

    generators: Sequence[np.random.Generator] = field(compare=False)
    """The generator of each sentence: the samples of a sentence do not depend on the others in its batch."""
    settings: SearchSettings

    def __call__(self, log_p_NV: Tensor, uniform_N: Tensor) -> Tensor:
        """Choose the token at which the cumulative probability exceeds the random number."""
        # If all probabilities are NaN, any token is chosen. The score of the hypothesis stays NaN and is reported.
        # In float64, so that rounding, which depends on the batch, practically never changes a choice.
        cumulative_NV = self.probabilities(log_p_NV).nan_to_num(nan=1.0).double().cumsum(-1)
        total_N1 = cumulative_NV[:, -1:]
        # Due to rounding, the product could equal the total, and then no token would be found.
        below_N1 = (uniform_N.unsqueeze(1) * total_N1).minimum(total_N1 * (1 - 2**-50))
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


class SearchState(NamedTuple):
    """The hypotheses of a batch, as tensors whose shapes do not depend on the number of steps, except those of the
    decoder. A state may be used for one step only.
    """

    keys: Keys
    decoder: State
    token_N: Tensor
    """The last token of each hypothesis."""
    generated_NC: Tensor
    """The tokens so far, in the first columns."""
    step: Tensor
    """The number of tokens so far, (1,)."""
    sentence_B: Tensor
    """The index in the input of each sentence in the batch."""

    @classmethod
    def begin(
        cls, decoder: Decoder, memory: Memory, start: int, limits_B: Tensor, hypotheses: int, max_steps: int
    ) -> "SearchState":
        keys, state = decoder.begin(memory)
        sentence_B = torch.arange(len(limits_B), device=limits_B.device)
        rows = len(limits_B) * hypotheses
        if hypotheses > 1:
            mark_hypotheses()
            state = reorder(state, sentence_B.repeat_interleave(hypotheses))
            # The rows of a sentence form a block from now on.
            state = reorder(state, torch.arange(rows, device=limits_B.device), block=hypotheses)
        token_N = torch.full((rows,), start, device=limits_B.device)
        generated_NC = token_N.new_zeros(rows, max_steps)
        return cls(keys, state, token_N, generated_NC, token_N.new_zeros(1), sentence_B)

    @property
    def hypotheses(self) -> int:
        return len(self.token_N) // len(self.sentence_B)

    @property
    def generated(self) -> Generated:
        sentence_N = self.sentence_B.unsqueeze(1).expand(-1, self.hypotheses).flatten()
        return Generated(self.generated_NC, sentence_N, self.step)

    def next_log_p(self, decoder: Decoder, rules: Sequence[Rule]) -> tuple[Tensor, Tensor, State]:
        """Take a step of the decoder. Return the log-probabilities of the model, valid where no rule masks them, those
        adjusted by the rules, and the state of the decoder.
        """
        logits_NV, state = decoder.step(self.token_N, self.decoder, self.keys)
        log_p_NV = _log_softmax(logits_NV)
        # A masked token is never generated, so its probability is not needed: rules that only mask may work in place.
        adjusted_NV = log_p_NV if all(rule.only_masks for rule in rules) else log_p_NV.clone()
        generated = self.generated
        for rule in rules:
            adjusted_NV = rule(adjusted_NV, generated)
        return log_p_NV, adjusted_NV, state

    def append(self, state: State, token_N: Tensor, parent_N: Tensor | None = None) -> "SearchState":
        """Append a token to each hypothesis, or to the hypothesis `parent_N` of the same sentence. `state` is the state
        of the decoder after the step.
        """
        generated_NC = self.generated_NC
        if parent_N is not None:
            state = reorder(state, parent_N, block=self.hypotheses)
            generated_NC = generated_NC.index_select(0, parent_N)
        generated_NC = generated_NC.index_copy_(1, self.step, token_N.unsqueeze(1))
        return self._replace(decoder=state, token_N=token_N, generated_NC=generated_NC, step=self.step + 1)

    def keep_sentences(self, rows_B: Tensor) -> tuple["SearchState", Tensor]:
        """Remove all other sentences. Return also the previous rows of the remaining hypotheses."""
        offsets_K = torch.arange(self.hypotheses, device=rows_B.device)
        rows_N = (rows_B.unsqueeze(1) * self.hypotheses + offsets_K).flatten()
        state = SearchState(
            reorder(self.keys, rows_B),
            reorder(self.decoder, rows_N, block=self.hypotheses, blocks=rows_B),
            self.token_N[rows_N],
            self.generated_NC[rows_N],
            self.step,
            self.sentence_B[rows_B],
        )
        return state, rows_N


def _log_softmax(logits_NV: Tensor) -> Tensor:
    """Compute the log-softmax in float32: on a GPU in one kernel, and on a CPU in place and in chunks, because
    allocating a large tensor costs more there.
    """
    if triton.is_usable(logits_NV) and not logits_NV.requires_grad:
        from regard.ops.triton.selection import log_softmax

        return log_softmax(logits_NV)
    logits_NV = logits_NV.float()
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
    rules = (SuppressedTokens(special.suppressed), *rules)
    captures = capture_unsupported_reason(limits_B.device, decoder, rules, observed=history is not None) is None
    sentences, max_steps = len(limits_B), int(limits_B.max()) if len(limits_B) else 0
    if captures:
        memory, limits_B, max_steps = pad_batch(memory, limits_B, max_steps)

    def begin(memory: Memory, limits_B: Tensor, uniform_NC: Tensor) -> _StepwiseState:
        search = SearchState.begin(decoder, memory, special.start, limits_B, hypotheses, max_steps)
        return _StepwiseState.begin(search, limits_B, uniform_NC)

    def take_step(state: _StepwiseState) -> _StepwiseState:
        if history is not None:
            history.append(state.search.sentence_B)
        return state.advance(decoder, rules, choose, special.end)

    options = choose, rules, special, hypotheses, max_steps
    runner = StepRunner(begin, take_step, decoder, options, device=limits_B.device, captures=captures)
    uniform_NC = _draw_uniform(choose.generators, len(limits_B), hypotheses, max_steps).to(limits_B.device)
    state = runner.begin(memory, limits_B, uniform_NC)
    results: dict[int, list[Hypothesis]] = {}
    steps = 0
    while True:
        finished_B = state.ended_N.view(-1, hypotheses).all(1)
        rows = rows_to_keep(finished_B.cpu().numpy(), bucketed=captures)
        if rows is not None:
            results |= state.read_finished(finished_B, special.end)
            if not len(rows):
                return [results[sentence] for sentence in range(sentences)]
            state = state.keep_sentences(torch.from_numpy(rows).to(limits_B.device))
        for _ in range(min(STEPS_PER_LOOK if captures else 1, max_steps - steps)):
            state = runner.run(state)
            steps += 1


class _StepwiseState(NamedTuple):
    """The hypotheses, their log-probabilities, and which of them have ended or were truncated."""

    search: SearchState
    score_N: Tensor
    limits_N: Tensor
    ended_N: Tensor
    truncated_N: Tensor
    uniform_NC: Tensor
    """The random numbers of all steps; zeros if none are needed."""

    @classmethod
    def begin(cls, search: SearchState, limits_B: Tensor, uniform_NC: Tensor) -> "_StepwiseState":
        limits_N = limits_B.repeat_interleave(search.hypotheses)
        score_N = torch.zeros(len(limits_N), dtype=torch.float64, device=limits_B.device)
        truncated_N = torch.zeros_like(limits_N, dtype=torch.bool)
        # With a limit of 0, the empty hypothesis is complete.
        return cls(search, score_N, limits_N, limits_N <= 0, truncated_N, uniform_NC)

    def advance(self, decoder: Decoder, rules: Sequence[Rule], choose: ChooseToken, end: int) -> "_StepwiseState":
        """Take a step. Hypotheses that have ended stay unchanged."""
        log_p_NV, adjusted_NV, after = self.search.next_log_p(decoder, rules)
        uniform_N = self.uniform_NC.index_select(1, self.search.step).squeeze(1)
        token_N = torch.where(self.ended_N, end, choose(adjusted_NV, uniform_N))
        log_p_N = log_p_NV.gather(-1, token_N.unsqueeze(-1)).squeeze(-1)
        score_N = self.score_N + torch.where(self.ended_N, 0.0, log_p_N)
        search = self.search.append(after, token_N)
        at_limit_N = search.step >= self.limits_N
        truncated_N = self.truncated_N | (~self.ended_N & (token_N != end) & at_limit_N)
        ended_N = self.ended_N | (token_N == end) | at_limit_N
        return self._replace(search=search, score_N=score_N, ended_N=ended_N, truncated_N=truncated_N)

    def read_finished(self, finished_B: Tensor, end: int) -> dict[int, list[Hypothesis]]:
        """Return the hypotheses of the finished sentences, by the index of the sentence."""
        lengths_N = _lengths(self.search.generated_NC[:, : int(self.search.step)], end)
        rows_B = finished_B.nonzero().squeeze(1)
        columns = (self.search.generated_NC, lengths_N, self.score_N, self.truncated_N)
        values = (column.view(len(finished_B), self.search.hypotheses, -1)[rows_B].tolist() for column in columns)
        return {
            sentence: [
                Hypothesis(tokens[:length], score, truncated, score)
                for tokens, [length], [score], [truncated] in zip(*rows, strict=True)
            ]
            for sentence, *rows in zip(self.search.sentence_B[rows_B].tolist(), *values, strict=True)
        }

    def keep_sentences(self, rows_B: Tensor) -> "_StepwiseState":
        search, rows_N = self.search.keep_sentences(rows_B)
        return _StepwiseState(search, *(column[rows_N] for column in self[1:]))


def _draw_uniform(generators: Sequence[np.random.Generator], sentences: int, hypotheses: int, steps: int) -> Tensor:
    """Return a random number for each hypothesis and step, (N, C), drawn step by step for each sentence; zeros for
    sentences without a generator.
    """
    uniform_BCK = np.zeros((sentences, steps, hypotheses))
    for uniform_CK, generator in zip(uniform_BCK, generators, strict=False):
        uniform_CK[:] = generator.random(uniform_CK.shape)
    return torch.from_numpy(uniform_BCK).transpose(1, 2).reshape(sentences * hypotheses, steps)


STEPS_PER_LOOK = 4
"""The number of captured steps after which the host reads which sentences are finished."""


def pad_batch(memory: Memory, limits_B: Tensor, max_steps: int) -> tuple[Memory, Tensor, int]:
    """Round the sizes of a batch up, so that batches share graphs. The additional sentences are empty."""
    rows, slots = memory.allowed_BS.shape
    more_rows = round_up(rows) - rows
    memory = memory.pad(rows + more_rows, round_up(slots))
    return memory, nn.functional.pad(limits_B, (0, more_rows)), round_up(max_steps)


MIN_BUCKET = 64
"""The smallest batch that finished sentences are removed for, in buckets: smaller ones are hardly faster on a GPU, and
each size needs a graph.
"""


def rows_to_keep(finished_B: NDArray[np.bool_], *, bucketed: bool) -> NDArray[np.int64] | None:
    """Return the rows of a smaller batch with all unfinished sentences; None if it would not pay for the copies.

    In buckets, some finished sentences remain, so that batches share graphs.
    """
    sentences, active = len(finished_B), int((~finished_B).sum())
    kept = min(sentences, max(MIN_BUCKET, round_up(active))) if bucketed and active else active
    if (sentences - kept) * (2 if bucketed else 8) < sentences:
        return None
    order = np.argsort(finished_B, kind="stable")
    return np.sort(order[:kept])


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
