"""Beam search: several hypotheses of each sentence go on side by side, and the best that ended are kept.

What a device computes stays there; once a step the few numbers that decide come to the host, all together.

B sentences, G groups of K hypotheses, N = B G K, C candidates for the next step, V vocabulary, T tokens said.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.decoding.rules import ConstraintProgress, Rule
from regard.decoding.search import Hypothesis, SearchBatch, Symbols, worth_leaving
from regard.models.contracts import Decoder, Memory

Array = NDArray[Any]


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
    history: list[BeamStep] | None = None
    """Where a list is given, what went on at each step is added to it."""

    @property
    def width(self) -> int:
        """Of each group."""
        return self.beam // self.groups

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
    has a beam of its own, and pays for tokens that the groups before it have said at the same step. Where answers must
    say something, those that have said more of it keep places of their own (`_by_progress`). Hypotheses are ranked by
    what the rules leave of their log-probability, and scored by all of it.
    """
    ledger = _Ledger(limits_B.cpu().numpy(), options)
    batch = SearchBatch.begin(decoder, memory, symbols, rules, limits_B, options.beam)
    device = limits_B.device
    ruled_BGK = torch.full((len(limits_B), options.groups, options.width), -torch.inf, device=device)
    ruled_BGK[..., 0] = 0.0
    score_BGK = ruled_BGK.clone()
    told: _Told | None = None
    while True:
        taken: tuple[Tensor, Tensor] | None = None
        if told is not None:
            if works_by_itself(device) and ledger.step + 1 < ledger.longest:
                taken = batch.log_p()  # the next step, in case there is one, while the last is noted
            ledger.note(told)
        stays = ledger.staying()
        if not len(stays):
            return ledger.best()
        if len(stays) < len(ruled_BGK):
            rows_B = torch.from_numpy(stays).to(device)
            rows_N = batch.leave(rows_B)
            ruled_BGK, score_BGK = ruled_BGK[rows_B], score_BGK[rows_B]
            taken = None if taken is None else (taken[0][rows_N], taken[1][rows_N])
        log_p_NV, ruled_NV = taken or batch.log_p()
        ahead = _Ahead(log_p_NV, ruled_NV, batch.progress(log_p_NV.shape[1]))
        candidates = _candidates(ahead, ruled_BGK, score_BGK, options, symbols.end)
        going, ended = _divide(candidates, symbols.end, options.width)
        first_B = torch.arange(len(ruled_BGK), device=device) * options.beam
        batch.say(going.token.flatten(), (first_B.view(-1, 1, 1) + going.parent).flatten())
        ruled_BGK, score_BGK = going.ruled, going.score
        told = _Told.of(going, ended)


def works_by_itself(device: torch.device) -> bool:
    """Whether the host is free while a step is taken."""
    return device.type == "cuda"


class _Candidates(NamedTuple):
    """Continuations of hypotheses, (B, G, C), the best first: the token, which hypothesis of the sentence says it, and
    what that comes to, as the rules and as the model have it.
    """

    token: Tensor
    parent: Tensor
    ruled: Tensor
    score: Tensor

    def at(self, index: Tensor) -> "_Candidates":
        return _Candidates(*(part.gather(-1, index) for part in self))


class _Ahead(NamedTuple):
    """What may come next: as the model has it, as the rules leave it, and how far it leads to what must be said."""

    log_p_NV: Tensor
    ruled_NV: Tensor
    progress: ConstraintProgress | None

    def of_group(self, group: int, groups: int, width: int) -> "_Ahead":
        """That of one group alone, its rows next to each other."""

        def own(part: Tensor) -> Tensor:
            return part.view(-1, groups, width, *part.shape[1:])[:, group].flatten(0, 1)

        progress = None if self.progress is None else ConstraintProgress(*map(own, self.progress))
        return _Ahead(own(self.log_p_NV), own(self.ruled_NV), progress)


def _candidates(ahead: _Ahead, ruled_BGK: Tensor, score_BGK: Tensor, options: BeamOptions, end: int) -> _Candidates:
    """The 2 K best continuations of each group: enough for K that go on, whatever ends."""
    rows, groups, width = ruled_BGK.shape
    found: list[_Candidates] = []
    for group in range(groups):
        log_p_NV, ruled_NV, progress = ahead.of_group(group, groups, width)
        wanted_NV = ruled_NV
        if group:
            taken_BV = _taken(found, log_p_NV.shape[1], end, width)
            wanted_NV = ruled_NV - options.diversity * taken_BV.repeat_interleave(width, dim=0)
        token_NC, value_NC = _next(wanted_NV, progress, width)
        base_N1, own_N1 = ruled_BGK[:, group].reshape(-1, 1), score_BGK[:, group].reshape(-1, 1)
        wanted_BX = (base_N1 + value_NC).view(rows, -1)
        parent_N1 = torch.arange(width, device=token_NC.device).repeat(rows).unsqueeze(1) + group * width
        parts = (
            token_NC,
            parent_N1.expand_as(token_NC),
            (base_N1 + ruled_NV.gather(1, token_NC)).masked_fill(value_NC == -torch.inf, -torch.inf),
            own_N1 + log_p_NV.gather(1, token_NC),
        )
        every = _Candidates(*(part.reshape(rows, -1) for part in parts))
        count = min(2 * width, wanted_BX.shape[1])
        if progress is None:
            best_BC = wanted_BX.topk(count, dim=-1).indices
        else:
            best_BC = _by_progress(wanted_BX, progress.then_NV.gather(1, token_NC).view(rows, -1))[:, :count]
        found.append(every.at(best_BC))
    if groups == 1:
        return _Candidates(*(part.unsqueeze(1) for part in found[0]))
    return _Candidates(*(torch.stack(part, dim=1) for part in zip(*found, strict=True)))


def _next(wanted_NV: Tensor, progress: ConstraintProgress | None, width: int) -> tuple[Tensor, Tensor]:
    """The likeliest tokens after each hypothesis, and those that lead on to what must be said; −∞ for one that stands
    there already.
    """
    token_NC = best_of(wanted_NV, 2 * width)
    value_NC = wanted_NV.gather(1, token_NC)
    if progress is None:
        return token_NC, value_NC
    leads_NV = wanted_NV.masked_fill(progress.then_NV <= progress.now_N.unsqueeze(1), -torch.inf)
    lead_NC = best_of(leads_NV.scatter_(1, token_NC, -torch.inf), width)
    return torch.cat([token_NC, lead_NC], dim=1), torch.cat([value_NC, leads_NV.gather(1, lead_NC)], dim=1)


def _taken(found: list[_Candidates], vocabulary: int, end: int, width: int) -> Tensor:
    """How many hypotheses of the groups before say each token at this step."""
    said_BX = torch.cat([_divide(before, end, width)[0].token for before in found], dim=1)
    taken_BV = torch.zeros(len(said_BX), vocabulary, device=said_BX.device)
    return taken_BV.scatter_add_(1, said_BX, torch.ones_like(said_BX, dtype=taken_BV.dtype))


def _by_progress(wanted_BX: Tensor, progress_BX: Tensor) -> Tensor:
    """The order in which candidates are taken where answers must say something: the best of each bank, those with equal
    progress, the furthest bank first; then the second of each, and so on. So each bank has an equal share of the beam,
    and one with too few leaves its places to the others (after Post and Vilar 2018).
    """
    order_BX = wanted_BX.argsort(dim=1, descending=True, stable=True)
    by_bank_BX = progress_BX.gather(1, order_BX).argsort(dim=1, descending=True, stable=True)
    order_BX = order_BX.gather(1, by_bank_BX)
    bank_BX, place_X = progress_BX.gather(1, order_BX), torch.arange(wanted_BX.shape[1], device=wanted_BX.device)
    first_BX = torch.cat([torch.ones_like(bank_BX[:, :1]), bank_BX[:, 1:] != bank_BX[:, :-1]], dim=1).bool()
    rank_BX = place_X - torch.where(first_BX, place_X, 0).cummax(dim=1).values
    impossible_BX = wanted_BX.gather(1, order_BX) == -torch.inf
    rank_BX = rank_BX.masked_fill(impossible_BX, wanted_BX.shape[1])
    return order_BX.gather(1, rank_BX.argsort(dim=1, stable=True))


def _divide(candidates: _Candidates, end: int, width: int) -> tuple[_Candidates, _Candidates]:
    """The K best that go on; and of the K best those that end, the others with a score of −∞."""
    ends = candidates.token == end
    order = ends.long().argsort(dim=-1, stable=True)[..., :width]
    going = candidates._replace(ruled=candidates.ruled.masked_fill(ends, -torch.inf)).at(order)
    ended = _Candidates(*(part[..., :width] for part in candidates))
    return going, ended._replace(ruled=ended.ruled.masked_fill(~ends[..., :width], -torch.inf))


PIECE = 128


def best_of(log_p_NV: Tensor, count: int) -> Tensor:
    """The indices of the largest of each row: those of the pieces with the largest maxima, where a row is long."""
    rows, vocabulary = log_p_NV.shape
    pieces = vocabulary // PIECE
    if pieces <= 2 * count:
        return log_p_NV.topk(min(count, vocabulary), dim=-1).indices
    whole_NPX = log_p_NV[:, : pieces * PIECE].view(rows, pieces, PIECE)
    piece_NC = whole_NPX.amax(-1).topk(count, dim=-1).indices
    kept_NX = whole_NPX.gather(1, piece_NC.unsqueeze(-1).expand(-1, -1, PIECE)).flatten(1)
    best_NC = torch.cat([kept_NX, log_p_NV[:, pieces * PIECE :]], dim=1).topk(count, dim=-1).indices
    inside_NC = piece_NC.gather(1, (best_NC // PIECE).clamp_max(count - 1)) * PIECE + best_NC % PIECE
    return torch.where(best_NC < count * PIECE, inside_NC, best_NC + (pieces - count) * PIECE)


class _Told(NamedTuple):
    """All that the host must know of a step, on its way there."""

    numbers: Tensor
    arrived: Any = None
    """What tells that it is there; nothing on a CPU."""

    @classmethod
    def of(cls, going: _Candidates, ended: _Candidates) -> "_Told":
        numbers = torch.stack([going.token, going.parent, ended.parent]).float()  # exact below 2²⁴
        values = torch.stack([going.ruled, going.score, ended.ruled, ended.score])
        told = torch.cat([numbers, values])
        if not told.is_cuda:
            return cls(told.cpu())
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        here = torch.empty(told.shape, dtype=told.dtype, pin_memory=True).copy_(told, non_blocking=True)
        arrived.record(torch.cuda.current_stream(told.device))
        return cls(here, arrived)

    def read(self) -> Array:
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.numbers.numpy()


class _Ledger:
    """What the host knows: what the hypotheses of the sentences that go on have said, and which have ended."""

    def __init__(self, limits: Array, options: BeamOptions) -> None:
        self.options, self.step = options, 0
        self.finished: list[list[list[Hypothesis]]] = [[[] for _ in range(options.groups)] for _ in limits]
        self.numbers_B, self.limits_B = np.arange(len(limits)), limits
        self.said_BKT = np.zeros((len(limits), options.beam, 0), dtype=np.int64)
        self.least_BG = np.full((len(limits), options.groups), -np.inf)
        """The rank of the last of the n-best of a group; −∞ while there are fewer."""
        self.over_B = limits <= 0
        for number in np.flatnonzero(self.over_B):
            self.finished[number][0].append(Hypothesis([], 0.0, True))

    @property
    def longest(self) -> int:
        """The limit of the sentence that may go on longest."""
        return int(self.limits_B.max(initial=0))

    def note(self, news: _Told) -> None:
        """A step is taken."""
        told = news.read()
        rows = told.shape[1]
        token, parent, ruled, score = told[[0, 1, 3, 4]].reshape(4, rows, -1)
        self.step += 1
        self._keep(*told[[2, 5, 6]], penalty=self.options.penalty(self.step))
        before_BKT = np.take_along_axis(self.said_BKT, parent.astype(np.int64)[..., None], axis=1)
        self.said_BKT = np.concatenate([before_BKT, token.astype(np.int64)[..., None]], axis=2)
        if self.options.history is not None:
            on = ~self.over_B
            tokens, parents = (part[on].astype(np.int64).tolist() for part in (token, parent))
            self.options.history.append(BeamStep(self.numbers_B[on].tolist(), tokens, parents, ruled[on].tolist()))
        at_limit_B = self.step >= self.limits_B
        self._cut(at_limit_B & ~self.over_B, ruled, score)
        self.over_B |= at_limit_B | self._decided(ruled.reshape(rows, self.options.groups, -1).max(-1))

    def staying(self) -> Array:
        """The rows of the sentences that stay in the batch: some that are over may, until it pays to leave them."""
        if not worth_leaving(int(self.over_B.sum()), len(self.over_B)):
            return np.arange(len(self.over_B))
        rows: Array = np.flatnonzero(~self.over_B)
        self.numbers_B, self.limits_B, self.over_B = self.numbers_B[rows], self.limits_B[rows], self.over_B[rows]
        self.said_BKT, self.least_BG = self.said_BKT[rows], self.least_BG[rows]
        return rows

    def _keep(self, parent: Array, ruled: Array, score: Array, *, penalty: float) -> None:
        """Note the hypotheses that have ended."""
        for row, group, place in np.argwhere((ruled > -np.inf) & ~self.over_B[:, None, None]):
            tokens = self.said_BKT[row, int(parent[row, group, place])].tolist()
            rank = float(ruled[row, group, place]) / penalty
            self._insert(row, group, Hypothesis(tokens, float(score[row, group, place]), False, rank))

    def _cut(self, cut_B: Array, ruled_BK: Array, score_BK: Array) -> None:
        """At a sentence's limit what goes on is cut, and ranks below all that ended by itself."""
        penalty = self.options.penalty(self.step)
        for row, place in np.argwhere(cut_B[:, None] & (ruled_BK > -np.inf)):
            rank, score = float(ruled_BK[row, place]) / penalty, float(score_BK[row, place])
            cut = Hypothesis(self.said_BKT[row, place].tolist(), score, True, rank)
            self._insert(row, place // self.options.width, cut)

    def _insert(self, row: int, group: int, answer: Hypothesis) -> None:
        """Among the best of a group, as many as its beam is wide."""
        kept = self.finished[self.numbers_B[row]][group]
        kept.append(answer)
        kept.sort(key=lambda found: found.place)
        del kept[max(self.options.width, self.options.nbest) :]
        if len(kept) >= self.options.nbest and not kept[self.options.nbest - 1].truncated:
            self.least_BG[row, group] = kept[self.options.nbest - 1].rank

    def _decided(self, best_BG: Array) -> Array:
        """The sentences of which no hypothesis can still rise among the n-best."""
        bound_BG = best_BG / ((5 + self.limits_B[:, None]) / 6) ** self.options.length_penalty
        settled_BG: Array = self.least_BG >= bound_BG
        decided: Array = np.logical_and.reduce(settled_BG, axis=-1)
        return decided

    def best(self) -> list[list[Hypothesis]]:
        """The n-best of each sentence, of all its groups together."""
        found = []
        for groups in self.finished:
            distinct: dict[tuple[int, ...], Hypothesis] = {}
            for answer in sorted((answer for kept in groups for answer in kept), key=lambda answer: answer.place):
                distinct.setdefault(tuple(answer.tokens), answer)
            found.append(list(distinct.values())[: self.options.nbest])
        return found
