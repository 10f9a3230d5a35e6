"""The GRU with its gradient worked out by hand. Autograd would keep and revisit some forty small tensors a
step, and add to the weights' gradient at each; here a step is six operations forward and seven back, and the
weights' gradient is one product at the end.

    u = R h + b,  r = σ(a_r + u_r),  z = σ(a_z + u_z),  n = tanh(a_n + r ⊙ u_n),  h' = n + z ⊙ (h − n)

N cells side by side (the directions of a layer), B rows, T steps, H width of the state, G = 3 H: the gates
r, z, n side by side. a are the input's gates, u the state's.
"""

from typing import Any

import torch
from torch import Tensor


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, start: Tensor, R: Tensor, b: Tensor) -> Tensor:
        steps, cells, rows, width = a.shape
        size = width // 3
        h, u = a.new_empty(steps + 1, cells, rows, size), torch.empty_like(a)
        rz, n = a.new_empty(steps, cells, rows, 2 * size), a.new_empty(steps, cells, rows, size)
        h[0] = start
        R_T, b_row = R.transpose(1, 2), b.unsqueeze(1)
        views = (h[:-1], h[1:], u, u[..., : 2 * size], u[..., 2 * size :], a[..., : 2 * size], a[..., 2 * size :])
        gates = (rz, rz[..., :size], rz[..., size:], n)
        each = zip(*(part.unbind(0) for part in (*views, *gates)), strict=True)
        for before, after, u_t, u_rz, u_n, a_rz, a_n, rz_t, r, z, n_t in each:
            torch.baddbmm(b_row, before, R_T, out=u_t)
            torch.add(a_rz, u_rz, out=rz_t).sigmoid_()
            torch.addcmul(a_n, r, u_n, out=n_t).tanh_()
            torch.lerp(n_t, before, z, out=after)
        ctx.save_for_backward(R, h, u, rz, n)
        return h[1:]

    @staticmethod
    def backward(ctx: Any, d_states: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        R, h, u, rz, n = ctx.saved_tensors
        size = n.shape[-1]
        r, z, u_n = rz[..., :size], rz[..., size:], u[..., 2 * size :]
        # What each gate's gradient is multiplied by, for all steps at once.
        to_n = (1 - z).mul_(1 - n * n)
        to_z = (h[:-1] - n).mul_(z).mul_(1 - z)
        to_r = (1 - r).mul_(r).mul_(u_n)
        d_u, d_n = torch.empty_like(u), torch.empty_like(n)
        d_h = torch.zeros_like(h[0])
        parts = (d_states, to_n, to_z, to_r, r, z, d_n, d_u)
        grads = (d_u[..., :size], d_u[..., size : 2 * size], d_u[..., 2 * size :])
        each = zip(*(reversed(part.unbind(0)) for part in (*parts, *grads)), strict=True)
        for d_state, k_n, k_z, k_r, r_t, z_t, dn_t, du_t, du_r, du_z, du_n in each:
            d_after = d_h.add_(d_state)
            torch.mul(d_after, k_n, out=dn_t)
            torch.mul(d_after, k_z, out=du_z)
            torch.mul(dn_t, k_r, out=du_r)
            torch.mul(dn_t, r_t, out=du_n)
            d_h = torch.baddbmm(d_after * z_t, du_t, R)
        d_a = torch.cat([d_u[..., : 2 * size], d_n], dim=-1)
        flat_u, flat_h = d_u.transpose(0, 1).flatten(1, 2), h[:-1].transpose(0, 1).flatten(1, 2)
        return d_a, d_h, flat_u.transpose(1, 2) @ flat_h, flat_u.sum(1)


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a_BG: Tensor, u_BG: Tensor, h_BH: Tensor) -> Tensor:
        size = h_BH.shape[-1]
        rz = (a_BG[:, : 2 * size] + u_BG[:, : 2 * size]).sigmoid_()
        n = torch.addcmul(a_BG[:, 2 * size :], rz[:, :size], u_BG[:, 2 * size :]).tanh_()
        ctx.save_for_backward(rz, n, u_BG, h_BH)
        return torch.lerp(n, h_BH, rz[:, size:])

    @staticmethod
    def backward(ctx: Any, d_after: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rz, n, u_BG, h_BH = ctx.saved_tensors
        size = h_BH.shape[-1]
        r, z = rz[:, :size], rz[:, size:]
        d_h = d_after * z
        d_n = (d_after - d_h).mul_(1 - n * n)
        d_rz = torch.cat([d_n * u_BG[:, 2 * size :], (h_BH - n).mul_(d_after)], dim=-1).mul_(rz).mul_(1 - rz)
        return torch.cat([d_rz, d_n], dim=-1), torch.cat([d_rz, d_n * r], dim=-1), d_h


def gru_scan(a_TNBG: Tensor, h_NBH: Tensor, R_NGH: Tensor, b_NG: Tensor) -> Tensor:
    """The states after each step (T, N, B, H), from the input's gates and the states before the first."""
    states: Tensor = _Scan.apply(a_TNBG, h_NBH, R_NGH, b_NG)  # type: ignore[no-untyped-call]
    return states


def gru_step(a_BG: Tensor, u_BG: Tensor, h_BH: Tensor) -> Tensor:
    """The next state, from the input's gates, the state's gates, and the state."""
    after: Tensor = _Step.apply(a_BG, u_BG, h_BH)  # type: ignore[no-untyped-call]
    return after
