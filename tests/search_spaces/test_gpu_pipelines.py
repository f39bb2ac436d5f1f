"""Pipelined sketches: who gets them, that they compute what the operator says, and what the cost model makes of them."""

from __future__ import annotations

import itertools
from functools import lru_cache

import numpy as np
import pytest

from autosched.codegen import build_source
from autosched.ir.closed_forms.program import Program
from autosched.lower import lower
from autosched.runtime.gpu.compile import NvrtcCompiler, nvrtc_version
from autosched.schedule import Pipeline, replay, steps_to_json
from autosched.target import Target, parse_target
from autosched.te.dag import ComputeDAG
from autosched.te.operators.registry import build
from autosched.te.reference.evaluate import evaluate, within
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from cost_model.analysis.statements import analyse
from cost_model.gpu.kernels import kernels
from cost_model.gpu.latency import kernel_cost
from cost_model.gpu.machine import gpu_machine
from search_spaces.gpu import domains, sketches
from search_spaces.space import Population, Sketch, sample, unique
from tests.codegen.gpu import TARGETS, dialects, run
from tests.helpers import exact
from tests.search_spaces.gpu_candidates import Drawn, draw

AMPERE, TURING, OPENCL = (parse_target(t) for t in ("cuda -arch=sm_80", "cuda -arch=sm_75", "opencl"))
CASES: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("matmul", (37, 45, 53)),
    ("matmul", (17, 64, 128)),
    ("c2d", (1, 7, 9, 5, 17, 3, 1, 1)),
    ("dep", (1, 7, 6, 5, 3, 1, 1)),
    ("cap", (1, 5, 5, 3, 6, 3, 2, 1)),
)


def graph(name: str, shape: tuple[int, ...]) -> ComputeDAG:
    return collapse(build(name, shape)[0])


def pipelines(sketch: Sketch) -> list[Pipeline]:
    return [s for s in sketch.state.steps if isinstance(s, Pipeline)]


@pytest.mark.parametrize(
    ("target", "copies", "domain"),
    [(AMPERE, "asynchronous", (1, 2, 3, 4)), (TURING, "registers", (1, 2)), (OPENCL, "registers", (1, 2))],
)
def test_asynchronous_copies_where_the_hardware_has_them(target: Target, copies: str, domain: tuple[int, ...]) -> None:
    found = sketches(graph("matmul", (37, 45, 53)), target)
    shared = [s for s in found if "@shared" in s.name]
    assert shared
    for sketch in found:
        domains = [p.domain for p in sketch.params if p.kind == "stages"]
        assert domains == [domain] * ("@shared" in sketch.name)
        assert {p.copies for p in pipelines(sketch)} <= {copies}


def test_nothing_is_ahead_in_a_reduction_of_one_element() -> None:
    assert not any(pipelines(s) for s in sketches(graph("matmul", (40, 70, 1)), AMPERE))


@lru_cache
def drawn_of(name: str, shape: tuple[int, ...], target: Target) -> tuple[Drawn, ...]:
    return tuple(draw(graph(name, shape), target, 2000))


def candidates(
    name: str, shape: tuple[int, ...], target: Target, stages: int
) -> tuple[tuple[Sketch, dict[str, int]], ...]:
    """A legal candidate of that many stages of every pipelined sketch that has one."""
    found = []
    for drawn in drawn_of(name, shape, target):
        at = next((n for n, p in enumerate(drawn.sketch.params) if p.kind == "stages"), None)
        rows = drawn.legal if at is None else drawn.legal[drawn.legal[:, at] == stages]
        if at is not None and len(rows):
            found.append((drawn.sketch, {p.name: int(v) for p, v in zip(drawn.sketch.params, rows[0], strict=True)}))
    return tuple(found)


@dialects
@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize(("name", "shape"), CASES)
def test_candidates_compute_what_the_operator_says(
    dialect: str, name: str, shape: tuple[int, ...], stages: int
) -> None:
    """Sketches for compute capability 8.0; OpenCL C has plain copies in the places of asynchronous ones."""
    dag = build(name, shape)[0]
    inputs = make_inputs(dag, 0, "integers")
    references = evaluate(dag, inputs)
    found = candidates(name, shape, AMPERE, stages)
    assert found
    for sketch, values in found[:: 1 + len(found) // 3]:
        func = lower(sketch.state)
        source = build_source(func, values, TARGETS[dialect])
        assert sum(x.shared_bytes for x in source.launches) > 0
        outputs = run(source, func, inputs)
        for got, reference in zip(outputs.values(), references, strict=True):
            assert within(reference, got.reshape(reference.value.shape)).all(), f"{sketch.name} {values}"


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize(("name", "shape"), [("matmul", (9, 7, 23)), ("c2d", (1, 5, 6, 5, 7, 3, 1, 1))])
def test_no_thread_reads_a_copy_that_is_under_way(name: str, shape: tuple[int, ...], stages: int) -> None:
    """As the interpreter plays blocks, barriers and asynchronous copies."""
    found = candidates(name, shape, AMPERE, stages)
    assert found
    for sketch, values in found:
        exact(graph(name, shape), sketch.state, values)


@pytest.mark.parametrize(("target", "stages"), [(AMPERE, 2), (AMPERE, 4), (TURING, 2)])
@pytest.mark.parametrize(("name", "shape"), [("matmul", (512, 512, 512)), ("c2d", (1, 28, 28, 32, 64, 3, 1, 1))])
def test_candidates_compile_without_spills(name: str, shape: tuple[int, ...], target: Target, stages: int) -> None:
    """A copy that is held in registers stays in registers: its loops are unrolled. One candidate may spill."""
    version = nvrtc_version()
    if version is None:
        pytest.skip("NVRTC is not installed")
    compiler = NvrtcCompiler(target.arch, version)
    spills = []
    for sketch, values in candidates(name, shape, target, stages)[:4]:
        source = build_source(lower(sketch.state), values, parse_target("cuda"))
        assert ("start_copy_float" in source.text) == (target is AMPERE)
        assert ("_held" in source.text) == (target is TURING)
        spills += [compiler.compile(source).spills]
    assert len(spills) >= 3
    assert len([x for x in spills if x is not None]) <= 1, spills


def test_steps_of_a_candidate_are_those_of_its_record() -> None:
    for sketch, values in candidates("matmul", (37, 45, 53), AMPERE, 3):
        again = replay(graph("matmul", (37, 45, 53)), steps_to_json(sketch.state, values))
        assert [s.stages for s in again.steps if isinstance(s, Pipeline)] == [3]
        texts = [build_source(lower(s), v, parse_target("cuda")).text for s, v in ((again, {}), (sketch.state, values))]
        assert texts[0].partition("extern")[2] == texts[1].partition("extern")[2]


# What the cost model makes of them


def pipelined_sketch() -> Sketch:
    return next(s for s in sketches(graph("matmul", (512, 512, 512)), AMPERE) if pipelines(s))


def rows_of(sketch: Sketch, n: int) -> Population:
    return unique(sample(sketch, n, np.random.default_rng(0)))


def test_shared_bytes_are_those_of_the_launch() -> None:
    """All stages are counted; a buffer never has more of them than the loop has iterations."""
    sketch = pipelined_sketch()
    func = lower(sketch.state)
    [kernel] = kernels(analyse(func))
    names = [p.name for p in sketch.params]
    work = next(w for w in kernel.works if w.pipeline is not None)
    assert work.pipeline is not None
    program = Program([kernel.shared, work.pipeline.stages, work.pipeline.iterations], names)
    rows = rows_of(sketch, 200)
    seen: set[int] = set()
    for row, (nbytes, stages, iterations) in zip(rows, np.array(program(rows)).T, strict=True):
        if stages <= iterations and len(seen) < 4:
            values = dict(zip(names, map(int, row), strict=True))
            source = build_source(func, values, parse_target("cuda"))
            assert source.launches[0].shared_bytes == nbytes
            seen.add(int(stages))
    assert {1, 2} <= seen


def test_a_pipeline_hides_the_copies_and_saves_barriers() -> None:
    """One block for each multiprocessor waits for its copies unless they are ahead."""
    sketch = pipelined_sketch()
    machine = gpu_machine(AMPERE)
    [kernel] = kernels(analyse(lower(sketch.state)))
    cost = kernel_cost(kernel, machine)
    names = [p.name for p in sketch.params]
    program = Program([cost.path, kernel.barriers], names)
    rows = rows_of(sketch, 50)
    at = next(n for n, p in enumerate(sketch.params) if p.kind == "stages")
    by_stages = []
    for stages in (1, 2, 3):
        rows[:, at] = stages
        by_stages.append(np.array(program(rows)))
    assert (by_stages[0][1] == 2 * by_stages[1][1]).all()
    assert (by_stages[1][1] == by_stages[2][1]).all()
    for fewer, more in itertools.pairwise(by_stages):
        assert np.median(more[0] / fewer[0]) <= 1.0
    assert np.median(by_stages[1][0] / by_stages[0][0]) < 0.9


def test_what_passes_through_registers_is_counted() -> None:
    """The elements of the next iteration are in registers while this one is computed."""
    registers = []
    for target in (AMPERE, TURING):
        sketch = next(s for s in sketches(graph("matmul", (512, 512, 512)), target) if pipelines(s))
        [kernel] = kernels(analyse(lower(sketch.state)))
        program = Program([kernel_cost(kernel, gpu_machine(target)).registers], [p.name for p in sketch.params])
        rows = rows_of(sketch, 50)
        rows[:, next(n for n, p in enumerate(sketch.params) if p.kind == "stages")] = 2
        registers.append(np.array(program(rows))[0])
        rows[:, next(n for n, p in enumerate(sketch.params) if p.kind == "stages")] = 1
        registers.append(np.array(program(rows))[0])
    assert (registers[0] == registers[1]).all()
    assert (registers[2] > registers[3]).all()


# Banks of transposed copies


def wavefronts(chunk: int, row: int, pad: int, permuted: bool = False) -> int:
    """Cycles in which a warp fills a transposed buffer of `row` columns: thread t writes s[t % chunk][t // chunk]; with
    `permuted`, whole vectors of four change places, by exclusive or with the number of the row."""
    banks: dict[int, set[int]] = {}
    for thread in range(32):
        k, i = thread % chunk, thread // chunk
        address = k * (row + pad) + (i ^ 4 * (k % 8) if permuted else i)
        banks.setdefault(address % 32, set()).add(address)
    return max(map(len, banks.values()))


@pytest.mark.parametrize("row", [32, 64, 128])
@pytest.mark.parametrize("chunk", [4, 8, 16, 32])
def test_a_gap_serves_better_than_permuted_vectors(chunk: int, row: int) -> None:
    gaps = domains.pad("pad").domain
    assert wavefronts(chunk, row, 0) == chunk
    assert wavefronts(chunk, row, 0, permuted=True) == wavefronts(chunk, row, 4)
    assert min(wavefronts(chunk, row, gap) for gap in gaps) == wavefronts(chunk, row, 32 // chunk) == 1
