"""Kernels over several reductions in a network: what they compute, which are joined, and where none may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import autosched as at
from autosched.graph.fusion import candidates
from autosched.graph.fusion.candidates import find_fusion_candidates
from autosched.graph.fusion.choice import PredictedGroup, apply_fusion_choices
from autosched.graph.graph import Graph, Node, Value
from autosched.graph.interpret import interpret
from autosched.graph.steps import Group
from autosched.kernel.device import Device, find_device
from autosched.planning.device_passes import prepare_graph
from autosched.planning.execution_plan import steps_of
from autosched.planning.extract_tasks import GroupKernels
from autosched.planning.predicted_latency import has_fused_sketch
from autosched.target import Target


def bottleneck(n: int = 1, size: int = 13, channels: int = 16, more: tuple[str, ...] = ()) -> Graph:
    """An inverted bottleneck over images with channels last. `more`: other outputs."""
    inside, rng = 6 * channels, np.random.default_rng(0)
    weights = {"w1": (inside, channels, 1, 1), "w2": (inside, 1, 3, 3), "w3": (channels, inside, 1, 1)}
    image, wide = (n, size, size, channels), (n, size, size, inside)
    values = [Value(name, shape, "float32") for name, shape in weights.items()]
    values += [Value(name, wide, "float32") for name in ("e", "ea", "d", "da")]
    values += [Value(name, image, "float32") for name in ("x", "p", "y")]
    pads = {"pads": ((1, 1), (1, 1)), "groups": inside}
    nodes = (
        Node("conv", ("x", "w1"), ("e",), {"channels_last": True}),
        Node("clip", ("e",), ("ea",), {"low": 0.0, "high": 6.0}),
        Node("conv", ("ea", "w2"), ("d",), {"channels_last": True, **pads}),
        Node("clip", ("d",), ("da",), {"low": 0.0, "high": 6.0}),
        Node("conv", ("da", "w3"), ("p",), {"channels_last": True}),
        Node("add", ("p", "x"), ("y",)),
    )
    constants = {name: rng.standard_normal(shape, "float32") for name, shape in weights.items()}
    return Graph(("x",), ("y", *more), nodes, {value.name: value for value in values}, constants)


def without_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make chains with the smallest intermediates candidates too."""
    monkeypatch.setattr(candidates, "L2_SHARE", 0.0)
    monkeypatch.setattr(candidates, "MIN_TRAFFIC_SHARE", 0.0)


def names(groups: list[Group]) -> list[str]:
    return [" ".join(node.operator for node in group.nodes) for group in groups]


@dataclass(frozen=True)
class FixedLatencies:
    """Predicts the latency of a group by its number of convolutions."""

    graph: Graph
    device: Device
    seconds: Mapping[int, float]
    max_groups: ClassVar[int] = 3

    @property
    def target(self) -> Target:
        return self.device.target

    @property
    def threads(self) -> int:
        return self.device.threads

    def can_fuse(self, fused: Group, unfused: Sequence[Group]) -> bool:
        return has_fused_sketch(GroupKernels(self.graph, "cpu", self.device, "").spec(fused).request)

    def predict(self, groups: Sequence[Group]) -> list[PredictedGroup[str]]:
        numbers = [sum(node.operator == "conv" for node in group.nodes) for group in groups]
        return [PredictedGroup(g, str(g), self.seconds[n]) for g, n in zip(groups, numbers, strict=True)]


def groups_after_fusion(graph: Graph, seconds: dict[int, float], threads: int = 1) -> list[str]:
    """Return the groups for kernels of these seconds, by their number of convolutions."""
    device = find_device("cpu", threads, runs=False)
    found = prepare_graph(graph, device)
    steps = steps_of(found, device)
    steps = apply_fusion_choices(steps, find_fusion_candidates(found, steps, FixedLatencies(found, device, seconds)))
    return names([step for step in steps if isinstance(step, Group)])


def test_a_network_with_a_fused_kernel_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    without_thresholds(monkeypatch)
    monkeypatch.setattr(candidates, "MAX_LATENCY_RATIO", 100.0)
    graph = bottleneck(2, 5, 8)
    model = at.load(graph, threads=2, records=False)
    (task,) = model.tasks
    assert task.name == "conv-clip-conv-clip-conv-add"
    assert ":chain" in task.kernel.schedule.sketch
    assert "conv clip conv clip conv add" in at.show(model, "groups")
    x = np.random.default_rng(1).standard_normal((2, 5, 5, 8), "float32")
    want = interpret(graph, {"x": x})["y"]
    np.testing.assert_allclose(model(x), want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
    assert at.verify(model).passed


def test_what_is_least_in_sum_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, apart = bottleneck(), ["conv clip", "conv clip", "conv add"]
    assert groups_after_fusion(graph, {1: 9.0, 2: 1.0, 3: 1.0}) == apart  # all of it stays in the cache
    without_thresholds(monkeypatch)
    assert groups_after_fusion(graph, {1: 1.0, 2: 2.0, 3: 3.0}) == apart
    assert groups_after_fusion(graph, {1: 1.0, 2: 2.0, 3: 2.0}) == ["conv clip conv clip conv add"]
    assert groups_after_fusion(graph, {1: 2.0, 2: float("inf"), 3: float("inf")}) == apart


def test_what_others_read_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    without_thresholds(monkeypatch)
    assert groups_after_fusion(bottleneck(more=("ea",)), {1: 9.0, 2: 1.0, 3: 1.0}) == [
        "conv clip",
        "conv clip conv add",
    ]
    assert groups_after_fusion(bottleneck(more=("da",)), {1: 9.0, 2: 1.0, 3: 1.0}) == [
        "conv clip conv clip",
        "conv add",
    ]


def test_gpus_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    without_thresholds(monkeypatch)
    graph = bottleneck()
    cpu, gpu = find_device("cpu", 1, runs=False), find_device("cuda -arch=sm_80", None, runs=False)
    steps = steps_of(prepare_graph(graph, cpu), cpu)
    assert find_fusion_candidates(graph, steps, FixedLatencies(graph, Device(gpu.target, 1), {})) == ()
