"""The shipped table of schedules: its files, and how networks use it."""

from __future__ import annotations

import itertools
import json
import lzma
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autosched
from autosched.errors import ScheduleError
from autosched.executor.model import Model
from autosched.graph.interpret import interpret
from autosched.kernel.build import choose_schedule
from autosched.kernel.device import find_device
from autosched.kernel.shipped import table
from autosched.kernel.shipped.table import THREADS, Table, find_shipped, path_of, read_table
from autosched.kernel.spec import KernelSpec
from autosched.kernel.structure_cache import RATE, SCHEDULE, find_decisions, keep_decision
from autosched.kernel.transfer import NearestSchedules
from autosched.planning.predicted_latency import has_fused_sketch
from autosched.tuner.workload_spec import NOTHING, SizedStructure, WorkloadSpec
from tests.graph import networks

TARGETS = ("llvm -mcpu=znver3", "llvm -mcpu=emeraldrapids", "llvm -mcpu=neoverse-v1")  # one of each class
SIZES = (24, 40, 17, 3, 30)  # of four products with bias and relu
STALE = '[["Split","nothing","i",[4]]]'


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def workload(sized: SizedStructure) -> WorkloadSpec:
    """Return a workload of a structure with these sizes, and with floats that do not matter."""
    without, fixed = json.loads(sized.structure)
    sizes = iter(sized.sizes)

    def filled(data: Any, position: str) -> Any:
        if isinstance(data, dict):
            return {name: filled(value, f"{position} {name}") for name, value in data.items()}
        if isinstance(data, list):
            return [filled(value, f"{position} {n}") for n, value in enumerate(data)]
        if data is None:
            return fixed[position] if position in fixed else next(sizes)
        return {"float": 0.5, NOTHING: None}.get(data, data) if isinstance(data, str) else data

    graph = without["graph"]
    inputs = [[filled(shape, f"input {n}"), dtype] for n, (shape, dtype) in enumerate(graph["inputs"])]
    nodes = [[*node[:3], filled(node[3], f"node {n}")] for n, node in enumerate(graph["nodes"])]
    return WorkloadSpec.of({**without, "graph": {**graph, "inputs": inputs, "nodes": nodes}})


def entries(target: str, what: str) -> Iterator[tuple[KernelSpec, Any]]:
    """Yield the decisions of a class, each with a kernel of its structure and sizes; the sizes change by structure."""
    path = path_of(find_device(target, THREADS, runs=False))
    assert path is not None
    for n, (structure, decisions) in enumerate(read_table(path).items()):
        rows = decisions.get(what, [])
        for sizes, decision in rows[n % len(rows) :][:1] if rows else ():
            sized = SizedStructure(structure, tuple(sizes))
            spec = workload(sized)
            assert spec.sized == sized
            yield KernelSpec(spec, target, THREADS), decision


def use(monkeypatch: pytest.MonkeyPatch, shipped: Table) -> None:
    """Replace the shipped table."""
    monkeypatch.setattr(table, "read_table", lambda path: shipped)


def load(specialise: str = "never") -> Model:
    return autosched.load(networks.perceptron(SIZES), threads=1, records=False, specialise=specialise)


def check(model: Model) -> None:
    x = np.random.default_rng(1).normal(size=(2, SIZES[0])).astype("float32")
    (expected,) = interpret(networks.perceptron(SIZES), {"x": x}).values()
    np.testing.assert_allclose(model(x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_each_class_has_a_table_of_the_common_structures(target: str) -> None:
    specs = [spec for spec, _ in entries(target, SCHEDULE)]
    operators = {node[0] for spec in specs for node in spec.workload.data["graph"]["nodes"]}
    assert {"conv", "matmul", "add", "relu", "softmax", "layer_norm", "max_pool", "transpose"} <= operators
    assert len(specs) > 100


@pytest.mark.parametrize("target", TARGETS)
def test_shipped_steps_fit_the_schedule_language(target: str) -> None:
    for spec, steps in itertools.islice(entries(target, SCHEDULE), 0, None, 4):
        assert spec.request.replay(steps).steps, spec.workload.text


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_code_can_be_made_of_shipped_steps(target: str) -> None:
    for spec, steps in itertools.islice(entries(target, SCHEDULE), 0, None, 8):
        assert choose_schedule(replace(spec, steps=steps)).steps == steps


@pytest.mark.parametrize("target", TARGETS)
def test_shipped_rates_say_that_no_sketch_fuses_a_kernel(target: str) -> None:
    fused = list(entries(target, RATE))
    assert fused
    assert all(rate == math.inf for _, rate in fused)
    assert not has_fused_sketch(fused[0][0].request)


def test_devices_with_fewer_threads_share_the_table_of_a_class() -> None:
    def name(target: str, threads: int | None) -> str | None:
        path = path_of(find_device(target, threads, runs=False))
        return None if path is None else path.name

    assert {name("llvm -mcpu=haswell", n) for n in (1, 2, 16, 32)} == {"x86_64-v32x16.json.xz"}
    assert name("llvm -mcpu=haswell", 33) is None
    assert name("llvm -mcpu=skylake-avx512", 2) == "x86_64-v64x32.json.xz"
    assert name("llvm -mcpu=neoverse-n1", 2) == "aarch64-v16x32.json.xz"
    assert name("cuda", None) is None


def test_a_class_without_a_table_has_no_decisions(tmp_path: Path) -> None:
    assert read_table(tmp_path / "nothing.json.xz") == {}
    path = tmp_path / "one.json.xz"
    path.write_bytes(lzma.compress(b'{"a": {"schedules": [[[2], "[]"]]}}'))
    assert read_table(path) == {"a": {"schedules": [[[2], "[]"]]}}


def shipped_for(model: Model, steps: str) -> Mapping[str, Any]:
    """Return a table with these steps for one kernel of a model."""
    sized = model.tasks[0].kernel_spec.workload.sized
    return {sized.structure: {SCHEDULE: [[[*sized.sizes], steps]]}}


def test_kernels_take_shipped_schedules_from_an_empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, {})
    own = load("now")
    steps = own.tasks[0].kernel.schedule.steps
    use(monkeypatch, shipped_for(own, steps))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    model = load()
    assert {task.kernel.schedule.steps for task in model.tasks} == {steps}
    assert all(task.kernel.name != task.kernel_spec.name for task in model.tasks), "they are no decisions of their own"
    check(model)


def test_a_stale_schedule_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, shipped_for(load(), STALE))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    model = load()
    assert all(task.kernel.schedule.steps != STALE for task in model.tasks)
    check(model)


def test_decisions_of_the_disk_cache_replace_shipped_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = load().tasks[0].kernel_spec
    use(monkeypatch, shipped_for(load(), STALE) | {"other": {SCHEDULE: [[[2], STALE]]}})
    assert find_shipped(SCHEDULE, spec.workload.sized.structure, spec.device, str) == {spec.workload.sized.sizes: STALE}
    assert find_shipped(SCHEDULE, spec.workload.sized.structure, spec.device, float) == {}
    keep_decision(SCHEDULE, spec, "[]")
    assert find_decisions(SCHEDULE, spec, str)[spec.workload.sized.sizes] == "[]"


def test_a_shipped_rate_says_whether_kernels_can_be_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = load().tasks[0].kernel_spec
    sized = spec.workload.sized
    for rate, expected in ((math.inf, False), (2e-9, True)):
        use(monkeypatch, {sized.structure: {RATE: [[[*sized.sizes], rate]]}})
        assert NearestSchedules(one_of_each=True).can_fuse(spec) is expected
    assert NearestSchedules().can_fuse(spec) is None


def pooled(size: int, channels: int) -> KernelSpec:
    """Return windows of 3 with a stride of 2, of which the last ones may reach beyond an image."""
    attributes = {
        "ceil_mode": True, "channels_last": True, "dilations": [1, 1], "kernel": [3, 3], "pads": [[0, 0], [0, 0]],
        "strides": [2, 2],
    }  # fmt: skip
    graph = {
        "inputs": [[[1, size, size, channels], "float32"]], "weights": 0,
        "nodes": [["max_pool", [0], [1], attributes]], "outputs": [1],
    }  # fmt: skip
    workload = WorkloadSpec.of({"name": "max_pool", "args": {}, "dtype": "float32", "graph": graph})
    return KernelSpec(workload, "llvm -mcpu=znver3", 1)


def test_steps_of_sizes_without_a_stage_do_not_fit_sizes_that_have_it() -> None:
    whole, beyond = pooled(15, 16), pooled(14, 16)
    assert whole.workload.sized.structure == beyond.workload.sized.structure
    assert [len(spec.request.collapsed.stages) for spec in (whole, beyond)] == [1, 2]
    steps = choose_schedule(whole).steps
    assert whole.request.replay(steps).steps
    with pytest.raises(ScheduleError, match="do not schedule the stage pad"):
        beyond.request.replay(steps)


def test_further_networks_leave_the_decisions_of_a_table_as_they_are() -> None:
    """Sizes near a known decision get none of their own; of others the largest do."""
    pytest.importorskip("torch")  # by which it makes networks
    from experiments import shipped_table

    model = load()
    specs = dict.fromkeys(task.kernel_spec for task in model.tasks)
    largest, *others = shipped_table.anchors(specs, {}, SCHEDULE)
    sized = largest.workload.sized
    known = {sized.structure: {SCHEDULE: [([*sized.sizes], "steps")]}}
    assert shipped_table.anchors(specs, known, SCHEDULE) == others
    assert shipped_table.anchors(specs, known, RATE) == [largest, *others]
    smaller = {sized.structure: {SCHEDULE: [([1 + n // 100 for n in sized.sizes], "steps")]}}
    assert largest in shipped_table.anchors(specs, smaller, SCHEDULE)
