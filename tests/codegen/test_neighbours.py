"""Neighbours among gathered elements, which are loaded together: every element as the reference has it, in fewer loads."""

from __future__ import annotations

import re

import numpy as np
import pytest

from autosched import te
from autosched.lower.neighbours import neighbours
from autosched.runtime.jit import emit_assembly
from autosched.schedule import Split, State, Vectorize, initial_state
from autosched.target import host_arch, parse_target
from autosched.te import ComputeDAG
from autosched.te.reference.inputs import KINDS, make_inputs
from autosched.te.rewrites.collapse import collapse
from tests.codegen.running import build, check_kernel
from tests.codegen.test_assembly import innermost_loops

HASWELL = parse_target("llvm -mcpu=haswell")


def next_to(width=37, places=50, dtype="float32", index="int32", offsets=(0, 1), rows=3):
    """Elements at given numbers of a row, and the ones after them."""
    x, at = te.placeholder((rows, width), dtype, "X"), te.placeholder((rows, places), index, "at")

    def value(i, j):
        numbers = te.cast(at[i, j], "int32") if index in ("int8", "uint8", "int16") else at[i, j]
        terms = [x[i, numbers + n] for n in offsets]
        return sum(
            (te.cast(t, "int32") if dtype.startswith(("int", "uint")) else t) * (n + 2) for n, t in enumerate(terms)
        )

    return te.compute((rows, places), value, name="C")


def turned(rows=29, width=43, dtype="float32", position="float32", by=(0.8, 0.6), last=None):
    """An image turned about a corner, with linear interpolation; most of it comes from outside. `last`: the column at
    which the user ends it."""
    x = te.placeholder((rows, width), dtype, "X")

    def sample(i, j):
        i, j = te.cast(i, position), te.cast(j, position)
        across, down = j * by[0] - i * by[1] + 5.0, j * by[1] + i * by[0] - 9.0
        left, top = te.floor(across), te.floor(down)
        u, v = te.cast(left, "int32"), te.cast(top, "int32")

        def at(p, q):
            column = u + q if last is None else te.min(te.max(u + q, 3), last)
            return te.cast(x[v + p, column], position)

        upper, lower = (at(p, 0) * (1.0 - (across - left)) + at(p, 1) * (across - left) for p in range(2))
        return upper * (1.0 - (down - top)) + lower * (down - top)

    return te.compute((rows, width), sample, name="C")


def curve(size=257, places=100, dtype="float32"):
    """A tone curve between the points of a table, which bytes never leave."""
    table, x = te.placeholder((size,), dtype, "T"), te.placeholder((places,), "uint8", "X")

    def value(i):
        n = te.cast(x[i], "int32")
        return (te.cast(table[n], "float32") + te.cast(table[n + 1], "float32")) * 0.5

    return te.compute((places,), value, name="C")


CASES = {
    **{f"{f.__name__} {dtype}": lambda f=f, dtype=dtype: f(dtype=dtype)
       for f in (turned, curve) for dtype in ("float32", "uint8", "int16", "bfloat16", "float16", "int32")},
    **{f"numbers of {index}": lambda index=index: next_to(index=index) for index in ("uint8", "int8", "int16", "int64")},
    "numbers that wrap around": lambda: next_to(offsets=(0, 1)),
    "before and after": lambda: next_to(index="int16", offsets=(-1, 0, 1, 2)),
    "three": lambda: next_to(index="int16", offsets=(3, 4, 5)),
    "a row of one": lambda: next_to(width=1, index="int16"),
    "a row of two": lambda: next_to(width=2, index="int16"),
    "rows of one, many": lambda: next_to(width=1, rows=97, index="int8"),
    "columns of the user": lambda: turned(last=17),
    "one column of the user": lambda: turned(last=3),
    "positions in float64": lambda: turned(position="float64"),
    "a table without a last pair": lambda: curve(256),
    "doubles": lambda: turned(dtype="float64", position="float64"),
}  # fmt: skip


def in_vectors(dag: ComputeDAG, lanes: int) -> State:
    last = dag.stages[0].axes[-1].name
    return initial_state(dag).apply(Split("C", last, (lanes,)), Vectorize("C", f"{last}.1"))


@pytest.mark.parametrize("lanes", [2, 8, 16, 64])
@pytest.mark.parametrize("case", CASES)
def test_neighbours_are_those_of_the_reference(case: str, lanes: int) -> None:
    dag = collapse(ComputeDAG(CASES[case]()))
    for kind in KINDS[:2] if lanes == 64 else KINDS:
        data = make_inputs(dag, 1, kind)
        for name in {"at"} & set(data):
            info, width = np.iinfo(data[name].dtype), data["X"].shape[-1]
            ends = [info.min, info.max, -2, -1, 0, 1, width - 2, width - 1, width, info.max - 1, info.min + 1]
            numbers = np.array([n for n in ends if info.min <= n <= info.max], data[name].dtype)
            data[name] = np.resize(numbers, data[name].shape)
        check_kernel(dag, in_vectors(dag, lanes), data)


PAIRED = {
    "turned float32": 2, "turned uint8": 2, "curve float32": 1, "numbers of int16": 1, "before and after": 2, "three": 1,
    "columns of the user": 2,
    "numbers that wrap around": 0, "one column of the user": 0, "positions in float64": 0, "a row of one": 0,
}  # fmt: skip


@pytest.mark.parametrize("case", PAIRED)
def test_pairs_are_found_where_no_number_wraps_around(case: str) -> None:
    dag = collapse(ComputeDAG(CASES[case]()))
    assert len(set(map(id, neighbours(dag.stages[-1].body).values()))) == PAIRED[case]


@pytest.mark.skipif(host_arch() != "x86_64", reason="reads x86 assembly")
@pytest.mark.parametrize(
    ("mcpu", "lanes", "loads"), [("haswell", 8, 16), ("znver4", 16, 32), ("icelake-server", 16, 4)]
)
def test_two_neighbours_are_one_load(mcpu: str, lanes: int, loads: int) -> None:
    """Bilinear samples take two loads for each pixel, or gathers of 64 bits, and no single element."""
    target = parse_target(f"llvm -mcpu={mcpu}")
    dag = collapse(ComputeDAG(turned(64, 256)))
    assembly = emit_assembly(build(in_vectors(dag, lanes), target, 1).ir, target)
    (hot,) = [x for x in innermost_loops(assembly) if x.count("vround") + x.count("vrndscale")]
    pairs = [x for x in hot.lines if re.search(r"v(movsd|movhps|movhpd|gather[dq]pd)\s.*\(%r", x)]
    assert len(pairs) == loads, hot.lines
    assert not re.search(r"vinsertps|vmovss|gatherdps", "\n".join(hot.lines))


def test_rows_that_are_not_adjacent_are_loaded_one_by_one() -> None:
    """The next element of the last dimension is elsewhere where that dimension is not innermost in memory."""
    x, at = te.placeholder((40, 40), name="X"), te.placeholder((40, 40), "int16", "at")

    def value(i, j):
        n = te.cast(at[i, j], "int32")
        return x[n, j] + x[n + 1, j]

    dag = collapse(ComputeDAG(te.compute((40, 40), value, name="C")))
    assert not neighbours(dag.stages[-1].body)
    for kind in KINDS:
        check_kernel(dag, in_vectors(dag, 16), make_inputs(dag, 1, kind))
