"""Small graphs with awkward extents, one for each thing that a schedule can get wrong."""

from __future__ import annotations

from collections.abc import Callable

from autosched import te
from autosched.schedule import (
    CacheWrite,
    ComputeAt,
    Parallel,
    Reorder,
    Split,
    State,
    Step,
    Unroll,
    Vectorize,
    initial_state,
)
from autosched.te import ComputeDAG, Tensor


def matmul(m: int, n: int, k: int, dtype: str = "float32") -> ComputeDAG:
    return ComputeDAG(_product(m, n, k, dtype))


def _product(m: int, n: int, k: int, dtype: str) -> Tensor:
    a, b = te.placeholder((m, k), dtype, "A"), te.placeholder((k, n), dtype, "B")
    r = te.reduce_axis(k, "k")
    wide = "int32" if dtype in ("int8", "uint8") else dtype
    product: Tensor = te.compute(
        (m, n), lambda i, j: te.sum(a[i, r].astype(wide) * b[r, j].astype(wide), axis=r), name="C"
    )
    return product


def dense_relu(m: int, n: int, k: int) -> ComputeDAG:
    c, bias = _product(m, n, k, "float32"), te.placeholder((n,), name="bias")
    return ComputeDAG(te.compute((m, n), lambda i, j: te.maximum(c[i, j] + bias[j], 0.0), name="D"))


def conv1d(length: int, ci: int, co: int, k: int = 3, stride: int = 1, pad: int = 1) -> ComputeDAG:
    x, w = te.placeholder((length, ci), name="X"), te.placeholder((k, ci, co), name="W")
    wide = length + 2 * pad
    p = te.compute((wide, ci), lambda i, c: te.select((i >= pad) & (i < length + pad), x[i - pad, c], 0.0), name="P")
    a, b = te.reduce_axis(k, "a"), te.reduce_axis(ci, "b")
    return ComputeDAG(
        te.compute(
            ((wide - k) // stride + 1, co),
            lambda i, o: te.sum(p[i * stride + a, b] * w[a, b, o], axis=[a, b]),
            name="C",
        )
    )


def conv2d(h: int, w: int, ci: int, co: int, k: int = 3) -> ComputeDAG:
    x, weights = te.placeholder((h, w, ci), name="X"), te.placeholder((k, k, ci, co), name="W")
    p = te.compute(
        (h + 2, w + 2, ci),
        lambda i, j, c: te.select((i >= 1) & (i <= h) & (j >= 1) & (j <= w), x[i - 1, j - 1, c], 0.0),
        name="P",
    )
    a, b, c = te.reduce_axis(k, "a"), te.reduce_axis(k, "b"), te.reduce_axis(ci, "c")
    return ComputeDAG(
        te.compute(
            (h + 3 - k, w + 3 - k, co),
            lambda i, j, o: te.sum(p[i + a, j + b, c] * weights[a, b, c, o], axis=[a, b, c]),
            name="C",
        )
    )


def transposed_conv(h: int, ci: int, co: int, k: int = 3, stride: int = 2) -> ComputeDAG:
    """Reads at (i - a) // stride, where that is whole and inside."""
    x, w = te.placeholder((h, ci), name="X"), te.placeholder((k, ci, co), name="W")
    a, c = te.reduce_axis(k, "a"), te.reduce_axis(ci, "c")

    def value(i, o):
        there = ((i - a) % stride).equal(0) & (i - a >= 0) & ((i - a) // stride < h)
        return te.sum(te.select(there, x[(i - a) // stride, c], 0.0) * w[a, c, o], axis=[a, c])

    return ComputeDAG(te.compute(((h - 1) * stride + k, co), value, name="C"))


def chain(m: int, n: int) -> ComputeDAG:
    x = te.placeholder((m, n), name="X")
    a = te.compute((m, n), lambda i, j: x[i, j] + 1.0, name="A")
    b = te.compute((m, n), lambda i, j: a[i, j] * x[i, j], name="B")
    c = te.compute((m, n), lambda i, j: te.maximum(b[i, j], a[i, j]), name="M")
    return ComputeDAG(te.compute((m, n), lambda i, j: c[i, j] - x[i, j], name="D"))


def stencils(n: int, dtype: str = "float32") -> ComputeDAG:
    """Halos on both sides, strides, guarded reads before the start and after the end."""
    x, one = te.placeholder((n,), dtype, "X"), te.const(1, dtype)
    a = te.compute((n,), lambda i: te.select(i >= 1, x[i - 1], one) + x[i], name="A")
    b = te.compute((n,), lambda i: te.select(i + 2 < n, a[i + 2], one) - a[i], name="B")
    c = te.compute((n // 2,), lambda i: b[2 * i] + te.select(i >= 3, b[2 * i - 5], one) * a[i], name="C")
    return ComputeDAG(te.compute((n // 2,), lambda i: c[i] + c[n // 2 - 1 - i], name="D"))


def shifted(n: int, by: int) -> ComputeDAG:
    x = te.placeholder((n,), name="X")
    y = te.compute((n,), lambda i: te.select(i + by < n, x[i + by], 1.0), name="Y")
    return ComputeDAG(te.compute((n,), lambda i: y[i] * 2.0 + te.select(i - by >= 0, y[i - by], 3.0), name="Z"))


def reversed_rows(m: int, n: int) -> ComputeDAG:
    """Falling indices; m - 1 + 2*i - 3*i has two terms of the same axis."""
    x = te.placeholder((m, n), name="X")
    a = te.compute((m, n), lambda i, j: x[m - 1 + i - 2 * i, j] + 1.0, name="A")
    return ComputeDAG(te.compute((m, n), lambda i, j: a[i, n - 1 - j] - a[m - 1 + 2 * i - 3 * i, j], name="Y"))


def softmax_like(m: int, n: int) -> ComputeDAG:
    x, k, r = te.placeholder((m, n), name="X"), te.reduce_axis(n, "k"), te.reduce_axis(n, "l")
    top = te.compute((m,), lambda i: te.max(x[i, k], axis=k), name="top")
    e = te.compute((m, n), lambda i, j: (x[i, j] - top[i]) * 2.0, name="E")
    total = te.compute((m,), lambda i: te.sum(e[i, r], axis=r), name="total")
    return ComputeDAG(te.compute((m, n), lambda i, j: e[i, j] - total[i], name="Y"))


def argmax(m: int, n: int, outputs: str = "both") -> ComputeDAG:
    """The greatest value of each row and its first place; `outputs` may be just the "value" or the "place"."""
    x, k = te.placeholder((m, n), name="X"), te.reduce_axis(n, "k")

    def better(a, b):
        first = (a[0] > b[0]) | (a[0].equal(b[0]) & (a[1] < b[1]))
        return te.select(first, a[0], b[0]), te.select(first, a[1], b[1])

    best = te.reducer(better, lambda v, p: (te.const(-1e30, v), te.const(1 << 40, p)), name="argmax")
    value, place = te.compute((m,), lambda i: best((x[i, k], k), axis=k), name="R")
    return ComputeDAG({"both": (value, place), "value": (value,), "place": (place,)}[outputs])


def transposes(m: int, n: int, dtype: str = "float32") -> ComputeDAG:
    x = te.placeholder((m, n), dtype, "X")
    t = te.compute((n, m), lambda i, j: x[j, i], name="T")
    return ComputeDAG(te.compute((m, n), lambda i, j: t[j, i], name="U"))


def total(m: int, n: int, dtype: str = "float32") -> ComputeDAG:
    x = te.placeholder((m, n), dtype, "X")
    k, r = te.reduce_axis(n, "k"), te.reduce_axis(m, "l")
    s = te.compute((), lambda: te.sum(x[r, k], axis=[r, k]), name="S")
    return ComputeDAG((te.compute((m, n), lambda i, j: x[i, j] - s[()], name="Y"), s))


def row_any(m: int, n: int) -> ComputeDAG:
    x, k = te.placeholder((m, n), "bool", "X"), te.reduce_axis(n, "k")
    return ComputeDAG(te.compute((m,), lambda i: te.any(x[i, k], axis=k), name="R"))


def reshapes(m: int, n: int, step: int) -> ComputeDAG:
    """Reads through // and %, then with a stride."""
    x = te.placeholder((m * n,), name="X")
    a = te.compute((m, n), lambda i, j: x[i * n + j] + 1.0, name="A")
    b = te.compute((m * n,), lambda i: a[i // n, i % n] * 2.0, name="B")
    return ComputeDAG(te.compute((-(-m * n // step),), lambda i: b[i * step] - x[i * step], name="Y"))


def integers(m: int, n: int, dtype: str) -> ComputeDAG:
    """// and % of data under a condition, and of axes with negative values."""
    x, y = te.placeholder((m, n), dtype, "X"), te.placeholder((n,), dtype, "Y")
    a = te.compute((m, n), lambda i, j: te.select(y[j].not_equal(0), x[i, j] // y[j], x[i, j] % 5), name="A")
    return ComputeDAG(
        te.compute(
            (m, n), lambda i, j: a[i, j] + (i // 2 * 3 + j % 3 - (j - 7) // 3 + (i - 9) % 4).astype(dtype), name="D"
        )
    )


GRAPHS: dict[str, Callable[[], ComputeDAG]] = {
    "matmul": lambda: matmul(7, 13, 5),
    "matmul-1": lambda: matmul(1, 17, 3),
    "matmul-int8": lambda: matmul(3, 31, 12, "int8"),
    "matmul-float64": lambda: matmul(5, 12, 17, "float64"),
    "matmul-int64": lambda: matmul(2, 13, 7, "int64"),
    "dense_relu": lambda: dense_relu(12, 17, 7),
    "conv1d": lambda: conv1d(12, 3, 5),
    "conv1d-stride": lambda: conv1d(13, 2, 17, k=2, stride=2, pad=2),
    "conv2d": lambda: conv2d(5, 7, 2, 5),
    "transposed_conv": lambda: transposed_conv(5, 3, 5),
    "chain": lambda: chain(5, 31),
    "stencils": lambda: stencils(17),
    "stencils-int8": lambda: stencils(31, "int8"),
    "shifted": lambda: shifted(13, 5),
    "reversed_rows": lambda: reversed_rows(7, 13),
    "softmax_like": lambda: softmax_like(5, 17),
    "argmax": lambda: argmax(3, 13),
    "argmax-place": lambda: argmax(5, 7, "place"),
    "transposes": lambda: transposes(12, 17),
    "transposes-bool": lambda: transposes(7, 5, "bool"),
    "total": lambda: total(3, 17),
    "total-int32": lambda: total(1, 31, "int32"),
    "row_any": lambda: row_any(3, 31),
    "reshapes": lambda: reshapes(5, 7, 3),
    "integers-int32": lambda: integers(3, 13, "int32"),
    "integers-int64": lambda: integers(2, 7, "int64"),
    "integers-int8": lambda: integers(3, 17, "int8"),
}


def vectors(dag: ComputeDAG, lanes: int = 8) -> State:
    """Every stage: outer axes parallel, the last one in vectors of so many lanes in blocks of 2."""
    state = initial_state(dag)
    for stage in state.stages:
        *outer, last = [a.name for a in stage.op.axes] or [stage.op.reduce_axes[-1].name]
        rest = [a.name for a in stage.op.reduce_axes if a.name != last]
        state = state.apply(
            Split(stage.name, last, (2, lanes)),
            Reorder(stage.name, (*outer, f"{last}.0", *rest, f"{last}.1", f"{last}.2")),
            Vectorize(stage.name, f"{last}.2"),
        )
        if stage.op.axes:
            state = state.apply(Parallel(stage.name, (*outer, f"{last}.0")))
    return state


def register_tile(m: int, n: int, unroll: int) -> tuple[Step, ...]:
    """Of a matrix product: C in tiles of m rows and n columns in registers, k written out `unroll` times."""
    return (
        CacheWrite("C"),
        Split("C", "i", (m,)),
        Split("C", "j", (n,)),
        Reorder("C", ("i.0", "j.0", "i.1", "j.1")),
        ComputeAt("C.acc", "C", "j.0", "register"),
        Split("C.acc", "k", (unroll,)),
        Reorder("C.acc", ("k.0", "k.1", "i", "j")),
        *(Unroll(s, x) for s, x in (("C", "i.1"), ("C.acc", "i"), ("C.acc", "k.1"))),
        *(Vectorize(s, x) for s, x in (("C", "j.1"), ("C.acc", "j"))),
    )
