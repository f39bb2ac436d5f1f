"""Winograd convolution F(m x m, 3 x 3): recognition of such convolutions, and the stages that compute them.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (CVPR 2016): with tiles of (m + 2)^2 inputs,

    Y = A^T [(G g G^T) * (B^T d B)] A        4/9 of the multiply-adds for m = 2, 1/4 for m = 4

    image    the data, with zeros where the last tiles stick out              only where they do
    data     B^T d B    [a, b, p, channels...]        a, b < m + 2; p numbers the tiles of all images
    kernel   G g G^T    [a, b, channels..., outputs...]
    product  sum over the channels: (m + 2)^2 matrix products
    tiles    A^T . A    [p, i, j, outputs...]         i, j < m

Transforms are written out as sums and differences chosen by the small index, one dimension at a time, so unrolled code
holds no multiplication by 0 or 1.

The error. Let u be the unit roundoff and K the number of channels' terms. With N = n_B + n_G + n_A + K + 1 roundings in
a row (n_B: what a value goes through in B^T d B, and so on; G's divisors count), Higham's gamma_N = N u / (1 - N u),

    |y - y^| <= gamma_N |A^T| [ sum over channels (|G| |g| |G^T|) * (|B^T| |d| |B|) ] |A|       elementwise

(Barabasz, Anderson, Soodhalter and Gregg, "Error analysis and improving the accuracy of Winograd convolution for deep
neural networks", ACM TOMS 46, 2020). It is proportional to the largest numbers of a tile, not to the terms of its own
output, so no multiple of the direct form's bound holds: Winograd is for those who ask for it. What kernels are held to
is the sum of the roundings themselves (`reference`), which is below this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autosched.errors import ExpressionError
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import INDEX, Binary, Cast, Const, Expr, Load, Var
from autosched.ir.instructions.atomics import atomic_operation
from autosched.ir.linear import ONE, linear
from autosched.ir.stmt import Reducer
from autosched.te.compute import compute, const, equal, reduce_axis, select
from autosched.te.reducers import all as every
from autosched.te.reducers import sum as sum_over
from autosched.te.tensor import Axis, ComputeOp, Tensor

TAPS = 3
TILES = (2, 4)  # outputs of a tile along a dimension

Row = tuple[tuple[int, ...], int]  # numerators and their common divisor
Matrix = tuple[Row, ...]


def _whole(*rows: tuple[int, ...]) -> Matrix:
    return tuple((row, 1) for row in rows)


# m -> (B^T [m+2, m+2], G [m+2, 3], A^T [m, m+2])
MATRICES: Mapping[int, tuple[Matrix, Matrix, Matrix]] = {
    2: (
        _whole((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
        (((1, 0, 0), 1), ((1, 1, 1), 2), ((1, -1, 1), 2), ((0, 0, 1), 1)),
        _whole((1, 1, 1, 0), (0, 1, -1, -1)),
    ),
    4: (
        _whole(
            (4, 0, -5, 0, 1, 0),
            (0, -4, -4, 1, 1, 0),
            (0, 4, -4, -1, 1, 0),
            (0, -2, -1, 2, 1, 0),
            (0, 2, -1, -2, 1, 0),
            (0, 4, 0, -5, 0, 1),
        ),
        (((1, 0, 0), 4), ((-1, -1, -1), 6), ((-1, 1, -1), 6), ((1, 2, 4), 24), ((1, -2, 4), 24), ((0, 0, 1), 1)),
        _whole((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1)),
    ),
}


@dataclass(frozen=True)
class ConvolutionWindow:
    """Dimension `dim` of the data is read at position + tap + offset."""

    dim: int
    position: Var
    tap: Var
    offset: int


@dataclass(frozen=True)
class Convolution:
    """sum over channels and 3 x 3 taps of data[images, windows, channels] * weights[taps, channels, outputs].

    Each of the four may be several axes or none (channels: at least one), dimensions in any order.
    """

    data: Load
    weights: Load
    dtype: str  # of the products
    windows: tuple[ConvolutionWindow, ConvolutionWindow]
    images: tuple[Var, ...]
    channels: tuple[Var, ...]
    outputs: tuple[Var, ...]
    extents: Mapping[Var, int]


def match(
    axes: Mapping[Var, int], reduced: Mapping[Var, int], body: Sequence[Expr], reducer: Reducer | None
) -> Convolution | None:
    """The convolution that a reduction over `reduced` (with their extents) is, or None."""
    if len(body) != 1 or atomic_operation(reducer) != "add" or not DTYPES[body[0].dtype].is_float:
        return None
    product = body[0]
    if not isinstance(product, Binary) or product.op != "mul":
        return None
    a, b = _operand(product.a), _operand(product.b)
    for data, weights in ((a, b), (b, a)):
        if data is not None and weights is not None and data.buffer != weights.buffer:
            convolution = _convolution(data, weights, product.dtype, axes, reduced)
            if convolution is not None:
                return convolution
    return None


def match_stage(op: ComputeOp) -> Convolution | None:
    """`match` of a stage of a graph."""
    axes, reduced = ({a.var: a.extent for a in group} for group in (op.axes, op.reduce_axes))
    return match(axes, reduced, op.body, op.reducer)


def _operand(expr: Expr) -> Load | None:
    inner = expr.a if isinstance(expr, Cast) else expr
    return inner if isinstance(inner, Load) and DTYPES[inner.dtype].is_float else None


def _convolution(
    data: Load, weights: Load, dtype: str, axes: Mapping[Var, int], reduced: Mapping[Var, int]
) -> Convolution | None:
    windows = [w for d, index in enumerate(data.indices) if (w := _window(d, index, axes, reduced)) is not None]
    if len(windows) != 2:
        return None
    moved = {w.dim for w in windows}
    plain = _distinct([index for d, index in enumerate(data.indices) if d not in moved])
    own = _distinct(weights.indices)
    positions, taps = {w.position for w in windows}, {w.tap for w in windows}
    if plain is None or own is None or len(positions) < 2 or not taps <= set(own):
        return None
    images = tuple(v for v in plain if v in axes)
    channels = tuple(v for v in plain if v in reduced)
    outputs = tuple(v for v in own if v in axes)
    complete = {*channels, *taps} == set(reduced) == {v for v in own if v in reduced} and not taps & set(channels)
    disjoint = len(positions | set(images) | set(outputs)) == len(positions) + len(images) + len(outputs) == len(axes)
    if not channels or not complete or not disjoint:
        return None
    return Convolution(data, weights, dtype, (windows[0], windows[1]), images, channels, outputs, {**axes, **reduced})


def _window(dim: int, index: Expr, axes: Mapping[Var, int], reduced: Mapping[Var, int]) -> ConvolutionWindow | None:
    form = linear(index)
    if len(form.terms) != 2 or any(c is not ONE for _, c in form.terms):
        return None
    position = [a for a, _ in form.terms if isinstance(a, Var) and a in axes]
    tap = [a for a, _ in form.terms if isinstance(a, Var) and reduced.get(a) == TAPS]
    if len(position) != 1 or len(tap) != 1 or not isinstance(form.constant, Const):
        return None
    return ConvolutionWindow(dim, position[0], tap[0], form.constant.number)


def _distinct(indices: Sequence[Expr]) -> list[Var] | None:
    """The variables of indices that are different variables or constants, None where they are something else."""
    variables = [index for index in indices if isinstance(index, Var)]
    constant = all(isinstance(index, Var | Const) for index in indices)
    return variables if constant and len(set(variables)) == len(variables) else None


def transformed(conv: Convolution, m: int, data: Tensor, weights: Tensor, name: str, axes: Sequence[Axis]) -> Tensor:
    """The convolution as stages called `name`.data and so on, and a last one `name` over its own `axes`."""
    if m not in TILES:
        raise ExpressionError(f"Winograd's tiles have {' or '.join(map(str, TILES))} outputs, got {m}")
    grid = _Grid(conv, m, name)
    product = _product(grid, _transform_data(grid, _image(grid, data)), _transform_weights(grid, weights))
    tiles = _transform_output(grid, product)
    row, column = (w.position for w in conv.windows)
    element = tiles[(grid.number(row // m, column // m), row % m, column % m, *conv.outputs)]
    return ComputeOp(name, tuple(axes), (), (element,), None, (tiles,)).outputs[0]


@dataclass(frozen=True)
class _Grid:
    """The tiles of all images, numbered image by image and row by row."""

    conv: Convolution
    m: int
    name: str

    @property
    def matrices(self) -> tuple[Matrix, Matrix, Matrix]:
        return MATRICES[self.m]

    @property
    def span(self) -> int:
        """Inputs of a tile along a dimension."""
        return self.m + TAPS - 1

    @property
    def counts(self) -> tuple[int, int]:
        """Rows and columns of tiles."""
        rows, columns = (-(-self.conv.extents[w.position] // self.m) for w in self.conv.windows)
        return rows, columns

    @property
    def sizes(self) -> tuple[int, ...]:
        return (*self.size(self.conv.images), *self.counts)

    def size(self, axes: Sequence[Var]) -> tuple[int, ...]:
        return tuple(self.conv.extents[v] for v in axes)

    def number(self, row: Expr, column: Expr) -> Expr:
        """Of the tile in this row and column of the image that the convolution's own axes name."""
        place: Expr = Const(0, INDEX)
        for value, size in zip((*self.conv.images, row, column), self.sizes, strict=True):
            place = place * size + value
        return place

    def position(self, number: Expr) -> dict[Var, Expr]:
        """The inverse: image, and first row and column of the tile's outputs."""
        digits: list[Expr] = []
        for size in reversed(self.sizes[1:]):
            digits.insert(0, number % size if size > 1 else Const(0, INDEX))
            number = number // size if size > 1 else number
        row, column = (w.position for w in self.conv.windows)
        image = dict(zip((*self.conv.images, row, column), (number, *digits), strict=True))
        return {**image, row: image[row] * self.m, column: image[column] * self.m}


def _image(grid: _Grid, data: Tensor) -> tuple[Tensor, tuple[int, int]]:
    """A tensor in which the inputs of every tile are, and where the first ones begin."""
    reach = [count * grid.m + TAPS - 1 for count in grid.counts]
    windows = grid.conv.windows
    if all(w.offset + size <= data.shape[w.dim] for w, size in zip(windows, reach, strict=True)):
        return data, (windows[0].offset, windows[1].offset)
    moved = {w.dim: (w.offset, size) for w, size in zip(windows, reach, strict=True)}

    def element(*i: Expr) -> Expr:
        inside = [i[d] < data.shape[d] - offset for d, (offset, size) in moved.items() if size > data.shape[d] - offset]
        index = tuple(axis + moved[d][0] if d in moved else axis for d, axis in enumerate(i))
        return select(every(*inside), data[index], const(0, data.dtype))

    shape = [moved[d][1] if d in moved else size for d, size in enumerate(data.shape)]
    image: Tensor = compute(shape, element, name=f"{grid.name}.image")
    return image, (0, 0)


def _transform_data(grid: _Grid, source: tuple[Tensor, tuple[int, int]]) -> Tensor:
    conv, span, matrix = grid.conv, grid.span, grid.matrices[0]
    image, origin = source
    channels = grid.size(conv.channels)

    def pixel(number: Expr, row: Expr | int, column: Expr | int, c: Sequence[Expr]) -> Expr:
        at = {**grid.position(number), **dict(zip(conv.channels, c, strict=True))}
        index = [at[i] if isinstance(i, Var) else i for i in (*conv.data.indices,) if not _is_window(conv, i)]
        for window, step, start in zip(conv.windows, (row, column), origin, strict=True):
            index.insert(window.dim, at[window.position] + step + start)
        return image[tuple(index)].astype(conv.dtype)

    half: Tensor = compute(
        (span, math.prod(grid.sizes), span, *channels),
        lambda a, p, y, *c: _row_product(matrix, a, lambda r: pixel(p, r, y, c)),
        name=f"{grid.name}.data_rows",
    )
    full: Tensor = compute(
        (span, span, math.prod(grid.sizes), *channels),
        lambda a, b, p, *c: _row_product(matrix, b, lambda r: half[(a, p, r, *c)]),
        name=f"{grid.name}.data",
    )
    return full


def _is_window(conv: Convolution, index: Expr) -> bool:
    return any(conv.data.indices[w.dim] is index for w in conv.windows)


def _transform_weights(grid: _Grid, weights: Tensor) -> Tensor:
    conv, span, matrix = grid.conv, grid.span, grid.matrices[1]
    row, column = (w.tap for w in conv.windows)
    inner = (*conv.channels, *conv.outputs)

    def tap(kh: Expr | int, kw: Expr | int, i: Sequence[Expr]) -> Expr:
        at: dict[Expr, Expr | int] = {row: kh, column: kw, **dict(zip(inner, i, strict=True))}
        return weights[tuple(at.get(index, index) for index in conv.weights.indices)].astype(conv.dtype)

    half: Tensor = compute(
        (span, TAPS, *grid.size(inner)),
        lambda a, x, *i: _row_product(matrix, a, lambda r: tap(r, x, i)),
        name=f"{grid.name}.kernel_rows",
    )
    full: Tensor = compute(
        (span, span, *grid.size(inner)),
        lambda a, b, *i: _row_product(matrix, b, lambda r: half[(a, r, *i)]),
        name=f"{grid.name}.kernel",
    )
    return full


def _product(grid: _Grid, data: Tensor, kernel: Tensor) -> Tensor:
    conv = grid.conv
    channels = [reduce_axis(conv.extents[v], name=v.name) for v in conv.channels]

    def term(a: Expr, b: Expr, p: Expr, *o: Expr) -> Expr:
        return sum_over(data[(a, b, p, *channels)] * kernel[(a, b, *channels, *o)], axis=channels)

    result: Tensor = compute(
        (grid.span, grid.span, math.prod(grid.sizes), *grid.size(conv.outputs)), term, name=f"{grid.name}.product"
    )
    return result


def _transform_output(grid: _Grid, product: Tensor) -> Tensor:
    matrix, outputs = grid.matrices[2], grid.size(grid.conv.outputs)
    count, m, span = math.prod(grid.sizes), grid.m, grid.span
    half: Tensor = compute(
        (count, m, span, *outputs),
        lambda p, i, b, *o: _row_product(matrix, i, lambda r: product[(r, b, p, *o)]),
        name=f"{grid.name}.tile_rows",
    )
    full: Tensor = compute(
        (count, m, m, *outputs),
        lambda p, i, j, *o: _row_product(matrix, j, lambda r: half[(p, i, r, *o)]),
        name=f"{grid.name}.tiles",
    )
    return full


def _row_product(matrix: Matrix, row: Expr, element: Callable[[int], Expr]) -> Expr:
    """sum over r of matrix[row][r] * element(r) for a loop variable `row`: selects between written-out sums."""
    *front, last = [_combination(*numbers, element) for numbers in matrix]
    result = last
    for index in reversed(range(len(front))):
        result = select(equal(row, index), front[index], result)
    return result


def _combination(numerators: Sequence[int], divisor: int, element: Callable[[int], Expr]) -> Expr:
    (r, c), *rest = [(r, c) for r, c in enumerate(numerators) if c]
    first = _scaled(element(r), abs(c))
    total = first if c > 0 else -first
    for r, c in rest:
        total = total + _scaled(element(r), c) if c > 0 else total - _scaled(element(r), -c)
    return total if divisor == 1 else total / float(divisor)


def _scaled(x: Expr, factor: int) -> Expr:
    return x if factor == 1 else x * float(factor)
