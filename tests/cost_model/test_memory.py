"""Bytes beyond the second cache: none of a sliding nest are left out, and short pieces, many rows and data that are
larger than L3 take longer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autosched import te
from autosched.ir.closed_forms.program import Program
from autosched.ir.expr import Expr
from autosched.lower import lower
from autosched.schedule import Reorder, Split, State, Stream, Unroll, Vectorize, initial_state
from autosched.te import ComputeDAG
from cost_model.analysis.statements import Analysis, analyse
from cost_model.analysis.traffic import traffic
from cost_model.cpu.latency import Cost, statement_cost
from cost_model.cpu.machine import machine
from search_spaces.cpu import sketches
from tests.cost_model.nests import ZEN3

TARGET = replace(ZEN3, l3_bytes=32 << 20, l2_bytes=512 << 10)
NO_CACHES = (0.0, 0.0, 0.0)


def number(form: Expr, **values: int) -> float:
    return float(Program([form], [*values])(np.array([[*values.values()]], np.int64))[0, 0])


def doubled(rows: int, columns: int, arrays: int = 1) -> ComputeDAG:
    x = [te.placeholder((rows, columns), name=f"X{n}") for n in range(arrays)]
    return ComputeDAG(te.compute((rows, columns), lambda i, j: sum((a[i, j] for a in x), x[0][i, j]), name="Y"))


def tiled(dag: ComputeDAG, width: int, block: int = 1, vectors: int = 8) -> State:
    """Columns of tiles of `width` elements, all rows high; in a tile blocks of so many rows."""
    return initial_state(dag).apply(
        Split("Y", "i", (block,)), Split("Y", "j", (width // vectors, vectors)),
        Reorder("Y", ("j.0", "i.0", "j.1", "i.1", "j.2")), Unroll("Y", "i.1"), Vectorize("Y", "j.2"),
    )  # fmt: skip


def analysed(state: State) -> Analysis:
    return analyse(lower(state), machine(TARGET, 1).geometry)


def cost(state: State) -> Cost:
    (statement,) = analysed(state).statements
    return statement_cost(statement, machine(TARGET, 1))


def from_memory(state: State) -> float:
    """Cycles of bytes from memory."""
    return number(cost(state).memory[2])


@pytest.mark.parametrize("strip", [2, 16])
def test_all_that_a_sliding_nest_writes_is_counted(strip: int) -> None:
    x = te.placeholder((258, 256), name="X")
    rows = te.compute((258, 254), lambda i, j: x[i, j] + x[i, j + 1] + x[i, j + 2], name="rows")
    dag = ComputeDAG(te.compute((256, 254), lambda i, j: rows[i, j] + rows[i + 1, j] + rows[i + 2, j], name="out"))
    sketch = next(s for s in sketches(dag, TARGET, 1) if "out:strips/rows@out" in s.name)
    values = {p.name: 1 for p in sketch.params} | {"out.i.t": strip, "out.j.r": 8}
    written = [
        (s, a)
        for s in analysed(sketch.state).statements
        for a in s.accesses
        if a.kind != "read" and a.buffer.name == "out"
    ]
    moved = sum(number(traffic(s, a, NO_CACHES, 2), **values) for s, a in written)
    assert moved >= 2 * 256 * 254 * 4  # fetched and written back


def test_short_pieces_take_longer_than_rows() -> None:
    dag = doubled(4096, 2048)
    wide, narrow, narrowest = (from_memory(tiled(dag, n)) for n in (2048, 512, 64))
    assert wide < narrow < narrowest


def test_a_block_of_many_rows_takes_longer() -> None:
    dag = doubled(4096, 2048, arrays=3)
    few, many = (from_memory(tiled(dag, 2048, block)) for block in (2, 8))
    assert many == pytest.approx(2.0 * few, rel=0.05)


def test_pieces_of_lines_of_many_rows_go_slowly_around_the_caches() -> None:
    dag = doubled(4096, 2048)
    pieces, lines = (from_memory(tiled(dag, 2048, 4, n).apply(Stream("Y"))) for n in (8, 16))
    assert pieces > 1.5 * lines
    few = [from_memory(tiled(dag, 2048, 2, n).apply(Stream("Y"))) for n in (8, 16)]
    assert few[0] == pytest.approx(few[1], rel=0.05)


def test_of_what_is_larger_than_l3_a_growing_share_comes_from_memory() -> None:
    each = [from_memory(tiled(doubled(rows, 2048), 2048)) / rows for rows in (64, 512, 1024, 2048, 4096)]
    assert each[0] == 0.0  # 1 MB
    assert 0.0 < each[1] < each[2] < each[3]
    assert each[3] == pytest.approx(each[4], rel=1e-3)
