"""Scans of all LSTM variants with analytic gradients; see `analytic` for the reason.

N cells in parallel, B rows, T steps, H state width, G width of all gates: the learned gates i, f, o, then the candidate
z. a is the projection of the input to the gates, R and Q the matrices of the output and of the previous gates, p the
peepholes, `mask` an optional dropout mask on the output before R.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.ops.reference_mode import Gradients, differentiable_once
from regard.recurrent.cells import apply_mask
from regard.recurrent.fast.analytic import (
    add_product,
    allocate_states,
    begin_gradient,
    iterate_backward,
    iterate_steps,
    transpose_weights,
    unflatten_gates,
    weight_gradient,
)
from regard.recurrent.settings import LSTMVariant


class LSTMWeights(NamedTuple):
    """The recurrent weights of an LSTM: R, and the peepholes and gate recurrence if the variant has them."""

    R_NGH: Tensor
    p_NPH: Tensor | None = None
    Q_NPP: Tensor | None = None


class _Gates(NamedTuple):
    """Views of the gates, or of their gradients. A variant may lack some of the gates."""

    all: Tensor
    rows: Tensor
    """The same with one axis for the gates and one for the units, (…, P + 1, H)."""
    learned: Tensor
    early: Tensor
    early_rows: Tensor
    input: Tensor | None
    forget: Tensor | None
    output: Tensor | None
    candidate: Tensor

    @classmethod
    def of(cls, variant: LSTMVariant, all_gates: Tensor) -> "_Gates":
        count, early = len(variant.gates), len(variant.early_gates)
        size = all_gates.shape[-1] // (count + 1)
        rows = unflatten_gates(all_gates, size)
        *gates, candidate = rows.unbind(-2)
        by_name = dict(zip(variant.gates, gates, strict=True))
        return cls(
            all_gates,
            rows,
            all_gates[..., : count * size],
            all_gates[..., : early * size],
            rows[..., :early, :],
            by_name.get("input"),
            by_name.get("forget"),
            by_name.get("output"),
            candidate,
        )


class _Peepholes(NamedTuple):
    """The peepholes of the early gates, (…, P, H), and of the output gate, (…, H)."""

    early: Tensor
    output: Tensor

    @classmethod
    def of(cls, variant: LSTMVariant, p: Tensor | None) -> "_Peepholes | None":
        return None if p is None else cls(p[..., : len(variant.early_gates), :], p[..., -1, :])


def _forward_step(
    variant: LSTMVariant, s: _Gates, before: Tensor, p: _Peepholes | None, cell: Tensor, activated: Tensor, y: Tensor
) -> None:
    """Activate the gates s in place, and write the new cell state c, its activation h(c), and the output y."""
    if p is None:
        s.learned.sigmoid_()
    else:
        s.early_rows.addcmul_(p.early, before.unsqueeze(-2))
        s.early.sigmoid_()
    if variant.input_activation == "tanh":
        s.candidate.tanh_()
    if variant.coupled:
        assert s.input is not None
        torch.lerp(before, s.candidate, s.input, out=cell)
    else:
        retained = before if s.forget is None else torch.mul(before, s.forget, out=cell)
        if s.input is None:
            torch.add(retained, s.candidate, out=cell)
        else:
            torch.addcmul(retained, s.candidate, s.input, out=cell)
    if p is not None and s.output is not None:
        s.output.addcmul_(p.output, cell).sigmoid_()
    if variant.output_activation == "tanh":
        torch.tanh(cell, out=activated)
    y.copy_(activated) if s.output is None else torch.mul(activated, s.output, out=y)


def _allocate_activation(variant: LSTMVariant, cell: Tensor) -> Tensor:
    """Return a tensor for h(c), or c itself if h is the identity."""
    return torch.empty_like(cell) if variant.output_activation == "tanh" else cell


class _Derivatives(NamedTuple):
    """The local derivatives, including those through the peepholes: of the output with respect to the cell state; of
    the cell state with respect to the preactivations of the gates, (…, P + 1, H); of the output with respect to the
    preactivation of the output gate; of the cell state with respect to the previous one; of the learned gates with
    respect to their preactivations, for gate recurrence.
    """

    cell: Tensor
    gates: Tensor
    output: Tensor | None
    before: Tensor | None
    learned: Tensor | None


def _compute_derivatives(
    variant: LSTMVariant, s: _Gates, p: _Peepholes | None, before: Tensor, activated: Tensor
) -> _Derivatives:
    """Compute the local derivatives, for one step or for all steps at once."""
    k = _Gates.of(variant, torch.empty_like(s.all))
    torch.mul(1 - s.learned, s.learned, out=k.learned)
    to_learned = k.learned.clone() if variant.gate_recurrence else None
    if k.input is not None:
        k.input.mul_(s.candidate - before if variant.coupled else s.candidate)
    if k.forget is not None:
        k.forget.mul_(before)
    if variant.input_activation == "tanh":
        torch.mul(s.candidate, s.candidate, out=k.candidate).neg_().add_(1)
    else:
        k.candidate.fill_(1)
    if s.input is not None:
        k.candidate.mul_(s.input)
    to_cell = 1 - activated * activated if variant.output_activation == "tanh" else torch.ones_like(activated)
    to_before = 1 - s.input if variant.coupled and s.input is not None else s.forget
    if k.output is not None and s.output is not None:
        k.output.mul_(activated)
        to_cell.mul_(s.output)
    if p is not None:
        to_before = (k.early_rows * p.early).sum(-2).add_(1 if to_before is None else to_before)
        if k.output is not None:
            to_cell.addcmul_(p.output, k.output)
    return _Derivatives(to_cell, k.rows, k.output, to_before, to_learned)


def _backward_step(
    k: _Derivatives,
    p: _Peepholes | None,
    d_y: Tensor,
    d_cell: Tensor,
    d_before: Tensor,
    d_learned: Tensor | None,
    d_s: _Gates,
) -> None:
    """Write the gradient of the gates to d_s, and add those of the cell states before and after the step to d_before
    and d_cell. d_learned is the gradient of the learned gates through gate recurrence.
    """
    d_cell.addcmul_(d_y, k.cell)
    if d_learned is not None:
        assert k.learned is not None
        d_learned = d_learned * k.learned
        if p is not None:
            early = d_learned[..., : d_s.early.shape[-1]].view_as(d_s.early_rows)
            d_before.add_((early * p.early).sum(-2))
            if d_s.output is not None:
                d_cell.addcmul_(p.output, d_learned[..., -d_y.shape[-1] :])
    torch.mul(d_cell.unsqueeze(-2), k.gates, out=d_s.rows)
    if k.output is not None:
        torch.mul(d_y, k.output, out=d_s.output)
    if d_learned is not None:
        d_s.learned.add_(d_learned)
    d_before.add_(d_cell) if k.before is None else d_before.addcmul_(d_cell, k.before)


def _peephole_gradient(d_s: _Gates, before: Tensor, cell: Tensor) -> Tensor:
    """Return the gradient of the peepholes for one step or all, (…, P, H), not yet summed over rows and steps."""
    parts = [d_s.early_rows * before.unsqueeze(-2)]
    if d_s.output is not None:
        parts.append((d_s.output * cell).unsqueeze(-2))
    return torch.cat(parts, dim=-2)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        variant: LSTMVariant,
        a: Tensor,
        y_0: Tensor,
        c_0: Tensor,
        g_0: Tensor | None,
        R: Tensor,
        p: Tensor | None,
        Q: Tensor | None,
        mask: Tensor | None,
        valid: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        s = _Gates.of(variant, a.clone())
        y, c, g = allocate_states(a, y_0), allocate_states(a, c_0), g_0
        activated = _allocate_activation(variant, c[1:])
        R_T, Q_T = transpose_weights(R), None if Q is None else transpose_weights(Q)
        peepholes = _Peepholes.of(variant, None if p is None else p.unsqueeze(1))
        states = (y[:-1], c[:-1], y[1:], c[1:], activated, valid)
        for y_before, c_before, y_t, c_t, activated_t, valid_t, *gates in iterate_steps(len(a), *states, *s):
            s_t = _Gates._make(gates)
            s_t.all.baddbmm_(apply_mask(y_before, mask), R_T)
            if g is not None and Q_T is not None:
                s_t.learned.baddbmm_(g, Q_T)
                g = s_t.learned
            _forward_step(variant, s_t, c_before, peepholes, c_t, activated_t, y_t)
            if valid_t is not None:
                y_t.mul_(valid_t)
                c_t.mul_(valid_t)
        ctx.variant = variant
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(g_0, R, p, Q, mask, s.all, y, c, activated)
        return y[1:], c[1:], s.learned

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *d_states: Tensor | None) -> Gradients:
        g_0, R, p, Q, mask, all_gates, y, c, activated = ctx.saved_tensors
        variant: LSTMVariant = ctx.variant
        s, d_s = _Gates.of(variant, all_gates), _Gates.of(variant, torch.empty_like(all_gates))
        peepholes = _Peepholes.of(variant, None if p is None else p.unsqueeze(1))
        k = _compute_derivatives(variant, s, peepholes, c[:-1], activated)
        d_y, d_c = begin_gradient(d_states[0], y[1:]), begin_gradient(d_states[1], c[1:])
        d_g = None if Q is None else begin_gradient(d_states[2], s.learned)
        totals = (part for d in (d_y, d_c, d_g) for part in ((None, None) if d is None else (d[1:], d[:-1])))
        for dy_t, dy_before, dc_t, dc_before, dg_t, dg_before, *parts in iterate_backward(
            len(y) - 1, *totals, *d_s, *k
        ):
            ds_t, k_t = _Gates._make(parts[: len(d_s)]), _Derivatives._make(parts[len(d_s) :])
            _backward_step(k_t, peepholes, dy_t, dc_t, dc_before, dg_t, ds_t)
            add_product(dy_before, ds_t.all, R, mask)
            if dg_before is not None:
                dg_before.baddbmm_(ds_t.learned, Q)
        d_p = None if p is None else _peephole_gradient(d_s, c[:-1], c[1:]).sum((0, 2))
        d_Q = None
        if g_0 is not None:
            d_Q = weight_gradient(d_s.learned, torch.cat([g_0.unsqueeze(0), s.learned[:-1]]))
        d_R = weight_gradient(d_s.all, apply_mask(y[:-1], mask))
        return None, d_s.all, d_y[0], d_c[0], None if d_g is None else d_g[0], d_R, d_p, d_Q, None, None


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, variant: LSTMVariant, total: Tensor, before: Tensor, p: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        s = _Gates.of(variant, total.clone())
        cell, output = torch.empty_like(before), torch.empty_like(before)
        activated = _allocate_activation(variant, cell)
        _forward_step(variant, s, before, _Peepholes.of(variant, p), cell, activated, output)
        ctx.variant = variant
        ctx.save_for_backward(s.all, before, cell, activated, p)
        return output, cell

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, d_output: Tensor, d_cell: Tensor) -> Gradients:
        all_gates, before, cell, activated, p = ctx.saved_tensors
        s, d_s = _Gates.of(ctx.variant, all_gates), _Gates.of(ctx.variant, torch.empty_like(all_gates))
        peepholes = _Peepholes.of(ctx.variant, p)
        k = _compute_derivatives(ctx.variant, s, peepholes, before, activated)
        d_before = torch.zeros_like(before)
        _backward_step(k, peepholes, d_output, d_cell.clone(), d_before, None, d_s)
        d_p = None if p is None else _peephole_gradient(d_s, before, cell).sum(0)
        return None, d_s.all, d_before, d_p


def lstm_scan(
    variant: LSTMVariant,
    a_TNBG: Tensor,
    state: tuple[Tensor, ...],
    weights: LSTMWeights,
    mask_NBH: Tensor | None = None,
    valid_TB1: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Return the state after each step, (T, N, B, …) for each of its tensors: output, cell state and, with gate
    recurrence, the gates. Past the end of a row, output and cell state are zero if `valid_TB1` is given.
    """
    y, c, *g = state
    g_0 = g[0] if g else None
    states = _Scan.apply(variant, a_TNBG, y, c, g_0, *weights, mask_NBH, valid_TB1)  # type: ignore[no-untyped-call]
    return tuple(states[: len(state)])


def lstm_step(variant: LSTMVariant, total_BG: Tensor, cell_BH: Tensor, p_PH: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return output and cell state after a step without gate recurrence, from the preactivations of all gates."""
    output_BH, after_BH = _Step.apply(variant, total_BG, cell_BH, p_PH)  # type: ignore[no-untyped-call]
    return output_BH, after_BH
