"""Attention: a score, a scope and a selection, with any number of heads.

B rows, T queries, S memory slots, D width, H heads.
"""

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

from regard.arguments import check_flag, check_inputs, check_integer, check_tensors
from regard.attention import dispatch, equation
from regard.attention.interventions import ActiveInterventions, changes_weights, find_interventions, replace_values
from regard.attention.mechanisms import find_mechanism, mechanisms
from regard.attention.memory import Attended, Keys, Past, check_keys, check_past, check_prepared
from regard.attention.record import Recordable, Role
from regard.attention.scopes import Scope, ScopeInput, ScopeOutput, build_scope, check_self_attention, fold
from regard.attention.scores import InnerProduct, Score, build_score
from regard.attention.selections import Selected, Selection, build_selection, join_samples
from regard.attention.settings import RESTRICTS_SLOTS, AttentionSettings
from regard.config import resolve
from regard.errors import ArgumentTypeError, ConfigError
from regard.formatting import did_you_mean, quantity
from regard.ops.cost import MultiplyAdds, count_attention
from regard.ops.dot_product_attention import ScoreBias, dot_product_attention, dot_product_weights
from regard.ops.dropout import Dropout

Part = str | Mapping[str, Any]

_OPTIONS = ("score", "scope", "select", "heads", "dropout", "role")


def _check_part(name: str, part: object, kind: type[nn.Module]) -> None:
    """Raise an error for a module that is not of this kind."""
    if isinstance(part, nn.Module) and not isinstance(part, kind):
        raise ArgumentTypeError(
            f"{name} must be a name, a mapping or a regard.{kind.__name__}, not {type(part).__name__}."
        )


@final
class Attention(Recordable):
    """Σ_j a_j v_j with a = select(score(q, k) | scope).

    `forward` attends in one call; a decoder calls `prepare` once per source and `read` once per step.

    Args:
        query_size: The width of the queries.
        key_size: The width of the keys.
        score: The name of a score, a mapping {"kind": name, option: value}, or a module.
        scope: The same for the scope, which restricts the slots that a query can attend to.
        select: The same for the selection, which turns scores into weights.
        heads: The number of heads. Queries, keys and values are split into parts of equal size.
        dropout: The dropout probability of the weights.
        role: `encoder-self`, `decoder-self` or `cross`; labels recorded weights.

    Raises:
        ConfigError: A name is unknown, or a value is out of range or does not match the others.
        ArgumentTypeError: An argument has the wrong type.

    >>> attention = regard.Attention(512, 1024, score="additive")
    >>> context, weights = attention(query, memory, allowed=mask)
    """

    def __init__(
        self,
        query_size: int,
        key_size: int,
        *,
        score: Part | Score = "additive",
        scope: Part | Scope = "global",
        select: Part | Selection = "softmax",
        heads: int = 1,
        dropout: float = 0.0,
        role: Role = "cross",
    ) -> None:
        super().__init__(role)
        check_integer("query_size", query_size)
        check_integer("key_size", key_size)
        check_integer("heads", heads)
        options = {"score": score, "scope": scope, "select": select, "heads": heads, "dropout": dropout}
        for name, kind in (("score", Score), ("scope", Scope), ("select", Selection)):
            _check_part(name, options[name], kind)
        tree = {name: option for name, option in options.items() if not isinstance(option, nn.Module)}
        settings = resolve(AttentionSettings, tree, {})
        self.score = score if isinstance(score, Score) else build_score(settings.score, query_size, key_size, heads)
        self.scope = scope if isinstance(scope, Scope) else build_scope(settings.scope, query_size)
        self.select = select if isinstance(select, Selection) else build_selection(settings.select)
        if self.score.heads != heads:
            raise ConfigError(
                f"The score has {quantity(self.score.heads, 'head')}, but the attention has {heads}. Use the same "
                "number."
            )
        if self.select.restricts_slots and not self.scope.is_global:
            raise ConfigError(f"The selection {type(self.select).__name__} {RESTRICTS_SLOTS}")
        self.query_size, self.key_size = query_size, key_size
        self.heads = heads
        self.settings: dict[str, dict[str, Any]] = {
            name: getattr(settings, name).model_dump(mode="json") if name in tree else {"kind": type(part).__name__}
            for name, part in (("score", self.score), ("scope", self.scope), ("select", self.select))
        }
        """The name and the options of each part; the name of its class if it was passed as a module."""
        self.dropout = Dropout(dropout)

    @classmethod
    def named(cls, name: str, query_size: int, key_size: int, **changes: Any) -> "Attention":
        """Build a mechanism by its name in the literature; `regard.mechanisms()` lists them.

        Args:
            name: The name of the mechanism.
            query_size: The width of the queries.
            key_size: The width of the keys.
            changes: Arguments of `Attention` that replace those of the mechanism.

        Returns:
            The attention.

        Raises:
            ConfigError: There is no such mechanism, or an argument is wrong.
            ArgumentTypeError: An argument has the wrong type.

        >>> regard.Attention.named("luong-local-p", query_size=512, key_size=512)
        """
        if not isinstance(name, str):
            raise ArgumentTypeError(f"name must be the name of a mechanism, not {type(name).__name__}.")
        unknown = next((change for change in changes if change not in _OPTIONS), None)
        if unknown is not None:
            raise ConfigError(
                f"regard.Attention has no option '{unknown}'.{did_you_mean(unknown, _OPTIONS)} Available: "
                f"{', '.join(_OPTIONS)}."
            )
        mechanism = find_mechanism(name)
        if mechanism is None:
            names = [entry.name for entry in mechanisms()]
            raise ConfigError(f"'{name}' is not a mechanism.{did_you_mean(name, names)} Available: {', '.join(names)}.")
        return cls(query_size, key_size, **{**mechanism.parts, **changes})

    @classmethod
    def from_settings(
        cls, settings: AttentionSettings, query_size: int, key_size: int, *, role: Role = "cross"
    ) -> "Attention":
        if not isinstance(settings, AttentionSettings):
            raise ArgumentTypeError(f"settings must be AttentionSettings, not {type(settings).__name__}.")
        return cls(query_size, key_size, **settings.model_dump(), role=role)

    @property
    def stepwise(self) -> bool:
        """Whether each step depends on the previous one, so that steps must run one by one."""
        return self.score.uses_past or self.select.uses_past

    @property
    def multiply_adds(self) -> MultiplyAdds:
        """The multiply-adds for values of the size of the keys: declared by the score and the scope, or counted."""
        score, scope = self.score.multiply_adds, self.scope.multiply_adds
        if score is None or scope is None:
            device = next((parameter.device for parameter in self.parameters()), torch.device("meta"))
            return count_attention(self._read_once, self.query_size, self.key_size, device)
        return score.combine(scope).combine(MultiplyAdds(per_pair=self.key_size))

    def _read_once(self, query_BTD: Tensor, keys_BSD: Tensor) -> Attended:
        keys = self.prepare(keys_BSD)
        return self.read(query_BTD, keys, self.begin(keys))

    def prepare(self, keys_BSD: Tensor, values_BSD: Tensor | None = None, allowed: Tensor | None = None) -> Keys:
        """Compute everything that depends only on the memory; `values` default to the keys."""
        self._check_inputs(None, keys_BSD, values_BSD, allowed)
        allowed_BTS = equation.per_query(allowed)
        keys = equation.zero_masked_slots(keys_BSD, allowed_BTS)
        values = keys if values_BSD is None else equation.zero_masked_slots(values_BSD, allowed_BTS)
        ends_S = torch.arange(1, keys_BSD.shape[1] + 1, device=keys_BSD.device)
        ends_BS = ends_S.expand(keys_BSD.shape[:2]) if allowed_BTS is None else allowed_BTS.any(1) * ends_S
        prepared, values_BHSD = self.score.prepare(keys), replace_values(self, self.score.values(values))
        if self.records_details:
            self.record_details({"key": keys, "value": values})
        score_bias = None
        if allowed_BTS is not None and allowed_BTS.shape[1] == 1 and self.fused:
            score_bias = ScoreBias.from_mask(allowed_BTS.unsqueeze(1), values_BHSD.dtype)
        return Keys(prepared, values_BHSD, allowed_BTS, ends_BS.amax(-1), score_bias)

    def begin(self, keys: Keys) -> Past:
        """Return the state before the first step."""
        check_keys(keys)
        rows, _, slots, _ = keys.values_BHSD.shape
        start = torch.zeros(rows, dtype=torch.long, device=keys.values_BHSD.device)
        weights = keys.values_BHSD.new_zeros(rows, self.heads, slots) if self.score.uses_past else None
        return Past(start, weights)

    def read(self, query_BTD: Tensor, keys: Keys, past: Past, *, weights: bool = False) -> Attended:
        """Attend to a prepared memory. The weights are returned only if requested or needed."""
        check_prepared(query_BTD, keys, past, self.query_size)
        check_flag("weights", weights)
        if self.stepwise and query_BTD.shape[1] == 0:
            raise ConfigError(f"query has the shape {tuple(query_BTD.shape)}: there are no steps.")
        return self._read_steps_or_rows(query_BTD, keys, past, weights=weights)

    def _read_steps_or_rows(self, query_BTD: Tensor, keys: Keys, past: Past, *, weights: bool) -> Attended:
        if self.stepwise and query_BTD.shape[1] > 1:
            return self._read_in_steps(query_BTD, keys, past, weights=weights)
        if query_BTD.shape[0] != keys.values_BHSD.shape[0]:
            return self._read_for_hypotheses(query_BTD, keys, past, weights=weights)
        return self._read(query_BTD, keys, past, query_BTD.shape[1], weights=weights)

    @property
    def fused(self) -> bool:
        """Whether the fused path is used, unless weights are requested."""
        is_changed = changes_weights(self)
        return dispatch.fused_unsupported_reason(self.score, self.scope, self.select, is_changed=is_changed) is None

    def read_fused(self, query_BTD: Tensor, prepared: Tensor, values_BHSD: Tensor, mask: ScoreBias | None) -> Tensor:
        """Attend with the fused path and a given mask; the scope is not evaluated."""
        assert isinstance(self.score, InnerProduct)
        dropout = self.dropout.p if self.training else 0.0
        query_BHTD, scale = self.score.query(query_BTD), self.score.factor
        return self._join_heads(
            dot_product_attention(query_BHTD, prepared, values_BHSD, mask, scale=scale, dropout=dropout)
        )

    def record_fused(self, query_BTD: Tensor, prepared: Tensor, mask: ScoreBias | None) -> None:
        """Record the weights of the fused path, if this attention is recorded. The context still comes from the fused
        path, so that recording does not change it.
        """
        if self.is_recorded:
            assert isinstance(self.score, InnerProduct)
            query_BHTD, scale = self.score.query(query_BTD), self.score.factor
            self.record_weights(self._per_head(dot_product_weights(query_BHTD, prepared, mask, scale=scale)))

    def _read(self, query_BTD: Tensor, keys: Keys, past: Past, steps: int, *, weights: bool) -> Attended:
        interventions = find_interventions(self)
        # Only scopes, interventions and recordings use the target positions, and the global scope does not.
        is_global = self.scope.is_global
        uses_position = bool(interventions) or not is_global
        if self.is_recorded:
            self._record_inputs(query_BTD, keys, past)
            uses_position = True
        new_past = past._replace(position_B=past.position_B + steps) if uses_position else past
        if self.fused and not weights:
            mask = keys.score_bias
            if mask is None or not is_global:
                allowed = self._apply_scope(query_BTD, keys, past).allowed_BTS
                mask = None if allowed is None else ScoreBias.from_mask(allowed, keys.values_BHSD.dtype)
            self.record_fused(query_BTD, keys.prepared, mask)
            if mask is keys.score_bias and mask is not None:
                # A row without visible slots attends to its slots, which are all zero, so `nonempty` is not needed.
                mask = mask._replace(nonempty=None)
            return Attended(self.read_fused(query_BTD, keys.prepared, keys.values_BHSD, mask), None, new_past)
        return_weights = weights or self.stepwise or self.select.marginal
        scope = self._apply_scope(query_BTD, keys, past)
        scores_BHTS = self.score(query_BTD, keys.prepared, past.weights_BHS)
        active = None
        if interventions:
            active = ActiveInterventions(interventions, past.positions(*query_BTD.shape[:2]))
        selected = self._select(scores_BHTS, scope, past, active)
        context_BHTD = equation.pool(self.dropout(selected.weights_BHTS), keys.values_BHSD)
        if active is not None:
            context_BHTD = active.replace_context(context_BHTD)
        attention_weights = self._per_head(selected.weights_BHTS)
        self.record_weights(attention_weights)
        new_past = self._update_past(new_past, selected.weights_BHTS)
        returned_weights = attention_weights if return_weights else None
        return Attended(self._join_heads(context_BHTD), returned_weights, new_past, selected.sample)

    def observe(self, past: Past, likelihood_BS: Tensor) -> Past:
        """Update the belief about the position with the likelihood of the last token under each slot."""
        check_past(past)
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
        """Attend to a memory.

        Args:
            query_BTD: The queries.
            keys_BSD: The keys of the memory.
            values_BSD: The values of the memory, by default the keys.
            allowed: A boolean mask (B, S) or (B, T, S), True where a slot is visible; by default all slots are.
            weights: Whether to return the weights. Without them, the fastest path that supports the mechanism is used.

        Returns:
            The contexts (B, T, D), and the weights: (B, T, S) for one head, (B, H, T, S) for several, None if they are
            not requested.

        Raises:
            ConfigError: A shape, dtype or device does not match, or the memory is empty.
            ArgumentTypeError: An argument is not a tensor.
        """
        check_tensors(query=query_BTD)
        check_flag("weights", weights)
        self._check_inputs(query_BTD, keys_BSD, values_BSD, allowed)
        check_self_attention(self.scope, query_BTD.shape[1], keys_BSD.shape[1])
        keys = self.prepare(keys_BSD, values_BSD, allowed)
        attended = self.read(query_BTD, keys, self.begin(keys), weights=weights)
        return attended.context_BTD, attended.weights

    def _check_inputs(self, query: Tensor | None, keys: Tensor, values: Tensor | None, allowed: Tensor | None) -> None:
        weight = next(self.parameters(), None)
        sizes = (self.query_size, self.key_size, self.heads)
        check_inputs(query, keys, values, allowed, sizes, weight)

    def _read_for_hypotheses(self, query_N1D: Tensor, keys: Keys, past: Past, *, weights: bool) -> Attended:
        """Treat the hypotheses of a sentence as queries over its memory, so that the memory is not copied."""
        rows, hypotheses = keys.values_BHSD.shape[0], query_N1D.shape[0] // keys.values_BHSD.shape[0]
        if self.stepwise or query_N1D.shape[1] > 1:
            repeated = (None if tensor is None else tensor.repeat_interleave(hypotheses, dim=0) for tensor in keys[:4])
            prepared = Keys(*repeated)  # type: ignore[arg-type]
            return self._read_steps_or_rows(query_N1D, prepared, past, weights=weights)
        attended = self._read(query_N1D.view(rows, hypotheses, -1), keys, past, 1, weights=weights)
        weights_per_row = None
        if attended.weights is not None:
            weights_per_row = attended.weights.movedim(-2, 1).flatten(0, 1).unsqueeze(-2)
        return Attended(attended.context_BTD.flatten(0, 1).unsqueeze(1), weights_per_row, attended.past)

    def _apply_scope(self, query_BTD: Tensor, keys: Keys, past: Past) -> ScopeOutput:
        """Evaluate the scope and combine it with the mask of the memory, with an axis for heads."""
        slots_S = torch.arange(keys.values_BHSD.shape[2], device=query_BTD.device)
        positions_BT = past.positions(*query_BTD.shape[:2])
        scope: ScopeOutput = self.scope(ScopeInput(query_BTD, positions_BT, keys.lengths_B, slots_S))
        allowed_BTS = fold([keys.allowed_BTS, scope.allowed_BTS], torch.logical_and)
        tensors = (allowed_BTS, scope.bias_BTS, scope.factor_BTS)
        return ScopeOutput(*(None if tensor is None else tensor.unsqueeze(1) for tensor in tensors))

    def _select(
        self, scores_BHTS: Tensor, scope: ScopeOutput, past: Past, interventions: ActiveInterventions | None
    ) -> Selected:
        allowed = torch.ones_like(scores_BHTS, dtype=torch.bool) if scope.allowed_BTS is None else scope.allowed_BTS
        allowed_BHTS = allowed.expand_as(scores_BHTS)
        if interventions is not None:
            allowed_BHTS = interventions.mask_slots(allowed_BHTS)
        scores_BHTS = scores_BHTS if scope.bias_BTS is None else scores_BHTS + scope.bias_BTS
        selected: Selected = self.select(scores_BHTS, allowed_BHTS, past.belief_BHS)
        if scope.factor_BTS is not None:
            selected = selected._replace(weights_BHTS=selected.weights_BHTS * scope.factor_BTS)
        if interventions is not None:
            weights_BHTS = interventions.replace_weights(selected.weights_BHTS, allowed_BHTS)
            selected = selected._replace(weights_BHTS=weights_BHTS)
        return selected

    def _record_inputs(self, query_BTD: Tensor, keys: Keys, past: Past) -> None:
        """Record positions, and on request what the weights are computed from; `prepare` records keys and values."""
        self.record_part("position", past.positions(*query_BTD.shape[:2]))
        if not self.records_details:
            return
        scope = self._apply_scope(query_BTD, keys, past)
        scores_BHTS = self.score(query_BTD, keys.prepared, past.weights_BHS)
        scores_BTS = scores_BHTS[:, 0]
        belief_BHS = past.belief_BHS
        if self.select.uses_past and belief_BHS is None:
            # At the first step every slot can be reached, as from the first slot.
            belief_BHS = torch.zeros_like(scores_BHTS[:, :, 0]).index_fill(-1, query_BTD.new_zeros(1).long(), 1.0)
        allowed_BTS = torch.ones_like(scores_BTS) if scope.allowed_BTS is None else scope.allowed_BTS.squeeze(1)
        self.record_details(
            {
                "query": query_BTD,
                "scores": scores_BHTS,
                "mask": allowed_BTS.bool().expand_as(scores_BTS),
                "bias": None if scope.bias_BTS is None else scope.bias_BTS.squeeze(1),
                "factor": None if scope.factor_BTS is None else scope.factor_BTS.squeeze(1),
                "past": None if past.weights_BHS is None else past.weights_BHS.unsqueeze(2),
                "belief": None if belief_BHS is None else belief_BHS.unsqueeze(2),
            }
        )

    def _update_past(self, past: Past, weights_BHTS: Tensor) -> Past:
        if past.weights_BHS is not None:
            last = weights_BHTS[..., -1, :]
            past = past._replace(weights_BHS=past.weights_BHS + last if self.score.sums_past else last)
        if self.select.uses_past:
            past = past._replace(belief_BHS=weights_BHTS[..., -1, :])
        return past

    def _read_in_steps(self, query_BTD: Tensor, keys: Keys, past: Past, *, weights: bool) -> Attended:
        reads = []
        for step, one_B1D in enumerate(torch.split(query_BTD, 1, 1)):
            reads.append(self._read_steps_or_rows(one_B1D, keys.for_query(step), past, weights=weights))
            past = reads[-1].past
        weights_of_steps = [read.weights for read in reads if read.weights is not None]
        return Attended(
            torch.cat([read.context_BTD for read in reads], dim=1),
            torch.cat(weights_of_steps, dim=-2) if weights_of_steps else None,
            past,
            join_samples([read.sample for read in reads if read.sample is not None]),
        )

    def _per_head(self, weights_BHTS: Tensor) -> Tensor:
        """Return the weights without the axis for heads if there is a single head."""
        return weights_BHTS if self.heads > 1 else weights_BHTS.squeeze(1)

    def _join_heads(self, context_BHTD: Tensor) -> Tensor:
        return context_BHTD.transpose(1, 2).flatten(-2)
