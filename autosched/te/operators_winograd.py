"""Winograd convolution F(m x m, 3 x 3) as compute stages.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (CVPR 2016): with tiles of (m + 2)^2
inputs, Y = A^T [(G g G^T) * (B^T d B)] A. The transforms are written out as sums and differences chosen by
the small tile index, one dimension at a time, so unrolled code holds no multiplication by 0 or 1. Tile counts
are rounded up, so any H and W will do; the last tiles then compute rows that are cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autosched import te
from autosched.errors import UsageError
from autosched.ir.expr import Expr
from autosched.te.operators_window import pad, window_extent
from autosched.te.tensor import Tensor

_Matrix = tuple[tuple[float, ...], ...]

# m -> (B^T [m+2, m+2], G [m+2, 3], A^T [m, m+2])
_MATRICES: dict[int, tuple[_Matrix, _Matrix, _Matrix]] = {
    2: (
        ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
        ((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
        ((1, 1, 1, 0), (0, 1, -1, -1)),
    ),
    4: (
        (
            (4, 0, -5, 0, 1, 0),
            (0, -4, -4, 1, 1, 0),
            (0, 4, -4, -1, 1, 0),
            (0, -2, -1, 2, 1, 0),
            (0, 2, -1, -2, 1, 0),
            (0, 4, 0, -5, 0, 1),
        ),
        (
            (1 / 4, 0, 0),
            (-1 / 6, -1 / 6, -1 / 6),
            (-1 / 6, 1 / 6, -1 / 6),
            (1 / 24, 1 / 12, 1 / 6),
            (1 / 24, -1 / 12, 1 / 6),
            (0, 0, 1),
        ),
        (
            (1, 1, 1, 1, 1, 0),
            (0, 1, -1, 2, -2, 0),
            (0, 1, 1, 4, 4, 0),
            (0, 1, -1, 8, -8, 1),
        ),
    ),
}


def winograd(
    N: int = 1, H: int = 56, W: int = 56, CI: int = 64, CO: int = 64, pad: int = 1, m: int = 4,
    dtype: str = "float32",
) -> Tensor:  # fmt: skip
    """3x3 convolution of stride 1: X[N,H,W,CI] * W[3,3,CI,CO] -> [N,HO,WO,CO], by tiles of m x m outputs (2 or 4)."""
    x = te.placeholder((N, H, W, CI), dtype, name="X")
    w = te.placeholder((3, 3, CI, CO), dtype, name="W")
    return winograd_conv2d("winograd", x, w, pad, m)


def winograd_conv2d(what: str, x: Tensor, w: Tensor, amount: int, m: int) -> Tensor:
    """x[N,H,W,CI] and w[3,3,CI,CO] of a float type, `amount` of padding."""
    if m not in _MATRICES:
        raise UsageError(f"{what}: the output tile m must be one of {', '.join(map(str, _MATRICES))} but is {m}")
    n, height, width, ci = x.shape
    co = w.shape[3]
    ho, wo = (window_extent(what, size, 3, 1, amount) for size in (height, width))
    rows, columns, a = -(-ho // m), -(-wo // m), m + 2
    after = [amount + rows * m - ho, amount + columns * m - wo]
    image = pad(x, [(0, 0), (amount, after[0]), (amount, after[1]), (0, 0)])
    kernel = _transform_weights(w, m)
    data = _transform_data(image, rows, columns, m)
    rc = te.reduce_axis(ci, name="ci")
    product = te.compute(
        (a, a, n, rows, columns, co),
        lambda a, b, n, ty, tx, co: te.sum(data[a, b, n, ty, tx, rc] * kernel[a, b, rc, co], axis=rc),
        name="product",
    )
    tiles = _transform_output(product, m)
    if rows * m == ho and columns * m == wo:
        return te.view(tiles, (n, ho, wo, co))
    result: Tensor = te.compute(
        (n, ho, wo, co), lambda n, oh, ow, co: tiles[n, oh // m, oh % m, ow // m, ow % m, co], name="cut"
    )
    return result


def _transform_weights(w: Tensor, m: int) -> Tensor:
    _, g, _ = _MATRICES[m]
    ci, co = w.shape[2:]
    a = m + 2
    half = te.compute(
        (a, 3, ci, co), lambda a, kw, ci, co: _row_product(g, a, lambda r: w[r, kw, ci, co]), name="kernel_rows"
    )
    full: Tensor = te.compute(
        (a, a, ci, co), lambda a, b, ci, co: _row_product(g, b, lambda r: half[a, r, ci, co]), name="kernel"
    )
    return full


def _transform_data(image: Tensor, rows: int, columns: int, m: int) -> Tensor:
    bt, _, _ = _MATRICES[m]
    n, _, _, ci = image.shape
    a = m + 2
    half = te.compute(
        (a, n, rows, columns * m + 2, ci),
        lambda a, n, ty, x, ci: _row_product(bt, a, lambda r: image[n, ty * m + r, x, ci]),
        name="data_rows",
    )
    full: Tensor = te.compute(
        (a, a, n, rows, columns, ci),
        lambda a, b, n, ty, tx, ci: _row_product(bt, b, lambda r: half[a, n, ty, tx * m + r, ci]),
        name="data",
    )
    return full


def _transform_output(product: Tensor, m: int) -> Tensor:
    _, _, at = _MATRICES[m]
    a, _, n, rows, columns, co = product.shape
    half = te.compute(
        (n, rows, m, a, columns, co),
        lambda n, ty, i, b, tx, co: _row_product(at, i, lambda r: product[r, b, n, ty, tx, co]),
        name="tile_rows",
    )
    full: Tensor = te.compute(
        (n, rows, m, columns, m, co),
        lambda n, ty, i, tx, j, co: _row_product(at, j, lambda r: half[n, ty, i, r, tx, co]),
        name="tiles",
    )
    return full


def _row_product(matrix: _Matrix, row: Expr, element: Callable[[int], Expr]) -> Expr:
    """sum over r of matrix[row][r] * element(r) for a loop variable `row`: selects between written-out sums."""
    *front, last = [_combination(coefficients, element) for coefficients in matrix]
    result = last
    for index in reversed(range(len(front))):
        result = te.select(te.equal(row, index), front[index], result)
    return result


def _combination(coefficients: Sequence[float], element: Callable[[int], Expr]) -> Expr:
    (r, c), *rest = [(r, c) for r, c in enumerate(coefficients) if c]
    first = _scaled(element(r), abs(c))
    total = first if c > 0 else -first
    for r, c in rest:
        total = total + _scaled(element(r), c) if c > 0 else total - _scaled(element(r), -c)
    return total


def _scaled(x: Expr, factor: float) -> Expr:
    return x if factor == 1 else x * float(factor)
