"""Steps that change stages: exact results on awkward extents, and just the region that is needed."""

from __future__ import annotations

import math

import pytest

from autosched.ir.stmt import Allocate, Buffer, Func, Layout, Scope, walk
from autosched.ir.verify import verify
from autosched.ir.visit import is_closed
from autosched.lower import concretise, lower
from autosched.schedule import (
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    Fuse,
    Pack,
    Parallel,
    Reindex,
    Reorder,
    Rfactor,
    Split,
    Step,
    Unroll,
    Vectorize,
    initial_state,
)
from autosched.te import ComputeDAG
from tests.helpers import check_nest
from tests.schedule.graphs import (
    argmax,
    chain,
    conv1d,
    conv2d,
    dense_relu,
    matmul,
    reshapes,
    reversed_rows,
    row_any,
    shifted,
    softmax_like,
    stencils,
    total,
    transposed_conv,
    transposes,
)

EXTENTS = (1, 2, 3, 5, 7, 12, 13, 17, 31)


def nest(dag: ComputeDAG, *steps: Step) -> Func:
    symbolic = lower(initial_state(dag).apply(*steps))
    verify(symbolic)
    func = concretise(symbolic, {})[0]
    verify(func, concrete=True)
    return func


def check(dag: ComputeDAG, *steps: Step) -> dict[str, int]:
    return check_nest(nest(dag, *steps), dag)


def buffers_of(func: Func) -> dict[str, Buffer]:
    """Parameters, what is prepared, and allocations, by name."""
    roots = [func.body] if func.prepare is None else [func.body, func.prepare]
    allocated = [s.buffer for root in roots for s in walk(root) if isinstance(s, Allocate)]
    return {b.name: b for b in (*func.params, *func.prepared, *allocated)}


def shape(func: Func, buffer: str) -> tuple[int, ...]:
    return tuple(int(e.value) for e in buffers_of(func)[buffer].shape)


# compute_at


@pytest.mark.parametrize("n", EXTENTS)
def test_a_stage_computed_in_a_tile_of_its_reader(n):
    dag = dense_relu(n, 13, 5)
    steps = (
        Split("D", "i", (4,)),
        Split("D", "j", (8,)),
        Reorder("D", ("i.0", "j.0", "i.1", "j.1")),
        ComputeAt("C", "D", "j.0"),
    )
    func = nest(dag, *steps)
    counts = check_nest(func, dag)
    assert counts["C.init"] == n * 13  # nothing is computed twice
    assert shape(func, "C") == (min(n, 4), 8)


@pytest.mark.parametrize("n", EXTENTS)
@pytest.mark.parametrize("loop", ["i.0", "i.1", "o.0", "o.1", "a", "b"])
def test_padding_computed_at_every_level(n, loop):
    dag = conv1d(n + 2, 2, 5)
    tiles = (Split("C", "i", (4,)), Split("C", "o", (2,)), Reorder("C", ("i.0", "i.1", "o.0", "o.1", "a", "b")))
    check(dag, *tiles, ComputeAt("P", "C", loop))


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("n", [5, 7, 12, 13])
def test_a_strided_reader_needs_only_its_window(n, stride):
    dag = conv1d(n, 2, 3, k=2, stride=stride, pad=2)
    func = nest(dag, Split("C", "i", (2,)), ComputeAt("P", "C", "i.0"))
    check_nest(func, dag)
    assert shape(func, "P") == (min(stride + 2, n + 4), 2)


@pytest.mark.parametrize("place", ["i.0", "j.0", "o", "a"])
def test_two_dimensional_padding(place):
    order = ("i.0", "j.0", "i.1", "j.1", "o", "a", "b", "c")
    check(
        conv2d(5, 7, 2, 3),
        Split("C", "i", (2,)),
        Split("C", "j", (3,)),
        Reorder("C", order),
        ComputeAt("P", "C", place),
    )


@pytest.mark.parametrize("n", EXTENTS)
def test_halos_through_several_attached_stages(n):
    dag = stencils(n + 3)
    check(
        dag, Split("D", "i", (3,)), ComputeAt("C", "D", "i.0"), ComputeAt("B", "D", "i.0"), ComputeAt("A", "D", "i.0")
    )
    check(dag, Split("C", "i", (2, 2)), ComputeAt("B", "C", "i.1"), ComputeAt("A", "C", "i.0"))
    check(dag, Split("C", "i", (2,)), ComputeAt("B", "C", "i.0"), Split("B", "i", (2,)), Vectorize("B", "i.1"))


@pytest.mark.parametrize("by", [1, 4, 5, 8, 12])
@pytest.mark.parametrize("kind", [Unroll, Vectorize])
def test_a_region_that_lies_outside_of_the_tensor_is_empty(by, kind):
    """The cached part of X starts behind its end on the last tiles; a full tile there would read nothing it may."""
    dag = shifted(12, by)
    check(dag, CacheRead("X", "Y"), Split("Y", "i", (4,)), ComputeAt("X.cache", "Y", "i.0"), kind("X.cache", "d0"))
    check(
        dag, CacheRead("X", "Y"), Split("Y", "i", (4,)), ComputeAt("X.cache", "Y", "i.0"),
        Split("X.cache", "d0", (4,)), kind("X.cache", "d0.1"),
    )  # fmt: skip


@pytest.mark.parametrize(("h", "stride"), [(5, 1), (7, 2)])
def test_a_copy_with_a_dimension_for_each_axis(h, stride):
    """P[i * stride + a, b] as P.rows[i, a, b], whole, in panels and in part."""
    dag = conv1d(h, 3, 4, pad=0, stride=stride)
    rows = Reindex("P", "C", "rows")
    axes = initial_state(dag).apply(rows).stage("P.rows").op.axes
    assert [a.extent.value for a in axes] == [(h - 3) // stride + 1, 3, 3]
    check(dag, rows)
    check(dag, rows, Pack("P.rows", (0, 1, 2), ((0, 2),)), Parallel("P.rows", ("d0",)))
    check(dag, Split("C", "i", (2,)), rows, ComputeAt("P.rows", "C", "i.0"))


@pytest.mark.parametrize("h", [2, 3, 5])
@pytest.mark.parametrize("stride", [2, 3])
def test_the_quotient_of_a_negative_index_is_clipped(h, stride):
    """(i - a) // stride starts below 0."""
    dag = transposed_conv(h, 2, 3, k=3, stride=stride)
    check(dag, Split("C", "i", (2,)), CacheRead("X", "C"), ComputeAt("X.cache", "C", "i.0"))
    check(dag, CacheRead("X", "C"), ComputeAt("X.cache", "C", "a"))


def test_falling_indices():
    dag = reversed_rows(7, 13)
    check(dag, Split("Y", "i", (3,)), Split("Y", "j", (4,)), ComputeAt("A", "Y", "i.0"))
    check(dag, Split("Y", "j", (4,)), Reorder("Y", ("j.0", "i", "j.1")), ComputeAt("A", "Y", "j.0"))


@pytest.mark.parametrize("n", EXTENTS)
def test_reductions_row_by_row_with_their_reader(n):
    dag = softmax_like(5, n)
    rows = (ComputeAt("total", "Y", "i"), ComputeAt("E", "Y", "i"), ComputeAt("top", "Y", "i"))
    counts = check(dag, *rows, Parallel("Y", ("i",)))
    assert counts["total.init"] == counts["top.init"] == 5
    check(dag, ComputeInline("E"), ComputeAt("total", "Y", "i"), ComputeAt("top", "Y", "i"))


def test_reads_through_quotients_and_remainders():
    for m, n, step in ((5, 7, 3), (3, 12, 4), (13, 1, 2), (1, 17, 5)):
        dag = reshapes(m, n, step)
        check(dag, Split("Y", "i", (4,)), ComputeAt("B", "Y", "i.0"), ComputeAt("A", "Y", "i.0"))
        check(dag, ComputeInline("B"), Split("Y", "i", (2, 3)), ComputeAt("A", "Y", "i.1"))
        check(dag, Split("B", "i", (4,)), ComputeAt("A", "B", "i.0"), Vectorize("B", "i.1"))


def test_a_stage_attached_in_a_fused_loop():
    dag = matmul(5, 7, 3)
    steps = (Split("C", "i", (2,)), Split("C", "j", (4,)), Reorder("C", ("i.0", "j.0", "k", "i.1", "j.1")))
    check(dag, *steps, Fuse("C", ("i.0", "j.0")), CacheRead("B", "C"), ComputeAt("B.cache", "C", "i.0@j.0"))


# compute_inline


@pytest.mark.parametrize("name", ["A", "B", "M"])
def test_an_inlined_stage_is_gone(name):
    func = nest(chain(5, 13), ComputeInline(name))
    assert name not in check_nest(func, chain(5, 13))
    assert name not in buffers_of(func)


def test_everything_inlined():
    assert set(check(chain(3, 7), ComputeInline("A"), ComputeInline("M"), ComputeInline("B"))) == {"D"}
    assert set(check(stencils(13), *map(ComputeInline, "CBA"))) == {"D"}
    assert set(check(transposes(5, 7), ComputeInline("T"))) == {"U"}
    assert set(check(conv2d(3, 4, 2, 3), ComputeInline("P"))) == {"C", "C.init"}


# caches and layouts


@pytest.mark.parametrize("n", EXTENTS)
def test_packed_panels(n):
    dag = matmul(n, n, 7)
    order = Reorder("C", ("i.0", "j.0", "k", "i.1", "j.1"))
    tiles = (Split("C", "i", (4,)), Split("C", "j", (8,)), order)
    pack = (CacheRead("B", "C", "pack"), Pack("B.pack", (1, 0), ((1, 8),)))
    func = nest(dag, *tiles, *pack, ComputeAt("B.pack", "C", "j.0"), Vectorize("B.pack", "d1"), Vectorize("C", "j.1"))
    check_nest(func, dag)
    assert shape(func, "B.pack") == (7, min(n, 8))
    func = nest(dag, *tiles, *pack, Split("B.pack", "d1", (8,)), Parallel("B.pack", ("d0",)))
    check_nest(func, dag)
    layout = buffers_of(func)["B.pack"].layout
    assert isinstance(layout, Layout)
    assert layout.order == (1, 0)
    check(dag, *tiles, CacheRead("A", "C"), Pack("A.cache", (0, 1), ((0, 4), (1, 2))), ComputeAt("A.cache", "C", "i.0"))


def test_two_caches_of_one_tensor():
    dag = shifted(17, 5)
    check(dag, Split("Z", "i", (4,)), CacheRead("Y", "Z", "near"), CacheRead("Y.near", "Z", "nearer"),
          ComputeAt("Y.near.nearer", "Z", "i.1"), ComputeAt("Y.near", "Z", "i.0"))  # fmt: skip


@pytest.mark.parametrize("n", EXTENTS)
def test_accumulators_in_registers(n):
    dag = matmul(n, 13, 5)
    steps = (
        CacheWrite("C"),
        Split("C", "i", (4,)),
        Split("C", "j", (8,)),
        Reorder("C", ("i.0", "j.0", "i.1", "j.1")),
        Parallel("C", ("i.0", "j.0")),
        ComputeAt("C.acc", "C", "j.0", "register"),
        Reorder("C.acc", ("k", "i", "j")),
        *(Unroll(s, x) for s, x in (("C", "i.1"), ("C.acc", "i"))),
        *(Vectorize(s, x) for s, x in (("C", "j.1"), ("C.acc", "j"))),
    )
    func = nest(dag, *steps)
    counts = check_nest(func, dag)
    assert counts == {"C": n * 13, "C.acc.init": n * 13, "C.acc": n * 13 * 5}
    allocations = [s.buffer for s in walk(func.body) if isinstance(s, Allocate)]
    assert {b.scope for b in allocations} == {Scope.REGISTER}


@pytest.mark.parametrize("kc", [1, 3, 4, 16])
@pytest.mark.parametrize("k", [1, 4, 7, 12, 17])
def test_blocks_of_the_reduction_with_a_panel_made_for_each(k, kc):
    """C = sum over blocks of k of C.rf, and the panel of B for one block is made inside the loop over the blocks."""
    dag = matmul(5, 13, k)
    steps = (
        Rfactor("C", "k", kc, "outer"),
        Split("C", "i", (4,)),
        Split("C", "j", (8,)),
        Reorder("C", ("j.0", "k.o", "i.0", "i.1", "j.1")),
        ComputeAt("C.rf", "C", "i.0"),
        Reorder("C.rf", ("k.o", "k.i", "i", "j")),
        Vectorize("C.rf", "j"),
        CacheRead("B", "C.rf", "pack"),
        ComputeAt("B.pack", "C", "k.o"),
        Pack("B.pack", (1, 0), ((1, 8),)),
    )
    func = nest(dag, *steps)
    counts = check_nest(func, dag)
    assert counts["C.rf"] == 5 * 13 * k
    assert shape(func, "B.pack") == (min(k, kc), 8)


# rfactor


@pytest.mark.parametrize("k", EXTENTS)
@pytest.mark.parametrize("factor", [1, 3, 4, 16])
@pytest.mark.parametrize("keep", ["inner", "outer"])
def test_rfactor(k, factor, keep):
    dag = matmul(2, 3, k)
    counts = check(dag, Rfactor("C", "k", factor, keep))
    assert counts["C.rf"] == 2 * 3 * k
    order = ("i", "j", "k.o", "k.i") if keep == "inner" else ("k.o", "i", "j", "k.i")
    check(dag, Rfactor("C", "k", factor, keep), Reorder("C.rf", order), Vectorize("C.rf", order[-1]))
    check(dag, Rfactor("C", "k", factor, keep), Reorder("C.rf", ("k.i", "i", "k.o", "j")), Unroll("C.rf", "j"))


@pytest.mark.parametrize("k", EXTENTS)
@pytest.mark.parametrize("factors", [(8, 4), (5, 2), (4, 8), (3, 1)])
@pytest.mark.parametrize("keep", ["inner", "outer"])
def test_a_factor_rfactored_again(k, factors, keep):
    """The last blocks may be empty: they still need their start values, and unrolled or vector tiles none of their own."""
    dag = matmul(2, 3, k)
    twice = (Rfactor("C", "k", factors[0], "outer"), Rfactor("C.rf", "k.i", factors[1], keep))
    counts = check(dag, *twice)
    assert counts["C.rf.rf"] == 2 * 3 * k
    for kind in (Unroll, Vectorize):
        check(dag, *twice, Reorder("C.rf.rf", ("k.o", "i", "j", "k.i.o", "k.i.i")), kind("C.rf.rf", "k.i.i"))


@pytest.mark.parametrize("n", EXTENTS)
def test_lanes_in_registers_for_each_row(n):
    for dag, stage in ((softmax_like(3, n), "total"), (row_any(3, n), "R"), (argmax(3, n), "R")):
        axis = initial_state(dag).stage(stage).op.reduce_axes[0].name
        check(
            dag,
            Rfactor(stage, axis, 4, "inner"),
            ComputeAt(f"{stage}.rf", stage, "i", "register"),
            Reorder(f"{stage}.rf", ("i", f"{axis}.o", f"{axis}.i")),
            Vectorize(f"{stage}.rf", f"{axis}.i"),
            Vectorize(stage, f"{axis}.i"),
        )


def test_rfactor_of_a_reduction_over_several_axes():
    dag = conv1d(7, 3, 5)
    for axis in "ab":
        check(dag, Rfactor("C", axis, 2, "outer"), ComputeInline("P"))
        check(dag, Rfactor("C", axis, 2, "inner"), ComputeAt("P", "C.rf", "o"))
    check(total(5, 7), Rfactor("S", "k", 4, "inner"), ComputeAt("S.rf", "S", "k.i"))
    check(total(5, 7), Rfactor("S", "l", 2, "outer"), Parallel("S.rf", ("l.o",)))


@pytest.mark.parametrize("outputs", ["both", "value", "place"])
def test_a_tuple_of_which_only_one_value_is_an_output(outputs):
    dag = argmax(5, 13, outputs)
    func = nest(dag, Parallel("R", ("i",)))
    check_nest(func, dag)
    private = set(buffers_of(func)) - {b.name for b in func.params}
    assert private == {"both": set(), "value": {"R.v1"}, "place": {"R.v0"}}[outputs]
    check(dag, Rfactor("R", "k", 4, "inner"), ComputeAt("R.rf", "R", "i"))
    check(dag, CacheWrite("R"), ComputeAt("R.acc", "R", "i"))


def test_counts_say_what_is_computed_again():
    """Halos are computed once for each tile that needs them."""
    dag = conv1d(12, 1, 1)
    assert check(dag, Split("C", "i", (4,)), ComputeAt("P", "C", "i.0"))["P"] == 3 * 6
    assert check(dag)["P"] == math.prod((14, 1))


def test_a_symbolic_region_is_a_closed_form():
    dag = dense_relu(13, 17, 5)
    state = initial_state(dag).apply(
        Split("D", "i", ("ti",)), Split("D", "j", ("tj",)), Reorder("D", ("i.0", "j.0", "i.1", "j.1")),
        ComputeAt("C", "D", "j.0"),
    )  # fmt: skip
    func = lower(state)
    assert all(is_closed(e) for e in buffers_of(func)["C"].shape)
    for ti in (1, 4, 13, 16):
        for tj in (1, 5, 17, 32):
            concrete = concretise(func, {"ti": ti, "tj": tj})[0]
            check_nest(concrete, dag)
            assert shape(concrete, "C") == (min(ti, 13), min(tj, 17))
