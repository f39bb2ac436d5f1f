"""The standard Triton kernels: a tiled matrix product, in full single precision or of 16 bits, a softmax of whole rows.

Imported only where Triton is installed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

_TILES = (
    (128, 128, 16, 8, 2), (128, 64, 16, 4, 3), (64, 128, 16, 4, 3), (64, 64, 32, 4, 3), (64, 64, 16, 4, 3),
    (64, 32, 32, 4, 3), (32, 32, 32, 4, 3), (128, 32, 32, 4, 3),
)  # fmt: skip
_TENSOR_CORE_TILES = (
    (128, 256, 64, 8, 3), (128, 256, 64, 8, 4), (256, 128, 64, 8, 3), (128, 128, 64, 8, 4), (128, 128, 64, 4, 4),
    (64, 256, 64, 4, 4), (64, 128, 64, 4, 4), (128, 64, 64, 4, 4), (64, 64, 64, 4, 5), (16, 128, 128, 4, 5),
    (32, 64, 128, 4, 5),
)  # fmt: skip


def _configs(tiles: tuple[tuple[int, int, int, int, int], ...]) -> list[triton.Config]:
    return [
        triton.Config({"BM": bm, "BN": bn, "BK": bk, "GROUP": 8}, num_warps=warps, num_stages=stages)
        for bm, bn, bk, warps, stages in tiles
    ]


@triton.jit
def _matmul(
    a_ptr, b_ptr, c_ptr, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """C[z] = A[z] * B[z], all contiguous; blocks in groups of rows, for the cache."""
    tile, z = tl.program_id(0), tl.program_id(1)
    n_m, n_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    first = tile // (GROUP * n_n) * GROUP
    rows = min(n_m - first, GROUP)
    i = first + tile % (GROUP * n_n) % rows
    j = tile % (GROUP * n_n) // rows
    m, n, k = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
    a_at = a_ptr + z * M * K + m[:, None] * K + k[None, :]
    b_at = b_ptr + z * K * N + k[:, None] * N + n[None, :]
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(0, tl.cdiv(K, BK)):
        left = K - step * BK
        a = tl.load(a_at, mask=(m[:, None] < M) & (k[None, :] < left), other=0.0)
        b = tl.load(b_at, mask=(k[:, None] < left) & (n[None, :] < N), other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")  # which says nothing of 16 bits
        a_at += BK
        b_at += BK * N
    c = total.to(c_ptr.dtype.element_ty)
    tl.store(c_ptr + z * M * N + m[:, None] * N + n[None, :], c, mask=(m[:, None] < M) & (n[None, :] < N))


_single = triton.autotune(configs=_configs(_TILES), key=["M", "N", "K"])(_matmul)
_half = triton.autotune(configs=_configs(_TENSOR_CORE_TILES), key=["M", "N", "K"])(_matmul)


@triton.jit
def _softmax(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + at, mask=at < n, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * n + at, e / tl.sum(e, axis=0), mask=at < n)


def matmul(x: torch.Tensor, y: torch.Tensor) -> Callable[[], torch.Tensor]:
    """The product of x[B,M,K] and y[B,K,N], contiguous."""
    batch, m, k = x.shape
    n = y.shape[2]
    kernel = _single if x.dtype is torch.float32 else _half

    def grid(meta: dict[str, int]) -> tuple[int, int]:
        return triton.cdiv(m, meta["BM"]) * triton.cdiv(n, meta["BN"]), batch

    def run() -> torch.Tensor:
        out = torch.empty((batch, m, n), device=x.device, dtype=x.dtype)
        kernel[grid](x, y, out, m, n, k)
        return out

    return run


def softmax(x: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Softmax over the last axis of x[M,N], contiguous; a row must fit into a block's registers."""
    m, n = x.shape
    block = triton.next_power_of_2(n)
    warps = 4 if block <= 2048 else 8 if block <= 4096 else 16

    def run() -> torch.Tensor:
        out = torch.empty_like(x)
        _softmax[(m,)](x, out, n, BLOCK=block, num_warps=warps)
        return out

    return run
