"""Where a network's weights lie: by their bytes and the caches; told by specs, not by schedules or what is computed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import autosched
from autosched.errors import UsageError
from autosched.graph.graph import Graph
from autosched.graph.interpret import interpret
from autosched.kernel.task import analytic_best, make_task, nearest_shapes
from autosched.schedule import steps_to_json
from autosched.store import Database, Finding, TargetRow, WorkloadRow
from autosched.target import parse_target
from autosched.target.far_weights import FAR, LAST_CACHE, MEMORY, NEAR, passing_bytes, weights_place
from autosched.tuner.definition import redefine
from tests.graph import networks

CPU = parse_target("cpu")
SMALL = replace(CPU, l2_bytes=1 << 20, l3_bytes=8 << 20)


def large() -> Graph:
    """More bytes of weights than a core's caches hold."""
    return networks.perceptron((700, CPU.l2_bytes // 4 // 700 + 2, 3))


def test_places_by_the_bytes_of_all_weights() -> None:
    assert [weights_place(n << 20, SMALL) for n in (0, 1, 2, 8, 9)] == [NEAR, NEAR, LAST_CACHE, LAST_CACHE, MEMORY]
    assert weights_place(1 << 40, parse_target("cuda -arch=sm_80")) == NEAR
    assert passing_bytes(NEAR, SMALL, 2) == 0
    assert passing_bytes(LAST_CACHE, SMALL, 2) == 8 << 20
    assert passing_bytes(MEMORY, SMALL, 1) == 16 << 20
    shared = replace(SMALL, l3_bytes=480 << 20)
    assert [weights_place(n << 20, shared) for n in (2, 64, 65)] == [LAST_CACHE, LAST_CACHE, MEMORY]
    assert passing_bytes(MEMORY, shared, 1) == 128 << 20


def test_kernels_of_large_networks_have_far_weights_and_compute_the_same() -> None:
    graph = large()
    model = autosched.load(graph, threads=1, records=False)
    assert {task.request.problem.dag.weights_in for task in model.tasks} <= set(FAR)
    assert {task.request.collapsed.weights_in for task in model.tasks} <= set(FAR)
    small = autosched.load(networks.perceptron(), threads=1, records=False)
    assert {task.request.problem.dag.weights_in for task in small.tasks} == {NEAR}
    x = np.random.default_rng(1).normal(size=(2, 700)).astype("float32")
    wanted = interpret(graph, {"x": x})[graph.outputs[0]]
    np.testing.assert_allclose(model(x), wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_records_of_near_and_far_weights_are_apart_and_schedules_are_shared(tmp_path: Path) -> None:
    graph, path = large(), tmp_path / "records.db"
    kernel_spec = autosched.load(graph, threads=1, records=False).tasks[0].kernel_spec
    near = replace(kernel_spec, workload=kernel_spec.workload.without_weight_residency())
    assert near.request.problem.dag.content_hash != kernel_spec.request.problem.dag.content_hash
    task, sketches = make_task(kernel_spec.request)
    first, second = (
        steps_to_json(sketches[c.sketch].state, task.values(c))
        for c, _ in analytic_best(task, 2, make=lambda candidate: None)
    )
    for place, steps in ((near, first), (kernel_spec, second)):
        with Database(path) as database:
            request = place.request
            workload = WorkloadRow(request.problem.dag.content_hash, request.problem.name, place.workload.text)
            target = TargetRow(request.device.target.fingerprint, "{}")
            database.append(
                database.start_run(workload, target, 1, 0), "some", steps, {}, 0, Finding(1e-6, (1e-6,), None)
            )
            assert [w.spec for w in nearest_shapes(kernel_spec.workload, database.workloads())] == [near.workload.text]
        model = autosched.load(graph, threads=1, db=path)
        assert {t.kernel_spec.workload: t.kernel_spec.steps for t in model.tasks}[kernel_spec.workload] == steps
    model.save(tmp_path / "net.asc")
    again = autosched.load(tmp_path / "net.asc", threads=1, records=False)
    assert {t.kernel_spec.workload: t.kernel_spec.steps for t in again.tasks}[kernel_spec.workload] == second


def test_a_network_is_tuned_with_its_weights_far(tmp_path: Path) -> None:
    result = autosched.tune(large(), trials=2, threads=1, db=tmp_path / "records.db")
    assert result.verified
    with Database(tmp_path / "records.db") as database:
        assert {json.loads(w.spec)["weights_in"] for w in database.workloads()} <= set(FAR)


def test_a_place_that_there_is_not() -> None:
    spec = autosched.load(large(), threads=1, records=False).tasks[0].kernel_spec.workload.data
    with pytest.raises(UsageError, match="weights of a network lie in last cache or memory, the record says 'attic'"):
        redefine(json.dumps({**spec, "weights_in": "attic"}), None)
