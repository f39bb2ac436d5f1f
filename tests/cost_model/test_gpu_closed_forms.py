"""Closed forms of GPU kernels against counting: what a warp's addresses really are, on small nests of every kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from autosched.codegen import build_source
from autosched.ir.closed_forms.program import Program
from autosched.ir.expr import Const, Expr, Param, Var
from autosched.ir.stmt import THREADS, For, If, Scope, Stmt, Store
from autosched.ir.visit import free_vars, loads, substitute
from autosched.lower import concretise, lower
from autosched.target import parse_target
from cost_model.analysis.access import Access, stored
from cost_model.gpu.fills import OUTSIDE
from cost_model.gpu.kernels import KernelWork, Work, kernels, merged, sectors, wavefronts
from cost_model.model import GpuSketchModel, sketch_model
from tests.gpu_schedules import cases, matmul, matmul_state, parameters
from tests.ir.values import value_of

TARGET = parse_target("cuda")
WARP, BANKS, SECTOR = 32, 32, 32
Sizes = dict[str, int]


def model_of(state: Any) -> GpuSketchModel:
    model = sketch_model(lower(state), tuple(parameters(state)), TARGET, 1)
    assert isinstance(model, GpuSketchModel)
    return model


def value(form: Expr, values: Sizes) -> float:
    names = list(values)
    return float(Program([form], names)(np.array([[values[n] for n in names]], np.int64))[0, 0])


def warp_of(work: Work, values: Sizes) -> Iterator[dict[Var, int]]:
    """Values of the loop variables for each thread of the first warp, everything else at its first iteration."""
    base = {x.var: 0 for x in work.statement.loops}
    bounds = {x.kind: (x.var, int(value(x.bound, values))) for x in work.statement.loops if x.kind in THREADS}
    shape = [bounds.get(kind, (None, 1)) for kind in THREADS]
    for number in range(min(WARP, int(np.prod([n for _, n in shape])))):
        point, rest = dict(base), number
        for var, size in shape:
            if var is not None:
                point[var] = rest % size
            rest //= size
        yield point


def positions(work: Work, access: Access, values: Sizes) -> npt.NDArray[np.int64]:
    """[threads, width] element addresses of the warp's first instruction of an access."""
    params: dict[Expr, Expr] = {Param(n): Const(v) for n, v in values.items()}
    buffer = access.buffer
    store = work.statement.store
    read = [x for v in store.values for x in loads(v) if x.buffer == buffer.name]
    indices = store.indices if access.kind != "read" else read[0].indices
    places, shape = stored(buffer, indices)
    sizes = [int(value(e, values)) for e in shape]
    placed = [substitute(p, params) for p in places]
    width = int(value(merged(work, access), values)) if work.fill is None else int(value(work.fill.width, values))
    rows = []
    for point in warp_of(work, values):
        row = []
        for n in range(width):
            at = dict(point)
            lane = lane_of(work, access, values)
            if width > 1:
                assert lane is not None
                at[lane] = n
            flat = 0
            for place, size in zip(placed, sizes, strict=True):
                flat = flat * size + int(value_of(place, at))
            row.append(flat)
        rows.append(row)
    return np.array(rows)


def lane_of(work: Work, access: Access, values: Sizes) -> Var | None:
    """The unrolled loop along which the access is contiguous; of a fill, its lanes."""
    steps = {x.var: value(access.stride[i], values) for i, x in enumerate(work.own, work.first) if access.moves(i)}
    lane = Var(f"{work.statement.store.stage}.lane")
    return lane if lane in steps else next((v for v, step in steps.items() if step == 1), None)


def counted_sectors(addresses: npt.NDArray[np.int64], itemsize: int) -> int:
    first = addresses.min()
    return len(np.unique((addresses - first) * itemsize // SECTOR))


def counted_wavefronts(addresses: npt.NDArray[np.int64], itemsize: int) -> int:
    """Most different words of one bank, added up over the threads that are served together: all of them, 16 of 8 bytes
    or 8 of 16, twice as many where neighbours or every second thread have the same addresses."""
    together = min(WARP, WARP * 4 // (addresses.shape[1] * itemsize))
    numbers = np.arange(WARP)
    if together < WARP and any((addresses[numbers ^ n] == addresses).all() for n in (1, 2)):
        together *= 2
    turns = (np.unique(turn * itemsize // 4) % BANKS for turn in np.split(addresses, WARP // together))
    return sum(int(np.bincount(banks).max()) for banks in turns)


def whole_tiles() -> dict[str, tuple[Any, Sizes]]:
    """Matrix products whose tiles divide: threads along x and y, vectors and unrolled steps of every size."""
    found: dict[str, tuple[Any, Sizes]] = {}
    dag = matmul(64, 128, 32)
    for it, jt, s, va, vb, k2 in [(8, 8, 4, 4, 4, 4), (4, 32, 1, 1, 2, 2), (16, 16, 2, 2, 4, 4), (1, 64, 2, 1, 1, 1),
                                  (32, 2, 4, 2, 2, 8), (2, 32, 3, 1, 1, 4)]:  # fmt: skip
        sizes = {"iv": 1, "it": it, "is": s, "jv": 1, "jt": jt, "js": s, "k1": 2, "k2": k2, "va": va, "vb": vb}
        found[f"{it}x{jt} threads, {s}x{s} points, vectors of {va} and {vb}"] = (matmul_state(dag), sizes)
    return found


def memory_accesses(model: GpuSketchModel, values: Sizes) -> Iterator[tuple[KernelWork, Work, Access]]:
    """Of blocks of whole warps: what goes to shared or global memory by an index that the thread's loops say."""
    for kernel in kernels(model.analysis):
        if value(kernel.threads, values) % WARP:
            continue
        for work in kernel.works:
            loops = {x.var for x in work.statement.loops}
            for access in work.statement.accesses:
                known = all(v in loops for i in access.index for v in free_vars(i))
                if access.buffer.scope in (*OUTSIDE, Scope.SHARED) and access.index and known:
                    yield kernel, work, access


def counted_and_said(kernel: KernelWork, work: Work, access: Access, values: Sizes) -> tuple[int, float]:
    addresses, size = positions(work, access, values), access.buffer.itemsize
    if access.buffer.scope is Scope.SHARED:
        return counted_wavefronts(addresses, size), value(wavefronts(kernel, work, access, WARP), values)
    return counted_sectors(addresses, size), value(sectors(kernel, work, access, WARP), values)


WHOLE, CASES = whole_tiles(), cases()


@pytest.mark.parametrize("name", WHOLE)
def test_transactions_of_whole_tiles_are_exact(name: str) -> None:
    state, values = WHOLE[name]
    found = list(memory_accesses(model_of(state), values))
    assert len(found) >= 7
    for kernel, work, access in found:
        counted, said = counted_and_said(kernel, work, access, values)
        assert said == counted, f"{work.statement.stage}: {access.kind} of {access.buffer.name}"


@pytest.mark.parametrize("name", CASES)
def test_transactions_of_ragged_tiles_are_close(name: str) -> None:
    _, state, values = CASES[name]
    for kernel, work, access in memory_accesses(model_of(state), values):
        counted, said = counted_and_said(kernel, work, access, values)
        assert counted / 2 <= said <= counted * 2, f"{work.statement.stage}: {access.kind} of {access.buffer.name}"


@pytest.mark.parametrize("name", CASES)
def test_launches_are_exact(name: str) -> None:
    _, state, values = CASES[name]
    model = model_of(state)
    source = build_source(model.func, values, parse_target("cuda"))
    for kernel, launch in zip(kernels(model.analysis), source.launches, strict=True):
        assert tuple(value(e, values) for e in kernel.grid) == launch.grid
        assert tuple(value(e, values) for e in kernel.block) == launch.block
        shared = value(kernel.shared, values)
        assert launch.shared_bytes <= shared
        if name != "matmul with fewer chunks than stages":  # whose pipeline has fewer places after all
            assert shared <= launch.shared_bytes + 64


def executions(stmt: Stmt, at: dict[Var, int], counts: Counter[str]) -> None:
    """How often each stage's stores run, by going through the concrete nest."""
    match stmt:
        case For():
            for n in range(value_of(stmt.extent, at)):
                executions(stmt.body, {**at, stmt.var: n}, counts)
        case If(cond=cond, then=then, otherwise=otherwise):
            taken = then if value_of(cond, at) else otherwise
            if taken is not None:
                executions(taken, at, counts)
        case Store():
            counts[stmt.stage] += 1
        case _:
            for child in stmt.body_stmts:
                executions(child, at, counts)


@pytest.mark.parametrize(
    "name", ["matmul", "matmul whole tiles", "conv2d NCHW", "transpose", "matmul in parts", "pool"]
)
def test_executions_against_running_the_nest(name: str) -> None:
    _, state, values = CASES[name]
    model = model_of(state)
    counts: Counter[str] = Counter()
    executions(concretise(model.func, values)[0].body, {}, counts)
    said: Counter[str] = Counter()
    for kernel in kernels(model.analysis):
        threads = value(kernel.threads, values) * value(kernel.blocks, values)
        for work in kernel.works:
            said[work.statement.store.stage] += value(work.executions, values) * threads  # type: ignore[assignment]
    for stage, counted in counts.items():
        if not stage.endswith(".init"):
            assert said[stage] == pytest.approx(counted, rel=0.35), stage


def occupancy_by_trying(kernel: KernelWork, registers: int, values: Sizes) -> int:
    """The most blocks whose threads, shared memory and registers fit."""
    facts = TARGET.gpu
    assert facts is not None
    warps = -(-int(value(kernel.threads, values)) // WARP)
    shared = value(kernel.shared, values) + 1024
    each = -(-registers // 8) * 8
    blocks = 0
    while True:
        n = blocks + 1
        on_busiest_scheduler = -(-n * warps // 4)
        if (
            n > facts.max_blocks_per_multiprocessor
            or n * warps * WARP > facts.max_threads_per_multiprocessor
            or n * shared > facts.shared_per_multiprocessor
            or on_busiest_scheduler * WARP * each > facts.registers_per_multiprocessor // 4
        ):
            return max(1, blocks)
        blocks = n


@pytest.mark.parametrize("name", WHOLE)
def test_occupancy_against_trying(name: str) -> None:
    state, values = WHOLE[name]
    model = model_of(state)
    for cost in model.latency.kernels:
        registers = int(value(cost.registers, values))
        assert value(cost.occupancy, values) == occupancy_by_trying(cost.kernel, registers, values)


def test_a_population_is_its_rows_one_by_one() -> None:
    model = model_of(matmul_state(matmul(100, 90, 70)))
    rng = np.random.default_rng(0)
    rows = rng.choice([1, 2, 4, 8], (200, len(model.params)))
    together = model.latency_program(rows)[0]
    np.testing.assert_array_equal(together, [model.latency_program(r[None, :])[0, 0] for r in rows])
