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
from regard.recurrent.fast.analytic import allocate_states, iterate_backward, iterate_steps, weight_gradient
from regard.recurrent.settings import LSTMVariant


class LSTMWeights(NamedTuple):
    """The recurrent weights of an LSTM: R, and the peepholes and gate recurrence if the variant has them."""

    R_NGH: Tensor
    p_NPH: Tensor | None = None
    Q_NPP: Tensor | None = None


class _GateColumns:
    """The slices of the gates along the axis of width G."""

    def __init__(self, variant: LSTMVariant, size: int) -> None:
        self.size = size
        self.early = slice(0, len(variant.early_gates) * size)
        self.gates = slice(0, len(variant.gates) * size)
        self.output = slice(self.early.stop, self.gates.stop)
        self.candidate = slice(self.gates.stop, self.gates.stop + size)
        self.input = slice(0, size)
        self.forget = slice(self.early.stop - size, self.early.stop)


def _unflatten_gates(x: Tensor, size: int) -> Tensor:
    """(…, P H) → (…, P, H): one axis for the gates, one for the units."""
    return x.view(*x.shape[:-1], x.shape[-1] // size, size)


def _forward_step(
    variant: LSTMVariant,
    columns: _GateColumns,
    s: Tensor,
    before: Tensor,
    p: Tensor | None,
    cell: Tensor,
    activated: Tensor,
    y: Tensor,
) -> None:
    """Activate the gates s in place, and write the new cell state c, its activation h(c), and the output y."""
    early, candidate, output = s[..., columns.early], s[..., columns.candidate], s[..., columns.output]
    if variant.early_gates:
        if p is not None:
            _unflatten_gates(early, columns.size).addcmul_(p[..., : len(variant.early_gates), :], before.unsqueeze(-2))
        early.sigmoid_()
    if variant.input_activation == "tanh":
        candidate.tanh_()
    if variant.coupled:
        torch.lerp(before, candidate, s[..., columns.input], out=cell)
    else:
        retained = torch.mul(before, s[..., columns.forget], out=cell) if variant.forget_gate else before
        if variant.input_gate:
            torch.addcmul(retained, candidate, s[..., columns.input], out=cell)
        else:
            torch.add(retained, candidate, out=cell)
    if variant.output_gate:
        if p is not None:
            output.addcmul_(p[..., -1, :], cell)
        output.sigmoid_()
    torch.tanh(cell, out=activated) if variant.output_activation == "tanh" else activated.copy_(cell)
    torch.mul(activated, output, out=y) if variant.output_gate else y.copy_(activated)


class _Derivatives(NamedTuple):
    """The local derivatives: of the output with respect to the output gate and the cell state; of the cell state with
    respect to the early gates, the candidate and the previous cell state; of the gates with respect to their inputs.
    """

    output: Tensor | None
    cell: Tensor
    early: Tensor | None
    candidate: Tensor
    before: Tensor | None
    gates: Tensor | None


def _compute_derivatives(
    variant: LSTMVariant, columns: _GateColumns, s: Tensor, before: Tensor, activated: Tensor
) -> _Derivatives:
    """Compute the local derivatives, for one step or for all steps at once."""
    size = columns.size
    i, f, o, z = (s[..., part] for part in (columns.input, columns.forget, columns.output, columns.candidate))
    to_output = (1 - o).mul_(o).mul_(activated) if variant.output_gate else None
    to_cell = 1 - activated * activated if variant.output_activation == "tanh" else torch.ones_like(activated)
    if variant.output_gate:
        to_cell.mul_(o)
    early = s[..., columns.early]
    to_early = (1 - early).mul_(early) if variant.early_gates else None
    if to_early is not None and variant.input_gate:
        to_early[..., :size].mul_(z - before if variant.coupled else z)
    if to_early is not None and "forget" in variant.early_gates:
        to_early[..., columns.forget].mul_(before)
    to_candidate = 1 - z * z if variant.input_activation == "tanh" else torch.ones_like(z)
    if variant.input_gate:
        to_candidate.mul_(i)
    to_before = 1 - i if variant.coupled else f if variant.forget_gate else None
    gates = s[..., columns.gates]
    to_gates = (1 - gates).mul_(gates) if variant.gate_recurrence else None
    return _Derivatives(to_output, to_cell, to_early, to_candidate, to_before, to_gates)


def _backward_step(
    variant: LSTMVariant,
    columns: _GateColumns,
    k: _Derivatives,
    p: Tensor | None,
    d: tuple[Tensor, Tensor, Tensor | None],
    d_s: Tensor,
) -> Tensor:
    """Return the gradient of the previous cell state, and write the gradient of the gates to d_s. d holds the gradients
    of the output, the cell state and the gates.
    """
    d_output, d_cell, d_gates = d
    if d_gates is not None and k.gates is not None:
        d_gates = d_gates * k.gates
    d_cell = torch.addcmul(d_cell, d_output, k.cell)
    if k.output is not None:
        torch.mul(d_output, k.output, out=d_s[..., columns.output])
        if d_gates is not None:
            d_s[..., columns.output].add_(d_gates[..., columns.output])
        if p is not None:
            d_cell.addcmul_(p[..., -1, :], d_s[..., columns.output])
    d_before = d_cell if k.before is None else d_cell * k.before
    if k.early is not None:
        d_early = _unflatten_gates(d_s[..., columns.early], columns.size)
        torch.mul(d_cell.unsqueeze(-2), _unflatten_gates(k.early, columns.size), out=d_early)
        if d_gates is not None:
            d_early.add_(_unflatten_gates(d_gates[..., columns.early], columns.size))
        if p is not None:
            d_before = d_before + (d_early * p[..., : len(variant.early_gates), :]).sum(-2)
    torch.mul(d_cell, k.candidate, out=d_s[..., columns.candidate])
    return d_before


def _peephole_gradient(
    variant: LSTMVariant, columns: _GateColumns, d_s: Tensor, before: Tensor, cell: Tensor
) -> Tensor:
    """Return the gradient of the peepholes for one step or all, (…, P, H), not yet summed over rows and steps."""
    parts = [_unflatten_gates(d_s[..., columns.early], columns.size) * before.unsqueeze(-2)]
    if variant.output_gate:
        parts.append((d_s[..., columns.output] * cell).unsqueeze(-2))
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
        size = y_0.shape[-1]
        columns = _GateColumns(variant, size)
        s = torch.empty_like(a)
        y, c, g = allocate_states(a, y_0), allocate_states(a, c_0), g_0
        activated = torch.empty_like(c[1:])
        R_T = R.transpose(1, 2)
        Q_T = None if Q is None else Q.transpose(1, 2)
        p_row = None if p is None else p.unsqueeze(1)
        views = (a, s, y[:-1], c[:-1], y[1:], c[1:], activated)
        for t, (a_t, s_t, y_before, c_before, y_t, c_t, activated_t) in enumerate(iterate_steps(*views)):
            torch.baddbmm(a_t, apply_mask(y_before, mask), R_T, out=s_t)
            if g is not None and Q_T is not None:
                s_t[..., columns.gates].baddbmm_(g, Q_T)
                g = s_t[..., columns.gates]
            _forward_step(variant, columns, s_t, c_before, p_row, c_t, activated_t, y_t)
            if valid is not None:
                y_t.mul_(valid[t])
                c_t.mul_(valid[t])
        ctx.variant = variant
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(g_0, R, p, Q, mask, s, y, c, activated)
        return y[1:], c[1:], s[..., columns.gates]

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *d_states: Tensor | None) -> Gradients:
        g_0, R, p, Q, mask, s, y, c, activated = ctx.saved_tensors
        variant: LSTMVariant = ctx.variant
        columns = _GateColumns(variant, y.shape[-1])
        derivatives = _compute_derivatives(variant, columns, s, c[:-1], activated)
        p_row = None if p is None else p.unsqueeze(1)
        d_s = torch.empty_like(s)
        d_y, d_c = torch.zeros_like(y[0]), torch.zeros_like(c[0])
        d_g = None if g_0 is None else torch.zeros_like(g_0)
        for d_t, y_t, c_t, g_t, *k in iterate_backward(len(s), d_s, *d_states, *derivatives):
            d_y = d_y if y_t is None else d_y + y_t
            d_c = d_c if c_t is None else d_c + c_t
            d_g = d_g if g_t is None or d_g is None else d_g + g_t
            d_c = _backward_step(variant, columns, _Derivatives(*k), p_row, (d_y, d_c, d_g), d_t)
            d_y = torch.bmm(d_t, R)
            if mask is not None:
                d_y.mul_(mask)
            if Q is not None:
                d_g = torch.bmm(d_t[..., columns.gates], Q)
        d_p = None if p is None else _peephole_gradient(variant, columns, d_s, c[:-1], c[1:]).sum((0, 2))
        d_Q = None
        if g_0 is not None:
            d_Q = weight_gradient(d_s[..., columns.gates], torch.cat([g_0.unsqueeze(0), s[:-1, ..., columns.gates]]))
        return None, d_s, d_y, d_c, d_g, weight_gradient(d_s, apply_mask(y[:-1], mask)), d_p, d_Q, None, None


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, variant: LSTMVariant, total: Tensor, before: Tensor, p: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        columns = _GateColumns(variant, before.shape[-1])
        s = total.clone()
        cell, activated, output = (torch.empty_like(before) for _ in range(3))
        _forward_step(variant, columns, s, before, p, cell, activated, output)
        ctx.variant = variant
        ctx.save_for_backward(s, before, cell, activated, p)
        return output, cell

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, d_output: Tensor, d_cell: Tensor) -> Gradients:
        s, before, cell, activated, p = ctx.saved_tensors
        columns = _GateColumns(ctx.variant, before.shape[-1])
        d_s = torch.empty_like(s)
        d_before = _backward_step(
            ctx.variant,
            columns,
            _compute_derivatives(ctx.variant, columns, s, before, activated),
            p,
            (d_output, d_cell, None),
            d_s,
        )
        d_p = None if p is None else _peephole_gradient(ctx.variant, columns, d_s, before, cell).sum(0)
        return None, d_s, d_before, d_p


def lstm_scan(
    variant: LSTMVariant,
    a_TNBG: Tensor,
    state: tuple[Tensor, ...],
    weights: LSTMWeights,
    mask_NBH: Tensor | None = None,
    valid_TB1: Tensor | None = None,
    *,
    scan: type[torch.autograd.Function] = _Scan,
) -> tuple[Tensor, ...]:
    """Return the state after each step, (T, N, B, …) for each of its tensors: output, cell state and, with gate
    recurrence, the gates. Past the end of a row, output and cell state are zero if `valid_TB1` is given.
    """
    y, c, *g = state
    g_0 = g[0] if g else None
    states = scan.apply(variant, a_TNBG, y, c, g_0, *weights, mask_NBH, valid_TB1)  # type: ignore[no-untyped-call]
    return tuple(states[: len(state)])


def lstm_step(variant: LSTMVariant, total_BG: Tensor, cell_BH: Tensor, p_PH: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return output and cell state after a step without gate recurrence, from the preactivations of all gates."""
    output_BH, after_BH = _Step.apply(variant, total_BG, cell_BH, p_PH)  # type: ignore[no-untyped-call]
    return output_BH, after_BH
