"""Top-k: the greatest elements of rows, in order.

te has no sort, so ranks are computed by comparisons. The first k of n elements take k n comparisons if they are found
one after the other, in k stages, and n^2 if the rank of each element is counted.
"""

from __future__ import annotations

from autosched import te
from autosched.errors import GraphError
from autosched.graph.operators import operator
from autosched.graph.operators.index_maps import axis_of, replaced
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Expr
from autosched.te import Tensor
from autosched.te.reducers import largest as largest_number
from autosched.te.reducers import smallest as smallest_number

ROUNDS = 16  # elements up to which each is looked for after the one before it


@operator
def top_k(x: Tensor, k: int, axis: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """The k greatest elements along `axis`, or the smallest, and their int64 places, in order; of equal ones the first
    comes first. NaN comes before all others, as in argmax and argmin."""
    axis = axis_of(axis, len(x.shape))
    if not 0 <= k <= x.shape[axis]:
        raise GraphError(f"the first {k} of {x.shape[axis]} elements along axis {axis} of {list(x.shape)} do not exist")
    if 0 < k <= ROUNDS:
        return _one_after_the_other(x, k, axis, largest)
    places = _by_counting(x, k, axis, largest)
    return _read(x, places, axis), places


def _is_before(a: Expr, b: Expr, largest: bool) -> Expr:
    """Whether a is ranked before b, without regard to their indices."""
    better = a > b if largest else a < b
    if not DTYPES[a.dtype].is_float:
        return better
    return te.any(better, te.all(te.not_equal(a, a), te.equal(b, b)))


def _read(x: Tensor, places: Tensor, axis: int) -> Tensor:
    made: Tensor = te.compute(places.shape, lambda *i: x[replaced(i, axis, places[i])], name="values")
    return made


def _by_counting(x: Tensor, k: int, axis: int, largest: bool) -> Tensor:
    """Return the indices of the first k, by counting the elements before each one and inverting the ranks."""
    n = x.shape[axis]

    def rank(*index: Expr) -> Expr:
        other = te.reduce_axis(n, "other")
        a, b = x[replaced(index, axis, other)], x[index]
        before = te.any(
            _is_before(a, b, largest), te.all(other < index[axis], te.logical_not(_is_before(b, a, largest)))
        )
        return te.sum(te.select(before, 1, 0), axis=other)

    ranks: Tensor = te.compute(x.shape, rank, name="ranks")

    def place(*index: Expr) -> Expr:
        j = te.reduce_axis(n, "j")
        mine = te.equal(ranks[replaced(index, axis, j)], index[axis])
        return te.sum(te.cast(te.select(mine, j, 0), "int64"), axis=j)

    made: Tensor = te.compute(replaced(x.shape, axis, k), place, name="places")
    return made


def _one_after_the_other(x: Tensor, k: int, axis: int, largest: bool) -> tuple[Tensor, Tensor]:
    """Search the first k one by one: in each round the best element after the last one, and its first index."""
    outer, n = replaced(x.shape, axis, 1), x.shape[axis]
    best, never = (te.max, smallest_number(x.dtype)) if largest else (te.min, largest_number(x.dtype))
    selected: list[tuple[Tensor, Tensor]] = []

    def is_left(index: tuple[Expr, ...], j: Expr) -> list[Expr]:
        """Whether element j comes after the last one; the first round takes any."""
        if not selected:
            return []
        value, place = selected[-1][0][index], selected[-1][1][index]
        element = x[replaced(index, axis, j)]
        same = te.logical_not(_is_before(element, value, largest))
        return [te.any(_is_before(value, element, largest), te.all(same, te.cast(j, "int64") > place))]

    def value(*index: Expr) -> Expr:
        j = te.reduce_axis(n, "j")
        element, left = x[replaced(index, axis, j)], is_left(index, j)
        return best(te.select(te.all(*left), element, never) if left else element, axis=j)

    for _ in range(k):
        values: Tensor = te.compute(outer, value, name="value")

        def place(*index: Expr, values: Tensor = values) -> Expr:
            j = te.reduce_axis(n, "j")
            equal = te.logical_not(_is_before(values[index], x[replaced(index, axis, j)], largest))
            return te.min(te.select(te.all(equal, *is_left(index, j)), te.cast(j, "int64"), n - 1), axis=j)

        places: Tensor = te.compute(outer, place, name="place")
        selected.append((values, places))
    return _joined([v for v, _ in selected], axis), _joined([p for _, p in selected], axis)


def _joined(parts: list[Tensor], axis: int) -> Tensor:
    """Parts of size 1 along `axis` behind each other."""

    def at(*index: Expr) -> Expr:
        value = parts[-1][replaced(index, axis, 0)]
        for n in reversed(range(len(parts) - 1)):
            value = te.select(te.equal(index[axis], n), parts[n][replaced(index, axis, 0)], value)
        return value

    made: Tensor = te.compute(replaced(parts[0].shape, axis, len(parts)), at, name="first")
    return made
