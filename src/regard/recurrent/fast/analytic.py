"""Scans with analytic gradients. Autograd would save and revisit dozens of small tensors per step, and accumulate the
weight gradient at every step. Here a step takes a few operations in each direction, and the weight gradient is one
matrix product at the end.

N cells in parallel (the directions of a layer), B rows, T steps, H state width, G width of all gates. a is the
projection of the input to the gates, R the recurrent matrix, `mask` an optional dropout mask on the state before R.
"""

from collections.abc import Iterator
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from regard.ops.reference_mode import Gradients, differentiable_once
from regard.recurrent.cells import apply_mask


def flatten_steps(x_TNBX: Tensor) -> Tensor:
    """Merge steps and rows into one axis → (N, T B, X)."""
    return x_TNBX.transpose(0, 1).flatten(1, 2)


def weight_gradient(d_TNBG: Tensor, x_TNBH: Tensor) -> Tensor:
    """Return the gradient of a matrix R, summed over all steps, where d is the gradient of R x → (N, G, H)."""
    return flatten_steps(d_TNBG).transpose(1, 2) @ flatten_steps(x_TNBH)


def allocate_states(a_TNBG: Tensor, initial_NBH: Tensor) -> Tensor:
    """Return a tensor for the states before and after each step, (T + 1, N, B, H), with the initial states."""
    states = a_TNBG.new_empty(len(a_TNBG) + 1, *initial_NBH.shape)
    states[0] = initial_NBH
    return states


def iterate_steps(*parts: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield the parts of each step."""
    return zip(*(part.unbind(0) for part in parts), strict=True)


def iterate_backward(steps: int, *parts: Tensor | None) -> Iterator[tuple[Any, ...]]:
    """Yield the parts of each step, the last step first. A part can be None."""
    return zip(*(repeat(None, steps) if part is None else reversed(part.unbind(0)) for part in parts), strict=True)


class _RNN(torch.autograd.Function):
    """h' = φ(a + R h)."""

    @staticmethod
    def forward(
        ctx: Any, activation: str, a: Tensor, h_0: Tensor, R: Tensor, mask: Tensor | None, valid: Tensor | None
    ) -> Tensor:
        h, R_T = allocate_states(a, h_0), R.transpose(1, 2)
        for t, (a_t, before, after) in enumerate(iterate_steps(a, h[:-1], h[1:])):
            torch.baddbmm(a_t, apply_mask(before, mask), R_T, out=after)
            after.tanh_() if activation == "tanh" else after.relu_()
            if valid is not None:
                after.mul_(valid[t])
        ctx.activation = activation
        ctx.save_for_backward(R, h, mask)
        return h[1:]

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, d_states: Tensor) -> Gradients:
        R, h, mask = ctx.saved_tensors
        derivative = 1 - h[1:].square() if ctx.activation == "tanh" else (h[1:] > 0).to(h.dtype)
        d_a = torch.empty_like(derivative)
        d_h = torch.zeros_like(h[0])
        for d_state, k, d_t in iterate_backward(len(d_a), d_states, derivative, d_a):
            torch.mul(d_h.add_(d_state), k, out=d_t)
            d_h = torch.bmm(d_t, R)
            if mask is not None:
                d_h.mul_(mask)
        return None, d_a, d_h, weight_gradient(d_a, apply_mask(h[:-1], mask)), None, None


def _gru_derivatives(r: Tensor, z: Tensor, n: Tensor, before: Tensor, reset: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return three derivatives for all steps at once: of the next state with respect to the preactivations of n and of
    z, and of r ⊙ reset with respect to the preactivation of r.
    """
    return (1 - z).mul_(1 - n * n), (before - n).mul_(z).mul_(1 - z), (1 - r).mul_(r).mul_(reset)


class _GRU(torch.autograd.Function):
    """u = R h + b,  r = σ(a_r + u_r),  z = σ(a_z + u_z),  n = tanh(a_n + r ⊙ u_n),  h' = n + z ⊙ (h − n)."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, h_0: Tensor, R: Tensor, b: Tensor, mask: Tensor | None) -> Tensor:
        size = h_0.shape[-1]
        h, u = allocate_states(a, h_0), torch.empty_like(a)
        rz, n = a.new_empty(*a.shape[:-1], 2 * size), torch.empty_like(h[1:])
        R_T, b_row = R.transpose(1, 2), b.unsqueeze(1)
        views = (h[:-1], h[1:], u, u[..., : 2 * size], u[..., 2 * size :], a[..., : 2 * size], a[..., 2 * size :])
        gates = (rz, rz[..., :size], rz[..., size:], n)
        for before, after, u_t, u_rz, u_n, a_rz, a_n, rz_t, r, z, n_t in iterate_steps(*views, *gates):
            torch.baddbmm(b_row, apply_mask(before, mask), R_T, out=u_t)
            torch.add(a_rz, u_rz, out=rz_t).sigmoid_()
            torch.addcmul(a_n, r, u_n, out=n_t).tanh_()
            torch.lerp(n_t, before, z, out=after)
        ctx.save_for_backward(R, h, u, rz, n, mask)
        return h[1:]

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, d_states: Tensor) -> Gradients:
        R, h, u, rz, n, mask = ctx.saved_tensors
        size = n.shape[-1]
        r, z, u_n = rz[..., :size], rz[..., size:], u[..., 2 * size :]
        d_u, d_n = torch.empty_like(u), torch.empty_like(n)
        d_h = torch.zeros_like(h[0])
        parts = (d_states, *_gru_derivatives(r, z, n, h[:-1], u_n), r, z, d_n, d_u, *d_u.chunk(3, dim=-1))
        for d_state, k_n, k_z, k_r, r_t, z_t, dn_t, du_t, du_r, du_z, du_n in iterate_backward(len(u), *parts):
            d_after = d_h.add_(d_state)
            torch.mul(d_after, k_n, out=dn_t)
            torch.mul(d_after, k_z, out=du_z)
            torch.mul(dn_t, k_r, out=du_r)
            torch.mul(dn_t, r_t, out=du_n)
            if mask is None:
                d_h = torch.baddbmm(d_after * z_t, du_t, R)
            else:
                d_h = torch.addcmul(d_after * z_t, torch.bmm(du_t, R), mask)
        d_a = torch.cat([d_u[..., : 2 * size], d_n], dim=-1)
        flat_u = flatten_steps(d_u)
        return d_a, d_h, flat_u.transpose(1, 2) @ flatten_steps(apply_mask(h[:-1], mask)), flat_u.sum(1), None


class _ResetBeforeGRU(torch.autograd.Function):
    """r = σ(a_r + R_r h),  z = σ(a_z + R_z h),  n = tanh(a_n + R_n (r ⊙ h)),  h' = n + z ⊙ (h − n)."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, h_0: Tensor, R: Tensor, mask: Tensor | None) -> Tensor:
        size = h_0.shape[-1]
        h, s = allocate_states(a, h_0), torch.empty_like(a)
        R_rz, R_n = R[:, : 2 * size].transpose(1, 2), R[:, 2 * size :].transpose(1, 2)
        views = (h[:-1], h[1:], s[..., : 2 * size], s[..., 2 * size :], a[..., : 2 * size], a[..., 2 * size :])
        for before, after, rz, n, a_rz, a_n in iterate_steps(*views):
            masked = apply_mask(before, mask)
            torch.baddbmm(a_rz, masked, R_rz, out=rz).sigmoid_()
            torch.baddbmm(a_n, rz[..., :size] * masked, R_n, out=n).tanh_()
            torch.lerp(n, before, rz[..., size:], out=after)
        ctx.save_for_backward(R, h, s, mask)
        return h[1:]

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, d_states: Tensor) -> Gradients:
        R, h, s, mask = ctx.saved_tensors
        size = h.shape[-1]
        r, z, n = s.split(size, dim=-1)
        R_rz, R_n = R[:, : 2 * size], R[:, 2 * size :]
        masked = apply_mask(h[:-1], mask)
        d_a = torch.empty_like(s)
        d_h = torch.zeros_like(h[0])
        derivatives = _gru_derivatives(r, z, n, h[:-1], masked)
        parts = (d_states, *derivatives, r, z, d_a[..., : 2 * size], *d_a.chunk(3, dim=-1))
        for d_state, k_n, k_z, k_r, r_t, z_t, d_rz, d_r, d_z, d_n in iterate_backward(len(s), *parts):
            d_after = d_h.add_(d_state)
            torch.mul(d_after, k_n, out=d_n)
            torch.mul(d_after, k_z, out=d_z)
            d_reset = torch.bmm(d_n, R_n)
            torch.mul(d_reset, k_r, out=d_r)
            d_masked = torch.baddbmm(d_reset.mul_(r_t), d_rz, R_rz)
            d_h = torch.addcmul(d_after * z_t, d_masked, mask) if mask is not None else d_masked.addcmul_(d_after, z_t)
        d_R = torch.cat(
            [weight_gradient(d_a[..., : 2 * size], masked), weight_gradient(d_a[..., 2 * size :], r * masked)], dim=1
        )
        return d_a, d_h, d_R, None


def rnn_scan(
    activation: str,
    a_TNBG: Tensor,
    h_NBH: Tensor,
    R_NGH: Tensor,
    mask_NBH: Tensor | None = None,
    valid_TB1: Tensor | None = None,
) -> Tensor:
    """Return the states after each step, (T, N, B, H), from the projected input and the initial states. Past the end of
    a row they are zero if `valid_TB1` is given.
    """
    states: Tensor = _RNN.apply(activation, a_TNBG, h_NBH, R_NGH, mask_NBH, valid_TB1)  # type: ignore[no-untyped-call]
    return states


def gru_scan(a_TNBG: Tensor, h_NBH: Tensor, R_NGH: Tensor, b_NG: Tensor | None, mask_NBH: Tensor | None) -> Tensor:
    """Return the states after each step. The GRU resets after the product with R if it has a bias b, else before."""
    if b_NG is None:
        reset_before: Tensor = _ResetBeforeGRU.apply(a_TNBG, h_NBH, R_NGH, mask_NBH)  # type: ignore[no-untyped-call]
        return reset_before
    states: Tensor = _GRU.apply(a_TNBG, h_NBH, R_NGH, b_NG, mask_NBH)  # type: ignore[no-untyped-call]
    return states


class _GRUStep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a_BG: Tensor, u_BG: Tensor, h_BH: Tensor) -> Tensor:
        size = h_BH.shape[-1]
        rz = (a_BG[:, : 2 * size] + u_BG[:, : 2 * size]).sigmoid_()
        n = torch.addcmul(a_BG[:, 2 * size :], rz[:, :size], u_BG[:, 2 * size :]).tanh_()
        ctx.save_for_backward(rz, n, u_BG, h_BH)
        return torch.lerp(n, h_BH, rz[:, size:])

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, d_after: Tensor) -> Gradients:
        rz, n, u_BG, h_BH = ctx.saved_tensors
        size = h_BH.shape[-1]
        r, z = rz[:, :size], rz[:, size:]
        d_h = d_after * z
        d_n = (d_after - d_h).mul_(1 - n * n)
        d_rz = torch.cat([d_n * u_BG[:, 2 * size :], (h_BH - n).mul_(d_after)], dim=-1).mul_(rz).mul_(1 - rz)
        return torch.cat([d_rz, d_n], dim=-1), torch.cat([d_rz, d_n * r], dim=-1), d_h


def gru_step(a_BG: Tensor, u_BG: Tensor, h_BH: Tensor) -> Tensor:
    """Return the next state, from the projections of input and state, and the state."""
    after: Tensor = _GRUStep.apply(a_BG, u_BG, h_BH)  # type: ignore[no-untyped-call]
    return after
