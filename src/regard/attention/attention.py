"""Attention: a score, a scope and a selection, with any number of heads.

B rows, T queries, S memory slots, D width, H heads.
"""

from collections.abc import Mapping
from typing import Any, Literal, final, get_args

import torch
from torch import Tensor, nn

from regard.arguments import (
    check_flag,
    check_floating,
    check_inputs,
    check_integer,
    check_sequence,
    check_tensors,
    check_type,
)
from regard.attention import equation
from regard.attention.hooks import AttentionHooks, Reading, find_hooks
from regard.attention.mechanisms import find_mechanism, mechanisms
from regard.attention.memory import Attended, Past, PreparedMemory
from regard.attention.scopes import Scope, check_self_attention
from regard.attention.scores import InnerProduct, Score
from regard.attention.selections import Selected, Selection, join_samples
from regard.attention.settings import AttentionSettings, check_scope
from regard.config import resolve
from regard.errors import ConfigError
from regard.formatting import did_you_mean, quantity
from regard.ops.attention import CachedSteps, ScoreBias, dot_product_attention, dot_product_weights
from regard.ops.layers import Dropout
from regard.ops.reference_mode import Dispatch, first_available, in_reference_mode
from regard.registry import Choice

Part = str | Mapping[str, Any] | Choice
"""A part of an attention: its name, its name and options, or its settings."""

Role = Literal["encoder-self", "decoder-self", "cross"]
"""What attends to what: the source to itself, the target to itself, or the target to the source."""

ROLES: tuple[Role, ...] = get_args(Role)

_OPTIONS = ("score", "scope", "select", "heads", "dropout", "role")


def _check_part(name: str, part: object, kind: type[nn.Module]) -> None:
    """Raise an error for a module that is not of this kind."""
    if isinstance(part, nn.Module):
        check_type(name, part, kind, f"a name, a mapping or a regard.{kind.__name__}")


@final
class Attention(nn.Module):
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
        super().__init__()
        if role not in ROLES:
            raise ConfigError(f"{role!r} is not a valid role. Available: {', '.join(ROLES)}.")
        self.role: Role = role
        self.reads_backward = False
        """Whether this attention is that of a recurrent cell that reads the source from its end. Its queries and slots
        are then numbered in that order.
        """
        self.finite_memory = False
        """Whether masked slots always hold finite values. Training then does not set them to zero: their weights are
        zero.
        """
        check_integer("query_size", query_size)
        check_integer("key_size", key_size)
        check_integer("heads", heads)
        options = {"score": score, "scope": scope, "select": select, "heads": heads, "dropout": dropout}
        for name, kind in (("score", Score), ("scope", Scope), ("select", Selection)):
            _check_part(name, options[name], kind)
        tree = {name: option for name, option in options.items() if not isinstance(option, nn.Module)}
        settings = resolve(AttentionSettings, tree, {})
        sizes = {"query_size": query_size, "key_size": key_size, "heads": heads}
        self.score: Score = score if isinstance(score, Score) else settings.score.build_part(**sizes)
        self.scope: Scope = scope if isinstance(scope, Scope) else settings.scope.build_part(query_size=query_size)
        self.select: Selection = select if isinstance(select, Selection) else settings.select.build_part()
        if self.score.heads != heads:
            raise ConfigError(
                f"The score has {quantity(self.score.heads, 'head')}, but the attention has {heads}. Use the same "
                "number."
            )
        check_scope(f"The selection {type(self.select).__name__}", self.select, self.scope)
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
        check_type("name", name, str, "the name of a mechanism")
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
        check_type("settings", settings, AttentionSettings, "AttentionSettings")
        return cls(query_size, key_size, **dict(settings), role=role)

    @property
    def stepwise(self) -> bool:
        """Whether each step depends on the previous one, so that steps must run one by one."""
        return self.score.uses_past or self.select.uses_past

    def prepare(
        self, keys_BSD: Tensor, values_BSD: Tensor | None = None, allowed: Tensor | None = None
    ) -> PreparedMemory:
        """Compute everything that depends only on the memory; `values` default to the keys."""
        self._check_inputs(None, keys_BSD, values_BSD, allowed)
        allowed_BTS = equation.per_query(allowed)
        zeroed = not (self.finite_memory and self.training)
        keys = equation.zero_masked_slots(keys_BSD, allowed_BTS) if zeroed else keys_BSD
        values = keys if values_BSD is None else values_BSD
        if zeroed and values is not keys:
            values = equation.zero_masked_slots(values, allowed_BTS)
        ends_S = torch.arange(1, keys_BSD.shape[1] + 1, device=keys_BSD.device)
        ends_BS = ends_S.expand(keys_BSD.shape[:2]) if allowed_BTS is None else allowed_BTS.any(1) * ends_S
        prepared = self.score.prepare(keys)
        values_BHSD = find_hooks(self).on_memory(keys, values, self.score.values(values))
        score_bias = None
        if allowed_BTS is not None and allowed_BTS.shape[1] == 1 and self.fused:
            score_bias = ScoreBias.from_mask(allowed_BTS.unsqueeze(1), values_BHSD.dtype)
        return PreparedMemory(prepared, values_BHSD, allowed_BTS, ends_BS.amax(-1), score_bias, zeroed)

    def begin(self, keys: PreparedMemory) -> Past:
        """Return the state before the first step."""
        _check_memory(keys)
        rows, _, slots, _ = keys.values_BHSD.shape
        start = torch.zeros(rows, dtype=torch.long, device=keys.values_BHSD.device)
        weights = keys.values_BHSD.new_zeros(rows, self.heads, slots) if self.score.uses_past else None
        return Past(start, weights)

    def read(self, query_BTD: Tensor, keys: PreparedMemory, past: Past, *, weights: bool = False) -> Attended:
        """Attend to a prepared memory. The query has one row for each row of the memory, or several (the hypotheses of
        a sentence). The weights are returned if requested, or if the path that is used computes them.
        """
        _check_reading(query_BTD, keys, past, self.query_size)
        check_flag("weights", weights)
        (rows, steps, _), memory_rows = query_BTD.shape, keys.values_BHSD.shape[0]
        if self.stepwise and steps != 1:
            return self._read_in_steps(query_BTD, keys, past, weights=weights)
        if rows == memory_rows:
            return self._attend(query_BTD, keys, past, weights=weights)
        hypotheses = rows // memory_rows
        if self.stepwise or steps > 1:
            return self._attend(query_BTD, keys.repeat(hypotheses), past, weights=weights)
        # The hypotheses of a sentence are queries over its memory, so that the memory is not copied.
        query_BKD = query_BTD.view(memory_rows, hypotheses, -1)
        return self._attend(query_BKD, keys, past, weights=weights).one_query_per_row()

    def _attend(self, query_BTD: Tensor, memory: PreparedMemory, past: Past, *, weights: bool) -> Attended:
        """The equation: score, scope, selection, weighted sum. Hooks observe or change the intermediate results."""
        hooks, reading = find_hooks(self), Reading(self.score, self.scope, self.select, query_BTD, memory, past)
        if self.fused and not weights:
            return self._attend_fused(reading, hooks)
        hooks.on_inputs(reading)
        scores_BHTS = self.score(query_BTD, memory.prepared, past.weights_BHS)
        scope = reading.restrict()
        allowed_BHTS = hooks.on_scores(reading, scores_BHTS, scope.visible(scores_BHTS))
        selected: Selected = self.select(scope.add_bias(scores_BHTS), allowed_BHTS, past.belief_BHS)
        weights_BHTS = hooks.on_weights(reading, scope.scale(selected.weights_BHTS), allowed_BHTS)
        context_BHTD = hooks.on_context(reading, self.dropout(weights_BHTS) @ memory.values_BHSD)
        next_past = self._next_past(reading, hooks, weights_BHTS)
        return Attended(self._join_heads(context_BHTD), self._per_head(weights_BHTS), next_past, selected.sample)

    def _attend_fused(self, reading: Reading, hooks: AttentionHooks) -> Attended:
        """Compute the context with the fused path, which stores no weights."""
        memory, mask = reading.memory, reading.memory.score_bias
        if mask is None or not self.scope.is_global:
            allowed = reading.restrict().allowed_BTS
            mask = None if allowed is None else ScoreBias.from_mask(allowed, memory.values_BHSD.dtype)
        if hooks:
            self.observe_fused(reading, mask, hooks)
        if mask is memory.score_bias and mask is not None and memory.zeroed:
            # A row without visible slots attends to its slots, which are all zero, so `nonempty` is not needed.
            mask = mask._replace(nonempty=None)
        context_BTD = self.read_fused(reading.query_BTD, memory.prepared, memory.values_BHSD, mask)
        return Attended(context_BTD, None, self._next_past(reading, hooks))

    def read_fused(
        self, query_BTD: Tensor, prepared: Tensor, values_BHSD: Tensor, mask: ScoreBias | CachedSteps | None
    ) -> Tensor:
        """Attend with the fused path and a given mask; the scope is not evaluated."""
        assert isinstance(self.score, InnerProduct)
        dropout = self.dropout.p if self.training else 0.0
        query_BHTD, scale = self.score.query(query_BTD), self.score.factor
        return self._join_heads(
            dot_product_attention(query_BHTD, prepared, values_BHSD, mask, scale=scale, dropout=dropout)
        )

    def observe_fused(self, reading: Reading, mask: ScoreBias | None, hooks: AttentionHooks) -> None:
        """Compute the weights of the fused path for hooks of this attention. The context still comes from the fused
        path, so that observing it does not change it.
        """
        assert isinstance(self.score, InnerProduct)
        query_BHTD = self.score.query(reading.query_BTD)
        hooks.on_inputs(reading)
        weights_BHTS = dot_product_weights(query_BHTD, reading.memory.prepared, mask, scale=self.score.factor)
        hooks.on_weights(reading, weights_BHTS, None)

    @property
    def fused(self) -> bool:
        """Whether the fused path is used, unless weights are requested."""
        reason = fused_unsupported_reason(
            self.score, self.scope, self.select, is_changed=find_hooks(self).change_weights
        )
        return reason is None

    def _next_past(self, reading: Reading, hooks: AttentionHooks, weights_BHTS: Tensor | None = None) -> Past:
        past, rows_and_steps = reading.past, reading.query_BTD.shape[:2]
        # Only scopes and hooks use the target positions, and the global scope does not.
        if hooks or not self.scope.is_global:
            steps = rows_and_steps[1] if past.position_B.shape[0] == rows_and_steps[0] else 1
            past = past._replace(position_B=past.position_B + steps)
        if weights_BHTS is not None and past.weights_BHS is not None:
            last = weights_BHTS[..., -1, :]
            past = past._replace(weights_BHS=past.weights_BHS + last if self.score.sums_past else last)
        if weights_BHTS is not None and self.select.uses_past:
            past = past._replace(belief_BHS=weights_BHTS[..., -1, :])
        return past

    def _read_in_steps(self, query_BTD: Tensor, keys: PreparedMemory, past: Past, *, weights: bool) -> Attended:
        if query_BTD.shape[1] == 0:
            raise ConfigError(f"query has the shape {tuple(query_BTD.shape)}: there are no steps.")
        reads = []
        for step, one_B1D in enumerate(torch.split(query_BTD, 1, 1)):
            reads.append(self.read(one_B1D, keys.for_query(step), past, weights=weights))
            past = reads[-1].past
        return Attended(
            torch.cat([read.context_BTD for read in reads], dim=1),
            torch.cat([read.weights for read in reads if read.weights is not None], dim=-2),
            past,
            join_samples([read.sample for read in reads if read.sample is not None]),
        )

    def observe(self, past: Past, likelihood_BS: Tensor) -> Past:
        """Update the belief about the slot with the likelihood of the last token under each slot."""
        _check_past(past)
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

        With the selection `hard`, train with `read` instead, which also returns the sampled slots: the scores are
        trained by their `surrogate` loss.

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
        return attended.context_BTD, attended.weights if weights else None

    def _check_inputs(self, query: Tensor | None, keys: Tensor, values: Tensor | None, allowed: Tensor | None) -> None:
        weight = next(self.parameters(), None)
        sizes = (self.query_size, self.key_size, self.heads)
        check_inputs(query, keys, values, allowed, sizes, weight)

    def _per_head(self, weights_BHTS: Tensor) -> Tensor:
        """Return the weights without the axis for heads if there is a single head."""
        return weights_BHTS if self.heads > 1 else weights_BHTS.squeeze(1)

    def _join_heads(self, context_BHTD: Tensor) -> Tensor:
        return context_BHTD.transpose(1, 2).flatten(-2)


def _check_reading(query_BTD: Tensor, keys: object, past: object, size: int) -> None:
    """Raise an error unless a query of this size can read a prepared memory. This is called at each step, so it does
    not read the values of tensors.
    """
    check_sequence("query", query_BTD, size)
    _check_memory(keys)
    _check_past(past)
    assert isinstance(keys, PreparedMemory)
    check_floating(keys.values_BHSD, "the memory is", query=query_BTD)
    rows, memory_rows = query_BTD.shape[0], keys.values_BHSD.shape[0]
    if rows != memory_rows and (memory_rows == 0 or rows == 0 or rows % memory_rows):
        raise ConfigError(
            f"query has {quantity(rows, 'row')}, but keys has {memory_rows}. Pass the same number of rows, or a "
            "multiple of it."
        )


def _check_memory(keys: object) -> None:
    check_type("keys", keys, PreparedMemory, "what `prepare` returned")


def _check_past(past: object) -> None:
    check_type("past", past, Past, "what `begin` or the last step returned")


def dispatch_attention(score: Score, scope: Scope, select: Selection, *, weights: bool) -> Dispatch:
    """Choose the implementation of an attention from its parts; no tensor is needed.

    fused       PyTorch's fused attention, or in training on a GPU a Triton kernel for short sequences, for scores
                equivalent to a dot product, if no weights are requested
    chunked     the additive score in chunks of bounded memory (`ops/attention.py`)
    reference   the equation
    """
    return first_available(
        {
            "fused": lambda: "the weights are requested" if weights else fused_unsupported_reason(score, scope, select),
            "chunked": lambda: _chunked_unsupported_reason(score),
        },
        otherwise="reference",
    )


def fused_unsupported_reason(score: Score, scope: Scope, select: Selection, *, is_changed: bool = False) -> str | None:
    """Return why the fused path cannot be used; None if it can. `is_changed`: an intervention changes the weights."""
    if in_reference_mode():
        return "reference mode is on"
    if is_changed:
        return "an intervention changes the weights, which this path does not store"
    if not isinstance(score, InnerProduct):
        return f"the score {type(score).__name__} is not equivalent to a dot product"
    if not select.is_softmax:
        return f"the selection {type(select).__name__} is not a softmax"
    if scope.learned:
        return f"the scope {type(scope).__name__} predicts its window, so the mask needs a gradient"
    return None


def _chunked_unsupported_reason(score: Score) -> str | None:
    if in_reference_mode():
        return "reference mode is on"
    if not score.chunkable:
        return f"the score {type(score).__name__} has no hidden layer to compute in chunks"
    return None
