"""The GPU search space without a device: well-formed sketches, legal candidates, nests that are exact and free of races.

What is tried are random rows that the cost model's predicates pass, as in a search.
"""

from __future__ import annotations

import pytest

from autosched import te
from autosched.ir.stmt import THREADS
from autosched.ir.verify import verify
from autosched.lower import concretise, lower
from autosched.schedule import Pack, replay, steps_to_json
from autosched.target import parse_target
from autosched.te.dag import ComputeDAG
from autosched.te.operators.registry import WORKLOADS, build
from autosched.te.rewrites.collapse import collapse
from search_spaces.gpu import sketches
from tests.helpers import check_nest
from tests.search_spaces.gpu_candidates import draw
from tests.search_spaces.test_cpu_sketches import tiny

OPENCL = parse_target("opencl")
MOST_SKETCHES = 32
SAMPLED = 300  # rows of a sketch for a large shape
LEAST_LEGAL = 0.02  # of the rows of a workload's best sketch


def large(name: str, batch: int | None = None) -> list[ComputeDAG]:
    """The workload at all its benchmark shapes, or at its default."""
    shapes = WORKLOADS[name].shapes or (None,)
    return [collapse(build(name, shape, batch=batch)[0]) for shape in shapes]


@pytest.mark.parametrize("name", WORKLOADS)
def test_sketches_are_well_formed(name: str) -> None:
    """Of the same rules at other sizes, which have the same steps, one nest is verified."""
    seen: set[str] = set()
    for dag in large(name):
        found = sketches(dag, OPENCL)
        assert 0 < len(found) <= MOST_SKETCHES
        assert len({s.name for s in found}) == len(found)
        for sketch in found:
            names = [p.name for p in sketch.params]
            assert len(set(names)) == len(names)
            for stage in sketch.state.stages:
                if stage.at is None and stage.op.axes:
                    assert any(x.kind in THREADS for x in stage.loops), f"{sketch.name}: {stage.name} has no threads"
            if sketch.name not in seen:
                verify(lower(sketch.state))
            seen.add(sketch.name)
            values = {p.name: p.domain[-1] for p in sketch.params}
            assert len(replay(dag, steps_to_json(sketch.state, values)).stages) == len(sketch.state.stages)


@pytest.mark.parametrize(
    ("target", "batch", "number"), [("cuda -arch=sm_80", None, 0), ("cuda -arch=sm_90", 16, 1), ("opencl", None, 3)]
)
def test_large_shapes_have_legal_candidates(target: str, batch: int | None, number: int) -> None:
    """Much of what a search draws can be built."""
    for name in WORKLOADS:
        dags = large(name, batch)
        shares: dict[str, float] = {}
        for drawn in draw(dags[number % len(dags)], parse_target(target), SAMPLED):
            shares[drawn.sketch.name] = len(drawn.legal) / len(drawn.rows)
            if shares[drawn.sketch.name] >= LEAST_LEGAL:
                break  # that is all a workload needs, and making the other sketches takes most of the time
        assert max(shares.values()) >= LEAST_LEGAL, f"{name}: {shares}"


@pytest.mark.parametrize("name", WORKLOADS)
def test_candidates_are_exact_and_free_of_races(name: str) -> None:
    """The interpreter knows the order of threads: it finds races, divergence at barriers, and accesses out of bounds."""
    dag = tiny(name)
    for drawn in draw(dag, OPENCL):
        assert len(drawn.legal), f"{drawn.sketch.name}: no row is legal; the first breaks {drawn.broken}"
        for values in drawn.candidates(1):
            concrete, _ = concretise(drawn.func, values)
            verify(concrete, concrete=True)
            check_nest(concrete, dag)


def test_a_small_thread_axis_is_no_obstacle() -> None:
    """Blocks had to have a warp even where the axes with threads are shorter: nothing was legal."""
    for name, shape in (("softmax", (9, 5)), ("batch_matmul", (40, 1, 3, 7)), ("t2d", (1, 4, 3, 6, 17, 3, 2, 1))):
        for drawn in draw(collapse(build(name, shape)[0]), OPENCL):
            assert len(drawn.legal), f"{name}, {drawn.sketch.name}"


def test_a_transposed_copy_is_along_the_output_axis() -> None:
    """With a batch as the first dimension that one was stored innermost, which is no transposition."""
    dag = collapse(build("batch_matmul", (4, 32, 32, 32))[0])
    steps = [s for d in sketches(dag, OPENCL) if "X@shared.T" in d.name for s in d.state.steps if isinstance(s, Pack)]
    assert steps
    assert all(s.order == (0, 2, 1) for s in steps)


def test_rows_are_one_kernel() -> None:
    """One row too: its reductions have an axis of length 1 that the row has not."""
    for shape in ((64, 100), (1, 100)):
        found = sketches(collapse(build("softmax", shape)[0]), OPENCL)
        assert any(sum(s.at is None for s in sketch.state.stages) == 1 for sketch in found), shape


def test_short_rows_share_a_block() -> None:
    for sketch in sketches(collapse(build("softmax", (64, 100))[0]), OPENCL):
        kinds = {x.kind for x in sketch.state.stage("softmax").loops}
        assert (THREADS[1] in kinds) == ("several-rows" in sketch.name)


def test_groups_of_few_channels_have_threads_together() -> None:
    """Threads along two channels leave 30 of a warp idle."""
    for sketch in sketches(collapse(build("grp", (1, 7, 6, 16, 32, 3, 1, 1, 1, 16))[0]), OPENCL):
        bound = {x.kind: x.parts[0][0] for x in sketch.state.stage("conv").loops if x.kind in THREADS}
        assert bound[THREADS[0]] == "co"
        assert bound[THREADS[1]] == "g"


def test_a_long_chain_keeps_every_alternative() -> None:
    """The stages that came last had always the first of theirs."""
    tensor = te.placeholder((64, 64), "float32", "X")
    for n in range(4):
        k, weights, left = te.reduce_axis(64, f"k{n}"), te.placeholder((64, 64), "float32", f"W{n}"), tensor
        tensor = te.compute(
            (64, 64), lambda i, j, k=k, w=weights, x=left: te.sum(x[i, k] * w[k, j], axis=k), name=f"T{n}"
        )
    names = [s.name.split("/") for s in sketches(collapse(te.ComputeDAG(tensor)), OPENCL)]
    assert len(names) == 24
    for place in range(4):
        assert len({name[place] for name in names}) == 5
    assert len(set(map(tuple, names))) > 20
