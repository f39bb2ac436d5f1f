"""Every step that cannot be done is refused with one sentence that names it, and changes nothing."""

from __future__ import annotations

import re

import pytest

from autosched import te
from autosched.errors import ScheduleError
from autosched.schedule import (
    Bind,
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    FetchAhead,
    Flatten,
    Fuse,
    Pack,
    Parallel,
    Prefetch,
    Reindex,
    Reorder,
    Rfactor,
    Split,
    Step,
    Stream,
    Unroll,
    Vectorize,
    initial_state,
)
from autosched.te import ComputeDAG
from tests.helpers import exact
from tests.schedule.graphs import chain, dense_relu, matmul, shifted, softmax_like
from tests.te.scans import smoothed

MATMUL, DENSE, CHAIN = matmul(5, 7, 3), dense_relu(5, 7, 3), chain(5, 7)
SCAN, SPLIT_ALONG = ComputeDAG(smoothed((12, 6))), Split("Y", "i0", (2,))
SPLIT_I, SPLIT_D = Split("C", "i", (2,)), Split("D", "i", (2,))
CACHE = CacheRead("A", "C")

# graph, steps that are accepted, the step that is refused, what it says
CASES: list[tuple[ComputeDAG, tuple[Step, ...], Step, str]] = [
    # recurrences
    (SCAN, (), Parallel("Y", ("i0",)), "parallel(Y, i0): a reduction loop cannot be parallel"),
    (SCAN, (), Unroll("Y", "i0"), "unroll(Y, i0): a loop along a recurrence runs in order; leave it serial"),
    (SCAN, (Reorder("Y", ("i1", "i0")),), Vectorize("Y", "i0"), "vectorize(Y, i0): a loop along a recurrence runs in"),
    (SCAN, (SPLIT_ALONG,), Reorder("Y", ("i0.1", "i0.0")), "reorder(Y): the loops along a recurrence keep their order"),
    (SCAN, (), Fuse("Y", ("i0", "i1")), "fuse(Y): spatial and reduction loops cannot be fused"),
    (SCAN, (), Bind("Y", "i0", "threadIdx.x"), "bind(Y, i0, threadIdx.x): a reduction loop cannot be bound"),
    (SCAN, (), ComputeInline("Y"), "compute_inline(Y): a recurrence cannot be inlined"),
    (SCAN, (), Stream("Y"), "stream(Y): a reduction or a recurrence reads what it has written"),
    (SCAN, (), CacheRead("Y", "Y"), "cache_read(Y, Y): the stage reads what it has written itself"),
    (SCAN, (), Flatten("Y"), "flatten(Y): only an output of two axes or more, without a reduction"),
    # names
    (MATMUL, (), Split("X", "i", (2,)), "the schedule has no stage 'X'; its stages are C"),
    (MATMUL, (), Split("C", "x", (2,)), "stage C has no axis 'x'; its axes are i, j, k"),
    (MATMUL, (SPLIT_I,), Unroll("C", "i"), "stage C has no loop 'i'; its loops are i.0, i.1, j, k"),
    (MATMUL, (), Reorder("C", ("i", "x")), "stage C has no loop 'x'"),
    (MATMUL, (), Fuse("C", ("x", "j")), "stage C has no loop 'x'"),
    (MATMUL, (), Parallel("C", ("x",)), "stage C has no loop 'x'"),
    (MATMUL, (), Vectorize("C", "x"), "stage C has no loop 'x'"),
    (MATMUL, (), Prefetch("C", "A", "x", 1), "stage C has no loop 'x'"),
    (DENSE, (), ComputeAt("C", "D", "x"), "stage D has no loop 'x'"),
    (DENSE, (), ComputeAt("C", "X", "i"), "the schedule has no stage 'X'"),
    (MATMUL, (), Rfactor("C", "x", 2), "stage C has no axis 'x'"),
    # split
    (MATMUL, (SPLIT_I,), Split("C", "i", (2,)), "split(C, i): the axis is split already; give all factors at once"),
    (MATMUL, (), Split("C", "i", ()), "split(C, i): no factors given"),
    (MATMUL, (), Split("C", "i", (0,)), "split(C, i): factor 0 is not an integer from 1 to 1099511627776"),
    (MATMUL, (), Split("C", "i", (2, -1)), "split(C, i): factor -1 is not an integer"),
    (MATMUL, (), Split("C", "i", (1 << 41,)), "split(C, i): factor 2199023255552 is not an integer"),
    (MATMUL, (), Split("C", "i", (True,)), "split(C, i): factor True is not an integer"),
    (MATMUL, (Unroll("C", "i"),), Split("C", "i", (2,)), "split(C, i): the loop is fused or annotated; split it before"),
    (DENSE, (ComputeAt("C", "D", "i"),), Split("D", "i", (2,)), "split(D, i): a stage is computed at this loop"),
    (MATMUL, (Prefetch("C", "A", "k", 1),), Split("C", "k", (2,)), "split(C, k): the loop prefetches; split it before"),
    # reorder
    (MATMUL, (), Reorder("C", ("i", "j", "i")), "reorder(C): a loop is named twice in i, j, i"),
    (DENSE, (ComputeAt("C", "D", "j"),), Reorder("D", ("j", "i")), "reorder(D): a stage is computed inside already"),
    (MATMUL, (Parallel("C", ("i",)),), Reorder("C", ("j", "i")), "reorder(C): parallel loops must be the outermost ones"),
    (MATMUL, (Vectorize("C", "k"),), Reorder("C", ("k", "j")), "reorder(C, k): a vectorised loop must be the innermost"),
    # fuse
    (MATMUL, (), Fuse("C", ("i",)), "fuse(C): at least two loops are needed, got 1"),
    (MATMUL, (), Fuse("C", ("j", "i")), "fuse(C): j, i are not adjacent loops in this order"),
    (MATMUL, (), Fuse("C", ("i", "k")), "fuse(C): i, k are not adjacent loops in this order"),
    (MATMUL, (), Fuse("C", ("j", "k")), "fuse(C): spatial and reduction loops cannot be fused"),
    (MATMUL, (Unroll("C", "j"),), Fuse("C", ("i", "j")), "fuse(C): fuse before annotating"),
    (DENSE, (ComputeAt("C", "D", "i"),), Fuse("D", ("i", "j")), "fuse(D): a stage is computed between the loops"),
    (DENSE, (ComputeAt("C", "D", "j"),), Fuse("D", ("i", "j")), "fuse(D): a stage is computed at j; fuse before"),
    (MATMUL, (Prefetch("C", "A", "j", 1),), Fuse("C", ("i", "j")), "fuse(C): a loop prefetches; fuse before"),
    # parallel
    (MATMUL, (), Parallel("C", ("j",)), "parallel(C): parallel loops must be the outermost ones"),
    (MATMUL, (), Parallel("C", ("i", "j", "k")), "parallel(C, k): a reduction loop cannot be parallel; rfactor it first"),
    (MATMUL, (), Parallel("C", ("i", "i")), "parallel(C, i): the loop is parallel already"),
    (DENSE, (ComputeAt("C", "D", "i"),), Parallel("C", ("i",)), "parallel(C): only a stage at the root can be parallel"),
    (
        DENSE, (ComputeAt("C", "D", "i"),), Parallel("D", ("i", "j")),
        "parallel(D): a stage is computed at i, between the parallel loops of D",
    ),
    (
        MATMUL, (Prefetch("C", "A", "i", 1),), Parallel("C", ("i", "j")),
        "parallel(C): a prefetch stands at i, between the parallel loops of C",
    ),
    # vectorize, unroll
    (MATMUL, (), Vectorize("C", "j"), "vectorize(C, j): a vectorised loop must be the innermost one"),
    (MATMUL, (Vectorize("C", "k"),), Vectorize("C", "j"), "vectorize(C): only one loop can be vectorised"),
    (MATMUL, (Unroll("C", "k"),), Vectorize("C", "k"), "vectorize(C, k): the loop is unroll already"),
    (MATMUL, (Vectorize("C", "k"),), Unroll("C", "k"), "unroll(C, k): the loop is vectorize already"),
    (CHAIN, (Fuse("D", ("i", "j")),), Vectorize("D", "i@j"), "vectorize(D, i@j): a fused loop cannot be vectorised"),
    (DENSE, (ComputeAt("C", "D", "j"),), Vectorize("D", "j"), "vectorize(D, j): a stage is computed inside"),
    # prefetch
    (DENSE, (), Prefetch("D", "A", "i", 1), "prefetch(D, A): the stage does not read A"),
    (MATMUL, (), Prefetch("C", "A", "k", 0), "prefetch(C, A): distance 0 is not between 1 and 4096"),
    (MATMUL, (), Prefetch("C", "A", "k", 4097), "prefetch(C, A): distance 4097 is not between 1 and 4096"),
    (MATMUL, (), Prefetch("C", "A", "k", 1, 3), "prefetch(C, A): nothing is asked for to be in level 3 of the caches"),
    (
        MATMUL, (Parallel("C", ("i", "j")),), Prefetch("C", "A", "i", 1),
        "prefetch(C, A): a prefetch stands at i, between the parallel loops of C",
    ),
    # fetch_ahead
    (MATMUL, (), FetchAhead("C", "i", "C", "A", 1), "fetch_ahead(C, A): it is not computed in a loop"),
    (DENSE, (), FetchAhead("D", "i", "D", "A", 1), "fetch_ahead(D, A): the stage does not read A"),
    (
        DENSE, (ComputeAt("C", "D", "j"),), FetchAhead("D", "i", "D", "C", 1),
        "fetch_ahead(D, C): C is neither an input nor computed at the root",
    ),
    (
        DENSE, (ComputeAt("C", "D", "j"),), FetchAhead("D", "j", "C", "A", 1, 3),
        "fetch_ahead(C, A): nothing is asked for to be in level 3 of the caches",
    ),
    (MATMUL, (), FetchAhead("C", "i", "C", "C", 1), "fetch_ahead(C, C): the stage does not read C"),
    (
        DENSE, (ComputeAt("C", "D", "j"),), FetchAhead("D", "i", "C", "D", 1),
        "fetch_ahead(C, D): i is not inside j, where it is computed",
    ),
    (
        DENSE, (ComputeAt("C", "D", "j"),), FetchAhead("D", "i", "C", "A", 1),
        "fetch_ahead(C, A): i is not inside j, where it is computed",
    ),
    (
        DENSE, (ComputeAt("C", "D", "i"), Unroll("D", "j")), FetchAhead("D", "j", "C", "A", 1),
        "fetch_ahead(C, A): j is not a plain loop",
    ),
    (
        DENSE, (ComputeAt("C", "D", "i"),), FetchAhead("D", "i", "C", "A", 0),
        "fetch_ahead(C, A): distance 0 is not between 1 and 4096",
    ),
    (
        DENSE, (ComputeAt("C", "D", "i"), FetchAhead("D", "j", "C", "A", 1)), Split("D", "j", (2,)),
        "split(D, j): the loop prefetches; split it before",
    ),
    # compute_at
    (DENSE, (), ComputeAt("C", "C", "i"), "compute_at(C, C, i): a stage cannot be computed inside itself"),
    (DENSE, (), ComputeAt("D", "C", "i"), "compute_at(D, C, i): D is an output; cache_write it first"),
    (DENSE, (Vectorize("D", "j"),), ComputeAt("C", "D", "j"), "compute_at(C, D, j): the loop is vectorised"),
    (DENSE, (Parallel("C", ("i",)),), ComputeAt("C", "D", "i"), "compute_at(C, D, i): C has parallel loops"),
    (DENSE, (), ComputeAt("C", "D", "i", "far"), "scope must be one of local, register, shared, warp, got 'far'"),
    (DENSE, (), ComputeAt("C", "D", "i", "param"), "scope must be one of local, register, shared, warp, got 'param'"),
    (CHAIN, (), ComputeAt("A", "B", "i"), "compute_at(A, B, i): M reads A outside of loop i of B, in which A is computed"),
    (
        CHAIN, (ComputeAt("B", "M", "i"),), ComputeAt("A", "M", "j"),
        "compute_at(A, M, j): B reads A outside of loop j of M, in which A is computed",
    ),
    (
        CHAIN, (ComputeAt("M", "D", "j"), ComputeAt("B", "D", "j")), ComputeAt("M", "D", "i"),
        "compute_at(M, D, i): M reads B outside of loop j of D, in which B is computed",
    ),
    (
        shifted(5, 1), (ComputeAt("Y", "Z", "i"), CacheRead("X", "Y")), ComputeAt("Y", "X.cache", "d0"),
        "compute_at(Y, X.cache, d0): Z reads Y outside of loop d0 of X.cache, in which Y is computed",
    ),
    (
        DENSE, (Parallel("D", ("i", "j")),), ComputeAt("C", "D", "i"),
        "compute_at(C, D, i): a stage is computed at i, between the parallel loops of D",
    ),
    (
        DENSE, (ComputeAt("C", "D", "i"), CacheRead("A", "C"), ComputeAt("A.cache", "C", "i")),
        ComputeAt("C", "A.cache", "d0"), "compute_at(C, A.cache, d0): A.cache is computed inside C",
    ),
    # compute_inline
    (DENSE, (), ComputeInline("C"), "compute_inline(C): a reduction cannot be inlined"),
    (DENSE, (), ComputeInline("D"), "compute_inline(D): it is an output"),
    (CHAIN, (ComputeAt("B", "M", "i"),), ComputeInline("M"), "compute_inline(M): a stage is computed inside it"),
    # cache_read
    (MATMUL, (), CacheRead("C", "C"), "cache_read(C, C): C does not read C"),
    (MATMUL, (CACHE,), CacheRead("A", "C"), "cache_read(A, C): C does not read A"),
    (
        CHAIN, (CacheRead("A", "B"),), CacheRead("A", "M"),
        "cache_read(A, M): A.cache exists already; choose another tag",
    ),
    (
        DENSE, (ComputeAt("C", "D", "i"),), CacheRead("C", "D"),
        "cache_read(C, D): C.cache reads C outside of loop i of D, in which C is computed",
    ),
    # reindex
    (MATMUL, (), Reindex("C", "C"), "reindex(C, C): C reads C at 0 places instead of one"),
    (MATMUL, (Rfactor("C", "k", 4),), Reindex("A", "C.rf"), "reindex(A, C.rf): C.rf does not read every point"),
    # cache_write
    (MATMUL, (SPLIT_I,), CacheWrite("C"), "cache_write(C): do it before any other change of its loops"),
    (MATMUL, (Reorder("C", ("j", "i")),), CacheWrite("C"), "cache_write(C): do it before any other change of its loops"),
    (DENSE, (Pack("C", (1, 0)),), CacheWrite("C"), "cache_write(C): do it before any other change of its loops"),
    (CHAIN, (ComputeAt("B", "M", "i"),), CacheWrite("M"), "cache_write(M): do it before any other change of its loops"),
    (MATMUL, (CacheWrite("C"),), CacheWrite("C"), "cache_write(C): C.acc exists already"),
    (
        CHAIN, (ComputeAt("M", "D", "i"), ComputeAt("B", "D", "i")), CacheWrite("M"),
        "cache_write(M): M.acc reads B outside of loop i of D, in which B is computed",
    ),
    # pack
    (MATMUL, (), Pack("C", (0, 1)), "pack(C): an output keeps its layout"),
    (DENSE, (), Pack("C", (0,)), "pack(C): (0,) is not an order of 2 dimensions"),
    (DENSE, (), Pack("C", (0, 0)), "pack(C): (0, 0) is not an order of 2 dimensions"),
    (DENSE, (), Pack("C", (1, 0), ((2, 4),)), "pack(C): there is no dimension 2"),
    (DENSE, (), Pack("C", (1, 0), ((-1, 4),)), "pack(C): there is no dimension -1"),
    (DENSE, (), Pack("C", (1, 0), ((1, 0),)), "pack(C): factor 0 is not an integer"),
    (DENSE, (), Pack("C", (1, 0), ((1, 4), (1, 2))), "pack(C): a dimension is tiled twice"),
    # rfactor
    (MATMUL, (), Rfactor("C", "i", 2), "rfactor(C, i): it is not a reduction axis"),
    (MATMUL, (SPLIT_I,), Rfactor("C", "k", 2), "rfactor(C, k): do it before any other change of its loops"),
    (MATMUL, (Parallel("C", ("i",)),), Rfactor("C", "k", 2), "rfactor(C, k): do it before any other change of its loops"),
    (MATMUL, (), Rfactor("C", "k", 2, "both"), "rfactor(C, k): keep must be 'inner' or 'outer', got 'both'"),
    (MATMUL, (), Rfactor("C", "k", 0), "rfactor(C, k): factor 0 is not an integer"),
    (MATMUL, (Rfactor("C", "k", 2),), Rfactor("C", "k.i", 2), "rfactor(C, k.i): C.rf exists already"),
    (
        softmax_like(3, 4), (ComputeAt("total", "Y", "i"), ComputeAt("E", "Y", "i")), Rfactor("total", "l", 2),
        "rfactor(total, l): total.rf reads E outside of loop i of Y, in which E is computed",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("dag", "accepted", "step", "message"), CASES)
def test_a_step_is_refused(dag, accepted, step, message):
    state = initial_state(dag).apply(*accepted)
    with pytest.raises(ScheduleError, match=re.escape(message)) as caught:
        state.apply(step)
    assert "\n" not in str(caught.value)
    assert state == initial_state(dag).apply(*accepted)


def test_a_stage_that_nothing_reads_any_more_is_computed_nowhere():
    x = te.placeholder((4,), "int32", "X")
    t = te.compute((4,), lambda i: x[i] * 3, name="T")
    z = te.compute((4,), lambda i: x[i], name="Z")
    dag = ComputeDAG(te.compute((4,), lambda i: te.select(t[i] > 0, z[i], x[i]), name="Y"))
    state = initial_state(dag).apply(ComputeInline("Z"))  # it is x, whatever t is
    exact(dag, state)
    with pytest.raises(ScheduleError, match=re.escape("compute_at(T, Y, i): nothing reads T")):
        state.apply(ComputeAt("T", "Y", "i"))


def test_names_in_use_are_not_taken_again():
    """A user may have called an input or a stage what a step would call its own."""
    a, c = te.placeholder((4, 5), name="A"), te.placeholder((4, 5), name="A.cache")
    k = te.reduce_axis(5, "k")
    s = te.compute((4,), lambda i: te.sum(a[i, k] * c[i, k], axis=k), name="S")
    state = initial_state(ComputeDAG(s))
    with pytest.raises(ScheduleError, match=re.escape("cache_read(A, S): A.cache exists already; choose another tag")):
        state.apply(CacheRead("A", "S"))
    state.apply(CacheRead("A", "S", "copy"))
    for taken, step in (("S.acc", CacheWrite("S")), ("S.rf", Rfactor("S", "k", 2))):
        b = te.placeholder((4,), name=taken)
        r = te.reduce_axis(5, "k")
        t = te.compute((4,), lambda i, b=b, r=r: te.sum(a[i, r] * b[i], axis=r), name="S")
        with pytest.raises(ScheduleError, match=f"{re.escape(taken)} exists already"):
            initial_state(ComputeDAG(t)).apply(step)
