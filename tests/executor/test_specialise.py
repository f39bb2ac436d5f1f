"""Kernels that differ in sizes alone: one has a schedule by the analytic model, and the others take it, at first."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import autosched
from autosched.errors import UsageError
from autosched.executor import hot_swap
from autosched.executor.compile_graph import compile_graph
from autosched.executor.hot_swap import HotSwapModel
from autosched.executor.model import Model
from autosched.graph.graph import Graph
from autosched.graph.interpret import interpret
from autosched.kernel import structure_cache
from autosched.kernel.spec import KernelSpec
from autosched.kernel.structure_cache import SCHEDULE
from autosched.kernel.transfer import NearestSchedules
from autosched.network_api import loaded
from autosched.planning.extract_tasks import Choices
from autosched.runtime.disk_cache import write
from autosched.tuner.workload_spec import WorkloadSpec
from tests.graph import networks

SIZES = (24, 40, 17, 3, 30)  # of four products with bias and relu
THREADS = 1
ENQUEUE = hot_swap.enqueue  # before a fixture replaces it


@pytest.fixture(autouse=True)
def with_background_jobs(nothing_in_the_background: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot_swap, "enqueue", ENQUEUE)


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def load(graph: Graph, specialise: str) -> Model:
    return autosched.load(graph, threads=THREADS, records=False, specialise=specialise)


def check(model: Model, graph: Graph) -> None:
    x = np.random.default_rng(1).normal(size=(2, SIZES[0])).astype("float32")
    (expected,) = interpret(graph, {"x": x}).values()
    np.testing.assert_allclose(model(x), expected, rtol=1e-5, atol=1e-6)


def transferred(model: Model) -> list[KernelSpec]:
    return [task.kernel_spec for task in model.tasks if task.kernel.name != task.kernel_spec.name]


def test_the_largest_kernel_of_a_structure_has_its_own_schedule_and_the_others_take_it() -> None:
    graph = networks.perceptron(SIZES)
    model = load(graph, "never")
    (own,) = [task for task in model.tasks if task.kernel_spec not in transferred(model)]
    assert len(model.tasks) == 4
    assert own.kernel_spec.workload.sized.sizes == (2, 24, 40, 24, 40)
    assert {task.kernel.schedule.steps for task in model.tasks} == {own.kernel.schedule.steps}
    assert not any(task.kernel_spec.steps for task in model.tasks), "a transferred schedule is not a tuned one"
    check(model, graph)


def test_each_kernel_has_its_own_schedule_where_the_caller_waits_for_it() -> None:
    graph = networks.perceptron(SIZES)
    model = load(graph, "now")
    assert len(model.tasks) == 4
    assert not transferred(model)
    assert all(task.kernel.schedule.estimate_s > 0 for task in model.tasks)


def test_a_network_of_other_sizes_takes_the_schedules_of_an_earlier_one() -> None:
    (own,) = {task.kernel.schedule.steps for task in load(networks.perceptron(SIZES), "never").tasks}
    graph = networks.perceptron((24, 33, 5, 50, 7))
    model = load(graph, "never")
    assert len(transferred(model)) == len(model.tasks) == 4
    assert {task.kernel.schedule.steps for task in model.tasks} == {own}
    check(model, graph)


def test_much_larger_kernels_than_any_before_have_a_decision_of_their_own() -> None:
    load(networks.perceptron(SIZES), "never")
    model = load(networks.perceptron((96, 130, 70, 90, 64)), "never")
    assert len(transferred(model)) == len(model.tasks) - 1


def test_a_damaged_entry_of_a_structure_is_a_miss() -> None:
    (first, *_) = load(networks.perceptron(SIZES), "now").tasks
    assert structure_cache.find_decisions(SCHEDULE, first.kernel_spec, str)
    assert not structure_cache.find_decisions(SCHEDULE, first.kernel_spec, float)
    write(structure_cache._key(SCHEDULE, first.kernel_spec), {"decisions": [{"sizes": "2"}]}, b"")
    assert not structure_cache.find_decisions(SCHEDULE, first.kernel_spec, str)


def test_rates_of_an_earlier_network_are_no_decisions_against_fusing() -> None:
    small, large = (KernelSpec(_spec(n), "cpu", THREADS) for n in (8, 64))
    assert NearestSchedules(one_of_each=True).without_rates([small, large]) == [large]
    NearestSchedules(one_of_each=True).add_rates([(large, 2.0)])
    NearestSchedules(one_of_each=True).add_rates([(KernelSpec(_spec(48), "cpu", 2), 1.0)])  # other threads
    nearest = NearestSchedules(one_of_each=True)
    assert nearest.without_rates([small]) == []
    assert nearest.rate_of(small.workload) == 2.0
    assert not nearest.knows(small.workload)


def test_an_entry_has_the_latest_sizes() -> None:
    specs = [KernelSpec(_spec(n), "cpu", THREADS) for n in range(2, structure_cache.MAX_SIZES + 4)]
    for spec in specs:
        structure_cache.keep_decision(SCHEDULE, spec, "[]")
    assert list(structure_cache.find_decisions(SCHEDULE, specs[0], str)) == [s.workload.sized.sizes for s in specs[2:]]


def test_own_schedules_replace_transferred_ones_in_a_network_that_is_in_use() -> None:
    graph = networks.perceptron(SIZES)
    model = autosched.load(graph, threads=THREADS, records=False)
    assert isinstance(model, HotSwapModel)
    first = model.model
    check(model, graph)
    assert model.wait(120)
    assert model.model is not first
    assert not transferred(model)
    check(model, graph)
    check(first, graph)  # of a caller that is still in it
    assert not isinstance(again := load(graph, "background"), HotSwapModel)
    assert not transferred(again)


def test_a_model_that_is_timed_has_its_own_schedules_before() -> None:
    graph = networks.perceptron(SIZES)
    model = autosched.load(graph, threads=THREADS, records=False)
    assert isinstance(model, HotSwapModel)
    finished = loaded(model)
    assert not transferred(finished)
    assert model.model is finished
    check(model, graph)


def test_nothing_is_compiled_for_a_network_that_is_gone() -> None:
    model = autosched.load(networks.perceptron(SIZES), threads=THREADS, records=False)
    assert isinstance(model, HotSwapModel)
    ended = model.ended
    del model
    gc.collect()
    assert ended.wait(120)


def test_a_transferred_schedule_that_does_not_fit_is_dropped() -> None:
    graph = networks.perceptron(SIZES)
    (task, *_) = load(graph, "now").tasks
    nearest = NearestSchedules()
    nearest.add([(task.kernel_spec.workload, '[["Split","nothing","i",[4]]]')])
    model = compile_graph(graph, "cpu", THREADS, Choices(nearest=nearest))
    assert not transferred(model)
    check(model, graph)


def test_a_verified_model_keeps_its_interface() -> None:
    graph = networks.perceptron(SIZES)
    model = autosched.load(graph, threads=THREADS, records=False)
    assert isinstance(model, HotSwapModel)
    assert model.verify().passed
    assert model.threads == THREADS
    assert model.arena_bytes >= 0
    assert repr(model) == repr(model.model)
    with pytest.raises(UsageError, match="neither copied nor pickled"):
        model.__reduce__()


def test_an_unknown_word_is_refused() -> None:
    with pytest.raises(UsageError, match="specialise is now or background or never, got 'later'"):
        load(networks.perceptron(), "later")


def test_rates_are_those_of_the_nearest_sizes() -> None:
    nearest = NearestSchedules()
    small, large, other = (_spec(n) for n in (8, 64, 48))
    nearest.add_rates([(KernelSpec(small, "cpu", 1), 1.0), (KernelSpec(large, "cpu", 1), 2.0)])
    assert nearest.rate_of(other) == 2.0
    assert nearest.rate_of(replace(other, text=other.text.replace("relu", "tanh"))) == float("inf")


def _spec(n: int) -> WorkloadSpec:
    graph = {"inputs": [[[n, n], "float32"]], "weights": 0, "nodes": [["relu", [0], [1], {}]], "outputs": [1]}
    return WorkloadSpec.of({"name": "relu", "args": {}, "dtype": "float32", "graph": graph})
