"""Attention: one final class that holds a score, a scope and a selection, in any number of heads.

B rows, T queries, S memory slots, D width, H heads.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from regard.attention import dispatch, equation
from regard.attention.mechanisms import MECHANISMS
from regard.attention.record import Recordable
from regard.attention.scopes import Global, Scope, Situation, View, build_scope, fold, refuse_unless_self
from regard.attention.scores import InnerProduct, Score, build_score
from regard.attention.selections import Hard, HardMonotonic, Selected, build_selection
from regard.attention.settings import AttentionSettings
from regard.config import resolve
from regard.errors import ConfigError
from regard.formatting import did_you_mean
from regard.ops.dot_product_attention import ScoreBias, dot_product_attention
from regard.ops.dropout import Dropout

Part = str | Mapping[str, Any]


class Keys(NamedTuple):
    """A memory made ready to be attended to: what depends on the source alone, worked out once."""

    prepared: Tensor
    values_BHSD: Tensor
    allowed_BTS: Tensor | None
    """Which slots the memory allows; None where it allows all."""
    lengths_B: Tensor
    shown: ScoreBias | None = None
    """The mask as the fused path takes it, where one mask serves all queries and that path may be taken."""

    def at(self, query: int) -> "Keys":
        """The memory as one of several queries sees it, where each has a mask of its own."""
        if self.allowed_BTS is None or self.allowed_BTS.shape[1] == 1:
            return self
        return self._replace(allowed_BTS=self.allowed_BTS[:, query : query + 1])


class Past(NamedTuple):
    """What an attention must know of the steps before: where the rows stand in the target; and, for mechanisms that
    look at them, the weights of the last step (or the sum of all), and the belief about the last position.
    """

    position_B: Tensor
    weights_BHS: Tensor | None = None
    belief_BHS: Tensor | None = None

    def positions(self, steps: int) -> Tensor:
        """Where the next so many queries of each row stand, (B, T)."""
        return self.position_B.unsqueeze(1) + torch.arange(steps, device=self.position_B.device)


class SampledPosition(NamedTuple):
    """A position was sampled: with which log-probability, from how wide a choice, and who learns from it."""

    selection: Hard
    log_prob_BT: Tensor
    entropy_BT: Tensor


def join_samples(choices: list[SampledPosition]) -> SampledPosition | None:
    """The choices of several steps as one; None where there was none."""
    if not choices:
        return None
    log_prob_BT = torch.cat([choice.log_prob_BT for choice in choices], dim=1)
    return SampledPosition(
        choices[0].selection, log_prob_BT, torch.cat([choice.entropy_BT for choice in choices], dim=1)
    )


class Attended(NamedTuple):
    """What the queries read, and with which weights, where those were asked for."""

    context_BTD: Tensor
    weights: Tensor | None
    """(B, T, S) of a single head, (B, H, T, S) of several."""
    past: Past
    choice: SampledPosition | None = None


@final
class Attention(Recordable):
    """Σ_j a_j v_j with a = select(score(q, k) | scope).

    Score, scope and selection are a name or a mapping {"kind": name, options}; a score or scope may also be an object
    of one's own. With several heads, queries, keys and values are cut into as many equal parts. `forward` does all
    at once; a decoder calls `prepare` once per source and `read` once per step.
    """

    def __init__(
        self,
        query_size: int,
        key_size: int,
        *,
        score: Part | Score = "additive",
        scope: Part | Scope = "global",
        select: Part = "softmax",
        heads: int = 1,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        given = {"score": score, "scope": scope, "select": select, "heads": heads, "dropout": dropout}
        named = {name: part for name, part in given.items() if not isinstance(part, nn.Module)}
        settings = resolve(AttentionSettings, named, {})
        self.score = score if isinstance(score, Score) else build_score(settings.score, query_size, key_size, heads)
        self.scope = scope if isinstance(scope, Scope) else build_scope(settings.scope, query_size)
        self.select = build_selection(settings.select)
        if self.score.heads != heads:
            raise ConfigError(f"The score has {self.score.heads} heads, and the attention {heads}: give both as many.")
        if isinstance(self.select, HardMonotonic) and not isinstance(self.scope, Global):
            raise ConfigError("hard_monotonic moves its own window along the memory: take the scope global.")
        self.query_size, self.key_size = query_size, key_size
        self.heads = heads
        self.dropout = Dropout(dropout)

    @classmethod
    def named(cls, name: str, query_size: int, key_size: int, **changes: Any) -> "Attention":
        """A mechanism by its name in the literature; `regard.mechanisms()` lists them."""
        if name not in MECHANISMS:
            near = did_you_mean(name, MECHANISMS)
            raise ConfigError(f"'{name}' is no mechanism.{near} Known: {', '.join(MECHANISMS)}.")
        return cls(query_size, key_size, **{**MECHANISMS[name].parts, **changes})

    @classmethod
    def from_settings(cls, settings: AttentionSettings, query_size: int, key_size: int) -> "Attention":
        return cls(query_size, key_size, **settings.model_dump())

    @property
    def stepwise(self) -> bool:
        """Whether each step needs the one before, so that the steps cannot run at once."""
        return self.score.uses_past or self.select.uses_past

    def prepare(self, keys_BSD: Tensor, values_BSD: Tensor | None = None, allowed: Tensor | None = None) -> Keys:
        """The memory's side of the equation; `values` default to the keys."""
        equation.check_memory(keys_BSD)
        allowed_BTS = equation.per_query(allowed)
        keys = equation.blank_unseen(keys_BSD, allowed_BTS)
        values = keys if values_BSD is None else equation.blank_unseen(values_BSD, allowed_BTS)
        numbers_S = torch.arange(1, keys_BSD.shape[1] + 1, device=keys_BSD.device)
        within_BS = numbers_S.expand(keys_BSD.shape[:2]) if allowed_BTS is None else allowed_BTS.any(1) * numbers_S
        prepared, values_BHSD = self.score.prepare(keys), self.score.values(values)
        shown = None
        if allowed_BTS is not None and allowed_BTS.shape[1] == 1 and self._fusible:
            # A row that may see nothing is shown its slots, all of which hold zeros: no need to ask at every read.
            shown = ScoreBias.of(allowed_BTS.unsqueeze(1), values_BHSD.dtype)._replace(nonempty=None)
        return Keys(prepared, values_BHSD, allowed_BTS, within_BS.amax(-1), shown)

    def begin(self, keys: Keys) -> Past:
        """The past of a decoder that has not yet taken a step."""
        rows, _, slots, _ = keys.values_BHSD.shape
        start = torch.zeros(rows, dtype=torch.long, device=keys.values_BHSD.device)
        weights = keys.values_BHSD.new_zeros(rows, self.heads, slots) if self.score.uses_past else None
        return Past(start, weights)

    def read(self, query_BTD: Tensor, keys: Keys, past: Past, *, weights: bool = False) -> Attended:
        """What each query reads from a prepared memory. Weights come only where asked for, or recorded."""
        if self.stepwise and query_BTD.shape[1] > 1:
            return self._read_in_steps(query_BTD, keys, past, weights=weights)
        if query_BTD.shape[0] != keys.values_BHSD.shape[0]:
            return self._read_for_hypotheses(query_BTD, keys, past, weights=weights)
        return self._read(query_BTD, keys, past, query_BTD.shape[1], weights=weights)

    @property
    def fused(self) -> bool:
        """Whether the fused path serves: it can, and nobody records the weights."""
        return self._fusible and not self.recorded

    @property
    def _fusible(self) -> bool:
        return dispatch.fused_refusal(self.score, self.scope, self.select) is None

    def read_shown(self, query_BTD: Tensor, prepared: Tensor, values_BHSD: Tensor, shown: ScoreBias | None) -> Tensor:
        """What queries read by the fused path where it is known what they may see, so that no scope is asked."""
        assert isinstance(self.score, InnerProduct)
        dropout = self.dropout.p if self.training else 0.0
        query_BHTD, scale = self.score.query(query_BTD), self.score.factor
        return self._join(dot_product_attention(query_BHTD, prepared, values_BHSD, shown, scale=scale, dropout=dropout))

    def _read(self, query_BTD: Tensor, keys: Keys, past: Past, steps: int, *, weights: bool) -> Attended:
        # Where a query stands in the target is asked by scopes alone, and not by a global one.
        everywhere = isinstance(self.scope, Global)
        after = past if everywhere else past._replace(position_B=past.position_B + steps)
        if self.fused and not weights:
            mask = keys.shown
            if mask is None or not everywhere:
                allowed = self._view(query_BTD, keys, past).allowed_BTS
                mask = None if allowed is None else ScoreBias.of(allowed, keys.values_BHSD.dtype)
            return Attended(self.read_shown(query_BTD, keys.prepared, keys.values_BHSD, mask), None, after)
        wanted = weights or self.recorded or self.stepwise or self.select.marginal
        view = self._view(query_BTD, keys, past)
        scores_BHTS = self.score(query_BTD, keys.prepared, past.weights_BHS)
        selected = self._select(scores_BHTS, view, past)
        context_BHTD = equation.pool(self.dropout(selected.weights_BHTS), keys.values_BHSD)
        shown = selected.weights_BHTS if self.heads > 1 else selected.weights_BHTS.squeeze(1)
        self.keep(shown)
        choice = None
        if selected.log_prob_BT is not None and selected.entropy_BT is not None and isinstance(self.select, Hard):
            choice = SampledPosition(self.select, selected.log_prob_BT, selected.entropy_BT)
        after = self._remember(after, selected.weights_BHTS)
        return Attended(self._join(context_BHTD), shown if wanted else None, after, choice)

    def observe(self, past: Past, likelihood_BS: Tensor) -> Past:
        """What was said at the last step, as its likelihood under each slot, updates the belief about the position."""
        if past.belief_BHS is None:
            return past
        belief = past.belief_BHS * likelihood_BS.unsqueeze(1)
        total = belief.sum(-1, keepdim=True)
        return past._replace(belief_BHS=belief / torch.where(total > 0, total, 1.0))

    def forward(
        self,
        query_BTD: Tensor,
        keys_BSD: Tensor,
        values_BSD: Tensor | None = None,
        *,
        allowed: Tensor | None = None,
        weights: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        """→ (context_BTD, weights); the mask is (B, S) or (B, T, S), True = may be seen.

        The weights are (B, T, S) of one head, (B, H, T, S) of several; with `weights=False` they are None, and the
        fastest path that serves the mechanism is taken.
        """
        self._check_shapes(query_BTD, keys_BSD, values_BSD)
        equation.check_mask(allowed, query_BTD, keys_BSD)
        refuse_unless_self(self.scope, query_BTD.shape[1], keys_BSD.shape[1])
        keys = self.prepare(keys_BSD, values_BSD, allowed)
        attended = self.read(query_BTD, keys, self.begin(keys), weights=weights)
        return attended.context_BTD, attended.weights

    def _check_shapes(self, query: Tensor, keys: Tensor, values: Tensor | None) -> None:
        """Refuse what does not fit, naming the argument and both shapes."""
        equation.check_tensors(query=query, keys=keys, values=keys if values is None else values)
        expected = {"query": (query, self.query_size), "keys": (keys, self.key_size)}
        for name, (tensor, size) in expected.items():
            if tensor.dim() != 3 or tensor.shape[-1] != size:
                raise ConfigError(f"{name} must have the shape (rows, steps, {size}), and has {tuple(tensor.shape)}.")
        if query.shape[0] != keys.shape[0]:
            raise ConfigError(f"There are {query.shape[0]} rows of queries and {keys.shape[0]} of keys: give as many.")
        if values is not None and values.shape[:2] != keys.shape[:2]:
            raise ConfigError(f"values have the shape {tuple(values.shape)}, and keys {tuple(keys.shape)}: one a key.")

    def _read_for_hypotheses(self, query_N1D: Tensor, keys: Keys, past: Past, *, weights: bool) -> Attended:
        """Several hypotheses of a sentence read its one memory: as so many queries, without a copy of it."""
        rows, hypotheses = keys.values_BHSD.shape[0], query_N1D.shape[0] // keys.values_BHSD.shape[0]
        if self.stepwise or query_N1D.shape[1] > 1:
            copied = (None if part is None else part.repeat_interleave(hypotheses, dim=0) for part in keys[:4])
            return self.read(query_N1D, Keys(*copied), past, weights=weights)  # type: ignore[arg-type]
        found = self._read(query_N1D.view(rows, hypotheses, -1), keys, past, 1, weights=weights)
        apart = None
        if found.weights is not None:
            apart = found.weights.movedim(-2, 1).flatten(0, 1).unsqueeze(-2)
        return Attended(found.context_BTD.flatten(0, 1).unsqueeze(1), apart, found.past)

    def _view(self, query_BTD: Tensor, keys: Keys, past: Past) -> View:
        """What the memory and the scope together let through, with an axis for heads."""
        slots_S = torch.arange(keys.values_BHSD.shape[2], device=query_BTD.device)
        rows, queries = query_BTD.shape[:2]
        # Queries are the next steps of a row, or the hypotheses of a sentence, each at its own position.
        hypotheses = len(past.position_B) != rows
        positions_BT = past.position_B.view(rows, queries) if hypotheses else past.positions(queries)
        situation = Situation(query_BTD, positions_BT, keys.lengths_B, slots_S)
        view: View = self.scope(situation)
        both = fold([keys.allowed_BTS, view.allowed_BTS], torch.logical_and)
        parts = (both, view.bias_BTS, view.factor_BTS)
        return View(*(None if part is None else part.unsqueeze(1) for part in parts))

    def _select(self, scores_BHTS: Tensor, view: View, past: Past) -> Selected:
        allowed = torch.ones_like(scores_BHTS, dtype=torch.bool) if view.allowed_BTS is None else view.allowed_BTS
        allowed_BHTS = allowed.expand_as(scores_BHTS)
        scores_BHTS = scores_BHTS if view.bias_BTS is None else scores_BHTS + view.bias_BTS
        if isinstance(self.select, HardMonotonic) and past.belief_BHS is not None:
            selected = self.select.advance(scores_BHTS, allowed_BHTS, past.belief_BHS)
        else:
            selected = self.select(scores_BHTS, allowed_BHTS)
        if view.factor_BTS is None:
            return selected
        return selected._replace(weights_BHTS=selected.weights_BHTS * view.factor_BTS)

    def _remember(self, past: Past, weights_BHTS: Tensor) -> Past:
        if past.weights_BHS is not None:
            last = weights_BHTS[..., -1, :]
            past = past._replace(weights_BHS=past.weights_BHS + last if self.score.sums_past else last)
        if self.select.uses_past:
            past = past._replace(belief_BHS=weights_BHTS[..., -1, :])
        return past

    def _read_in_steps(self, query_BTD: Tensor, keys: Keys, past: Past, *, weights: bool) -> Attended:
        reads = []
        for step, one_B1D in enumerate(torch.split(query_BTD, 1, 1)):
            reads.append(self.read(one_B1D, keys.at(step), past, weights=weights))
            past = reads[-1].past
        shown = [read.weights for read in reads if read.weights is not None]
        return Attended(
            torch.cat([read.context_BTD for read in reads], dim=1),
            torch.cat(shown, dim=-2) if shown else None,
            past,
            join_samples([read.choice for read in reads if read.choice is not None]),
        )

    def _join(self, context_BHTD: Tensor) -> Tensor:
        return context_BHTD.transpose(1, 2).flatten(-2)
