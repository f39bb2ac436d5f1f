"""Recurrences that tests compute: filters of first to third order, several states, conditions of their own."""

from __future__ import annotations

from collections.abc import Callable

from autosched import te
from autosched.te import ComputeDAG, Tensor


def smoothed(shape: tuple[int, ...], axis: int = 0, step: int = -1, dtype: str = "float32") -> Tensor:
    """Y = (3 Y before + X) / 4 along an axis; before the beginning it is the first row of X. In integers 3 Y + X."""
    x = te.placeholder(shape, dtype, "X")

    def before(y, *at):
        return y[tuple(a + step if d == axis else a for d, a in enumerate(at))]

    def first(*at):
        return x[tuple((0 if step < 0 else shape[axis] - 1) if d == axis else a for d, a in enumerate(at))]

    def value(y, *at):
        weights = (3, 1) if dtype.startswith(("int", "uint")) else (0.75, 0.25)
        return te.cast(before(y, *at) * weights[0] + x[at] * weights[1], dtype)

    return te.scan(shape, value, init=first if shape[axis] else 0, axis=axis, dtype=dtype, name="Y")


def third_order(shape: tuple[int, int], backwards: bool = False) -> Tensor:
    """Y[i] = X[i] + Y[i - 1] / 2 - Y[i - 2] / 4 + Y[i - 3] / 8, with three given values before the beginning."""
    n, sign = shape[0], 1 if backwards else -1
    x, s = te.placeholder(shape, name="X"), te.placeholder((3, shape[1]), name="S")
    return te.scan(
        shape,
        lambda y, i, j: x[i, j] + y[i + sign, j] * 0.5 - y[i + 2 * sign, j] * 0.25 + y[i + 3 * sign, j] * 0.125,
        init=lambda i, j: s[i - n if backwards else i + 3, j],
        name="Y",
    )


def two_states(shape: tuple[int, int], axis: int) -> tuple[Tensor, Tensor]:
    """A rotation in each line: (c, s) before, turned and added to the input."""
    x = te.placeholder(shape, name="X")

    def value(y, i, j):
        at = (i - 1, j) if axis == 0 else (i, j - 1)
        c, s = y[0][at], y[1][at]
        return c * 0.75 - s * 0.5 + x[i, j], c * 0.5 + s * 0.75

    return te.scan(shape, value, init=(1.0, 0.0), axis=axis, name="R")


def selective(length: int, channels: int, states: int) -> Tensor:
    """A selective state space: h = exp(d a) h before + d b x, and y the sum of c h over the states."""
    d, x = te.placeholder((length, channels), name="D"), te.placeholder((length, channels), name="X")
    b, c = te.placeholder((length, states), name="B"), te.placeholder((length, states), name="C")
    a = te.placeholder((channels, states), name="A")
    h = te.scan(
        (length, channels, states),
        lambda h, t, i, n: te.exp(te.minimum(d[t, i] * a[i, n], 0.0)) * h[t - 1, i, n] + d[t, i] * b[t, n] * x[t, i],
        init=0.0, name="H",
    )  # fmt: skip
    n = te.reduce_axis(states, "n")
    return te.compute((length, channels), lambda t, i: te.sum(c[t, n] * h[t, i, n], axis=n), name="Y")


def resetting(length: int, width: int) -> Tensor:
    """Running maxima that begin anew where the input is negative, with a condition instead of an init."""
    x = te.placeholder((length, width), name="X")
    return te.scan(
        (length, width),
        lambda y, i, j: te.select(i < 1, x[i, j], te.select(x[i, j] < 0, x[i, j], te.maximum(y[i - 1, j], x[i, j]))),
        dtype="float32", name="Y",
    )  # fmt: skip


def automaton(length: int, width: int) -> Tensor:
    """States of a finite automaton, whose table is read at the state before."""
    table, x = te.placeholder((5, 2), "int32", "T"), te.placeholder((length, width), "int32", "X")
    return te.scan((length, width), lambda y, i, j: table[y[i - 1, j], x[i, j]], init=0, dtype="int32", name="Y")


def doubled_input(shape: tuple[int, int], axis: int) -> Tensor:
    """An elementwise stage before a recurrence, and one after it."""
    x = te.placeholder(shape, name="X")
    twice = te.compute(shape, lambda i, j: x[i, j] * 2.0 + 1.0, name="T")
    y = te.scan(
        shape,
        lambda y, i, j: (y[i - 1, j] if axis == 0 else y[i, j - 1]) * 0.5 + twice[i, j],
        init=0.0, axis=axis, name="Y",
    )  # fmt: skip
    return te.compute(shape, lambda i, j: y[i, j] * x[i, j], name="Z")


def there_and_back(shape: tuple[int, int], axis: int) -> Tensor:
    """A filter forwards and then backwards."""
    x = te.placeholder(shape, name="X")

    def along(source, step, name):
        def value(y, i, j):
            return (y[i + step, j] if axis == 0 else y[i, j + step]) * 0.75 + source[i, j] * 0.25

        return te.scan(shape, value, init=0.0, axis=axis, name=name)

    return along(along(x, -1, "F"), 1, "B")


def in_order(*extents: int, along_rows: bool = False) -> tuple[Tensor, ...]:
    """A linear recurrence as a reduction whose order matters, over all extents but the last; `along_rows`: the operand
    is contiguous along the reduction."""
    *reduced, width = extents
    ks = [te.reduce_axis(n, f"k{d}") for d, n in enumerate(reduced)]
    x = te.placeholder((width, *reduced) if along_rows else extents, name="X")
    linear = te.reducer(lambda p, q: (p[0] * q[0], p[1] * q[0] + q[1]), (1.0, 0.0), "linear", ordered=True)

    def value(j):
        element = x[(j, *ks)] if along_rows else x[(*ks, j)]
        return linear((te.const(0.75, "float32"), element * 0.25), axis=ks)

    return te.compute((width,), value, name="Y")


def horner(length: int, width: int) -> Tensor:
    """A polynomial's value in integers that wrap, doubled."""
    x, k = te.placeholder((length, width), "int32", "X"), te.reduce_axis(length, "k")
    fold = te.reducer(lambda p, q: p * 7 + q, 3, "horner", ordered=True)
    return te.compute((width,), lambda j: fold(x[k, j], axis=k) * 2, name="Y")


CASES: dict[str, Callable[[], Tensor | tuple[Tensor, ...]]] = {
    **{
        f"{name}, axis {axis} of {len(shape)}": lambda shape=shape, axis=axis, step=step: smoothed(shape, axis, step)
        for name, step in (("forwards", -1), ("backwards", 1))
        for shape, axis in (((13, 37), 0), ((13, 37), 1), ((5, 7, 11), 1))
    },
    "one line": lambda: smoothed((67,)),
    "one position": lambda: smoothed((1, 9)),
    "one line of a matrix": lambda: smoothed((19, 1)),
    "no positions": lambda: smoothed((0, 5)),
    "no lines": lambda: smoothed((5, 0)),
    "steps of two": lambda: smoothed((11, 17), 0, -2),
    "int32": lambda: smoothed((13, 18), 0, -1, "int32"),
    "int8 backwards": lambda: smoothed((6, 70), 1, 1, "int8"),
    "float64": lambda: smoothed((9, 20), 1, -1, "float64"),
    "float16": lambda: smoothed((9, 33), 0, -1, "float16"),
    "third order": lambda: third_order((17, 19)),
    "third order backwards": lambda: third_order((17, 19), backwards=True),
    "order beyond the extent": lambda: third_order((2, 5)),
    "two states": lambda: two_states((23, 18), 0),
    "two states along rows": lambda: two_states((18, 23), 1),
    "selective": lambda: selective(13, 5, 16),
    "resetting": lambda: resetting(29, 21),
    "automaton": lambda: automaton(17, 21),
    "inlined input": lambda: doubled_input((14, 35), 0),
    "inlined input of rows": lambda: doubled_input((35, 14), 1),
    "reduction in order": lambda: in_order(19, 21),
    "reduction in order over rows": lambda: in_order(21, 19, along_rows=True),
    "reduction in order over two axes": lambda: in_order(3, 7, 18),
    "reduction in order over rows of two axes": lambda: in_order(5, 3, 17, along_rows=True),
    "reduction in order of one line": lambda: in_order(37, 1),
    "reduction in order over one element": lambda: in_order(1, 5),
    "polynomial": lambda: horner(13, 35),
    "there and back": lambda: there_and_back((21, 34), 0),
    "there and back in rows": lambda: there_and_back((34, 21), 1),
}


def case(name: str) -> ComputeDAG:
    return ComputeDAG(CASES[name]())
