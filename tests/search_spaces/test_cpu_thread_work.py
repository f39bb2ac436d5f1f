"""Kernels for 3 to 64 threads, whose work and cache lines are counted: threads get as much, and lines of their own."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from autosched.ir.expr import INDEX, Const, Var
from autosched.ir.simplify import Simplifier
from autosched.ir.stmt import Buffer, For, ForKind, Func, Scope, Store
from autosched.kernel.device import Device, find_device
from autosched.kernel.request import Request
from autosched.kernel.task import analytic_best, make_task
from autosched.lower import lower
from autosched.lower.passes.instantiate import instantiate
from autosched.target import parse_target
from autosched.te.operators.registry import WORKLOADS, find
from autosched.tuner.definition import define
from autosched.tuner.options import WorkloadOptions
from autosched.tuner.policy import QUICK
from tests.thread_work import NestWork, nests_of, owner_of_tasks

SHARED_L3 = 4 << 20  # bytes of L3 for each core, as processors with many cores have
SMALL = replace(QUICK, draft_rows=1024, draft_per_sketch=64, draft_descents=4, draft_descended=8)
LEAST_S = 5e-6  # kernels predicted to be shorter may leave threads idle: waking all takes longer
UNEVEN = 1.25  # the time of the busiest thread over that of an even split
AS_FAST = 1.1  # times the predicted latency of the choice
CANDIDATES = 6
# Where a vector is half a line, tiles of one vector, or of an odd number of them, end within lines.
SHARES_LINES = ("c1d", "c2d", "c3d", "dil", "cbr", "transpose")
SHARED = pytest.mark.xfail(reason="tasks of tiles that end within lines", strict=True)
CASES = [(name, "znver4") for name in WORKLOADS] + [
    pytest.param(name, "znver3", marks=[SHARED] if name in SHARES_LINES else []) for name in WORKLOADS
]


def device(processor: str, threads: int) -> Device:
    target = replace(parse_target(f"llvm -mcpu={processor}"), l3_bytes=SHARED_L3 * threads)
    return replace(find_device("cpu", 1, runs=False), threads=threads, target=target)


def candidates(name: str, device: Device, sizes: dict[str, int], n: int) -> list[tuple[float, Func, Simplifier]]:
    """The best candidates by the analytic model, the best first: predicted seconds, and the lowered nests."""
    task, sketches = make_task(Request(define(name, WorkloadOptions(settings=sizes)), device))
    found = []
    for candidate, _ in analytic_best(task, n, make=lambda candidate: None, policy=SMALL):
        values = task.values(candidate)
        row = np.array([[values[p.name] for p in sketches[candidate.sketch].params]], np.int64)
        predicted = float(task.model.analytic_latency(candidate.sketch, row)[0])
        found.append((predicted, *instantiate(lower(sketches[candidate.sketch].state, "kernel"), values)))
    return found


def drawn(name: str, rng: random.Random, step: int) -> dict[str, int]:
    """Sizes up to those of the defaults, multiples of `step` where they are not small."""
    workload = find(name)
    defaults = {a: int(d) for a, d in zip(workload.numbers, workload.defaults, strict=False)}
    return {a: d if d < 8 else max(step, int(d * rng.uniform(0.4, 1.0)) // step * step) for a, d in defaults.items()}


def imbalance(nests: list[NestWork], threads: int) -> float:
    total = sum(nest.work.sum() for nest in nests)
    return float(sum(nest.imbalance(threads) * nest.work.sum() for nest in nests) / total)


def stores_below_the_diagonal(n: int) -> Func:
    """Row i of a parallel loop stores i + 1 elements of 16 floats: one line."""
    i, j = Var("i"), Var("j")
    size = Const(n, INDEX)
    store = Store(("A",), (i, j), (Const(1.0, "float32"),))
    rows = For(i, size, size, ForKind.PARALLEL, For(j, i + 1, size, ForKind.SERIAL, store))
    return Func("kernel", (Buffer("A", (size, size), "float32", Scope.PARAM),), 1, rows)


def test_work_and_lines_of_a_triangle() -> None:
    [nest] = nests_of(stores_below_the_diagonal(8), Simplifier())
    assert nest.work.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert owner_of_tasks(8, 3).tolist() == [0, 0, 1, 1, 1, 2, 2, 2]
    # Two threads: 1 2 3 4 and 5 6 7 8; the first is done at 10, when the second has begun its 6, and takes the 7.
    assert nest.imbalance(2) == pytest.approx(19 / 18)
    assert nest.imbalance(1) == 1.0
    # Rows of 8 floats are half a line: lines have rows 2n and 2n + 1. With four threads each has lines of its own.
    assert nest.shared_lines(4) == {"A": (0, 4)}
    assert nest.shared_lines(8) == {"A": (4, 4)}


@pytest.mark.parametrize(("name", "processor"), CASES)
def test_threads_get_as_much_work_and_lines_of_their_own(name: str, processor: str) -> None:
    """Sizes are whole lines, so that the boundaries between tasks can be boundaries between lines as well."""
    rng = random.Random(name)
    threads = rng.choice([3, 5, 8, 12, 31, 64])
    (predicted, func, simplify), *others = candidates(
        name, device(processor, threads), drawn(name, rng, 16), CANDIDATES
    )
    nests = nests_of(func, simplify)
    for nest in nests:
        for buffer, (shared, lines) in nest.shared_lines(threads).items():
            where = f"{threads} threads write {shared} of {lines} lines of {buffer}"
            assert shared <= min(threads, 0.02 * lines), where
    if predicted > LEAST_S and imbalance(nests, threads) > UNEVEN:
        as_fast = [nests_of(f, s, with_lines=False) for seconds, f, s in others if seconds < AS_FAST * predicted]
        assert all(imbalance(found, threads) > UNEVEN for found in as_fast)


@pytest.mark.parametrize("processor", ["znver3", "znver4"])
@pytest.mark.parametrize(("batch", "threads"), [(1, 7), (3, 24)])
def test_partial_sums_have_lines_of_their_own(processor: str, batch: int, threads: int) -> None:
    [(_, func, simplify)] = candidates("nrm", device(processor, threads), {"B": batch, "M": 390, "N": 1050}, 1)
    shared = [nest.shared_lines(threads) for nest in nests_of(func, simplify)]
    partial = [found for lines in shared for buffer, found in lines.items() if buffer.endswith(".rf")]
    assert partial
    assert all(n == 0 for n, _ in partial)
