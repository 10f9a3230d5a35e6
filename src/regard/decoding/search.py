"""Search: from a memory to the tokens of an answer, through the contract of `Decoder` alone.

Sentences whose search is over leave the batch. B sentences, K hypotheses of each, N = B K, T steps, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard.decoding.rules import Never, Rule, Said
from regard.models.contracts import Decoder, Keys, Memory, State, reorder


class Symbols(NamedTuple):
    """The tokens that search must know of: with which to begin and to end, and which never to say."""

    start: int
    end: int
    never: tuple[int, ...] = ()


class Hypothesis(NamedTuple):
    """An answer: its tokens without the end, the log-probability of all it says, whether it had to be cut, and by what
    it was ranked.
    """

    tokens: list[int]
    score: float
    truncated: bool
    rank: float = 0.0

    @property
    def place(self) -> tuple[bool, float]:
        """By which answers are put in order, the best first: what had to be cut comes after what ended by itself."""
        return self.truncated, -self.rank


Choose = Callable[[Tensor], Tensor]
"""From the log-probabilities (N, V) to a token for each."""


def likeliest(log_p_NV: Tensor) -> Tensor:
    return log_p_NV.argmax(-1)


@dataclass
class _Batch:
    """The sentences whose search goes on, by their numbers in what was given."""

    decoder: Decoder
    keys: Keys
    state: State
    token_N: Tensor
    said_NT: Tensor
    numbers_B: Tensor
    rules: Sequence[Rule]

    @classmethod
    def begin(
        cls, decoder: Decoder, memory: Memory, symbols: Symbols, rules: Sequence[Rule], rows: Tensor, hypotheses: int
    ) -> "_Batch":
        keys, state = decoder.begin(memory)
        numbers_B = torch.arange(len(rows), device=rows.device)
        state = reorder(state, numbers_B.repeat_interleave(hypotheses)) if hypotheses > 1 else state
        token_N = torch.full((len(rows) * hypotheses,), symbols.start, device=rows.device)
        said_NT = token_N.new_empty(len(token_N), 0)
        return cls(decoder, keys, state, token_N, said_NT, numbers_B, [Never(symbols.never), *rules])

    @property
    def hypotheses(self) -> int:
        return len(self.token_N) // len(self.numbers_B)

    def log_p(self) -> tuple[Tensor, Tensor]:
        """Of each next token: as the model has it, and as the rules leave it."""
        logits_NV, self.state = self.decoder.step(self.token_N, self.state, self.keys)
        log_p_NV = ruled_NV = logits_NV.float().log_softmax(-1)
        said = Said(self.said_NT, self.numbers_B.repeat_interleave(self.hypotheses))
        for rule in self.rules:
            ruled_NV = rule(ruled_NV, said)
        return log_p_NV, ruled_NV

    def say(self, token_N: Tensor, from_N: Tensor | None = None) -> None:
        """Go on with these tokens, each said by the hypothesis it comes from."""
        if from_N is not None:
            self.state, self.said_NT = reorder(self.state, from_N), self.said_NT.index_select(0, from_N)
        self.token_N = token_N
        self.said_NT = torch.cat([self.said_NT, token_N.unsqueeze(1)], dim=1)

    def leave(self, stays_B: Tensor) -> Tensor:
        """Go on with some of the sentences alone → the rows of their hypotheses, as they stood."""
        rows_B = stays_B.nonzero().squeeze(1)
        offsets_K = torch.arange(self.hypotheses, device=rows_B.device)
        rows_N = (rows_B.unsqueeze(1) * self.hypotheses + offsets_K).flatten()
        self.keys, self.state = reorder(self.keys, rows_B), reorder(self.state, rows_N)
        self.token_N, self.said_NT, self.numbers_B = self.token_N[rows_N], self.said_NT[rows_N], self.numbers_B[rows_B]
        return rows_N


def greedy(
    decoder: Decoder, memory: Memory, symbols: Symbols, limits_B: Tensor, rules: Sequence[Rule] = ()
) -> list[Hypothesis]:
    """The likeliest token at each step; a row ends at END, or after `limits_B` tokens, truncated."""
    return [found for [found] in walk(decoder, memory, symbols, limits_B, likeliest, rules)]


def walk(
    decoder: Decoder,
    memory: Memory,
    symbols: Symbols,
    limits_B: Tensor,
    choose: Choose,
    rules: Sequence[Rule] = (),
    answers: int = 1,
) -> list[list[Hypothesis]]:
    """One token after another, as `choose` has it, for so many answers to each sentence."""
    found: dict[int, list[Hypothesis]] = {}
    limits_N = limits_B.repeat_interleave(answers)
    batch = _Batch.begin(decoder, memory, symbols, rules, limits_B, answers)
    score_N = torch.zeros(len(limits_N), dtype=torch.float64, device=limits_B.device)
    ended_N = limits_N <= 0
    cut_N = ended_N.clone()
    while True:
        over_B = ended_N.view(-1, answers).all(1)
        if bool(over_B.any()):
            lengths_N = _lengths(batch.said_NT, symbols.end)
            for row in over_B.nonzero().squeeze(1).tolist():
                own = found[int(batch.numbers_B[row])] = []
                for index in range(row * answers, (row + 1) * answers):
                    tokens, score = batch.said_NT[index, : lengths_N[index]].tolist(), float(score_N[index])
                    own.append(Hypothesis(tokens, score, bool(cut_N[index]), score))
            if bool(over_B.all()):
                break
            rows_N = batch.leave(~over_B)
            score_N, limits_N, ended_N, cut_N = (part[rows_N] for part in (score_N, limits_N, ended_N, cut_N))
        log_p_NV, ruled_NV = batch.log_p()
        token_N = torch.where(ended_N, symbols.end, choose(ruled_NV))
        score_N = score_N + torch.where(ended_N, 0.0, log_p_NV.gather(-1, token_N.unsqueeze(-1)).squeeze(-1))
        batch.say(token_N)
        at_limit_N = batch.said_NT.shape[1] >= limits_N
        cut_N = cut_N | (~ended_N & (token_N != symbols.end) & at_limit_N)
        ended_N = ended_N | (token_N == symbols.end) | at_limit_N
    return [found[number] for number in range(len(found))]


def _lengths(said_NT: Tensor, end: int) -> list[int]:
    """How many tokens stand before the first END."""
    lengths: list[int] = ((said_NT == end).cumsum(1) == 0).sum(1).tolist()
    return lengths


class BeamStep(NamedTuple):
    """The hypotheses that go on after a step: of which sentences, their tokens, which each comes from, their scores."""

    sentences: list[int]
    tokens_BK: list[list[int]]
    parents_BK: list[list[int]]
    scores_BK: list[list[float]]


@dataclass(frozen=True)
class BeamOptions:
    """How wide, how length counts, and how groups are kept apart."""

    beam: int
    nbest: int = 1
    length_penalty: float = 0.6
    groups: int = 1
    diversity: float = 0.5
    history: list["BeamStep"] | None = None
    """Where a list is given, what went on at each step is added to it."""

    def penalty(self, length: int) -> float:
        """((5 + length) / 6)^α (Wu et al. 2016); the length counts END."""
        return float(((5 + length) / 6) ** self.length_penalty)


def beam(
    decoder: Decoder,
    memory: Memory,
    symbols: Symbols,
    limits_B: Tensor,
    options: BeamOptions,
    rules: Sequence[Rule] = (),
) -> list[list[Hypothesis]]:
    """The best finished hypotheses of each sentence, the best first.

    At each step the K best continuations that do not end go on; one that ends is kept if it is among the K best of all.
    A sentence is over once no hypothesis can come to rank above its n-best: log-probabilities only fall, and no
    penalty is greater than the one at the limit, so stopping then is exact. In groups (Vijayakumar et al. 2018) each
    has a beam of its own, and pays for tokens that the groups before it have said at the same step.
    """
    width = options.beam // options.groups
    rows = len(limits_B)
    batch = _Batch.begin(decoder, memory, symbols, rules, limits_B, options.beam)
    device = limits_B.device
    score_BGK = torch.full((rows, options.groups, width), -torch.inf, device=device)
    score_BGK[..., 0] = 0.0
    finished: list[list[list[Hypothesis]]] = [[[] for _ in range(options.groups)] for _ in range(rows)]
    limits = limits_B.clone()
    for row in (limits_B <= 0).nonzero().squeeze(1).tolist():
        finished[row][0].append(Hypothesis([], 0.0, True))
    over_B = limits_B <= 0
    while True:
        if bool(over_B.any()):
            if bool(over_B.all()):
                break
            batch.leave(~over_B)
            score_BGK, limits = score_BGK[~over_B], limits[~over_B]
        _, ruled_NV = batch.log_p()
        step = batch.said_NT.shape[1] + 1
        chosen = _advance(ruled_NV, score_BGK, options, symbols.end)
        numbers = batch.numbers_B.tolist()
        _keep(finished, numbers, batch, chosen, options, step)
        parents_N = chosen.parent_BGK.flatten(1)
        from_N = (torch.arange(len(numbers), device=device).unsqueeze(1) * options.beam + parents_N).flatten()
        batch.say(chosen.token_BGK.flatten(), from_N)
        score_BGK = chosen.score_BGK
        if options.history is not None:
            parts = (chosen.token_BGK, chosen.parent_BGK, score_BGK)
            options.history.append(BeamStep(numbers, *(part.flatten(1).tolist() for part in parts)))
        at_limit_B = step >= limits
        _cut(finished, numbers, batch, score_BGK, at_limit_B, options, step)
        over_B = at_limit_B | _decided(finished, numbers, score_BGK, limits, options)
    return [_best(groups, options.nbest) for groups in finished]


class _Chosen(NamedTuple):
    """The continuations of a step: those that go on, and those among the K best that end."""

    score_BGK: Tensor
    token_BGK: Tensor
    parent_BGK: Tensor
    ended_score_BGK: Tensor
    ended_parent_BGK: Tensor


def _advance(ruled_NV: Tensor, score_BGK: Tensor, options: BeamOptions, end: int) -> _Chosen:
    rows, groups, width = score_BGK.shape
    vocabulary = ruled_NV.shape[-1]
    log_p_BGKV = ruled_NV.view(rows, groups, width, vocabulary)
    taken_BV = torch.zeros(rows, vocabulary, device=ruled_NV.device)
    parts = []
    for group in range(groups):
        total_BKV = score_BGK[:, group].unsqueeze(-1) + log_p_BGKV[:, group]
        ranked_BKV = total_BKV - options.diversity * taken_BV.unsqueeze(1) if group else total_BKV
        _, index_BC = ranked_BKV.flatten(1).topk(min(2 * width, width * vocabulary), dim=-1)
        score_BC = total_BKV.flatten(1).gather(1, index_BC)
        token_BC, parent_BC = index_BC % vocabulary, index_BC // vocabulary + group * width
        ends_BC = token_BC == end
        ended_BC = torch.where(ends_BC, score_BC, -torch.inf)[:, :width]
        # Those that go on, in their order: the ones that end are moved behind.
        order_BK = ends_BC.long().argsort(dim=1, stable=True)[:, :width]
        token_BK = token_BC.gather(1, order_BK)
        going_BK = score_BC.masked_fill(ends_BC, -torch.inf).gather(1, order_BK)
        taken_BV = taken_BV.scatter_add(1, token_BK, torch.ones_like(going_BK))
        parts.append((going_BK, token_BK, parent_BC.gather(1, order_BK), ended_BC, parent_BC[:, :width]))
    return _Chosen(*(torch.stack(part, dim=1) for part in zip(*parts, strict=True)))


def _keep(
    finished: list[list[list[Hypothesis]]],
    numbers: list[int],
    batch: _Batch,
    chosen: _Chosen,
    options: BeamOptions,
    step: int,
) -> None:
    """Note the hypotheses that have ended."""
    penalty = options.penalty(step)
    for row, group, place in (chosen.ended_score_BGK > -torch.inf).nonzero().tolist():
        score = float(chosen.ended_score_BGK[row, group, place])
        parent = row * options.beam + int(chosen.ended_parent_BGK[row, group, place])
        answer = Hypothesis(batch.said_NT[parent].tolist(), score, False, score / penalty)
        _insert(finished[numbers[row]][group], answer, options)


def _cut(
    finished: list[list[list[Hypothesis]]],
    numbers: list[int],
    batch: _Batch,
    score_BGK: Tensor,
    at_limit_B: Tensor,
    options: BeamOptions,
    step: int,
) -> None:
    """At a sentence's limit what goes on is cut, and ranks below all that ended by itself."""
    penalty = options.penalty(step)
    for row in at_limit_B.nonzero().squeeze(1).tolist():
        for place, score in enumerate(score_BGK[row].flatten().tolist()):
            if score > -torch.inf:
                group = place // (options.beam // options.groups)
                tokens = batch.said_NT[row * options.beam + place].tolist()
                _insert(finished[numbers[row]][group], Hypothesis(tokens, score, True, score / penalty), options)


def _insert(kept: list[Hypothesis], answer: Hypothesis, options: BeamOptions) -> None:
    """Among the best of a group, as many as its beam is wide."""
    kept.append(answer)
    kept.sort(key=lambda found: found.place)
    del kept[max(options.beam // options.groups, options.nbest) :]


def _decided(
    finished: list[list[list[Hypothesis]]],
    numbers: list[int],
    score_BGK: Tensor,
    limits: Tensor,
    options: BeamOptions,
) -> Tensor:
    """The sentences of which no hypothesis can still rise among the n-best."""
    decided = []
    for number, best, limit in zip(numbers, score_BGK.amax(-1).tolist(), limits.tolist(), strict=True):
        settled = []
        for kept, score in zip(finished[number], best, strict=True):
            bound = score / options.penalty(limit)
            whole = [answer for answer in kept if not answer.truncated][: options.nbest]
            settled.append(bound == -torch.inf or (len(whole) == options.nbest and whole[-1].rank >= bound))
        decided.append(all(settled))
    return torch.tensor(decided, device=score_BGK.device)


def _best(groups: list[list[Hypothesis]], nbest: int) -> list[Hypothesis]:
    distinct: dict[tuple[int, ...], Hypothesis] = {}
    ranked = sorted((answer for kept in groups for answer in kept), key=lambda found: found.place)
    for answer in ranked:
        distinct.setdefault(tuple(answer.tokens), answer)
    return list(distinct.values())[:nbest]
