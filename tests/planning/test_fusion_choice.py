"""Parts of networks as one kernel or several: what is open, what is searched for, timed, kept, and found again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import autosched as at
from autosched.executor.compile_graph import compile_graph
from autosched.executor.model import Model
from autosched.graph.fusion import choice as fusion_choice
from autosched.graph.fusion.choice import FusionChoice, KernelSequence, PredictedGroup
from autosched.graph.interpret import interpret
from autosched.graph.steps import Group
from autosched.kernel.lookup import StoredSchedules
from autosched.kernel.spec import KernelSpec
from autosched.network_tuning import fusion_comparison
from autosched.network_tuning.fusion_comparison import (
    FusionTimes,
    compare_fusions,
    store_fusion_decisions,
    undecided_kernels,
)
from autosched.network_tuning.results import Effort
from autosched.network_tuning.shared_tasks import shared_tasks
from autosched.network_tuning.tune import tune_network
from autosched.network_tuning.undecided_fusion import UndecidedFusion, find_undecided_fusions
from autosched.planning.extract_tasks import Choices
from autosched.store import Database
from autosched.tuner.workload_spec import WorkloadSpec
from tests.planning.fuzz_fusion import faults_of
from tests.planning.test_fusion_candidates import bottleneck, without_thresholds

FUSED, UNFUSED = "conv-clip-conv-clip-conv-add", ["conv-clip", "conv-clip", "conv-add"]


def choice(fused_s: float, unfused_s: float, is_fused: bool = True, word: str = "chain") -> FusionChoice[KernelSpec]:
    def predicted(name: str, seconds: float) -> PredictedGroup[KernelSpec]:
        return PredictedGroup(Group((), (), (name,)), KernelSpec(WorkloadSpec(name), "cpu", 1), seconds)

    unfused = tuple(predicted(f"{word} {n}", unfused_s / 2) for n in range(2))
    return FusionChoice(KernelSequence((predicted(word, fused_s),)), KernelSequence(unfused), is_fused)


@pytest.fixture
def open_network(monkeypatch: pytest.MonkeyPatch) -> Model:
    """A small bottleneck as one kernel; how much longer a form may take to be open is without end."""
    without_thresholds(monkeypatch)
    monkeypatch.setattr(fusion_choice, "UNDECIDED_RATIO", 1e9)
    return with_choice(True)


def with_choice(is_fused: bool) -> Model:
    return compile_graph(bottleneck(1, 5, 8), threads=1, choices=Choices(is_fused=lambda kernel_spec: is_fused))


def kernels(model: Model) -> list[str]:
    return [task.name for task in sorted(model.tasks, key=lambda task: task.steps)]


def test_a_choice_is_undecided_where_predictions_are_close() -> None:
    assert choice(1.0, 1.4).is_undecided
    assert choice(1.4, 1.0).is_undecided
    assert not choice(1.0, 1.6).is_undecided
    assert not choice(float("inf"), 1.0, False).is_undecided
    assert "one kernel; the analytic model expects 1000000 us of one and 1400000 us of 2, and" in str(choice(1.0, 1.4))


def test_fused_and_unfused_kernels_compute_the_network(open_network: Model) -> None:
    (x,) = (np.random.default_rng(0).standard_normal(spec.shape, "float32") for spec in open_network.inputs)
    want = interpret(open_network.original, {"x": x})["y"]
    for model, expected in ((open_network, [FUSED]), (with_choice(False), UNFUSED)):
        assert kernels(model) == expected
        np.testing.assert_allclose(model(x), want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
        assert "tuning measures both" in at.show(model, "groups")


def test_kernels_that_take_much_longer_are_not_searched_for() -> None:
    found = UndecidedFusion(0, 3, present=(0,), other=(1, 2))
    assert dict(found.extra_calls([1.0, 0.5, 0.6])) == {1: 3, 2: 3}
    assert dict(found.extra_calls([1.0, 1.0, 1.0])) == {}
    assert dict(found.extra_calls([3.0, 1.0, 1.0])) == {0: -3, 1: 3, 2: 3}
    assert found.gain_s([3.0, 1.0, 1.0]) == 3.0
    assert found.gain_s([1.0, 1.0, 1.0]) == 0.0


def test_kernels_of_the_rejected_sequence_are_tasks(open_network: Model) -> None:
    tasks = shared_tasks([open_network], [with_choice(False)])
    assert [(task.name, task.counts) for task in tasks] == [(FUSED, (1,)), *((name, (0,)) for name in UNFUSED)]
    (found,) = find_undecided_fusions([open_network.program.fusion_choices], tasks)
    assert found == UndecidedFusion(0, 1, (0,), (1, 2, 3))


@pytest.mark.parametrize("faster", [True, False])
def test_the_faster_sequence_is_kept(open_network: Model, monkeypatch: pytest.MonkeyPatch, faster: bool) -> None:
    times = {True: 1.0, False: 0.5 if faster else 0.99}

    def profile(model: Model, inputs: Any, budget_s: float) -> Any:
        n = len(model.program.kernels)
        return SimpleNamespace(kernels=dict.fromkeys(model.program.kernels, times[n == 1] / n))

    monkeypatch.setattr(fusion_comparison, "profile", profile)
    monkeypatch.setattr(fusion_comparison, "interleaved_samples", lambda models, inputs: [(2.0,), (1.0,)])
    kept, found = compare_fusions(open_network, lambda kernel_specs: with_choice(not kernel_specs), {})
    assert kernels(kept) == (UNFUSED if faster else [FUSED])
    assert [(x.is_fused, x.fused_s[0], x.operators) for x in found] == [(not faster, 1.0, FUSED)]


def test_what_whole_calls_refute_is_not_kept(open_network: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion_comparison, "SLOWER", 0.0)
    monkeypatch.setattr(fusion_comparison, "interleaved_samples", lambda models, inputs: [(1.0,), (2.0,)])
    inputs = {"x": np.ones((1, 5, 5, 8), "float32")}
    kept, (found,) = compare_fusions(open_network, lambda kernel_specs: with_choice(not kernel_specs), inputs)
    assert kept is open_network
    assert found.is_fused


def test_the_latest_contest_is_found_again(open_network: Model, tmp_path: Path) -> None:
    (kernel_spec,) = undecided_kernels(open_network)
    with Database(tmp_path / "records.db") as database:
        assert StoredSchedules(database).is_fused(kernel_spec) is None
        store_fusion_decisions(database, [FusionTimes(kernel_spec, (2e-6, 3e-6), (1e-6, 1e-6), False)])
        assert StoredSchedules(database).is_fused(kernel_spec) is False
    graph, db = open_network.original, tmp_path / "records.db"
    assert kernels(at.load(graph, threads=1, db=db)) == UNFUSED
    with Database(db) as database:
        store_fusion_decisions(database, [FusionTimes(kernel_spec, (4e-6,), (5e-6,), True)])  # on a busier machine
        assert StoredSchedules(database).is_fused(kernel_spec) is True
    assert kernels(at.load(graph, threads=1, db=db)) == [FUSED]


def test_an_archive_keeps_the_choice(open_network: Model, tmp_path: Path) -> None:
    for model, expected in ((open_network, [FUSED]), (with_choice(False), UNFUSED)):
        model.save(tmp_path / "model.asc")
        assert kernels(at.load(tmp_path / "model.asc", threads=1, records=False)) == expected


def test_tuning_measures_fused_and_unfused(open_network: Model, tmp_path: Path) -> None:
    db = tmp_path / "records.db"
    result = tune_network(open_network, Effort(trials=12), db)
    assert result.verified
    assert sorted(task.name for task in result.tasks) == sorted([FUSED, *UNFUSED])
    (found,) = result.parts
    assert kernels(result.model) == ([FUSED] if found.is_fused else UNFUSED)
    (said,) = cast("list[dict[str, object]]", result.to_json()["parts"])
    assert said["operators"] == FUSED
    assert kernels(at.load(open_network.original, threads=1, db=db)) == kernels(result.model)


@pytest.mark.parametrize("seed", [0, 1])
def test_random_bottlenecks_are_right_fused_and_unfused(seed: int) -> None:
    assert faults_of(seed)[0] == []
