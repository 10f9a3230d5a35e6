"""The LSTM in all its forms with its gradient worked out by hand; see `analytic` for why.

N cells side by side, B rows, T steps, H width of the state, G width of all gates, which are learned gates i, f, o
and then the candidate z. a are the input's gates, R and Q the matrices of the output and of last step's gates,
p the peepholes; m, where given, is what R sees of the output (`keep`).
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.ops.reference_mode import Gradients, differentiable_once
from regard.recurrent.cells import masked
from regard.recurrent.fast.analytic import outer
from regard.recurrent.settings import LSTMVariant


class LSTMWeights(NamedTuple):
    """What an LSTM multiplies its state with; the last two where its form has them."""

    R_NGH: Tensor
    p_NPH: Tensor | None = None
    Q_NPP: Tensor | None = None


class _Rows:
    """Where the parts of the gates stand among their G columns."""

    def __init__(self, form: LSTMVariant, size: int) -> None:
        self.size = size
        self.early = slice(0, len(form.early) * size)
        self.gates = slice(0, len(form.gates) * size)
        self.output = slice(self.early.stop, self.gates.stop)
        self.candidate = slice(self.gates.stop, self.gates.stop + size)
        self.input = slice(0, size)
        self.forget = slice(self.early.stop - size, self.early.stop)


def _fold(x: Tensor, size: int) -> Tensor:
    """(…, P H) → (…, P, H): gates apart."""
    return x.view(*x.shape[:-1], x.shape[-1] // size, size)


def _activate(
    form: LSTMVariant, rows: _Rows, s: Tensor, before: Tensor, p: Tensor | None, cell: Tensor, shown: Tensor, y: Tensor
) -> None:
    """Opens the gates s in place, and writes the cell after the step, what is shown of it, h(c), and the output."""
    early, candidate, output = s[..., rows.early], s[..., rows.candidate], s[..., rows.output]
    if form.early:
        if p is not None:
            _fold(early, rows.size).addcmul_(p[..., : len(form.early), :], before.unsqueeze(-2))
        early.sigmoid_()
    if form.input_activation == "tanh":
        candidate.tanh_()
    if form.coupled:
        torch.lerp(before, candidate, s[..., rows.input], out=cell)
    else:
        kept = torch.mul(before, s[..., rows.forget], out=cell) if form.forget_gate else before
        if form.input_gate:
            torch.addcmul(kept, candidate, s[..., rows.input], out=cell)
        else:
            torch.add(kept, candidate, out=cell)
    if form.output_gate:
        if p is not None:
            output.addcmul_(p[..., -1, :], cell)
        output.sigmoid_()
    torch.tanh(cell, out=shown) if form.output_activation == "tanh" else shown.copy_(cell)
    torch.mul(shown, output, out=y) if form.output_gate else y.copy_(shown)


class _Slopes(NamedTuple):
    """What gradients are multiplied by on their way back through the gates: of the output gate and of the cell for one
    at the output; of the early gates and of the candidate for one at the cell; of the cell before.
    """

    output: Tensor | None
    cell: Tensor
    early: Tensor | None
    candidate: Tensor
    before: Tensor | None
    gates: Tensor | None


def _slopes(form: LSTMVariant, rows: _Rows, s: Tensor, before: Tensor, shown: Tensor) -> _Slopes:
    """For one step or for all at once."""
    size = rows.size
    i, f, o, z = (s[..., part] for part in (rows.input, rows.forget, rows.output, rows.candidate))
    to_output = (1 - o).mul_(o).mul_(shown) if form.output_gate else None
    to_cell = 1 - shown * shown if form.output_activation == "tanh" else torch.ones_like(shown)
    if form.output_gate:
        to_cell.mul_(o)
    early = s[..., rows.early]
    to_early = (1 - early).mul_(early) if form.early else None
    if to_early is not None and form.input_gate:
        to_early[..., :size].mul_(z - before if form.coupled else z)
    if to_early is not None and "forget" in form.early:
        to_early[..., rows.forget].mul_(before)
    to_candidate = 1 - z * z if form.input_activation == "tanh" else torch.ones_like(z)
    if form.input_gate:
        to_candidate.mul_(i)
    to_before = 1 - i if form.coupled else f if form.forget_gate else None
    gates = s[..., rows.gates]
    to_gates = (1 - gates).mul_(gates) if form.gate_recurrence else None
    return _Slopes(to_output, to_cell, to_early, to_candidate, to_before, to_gates)


def _pull(
    form: LSTMVariant, rows: _Rows, k: _Slopes, p: Tensor | None, d: tuple[Tensor, Tensor, Tensor | None], d_s: Tensor
) -> Tensor:
    """The gradient of the cell before the step; that of the gates is written to d_s. d: of output, cell and gates."""
    d_output, d_cell, d_gates = d
    if d_gates is not None and k.gates is not None:
        d_gates = d_gates * k.gates
    d_cell = torch.addcmul(d_cell, d_output, k.cell)
    if k.output is not None:
        torch.mul(d_output, k.output, out=d_s[..., rows.output])
        if d_gates is not None:
            d_s[..., rows.output].add_(d_gates[..., rows.output])
        if p is not None:
            d_cell.addcmul_(p[..., -1, :], d_s[..., rows.output])
    d_before = d_cell if k.before is None else d_cell * k.before
    if k.early is not None:
        d_early = _fold(d_s[..., rows.early], rows.size)
        torch.mul(d_cell.unsqueeze(-2), _fold(k.early, rows.size), out=d_early)
        if d_gates is not None:
            d_early.add_(_fold(d_gates[..., rows.early], rows.size))
        if p is not None:
            d_before = d_before + (d_early * p[..., : len(form.early), :]).sum(-2)
    torch.mul(d_cell, k.candidate, out=d_s[..., rows.candidate])
    return d_before


def _peephole_gradient(form: LSTMVariant, rows: _Rows, d_s: Tensor, before: Tensor, cell: Tensor) -> Tensor:
    """Of one step or of all, (…, P, H); rows and steps are not yet summed over."""
    parts = [_fold(d_s[..., rows.early], rows.size) * before.unsqueeze(-2)]
    if form.output_gate:
        parts.append((d_s[..., rows.output] * cell).unsqueeze(-2))
    return torch.cat(parts, dim=-2)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        form: LSTMVariant,
        a: Tensor,
        y_0: Tensor,
        c_0: Tensor,
        g_0: Tensor | None,
        R: Tensor,
        p: Tensor | None,
        Q: Tensor | None,
        keep: Tensor | None,
        runs: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        size = y_0.shape[-1]
        rows = _Rows(form, size)
        s = torch.empty_like(a)
        y, c = (a.new_empty(a.shape[0] + 1, *first.shape) for first in (y_0, c_0))
        shown = a.new_empty(a.shape[0], *c_0.shape)
        y[0], c[0], g = y_0, c_0, g_0
        R_T = R.transpose(1, 2)
        Q_T = None if Q is None else Q.transpose(1, 2)
        spread = None if p is None else p.unsqueeze(1)
        views = (a, s, y[:-1], c[:-1], y[1:], c[1:], shown)
        each = zip(*(part.unbind(0) for part in views), strict=True)
        for t, (a_t, s_t, y_before, c_before, y_t, c_t, shown_t) in enumerate(each):
            torch.baddbmm(a_t, masked(y_before, keep), R_T, out=s_t)
            if g is not None and Q_T is not None:
                s_t[..., rows.gates].baddbmm_(g, Q_T)
                g = s_t[..., rows.gates]
            _activate(form, rows, s_t, c_before, spread, c_t, shown_t, y_t)
            if runs is not None:
                y_t.mul_(runs[t])
                c_t.mul_(runs[t])
        ctx.form = form
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(g_0, R, p, Q, keep, s, y, c, shown)
        return y[1:], c[1:], s[..., rows.gates]

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *d_states: Tensor | None) -> Gradients:
        g_0, R, p, Q, keep, s, y, c, shown = ctx.saved_tensors
        form: LSTMVariant = ctx.form
        rows = _Rows(form, y.shape[-1])
        slopes = _slopes(form, rows, s, c[:-1], shown)
        each = zip(*(_steps(part, len(s)) for part in slopes), strict=True)
        spread = None if p is None else p.unsqueeze(1)
        d_s = torch.empty_like(s)
        d_y, d_c = torch.zeros_like(y[0]), torch.zeros_like(c[0])
        d_g = None if g_0 is None else torch.zeros_like(g_0)
        given = zip(*(_steps(part, len(s)) for part in d_states), strict=True)
        for d_t, (y_t, c_t, g_t), k in zip(reversed(d_s.unbind(0)), given, each, strict=True):
            d_y = d_y if y_t is None else d_y + y_t
            d_c = d_c if c_t is None else d_c + c_t
            d_g = d_g if g_t is None or d_g is None else d_g + g_t
            d_c = _pull(form, rows, _Slopes(*k), spread, (d_y, d_c, d_g), d_t)
            d_y = torch.bmm(d_t, R)
            if keep is not None:
                d_y.mul_(keep)
            if Q is not None:
                d_g = torch.bmm(d_t[..., rows.gates], Q)
        d_p = None if p is None else _peephole_gradient(form, rows, d_s, c[:-1], c[1:]).sum((0, 2))
        d_Q = None
        if g_0 is not None:
            d_Q = outer(d_s[..., rows.gates], torch.cat([g_0.unsqueeze(0), s[:-1, ..., rows.gates]]))
        return None, d_s, d_y, d_c, d_g, outer(d_s, masked(y[:-1], keep)), d_p, d_Q, None, None


def _steps(part: Tensor | None, steps: int) -> list[Tensor] | list[None]:
    """The parts of each step, the last first."""
    return [None] * steps if part is None else list(reversed(part.unbind(0)))


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, form: LSTMVariant, total: Tensor, before: Tensor, p: Tensor | None) -> tuple[Tensor, Tensor]:
        rows = _Rows(form, before.shape[-1])
        s = total.clone()
        cell, shown, output = (torch.empty_like(before) for _ in range(3))
        _activate(form, rows, s, before, p, cell, shown, output)
        ctx.form = form
        ctx.save_for_backward(s, before, cell, shown, p)
        return output, cell

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, d_output: Tensor, d_cell: Tensor) -> Gradients:
        s, before, cell, shown, p = ctx.saved_tensors
        rows = _Rows(ctx.form, before.shape[-1])
        d_s = torch.empty_like(s)
        d_before = _pull(ctx.form, rows, _slopes(ctx.form, rows, s, before, shown), p, (d_output, d_cell, None), d_s)
        d_p = None if p is None else _peephole_gradient(ctx.form, rows, d_s, before, cell).sum(0)
        return None, d_s, d_before, d_p


def lstm_scan(
    form: LSTMVariant,
    a_TNBG: Tensor,
    state: tuple[Tensor, ...],
    weights: LSTMWeights,
    keep_NBH: Tensor | None = None,
    runs_TB1: Tensor | None = None,
    *,
    scan: type[torch.autograd.Function] = _Scan,
) -> tuple[Tensor, ...]:
    """The parts of the state after each step, (T, N, B, …) each: output, cell and, with gate recurrence, the gates.
    Where a row does not run any more, output and cell are zero.
    """
    y, c, *g = state
    found = scan.apply(form, a_TNBG, y, c, g[0] if g else None, *weights, keep_NBH, runs_TB1)  # type: ignore[no-untyped-call]
    return tuple(found[: len(state)])


def lstm_step(form: LSTMVariant, total_BG: Tensor, cell_BH: Tensor, p_PH: Tensor | None) -> tuple[Tensor, Tensor]:
    """Output and cell after a step without gate recurrence, from all shares of the gates together."""
    output_BH, after_BH = _Step.apply(form, total_BG, cell_BH, p_PH)  # type: ignore[no-untyped-call]
    return output_BH, after_BH
