"""Tuning networks on GPUs: on an OpenCL device, which may be the processor."""

from __future__ import annotations

from pathlib import Path

import pytest

import autosched
from autosched.executor.compile_graph import compile_graph
from autosched.graph.graph import Graph
from autosched.network_tuning.results import Effort
from autosched.network_tuning.tune import tune_network
from autosched.store import Database
from tests.executor.test_gpu_model import check
from tests.executor.test_model import inputs_of
from tests.graph import networks
from tests.measure.gpu_kernels import opencl_target

TRIALS = 3


@pytest.fixture(scope="module")
def graph() -> Graph:
    opencl_target()
    return networks.perceptron((3, 17))


def test_a_search_is_recorded_and_goes_on(graph: Graph, tmp_path: Path) -> None:
    """Builds in several processes, a comparison within the network; what was found is loaded, and counts when it goes on."""
    db = tmp_path / "records.db"
    model = compile_graph(graph, target="opencl")
    found = tune_network(model, Effort(trials=TRIALS), db)
    assert (found.trials, found.resumed, found.verified) == (TRIALS, 0, True)
    assert all(task.best_s is not None and task.record_id is not None for task in found.tasks)
    given = inputs_of(graph)
    check(graph, found.model(**given), given)
    with Database(db, create=False) as database:
        kept = [database.best_of({t.request.problem.dag.content_hash}, model.device.target.fingerprint, 1)
                for t in model.tasks]  # fmt: skip
    assert all(kept)
    loaded = autosched.load(graph, target="opencl", db=db)
    check(graph, loaded(**given), given)
    assert all(task.kernel_spec.steps for task in loaded.tasks)
    again = tune_network(loaded, Effort(trials=TRIALS, resume=True), db)
    assert (again.trials, again.resumed) == (TRIALS, TRIALS)
    assert again.verified
