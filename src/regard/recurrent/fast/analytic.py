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


def transpose_weights(R_NGH: Tensor) -> Tensor:
    """Return a transposed copy. With few rows, a product with a transposed view can take twice as long."""
    return R_NGH.transpose(1, 2).contiguous()


def begin_gradient(d_TNBX: Tensor | None, like_TNBX: Tensor) -> Tensor:
    """Return a tensor for the gradients of the states before and after each step, (T + 1, N, B, X). It starts with the
    gradients d of the outputs of the scan, and each step of the backward pass adds that of the next state.
    """
    total = like_TNBX.new_empty(len(like_TNBX) + 1, *like_TNBX.shape[1:])
    if d_TNBX is None:
        return total.zero_()
    total[0].zero_()
    total[1:] = d_TNBX
    return total


def add_product(total_NBH: Tensor, d_NBG: Tensor, R_NGH: Tensor, mask_NBH: Tensor | None) -> None:
    """Add the gradient of the state, where d is the gradient of R h, and the mask is that on h."""
    if mask_NBH is None:
        total_NBH.baddbmm_(d_NBG, R_NGH)
    else:
        total_NBH.addcmul_(torch.bmm(d_NBG, R_NGH), mask_NBH)


def iterate_steps(steps: int, *parts: Tensor | None) -> Iterator[tuple[Any, ...]]:
    """Yield the parts of each step. A part can be None. Views of all steps are faster than a slice at each step."""
    return zip(*(repeat(None, steps) if part is None else part.unbind(0) for part in parts), strict=True)


def iterate_backward(steps: int, *parts: Tensor | None) -> Iterator[tuple[Any, ...]]:
    """Yield the parts of each step, the last step first."""
    return zip(*(repeat(None, steps) if part is None else reversed(part.unbind(0)) for part in parts), strict=True)


def unflatten_gates(x: Tensor, size: int) -> Tensor:
    """(…, P H) → (…, P, H): one axis for the gates, one for the units."""
    return x.view(*x.shape[:-1], x.shape[-1] // size, size)


class _RNN(torch.autograd.Function):
    """h' = φ(a + R h)."""

    @staticmethod
    def forward(
        ctx: Any, activation: str, a: Tensor, h_0: Tensor, R: Tensor, mask: Tensor | None, valid: Tensor | None
    ) -> Tensor:
        h, R_T = allocate_states(a, h_0), transpose_weights(R)
        for a_t, before, after, valid_t in iterate_steps(len(a), a, h[:-1], h[1:], valid):
            torch.baddbmm(a_t, apply_mask(before, mask), R_T, out=after)
            after.tanh_() if activation == "tanh" else after.relu_()
            if valid_t is not None:
                after.mul_(valid_t)
        ctx.activation = activation
        ctx.save_for_backward(R, h, mask)
        return h[1:]

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, d_states: Tensor) -> Gradients:
        R, h, mask = ctx.saved_tensors
        k = 1 - h[1:].square() if ctx.activation == "tanh" else (h[1:] > 0).to(h.dtype)
        d_a, d_h = torch.empty_like(k), begin_gradient(d_states, k)
        for d_after, d_before, k_t, d_t in iterate_backward(len(k), d_h[1:], d_h[:-1], k, d_a):
            torch.mul(d_after, k_t, out=d_t)
            add_product(d_before, d_t, R, mask)
        return None, d_a, d_h[0], weight_gradient(d_a, apply_mask(h[:-1], mask)), None, None


def _gru_derivatives(z: Tensor, n: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Return the derivatives of the next state with respect to the preactivations of z and of n, for all steps."""
    return (before - n).mul_(z).mul_(1 - z), (1 - z).mul_(1 - n * n)


class _GRU(torch.autograd.Function):
    """u = R h + b,  r = σ(a_r + u_r),  z = σ(a_z + u_z),  n = tanh(a_n + r ⊙ u_n),  h' = n + z ⊙ (h − n)."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, h_0: Tensor, R: Tensor, b: Tensor, mask: Tensor | None) -> Tensor:
        size = h_0.shape[-1]
        h, n, R_T = allocate_states(a, h_0), a.new_empty(*a.shape[:-1], size), transpose_weights(R)
        s = torch.cat([a[..., : 2 * size], torch.zeros_like(n)], dim=-1).add_(b.unsqueeze(1))  # becomes r, z, u_n
        views = (h[:-1], h[1:], s, s[..., : 2 * size], *s.chunk(3, dim=-1), a[..., 2 * size :], n)
        for before, after, s_t, rz, r, z, u_n, a_n, n_t in iterate_steps(len(a), *views):
            s_t.baddbmm_(apply_mask(before, mask), R_T)
            rz.sigmoid_()
            torch.addcmul(a_n, r, u_n, out=n_t).tanh_()
            torch.lerp(n_t, before, z, out=after)
        ctx.save_for_backward(R, h, s, n, mask)
        return h[1:]

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, d_states: Tensor) -> Gradients:
        R, h, s, n, mask = ctx.saved_tensors
        size = n.shape[-1]
        r, z, u_n = s.chunk(3, dim=-1)
        k_z, k_n = _gru_derivatives(z, n, h[:-1])
        k = torch.cat([(1 - r).mul_(r).mul_(u_n).mul_(k_n), k_z, k_n * r], dim=-1)
        d_u, d_h = torch.empty_like(s), begin_gradient(d_states, n)
        gates = (d_h[1:].unsqueeze(-2), unflatten_gates(k, size), unflatten_gates(d_u, size))
        for d_row, k_t, d_t, d_after, d_before, z_t, du_t in iterate_backward(
            len(s), *gates, d_h[1:], d_h[:-1], z, d_u
        ):
            torch.mul(d_row, k_t, out=d_t)
            d_before.addcmul_(d_after, z_t)
            add_product(d_before, du_t, R, mask)
        d_a = torch.cat([d_u[..., : 2 * size], d_h[1:] * k_n], dim=-1)
        flat_u = flatten_steps(d_u)
        return d_a, d_h[0], flat_u.transpose(1, 2) @ flatten_steps(apply_mask(h[:-1], mask)), flat_u.sum(1), None


class _ResetBeforeGRU(torch.autograd.Function):
    """r = σ(a_r + R_r h),  z = σ(a_z + R_z h),  n = tanh(a_n + R_n (r ⊙ h)),  h' = n + z ⊙ (h − n)."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, h_0: Tensor, R: Tensor, mask: Tensor | None) -> Tensor:
        size = h_0.shape[-1]
        h, s = allocate_states(a, h_0), a.clone()
        R_rz, R_n = transpose_weights(R[:, : 2 * size]), transpose_weights(R[:, 2 * size :])
        views = (h[:-1], h[1:], s[..., : 2 * size], *s.chunk(3, dim=-1))
        for before, after, rz, r, z, n in iterate_steps(len(a), *views):
            masked = apply_mask(before, mask)
            rz.baddbmm_(masked, R_rz).sigmoid_()
            n.baddbmm_(r * masked, R_n).tanh_()
            torch.lerp(n, before, z, out=after)
        ctx.save_for_backward(R, h, s, mask)
        return h[1:]

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, d_states: Tensor) -> Gradients:
        R, h, s, mask = ctx.saved_tensors
        size = h.shape[-1]
        r, z, n = s.chunk(3, dim=-1)
        R_rz, R_n = R[:, : 2 * size], R[:, 2 * size :]
        masked = apply_mask(h[:-1], mask)
        k_zn = torch.stack(_gru_derivatives(z, n, h[:-1]), dim=-2)
        k_r = (1 - r).mul_(r).mul_(masked)
        d_a, d_h = torch.empty_like(s), begin_gradient(d_states, n)
        d_r, _, d_n = d_a.chunk(3, dim=-1)
        gates = (d_h[1:].unsqueeze(-2), k_zn, unflatten_gates(d_a[..., size:], size), k_r, r, z)
        gradients = (d_h[1:], d_h[:-1], d_a[..., : 2 * size], d_r, d_n)
        for d_row, kzn_t, dzn_t, kr_t, r_t, z_t, d_after, d_before, drz_t, dr_t, dn_t in iterate_backward(
            len(s), *gates, *gradients
        ):
            torch.mul(d_row, kzn_t, out=dzn_t)
            d_reset = torch.bmm(dn_t, R_n)
            torch.mul(d_reset, kr_t, out=dr_t)
            d_masked = d_reset.mul_(r_t).baddbmm_(drz_t, R_rz)
            d_before.addcmul_(d_after, z_t)
            d_before.add_(d_masked) if mask is None else d_before.addcmul_(d_masked, mask)
        d_R = torch.cat(
            [weight_gradient(d_a[..., : 2 * size], masked), weight_gradient(d_a[..., 2 * size :], r * masked)], dim=1
        )
        return d_a, d_h[0], d_R, None


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
