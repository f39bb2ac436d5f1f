"""Schedules compiled and run: exact on integer data on every target, in one thread and in two."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from autosched import te
from autosched.codegen.llvm.vocabulary import memory_type
from autosched.lower import concretise, lower
from autosched.lower.register_tiles.context import TileContext
from autosched.runtime.jit import compile_object, emit_assembly
from autosched.schedule import (
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    FetchAhead,
    Fuse,
    Pack,
    Parallel,
    Prefetch,
    Reorder,
    Rfactor,
    Split,
    State,
    Step,
    Unroll,
    Vectorize,
    initial_state,
)
from autosched.target import Target, parse_target
from autosched.te import ComputeDAG
from tests.codegen.running import (
    NAMED,
    build,
    check_kernel,
    kind_of,
    machine_code,
    targets,
    targets_in_turn,
    without_comments,
)
from tests.schedule.graphs import (
    GRAPHS,
    argmax,
    conv1d,
    conv2d,
    dense_relu,
    matmul,
    register_tile,
    reshapes,
    row_any,
    shifted,
    softmax_like,
    stencils,
    total,
    transposed_conv,
    transposes,
    vectors,
)
from tests.schedule.random_steps import random_schedule


def check(dag: ComputeDAG, *steps: Step, threads: tuple[int, ...] = (1,), on: Sequence[Target] | None = None) -> None:
    check_kernel(dag, initial_state(dag).apply(*steps), threads=threads, on=on)


@pytest.mark.parametrize("name", GRAPHS)
def test_every_graph_in_parallel_and_in_vectors(name):
    dag = GRAPHS[name]()
    check_kernel(dag, vectors(dag), threads=(2,))


@pytest.mark.parametrize("name", GRAPHS)
def test_every_graph_as_written(name):
    dag = GRAPHS[name]()
    check_kernel(dag, initial_state(dag), threads=(1,))


@pytest.mark.parametrize("seed", range(40))
def test_random_schedules(seed):
    dag, state = random_schedule(2000 + seed, registers=True)
    check_kernel(dag, state, threads=(1 + seed % 2,), on=targets_in_turn(seed, 0, 2))


def test_a_register_buffer_is_in_memory_where_loops_move_the_index():
    """What unrolled stores have left there is not only known, but stored, before it is read at Y.i."""
    dag = GRAPHS["reversed_rows"]()
    state = initial_state(dag).apply(
        Fuse("A", ("i", "j")), Unroll("Y", "j"), Unroll("A", "i@j"), ComputeAt("A", "Y", "i", "register")
    )
    check_kernel(dag, state, threads=(1,))


def test_processors_of_a_kind_get_the_same_text():
    """What `targets()` leaves out would be the same code again, save for the words that name the processor."""

    def body(state: State, target: Target) -> list[str]:
        lines = build(state, target, 1).ir.splitlines()
        return [line for line in lines if not line.startswith((";", "attributes "))]

    alike = [parse_target(f"llvm -mcpu={name}") for name in ("haswell", "znver3")]
    assert kind_of(alike[0]) == kind_of(alike[1])
    assert len({kind_of(parse_target(f"llvm -mcpu={name}")) for name in (*NAMED, "skylake-avx512")}) == 4
    states = [vectors(GRAPHS[name]()) for name in GRAPHS]
    for state in (*states, *(random_schedule(2000 + seed, registers=True)[1] for seed in range(12))):
        assert body(state, alike[0]) == body(state, alike[1])


def test_the_same_text_is_compiled_once():
    state, target = vectors(matmul(5, 6, 7)), targets()[0]
    first = machine_code(without_comments(build(state, target, 1).ir), target)
    assert machine_code(without_comments("; in words\n" + build(state, target, 1).ir), target) is first


def parallel_tile(m: int, n: int) -> tuple[Step, ...]:
    return (
        CacheWrite("C"),
        Split("C", "i", (2, m)),
        Split("C", "j", (n,)),
        Reorder("C", ("i.0", "j.0", "i.1", "i.2", "j.1")),
        Parallel("C", ("i.0", "j.0")),
        ComputeAt("C.acc", "C", "i.1", "register"),
        Split("C.acc", "k", (2,)),
        Reorder("C.acc", ("k.0", "k.1", "i", "j")),
        *(Unroll(s, x) for s, x in (("C", "i.2"), ("C.acc", "i"), ("C.acc", "k.1"))),
        *(Vectorize(s, x) for s, x in (("C", "j.1"), ("C.acc", "j"))),
    )


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "int8", "uint8"])
def test_register_tiles_of_every_type(dtype):
    check(matmul(13, 37, 7, dtype), *parallel_tile(4, 16), threads=(1, 2))


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (1, 17, 2), (3, 5, 1), (4, 16, 5), (17, 33, 3), (8, 32, 4)])
def test_register_tiles_of_awkward_extents(m, n, k):
    check(matmul(m, n, k), *parallel_tile(4, 16))
    check(matmul(m, n, k), *parallel_tile(3, 24))


def test_narrow_accumulators_in_registers():
    """A row of 33 int8 lanes is not a whole number of the widest vectors."""
    x = te.placeholder((3, 33), "int8", "X")
    k = te.reduce_axis(5, "k")
    dag = ComputeDAG(te.compute((3, 33), lambda i, j: te.max(x[i, j] + k.astype("int8"), axis=k), name="C"))
    steps = (CacheWrite("C"), Split("C", "i", (2,)), ComputeAt("C.acc", "C", "i.0", "register"),
             Reorder("C.acc", ("k", "i", "j")), Unroll("C.acc", "i"), Vectorize("C.acc", "j"), Vectorize("C", "j"))  # fmt: skip
    check(dag, *steps)


def test_packed_panels_made_inside_and_outside_of_the_tile():
    dag = matmul(13, 37, 11)
    tiles = (Split("C", "i", (4,)), Split("C", "j", (16,)), Reorder("C", ("i.0", "j.0", "k", "i.1", "j.1")))
    pack = (CacheRead("B", "C", "pack"), Pack("B.pack", (1, 0), ((1, 16),)))
    rest = (Unroll("C", "i.1"), Vectorize("C", "j.1"))
    check(dag, *tiles, *pack, ComputeAt("B.pack", "C", "j.0"), *rest, Vectorize("B.pack", "d1"), threads=(1, 2))
    check(dag, *tiles, *pack, *rest, Split("B.pack", "d1", (16,)), Vectorize("B.pack", "d1.1"), threads=(1, 2))
    row = (CacheRead("A", "C", "pack"), Pack("A.pack", (0, 1), ((0, 4),)), ComputeAt("A.pack", "C", "i.0"))
    check(dag, *tiles, *row, Parallel("C", ("i.0",)), *rest, Unroll("A.pack", "d0"), threads=(1, 2))


@pytest.mark.parametrize(("m", "n"), [(7, 16), (3, 32), (2, 48), (7, 64), (2, 41)])
def test_register_tiles_without_room_for_a_row_of_operands(m, n):
    check(matmul(2 * m + 1, n + 13, 5), *register_tile(m, n, 2))


def test_blocks_of_the_reduction():
    dag = matmul(5, 37, 17)
    check(
        dag,
        Rfactor("C", "k", 4, "outer"),
        Split("C", "j", (16,)),
        Reorder("C", ("j.0", "k.o", "i", "j.1")),
        ComputeAt("C.rf", "C", "k.o"),
        Reorder("C.rf", ("k.o", "k.i", "i", "j")),
        Vectorize("C.rf", "j"),
        Vectorize("C", "j.1"),
        CacheRead("B", "C.rf", "pack"),
        ComputeAt("B.pack", "C", "k.o"),
    )


# horizontal reductions


@pytest.mark.parametrize("n", [1, 5, 16, 37])
def test_reductions_over_lanes(n):
    for row, (dag, stage, axis) in enumerate((
        (row_any(3, n), "R", "k"), (argmax(3, n), "R", "k"), (total(2, n), "S", "k"), (total(2, n, "int32"), "S", "k"),
        (matmul(1, 2, n, "int8"), "C", "k"), (matmul(1, 2, n, "float64"), "C", "k"),
    )):  # fmt: skip
        on = targets_in_turn(row, (1, 5, 16, 37).index(n), 4)
        others = [x.name for x in initial_state(dag).stage(stage).loops if x.name != axis]
        check(dag, Reorder(stage, (*others, axis)), Vectorize(stage, axis), on=on)
        order = (*others, f"{axis}.0", f"{axis}.1")
        check(dag, Split(stage, axis, (16,)), Reorder(stage, order), Vectorize(stage, f"{axis}.1"), on=on)


@pytest.mark.parametrize("n", [3, 37])
def test_lanes_combined_at_the_end(n):
    for dag, stage in ((softmax_like(3, n), "total"), (row_any(3, n), "R"), (argmax(3, n, "place"), "R")):
        axis = initial_state(dag).stage(stage).op.reduce_axes[0].name
        check(
            dag,
            Rfactor(stage, axis, 16, "inner"),
            ComputeAt(f"{stage}.rf", stage, "i", "register"),
            Reorder(f"{stage}.rf", ("i", f"{axis}.o", f"{axis}.i")),
            Vectorize(f"{stage}.rf", f"{axis}.i"),
            Vectorize(stage, f"{axis}.i"),
            Parallel(stage, ("i",)),
            threads=(1, 2),
        )


@pytest.mark.parametrize("n", [5, 37])
def test_lanes_that_the_last_step_leaves_out_keep_what_they_have(n):
    x, k = te.placeholder((3, n), "float32", "X"), te.reduce_axis(n, "k")
    dag = ComputeDAG(te.compute((3,), lambda i: te.sum(te.exp(x[i, k]), axis=k), name="R"))
    state = initial_state(dag).apply(Rfactor("R", "k", 16, "inner"), ComputeAt("R.rf", "R", "i", "register"))
    order = Reorder("R.rf", ("i", "k.o", "k.i"))
    check_kernel(dag, state.apply(order, Vectorize("R.rf", "k.i"), Vectorize("R", "k.i")), threads=(1,))


# lanes that are apart, lanes that do not exist


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "int64", "bool"])
def test_gathers_and_scatters(dtype):
    dag = transposes(19, 21, dtype)
    check(dag, Vectorize("T", "j"), Vectorize("U", "j"))  # reads apart
    check(
        dag, Reorder("T", ("j", "i")), Vectorize("T", "i"), Reorder("U", ("j", "i")), Vectorize("U", "i")
    )  # writes apart
    check(
        dag, Split("T", "j", (8,)), Reorder("T", ("i", "j.1", "j.0")), Vectorize("T", "j.0")
    )  # 8 apart, short at the end


def test_lanes_with_indices_that_are_not_linear():
    for step in (1, 3):
        dag = reshapes(5, 7, step)
        check(dag, *(Vectorize(s, x) for s, x in (("A", "j"), ("B", "i"), ("Y", "i"))))
        check(dag, ComputeInline("A"), ComputeInline("B"), Split("Y", "i", (8,)), Vectorize("Y", "i.1"))
    dag = transposed_conv(5, 3, 9)
    check(dag, Split("C", "i", (8,)), Reorder("C", ("o", "i.0", "a", "c", "i.1")), Vectorize("C", "i.1"))
    check(dag, Reorder("C", ("o", "c", "i", "a")), Unroll("C", "i"), Vectorize("C", "a"))


def test_reads_that_a_condition_forbids_do_not_happen():
    """The arrays end where memory does; without its condition each of these reads would fault."""
    for by in (1, 8, 12):
        check(shifted(13, by), ComputeInline("Y"), Vectorize("Z", "i"))
        check(shifted(13, by), ComputeInline("Y"), Split("Z", "i", (4,)), Unroll("Z", "i.1"))
    check(conv1d(13, 1, 3), ComputeInline("P"), Reorder("C", ("o", "a", "b", "i")), Vectorize("C", "i"))
    check(conv2d(5, 7, 1, 2), ComputeInline("P"), Reorder("C", ("o", "a", "b", "c", "i", "j")), Vectorize("C", "j"))
    check(conv2d(5, 7, 9, 17), ComputeInline("P"), Vectorize("C", "c"))
    check(stencils(17, "int8"), *map(ComputeInline, "CBA"), Split("D", "i", (4,)), Vectorize("D", "i.1"))
    check(shifted(12, 4), CacheRead("X", "Y"), Split("Y", "i", (4,)), ComputeAt("X.cache", "Y", "i.0"),
          Vectorize("X.cache", "d0"))  # fmt: skip


def test_tails_that_are_known_only_at_run_time():
    dag = conv1d(29, 3, 5)
    tiles = (Split("C", "i", (7,)), ComputeAt("P", "C", "i.0"))
    copy = (CacheRead("X", "P"), ComputeAt("X.cache", "C", "i.0"), Reorder("X.cache", ("d1", "d0")))
    for kind in (Vectorize, Unroll):
        check(dag, *tiles, *copy, kind("X.cache", "d0"))
        check(dag, *tiles, Reorder("P", ("c", "i")), kind("P", "i"))


def test_long_vector_loops_are_loops():
    dag = ComputeDAG(_copy(1000))
    check(dag, Vectorize("Y", "i"))
    check(dag, Split("Y", "i", (333,)), Vectorize("Y", "i.1"), Parallel("Y", ("i.0",)), threads=(1, 2))


def _copy(n: int):
    x = te.placeholder((n,), name="X")
    return te.compute((n,), lambda i: x[n - 1 - i] * 2.0, name="Y")


def across(rows: int, columns: int, dtype: str = "float32", flip: bool = False):
    """Y[j, i] = X[i, j], the rows of X in reverse order if `flip`."""
    x = te.placeholder((rows, columns), dtype, name="X")
    return ComputeDAG(te.compute((columns, rows), lambda j, i: x[rows - 1 - i if flip else i, j], name="Y"))


def tile_across(rows: int, width: int) -> tuple[Step, ...]:
    """Of Y[j, i]: `rows` of j unrolled, vectors along i."""
    order = Reorder("Y", ("j.0", "i.0", "j.1", "i.1"))
    return Split("Y", "j", (rows,)), Split("Y", "i", (width,)), order, Unroll("Y", "j.1"), Vectorize("Y", "i.1")


@pytest.mark.parametrize(("unrolled", "width"), [(4, 16), (16, 16), (8, 48), (7, 33), (3, 32), (5, 8), (4, 4), (8, 14)])
def test_tiles_copied_across(unrolled, width):
    steps = tile_across(unrolled, width)
    for column, dag in enumerate((
        across(35, 18),
        across(64, 16, "int32"),
        across(35, 18, "int8"),
        across(35, 18, "bool"),
        across(35, 18, flip=True),
    )):  # fmt: skip
        check(dag, *steps, on=targets_in_turn(unrolled + width, column, 5))


@pytest.mark.parametrize("taps", [3, 5])
def test_several_unrolled_loops_over_adjacent_elements_are_one_tile(taps):
    x = te.placeholder((35, 7, taps), name="X")
    dag = ComputeDAG(te.compute((7, taps, 35), lambda j, k, i: x[i, j, k], name="Y"))
    steps = (Split("Y", "j", (4,)), Split("Y", "i", (16,)), Reorder("Y", ("j.0", "i.0", "j.1", "k", "i.1")),
             Unroll("Y", "j.1"), Unroll("Y", "k"), Vectorize("Y", "i.1"))  # fmt: skip
    check(dag, *steps)
    text = build(initial_state(dag).apply(*steps), targets()[0], 1).ir
    assert text.count("load <4 x float>") >= taps * 16  # of 4 taps elements, all but a rest of less than 4


def test_a_tile_copied_across_is_read_in_vectors():
    state = initial_state(across(32, 32)).apply(*tile_across(16, 16))
    text = build(state, targets()[0], 1).ir
    assert "load <4 x float>" in text
    assert "load float" not in text


def test_truth_values_that_are_only_moved_are_bytes():
    steps = tile_across(16, 32)
    texts = [build(initial_state(across(32, 32, t)).apply(*steps), targets()[0], 1).ir for t in ("bool", "uint8")]
    assert texts[0] == texts[1]
    x, z = te.placeholder((5, 37), "bool", "X"), te.placeholder((37,), "bool", "Z")

    def value(i, j):
        return te.select(z[j], te.select(x[i, j], te.select(j > 4, z[j], True), x[i, 36 - j]), False)

    dag = ComputeDAG(te.compute((5, 37), value, name="Y"))
    check(dag, Vectorize("Y", "j"))


def test_the_first_row_says_that_a_tile_is_neither_read_nor_written_across(monkeypatch):
    numbers: list[list[int]] = []
    address = TileContext.address

    def looked_at(context, form, lane, lanes, at):
        numbers.append(list(at.values()))
        return address(context, form, lane, lanes, at)

    monkeypatch.setattr(TileContext, "address", looked_at)
    x = te.placeholder((32, 32), name="X")
    dag = ComputeDAG(te.compute((32, 32), lambda j, i: x[j, i] * 2.0, name="Y"))
    build(initial_state(dag).apply(Split("Y", "j", (16,)), Unroll("Y", "j.1"), Vectorize("Y", "i")), targets()[0], 1)
    assert numbers == [[0], [0]]


@pytest.mark.parametrize(
    ("dtype", "points", "width"),
    [("float32", (1, 6), 16), ("float64", (1, 3), 20), ("int8", (1, 18), 35), ("float16", (1, 9), 24), ("bool", (1, 5), 16),
     ("int32", (2, 5), 8), ("float32", (5, 2), 12), ("float32", (3, 7), 33)],
)  # fmt: skip
def test_tiles_written_across(dtype, points, width):
    """Channels in lanes, pixels adjacent in memory: rows of blocks, those that make none, and those of two images."""
    x, z = te.placeholder((7, 19, 37), dtype, name="X"), te.placeholder((37,), dtype, name="Z")
    dag = ComputeDAG(
        te.compute((37, 7, 19), lambda c, i, j: te.select(z[c] > 0, x[i, j, c], z[c]) if dtype != "bool" else x[i, j, c],
                   name="Y")
    )  # fmt: skip
    height, across = points
    order = ("i.0", "j.0", "c.0", "i.1", "j.1", "c.1")
    check(dag, Split("Y", "i", (height,)), Split("Y", "j", (across,)), Split("Y", "c", (width,)), Reorder("Y", order),
          Unroll("Y", "i.1"), Unroll("Y", "j.1"), Vectorize("Y", "c.1"))  # fmt: skip


@pytest.mark.parametrize("name", ["haswell", "skylake-avx512"])
def test_a_tile_written_across_is_written_in_blocks(name):
    """Six pixels of 16 channels, which lie six elements apart: two blocks of four pixels for each channel."""
    x = te.placeholder((6, 16), name="X")
    dag = ComputeDAG(te.compute((16, 6), lambda c, j: x[j, c] * 2.0, name="Y"))
    state = initial_state(dag).apply(Reorder("Y", ("j", "c")), Unroll("Y", "j"), Vectorize("Y", "c"))
    text = build(state, parse_target(f"llvm -mcpu={name}"), 1).ir
    assert text.count("store <4 x float>") == 2 * 16
    assert "scatter" not in text
    assert "store float" not in text


def test_lanes_apart_are_stored_at_constant_distances_where_no_instruction_scatters_them():
    x = te.placeholder((16, 11), name="X")
    dag = ComputeDAG(te.compute((11, 16), lambda c, j: x[j, c] * 2.0, name="Y"))
    state = initial_state(dag).apply(Reorder("Y", ("j", "c")), Vectorize("Y", "c"))
    plain, wide = (build(state, parse_target(f"llvm -mcpu={name}"), 1).ir for name in ("haswell", "skylake-avx512"))
    assert "scatter" not in plain
    assert plain.count("store float") == 11
    assert "scatter" in wide
    check(dag, Reorder("Y", ("j", "c")), Vectorize("Y", "c"))


@pytest.mark.parametrize(("unrolled", "width"), [(16, 16), (20, 40), (33, 16), (15, 48)])
def test_lines_that_meet_in_a_set_are_copied_across_as_a_whole(unrolled, width):
    """Whatever is left of rows and lanes goes by smaller blocks."""
    steps = tile_across(unrolled, width)
    for dag in (across(50, 1024), across(33, 2048, "int32"), across(40, 1024, flip=True)):
        check(dag, *steps)


def across_with_arithmetic(rows: int, columns: int, dtype: str):
    """Y[j, i] = 2 X[i, j] + Z[j, i] + V[i, j] W[i], 0 for some i + j; V is read under the condition alone."""
    shapes = {"X": (rows, columns), "Z": (columns, rows), "V": (rows, columns), "W": (rows,)}
    x, z, v, w = (te.placeholder(shape, dtype, name=name) for name, shape in shapes.items())
    return ComputeDAG(
        te.compute(
            (columns, rows),
            lambda j, i: te.cast(
                x[i, j] * 2 + z[j, i] + te.select(te.not_equal(te.mod(i + j, 3), 0), v[i, j] * w[i], 0), dtype
            ),
            name="Y",
        )
    )


@pytest.mark.parametrize(
    ("dtype", "unrolled", "width"),
    [("float32", 6, 35), ("float64", 5, 11), ("float16", 8, 20), ("bfloat16", 9, 19), ("int8", 17, 37)],
)
def test_tiles_read_across_with_arithmetic(dtype, unrolled, width):
    steps = tile_across(unrolled, width)
    check(across_with_arithmetic(41, 19, dtype), *steps)


@pytest.mark.parametrize(("dtype", "rows"), [("float64", 2), ("bfloat16", 8), ("int8", 16)])
def test_as_many_neighbours_as_fill_128_bits_are_read_across(dtype, rows):
    state = initial_state(across(64, 32, dtype)).apply(*tile_across(rows, 64))
    text = build(state, parse_target("llvm -mcpu=znver4"), 1).ir
    assert f"load <{rows} x {memory_type(dtype)}>" in text
    assert f"load {memory_type(dtype)}," not in text


@pytest.mark.parametrize(("columns", "whole"), [(1024, True), (1040, False)])
def test_only_lines_that_meet_in_a_set_are_read_as_a_whole(columns, whole):
    state = initial_state(across(32, columns)).apply(*tile_across(16, 16))
    wide = parse_target("llvm -mcpu=znver4")
    text = build(state, wide, 1).ir
    assert ("load <16 x float>" in text) == whole
    assert ("load <4 x float>" in text) != whole


def test_what_exists_in_any_case_is_read_without_a_mask():
    """A slope for each channel; a division that would trap is none of it, nor is what may be out of bounds."""
    x, slope = te.placeholder((6, 37), name="X"), te.placeholder((6,), name="S")
    n = te.placeholder((6, 37), "int32", name="N")
    leaky = te.compute((6, 37), lambda i, j: te.select(x[i, j] > 0.0, x[i, j], x[i, j] * slope[i]), name="Y")
    quotient = te.compute((6, 37), lambda i, j: te.select(te.not_equal(n[i, j], 0), 7 // n[i, j], 1), name="Y")
    moved = te.compute((6, 37), lambda i, j: te.select(j < 20, x[i, j + 17], 0.0), name="Y")
    wide = parse_target("llvm -mcpu=znver4")
    for output, is_masked in ((leaky, False), (quotient, True), (moved, True)):
        dag, steps = ComputeDAG(output), (Split("Y", "j", (32,)), Vectorize("Y", "j.1"))
        check(dag, *steps)
        text = build(initial_state(dag).apply(*steps), wide, 1).ir
        body = text[: text.index("\n}")]  # of the kernel; the last five columns have masks of their own
        assert any("masked.load" in x and "true" not in x for x in body.splitlines()) == is_masked


# memory, tasks, hints


def test_private_buffers_that_do_not_fit_the_stack():
    dag = dense_relu(7, 37, 1500)
    steps = (Split("D", "i", (2,)), Split("D", "j", (8,)), Reorder("D", ("i.0", "j.0", "i.1", "j.1")))
    check(dag, *steps, ComputeAt("C", "D", "j.0"), CacheRead("B", "C"), ComputeAt("B.cache", "D", "j.0"),
          Vectorize("B.cache", "d1"), Parallel("D", ("i.0", "j.0")), threads=(1, 2))  # fmt: skip


def test_many_small_tasks_and_tasks_that_do_nothing():
    dag = matmul(61, 29, 2)
    check(dag, Parallel("C", ("i", "j")), threads=(1, 2))
    check(
        dag,
        Split("C", "i", (4, 4)),
        Reorder("C", ("i.2", "i.1", "i.0", "j")),
        Parallel("C", ("i.2", "i.1", "i.0")),
        threads=(2,),
    )
    check(dag, Split("C", "i", (4, 3)), Fuse("C", ("i.0", "i.1")), Parallel("C", ("i.0@i.1", "i.2", "j")), threads=(2,))


def test_a_prefetch_changes_no_result_and_is_in_the_code():
    dag = matmul(5, 33, 9)
    steps = (Split("C", "j", (16,)), Reorder("C", ("i", "j.0", "k", "j.1")), Vectorize("C", "j.1"))
    for level, name in ((1, "prefetcht0"), (2, "prefetcht1")):
        hint = Prefetch("C", "B", "k", 64, level)
        check(dag, *steps, hint)
        for target in targets():
            if target.arch == "x86_64":
                assert name in emit_assembly(build(initial_state(dag).apply(*steps, hint), target, 1).ir, target)


def test_a_place_in_the_output_is_asked_for_to_be_written():
    dag = dense_relu(5, 33, 9)
    tiles = Split("D", "j", (16,)), Reorder("D", ("i", "j.0", "j.1")), Vectorize("D", "j.1")
    tile = ComputeAt("C", "D", "j.0"), Reorder("C", ("k", "i", "j")), FetchAhead("C", "k", "C", "D", 1)
    check(dag, *tiles, *tile)
    assert ", i32 1, i32 3, i32 1)" in build(initial_state(dag).apply(*tiles, *tile), targets()[0], 1).ir


def test_parameters_are_numbers_in_the_kernel():
    dag = matmul(7, 13, 5)
    symbolic = initial_state(dag).apply(Split("C", "i", ("t",)), Unroll("C", "i.1"))
    integer = initial_state(dag).apply(Split("C", "i", (3,)), Unroll("C", "i.1"))
    target = targets()[0]
    assert build(symbolic, target, 2, {"t": 3}) == build(integer, target, 2)
    func, _ = concretise(lower(symbolic), {"t": 3})
    assert func.name == build(integer, target, 2).name


def test_the_same_schedule_gives_the_same_text():
    for name in ("conv2d", "argmax", "softmax_like"):
        dag, again = GRAPHS[name](), GRAPHS[name]()
        for target in targets():
            first = build(vectors(dag), target, 2)
            assert first == build(vectors(again), target, 2)
            assert compile_object(first.ir, target) == compile_object(first.ir, target)


def test_a_kernel_says_how_much_workspace_it_needs():
    dag = dense_relu(16, 64, 4)
    target = targets()[0]
    root = build(initial_state(dag), target, 1)
    assert root.workspace_bytes >= 16 * 64 * 4
    inline = initial_state(matmul(3, 5, 7))
    assert build(inline, target, 1).workspace_bytes <= 64
    tile = (Split("D", "i", (2,)), ComputeAt("C", "D", "i.0"), CacheRead("B", "C"), ComputeAt("B.cache", "D", "i.0"))
    large = dense_relu(16, 64, 400)
    one, two = (build(initial_state(large).apply(*tile), target, n).workspace_bytes for n in (1, 2))
    assert two - one >= 400 * 64 * 4  # each thread its own


def test_lanes_that_do_not_exist_hold_the_identity():
    """A row that is smaller than anything a masked load could fill in."""
    data = {"X": np.full((3, 5), -1e29, np.float32)}
    data["X"][1, 2] = 4.0
    for steps in ((Vectorize("R", "k"),), (Split("R", "k", (4,)), Vectorize("R", "k.1"))):
        check_kernel(argmax(3, 5), initial_state(argmax(3, 5)).apply(*steps), data, threads=(1,))
