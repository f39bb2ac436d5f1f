"""Closed forms against brute force: concrete nests are walked and every touched element is counted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pytest

from autosched.ir.closed_forms.program import Program
from autosched.ir.expr import Binary, Const, Expr, Load, Param, Var, binary, cast, ceildiv, imin
from autosched.ir.stmt import Allocate, For, ForKind, Func, If, Prefetch, Seq, Stmt, Store, walk
from autosched.ir.visit import loads
from autosched.lower import lower
from autosched.schedule import initial_state
from autosched.target import parse_target
from autosched.te.operators.registry import build
from autosched.te.rewrites.collapse import collapse
from cost_model.analysis.access import Access
from cost_model.analysis.operations import recurrence_chain
from cost_model.analysis.statements import Analysis, Statement, analyse
from cost_model.analysis.traffic import pages_fetched
from cost_model.cpu.instructions import ACROSS, OP_SLOTS
from cost_model.cpu.latency import analytic_latency, make_block, statement_cost
from cost_model.cpu.machine import FORK_JOIN_S, NEST_S, machine
from search_spaces.cpu import sketches
from tests.cost_model import nests
from tests.te import scans

UNMEASURED = replace(nests.AVX2, mcpu="x86-64-v3")  # no core's name, so its row is the generic one

Values = Mapping[Expr, int]


def number(expr: Expr, values: Values) -> int:
    """The integer value of an index or extent."""
    match expr:
        case Const(value=value):
            return int(value)
        case Var() | Param():
            return values[expr]
        case Binary(op=op, a=a, b=b):
            x, y = number(a, values), number(b, values)
            operations = {
                "add": lambda: x + y,
                "sub": lambda: x - y,
                "mul": lambda: x * y,
                "floordiv": lambda: x // y,
                "mod": lambda: x % y,
                "ceildiv": lambda: -(-x // y),
                "min": lambda: min(x, y),
                "max": lambda: max(x, y),
            }
            return operations[op]()
    raise AssertionError(expr)


def executions(stmt: Stmt, store: Store, values: dict[Expr, int], fixed: int = 0) -> Iterator[dict[Expr, int]]:
    """The values of the variables each time `store` runs, with the `fixed` outer loops (longer than one) at 0."""
    match stmt:
        case For():
            one = isinstance(stmt.bound, Const) and stmt.bound.value == 1
            steps = range(number(stmt.extent, values))
            for i in steps if fixed == 0 or one else range(1):
                yield from executions(stmt.body, store, {**values, stmt.var: i}, fixed if one else max(0, fixed - 1))
        case Seq() | Allocate():
            for child in stmt.body_stmts:
                if any(s is store for s in walk(child)):
                    yield from executions(child, store, values, fixed)
        case Store() if stmt is store:
            yield values


def stores(func: Func) -> list[Store]:
    return [s for s in walk(func.body) if isinstance(s, Store)]


def touched(func: Func, store: Store, name: str, params: Mapping[str, int], depth: int) -> set[tuple[int, ...]]:
    values: dict[Expr, int] = {Param(k): v for k, v in params.items()}
    found = set()
    for point in executions(func.body, store, values, depth):
        if name in store.buffers:
            found.add(tuple(number(i, point) for i in store.indices))
        for load in (x for v in store.values for x in loads(v) if x.buffer == name):
            found.add(tuple(number(i, point) for i in load.indices))
    return found


def evaluate(exprs: list[Expr], params: Mapping[str, int]) -> list[float]:
    return [float(v) for v in Program(exprs, tuple(params))(np.array([list(params.values())], np.int64))[:, 0]]


def check_footprints(func: Func, params: Mapping[str, int]) -> None:
    for store, statement in zip(stores(func), analyse(func).statements, strict=True):
        for access in statement.accesses:
            got = evaluate(list(access.elements), params)
            want = [len(touched(func, store, access.buffer.name, params, d)) for d in range(statement.depth + 1)]
            assert got == want, (statement.stage, access.buffer.name, params)


def check_executions(func: Func, params: Mapping[str, int]) -> None:
    for store, statement in zip(stores(func), analyse(func).statements, strict=True):
        values: dict[Expr, int] = {Param(k): v for k, v in params.items()}
        want = sum(1 for _ in executions(func.body, store, values))
        assert evaluate([statement.executions], params)[0] == pytest.approx(want), statement.stage


MATMULS = [
    {"mc": 2, "mr": 3, "nc": 1, "nr": 4, "kc": 2},
    {"mc": 1, "mr": 4, "nc": 2, "nr": 2, "kc": 6},
    {"mc": 3, "mr": 2, "nc": 2, "nr": 3, "kc": 12},
]


@pytest.mark.parametrize("params", MATMULS)
def test_matmul_footprints(params: dict[str, int]) -> None:
    check_footprints(nests.matmul(12, 12, 12), params)


@pytest.mark.parametrize(
    "params", [*MATMULS, {"mc": 2, "mr": 5, "nc": 2, "nr": 3, "kc": 5}, {"mc": 1, "mr": 7, "nc": 3, "nr": 5, "kc": 7}]
)
@pytest.mark.parametrize("shape", [(12, 12, 12), (11, 13, 10)])
def test_matmul_executions_with_tails(params: dict[str, int], shape: tuple[int, int, int]) -> None:
    check_executions(nests.matmul(*shape), params)


@pytest.mark.parametrize("params", [{"mr": 2, "nr": 4, "kc": 3}, {"mr": 3, "nr": 2, "kc": 6}])
def test_packed_matmul(params: dict[str, int]) -> None:
    check_footprints(nests.packed_matmul(6, 8, 6), params)
    check_executions(nests.packed_matmul(7, 9, 5), params)


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (1, 2), (2, 3)])
@pytest.mark.parametrize("params", [{"th": 1, "tw": 2, "tc": 2}, {"th": 2, "tw": 4, "tc": 4}])
def test_conv_footprints(kernel: int, stride: int, params: dict[str, int]) -> None:
    size = 3 * stride + kernel  # four output rows
    func = nests.conv(size, size, 2, 4, kernel, stride)
    check_executions(func, params)
    store, statement = stores(func)[0], analyse(func).statements[0]
    for access in statement.accesses:
        got = evaluate(list(access.elements), params)
        want = [len(touched(func, store, access.buffer.name, params, d)) for d in range(statement.depth + 1)]
        if kernel >= stride:
            assert got == want
        else:  # gaps in two directions: an upper bound, the loops' iterations
            assert all(w <= g for g, w in zip(got, want, strict=True))


@pytest.mark.parametrize("t", [4, 8, 16, 32])
def test_fused_elementwise(t: int) -> None:
    func = nests.elementwise(8, 16)
    check_executions(func, {"t": t})
    check_footprints(func, {"t": t})
    statement = analyse(func).statements[0]
    assert evaluate(list(statement.write.stride), {"t": t})[1] == 1.0


def test_row_maximum() -> None:
    func = nests.row_maximum(10, 6)
    check_executions(func, {"t": 3})
    check_footprints(nests.row_maximum(9, 6), {"t": 3})
    statement = analyse(func).statements[0]
    assert statement.updates
    assert statement.ops.counts == (("float_cmp", 1),)


def lines_touched(access: Access, func: Func, store: Store, params: Mapping[str, int], depth: int) -> int:
    shape = evaluate(list(access.buffer.shape), params)
    places = touched(func, store, access.buffer.name, params, depth)
    flat = {int(np.ravel_multi_index(p, [int(s) for s in shape])) * 4 // 64 for p in places}
    return len(flat)


@pytest.mark.parametrize(
    "params", [{"mc": 2, "mr": 2, "nc": 2, "nr": 16, "kc": 16}, {"mc": 1, "mr": 4, "nc": 1, "nr": 32, "kc": 32}]
)
def test_lines_of_aligned_tiles(params: dict[str, int]) -> None:
    func = nests.matmul(4, 64, 32)
    store = stores(func)[1]
    statement = analyse(func).statements[1]
    for access in statement.accesses[1:]:
        got = evaluate(list(access.lines), params)
        want = [lines_touched(access, func, store, params, d) for d in range(statement.depth + 1)]
        assert got == want, access.buffer.name


def main_statement(analysis: Analysis) -> Statement:
    return max(analysis.statements, key=lambda s: s.depth)


def test_strides() -> None:
    params = {"mc": 2, "mr": 3, "nc": 1, "nr": 4, "kc": 2}
    statement = main_statement(analyse(nests.matmul(12, 20, 16)))
    a, b = statement.accesses[1:]
    #   loops                                  i0      j0  i1  j1 k0  k1  i2  j2
    assert evaluate(list(a.stride), params) == [6 * 16, 0, 3 * 16, 0, 2, 1, 16, 0]
    assert evaluate(list(b.stride), params) == [0, 4, 0, 4, 2 * 20, 20, 0, 1]


def test_packed_strides_follow_the_layout() -> None:
    params = {"mr": 2, "nr": 4, "kc": 3}
    statement = main_statement(analyse(nests.packed_matmul(8, 12, 6)))
    panel = next(a for a in statement.accesses if a.buffer.name == "panel")
    #  k0 stands outside the panel, i does not move it; j0 skips a tile of kc rows of nr
    assert evaluate(list(panel.stride), params) == [0, 0, 3 * 4, 4, 0, 1]


def test_working_set_of_a_loop_holds_all_its_statements() -> None:
    params = {"mr": 2, "nr": 16, "kc": 4}
    analysis = analyse(nests.packed_matmul(8, 32, 8))
    whole = evaluate([analysis.statements[0].working_set[0]], params)[0]
    assert whole == 4 * (8 * 8 + 8 * 32 + 8 * 32 + 4 * 32)  # A, B, C and the panel
    assert analysis.statements[0].working_set[0] is analysis.statements[1].working_set[0]


def test_accesses_that_nests_have_in_common_are_analysed_once() -> None:
    one, again, larger = (analyse(nests.packed_matmul(8, n, 6)).statements for n in (12, 12, 16))
    assert [s.accesses for s in one] == [s.accesses for s in again]
    assert not {a for s in one for a in s.accesses} & {a for s in larger for a in s.accesses}


def test_a_nest_that_functions_have_in_common_is_looked_at_once() -> None:
    """What it costs by itself is derived once; what all touch together is each function's."""
    func, cpu = nests.packed_matmul(8, 12, 6), machine(parse_target("llvm -mcpu=haswell"), 1)
    far = nests.nest(
        [(Var("i"), Const(4096), Const(4096), ForKind.SERIAL, False)],
        Store(("z",), (Var("i"),), (Const(0.0, "float32"),)),
    )
    more = replace(func, params=(*func.params, nests.buffer("z", 4096)), body=Seq((func.body, far)))
    one, again, beside = (max(analyse(f).statements, key=lambda s: s.depth) for f in (func, func, more))
    assert one.accesses is again.accesses is beside.accesses
    assert one.working_set[1:] == beside.working_set[1:]
    assert one.working_set[0] is again.working_set[0] is not beside.working_set[0]
    costs = [statement_cost(s, cpu) for s in (one, again, beside)]
    assert costs[0].block is costs[1].block is costs[2].block
    assert costs[0].cycles is costs[1].cycles is not costs[2].cycles


def test_multiply_add_is_one_operation() -> None:
    statement = main_statement(analyse(nests.matmul(8, 8, 8)))
    assert statement.ops.counts == (("float_mad", 1),)
    assert statement.ops.flops == 2


def test_register_and_vector_loops() -> None:
    params = {"mc": 1, "mr": 6, "nc": 1, "nr": 40, "kc": 4}
    statement = main_statement(analyse(nests.matmul(64, 80, 8)))
    assert evaluate([statement.registers(16, parse_target("llvm -mcpu=znver4"))], params) == [18.0]
    assert [x.kind.value for x in statement.loops[statement.block_depth :]] == ["unroll", "vectorize"]
    assert statement.vector_loop == statement.depth - 1


def test_registers_of_a_tile_whose_lanes_do_not_run_along_its_last_axis() -> None:
    """Few channels: the tile is stored [q, r, co][lane] and takes a vector for each q, r, co and lane group."""
    dag = collapse(build("t2d", (1, 16, 16, 4, 3, 4, 2, 1))[0])
    found = [s for s in sketches(dag, parse_target("llvm -mcpu=skylake-avx512"), 1) if ":v2-" in s.name]
    assert found
    for sketch in found:
        sizes = {p.name: 1 for p in sketch.params} | {"phases.qh.r": 2, "phases.co.r": 3, "phases.qw.r": 16}
        (update,) = (s for s in analyse(lower(sketch.state)).statements if s.stage == "phases.acc" and s.updates)
        assert evaluate([update.registers(16, parse_target("llvm -mcpu=znver4"))], sizes) == [2 * 3]


@pytest.mark.parametrize(("vector", "width", "loads"), [(64, 28, 7 * ACROSS), (64, 14, 3 * ACROSS + 2), (8, 28, 28)])
def test_a_copy_across_four_neighbours_takes_fewer_loads(vector: int, width: int, loads: float) -> None:
    """Weights [co][ci][3][3] in panels along co: the nine taps of a channel are adjacent. Four channels are transposed,
    the rest of them is not; none are where a vector has fewer."""
    settings: dict[str, int | str] = {"H": 6, "W": 6, "CI": 8, "CO": 28, "k": 3, "layout": "NCHW"}
    target = parse_target("llvm -mcpu=skylake-avx512")
    sketch = next(s for s in sketches(collapse(build("conv2d", settings=settings)[0]), target, 1) if "W@root" in s.name)
    copy = next(s for s in analyse(lower(sketch.state)).statements if s.stage == "W.pack")
    column = next(p.name for p in sketch.params if p.name.endswith(".co.r"))
    block = make_block(copy, machine(replace(target, vector_bytes=vector), 1))
    sizes = {p.name: p.domain[0] for p in sketch.params} | {column: width, "W.pack.d1.r": 1}
    assert evaluate([block.loads], sizes)[0] == pytest.approx(9 * loads)


def test_pieces_of_lines_that_crowd_are_fetched_once_where_they_are_transposed() -> None:
    """Keys [seq][16 heads][64]: their rows are 4096 bytes apart and crowd in one set, but each piece of eight is read
    once, whole, and not again for each of its elements."""
    target = parse_target("llvm -mcpu=haswell")
    found = sketches(collapse(build("tbg", (1, 128, 16, 64))[0]), target, 1)
    sketch = next(s for s in found if "K@panel" in s.name)
    copy = next(s for s in analyse(lower(sketch.state)).statements if s.stage == "K.pack")
    sizes = {p.name: p.domain[-1] for p in sketch.params} | {"scores.j.r": 16, "K.pack.d2.r": 8}
    [fetched] = evaluate([statement_cost(copy, machine(target, 1)).memory[0]], sizes)
    read = next(a for a in copy.accesses if a.kind == "read")
    lines, blocks = evaluate([read.lines[copy.block_depth], copy.iterations(copy.block_depth)], sizes)
    assert lines == 16
    assert (
        fetched * machine(target, 1).uarch.l2_bandwidth <= 64 * (lines + 2 * 8) * blocks
    )  # and what is written, there and back


def test_rows_that_crowd_in_the_first_level_have_room_in_the_second() -> None:
    """The queries of a head, 128 rows of four lines 4096 bytes apart: 128 lines of four places in a page, of 128 that
    a cache of 512 KiB has for each."""
    target = replace(nests.AVX2, l2_bytes=512 << 10)
    update = next(s for s in analyse(nests.matmul(128, 8, 1024), machine(target, 1).geometry).statements if s.updates)
    read = next(a for a in update.accesses if a.buffer.name == "A")
    values = {"mc": 1, "mr": 128, "nc": 1, "nr": 4, "kc": 1}
    assert evaluate([read.resident[update.block_depth], read.settled[update.block_depth]], values) == [
        64 * (128 - 3.5), 64 * (128 - 16 * 3.5),
    ]  # fmt: skip


def test_the_longer_of_two_tasks_is_what_both_threads_wait_for() -> None:
    target = parse_target("llvm -mcpu=skylake-avx512")
    sketch = next(s for s in sketches(collapse(build("gmm", (1, 64, 256, 32))[0]), target, 2) if ":v1-panel" in s.name)
    update = next(s for s in analyse(lower(sketch.state)).statements if s.updates)
    share = statement_cost(update, machine(target, 2)).share
    sizes = {p.name: p.domain[0] for p in sketch.params} | {"matmul.i.m": 8, "matmul.i.r": 8, "matmul.j.r": 16}
    found = [evaluate([share], sizes | {"matmul.j.m": m})[0] for m in (5, 8, 10, 12, 16)]
    assert found == pytest.approx([160 / 256, 128 / 256, 160 / 256, 192 / 256, 1])


def test_where_cores_are_not_equally_fast_half_a_task_is_waited_for() -> None:
    """In 0.3 of the time; of 16 tasks it is a 64th of the whole, of two an eighth; one is on one thread anyway."""
    target = parse_target("llvm -mcpu=emeraldrapids")
    sketch = next(s for s in sketches(collapse(build("gmm", (1, 64, 256, 32))[0]), target, 2) if ":v1-panel" in s.name)
    update = next(s for s in analyse(lower(sketch.state)).statements if s.updates)
    cpu = machine(target, 2)
    share = statement_cost(update, cpu).share
    sizes = {p.name: p.domain[0] for p in sketch.params} | {"matmul.i.m": 8, "matmul.i.r": 8, "matmul.j.r": 16}
    found = [evaluate([share], sizes | {"matmul.j.m": m})[0] for m in (1, 4, 8, 16)]
    assert cpu.uarch.unequal_cores == 0.3
    assert found == pytest.approx([0.5 + 0.3 / 64, 0.5 + 0.3 / 16, 0.5 + 0.3 / 8, 1])


def test_a_nest_of_one_task_asks_no_thread() -> None:
    """Two tasks of two threads begin later than one; as many as there are in one thread cost the same."""
    sizes = {"mr": 4, "nc": 4, "nr": 16, "kc": 8}
    found = {}
    for threads in (1, 2):
        cost = analytic_latency(analyse(nests.matmul(16, 64, 64)), machine(nests.AVX2, threads)).fork_join
        found[threads] = [evaluate([cost], sizes | {"mc": mc})[0] for mc in (2, 4)]
    assert found == {1: [NEST_S, NEST_S], 2: [FORK_JOIN_S, NEST_S]}


def test_guard_of_a_single_iteration_counts_once() -> None:
    func = nests.row_maximum(8, 8)
    store = stores(func)[0]
    loop = next(s for s in walk(func.body) if isinstance(s, For))
    guarded = For(loop.var, loop.extent, loop.bound, loop.kind, If(loop.var.equal(0), store))
    statement = analyse(Func("g", func.params, 1, guarded)).statements[0]
    assert evaluate([statement.executions], {"t": 2})[0] == pytest.approx(1.0)


def test_load_depending_on_data_may_touch_everything() -> None:
    i = Var("i")
    index = Load("index", (i,), "int64")
    store = Store(("out",), (i,), (nests.load("data", index),), None, "gather")
    body = nests.nest([(i, Const(16), Const(16), ForKind.SERIAL, False)], store)
    buffers = (nests.buffer("index", 16), nests.buffer("data", 100), nests.buffer("out", 16))
    statement = analyse(Func("gather", buffers, 1, body)).statements[0]
    data = next(a for a in statement.accesses if a.buffer.name == "data")
    assert evaluate(list(data.elements), {"t": 1}) == [16.0, 1.0]


def test_neighbouring_loads_are_one_access() -> None:
    i = Var("i")
    value = nests.load("x", i) + nests.load("x", i + 1) + nests.load("x", i + 2)
    body = nests.nest([(i, Const(30), Const(30), ForKind.SERIAL, False)], Store(("y",), (i,), (value,)))
    statement = analyse(Func("stencil", (nests.buffer("x", 32), nests.buffer("y", 30)), 1, body)).statements[0]
    x = statement.accesses[1]
    assert (len(statement.accesses), x.count) == (2, 3)
    assert evaluate(list(x.elements), {"t": 1}) == [32.0, 3.0]


def test_overlapping_tiles_count_their_borders_again() -> None:
    """A producer of 4-wide tiles with a border of two: extent min(6, 18 - 4 v) over 4 tiles is always six."""
    v, i, t = Var("v"), Var("i"), Param("t")
    inner = For(
        i,
        Binary("min", t + 2, Const(18) - v * t),
        t + 2,
        ForKind.SERIAL,
        Store(("y",), (v * t + i,), (Const(0.0, "float32"),)),
    )
    outer = For(v, ceildiv(16, t), ceildiv(16, t), ForKind.SERIAL, inner)
    statement = analyse(Func("halo", (nests.buffer("y", 18),), 1, outer)).statements[0]
    assert evaluate([statement.executions], {"t": 4})[0] == pytest.approx(24)
    assert math.isclose(evaluate([statement.executions], {"t": 5})[0], 7 * 3 + 3)


@pytest.mark.parametrize(("tile", "task", "want"), [(16, 12, 2), (8, 12, 3), (4, 12, 4), (5, 3, 6), (7, 16, 3)])
def test_a_tile_that_does_not_divide_its_task_is_begun_once_for_what_is_left(tile: int, task: int, want: int) -> None:
    """Tasks of 16 points, of which tiles are as often begun as their ends make necessary."""
    v, i = Var("v"), Var("i")
    left = imin(Const(task), Const(16) - v * task)
    body = Store(("y",), (v * task + i,), (Const(0.0, "float32"),))
    inner = For(i, ceildiv(left, tile), ceildiv(task, tile), ForKind.SERIAL, body)
    outer = For(v, ceildiv(16, task), ceildiv(16, task), ForKind.SERIAL, inner)
    statement = analyse(Func("tiles", (nests.buffer("y", 16),), 1, outer)).statements[0]
    assert evaluate([statement.executions], {})[0] == pytest.approx(want)


@pytest.mark.parametrize(
    ("columns", "rows", "want"),
    [(1024, 12, 544), (1024, 1, 1), (1024, 3, 3), (1040, 12, 12), (512, 12, 160), (16, 12, 12), (1021, 12, 12)],
)
def test_rows_at_distances_of_a_page_crowd_in_few_sets(columns: int, rows: int, want: int) -> None:
    """One line of each of `rows` rows: 4096 bytes apart all lie in one of 64 sets, 2048 bytes apart in two.

    Of 12 lines in a set 3.5 are free, of 6 as many: 64 * 8.5 and 64 * 2.5 lines are as good as taken."""
    update = next(s for s in analyse(nests.matmul(rows, 12, columns)).statements if s.updates)
    read = next(a for a in update.accesses if a.buffer.name == "A")
    values = {"mc": 1, "mr": rows, "nc": 1, "nr": 4, "kc": 1}
    assert evaluate([read.resident[update.block_depth]], values) == [want]


@pytest.mark.parametrize(
    ("columns", "rows", "width", "want"), [(1024, 12, 1, 12), (16, 12, 1, 1), (512, 12, 1, 6), (512, 12, 512, 7)]
)
def test_rows_at_distances_of_a_page_are_as_many_pages(columns: int, rows: int, width: int, want: float) -> None:
    update = next(s for s in analyse(nests.matmul(rows, 12, columns)).statements if s.updates)
    read = next(a for a in update.accesses if a.buffer.name == "A")
    values = {"mc": 1, "mr": rows, "nc": 1, "nr": 4, "kc": width}
    at = update.depth - 3 if width > 1 else update.block_depth  # inside the outer loop of the reduction
    assert evaluate([read.pages[at]], values)[0] == pytest.approx(want, abs=0.7)


def test_columns_of_a_large_matrix_are_found_page_by_page() -> None:
    """Sixteen columns of a thousand rows of a page: of panels of 12 rows each begins them anew, for in the sets that
    they share is no room for them. As a dense panel they are 16 pages and a border, and stay.
    It is counted on Zen 3, Golden Cove and Haswell alone."""
    values = {"mc": 4, "mr": 6, "nc": 1, "nr": 16, "kc": 4}
    costs = []
    for columns, want in ((1024, 8 * 64 * 1024), (16, 17)):
        update = next(s for s in analyse(nests.matmul(48, columns, 1024, parallel=False)).statements if s.updates)
        read = next(a for a in update.accesses if a.buffer.name == "B")
        cpu = machine(nests.ZEN3, 1)
        assert evaluate([pages_fetched(update, read, cpu.cache_bytes, 1)], values)[0] == pytest.approx(want, rel=1e-3)
        costs.append(evaluate([statement_cost(update, cpu).core], values)[0] / columns)
    restart = cpu.uarch.prefetch_restart
    assert costs[0] - costs[1] > 0.99 * 8 * 64 * restart
    assert restart == machine(parse_target("llvm -mcpu=emeraldrapids"), 1).uarch.prefetch_restart > 0
    assert machine(UNMEASURED, 1).uarch.prefetch_restart == machine(nests.TARGET, 1).uarch.prefetch_restart == 0


@pytest.mark.parametrize(
    ("columns", "rows", "pages", "lines"),
    [(256, 256, 64, 256), (272, 256, 68, 0), (128, 256, 0, 0), (128, 512, 64, 512), (144, 256, 0, 0)],
)
def test_tiles_find_many_pages_and_lines_of_a_set_again(columns: int, rows: int, pages: int, lines: int) -> None:
    """Sixteen columns of a matrix in the second level cache, by panels of 6 rows: pages beyond what address translation
    has at hand, lines that are many in each set. On a core where nobody measured it, it is not counted."""
    values, excess = {"mc": 4, "mr": 6, "nc": 1, "nr": 16, "kc": 4}, []
    for target in (nests.ZEN3, UNMEASURED):
        cpu = machine(replace(target, l2_bytes=1 << 20), 1)
        found = []
        for n in (columns, 16):
            update = next(s for s in analyse(nests.matmul(48, n, rows, parallel=False)).statements if s.updates)
            found.append(evaluate([statement_cost(update, cpu).core], values)[0] / (n // 16) / 8)
        excess.append(found[0] - found[1])
    zen = machine(nests.ZEN3, 1).uarch
    assert excess[0] - excess[1] == pytest.approx(pages * zen.dtlb_miss + lines * zen.conflict_line, abs=12)


def test_rows_of_two_dimensions_share_their_sets() -> None:
    """A tile of 7 x 4 pixels of 512 channels, 7 pixels a row: all are multiples of 2048 bytes apart, in two sets."""
    func = nests.conv(7, 7, 512, 16, 1, 1)
    read = next(a for a in analyse(func).statements[0].accesses if a.buffer.name == "x")
    values = {"th": 7, "tw": 4, "tc": 16}
    at = next(d for d, n in enumerate(evaluate(list(read.lines), values)) if n == 28)
    assert evaluate([read.resident[at]], values) == [64 * (28 / 2 - 3.5)]


@pytest.mark.parametrize(
    ("columns", "rows", "want"),
    [(1024, 9, True), (1024, 8, False), (512, 12, False), (512, 17, True), (1040, 17, False), (16, 64, False)],
)
def test_lines_that_are_more_than_the_ways_of_their_sets(columns: int, rows: int, want: bool) -> None:
    update = next(s for s in analyse(nests.matmul(rows, 12, columns)).statements if s.updates)
    read = next(a for a in update.accesses if a.buffer.name == "A")
    values = {"mc": 1, "mr": rows, "nc": 1, "nr": 4, "kc": 1}
    assert evaluate([read.has_set_conflicts(update.block_depth)], values) == [want]


@pytest.mark.parametrize(("rows", "vectors", "spills"), [(6, 2, 0), (7, 2, 1), (3, 4, 0), (2, 6, 0), (7, 3, 9)])
def test_a_tile_has_registers_for_a_row_or_a_column_of_operands(rows: int, vectors: int, spills: int) -> None:
    update = next(s for s in analyse(nests.matmul(96, 96, 64, parallel=False)).statements if s.updates)
    values = {"mc": 1, "mr": rows, "nc": 1, "nr": 8 * vectors, "kc": 4}
    assert evaluate([make_block(update, machine(nests.AVX2, 1)).spills], values) == [spills]


@pytest.mark.parametrize(
    ("rows", "vectors", "longest"), [(6, 2, "arithmetic"), (2, 1, "latency"), (7, 3, "arithmetic")]
)
def test_a_block_takes_the_longest_of_its_limits_and_its_spills(rows: int, vectors: int, longest: str) -> None:
    update = next(s for s in analyse(nests.matmul(84, 96, 64, parallel=False)).statements if s.updates)
    values = {"mc": 1, "mr": rows, "nc": 1, "nr": 8 * vectors, "kc": 4}
    block = make_block(update, machine(nests.AVX2, 1))
    limits = dict(zip(block.limits, evaluate([*block.limits.values()], values), strict=True))
    spills = limits.pop("spills")
    assert max(limits, key=lambda name: limits[name]) == longest
    assert evaluate([block.cycles], values) == [pytest.approx(limits[longest] + spills)]


@pytest.mark.parametrize(("name", "slots"), [("haswell", 2.0), ("skylake-avx512", 1.0)])
def test_maxima_of_what_may_be_nan_take_more_slots_before_avx512(name: str, slots: float) -> None:
    """A comparison of what is loaded beside the maximum, but not where one of the two is a number."""
    target = machine(parse_target(f"llvm -mcpu={name}"), 1)
    update = next(s for s in analyse(nests.row_maximum(8, 64)).statements if s.updates)
    block = make_block(update, target)
    assert evaluate([block.arithmetic], {"t": 1}) == [pytest.approx(slots * 64 / target.lanes(4))]
    assert update.ops.minima_and_maxima == 1
    relu = analyse(lower(sketches(collapse(build("elementwise")[0]), target.target, 1)[0].state)).statements
    assert all(s.ops.minima_and_maxima == 0 for s in relu)


def test_an_element_of_several_maxima_is_compared_once() -> None:
    """Three rows of windows of 3 x 3: 27 maxima of five rows of three elements, each loaded and compared once."""
    target = machine(parse_target("llvm -mcpu=haswell"), 1)
    dag = collapse(build("max_pool2d", (1, 11, 11, 32, 3, 1, 0))[0])
    sketch = next(s for s in sketches(dag, target.target, 1) if s.name.endswith("rows"))
    update = next(s for s in analyse(lower(sketch.state)).statements if s.updates)
    wanted = {"oh.r": 3, "c.r": 8, "kh.u": 3, "kw.u": 3}
    row = [wanted.get(".".join(p.name.split(".")[-2:]), 1) for p in sketch.params]
    program = Program([make_block(update, target).arithmetic], [p.name for p in sketch.params])
    assert float(program(np.array([row]))[0][0]) == 27 + 15


@pytest.mark.parametrize("rows", [1, 6])
def test_copies_compute_once_what_they_agree_in(rows: int) -> None:
    """A weight of 4 bits, less a zero point, for all rows of a tile: of two vectors a conversion, a mask, another
    conversion and a difference each. Which bits they are is known from indices."""
    i, j, k = Var("i"), Var("j"), Var("k")
    bits = binary("bitand", cast(Load("W", (k // 2, j), "uint8"), "int32") // 16, Const(15, "int32"))
    weight = cast(bits * cast(k % 3, "int32"), "float32") - nests.load("Z", j)
    store = Store(("C",), (i, j), (nests.load("A", i, k) * weight,), nests.SUM, "C")
    sizes = (k, 64, ForKind.SERIAL, True), (i, rows, ForKind.UNROLL, False), (j, 16, ForKind.VECTORIZE, False)
    body = nests.nest([(v, Const(n), Const(n), kind, reduce) for v, n, kind, reduce in sizes], store)
    weights = replace(nests.buffer("W", 32, 16), dtype="uint8")
    params = (nests.buffer("A", rows, 64), weights, nests.buffer("Z", 16), nests.buffer("C", rows, 16))
    update = analyse(Func("product", params, 1, body)).statements[0]
    word, number, both = OP_SLOTS["int_other"], OP_SLOTS["float_other"], OP_SLOTS["int_mul"] + OP_SLOTS["float_addsub"]
    once = 3 * word + number + both  # two conversions of words, a shift, a mask, a product, a difference
    assert evaluate([make_block(update, machine(nests.AVX2, 1)).arithmetic], {}) == [2 * (rows + once)]


@pytest.mark.parametrize("copies", [2, 4])
def test_hints_take_what_of_their_places_moves(copies: int) -> None:
    """A division (a product and a shift) and the hint for each copy; one product is for all of them, and sums are parts
    of addresses."""
    i, j, k = Var("i"), Var("j"), Var("k")
    hint = For(j, Const(copies), Const(copies), ForKind.UNROLL, Prefetch("in", (i, i * 32 + (k * copies + j) // 3)))
    body = Seq((hint, Store(("out",), (i,), (nests.load("in", i, k),))))
    for var, size in ((k, 16), (i, 8)):
        body = For(var, Const(size), Const(size), ForKind.SERIAL, body)
    update = analyse(replace(nests.row_maximum(8, 64), body=body)).statements[0]
    assert evaluate([update.asking], {}) == [3 * copies + 1]


CHAINS = {"forwards, axis 0 of 2": 2, "steps of two": 1, "third order": 3, "two states": 3, "resetting": 2, "int32": 3}


@pytest.mark.parametrize("name", CHAINS)
def test_dependent_operations_from_one_position_of_a_recurrence_to_the_next(name):
    (store,) = (s for s in walk(lower(initial_state(scans.case(name))).body) if isinstance(s, Store))
    assert recurrence_chain(store) == CHAINS[name]
