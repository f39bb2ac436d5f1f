"""A tuned program that fails verification is not handed out: the one before it is, and the kernel is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autosched.errors import RecordWarning
from autosched.graph.graph import Graph
from autosched.network import tune
from autosched.network.compile import compile_graph
from autosched.network.contest import Verdict
from autosched.network.model import Model
from autosched.network.tune import tune_network
from autosched.network.tuned import Effort
from autosched.store import Database, Record
from tests.graph import networks


def graph() -> Graph:
    return networks.perceptron((3, 17, 17, 5))


def spoil(model: Any) -> Model:
    """The network with another weight in its second product than the graph has."""
    second = sorted(model.program.packed)[1]
    floats = model.block[model.program.packed[second] :].view("float32")
    floats[np.flatnonzero(floats)[0]] += 1.0
    return model


@pytest.fixture
def wrong_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches end with a program of which a kernel is wrong, and which is the fastest."""

    def contest(start: Model, found: Any, build: Any, *rest: Any) -> Verdict:
        best = spoil(build({spec: schedules[0] for spec, schedules in found.items()}))
        return Verdict(best, (3.0, 3.0), (1.0, 1.0))

    monkeypatch.setattr(tune, "contest", contest)


def failures(model: Model, path: Path) -> list[Record]:
    device = model.device
    with Database(path) as database:
        tasks = [(w.hash, device.target.fingerprint, device.threads) for w in database.workloads()]
        return [r for task in tasks for r in database.records(*task) if r.failure is not None]


def test_the_program_before_is_handed_out_and_the_record_is_a_failure(tmp_path: Path, wrong_ends: None) -> None:
    model = compile_graph(graph(), threads=1)
    with pytest.warns(RecordWarning, match="is not used, but the one before it: .*because of the kernel linear relu"):
        result = tune_network(model, Effort(trials=6), tmp_path / "records.db")
    assert result.verified
    assert result.model is model
    assert (result.start_latency_s, result.latency_s) == (3.0, 3.0)
    assert result.max_error < 1e-6
    failed = failures(model, tmp_path / "records.db")
    assert {r.failure for r in failed} == {"wrong_result"}
    assert len({r.steps for r in failed}) == 1  # whatever sketch they are of
    assert "because of the kernel linear relu: relu3 (rms" in failed[0].message


def test_the_command_says_so_and_ends_well(cli: Any, tmp_path: Path, wrong_ends: None) -> None:
    compile_graph(graph(), threads=1).save(tmp_path / "net.asc")
    answer = cli("tune", tmp_path / "net.asc", "--threads", 1, "--trials", 2, "--db", tmp_path / "r.db", "--json")
    assert (answer.code, answer.json["verified"]) == (0, True)
    assert (
        "autosched: a program that was tuned for net is not used, but the one before it: the output relu5 (rms"
        in answer.err
    )


def test_a_network_that_was_wrong_before_is_not_verified(tmp_path: Path, wrong_ends: None) -> None:
    model = spoil(compile_graph(graph(), threads=1))
    with (
        pytest.warns(RecordWarning, match="is not used"),
        pytest.warns(RecordWarning, match="is not verified, and was not before the search either: the output"),
    ):
        result = tune_network(model, Effort(trials=1), tmp_path / "records.db")
    assert not result.verified
    assert result.model is model
