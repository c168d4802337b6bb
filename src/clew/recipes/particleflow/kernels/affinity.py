"""The affinity matrix A of every bin, stored once in half precision, and the gradient of the distance features."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

TILES = {"near": (128, 64, 4, 3), "pull": (64, 64, 4, 1)}
"""Rows, columns, warps and stages: the fastest of 15 and of 8 configurations on an H200."""


@triton.jit
def _affinity_tile(xi, xj, qi, qj, valid_i, valid_j):
    """Return A, one over the distance, and the squared distance. exp(-0.1 x) is computed as exp2(-0.1 log2(e) x)."""
    apart = tl.maximum(qi[:, None] + qj[None, :] - 2.0 * tl.dot(xi, tl.trans(xj)), 1e-6)
    inverse = tl.rsqrt(apart)
    near = tl.exp2(-0.14426950408889634 * apart * inverse)
    return tl.where(valid_i[:, None] & valid_j[None, :], near, 0.0), inverse, apart


@triton.jit
def _affinity_kernel(
    x, square, index, fill, norm, near, bins, size, d: tl.constexpr, bm: tl.constexpr, bn: tl.constexpr
):
    bin_index = tl.program_id(1)
    count, offset, feature = tl.load(fill + bin_index % bins), bin_index * size, tl.arange(0, d)
    m = tl.program_id(0) * bm + tl.arange(0, bm)
    i = tl.load(index + offset + m).to(tl.int64)
    xi, qi = tl.load(x + i[:, None] * d + feature[None, :]), tl.load(square + i)
    degree = tl.zeros([bm], tl.float32)
    for begin in range(0, size, bn):
        n = begin + tl.arange(0, bn)
        j = tl.load(index + offset + n).to(tl.int64)
        xj, qj = tl.load(x + j[:, None] * d + feature[None, :]), tl.load(square + j)
        a, _, _ = _affinity_tile(xi, xj, qi, qj, m < count, n < count)
        degree += tl.sum(a, 1)
        tl.store(near + (offset + m).to(tl.int64)[:, None] * size + n[None, :], a.to(near.dtype.element_ty))
    tl.store(norm + offset + m, tl.where(m < count, tl.rsqrt(degree + 1e-6), 0.0))


@triton.jit
def _affinity_backward_kernel(
    x, square, index, fill, push, degree, gradient, bins, size, d: tl.constexpr, bm: tl.constexpr, bn: tl.constexpr
):
    """Compute x_i sum_j W_ij - sum_j W_ij x_j, with W = A' / distance (M + M^T + degree_i + degree_j)."""
    bin_index = tl.program_id(1)
    count, offset, feature = tl.load(fill + bin_index % bins), bin_index * size, tl.arange(0, d)
    m = tl.program_id(0) * bm + tl.arange(0, bm)
    i = tl.load(index + offset + m).to(tl.int64)
    xi, qi = tl.load(x + i[:, None] * d + feature[None, :]), tl.load(square + i)
    gi = tl.load(degree + offset + m)
    total, sums = tl.zeros([bm, d], tl.float32), tl.zeros([bm], tl.float32)
    for begin in range(0, size, bn):
        n = begin + tl.arange(0, bn)
        j = tl.load(index + offset + n).to(tl.int64)
        xj, qj = tl.load(x + j[:, None] * d + feature[None, :]), tl.load(square + j)
        gj = tl.load(degree + offset + n)
        to = tl.load(push + (offset + m).to(tl.int64)[:, None] * size + n[None, :]).to(tl.float32)
        back = tl.load(push + (offset + n).to(tl.int64)[:, None] * size + m[None, :]).to(tl.float32)
        a, inverse, apart = _affinity_tile(xi, xj, qi, qj, m < count, n < count)
        w = -0.1 * a * inverse * (to + tl.trans(back) + gi[:, None] + gj[None, :])
        w = tl.where((apart > 1e-6) & (m[:, None] != n[None, :]), w, 0.0).to(xj.dtype)
        sums += tl.sum(w.to(tl.float32), 1)
        total = tl.dot(w, xj, total)
    result = xi.to(tl.float32) * sums[:, None] - total
    tl.store(gradient + i[:, None] * d + feature[None, :], result.to(gradient.dtype.element_ty))


def affinity(x: Tensor, square: Tensor, index: Tensor, fill: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return A (stacks * bins, size, size) in the precision of `x`, and the degrees to the power -1/2 per slot."""
    bin_count = len(index) // size
    near, norm = x.new_empty(bin_count, size, size), square.new_empty(len(index))
    bm, bn, warps, stages = _tile_sizes("near", size)
    _affinity_kernel[(size // bm, bin_count)](
        x,
        square,
        index,
        fill,
        norm,
        near,
        len(fill),
        size,
        d=x.shape[-1],
        bm=bm,
        bn=bn,
        num_warps=warps,
        num_stages=stages,
    )
    return near, norm


def affinity_backward(x: Tensor, square: Tensor, index: Tensor, fill: Tensor, push: Tensor, degree: Tensor) -> Tensor:
    """Return the gradient of x.

    Args:
        x: Distance features (stacks, rows, d).
        square: Squared norm of each row.
        index: The row of each slot; see `sorting`.
        fill: Elements in each bin.
        push: Gradient of A without that of the degrees (stacks * bins, size, size).
        degree: Gradient of the degrees, per slot.
    """
    gradient, size = x.new_empty(x.shape), push.shape[-1]
    bm, bn, warps, stages = _tile_sizes("pull", size)
    _affinity_backward_kernel[(size // bm, len(push))](
        x,
        square,
        index,
        fill,
        push,
        degree,
        gradient,
        len(fill),
        size,
        d=x.shape[-1],
        bm=bm,
        bn=bn,
        num_warps=warps,
        num_stages=stages,
    )
    return gradient


def _tile_sizes(name: str, size: int) -> tuple[int, int, int, int]:
    """Return the tile sizes of a kernel, reduced until they divide a bin."""
    bm, bn, warps, stages = TILES[name]
    while size % bm:
        bm //= 2
    while size % bn:
        bn //= 2
    return bm, bn, warps, stages
