"""What is said of a network's speed: sums, shares and bounds; and that profiled kernels compute the network."""

from __future__ import annotations

import numpy as np
import pytest

from autosched import api
from autosched.cli.explain import _network_facts, _network_text
from autosched.executor.compile_graph import compile_graph
from autosched.executor.gpu_timer import MAX_LAUNCHES, GpuClock
from autosched.executor.profile import profile
from autosched.inspection.network import Explanation, Layer
from autosched.planning.execution_plan import SplitGroup
from autosched.runtime.gpu.device import LaunchSequence
from autosched.verification.sample_inputs import input_sets
from tests.graph import networks


@pytest.mark.parametrize("make", [networks.residual, networks.views_out, networks.attention_block])
def test_each_kernel_has_a_time(make):
    model = compile_graph(make(), threads=1)
    (normal, _) = input_sets(model.original)
    times = profile(model, normal.arrays, budget_s=0.01)
    assert set(times.kernels) == set(model.program.kernels)
    assert all(seconds >= 0.0 for seconds in times.kernels.values())
    assert times.call > 0.0


def test_layers_are_tasks_with_their_work(monkeypatch):
    monkeypatch.setattr("autosched.executor.profile.BUDGET_S", 0.01)
    graph = networks.perceptron((3, 17, 17, 17))
    found = api.explain(api.load(graph, threads=1))
    (twice,) = (layer for layer in found.layers if layer.count == 2)
    assert twice.operators == "linear-relu"
    per_kernel = 2 * 17 * 17 * 2 + 2 * 17 * 2  # a product of two rows, bias and relu
    assert twice.flops == 2 * per_kernel
    assert twice.n_bytes == 2 * 4 * (2 * 17 + 17 * 17 + 17 + 2 * 17)
    assert twice.least_s > 0.0
    assert found.kernels_s == 0.0 or sum(map(found.share, found.layers)) == pytest.approx(1.0)
    assert [layer.seconds for layer in found.layers] == sorted((x.seconds for x in found.layers), reverse=True)


def test_sums():
    def layer(seconds: float, flops: int) -> Layer:
        return Layer("conv", (), (0,), seconds, flops, 8, seconds / 4)

    split = SplitGroup("conv relu", "no sketch")
    found = Explanation((layer(3.0, 5), layer(1.0, 7)), 4.5, (split,))
    assert _network_facts(found)["split"] == [{"operators": "conv relu", "reason": "no sketch"}]
    assert _network_text(found).splitlines()[-1] == str(split)
    assert (found.kernels_s, found.least_s, found.flops) == (4.0, 1.0, 12)
    assert found.share(found.layers[0]) == 0.75
    assert found.layers[1].roofline_fraction == 0.25


def test_profiling_leaves_the_results_alone():
    model = compile_graph(networks.residual(), threads=1)
    (normal, _) = input_sets(model.original)
    x = normal.arrays["x"]
    before = model(x)
    profile(model, normal.arrays, budget_s=0.0)
    np.testing.assert_array_equal(model(x), before)


def test_a_gpu_kernel_is_timed_many_times_at_once():
    """What begins and ends a measurement is a share of it; kernels of the same code take turns."""
    asked: list[int] = []

    def seconds(calls: object, times: int) -> float:
        asked.append(times)
        return 4e-6 + times * 1e-6

    calls = [LaunchSequence((n,)) for n in range(3)]
    clock = GpuClock(calls, seconds)
    assert clock(1) == pytest.approx(1e-6, rel=0.05)
    assert clock(2) == pytest.approx(2e-6, rel=0.05)
    assert asked[0] == 3
    assert all(times % 3 == 0 and times <= 3 * MAX_LAUNCHES for times in asked)
    assert clock(1000) == pytest.approx(1e-3, rel=0.05)
    assert GpuClock((), seconds)(5) == 0.0  # it was made when the network was loaded
