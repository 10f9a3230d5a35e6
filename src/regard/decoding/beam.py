"""Beam search.

Computation stays on the device. Once per step, the few values that the host needs to decide which hypotheses are
finished are copied to it together.

B sentences, G groups of K hypotheses, N = B G K, C candidates for the next step, V vocabulary, T tokens generated.
"""

import math
from collections import deque
from collections.abc import Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.decoding.rules import ConstraintProgress, Generated, Rule, SuppressedTokens
from regard.decoding.search import Hypothesis, SearchState, SpecialTokens, pad_batch, rows_to_keep
from regard.decoding.settings import SearchSettings
from regard.decoding.steps import StepRunner, capture_unsupported_reason
from regard.models.contracts import Decoder, Memory
from regard.ops import triton

Array = NDArray[Any]


Outcome = Literal["kept", "finished", "pruned"]


class BeamCandidate(NamedTuple):
    """A continuation of a hypothesis that a step of beam search considered, and its outcome."""

    token: int
    parent: int
    """The index of the continued hypothesis in the beam before the step."""
    group: int
    outcome: Outcome
    slot: int | None
    """The index in the beam after the step, if it was kept."""
    score: float
    """The log-probability of the continued hypothesis, adjusted by the rules."""
    log_prob: float
    """The same as the model computes it."""


BeamStep = dict[int, list[BeamCandidate]]
"""The candidates of a step for each sentence that is not finished, by its index; best first."""


def beam_search(
    decoder: Decoder,
    memory: Memory,
    special: SpecialTokens,
    limits_B: Tensor,
    settings: SearchSettings,
    rules: Sequence[Rule] = (),
    history: list[BeamStep] | None = None,
) -> list[list[Hypothesis]]:
    """Return the n-best finished hypotheses of each sentence, best first. If there is a history, append each step.

    At each step, the K best candidates that do not end stay in the beam. A candidate that ends is finished if it is
    among the K best of all candidates. The search of a sentence stops once no hypothesis in the beam can rank above its
    n-best. Early stopping is exact, because log-probabilities only decrease, and no length penalty exceeds the one at
    the limit.

    Each group of a diverse beam search (Vijayakumar et al. 2018) has its own beam. A candidate's score is lowered if
    earlier groups have chosen the same token at this step. If phrases are required, slots of the beam are shared among
    hypotheses by their progress (`_order_by_bank`). Hypotheses are ranked by the log-probability that the rules have
    adjusted; their score is the model's log-probability.
    """
    rules = (SuppressedTokens(special.suppressed), *rules)
    device = limits_B.device
    captures = capture_unsupported_reason(device, decoder, rules, observed=history is not None) is None
    limits = limits_B.tolist()
    max_steps = max(limits, default=0)
    if captures:
        memory, limits_B, max_steps = pad_batch(memory, limits_B, max_steps)
    tracker = _BeamTracker(np.array(limits + [0] * (len(limits_B) - len(limits))), settings, special.end, history)
    candidates: list[_Candidates] = []

    def begin(memory: Memory, limits_B: Tensor) -> _BeamState:
        search = SearchState.begin(decoder, memory, special.start, limits_B, settings.beam, max_steps)
        return _BeamState.begin(search, settings)

    def take_step(state: _BeamState) -> _BeamState:
        state, considered = state.advance(decoder, rules, settings, special.end)
        if history is not None:
            candidates.append(considered)
        return state

    options = settings, rules, special, max_steps
    runner = StepRunner(begin, take_step, decoder, options, device=device, captures=captures)
    state = runner.begin(memory, limits_B)
    transfers: deque[_HostTransfer] = deque()
    launched = 0
    while True:
        if launched < tracker.max_limit:
            state = runner.run(state)
            launched += 1
            transfers.append(_HostTransfer.start(state.log_XBGK))
            if runs_asynchronously(device) and len(transfers) == 1:
                continue  # the device takes the next step, which may not be needed, while the host processes this one
        if transfers:
            tracker.update(transfers.popleft().read(), candidates.pop(0) if candidates else None)
        rows = tracker.compact(bucketed=captures)
        if rows is not None:
            if not len(rows):
                return tracker.nbest()[: len(limits)]
            state = state.keep_sentences(torch.from_numpy(rows).to(device))
            transfers = deque(transfer.keep_sentences(rows) for transfer in transfers)


def runs_asynchronously(device: torch.device) -> bool:
    """Whether the device computes a step while the host continues."""
    return device.type == "cuda"


class _BeamState(NamedTuple):
    """The hypotheses in the beam with their log-probabilities, adjusted by the rules and as the model computes them."""

    search: SearchState
    adjusted_BGK: Tensor
    score_BGK: Tensor
    log_XBGK: Tensor
    """The values of the last step that the host needs: the parts of the candidates in the beam, and of the finished
    ones except their token.
    """

    @classmethod
    def begin(cls, search: SearchState, settings: SearchSettings) -> "_BeamState":
        shape = len(search.sentence_B), settings.groups, settings.group_size
        adjusted_BGK = torch.full(shape, -torch.inf, device=search.token_N.device)
        adjusted_BGK[..., 0] = 0.0
        return cls(search, adjusted_BGK, adjusted_BGK.clone(), adjusted_BGK.new_zeros(7, *shape))

    def advance(
        self, decoder: Decoder, rules: Sequence[Rule], settings: SearchSettings, end: int
    ) -> tuple["_BeamState", "_Candidates"]:
        """Take a step. Return also all candidates."""
        search = self.search
        log_p_NV, adjusted_NV, after = search.next_log_p(decoder, rules)
        next_tokens = _NextTokens(log_p_NV, adjusted_NV, _find_progress(rules, search.generated, log_p_NV.shape[1]))
        candidates = _select_candidates(next_tokens, self.adjusted_BGK, self.score_BGK, settings, end)
        active, finished = _split_finished(candidates, end, settings.group_size)
        log_XBGK = torch.cat([active.parts_4BGC, finished.parts_4BGC[1:]])
        first_B = torch.arange(len(search.sentence_B), device=log_p_NV.device) * settings.beam
        parent_N = (first_B.view(-1, 1, 1) + active.parent).flatten()
        search = search.append(after, active.token.flatten(), parent_N)
        return _BeamState(search, active.adjusted, active.score, log_XBGK), candidates

    def keep_sentences(self, rows_B: Tensor) -> "_BeamState":
        search, _ = self.search.keep_sentences(rows_B)
        return _BeamState(search, self.adjusted_BGK[rows_B], self.score_BGK[rows_B], self.log_XBGK[:, rows_B])


def _find_progress(rules: Sequence[Rule], generated: Generated, vocabulary: int) -> ConstraintProgress | None:
    """Return the progress toward required tokens; None if no rule requires any."""
    by_rule = (rule.progress(generated, vocabulary) for rule in rules)
    return next((progress for progress in by_rule if progress is not None), None)


class _Candidates(NamedTuple):
    """Candidate continuations, best first, as one tensor, so that they are selected together: the token, the index of
    the parent hypothesis in its sentence, and the log-probability of the continued hypothesis, adjusted by the rules
    and as the model computes it. Indices are exact below 2²⁴.
    """

    parts_4BGC: Tensor

    @property
    def token(self) -> Tensor:
        return self.parts_4BGC[0].long()

    @property
    def parent(self) -> Tensor:
        return self.parts_4BGC[1].long()

    @property
    def adjusted(self) -> Tensor:
        return self.parts_4BGC[2]

    @property
    def score(self) -> Tensor:
        return self.parts_4BGC[3]

    def gather(self, index: Tensor) -> "_Candidates":
        return _Candidates(self.parts_4BGC.gather(-1, index.expand(4, *index.shape)))

    def mask(self, masked: Tensor) -> "_Candidates":
        """Return candidates with some adjusted log-probabilities set to −∞."""
        token, parent, adjusted, score = self.parts_4BGC.unbind()
        return _Candidates(torch.stack([token, parent, adjusted.masked_fill(masked, -torch.inf), score]))


class _NextTokens(NamedTuple):
    """Log-probabilities of next tokens, those adjusted by the rules, and the progress toward required phrases."""

    log_p_NV: Tensor
    adjusted_NV: Tensor
    progress: ConstraintProgress | None

    def of_group(self, group: int, groups: int, width: int) -> "_NextTokens":
        """Return the rows of one group."""
        if groups == 1:
            return self

        def rows(part: Tensor) -> Tensor:
            return part.view(-1, groups, width, *part.shape[1:])[:, group].flatten(0, 1)

        progress = None if self.progress is None else ConstraintProgress(*map(rows, self.progress))
        return _NextTokens(rows(self.log_p_NV), rows(self.adjusted_NV), progress)


def _select_candidates(
    next_tokens: _NextTokens, adjusted_BGK: Tensor, score_BGK: Tensor, settings: SearchSettings, end: int
) -> _Candidates:
    """Select the 2 K best continuations of each group, so that K remain even if K of them end."""
    rows, groups, width = adjusted_BGK.shape
    by_group: list[_Candidates] = []
    for group in range(groups):
        log_p_NV, adjusted_NV, progress = next_tokens.of_group(group, groups, width)
        value_NV = adjusted_NV
        if group:
            count_BV = _count_tokens(by_group, log_p_NV.shape[1], end, width)
            value_NV = adjusted_NV - settings.diversity_penalty * count_BV.repeat_interleave(width, dim=0)
        token_NC, value_NC = _expand(value_NV, progress, width)
        adjusted_NC = value_NC if value_NV is adjusted_NV else adjusted_NV.gather(1, token_NC)
        log_p_NC = adjusted_NC if adjusted_NV is log_p_NV else log_p_NV.gather(1, token_NC)
        adjusted_N1, score_N1 = adjusted_BGK[:, group].reshape(-1, 1), score_BGK[:, group].reshape(-1, 1)
        value_BX = (adjusted_N1 + value_NC).view(rows, -1)
        parent_N1 = torch.arange(width, device=token_NC.device).repeat(rows).unsqueeze(1) + group * width
        parts = (
            token_NC.float(),
            parent_N1.float().expand_as(token_NC),
            (adjusted_N1 + adjusted_NC).masked_fill(value_NC == -torch.inf, -torch.inf),
            score_N1 + log_p_NC,
        )
        candidates = _Candidates(torch.stack(parts).view(4, rows, -1))
        count = min(2 * width, value_BX.shape[1])
        if progress is None:
            best_BC = blockwise_topk(value_BX, count)
        else:
            best_BC = _order_by_bank(value_BX, progress.next_NV.gather(1, token_NC).view(rows, -1))[:, :count]
        by_group.append(candidates.gather(best_BC))
    return _Candidates(torch.stack([candidates.parts_4BGC for candidates in by_group], dim=2))


def _expand(value_NV: Tensor, progress: ConstraintProgress | None, width: int) -> tuple[Tensor, Tensor]:
    """Return the most likely next tokens of each hypothesis with their values. If phrases are required, add the most
    likely tokens that make progress; the value of a duplicate is −∞.
    """
    token_NC = blockwise_topk(value_NV, 2 * width)
    value_NC = value_NV.gather(1, token_NC)
    if progress is None:
        return token_NC, value_NC
    required_NV = value_NV.masked_fill(progress.next_NV <= progress.now_N.unsqueeze(1), -torch.inf)
    required_NC = blockwise_topk(required_NV.scatter_(1, token_NC, -torch.inf), width)
    return torch.cat([token_NC, required_NC], dim=1), torch.cat([value_NC, required_NV.gather(1, required_NC)], dim=1)


def _count_tokens(earlier: list[_Candidates], vocabulary: int, end: int, width: int) -> Tensor:
    """Count how many hypotheses of the earlier groups have chosen each token at this step."""
    token_BX = torch.cat([_split_finished(candidates, end, width)[0].token for candidates in earlier], dim=1)
    count_BV = torch.zeros(len(token_BX), vocabulary, device=token_BX.device)
    return count_BV.scatter_add_(1, token_BX, torch.ones_like(token_BX, dtype=count_BV.dtype))


def _order_by_bank(value_BX: Tensor, progress_BX: Tensor) -> Tensor:
    """Order candidates round-robin over banks: the best of each bank, then the second of each, and so on.

    A bank holds the candidates with equal progress; banks with more progress come first. Each bank gets an equal share
    of the beam, and a bank with too few candidates leaves its slots to the others (after Post and Vilar 2018).
    """
    order_BX = value_BX.argsort(dim=1, descending=True, stable=True)
    by_bank_BX = progress_BX.gather(1, order_BX).argsort(dim=1, descending=True, stable=True)
    order_BX = order_BX.gather(1, by_bank_BX)
    bank_BX, index_X = progress_BX.gather(1, order_BX), torch.arange(value_BX.shape[1], device=value_BX.device)
    first_BX = torch.cat([torch.ones_like(bank_BX[:, :1]), bank_BX[:, 1:] != bank_BX[:, :-1]], dim=1).bool()
    rank_BX = index_X - torch.where(first_BX, index_X, 0).cummax(dim=1).values
    impossible_BX = value_BX.gather(1, order_BX) == -torch.inf
    rank_BX = rank_BX.masked_fill(impossible_BX, value_BX.shape[1])
    return order_BX.gather(1, rank_BX.argsort(dim=1, stable=True))


def _split_finished(candidates: _Candidates, end: int, width: int) -> tuple[_Candidates, _Candidates]:
    """Return the K best candidates that do not end, and the K best of all, with those that do not end set to −∞."""
    ends = candidates.token == end
    order = ends.long().argsort(dim=-1, stable=True)[..., :width]
    finished = _Candidates(candidates.parts_4BGC[..., :width])
    return candidates.mask(ends).gather(order), finished.mask(~ends[..., :width])


BLOCK = 128


def blockwise_topk(log_p_NV: Tensor, count: int) -> Tensor:
    """Return the indices of the largest values of each row. A long row is searched only in the blocks with the largest
    maxima, which is faster than `topk` over the row. On a GPU, one kernel does the same with strided blocks.
    """
    rows, vocabulary = log_p_NV.shape
    if triton.is_usable(log_p_NV) and not log_p_NV.requires_grad:
        from regard.ops.triton.selection import top_indices

        return top_indices(log_p_NV, min(count, vocabulary))
    blocks = vocabulary // BLOCK
    if blocks <= 2 * count:
        return log_p_NV.topk(min(count, vocabulary), dim=-1).indices
    blocks_NMX = log_p_NV[:, : blocks * BLOCK].view(rows, blocks, BLOCK)
    block_NC = blocks_NMX.amax(-1).topk(count, dim=-1).indices
    selected_NX = blocks_NMX.gather(1, block_NC.unsqueeze(-1).expand(-1, -1, BLOCK)).flatten(1)
    best_NC = torch.cat([selected_NX, log_p_NV[:, blocks * BLOCK :]], dim=1).topk(count, dim=-1).indices
    inside_NC = block_NC.gather(1, (best_NC // BLOCK).clamp_max(count - 1)) * BLOCK + best_NC % BLOCK
    return torch.where(best_NC < count * BLOCK, inside_NC, best_NC + (blocks - count) * BLOCK)


class _HostTransfer(NamedTuple):
    """An asynchronous copy to the host of the values of a step that it needs."""

    values_XBGK: Tensor
    done: Any = None
    """A CUDA event; None on a CPU."""
    rows: Array | None = None
    """The sentences to read; None for all of them."""

    @classmethod
    def start(cls, values_XBGK: Tensor) -> "_HostTransfer":
        if not values_XBGK.is_cuda:
            return cls(values_XBGK.clone())  # a later step may overwrite them
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        on_host = torch.empty(values_XBGK.shape, dtype=values_XBGK.dtype, pin_memory=True)
        on_host.copy_(values_XBGK, non_blocking=True)
        done.record(torch.cuda.current_stream(values_XBGK.device))
        return cls(on_host, done)

    def keep_sentences(self, rows: Array) -> "_HostTransfer":
        """Remove all other sentences."""
        return self._replace(rows=rows if self.rows is None else self.rows[rows])

    def read(self) -> Array:
        """Wait for the copy and return it, (X, B, G, K)."""
        if self.done is not None:
            self.done.synchronize()
        values: Array = self.values_XBGK.numpy()
        return values if self.rows is None else values[:, self.rows]


def compute_length_penalty(length: int, alpha: float) -> float:
    """Return ((5 + length) / 6)^α (Wu et al. 2016). The length includes END."""
    return float(((5 + length) / 6) ** alpha)


class _BeamTracker:
    """Tracks on the host the tokens of the hypotheses in the beam, and the finished hypotheses of each sentence."""

    def __init__(self, limits: Array, settings: SearchSettings, end: int, history: list[BeamStep] | None) -> None:
        self.settings, self.end, self.history, self.step = settings, end, history, 0
        self.finished: list[list[list[Hypothesis]]] = [[[] for _ in range(settings.groups)] for _ in limits]
        self.sentence_B, self.limits_B = np.arange(len(limits)), limits
        self.tokens_BKT = np.zeros((len(limits), settings.beam, 0), dtype=np.int64)
        self.threshold_BG = np.full((len(limits), settings.groups), -np.inf)
        """The rank of the last of the n-best of a group; −∞ while there are fewer."""
        self.done_B = limits <= 0
        for sentence in np.flatnonzero(self.done_B):
            self.finished[sentence][0].append(Hypothesis([], 0.0, False))

    @property
    def max_limit(self) -> int:
        """The largest length limit of a sentence in the batch."""
        return int(self.limits_B.max(initial=0))

    def update(self, values: Array, candidates: _Candidates | None) -> None:
        """Process the values of a step that are logged, and its candidates, for the history."""
        rows = values.shape[1]
        token, parent, adjusted, score = values[:4].reshape(4, rows, -1)
        self.step += 1
        self._add_finished(*values[4:], penalty=compute_length_penalty(self.step, self.settings.length_penalty))
        parents_BKT = np.take_along_axis(self.tokens_BKT, parent.astype(np.int64)[..., None], axis=1)
        self.tokens_BKT = np.concatenate([parents_BKT, token.astype(np.int64)[..., None]], axis=2)
        if self.history is not None and candidates is not None:
            width = self.settings.group_size
            self.history.append(
                {
                    int(self.sentence_B[row]): _describe_candidates(candidates.parts_4BGC[:, row], self.end, width)
                    for row in np.flatnonzero(~self.done_B)
                }
            )
        at_limit_B = self.step >= self.limits_B
        self._add_truncated(at_limit_B & ~self.done_B, adjusted, score)
        self.done_B |= at_limit_B | self._decided(adjusted.reshape(rows, self.settings.groups, -1).max(-1))

    def compact(self, *, bucketed: bool) -> Array | None:
        """Remove finished sentences if there are enough of them. Return the rows of the remaining sentences."""
        rows = rows_to_keep(self.done_B, bucketed=bucketed)
        if rows is not None:
            self.sentence_B, self.limits_B, self.done_B = self.sentence_B[rows], self.limits_B[rows], self.done_B[rows]
            self.tokens_BKT, self.threshold_BG = self.tokens_BKT[rows], self.threshold_BG[rows]
        return rows

    def _add_finished(self, parent: Array, adjusted: Array, score: Array, *, penalty: float) -> None:
        """Add the hypotheses that end at this step, and that rank among the n-best of their group."""
        rank = adjusted.astype(np.float64) / penalty
        is_added = (rank > self.threshold_BG[..., None]) & ~self.done_B[:, None, None]
        for row, group, index in np.argwhere(is_added):
            tokens = self.tokens_BKT[row, int(parent[row, group, index])].tolist()
            hypothesis = Hypothesis(tokens, float(score[row, group, index]), False, float(rank[row, group, index]))
            self._insert(row, group, hypothesis)

    def _add_truncated(self, at_limit_B: Array, adjusted_BK: Array, score_BK: Array) -> None:
        """Truncate the hypotheses of sentences at their limit. They rank below all that ended."""
        penalty = compute_length_penalty(self.step, self.settings.length_penalty)
        for row, index in np.argwhere(at_limit_B[:, None] & (adjusted_BK > -np.inf)):
            rank, score = float(adjusted_BK[row, index]) / penalty, float(score_BK[row, index])
            truncated = Hypothesis(self.tokens_BKT[row, index].tolist(), score, True, rank)
            self._insert(row, index // self.settings.group_size, truncated)

    def _insert(self, row: int, group: int, hypothesis: Hypothesis) -> None:
        """Insert a hypothesis into the sorted n-best of a group."""
        ranked = self.finished[self.sentence_B[row]][group]
        ranked.append(hypothesis)
        ranked.sort(key=lambda other: other.sort_key)
        del ranked[self.settings.nbest :]
        if len(ranked) >= self.settings.nbest and not ranked[self.settings.nbest - 1].truncated:
            self.threshold_BG[row, group] = ranked[self.settings.nbest - 1].rank

    def _decided(self, best_BG: Array) -> Array:
        """Whether the n-best of each sentence are final: no hypothesis in the beam can still rank among them."""
        bound_BG = best_BG / ((5 + self.limits_B[:, None]) / 6) ** self.settings.length_penalty
        final_BG: Array = self.threshold_BG >= bound_BG
        decided: Array = np.logical_and.reduce(final_BG, axis=-1)
        return decided

    def nbest(self) -> list[list[Hypothesis]]:
        """Return the n-best distinct hypotheses of each sentence over all groups."""
        nbest = []
        for groups in self.finished:
            distinct: dict[tuple[int, ...], Hypothesis] = {}
            for hypothesis in sorted(chain.from_iterable(groups), key=lambda other: other.sort_key):
                distinct.setdefault(tuple(hypothesis.tokens), hypothesis)
            nbest.append(list(distinct.values())[: self.settings.nbest])
        return nbest


def _describe_candidates(parts_4GC: Tensor, end: int, width: int) -> list[BeamCandidate]:
    """Return the candidates of a sentence with their outcomes, which follow from their order and the end token.

    `parts_4GC` are their tokens, parents, adjusted scores and log-probabilities, C candidates in each of G groups. In
    each group, the first `width` that do not end are kept, and those that end are finished if they are among the first
    `width` of all.
    """
    described = []
    for group, columns in enumerate(zip(*parts_4GC.tolist(), strict=True)):
        kept = 0
        for rank, (token, parent, score, log_prob) in enumerate(zip(*columns, strict=True)):
            if score == -math.inf:
                continue
            outcome: Outcome = "finished" if token == end and rank < width else "pruned"
            slot = None
            if token != end and kept < width:
                outcome, slot = "kept", group * width + kept
                kept += 1
            described.append(BeamCandidate(int(token), int(parent), group, outcome, slot, score, log_prob))
    return described
