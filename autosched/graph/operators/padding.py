"""Padding of tensors along their axes, by a constant or by elements of the tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from autosched import te
from autosched.errors import GraphError
from autosched.graph.operators import operator
from autosched.graph.operators.index_maps import check_length, replaced
from autosched.ir.expr import Expr
from autosched.te import Tensor

Pads = Sequence[tuple[int, int]]
# Of each mode: the places in a dimension of size n that stand d >= 1 before its start and d >= 1 behind its end, and
# the largest d for which they are so; "wrap" goes on beyond it, several times around.
_BORDERS: Mapping[str, tuple[Callable[[Expr, int], Expr], Callable[[Expr, int], Expr], Callable[[int], int]]] = {
    "reflect": (lambda d, n: d, lambda d, n: n - 1 - d, lambda n: n - 1),
    "edge": (lambda d, n: d * 0, lambda d, n: d * 0 + n - 1, lambda n: 1 << 62),
    "wrap": (lambda d, n: n - d, lambda d, n: d - 1, lambda n: n),
}


@operator
def pad(x: Tensor, pads: Pads, mode: str = "constant", value: float = 0.0) -> Tensor:
    """(before, after) elements more in each dimension, less where negative: `value`, or elements of x, mirrored at the
    border ("reflect"), as at the border ("edge") or from the other end ("wrap")."""
    check_length("pads", pads, len(x.shape))
    sizes = tuple(n + low + high for n, (low, high) in zip(x.shape, pads, strict=True))
    if min(sizes, default=0) < 0:
        raise GraphError(f"the shape {list(x.shape)} padded by {[list(p) for p in pads]} has sizes below 0")
    if mode == "constant":
        return _with_value(x, pads, sizes, value)
    if mode not in _BORDERS:
        raise GraphError(f"the mode of pad is constant, {', '.join(_BORDERS)} but got {mode!r}")
    for axis, (low, high) in enumerate(pads):
        if low or high:
            x = _with_border(x, axis, low, high, mode)
    return x


def _with_value(x: Tensor, pads: Pads, sizes: tuple[int, ...], value: float) -> Tensor:
    def at(*index: Expr) -> Expr:
        places = tuple(i - low for i, (low, _) in zip(index, pads, strict=True))
        known = list(zip(places, x.shape, pads, strict=True))
        inside = [p >= 0 for p, _, (low, _) in known if low > 0] + [p < n for p, n, (_, high) in known if high > 0]
        return te.select(te.all(*inside), x[places], te.const(value, x.dtype)) if inside else x[places]

    made: Tensor = te.compute(sizes, at, name="pad")
    return made


def _with_border(x: Tensor, axis: int, low: int, high: int, mode: str) -> Tensor:
    """x padded along one dimension by elements of its own."""
    n = x.shape[axis]
    if not n and n + low + high:
        raise GraphError(f"pad by {mode} of dimension {axis} needs elements, but its size is 0")
    before, behind, most = _BORDERS[mode]
    if max(low, high) > most(n):
        if mode == "wrap":
            around: Tensor = te.compute(
                replaced(x.shape, axis, n + low + high),
                lambda *index: x[replaced(index, axis, (index[axis] - low) % n)],
                name="pad",
            )
            return around
        raise GraphError(f"pad by {mode} of dimension {axis}, of size {n}, reaches {most(n)} but got {[low, high]}")

    def at(*index: Expr) -> Expr:
        i = index[axis] - low
        value = x[replaced(index, axis, i)]
        if high > 0:
            value = te.select(i < n, value, x[replaced(index, axis, behind(i - (n - 1), n))])
        if low > 0:
            value = te.select(i < 0, x[replaced(index, axis, before(-i, n))], value)
        return value

    made: Tensor = te.compute(replaced(x.shape, axis, n + low + high), at, name="pad")
    return made
