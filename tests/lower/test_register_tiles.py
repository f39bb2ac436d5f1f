"""The plan of register tiles, as `autosched show ID --as passes` prints it, and that code generation carries it out."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from autosched import te
from autosched.codegen.llvm.kernel import emit
from autosched.codegen.llvm.tiles import forms
from autosched.lower import concretise, lower
from autosched.lower.register_tiles.plan import TilePlan, tiles_text
from autosched.schedule import Reorder, Split, State, Stream, Unroll, Vectorize, initial_state
from autosched.target import Target, parse_target
from autosched.te import ComputeDAG
from autosched.te.operators.registry import build as workload
from autosched.te.rewrites.collapse import collapse
from search_spaces.cpu import sketches
from tests.schedule.graphs import matmul, register_tile
from tests.te.test_scans import running

ZEN4, HASWELL = (parse_target(f"llvm -mcpu={name}") for name in ("znver4", "haswell"))


def lines_of(state: State, target: Target = ZEN4, values: Mapping[str, int] | None = None) -> list[str]:
    """The plan without the stages and loops of its tiles."""
    func, simplify = concretise(lower(state), values or {})
    return [line.rpartition("]: ")[2] for line in tiles_text(func, simplify, target).splitlines()]


def depthwise(target: Target, rows: int, columns: int, k: int = 3) -> tuple[State, dict[str, int]]:
    """A tile of a depthwise convolution without padding, its window written out."""
    shape = {"N": 1, "H": rows + k - 1, "W": columns + k - 1, "C": 16, "k": k, "stride": 1, "pad": 0}
    dag = collapse(workload("dep", settings=shape, dtype="float32")[0])
    sketch = sketches(dag, target, 1)[0]
    sizes = {"oh.r": rows, "ow.r": columns, "c.r": target.vector_bytes // 4, "kh.u": k, "kw.u": k}
    values = {p.name: p.domain[0] for p in sketch.params}
    values |= {p.name: size for p in sketch.params for end, size in sizes.items() if p.name.endswith(f".{end}")}
    return sketch.state, values


@pytest.mark.parametrize(
    ("rows", "columns", "k", "want"),
    [
        (2, 3, 3, "window, 6 accumulators and 9 operands"),
        (7, 7, 3, "rolling accumulators, 17 of 49 at a time, in the order of the input, 2 statements"),
    ],
)
def test_windows(rows: int, columns: int, k: int, want: str) -> None:
    state, values = depthwise(ZEN4, rows, columns, k)
    assert want in lines_of(state, ZEN4, values)


def test_a_tile_is_printed_with_its_stage_and_loops() -> None:
    state, values = depthwise(ZEN4, 7, 7)
    func, simplify = concretise(lower(state), values)
    (line,) = (x for x in tiles_text(func, simplify, ZEN4).splitlines() if "rolling" in x)
    assert line.startswith("depthwise.acc [")
    assert "=7 " in line.partition("]")[0]
    assert "=16]" in line


def test_prefix_scans() -> None:
    state = initial_state(ComputeDAG(running((3, 16))))
    steps = Reorder("Y", ("i0", "k", "i1")), Unroll("Y", "k"), Vectorize("Y", "i1")
    assert lines_of(state.apply(*steps)) == ["prefix scan of 16 elements in 1 vectors"]
    assert lines_of(state.apply(*steps), HASWELL) == ["prefix scan of 16 elements in 2 vectors"]


def across(read: bool) -> State:
    """Y[j, i] = X[i, j], with vectors along i or along j."""
    x = te.placeholder((64, 64), name="X")
    state = initial_state(ComputeDAG(te.compute((64, 64), lambda j, i: x[i, j], name="Y")))
    row, lane = ("j", "i") if read else ("i", "j")
    order = Reorder("Y", ("j.0", "i.0", f"{row}.1", f"{lane}.1"))
    tiled = Split("Y", "j", (16,)), Split("Y", "i", (16,)), order
    return state.apply(*tiled, Unroll("Y", f"{row}.1"), Vectorize("Y", f"{lane}.1"))


def test_transposes() -> None:
    assert lines_of(across(read=True)) == ["transpose, X read across, 16 rows, 4 at a time"]
    assert lines_of(across(read=False)) == ["transpose, Y written across, 16 rows, 4 at a time"]


def test_outputs_that_are_stored_around_the_caches() -> None:
    state = across(read=True).apply(Stream("Y"))
    line = "transpose, X read across, 16 rows, 4 at a time"
    assert lines_of(state) == [line, "Y: stored around the caches"]
    assert lines_of(state, parse_target("llvm -mcpu=neoverse-n1"))[1:] == []


def test_orders_of_loops() -> None:
    """Tiles of 12 accumulators of 16 registers, and of 28 of 32."""
    wide, high = (initial_state(matmul(14, 192, 8)).apply(*register_tile(m, n, 1)) for m, n in ((2, 48), (7, 64)))
    assert lines_of(wide, HASWELL)[1] == "loops in the order C.acc.j, C.acc.i"
    assert lines_of(high, ZEN4)[1] == "loops in the order C.acc.j, C.acc.i, operands loaded for each vector"
    assert lines_of(wide, ZEN4)[1] == "loops in their order"


def test_code_generation_carries_out_what_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    emitted: list[TilePlan] = []
    original = forms.emit_tile
    monkeypatch.setattr(
        "autosched.codegen.llvm.statements.emit_tile", lambda e, plan: (emitted.append(plan), original(e, plan))
    )
    for state, values in (depthwise(ZEN4, 7, 7), depthwise(ZEN4, 2, 3), (across(read=True), {})):
        emitted.clear()
        func, simplify = concretise(lower(state), values)
        emit(func, simplify, ZEN4, 1)
        printed = [line for line in lines_of(state, ZEN4, values) if line != "loops in their order"]
        assert [line.removesuffix(", 2 statements") for line in printed] == list(map(str, emitted))
