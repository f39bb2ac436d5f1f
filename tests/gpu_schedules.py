"""Operators and schedules for GPUs made by hand, for tests of lowering and of code generation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autosched import te
from autosched.schedule import (
    AcrossLanes,
    Atomic,
    Bind,
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    Cooperate,
    CrossThread,
    Fuse,
    Pipeline,
    Reorder,
    Rfactor,
    Split,
    State,
    Step,
    Team,
    Unroll,
    initial_state,
)

AWKWARD = (1, 2, 3, 5, 7, 12, 13, 17, 31)
FACTORS = (1, 2, 3, 4, 5)


def random_extents(seed: int, count: int, limit: int = 31) -> list[int]:
    rng = np.random.default_rng(seed)
    return rng.choice([n for n in AWKWARD if n <= limit], count).tolist()


def random_values(seed: int, names: Sequence[str], factors: Sequence[int] = FACTORS) -> dict[str, int]:
    rng = np.random.default_rng(seed + 1000)
    return dict(zip(names, rng.choice(factors, len(names)).tolist(), strict=True))


def tiled(stage: str, axes: Sequence[str], tag: str = "") -> list[Step]:
    """Blocks, virtual threads, threads and points of each axis (a.0, a.1, a.2, a.3), the last three axes as z, y, x.

    More than three axes: the outer ones share an index. Factors are parameters named after the axis: iv, it, is.
    """
    steps: list[Step] = [Split(stage, a, tuple(f"{tag}{a}{level}" for level in "vts")) for a in axes]
    steps.append(Reorder(stage, tuple(f"{a}.{level}" for level in (0, 2, 1, 3) for a in axes)))
    for level, index in (("0", "blockIdx"), ("2", "threadIdx")):
        loops = [f"{a}.{level}" for a in axes]
        if len(loops) > 3:
            steps.append(Fuse(stage, tuple(loops[:-2])))
            loops = ["@".join(loops[:-2]), *loops[-2:]]
        dimensions = "xyz"[: len(loops)][::-1]  # the last axis is x
        steps += [Bind(stage, loop, f"{index}.{d}") for loop, d in zip(loops, dimensions, strict=True)]
    return steps


def parameters(state: State) -> list[str]:
    """The names of the factors that are parameters."""
    names: dict[str, None] = {}
    for step in state.steps:
        fields = [step.factors] if isinstance(step, Split) else []
        fields += [(step.vector,)] if isinstance(step, Cooperate) else []
        fields += [(step.factor,)] if isinstance(step, Rfactor) else []
        names.update({n: None for group in fields for n in group if isinstance(n, str)})
    return list(names)


def shared_copy(stage: str, host: str, loop: str, vector: int | str = 1) -> list[Step]:
    return [ComputeAt(stage, host, loop, "shared"), Cooperate(stage, vector)]


def matmul(m: int, n: int, k: int, dtype: str = "float32") -> te.ComputeDAG:
    A, B = te.placeholder((m, k), dtype, name="A"), te.placeholder((k, n), dtype, name="B")
    axis = te.reduce_axis(k, name="k")
    wide = "int32" if dtype == "int8" else dtype

    def at(i: Any, j: Any) -> Any:
        return te.sum(te.cast(A[i, axis], wide) * te.cast(B[axis, j], wide), axis=axis)

    return te.ComputeDAG(te.compute((m, n), at, name="C"))


def matmul_state(dag: te.ComputeDAG) -> State:
    """Everything at once: virtual threads, accumulators in registers, both inputs in shared memory."""
    return (
        initial_state(dag)
        .apply(CacheWrite("C"), CacheRead("A", "C.acc", "shared"), CacheRead("B", "C.acc", "shared"))
        .apply(*tiled("C", "ij"), ComputeAt("C.acc", "C", "j.2", "register"))
        .apply(Split("C.acc", "k", ("k1", "k2")), Reorder("C.acc", ("k.0", "k.1", "k.2", "i", "j")))
        .apply(*(Unroll("C.acc", x) for x in ("k.2", "i", "j")))
        .apply(*(Unroll("C", x) for x in ("i.1", "j.1", "i.3", "j.3")))
        .apply(*shared_copy("A.shared", "C.acc", "k.0", "va"), *shared_copy("B.shared", "C.acc", "k.0", "vb"))
    )


def conv(
    n: int, ci: int, h: int, w: int, co: int, k: int, stride: int = 1, pad: int = 0, layout: str = "NCHW"
) -> te.ComputeDAG:
    """A pad stage P and a convolution Y."""
    nchw = layout == "NCHW"
    X = te.placeholder((n, ci, h, w) if nchw else (n, h, w, ci), name="X")
    W = te.placeholder((co, ci, k, k) if nchw else (k, k, ci, co), name="W")

    def padded(b: Any, c: Any, y: Any, x: Any) -> Any:
        inside = (y >= pad) & (y < h + pad) & (x >= pad) & (x < w + pad)
        return te.select(inside, X[(b, c, y - pad, x - pad) if nchw else (b, y - pad, x - pad, c)], 0.0)

    if nchw:
        P = te.compute((n, ci, h + 2 * pad, w + 2 * pad), lambda b, c, y, x: padded(b, c, y, x), name="P")
    else:
        P = te.compute((n, h + 2 * pad, w + 2 * pad, ci), lambda b, y, x, c: padded(b, c, y, x), name="P")
    rc, ry, rx = (te.reduce_axis(e, name=f"r{a}") for e, a in ((ci, "c"), (k, "y"), (k, "x")))
    oh, ow = ((e + 2 * pad - k) // stride + 1 for e in (h, w))

    def at(b: Any, c: Any, y: Any, x: Any) -> Any:
        u, v = y * stride + ry, x * stride + rx
        value = P[b, rc, u, v] * W[c, rc, ry, rx] if nchw else P[b, u, v, rc] * W[ry, rx, rc, c]
        return te.sum(value, axis=[rc, ry, rx])

    if nchw:
        return te.ComputeDAG(te.compute((n, co, oh, ow), lambda b, c, y, x: at(b, c, y, x), name="Y"))
    return te.ComputeDAG(te.compute((n, oh, ow, co), lambda b, y, x, c: at(b, c, y, x), name="Y"))


def conv_state(dag: te.ComputeDAG, *, inline: bool) -> State:
    """Tiled over all four axes, pad stage and weights in shared memory (the pad stage computed there, or inlined)."""
    state = initial_state(dag).apply(CacheWrite("Y"))
    copies = ["P", "W.shared"]
    if inline:
        state = state.apply(ComputeInline("P"))
        copies = ["X.shared", "W.shared"]
        state = state.apply(CacheRead("X", "Y.acc", "shared"))
    state = state.apply(CacheRead("W", "Y.acc", "shared"))
    axes = [a.name for a in state.stage("Y").op.axes]
    reduce = [a.name for a in state.stage("Y.acc").op.reduce_axes]
    state = state.apply(*tiled("Y", axes), ComputeAt("Y.acc", "Y", f"{axes[-1]}.2", "register"))
    state = state.apply(Split("Y.acc", "rc", ("rc1",)))
    order = ("rc.0", *reduce[1:], "rc.1", *axes)
    state = state.apply(Reorder("Y.acc", order))
    return state.apply(*(s for copy in copies for s in shared_copy(copy, "Y.acc", "rc.0", "va")))


def neighbours(n: int) -> te.ComputeDAG:
    """Reads of a stage to the left and to the right of a point, some of them beyond the edges."""
    A = te.placeholder((n,), name="A")
    B = te.compute((n,), lambda i: A[i] * 2.0, name="B")

    def at(i: Any) -> Any:
        left, right = te.select(i >= 2, B[i - 2], 0.0), te.select(i < n - 1, B[i + 1], 0.0)
        return left + B[i] + right

    return te.ComputeDAG(te.compute((n,), at, name="C"))


REDUCTIONS = {
    "sum": lambda x, k: te.sum(x, axis=k),
    "max": lambda x, k: te.max(x, axis=k),
    "prod": lambda x, k: te.prod(te.cast(x, "int32"), axis=k),
    "any": lambda x, k: te.any(x > 3.0, axis=k),
}


def row_reduction(rows: int, columns: int, name: str = "sum") -> te.ComputeDAG:
    X = te.placeholder((rows, columns), name="X")
    k = te.reduce_axis(columns, name="k")
    R = te.compute((rows,), lambda i: REDUCTIONS[name](X[i, k], k), name="R")
    return te.ComputeDAG(te.compute((rows, columns), lambda i, j: te.select(X[i, j] > 0.0, R[i], R[i]), name="Y"))


def row_blocks(dag: te.ComputeDAG) -> State:
    """A block of threads for each row of Y."""
    state = initial_state(dag).apply(Split("Y", "j", ("jt",)), Reorder("Y", ("i", "j.1", "j.0")))
    return state.apply(Bind("Y", "i", "blockIdx.x"), Bind("Y", "j.1", "threadIdx.x"))


def cross_state(dag: te.ComputeDAG, scope: str = "register", warp: int = 0) -> State:
    """A block of threads for each row: they reduce it together, then write it."""
    return row_blocks(dag).apply(ComputeAt("R", "Y", "j.1", scope), CrossThread("R", "k", warp))


def teams_state(dag: te.ComputeDAG, members: int, teams: int, warp: int, along: str = "xy") -> State:
    """Several rows of a row reduction in a block; `along`: the thread indices of members and of teams."""
    state = initial_state(dag).apply(Split("Y", "i", (teams,)), Split("Y", "j", (members,)))
    order = ("i.1", "j.1") if along == "xy" else ("j.1", "i.1")
    state = state.apply(Reorder("Y", ("i.0", *order, "j.0")), Bind("Y", "i.0", "blockIdx.x"))
    index = {"j.1": along[0], "i.1": along[1]}
    state = state.apply(*(Bind("Y", loop, f"threadIdx.{index[loop]}") for loop in order))
    return state.apply(ComputeAt("R", "Y", order[-1], "register"), CrossThread("R", "k", warp))


def team_state(dag: te.ComputeDAG, threads: int, warp: int) -> State:
    """A block of any number of threads for each point of R."""
    state = initial_state(dag).apply(CacheWrite("R"), Bind("R", "i", "blockIdx.x"), Team("R", threads))
    return state.apply(ComputeAt("R.acc", "R", "team", "register"), CrossThread("R.acc", "k", warp))


def one_reduction(name: str, rows: int, columns: int, dtype: str = "float32") -> te.ComputeDAG:
    """R = reduce over the rows of X by one of te's reducers, or the position of the greatest element."""
    X = te.placeholder((rows, columns), dtype, name="X")
    k = te.reduce_axis(columns, name="k")
    reduce = getattr(te, name)
    return te.ComputeDAG(te.compute((rows,), lambda i: reduce(X[i, k], axis=k), name="R"))


def softmax(rows: int, columns: int) -> te.ComputeDAG:
    X = te.placeholder((rows, columns), name="X")
    k, m = te.reduce_axis(columns, name="k"), te.reduce_axis(columns, name="m")
    top = te.compute((rows,), lambda i: te.max(X[i, k], axis=k), name="top")
    total = te.compute((rows,), lambda i: te.sum(te.exp(X[i, m] - top[i]), axis=m), name="total")
    return te.ComputeDAG(te.compute((rows, columns), lambda i, j: te.exp(X[i, j] - top[i]) / total[i], name="Y"))


def argmax(rows: int, columns: int) -> te.ComputeDAG:
    X = te.placeholder((rows, columns), name="X")
    k = te.reduce_axis(columns, name="k")
    return te.ComputeDAG(te.compute((rows,), lambda i: te.argmax(X[i, k], axis=k), name="R"))


def several(m: int, n: int, k: int) -> te.ComputeDAG:
    A, B = te.placeholder((m, k), name="A"), te.placeholder((k, n), name="B")
    a, b = te.reduce_axis(k, name="k"), te.reduce_axis(n, name="l")
    C = te.compute((m, n), lambda i, j: te.sum(A[i, a] * B[a, j], axis=a), name="C")
    D = te.compute((m, n), lambda i, j: te.max(C[i, j], 0.0), name="D")
    return te.ComputeDAG([D, te.compute((m,), lambda i: te.sum(D[i, b], axis=b), name="S")])


def transpose(m: int, n: int) -> te.ComputeDAG:
    A = te.placeholder((m, n), name="A")
    return te.ComputeDAG(te.compute((n, m), lambda i, j: A[j, i], name="T"))


def transpose_state(dag: te.ComputeDAG) -> State:
    state = initial_state(dag).apply(CacheRead("A", "T", "shared"), *tiled("T", "ij"))
    return state.apply(*shared_copy("A.shared", "T", "j.2", "va"))


def looked_up(m: int, n: int) -> te.ComputeDAG:
    """Numbers of 4 bits, two in a byte, that are places in a table, and rows that data choose of it all."""
    W, T = te.placeholder((m, (n + 1) // 2), "uint8", name="W"), te.placeholder((16,), name="T")
    rows = te.placeholder((m,), "int32", name="R")

    def at(i: Any, j: Any) -> Any:
        return T[te.cast(W[rows[i], j // 2], "int32") >> te.cast(j % 2 * 4, "int32") & 15]

    return te.ComputeDAG(te.compute((m, n), at, name="T4"))


def pool(n: int, size: int) -> te.ComputeDAG:
    """The maximum of a window, with minus infinity around the image; and whether it is positive."""
    X = te.placeholder((n, size, size), name="X")
    ry, rx = te.reduce_axis(3, name="ry"), te.reduce_axis(3, name="rx")

    def at(b: Any, y: Any, x: Any) -> Any:
        u, v = y + ry - 1, x + rx - 1
        inside = (u >= 0) & (u < size) & (v >= 0) & (v < size)
        return te.max(te.select(inside, X[b, u, v], te.const(float("-inf"), "float32")), axis=[ry, rx])

    Y = te.compute((n, size, size), at, name="Y")
    return te.ComputeDAG([Y, te.compute((n, size, size), lambda b, y, x: Y[b, y, x] > 0.0, name="positive")])


def softmax_state(dag: te.ComputeDAG, warp: int = 0) -> State:
    state = row_blocks(dag).apply(ComputeAt("total", "Y", "j.1", "register"), CrossThread("total", "m", warp))
    return state.apply(ComputeAt("top", "Y", "j.1", "register"), CrossThread("top", "k", warp))


def argmax_state(dag: te.ComputeDAG) -> State:
    state = initial_state(dag).apply(CacheWrite("R"), *tiled("R", "i"))
    return state.apply(ComputeAt("R.acc", "R", "i.2", "register"))


def parts_state(dag: te.ComputeDAG) -> State:
    """A matrix product whose reduction is cut over blocks."""
    state = initial_state(dag).apply(Rfactor("C", "k", 4, "outer"))
    axes = [a.name for a in state.stage("C.rf").op.axes]
    return state.apply(*tiled("C.rf", axes, "f"), *tiled("C", "ij"))


def atomic_state(dag: te.ComputeDAG, factor: int = 4) -> State:
    """A matrix product whose blocks add their parts of the reduction to the result."""
    state = initial_state(dag).apply(Rfactor("C", "k", factor, "outer"), CacheWrite("C.rf"))
    axes = [a.name for a in state.stage("C.rf").op.axes]
    state = state.apply(*tiled("C.rf", axes, "f"), *tiled("C", "ij"))
    return state.apply(ComputeAt("C.rf.acc", "C.rf", f"{axes[-1]}.2", "register"), Atomic("C"))


def atomic_team_state(dag: te.ComputeDAG, threads: int, warp: int) -> State:
    """Parts of a row by blocks, whose first threads update the result."""
    state = initial_state(dag).apply(Rfactor("R", "k", 37, "outer"), CacheWrite("R.rf"))
    k, i = (a.name for a in state.stage("R.rf").op.axes)
    state = state.apply(Bind("R.rf", k, "blockIdx.y"), Bind("R.rf", i, "blockIdx.x"), Team("R.rf", threads))
    state = state.apply(ComputeAt("R.rf.acc", "R.rf", "team", "register"), CrossThread("R.rf.acc", "k.i", warp))
    return state.apply(Bind("R", "i", "threadIdx.x"), Atomic("R"))


def lanes_state(dag: te.ComputeDAG, lanes: int) -> State:
    """Rows in registers of threads, each of which has some of their terms."""
    state = initial_state(dag).apply(Split("R", "i", (3, 2)), Split("R", "k", (lanes, 2)))
    state = state.apply(Reorder("R", ("i.0", "i.1", "k.1", "i.2", "k.0", "k.2")))
    state = state.apply(Bind("R", "i.0", "blockIdx.x"), Bind("R", "i.1", "threadIdx.y"))
    return state.apply(*(Unroll("R", x) for x in ("i.2", "k.0", "k.2")), AcrossLanes("R", "k.1"))


Case = tuple[te.ComputeDAG, State, dict[str, int]]


def case(dag: te.ComputeDAG, state: State, seed: int, **values: int) -> Case:
    """A schedule with values that divide nothing, or with those given."""
    return dag, state, {**random_values(seed, parameters(state)), **values}


def cases() -> dict[str, Case]:
    """A schedule of every kind, small enough to be run, with real numbers of threads."""
    big = {"iv": 2, "it": 8, "is": 2, "jv": 2, "jt": 8, "js": 4, "k1": 4, "k2": 4}
    product, conv1, conv2 = matmul(33, 29, 17), conv(1, 5, 9, 9, 7, 3, 1, 1), conv(2, 4, 8, 8, 5, 3, 2, 1, "NHWC")
    whole, rows, best, images = matmul(64, 128, 32), row_reduction(7, 31, "any"), argmax(37, 13), pool(2, 11)
    return {
        "matmul": case(product, matmul_state(product), 0, **big, va=1, vb=2),
        "matmul whole tiles": case(whole, matmul_state(whole), 0, **big, va=4, vb=4),
        "matmul int8": case(d := matmul(13, 15, 31, "int8"), matmul_state(d), 1),
        "matmul float64": case(d := matmul(13, 15, 31, "float64"), matmul_state(d), 2),
        "matmul in parts": case(d := matmul(9, 11, 13), parts_state(d), 3),
        "matmul with atomic updates": case(d := matmul(9, 11, 13), atomic_state(d), 3),
        "float64 with atomic updates": case(d := matmul(5, 7, 13, "float64"), atomic_state(d, 3), 4),
        "int64 with atomic updates": case(d := matmul(5, 7, 13, "int64"), atomic_state(d, 3), 5),
        "rows with atomic updates": case(d := one_reduction("sum", 3, 100), atomic_team_state(d, 32, 32), 3),
        "least with atomic updates": case(d := one_reduction("min", 3, 100, "int64"), atomic_team_state(d, 24, 0), 3),
        "lookups": case(d := looked_up(13, 27), initial_state(d).apply(*tiled("T4", "ij")), 3),
        "conv2d NCHW": case(conv1, conv_state(conv1, inline=False), 4),
        "conv2d NHWC": case(conv2, conv_state(conv2, inline=True), 5),
        "matmul in a pipeline": case(
            product,
            matmul_state(product).apply(Pipeline("C.acc", "k.0", 3)),
            0,
            **{**big, "k1": 2, "k2": 2},
            va=1,
            vb=2,
        ),
        "matmul in a pipeline, whole tiles": case(
            whole, matmul_state(whole).apply(Pipeline("C.acc", "k.0", 4)), 0, **{**big, "k1": 2, "k2": 2}, va=4, vb=4
        ),
        "matmul through registers": case(
            d := matmul(32, 64, 32),
            matmul_state(d).apply(Pipeline("C.acc", "k.0", 2, "registers")),
            0,
            **big,
            va=4,
            vb=4,
        ),
        "matmul with fewer chunks than stages": case(
            d := matmul(33, 29, 7),
            matmul_state(d).apply(Pipeline("C.acc", "k.0", 4)),
            0,
            **{**big, "k2": 1},
            va=1,
            vb=1,
        ),
        "matmul with one chunk in a pipeline": case(
            d := matmul(33, 29, 3),
            matmul_state(d).apply(Pipeline("C.acc", "k.0", 3)),
            0,
            **{**big, "k2": 1},
            va=1,
            vb=1,
        ),
        "conv2d in a pipeline": case(
            conv1, conv_state(conv1, inline=False).apply(Pipeline("Y.acc", "rc.0", 2)), 4, rc1=2
        ),
        "transpose": case(d := transpose(32, 24), transpose_state(d), 6, it=4, jt=4, js=4, va=4),
        "neighbours": case(
            d := neighbours(31), initial_state(d).apply(*tiled("C", "i"), *shared_copy("B", "C", "i.2")), 7
        ),
        "softmax": case(d := softmax(5, 31), softmax_state(d), 8, jt=12),
        "any": case(rows, cross_state(rows), 9, jt=8),
        "any by shuffles": case(rows, cross_state(rows, warp=32), 9, jt=40),
        "softmax by shuffles": case(d := softmax(5, 96), softmax_state(d, 32), 8, jt=64),
        "argmax by shuffles": case(best, team_state(best, 70, 32), 10),
        "a warp for each row": case(d := row_reduction(13, 70), teams_state(d, 32, 4, 32), 10),
        "two warps for each row": case(d := row_reduction(5, 100, "max"), teams_state(d, 64, 3, 32), 10),
        "rows that share warps": case(d := row_reduction(13, 70, "prod"), teams_state(d, 8, 6, 32), 10),
        "one warp": case(d := one_reduction("sum", 3, 50), team_state(d, 32, 32), 10),
        "rows in lanes": case(d := one_reduction("sum", 13, 50), lanes_state(d, 8), 10),
        "rows in more lanes than terms": case(d := one_reduction("prod", 7, 9), lanes_state(d, 16), 10),
        "argmax": case(best, argmax_state(best), 10),
        "pool": case(images, initial_state(images).apply(*tiled("Y", "byx"), *tiled("positive", "byx", "p")), 11),
        "several": case(d := several(13, 12, 7), initial_state(d).apply(*tiled("D", "ij"), *tiled("S", "i", "s")), 12),
    }
