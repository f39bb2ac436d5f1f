"""Lanes that are a few elements apart: picked from whole vectors, and nothing is read behind the last one."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from autosched import te
from autosched.codegen.llvm.address import LaneAccess
from autosched.codegen.llvm.strided import shared_starts, vector_starts
from autosched.runtime.jit import emit_assembly
from autosched.schedule import ComputeInline, Split, State, Vectorize, initial_state
from autosched.target import LONGEST_STEP, Target, parse_target
from autosched.te import ComputeDAG
from autosched.te.operators.registry import build as workload
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from search_spaces.cpu import sketches
from search_spaces.space import Sketch, sample
from tests.codegen.running import build, check_kernel, check_outputs, run, targets_in_turn

HOST = parse_target("cpu")


def every(n: int, step: int, first: int = 0, dtype: str = "float32") -> ComputeDAG:
    """The array ends with the last element that is read."""
    x = te.placeholder((first + (n - 1) * step + 1,), dtype, "X")
    return ComputeDAG(te.compute((n,), lambda i: x[first + i * step], name="Y"))


LENGTHS = (1, 2, 4, 7, 8, 9, 13, 16, 17, 31, 48, 61)


@pytest.mark.parametrize("step", [2, 3, 4, 5])
@pytest.mark.parametrize("n", LENGTHS)
def test_to_the_end_of_the_array(n, step):
    dag = every(n, step, first=3)
    state, on = initial_state(dag), targets_in_turn(LENGTHS.index(n), step, 4)
    check_kernel(dag, state.apply(Vectorize("Y", "i")), on=on)
    if n > 16:
        check_kernel(dag, state.apply(Split("Y", "i", (16,)), Vectorize("Y", "i.1")), on=on)


@pytest.mark.parametrize("dtype", ["float64", "int8", "int64", "bool", "float16", "bfloat16"])
def test_other_types(dtype):
    for step in (2, 3):
        dag = every(75, step, dtype=dtype)
        check_kernel(dag, initial_state(dag).apply(Vectorize("Y", "i")))


def border(dtype: str = "float32") -> tuple[ComputeDAG, State]:
    """A condition that differs by lane: those that it forbids are beyond the ends of the array."""
    x = te.placeholder((40,), dtype, "X")
    padded = te.compute((44,), lambda i: te.select((i >= 2) & (i < 42), x[i - 2], te.const(0, dtype)), name="P")
    dag = ComputeDAG(te.compute((21,), lambda i: padded[2 * i] + padded[2 * i + 1], name="Y"))
    return dag, initial_state(dag).apply(ComputeInline("P"))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int8"])
def test_reads_of_which_some_are_not_there(dtype):
    dag, state = border(dtype)
    check_kernel(dag, state.apply(Vectorize("Y", "i")))
    check_kernel(dag, state.apply(Split("Y", "i", (16,)), Vectorize("Y", "i.1")))


def test_every_lane_lies_in_a_vector_and_no_vector_beyond_the_lanes():
    for lanes in (4, 8, 16, 64):
        for step in range(2, LONGEST_STEP + 1):
            for used in range(1, lanes + 1):
                starts = vector_starts(LaneAccess("p", 0, step), lanes, used)
                covered = {at for start in starts for at in range(start, start + lanes)}
                end = (used - 1) * step + 1
                assert not starts or {n * step for n in range(used)} <= covered <= set(range(end))
                assert bool(starts) == (end >= lanes)
    assert not vector_starts(LaneAccess("p", 0, LONGEST_STEP + 1), 16, 16)
    assert not vector_starts(LaneAccess("p", 0, -2), 16, 16)


def test_whole_vectors_are_read():
    text = build(
        initial_state(every(64, 2)).apply(Vectorize("Y", "i")), parse_target("llvm -mcpu=skylake-avx512"), 1
    ).ir
    assert text.count("load <16 x float>") == 8
    assert "insertelement" not in text


def test_lanes_that_may_not_exist_are_masked_elements():
    """Where a border lies is known when the kernel is made, where the diagonal lies is not."""
    x = te.placeholder((40, 60), name="X")
    triangle = te.compute((40, 40), lambda i, j: te.select(2 * j < i, x[i, 2 * j], 0.0), name="Y")
    for state, axis, masked in ((border()[1], "i", False), (initial_state(ComputeDAG(triangle)), "j", True)):
        text = build(state.apply(Vectorize("Y", axis)), parse_target("llvm -mcpu=skylake-avx512"), 1).ir
        assert ("@llvm.masked.load.v16f32" in text) == masked
        assert "@llvm.masked.gather" not in text


@pytest.mark.parametrize(("name", "turn"), [("max_pool2d", 0), ("avg_pool2d", 1), ("depthwise", 0)])
@pytest.mark.parametrize(("size", "k", "stride", "pad"), [(33, 3, 2, 1), (40, 2, 2, 0), (37, 3, 3, 1), (23, 3, 1, 1)])
def test_images_of_channels(name, turn, size, k, stride, pad):
    """Sketches take turns on sizes and operators."""
    settings = {"N": 1, "H": 9, "W": size, "C": 3, "k": k, "stride": stride, "pad": pad, "layout": "NCHW"}
    dag = collapse(workload(name, settings=settings)[0])
    found = [s for s in sketches(dag, HOST, 1) if ":v2-" in s.name or ":v3-" in s.name]
    assert found
    data, rng = make_inputs(dag, 0, "integers"), np.random.default_rng(0)
    for sketch in found[(size + turn) % 3 :: 3]:
        (row,) = sample(sketch, 1, rng)
        small = {
            p.name: min(int(v), 4) if p.kind == "tile" else int(v) for p, v in zip(sketch.params, row, strict=True)
        }
        check_outputs(dag, data, run(build(sketch.state, HOST, 1, small), dag, data, HOST), f"{sketch.name} {small}")


def test_vectors_that_are_shared_hold_every_lane_and_exist():
    for lanes, step, used in itertools.product((4, 16), (2, 3), (3, 4, 11, 16)):
        end = (used - 1) * step + 1
        if used > lanes or end < lanes:
            continue
        for room, known in itertools.product(((0, 0), (1, 1), (9, 2)), ((), (-1,), (1 - lanes, 1), (2, lanes - 1))):
            starts = shared_starts(end, lanes, known, room)
            covered = {at for start in starts for at in range(start, start + lanes)}
            fresh = {at for start in starts if start not in known for at in range(start, start + lanes)}
            assert {n * step for n in range(used)} <= covered
            assert not fresh or -room[0] <= min(fresh) <= max(fresh) < end + room[1]
    assert shared_starts(31, 16, (), (0, 1)) == [0, 16]
    assert shared_starts(31, 16, (-1, 15), (0, 1)) == [-1, 15]


def channels_first(name: str, dtype: str, target: Target, **settings: int) -> tuple[ComputeDAG, list[Sketch]]:
    dag = collapse(workload(name, settings={"layout": "NCHW", **settings}, dtype=dtype)[0])
    return dag, [s for s in sketches(dag, target, 1) if "pad@" not in s.name or s.name.endswith("pad@inline")]


@pytest.mark.parametrize(("name", "dtype"), [
    ("avg_pool2d", "float32"), ("max_pool2d", "float64"), ("depthwise", "float32"),
])  # fmt: skip
@pytest.mark.parametrize(("k", "stride", "pad", "size"), [
    (2, 2, 0, 32), (3, 2, 1, 33), (3, 3, 0, 51),
])  # fmt: skip
def test_windows_share_vectors(name, dtype, k, stride, pad, size):
    dag, found = channels_first(name, dtype, HOST, N=1, C=3, H=2 * k, W=size, k=k, stride=stride, pad=pad)
    data, rng = make_inputs(dag, 0, "normal"), np.random.default_rng(size)
    for sketch in found[:2]:
        for row in sample(sketch, 1, rng):
            values = {p.name: int(v) for p, v in zip(sketch.params, row, strict=True)}
            values.update({p.name: p.domain[-1] for p in sketch.params if p.kind == "unroll"})
            check_outputs(dag, data, run(build(sketch.state, HOST, 1, values), dag, data, HOST), f"{values}")


def test_a_row_of_windows_is_read_once():
    """2 x 2 windows without a border: of each row of the image two vectors for sixteen outputs."""
    sixteen_lanes = parse_target("llvm -mcpu=skylake-avx512")
    _, found = channels_first("max_pool2d", "float32", sixteen_lanes, N=1, C=4, H=2, W=64, k=2, stride=2, pad=0)
    values = {p.name: p.domain[-1] if p.kind == "unroll" else p.domain[0] for p in found[0].params}
    text = build(found[0].state, sixteen_lanes, 1, values).ir
    assert len(re.findall(r"load <16 x float>, ptr %p", text)) == 2 * 2
    assert "insertelement" not in text


@pytest.mark.parametrize(("name", "size", "lanes"), [("avg_pool2d", 35, 16), ("max_pool2d", 65, 32)])
def test_lanes_of_a_window_are_put_in_order_once(name, size, lanes):
    """3 x 3 windows of stride 2 with AVX2: each vector of outputs takes its lanes across 128 bits once."""
    avx2 = parse_target("llvm -mcpu=haswell")
    _, found = channels_first(name, "float32", avx2, N=1, C=4, H=3, W=size, k=3, stride=2, pad=0)
    values = {p.name: p.domain[-1] if p.kind in ("unroll", "vector") else p.domain[0] for p in found[0].params}
    assembly = emit_assembly(build(found[0].state, avx2, 1, values).ir, avx2)
    assert len(re.findall("vpermp[ds]|vpermq|vperm2f128", assembly)) == lanes // 8
    assert len(re.findall("vshufps", assembly)) <= 9 * lanes // 8


@pytest.mark.parametrize("dtype", ["uint8", "int8", "bfloat16", "bool"])
def test_short_elements_that_may_not_exist_are_no_branches(dtype):
    """Before the first element stands a border; of the lanes behind it vectors are read. Where it is not known which
    lanes exist, each has a load of its own."""
    x, z = te.placeholder((3, 57), dtype, "X"), te.placeholder((3, 40), dtype, "Z")
    fill = te.const(0 if dtype != "bool" else False, dtype)
    border = te.compute((3, 28), lambda i, j: te.select(2 * j >= 1, x[i, 2 * j - 1], fill), name="Y")
    triangle = te.compute((3, 28), lambda i, j: te.select(2 * j < i * 20, z[i, 2 * j], fill), name="Y")
    for output in (border, triangle):
        state = initial_state(ComputeDAG(output)).apply(Vectorize("Y", "j"))
        text = build(state, parse_target("llvm -mcpu=haswell"), 1).ir
        assert "masked.gather" not in text
        assert ("select i1" in text) == (output is triangle)
        check_kernel(ComputeDAG(output), state)


def colours(n: int, step: int, dtype: str, wide: str, read: tuple[int, ...]) -> ComputeDAG:
    """Sums of some of the elements of each group of `step`, in a type twice as wide; the array ends with a group."""
    x = te.placeholder((n, step), dtype, "X")
    return ComputeDAG(
        te.compute((n,), lambda i: sum((te.cast(x[i, c], wide) * (c + 1) for c in read), te.const(0, wide)), name="Y")
    )


@pytest.mark.parametrize("step", [3, 4, 5, 7])
@pytest.mark.parametrize(
    ("dtype", "wide"), [("uint8", "uint16"), ("int8", "int16"), ("uint16", "uint32"), ("int16", "int32")]
)
def test_groups_of_bytes_and_words(step: int, dtype: str, wide: str) -> None:
    """Vectors of whole groups: none begins before the array or reaches beyond it, where some elements are not read."""
    lanes = 64 // np.dtype(wide).itemsize
    for n in (1, lanes - 1, lanes, lanes + 1, 2 * lanes, 3 * lanes + 5):
        for read in (tuple(range(step)), (step - 1,), (0,), (1, 2)):
            dag = colours(n, step, dtype, wide, read)
            state = initial_state(dag).apply(Split("Y", "i", (2 * lanes,)), Vectorize("Y", "i.1"))
            check_kernel(dag, state, on=(HOST,))


@pytest.mark.parametrize("step", [3, 4])
def test_colours_of_pixels_are_picked_from_the_same_registers(step: int) -> None:
    dag = colours(64, step, "uint8", "uint16", tuple(range(3)))
    text = build(
        initial_state(dag).apply(Split("Y", "i", (32,)), Vectorize("Y", "i.1")), parse_target("llvm -mcpu=znver4"), 1
    ).ir
    vectors = -(-32 * step // 64)
    assert text.count("load <64 x i8>") == vectors
    assert text.count("shufflevector <64 x i8>") == 3 * (vectors - 1)
    assert "load <32 x i8>" not in text
