"""Products of matrices in every order of their operands, and schedules of them for tensor cores."""

from __future__ import annotations

from typing import Any

from autosched import te
from autosched.ir.dtype import DTYPES
from autosched.ir.instructions.matrices import matrix_operands
from autosched.ir.instructions.precision import FAST_FLOAT8, PRECISIONS
from autosched.schedule import (
    Bind,
    CacheRead,
    CacheWrite,
    ComputeAt,
    Cooperate,
    Fuse,
    Mma,
    Pack,
    Pad,
    Pipeline,
    Reorder,
    Rfactor,
    Split,
    State,
    StoreTiles,
    Unroll,
    WarpgroupMma,
    initial_state,
)
from autosched.te.rewrites.precision import with_precision

ORDERS = ("nn", "nt", "tn", "tt")  # of A and B: n as [m, k] and [k, n], t the other way round


def product(m: int, n: int, k: int, order: str = "nn", dtype: str = "float16", batch: int = 0) -> te.ComputeDAG:
    """C[i, j] = sum over k of A[i, k] * B[k, j] in float32 or int32, for each of a `batch` if that is not 0. `dtype`: of
    both, or of A * of B, or the precision in which float32, or float8_e4m3fn, is multiplied."""
    if dtype in PRECISIONS:
        kind = "float8_e4m3fn" if dtype == FAST_FLOAT8 else "float32"
        return with_precision(product(m, n, k, order, kind, batch), dtype)
    lead = (batch,) if batch else ()
    a_shape, b_shape = (m, k) if order[0] == "n" else (k, m), (k, n) if order[1] == "n" else (n, k)
    first, _, second = dtype.partition("*")
    A, B = (
        te.placeholder((*lead, *a_shape), first, name="A"),
        te.placeholder((*lead, *b_shape), second or first, name="B"),
    )
    axis = te.reduce_axis(k, name="k")
    wide = "int32" if "int" in dtype else "float32"

    def at(*point: Any) -> Any:
        *b, i, j = point
        left = A[(*b, i, axis) if order[0] == "n" else (*b, axis, i)]
        right = B[(*b, axis, j) if order[1] == "n" else (*b, j, axis)]
        return te.sum(te.cast(left, wide) * te.cast(right, wide), axis=axis)  # a cast to its own type is none

    function = (lambda b, i, j: at(b, i, j)) if batch else (lambda i, j: at(i, j))
    return te.ComputeDAG(te.compute((*lead, m, n), function, name="C"))


def biased(m: int, n: int, k: int, dtype: str = "float16", prologue: bool = False) -> te.ComputeDAG:
    """relu(A B + bias) as `dtype`, an epilogue; with a `prologue` relu(relu(A) B + bias)."""
    A, B = te.placeholder((m, k), dtype, name="A"), te.placeholder((k, n), dtype, name="B")
    bias, axis = te.placeholder((n,), "float32", name="bias"), te.reduce_axis(k, name="k")
    P = te.compute((m, k), lambda i, j: te.cast(te.max(te.cast(A[i, j], "float32"), 0.0), dtype), name="P")
    left = P if prologue else A
    C = te.compute(
        (m, n),
        lambda i, j: te.sum(te.cast(left[i, axis], "float32") * te.cast(B[axis, j], "float32"), axis=axis),
        name="C",
    )
    return te.ComputeDAG(te.compute((m, n), lambda i, j: te.cast(te.max(C[i, j] + bias[j], 0.0), dtype), name="D"))


def matrix_state(
    dag: te.ComputeDAG,
    warps: tuple[int, int] = (1, 1),
    tiles: tuple[int, int] = (1, 1),
    stages: int = 1,
    pad: int = 8,
    vector: int = 1,
    part: int = 0,
) -> State:
    """A block of warps, each with some tiles of 16 by 8; two instructions between two fills. Copies of A and B lie along
    k where they have to. Each `part` of k has blocks of its own, if that is not 0."""
    dtype = dag.inputs[0].dtype
    operands = matrix_operands(dag.stages[0].body, dag.stages[0].reducer)
    assert operands is not None
    row = operands.row(*operands.loads, capability=90)
    assert row is not None
    is_small = DTYPES[dtype].nbytes == 1
    name, k = ("C.rf", "k.i") if part else ("C", "k")
    acc = f"{name}.acc"
    state = initial_state(dag).apply(
        *([Rfactor("C", "k", part, "outer")] if part else []),
        CacheWrite(name),
        Split(name, "i", (warps[0], tiles[0], 2, 8)),
        Split(name, "j", (warps[1], tiles[1], 4, 2)),
        Reorder(name, ("i.0", "j.0", "i.1", "j.1", "i.4", "j.3", "i.2", "j.2", "i.3", "j.4")),
        Fuse(name, ("i.1", "j.1")),
        *([Bind(name, "k.o", "blockIdx.z")] if part else []),
        *(Bind(name, f"{axis}.0", f"blockIdx.{place}") for axis, place in (("i", "y"), ("j", "x"))),
        Bind(name, "i.1@j.1", "threadIdx.z"),
        Bind(name, "i.4", "threadIdx.y"),
        Bind(name, "j.3", "threadIdx.x"),
        *(Unroll(name, loop) for loop in ("i.2", "j.2", "i.3", "j.4")),
        ComputeAt(acc, name, "j.3", "register"),
        Split(acc, k, (2, row.k)),
        Reorder(acc, (f"{k}.0", f"{k}.1", "i", "j", f"{k}.2")),
        *(Unroll(acc, loop) for loop in (f"{k}.1", "i", "j", f"{k}.2")),
    )
    for buffer in "AB":
        copy = f"{buffer}.shared"
        state = state.apply(CacheRead(buffer, acc, "shared"), ComputeAt(copy, acc, f"{k}.0", "shared"))
        (load,) = state.stage(acc).op.loads_from(copy)
        if is_small and load.indices[-1] is not state.stage(acc).op.reduce_axes[0].var:
            state = state.apply(Pack(copy, (1, 0)))
        state = state.apply(Pad(copy, pad), Cooperate(copy, vector))
    if stages > 1:
        state = state.apply(Pipeline(acc, f"{k}.0", stages))
    return state.apply(Mma(acc, row.name))


def group_state(
    dag: te.ComputeDAG,
    groups: tuple[int, int] = (1, 1),
    columns: int = 2,
    steps: int = 2,
    stages: int = 2,
    multiprocessors: int = 0,
    staged: bool = False,
) -> State:
    """Warpgroups, each with some tiles of 64 rows (`groups`), by `columns` units of 8; so many `steps` of k at a
    time."""
    acc, operands = "C.acc", matrix_operands(dag.stages[0].body, dag.stages[0].reducer)
    assert operands is not None
    row = operands.row(*operands.loads, 90, 4)
    assert row is not None
    state = initial_state(dag).apply(
        CacheWrite("C"),
        Split("C", "i", (*groups, 4, 2, 8)),
        Split("C", "j", (columns, 4, 2)),
        Reorder("C", ("i.0", "j.0", "i.1", "i.3", "i.5", "j.2", "i.2", "j.1", "i.4", "j.3")),
        Fuse("C", ("i.1", "i.3")),
        Bind("C", "i.0", "blockIdx.y"),
        Bind("C", "j.0", "blockIdx.x"),
        Bind("C", "i.1@i.3", "threadIdx.z"),
        Bind("C", "i.5", "threadIdx.y"),
        Bind("C", "j.2", "threadIdx.x"),
        *(Unroll("C", loop) for loop in ("i.2", "j.1", "i.4", "j.3")),
        *([StoreTiles("C")] if staged else []),
        ComputeAt(acc, "C", "j.2", "register"),
        Split(acc, "k", (steps, row.k)),
        Reorder(acc, ("k.0", "k.1", "i", "j", "k.2")),
        *(Unroll(acc, loop) for loop in ("k.1", "i", "j", "k.2")),
    )
    for buffer in "AB":
        state = state.apply(CacheRead(buffer, acc, "tile"), ComputeAt(f"{buffer}.tile", acc, "k.0", "shared"))
    return state.apply(Pipeline(acc, "k.0", stages, "tiles", multiprocessors), WarpgroupMma(acc, row.name))
