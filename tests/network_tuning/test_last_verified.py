"""A tuned program that fails verification is not handed out: the one before it is, and the kernel is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autosched.errors import RecordWarning
from autosched.executor.compile_graph import compile_graph
from autosched.executor.model import Model
from autosched.graph.graph import Graph
from autosched.network_tuning import tune
from autosched.network_tuning.end_to_end import LatencyComparison
from autosched.network_tuning.results import Effort
from autosched.network_tuning.tune import tune_network
from autosched.store import Database, Record
from tests.graph import networks


def graph() -> Graph:
    return networks.perceptron((3, 17))


def spoil(model: Any) -> Model:
    """The network with another weight in its product than the graph has."""
    (offset,) = model.program.packed_offsets.values()
    floats = model.block[offset:].view("float32")
    floats[np.flatnonzero(floats)[0]] += 1.0
    return model


@pytest.fixture
def wrong_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches end with a program of which a kernel is wrong, and which is the fastest."""

    def choose_schedules(start: Model, found: Any, build: Any, *rest: Any) -> LatencyComparison:
        best = spoil(build({spec: schedules[0] for spec, schedules in found.items()}))
        return LatencyComparison(best, (3.0, 3.0), (1.0, 1.0))

    monkeypatch.setattr(tune, "choose_schedules", choose_schedules)


def failures(model: Model, path: Path) -> list[Record]:
    device = model.device
    with Database(path) as database:
        tasks = [(w.hash, device.target.fingerprint, device.threads) for w in database.workloads()]
        return [r for task in tasks for r in database.records(*task) if r.failure is not None]


def test_the_program_before_is_handed_out(cli: Any, tmp_path: Path, wrong_ends: None) -> None:
    """With exit code 0, a sentence on stderr, and a record that is a failure."""
    model, path = compile_graph(graph(), threads=1), tmp_path / "net.asc"
    model.save(path)
    answer = cli("tune", path, "--threads", 1, "--trials", 1, "--db", tmp_path / "records.db", "--json")
    assert (answer.code, answer.json["verified"]) == (0, True)
    assert (answer.json["start_latency_s"], answer.json["latency_s"]) == (3.0, 3.0)
    assert answer.json["max_error"] < 1e-6
    reason = "the output relu1 (rms"
    assert f"autosched: a program that was tuned for net is not used, but the one before it: {reason}" in answer.err
    assert "because of the kernel linear relu: relu1 (rms" in answer.err
    (failure,) = failures(model, tmp_path / "records.db")
    assert failure.failure == "wrong_result"
    assert failure.message.startswith(reason)


def test_a_network_that_was_wrong_before_is_not_verified(tmp_path: Path, wrong_ends: None) -> None:
    model = spoil(compile_graph(graph(), threads=1))
    with (
        pytest.warns(RecordWarning, match="is not used"),
        pytest.warns(RecordWarning, match="is not verified, and was not before the search either: the output"),
    ):
        result = tune_network(model, Effort(trials=1), tmp_path / "records.db")
    assert not result.verified
    assert result.model is model
