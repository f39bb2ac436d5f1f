"""Sketches of workloads with weights: what depends on these alone is computed ahead, and the whole stays right."""

from __future__ import annotations

import numpy as np
import pytest

from autosched import te
from autosched.ir.stmt import Allocate, Func, Prefetch, Store, walk
from autosched.ir.verify import verify
from autosched.ir.visit import loads
from autosched.lower import concretise, lower
from autosched.schedule import CacheRead, Pack, Parallel, State, initial_state, replay, steps_to_json
from autosched.schedule import Prefetch as PrefetchStep
from autosched.target import parse_target
from autosched.te.dag import ComputeDAG
from autosched.te.operators.registry import build
from autosched.te.rewrites.collapse import collapse
from cost_model import CostModel
from search_spaces import cpu
from search_spaces.space import Sketch, sample
from tests.codegen.running import check_kernel
from tests.helpers import check_nest

TARGET = parse_target("cpu")
CASES = {
    "matmul": (("matmul", {"M": 7, "N": 19, "K": 5}, ["B"])),
    "rows of a matmul": (("matmul", {"M": 7, "N": 19, "K": 5}, ["A"])),
    "blocked matmul": (("matmul", {"M": 5, "N": 17, "K": 259}, ["B"])),
    "one row": (("dense", {"M": 1, "N": 19, "K": 7}, ["W", "bias"])),
    "NHWC": (("conv2d", {"H": 5, "W": 4, "CI": 3, "CO": 18}, ["W"])),
    "NCHW": (("conv2d", {"H": 4, "W": 5, "CI": 3, "CO": 7, "stride": 2, "layout": "NCHW"}, ["W"])),
    "grouped": (("conv2d", {"H": 3, "W": 4, "CI": 4, "CO": 6, "groups": 2}, ["W"])),
    "strided": (("c2d", {"H": 5, "W": 5, "CI": 3, "CO": 17, "stride": 2}, ["W"])),
    "fused": (("cbr", {"H": 3, "W": 3, "CI": 3, "CO": 17}, ["W", "bias", "bn_scale", "bn_offset"])),
    "winograd": (("winograd", {"H": 5, "W": 3, "CI": 3, "CO": 5, "m": 2}, ["W"])),
    "transposed operand": (("tbg", {"seq": 5, "heads": 2, "dim": 3}, ["K"])),
}


def case(name: str) -> ComputeDAG:
    workload, settings, weights = CASES[name]
    return collapse(build(workload, settings=settings)[0].with_weights(weights))


def folded(weights: list[str], m: int = 3, n: int = 18, k: int = 5) -> ComputeDAG:
    """x (w * scale / sqrt(variance)) + shift, where the scaled weights are a stage; `mean` reduces weights."""
    x, w = te.placeholder((m, k), name="x"), te.placeholder((k, n), name="w")
    scale, shift = te.placeholder((n,), name="scale"), te.placeholder((n,), name="shift")
    scaled = te.compute((k, n), lambda i, j: w[i, j] * scale[j], name="scaled")
    rows = te.reduce_axis(k, name="rows")
    mean = te.compute((n,), lambda j: te.sum(scaled[rows, j], axis=rows), name="mean")
    kk = te.reduce_axis(k, name="kk")
    product = te.compute((m, n), lambda i, j: te.sum(x[i, kk] * scaled[kk, j], axis=kk), name="product")
    out = te.compute((m, n), lambda i, j: product[i, j] - mean[j] + shift[j], name="out")
    return collapse(ComputeDAG(out, weights=weights))


def concrete(sketch: Sketch, seed: int) -> Func:
    """The nest of a legal row."""
    names = tuple(p.name for p in sketch.params)
    nest = lower(sketch.state)
    verify(nest)
    rows = sample(sketch, 64, np.random.default_rng(seed))
    row = rows[CostModel([nest], [names], TARGET, 2).legal(0, rows)][0]
    return concretise(nest, dict(zip(names, row.tolist(), strict=True)))[0]


def read_by_the_kernel(func: Func) -> set[str]:
    stores = [s for s in walk(func.body) if isinstance(s, Store)]
    return {load.buffer for s in stores for value in s.values for load in loads(value)}


def stages_of(func: Func, ahead: bool) -> set[str]:
    body = func.prepare if ahead else func.body
    assert body is not None
    return {s.stage.removesuffix(".init") for s in walk(body) if isinstance(s, Store)}


@pytest.mark.parametrize("name", CASES)
def test_every_sketch_computes_the_reference_without_its_weights(name: str) -> None:
    dag = case(name)
    sketches = cpu.sketches(dag, TARGET, 2)
    for n, sketch in enumerate(sketches[:: max(1, len(sketches) // 4)]):
        func = concrete(sketch, n)
        assert func.prepare is not None
        assert read_by_the_kernel(func).isdisjoint(dag.weights)
        check_nest(func, dag, seed=n)


def test_operands_are_packed_ahead_and_never_inside() -> None:
    for name, packed in (
        ("matmul", "B.pack"),
        ("rows of a matmul", "A.pack"),
        ("NCHW", "W.pack"),
        ("grouped", "W.pack"),
    ):
        for sketch in cpu.sketches(case(name), TARGET, 2):
            nest = lower(sketch.state)
            (buffer,) = nest.prepared
            assert buffer.name == packed
            assert buffer.layout is not None
            assert len(buffer.layout.tiles) == 1
            assert packed not in stages_of(nest, ahead=False)


def test_stages_over_weights_alone_are_computed_ahead() -> None:
    for sketch in cpu.sketches(folded(["w", "scale"]), TARGET, 1):
        func = concrete(sketch, 0)
        assert stages_of(func, ahead=True) == {"scaled", "scaled.pack", "mean"}
        assert read_by_the_kernel(func).isdisjoint({"w", "scale", "scaled"})
        check_nest(func, folded(["w", "scale"]))


def test_stages_that_need_more_stay_with_the_kernel() -> None:
    dag = folded(["w"])
    for sketch in cpu.sketches(dag, TARGET, 1)[:3]:
        func = concrete(sketch, 0)
        assert stages_of(func, ahead=True) == {"w.kept"}
        assert "scale" in read_by_the_kernel(func)
        check_nest(func, dag)


def test_repeated_weights_stay_small() -> None:
    """A broadcast of a bias is not written out ahead of time."""
    x, b = te.placeholder((30, 20), name="x"), te.placeholder((20,), name="b")
    wide = te.compute((30, 20), lambda i, j: b[j] * 2.0, name="wide")
    dag = ComputeDAG(te.compute((30, 20), lambda i, j: x[i, j] + wide[i, j], name="y"), weights=["b"])
    (prepared,) = {lower(s.state).prepared for s in cpu.sketches(dag, TARGET, 1)}
    assert [b.name for b in prepared] == ["b.kept"]


def test_a_hint_names_the_copy() -> None:
    dag = case("matmul")
    state = initial_state(dag).apply(PrefetchStep("matmul", "B", "k", 2))
    func, _ = concretise(lower(state), {})
    assert {s.buffer for s in walk(func.body) if isinstance(s, Prefetch)} == {"B.kept"}
    check_nest(func, dag)


def packed_by_hand(dag: ComputeDAG) -> State:
    steps = (CacheRead("B", "matmul", "pack"), Pack("B.pack", (1, 0), ((1, 4),)), Parallel("B.pack", ("d0",)))
    return initial_state(dag).apply(*steps)


def test_what_only_the_preparation_needs_is_scratch() -> None:
    nest = lower(cpu.sketches(folded(["w", "scale"]), TARGET, 1)[0].state)
    assert nest.prepare is not None
    assert {b.name for b in nest.prepared} == {"scaled.pack", "mean"}
    assert [s.buffer.name for s in walk(nest.prepare) if isinstance(s, Allocate)] == ["scaled"]


def test_a_recorded_schedule_is_split_again() -> None:
    dag = case("matmul")
    state = packed_by_hand(dag)
    assert lower(replay(dag, steps_to_json(state, {}))) == lower(state)
    plain = collapse(build("matmul", settings={"M": 7, "N": 19, "K": 5})[0])
    assert lower(replay(plain, steps_to_json(state, {}))).prepare is None


@pytest.mark.parametrize("name", ["matmul", "grouped", "winograd", "one row"])
def test_compiled_the_kernel_needs_no_weight(name: str) -> None:
    dag = case(name)
    sketch = cpu.sketches(dag, TARGET, 2)[0]
    values = {p.name: p.domain[0] for p in sketch.params}
    check_kernel(dag, replay(dag, steps_to_json(sketch.state, values)))


def test_few_channels_of_many_groups_are_lanes() -> None:
    """No axis fills a vector, and only weights, W[g * 5 + c, ..], have the channels of a group apart."""
    size, groups, members, few = 2, 3, 5, 9
    x, w = te.placeholder((size + 2, groups * few), name="x"), te.placeholder((groups * members, few, 3), name="w")
    k, ci = te.reduce_axis(3, name="k"), te.reduce_axis(few, name="ci")
    conv = te.compute(
        (size, groups, members),
        lambda i, g, c: te.sum(x[i + k, g * few + ci] * w[g * members + c, ci, k], axis=[k, ci]),
        name="conv",
    )
    out = te.compute(conv.shape, lambda i, g, c: te.max(conv[i, g, c], 0.0), name="out")
    dag = ComputeDAG(out, weights=["w"])
    found = cpu.sketches(dag, TARGET, 1)
    assert any(s.name.startswith("conv:v2") for s in found)
    for n, sketch in enumerate(found):
        check_nest(concrete(sketch, n), dag, seed=n)
