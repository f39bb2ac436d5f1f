"""Stored schedules in networks: the best verified record of a task is used, whatever it is called; others are not."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import autosched
from autosched.errors import RecordWarning
from autosched.graph.graph import Graph
from autosched.graph.interpret import interpret
from autosched.kernel.spec import KernelSpec
from autosched.kernel.task import analytic_best, make_task
from autosched.planning.extract_tasks import NetworkTask
from autosched.schedule import steps_to_json
from autosched.store import Database, Finding, TargetRow, WorkloadRow
from autosched.store import database as store_database
from autosched.tuner.workload_spec import WorkloadSpec
from tests.graph import networks

THREADS = 1


def tasks_without_records(graph: Graph) -> tuple[NetworkTask, ...]:
    return autosched.load(graph, threads=THREADS, records=False).tasks


def schedules(kernel_spec: KernelSpec, n: int) -> list[str]:
    task, sketches = make_task(kernel_spec.request)
    found = [candidate for candidate, _ in analytic_best(task, n, make=lambda candidate: None)]
    return [steps_to_json(sketches[c.sketch].state, task.values(c)) for c in found]


def record(path: Path, kernel_spec: KernelSpec, *found: tuple[str, float | None]) -> None:
    """Writes (steps, seconds or None for a failure) as records of a task."""
    request = kernel_spec.request
    workload = WorkloadRow(request.problem.dag.content_hash, request.problem.name, kernel_spec.workload.text)
    with Database(path) as database:
        target = TargetRow(request.device.target.fingerprint, "{}")
        run = database.start_run(workload, target, kernel_spec.threads, 0)
        for n, (steps, seconds) in enumerate(found):
            finding = Finding(seconds, () if seconds is None else (seconds,), None if seconds else "crash")
            database.append(run, "some", steps, {"n": n}, 0, finding)


def test_the_best_record_of_each_task_is_used(tmp_path: Path) -> None:
    graph, path = networks.perceptron(), tmp_path / "records.db"
    first, *others = tasks_without_records(graph)
    _, second, third = schedules(first.kernel_spec, 3)
    record(path, first.kernel_spec, (second, 2e-6), (third, 1e-6), ("[9]", None))
    model = autosched.load(graph, threads=THREADS, db=path)
    assert [task.kernel_spec.steps for task in model.tasks] == [third, *("" for _ in others)]
    x = np.random.default_rng(1).normal(size=(2, 3)).astype("float32")
    wanted = interpret(graph, {"x": x})[graph.outputs[0]]
    np.testing.assert_allclose(model(x), wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())
    assert not any(t.kernel_spec.steps for t in autosched.load(graph, threads=THREADS, db=path, records=False).tasks)
    assert not any(t.kernel_spec.steps for t in autosched.load(graph, threads=2, db=path).tasks)


def test_values_may_be_called_otherwise(tmp_path: Path) -> None:
    graph, path = networks.perceptron((3, 17)), tmp_path / "records.db"
    (task,) = tasks_without_records(graph)
    steps = schedules(task.kernel_spec, 2)[1]
    record(path, task.kernel_spec, (steps, 1e-6))

    def renamed(name: str) -> str:
        return f"other.{name}"

    nodes = [
        replace(n, inputs=tuple(map(renamed, filter(None, n.inputs))), outputs=tuple(map(renamed, n.outputs)))
        for n in graph.nodes
    ]
    other = Graph(
        tuple(map(renamed, graph.inputs)),
        tuple(map(renamed, graph.outputs)),
        tuple(nodes),
        {renamed(n): replace(v, name=renamed(n)) for n, v in graph.values.items()},
        {renamed(n): array for n, array in graph.constants.items()},
    )
    assert [t.kernel_spec.steps for t in autosched.load(other, threads=THREADS, db=path).tasks] == [steps]


def test_the_same_by_other_operators(tmp_path: Path) -> None:
    """A record is found by what its kernel computes, though the operators in it have other names."""
    path = tmp_path / "records.db"
    first, second = networks.Builder(x=(3, 5)), networks.Builder(x=(3, 5))
    one = first.graph(first.add("neg", first.add("neg", "x")))
    two = second.graph(second.add("neg", second.add("identity", second.add("neg", "x"))))
    (task,), (other,) = tasks_without_records(one), tasks_without_records(two)
    steps = schedules(task.kernel_spec, 1)[0]
    spec = task.kernel_spec.workload.text.replace('"neg-neg"', '"another-name"')
    record(path, replace(task.kernel_spec, workload=WorkloadSpec(spec)), (steps, 1e-6))
    assert other.request.problem.dag.content_hash == task.request.problem.dag.content_hash
    assert [t.kernel_spec.steps for t in autosched.load(two, threads=THREADS, db=path).tasks] == [steps]


def test_what_does_not_fit_is_passed_over_in_one_sentence(tmp_path: Path) -> None:
    graph, path = networks.perceptron(), tmp_path / "records.db"
    tasks = tasks_without_records(graph)
    good = schedules(tasks[0].kernel_spec, 2)[1]
    for task in tasks:
        record(path, task.kernel_spec, ('[["no such step"]]', 1e-6), *[(good, 2e-6)] * (task is tasks[0]))
    with pytest.warns(RecordWarning, match="passed over") as told:
        model = autosched.load(graph, threads=THREADS, db=path)
    assert len(told) == 1
    assert [task.kernel_spec.steps for task in model.tasks] == [good, *("" for _ in tasks[1:])]


def test_claims_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, path = networks.perceptron((3, 17)), tmp_path / "records.db"
    (task,) = tasks_without_records(graph)
    record(path, task.kernel_spec, (schedules(task.kernel_spec, 2)[1], 1e-6))
    monkeypatch.setattr(store_database, "installation_key", lambda make=False: None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not autosched.load(graph, threads=THREADS, db=path).tasks[0].kernel_spec.steps


def test_no_database_is_made(tmp_path: Path) -> None:
    autosched.load(networks.perceptron((3, 5)), threads=THREADS, db=tmp_path / "none.db")
    assert list(tmp_path.iterdir()) == []


def test_a_saved_network_brings_its_own(tmp_path: Path) -> None:
    graph, path = networks.perceptron((3, 17)), tmp_path / "records.db"
    (task,) = tasks_without_records(graph)
    _, second, third = schedules(task.kernel_spec, 3)
    record(path, task.kernel_spec, (second, 1e-6))
    model = autosched.load(graph, threads=THREADS, db=path)
    model.save(tmp_path / "model.asc")
    record(path, task.kernel_spec, (third, 1e-7))
    assert [t.kernel_spec.steps for t in autosched.load(tmp_path / "model.asc", threads=THREADS, db=path).tasks] == [
        second
    ]
    assert [t.kernel_spec.steps for t in autosched.load(graph, threads=THREADS, db=path).tasks] == [third]
