"""What the rules for reductions by rows, windows and elementwise stages make of an expression."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import prod

import numpy as np
import pytest

from autosched import te
from autosched.errors import ScheduleError
from autosched.ir.closed_forms.program import Program
from autosched.ir.stmt import Allocate, walk
from autosched.lower import lower
from autosched.lower.passes.instantiate import instantiate
from autosched.schedule import (
    Parallel,
    Prefetch,
    Reorder,
    Split,
    Stream,
    Unroll,
    Vectorize,
    initial_state,
    replay,
    steps_to_json,
)
from autosched.target import Target, parse_target
from autosched.te import ComputeDAG
from autosched.te.operators.normalise import softmax_over
from autosched.te.operators.registry import build
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from cost_model.analysis.operations import operations
from cost_model.analysis.statements import analyse
from cost_model.model import CostModel
from search_spaces.cpu import sketches
from search_spaces.cpu.domains import rows_together
from search_spaces.space import Sketch, sample
from tests.codegen.running import build as kernel_of
from tests.codegen.running import check_candidate, check_kernel, check_outputs, run
from tests.helpers import little_rows

HOST = parse_target("cpu")


def workload(name: str, **settings: int | str) -> ComputeDAG:
    return collapse(build(name, settings=settings)[0])


def compiled(dag: ComputeDAG, sketch: Sketch, threads: int, rows: int = 2) -> Iterator[dict[str, int]]:
    """Random candidates of a sketch, each checked against the reference."""
    data = make_inputs(dag, 0, "normal")
    for row in little_rows(sketch, rows, np.random.default_rng(1)):
        check_outputs(dag, data, run(kernel_of(sketch.state, HOST, threads, row), dag, data, HOST), f"{row}")
        yield row


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_arithmetic_on_parameters_is_done_once(layout):
    dag = workload("batch_norm", N=2, H=7, W=13, C=5, layout=layout)
    for sketch in sketches(dag, HOST, 2):
        stages = {s.name: s for s in sketch.state.stages}
        assert {"scale", "shift"} <= stages.keys()  # a root and a division for each channel, not for each element
        assert all(x.kind.value != "parallel" for n in ("scale", "shift") for x in stages[n].loops)
        assert list(compiled(dag, sketch, 2))


def test_arithmetic_that_nobody_repeats_is_inlined():
    x, y = te.placeholder((4, 6), name="X"), te.placeholder((6,), name="Y")
    root = te.compute((6,), lambda j: te.sqrt(y[j]), name="root")
    dag = ComputeDAG(te.compute((4, 6), lambda i, j: x[i, j] * root[j], name="Z"))
    assert all("root" not in {s.name for s in sketch.state.stages} for sketch in sketches(dag, HOST, 1))


@pytest.mark.parametrize("shape", [(9, 21), (17, 12)])
def test_steps_of_a_stencil_are_stored_and_what_is_read_in_one_place_is_not(shape: tuple[int, ...]) -> None:
    """Inlined, three steps would read 64 elements for each of theirs; the absolute values are as soon made as read.

    The second step may be computed in the third as well: the first one's 7 operations four times are cheap.
    """
    rows, columns = shape
    now = te.placeholder((rows + 6, columns + 6), name="X")
    for step in (4, 2, 0):
        heat = te.compute(
            (rows + step, columns + step),
            lambda i, j, x=now: 0.25 * (x[i, j + 1] + x[i + 2, j + 1] + x[i + 1, j] + x[i + 1, j + 2]),
            name=f"heat{step}",
        )
        now = te.compute(heat.shape, lambda i, j, x=heat: te.max(x[i, j], -x[i, j]), name=f"now{step}")
    found = sketches(collapse(ComputeDAG(now)), HOST, 1)
    names = [{s.name for s in sketch.state.stages} for sketch in found]
    ways = 1 + (columns < HOST.vector_bytes // 4)  # rows shorter than a vector also as one
    assert names.count({"heat4", "heat2", "now0"}) == names.count({"heat2", "now0"}) == ways
    assert len(names) == 2 * ways
    for sketch in found:
        assert list(compiled(ComputeDAG(now), sketch, 1))


@pytest.mark.parametrize(("shape", "together"), [((96, 24), 24), ((7, 64, 16), 64), ((97, 24), 1), ((64, 4096), 1)])
@pytest.mark.parametrize("reducer", ["sum", "max"])
def test_short_rows_that_are_reduced_are_a_task_together(shape: tuple[int, ...], together: int, reducer: str) -> None:
    x = te.placeholder(shape, name="X")
    k = te.reduce_axis(shape[-1], name="k")
    dag = ComputeDAG(te.compute(shape[:-1], lambda *i: getattr(te, reducer)(x[(*i, k)], axis=k), name="R"))
    for sketch in (s for s in sketches(dag, HOST, 1) if s.name == "R:lanes"):
        loops = [x for x in sketch.state.stage("R").loops if not x.reduce]
        serial = [x.name for x in loops if x.kind.value == "serial"]
        assert len(serial) == (together > 1)
        assert all(step.factors == (together,) for step in sketch.state.steps if isinstance(step, Split))
        assert list(compiled(dag, sketch, 1))


def reduced_rows(rows: int, length: int, reducer: str, dtype: str = "float32") -> ComputeDAG:
    x, k = te.placeholder((rows, length), dtype, name="X"), te.reduce_axis(length, name="k")
    if reducer == "argmax":
        return collapse(ComputeDAG(te.compute((rows,), lambda i: te.argmax((k, x[i, k]), axis=k)[0], name="R")))
    return collapse(ComputeDAG(te.compute((rows,), lambda i: getattr(te, reducer)(x[i, k], axis=k), name="R")))


def rows_across(dag: ComputeDAG, target: Target) -> list[Sketch]:
    return [s for s in sketches(dag, target, 1) if s.name.endswith("across")]


@pytest.mark.parametrize("reducer", ["sum", "max", "argmax"])
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((67, 7), "float32"), ((130, 16), "float32"), ((49, 32), "int32"), ((33, 5), "float64"), ((70, 19), "int8"),
     ((70, 9), "float16")],
)  # fmt: skip
def test_short_rows_that_are_reduced_are_read_across(shape: tuple[int, int], dtype: str, reducer: str) -> None:
    dag = reduced_rows(*shape, reducer, dtype)
    (sketch,) = rows_across(dag, HOST)
    for values in sample(sketch, 2, np.random.default_rng(0)):
        row = {p.name: int(v) for p, v in zip(sketch.params, values, strict=True)}
        check_candidate(dag, sketch, row, make_inputs(dag, 0, "normal"))


def test_the_mean_of_short_rows_is_read_across_and_those_of_a_normalisation_stay_with_their_rows() -> None:
    assert rows_across(workload("global_avg_pool2d", N=2, H=5, W=6, C=19, layout="NCHW"), HOST)
    assert not rows_across(workload("layer_norm", M=12, N=17), HOST)


@pytest.mark.parametrize(("length", "dtype"), [(3, "float32"), (4, "float32"), (33, "float32"), (7, "float16")])
def test_rows_of_less_than_a_block_or_of_many_vectors_are_not_read_across(length: int, dtype: str) -> None:
    assert not rows_across(reduced_rows(100, length, "sum", dtype), HOST)


@pytest.mark.parametrize("name", ["haswell", "skylake-avx512"])
@pytest.mark.parametrize(("length", "blocks"), [(7, 2), (16, 4), (18, 5)])
def test_rows_across_are_loaded_in_blocks(name: str, length: int, blocks: int) -> None:
    target = parse_target(f"llvm -mcpu={name}")
    lanes = target.vector_bytes // 4
    (sketch,) = rows_across(reduced_rows(4 * lanes, length, "max"), target)
    text = kernel_of(sketch.state, target, 1, {p.name: lanes if p.kind == "vector" else 1 for p in sketch.params}).ir
    assert text.count("load <4 x float>") == blocks * lanes, "what a block has in common with the next is read twice"
    assert "gather" not in text
    assert "load float" not in text


@pytest.mark.parametrize(("name", "reducer", "most"), [
    ("haswell", "max", 0.5), ("haswell", "argmax", 0.5), ("skylake-avx512", "argmax", 0.5), ("skylake-avx512", "max", 0.7),
])  # fmt: skip
def test_the_draft_prefers_short_rows_across(name: str, reducer: str, most: float) -> None:
    target = parse_target(f"llvm -mcpu={name}")
    found = sketches(reduced_rows(4096, 16, reducer), target, 1)
    model = CostModel([lower(s.state) for s in found], [tuple(p.name for p in s.params) for s in found], target, 1)
    best: dict[bool, float] = {}
    for n, sketch in enumerate(found):
        seconds = model.analytic_latency(n, model.legal_rows(n, sample(sketch, 64, np.random.default_rng(0))))
        is_across = sketch.name.endswith("across")
        best[is_across] = min(best.get(is_across, np.inf), float(seconds.min()))
    assert best[True] < most * best[False]


@pytest.mark.parametrize("shape", [(3, 70), (67, 5), (1, 1), (13, 64)])
def test_several_short_rows_are_a_task(shape):
    dag = workload("elementwise", M=shape[0], N=shape[1])
    for sketch in sketches(dag, HOST, 2):
        assert list(compiled(dag, sketch, 2, rows=4))


@pytest.mark.parametrize("name", ["dep", "max_pool2d", "avg_pool2d"])
@pytest.mark.parametrize("stride", [1, 2])
def test_windows_may_be_written_out(name, stride):
    dag = workload(name, N=1, H=5, W=4, C=19, k=3, stride=stride, pad=1)
    for sketch in sketches(dag, HOST, 1):
        domains = {p.name.rpartition(".k")[2]: p.domain for p in sketch.params if p.kind == "unroll"}
        assert domains["h.u"][-1] == domains["w.u"][-1] == 3
    inline = next(s for s in sketches(dag, HOST, 1) if s.name.endswith("pad@inline"))
    assert list(compiled(dag, inline, 1, rows=2))


@pytest.mark.parametrize(("depth", "longest"), [(13, 13), (16, 16), (17, 8)])
def test_short_reductions_may_be_written_out_wholly(depth, longest):
    dag = workload("matmul", M=64, N=32, K=depth)
    found = next(s for s in sketches(dag, HOST, 1) if s.name == "matmul:v1-rows")
    assert max(next(p for p in found.params if p.kind == "unroll").domain) == longest


@pytest.mark.parametrize(
    ("rows", "columns", "unroll", "share"),
    [(1, 2, 3, 2 / 8 + 2 / 4), (4, 8, 3, 2 / 2), (8, 2, 3, 2 / 4), (8, 8, 3, 0), (8, 2, 1, 1), (8, 8, 1, 1)],
)
def test_conditions_of_the_border_cost_what_the_tiles_at_the_border_cost(rows, columns, unroll, share):
    dag = workload("dep", N=1, H=8, W=8, C=19, k=3, stride=1, pad=1)
    found = next(s for s in sketches(dag, HOST, 1) if s.name.endswith("pad@inline"))
    sizes = {"depthwise.oh.r": rows, "depthwise.ow.r": columns}
    sizes |= {p.name: unroll for p in found.params if p.kind == "unroll"}
    values = {p.name: sizes.get(p.name, p.domain[0]) for p in found.params}
    nest, _ = instantiate(lower(found.state), values)
    (update,) = (s for s in analyse(nest).statements if s.updates)
    assert update.ops.slots == 1  # a multiply-add
    assert operations(update.store).slots > 2  # where every thread tests for itself
    assert Program([update.border], ())(np.zeros((1, 0), np.int64))[0, 0] == pytest.approx(share)


@pytest.mark.parametrize("dtype", ["float32", "int64"])
@pytest.mark.parametrize("length", [32, 48, 64, 80, 81])
def test_lanes_of_several_vectors_are_combined(dtype, length):
    x, k = te.placeholder((3, length), dtype, name="X"), te.reduce_axis(length, name="k")
    dag = ComputeDAG(te.compute((3,), lambda i: te.sum(x[i, k], axis=k), name="S"))
    check_kernel(dag, initial_state(dag).apply(Vectorize("S", "k")), threads=(1,))
    r = te.reduce_axis(length, name="r")
    both = ComputeDAG(te.compute((3,), lambda i: te.argmax(x[i, r], axis=r), name="A"))
    ties = {"X": np.tile(np.arange(length) // 7 % 3, (3, 1)).astype(dtype)}
    check_kernel(both, initial_state(both).apply(Vectorize("A", "r")), ties, threads=(1,))


@pytest.mark.parametrize("columns", [64, 80, 51, 16])
def test_streamed_stores_write_the_same_values(columns):
    """Rows of whole lines go around the caches; others, and buffers that begin inside of a line, do not."""
    x = te.placeholder((6, columns), name="X")
    dag = ComputeDAG(te.compute((6, columns), lambda i, j: x[i, j] * 2.0, name="Y"))
    split = initial_state(dag).apply(Split("Y", "j", (32,)), Vectorize("Y", "j.1"), Parallel("Y", ("i",)))
    check_kernel(dag, split.apply(Stream("Y")))
    text = kernel_of(split.apply(Stream("Y")), HOST, 1).ir
    assert ("!nontemporal" in text) == (columns % (HOST.vector_bytes // 4) == 0)
    plain = kernel_of(split, HOST, 1).ir
    assert "!nontemporal" not in plain
    nest = plain[plain.index("define") :].split("\n}\n")[0]
    assert ".nest0(" in nest
    assert nest in text  # where outputs lie otherwise, the same code runs as without the step


@pytest.mark.parametrize("rows", [8, 7])
def test_streamed_rows_store_lines_one_after_another(rows):
    """A vector of AVX2 is half a line, and the processor collects the halves of few lines at a time."""
    x = te.placeholder((rows, 48), name="X")
    dag = ComputeDAG(te.compute((rows, 48), lambda i, j: x[i, j] * 2.0, name="Y"))
    blocks = initial_state(dag).apply(
        Split("Y", "i", (4,)), Split("Y", "j", (16,)), Reorder("Y", ("i.0", "j.0", "i.1", "j.1")),
        Unroll("Y", "i.1"), Vectorize("Y", "j.1"), Stream("Y"),
    )  # fmt: skip
    check_kernel(dag, blocks)
    text = kernel_of(blocks, parse_target("llvm -mcpu=haswell"), 1).ir
    offsets = dict(re.findall(r"(%p\d+) = getelementptr inbounds i8, ptr %\w+, i64 (\d+)", text))
    stores = re.findall(r"store <8 x float> %\w+, ptr (%p\d+), align 32, !nontemporal", text)
    places = [int(offsets.get(pointer, 0)) for pointer in stores]
    assert places
    assert all(second == first + 32 for first, second in zip(places[::2], places[1::2], strict=True))


@pytest.mark.parametrize("rows", [32, 37])
def test_tiles_copied_across_are_streamed(rows):
    x = te.placeholder((rows, 19), name="X")
    dag = ComputeDAG(te.compute((19, rows), lambda j, i: x[i, j], name="Y"))
    tiled = initial_state(dag).apply(
        Split("Y", "j", (8,)), Split("Y", "i", (16,)), Reorder("Y", ("j.0", "i.0", "j.1", "i.1")),
        Unroll("Y", "j.1"), Vectorize("Y", "i.1"), Stream("Y"),
    )  # fmt: skip
    check_kernel(dag, tiled)
    sixteen_lanes = parse_target("llvm -mcpu=skylake-avx512")
    assert ("!nontemporal" in kernel_of(tiled, sixteen_lanes, 1).ir) == (rows % 16 == 0)


def test_only_outputs_of_their_own_are_streamed():
    dag = workload("softmax", M=5, N=33)
    state = initial_state(dag)
    with pytest.raises(ScheduleError, match="only outputs"):
        state.apply(Stream("power"))
    x, k = te.placeholder((6, 7), name="X"), te.reduce_axis(7, name="k")
    total = initial_state(ComputeDAG(te.compute((6,), lambda i: te.sum(x[i, k], axis=k), name="S")))
    with pytest.raises(ScheduleError, match="reads what it has written"):
        total.apply(Stream("S"))


def test_data_beyond_the_last_cache_may_be_streamed():
    tiny = replace(HOST, l3_bytes=1 << 12)
    for name, numbers in (("add", {"M": 64, "N": 33}), ("softmax", {"M": 64, "N": 64})):
        dag = workload(name, **numbers)
        assert not any("stream" in s.name for s in sketches(dag, HOST, 2))
        found = sketches(dag, tiny, 2)
        streams = [s for s in found if "stream" in s.name]
        assert 2 * len(streams) == len(found)
        for sketch in streams:
            assert list(compiled(dag, sketch, 2, rows=1))
    assert not any("stream" in s.name for s in sketches(workload("matmul", M=64, N=64, K=256), tiny, 2))


@pytest.mark.parametrize(("name", "asks"), [("softmax", True), ("layer_norm", True), ("rms_norm", False)])
def test_of_several_passes_over_far_rows_the_first_asks_ahead(name, asks):
    dag, tiny = workload(name, M=37, N=131), replace(HOST, l3_bytes=1 << 12)
    for sketch in sketches(dag, tiny, 1):
        asking = [x for x in sketch.state.steps if isinstance(x, Prefetch)]
        assert len(asking) == (asks and "stream" in sketch.name)
        assert list(compiled(dag, sketch, 1, 3))


def test_what_is_written_across_may_be_streamed_from_a_quarter_of_the_last_cache_on():
    """Tiles of a transpose also come in the order of the rows that are read."""
    dag, n_bytes = workload("transpose", M=40, N=24), 2 * 40 * 24 * 4
    for l3_bytes, n_streams in ((4 * n_bytes, 1), (4 * n_bytes + 1, 0)):
        found = sketches(dag, replace(HOST, l3_bytes=l3_bytes), 2)
        assert sum("stream" in s.name for s in found) == n_streams
        assert all("transpose.i.m" in (p.name for p in s.params) for s in found)
        for sketch in found:
            assert list(compiled(dag, sketch, 2, rows=4))


def hints(sketch: Sketch) -> set[tuple[str, str, str]]:
    """(stage that asks, stage that it asks for, input)."""
    stages = sketch.state.stages
    asked = {(x.name, h.reader, h.buffer) for x in stages for h in x.ahead if sketch.state.producer(h.buffer) is None}
    return asked | {(stage.name, stage.name, h.buffer) for stage in stages for h in stage.prefetches}


@pytest.mark.parametrize("name", ["tbg", "tbs"])
def test_scattered_rows_of_operands_are_fetched_ahead(name):
    """Heads lie between one another: their rows are short, those of a single head adjacent. Caches hold small ones. What
    was packed before is asked for as well."""
    small = replace(HOST, l2_bytes=1 << 10, l3_bytes=1 << 12)
    dag = workload(name, N=2, seq=21, heads=3, dim=19)
    ahead = [s for s in sketches(dag, small, 1) if hints(s)]
    asked = {hint for s in ahead for hint in hints(s)}
    assert {("scores.acc", "scores.acc", "Q"), ("scores.acc", "K.pack", "K")} <= asked
    assert {(stage, buffer) for stage, _, buffer in asked} == {
        ("scores.acc", name) for name in ("Q", "K", "Q.pack", "K.pack")
    }
    assert any("stream" in s.name for s in ahead)
    for sketch in ahead:
        assert list(compiled(dag, sketch, 1, rows=1))
    assert not any(hints(s) for s in sketches(dag, replace(small, l2_bytes=1 << 20), 1))
    alone = {s.name: hints(s) for s in sketches(workload(name, N=2, seq=21, heads=1, dim=19), small, 1)}
    assert all(alone[n] == found for n, found in ((n.removesuffix("/stream"), x) for n, x in alone.items()))
    image = workload("dep", N=2, H=9, W=9, C=48, k=3, stride=1, pad=1)
    assert not any(buffer == "X" for s in sketches(image, small, 1) for _, _, buffer in hints(s))


@pytest.mark.parametrize("stride", [1, 2])
def test_the_next_part_of_a_grouped_image_is_fetched_ahead(stride):
    """With its border or without; not the weights, which a cache holds."""
    small = replace(HOST, l2_bytes=1 << 13, l3_bytes=1 << 15)
    dag = workload("grp", N=3, H=9, W=11, CI=12, CO=10, k=3, stride=stride, pad=1, groups=2)
    ahead = [s for s in sketches(dag, small, 2) if hints(s)]
    readers = {reader for s in ahead for _, reader, _ in hints(s)}
    assert readers == {"pad", "pad.pack", "conv.acc"}
    assert {buffer for s in ahead for _, _, buffer in hints(s)} == {"X"}
    for sketch in ahead:
        assert list(compiled(dag, sketch, 2, rows=2))


def test_a_product_may_be_computed_for_the_rows_that_a_softmax_needs():
    dag = workload("tbs", N=1, seq=8, heads=2, dim=5)
    found = [s for s in sketches(dag, HOST, 2) if "softmax-tasks" in s.name]
    assert found
    for sketch in found:
        scores = sketch.state.stage("scores")
        assert scores.at is not None
        assert scores.at.stage == "softmax"
        assert list(compiled(dag, sketch, 2, rows=1))


@pytest.mark.parametrize("seq", [7, 12])
def test_keys_of_a_head_are_packed_in_its_task(seq):
    """Those of all heads in a matrix of weights, which all tasks share, are packed once."""
    dag = workload("tbs", N=2, seq=seq, heads=2, dim=5)
    found = [s for s in sketches(dag, HOST, 2) if "softmax-tasks/scores" in s.name and "K@" in s.name]
    places = [s.state.stage("K.pack").at for s in found]
    assert {at and at.stage for at in places} == {None, "softmax"}
    for sketch, at in zip(found, places, strict=True):
        assert at in (None, sketch.state.stage("scores").at)
        assert list(compiled(dag, sketch, 2, rows=3))
    a, b = te.placeholder((2, seq, 5), name="A"), te.placeholder((9, 5), name="B")
    k = te.reduce_axis(5, name="k")
    product = te.compute((2, seq, 9), lambda n, i, j: te.sum(a[n, i, k] * b[j, k], axis=k), name="P")
    shared = [
        s
        for s in sketches(collapse(ComputeDAG(softmax_over(product))), HOST, 2)
        if "-tasks/" in s.name and "B@" in s.name
    ]
    assert shared
    assert all(s.state.stage("B.pack").at is None for s in shared)


@pytest.mark.parametrize("rows", [1, 6, 7, 12])
def test_rows_of_a_task_divide_all_rows(rows):
    for name in ("softmax", "layer_norm", "rms_norm"):
        dag = workload(name, M=rows, N=37)
        (sketch,) = sketches(dag, HOST, 1)
        counts = {prod(x) for x in product(*(p.domain for p in sketch.params if p.kind == "tile"))}
        assert counts == {d for d in range(1, rows + 1) if rows % d == 0}
        assert list(compiled(dag, sketch, 1, rows=3))


def test_a_row_is_divided_by_its_sum_with_one_division():
    (sketch,) = sketches(workload("softmax", M=6, N=64), HOST, 1)
    statements = {s.stage: s for s in analyse(lower(sketch.state)).statements}
    assert statements["softmax"].ops.slots == 1
    x, y = te.placeholder((6, 64), name="X"), te.placeholder((6, 64), name="Y")
    (each,) = sketches(ComputeDAG(te.compute((6, 64), lambda i, j: x[i, j] / y[i, j], name="Z")), HOST, 1)
    assert analyse(lower(each.state)).statements[0].ops.slots > 1


def test_blocks_of_long_reductions_stand_in_records():
    """A factor had to be at most 2**20, and a record with a longer block could not be replayed."""
    dag = collapse(build("nrm", (1, 4096, 1024))[0])
    for sketch in sketches(dag, parse_target("cpu"), 2):
        values = {p.name: p.domain[-1] for p in sketch.params}
        assert len(replay(dag, steps_to_json(sketch.state, values)).stages) == len(sketch.state.stages)


@pytest.mark.parametrize(("name", "settings"), [
    ("softmax", {"M": 8, "N": 35}), ("layer_norm", {"M": 12, "N": 17}), ("rms_norm", {"M": 6, "N": 64}),
])  # fmt: skip
def test_rows_are_taken_a_few_at_a_time(name, settings):
    dag = workload(name, **settings)
    for sketch in sketches(dag, HOST, 2):
        block = next(p for p in sketch.params if p.name.endswith(".rows"))
        assert block.domain == tuple(r for r in range(1, 13) if settings["M"] % r == 0)
        roots = [s for s in sketch.state.stages if s.at is None]
        assert len(roots) == 1  # all else is computed for these rows
        assert list(compiled(dag, sketch, 2, rows=3))


@pytest.mark.parametrize("rows", [2, 8, 32, 64, 96])
def test_blocks_of_rows_are_there_however_few_rows_there_are(rows):
    """Up to 32 rows had one block length after the other on offer, and each was taken row by row."""
    (sketch,) = sketches(workload("rms_norm", M=rows, N=40), HOST, 1)
    first = {p.name: p.domain[0] for p in sketch.params}
    for block in next(p for p in sketch.params if p.name.endswith(".rows")).domain:
        nest, _ = instantiate(lower(sketch.state), {**first, "rms_norm.i.rows": block})
        (squares,) = (s.buffer for s in walk(nest.body) if isinstance(s, Allocate) and s.buffer.name == "squares")
        assert [str(extent) for extent in squares.shape] == [str(block)]


@pytest.mark.parametrize(("rows", "together"), [
    (1, (1,)), (96, (1, 2, 4, 8, 16, 32)), (24, (1, 2, 4, 8)), (75, (1, 5, 25)), (196, (1, 2, 4, 7, 14, 28)),
    (197, (1, 197)), (394, (1, 197)), (1031, (1,)),
])  # fmt: skip
def test_rows_taken_together_are_many_for_numbers_without_powers_of_two(rows, together):
    assert rows_together(rows) == together


def test_a_prime_number_of_rows_is_taken_one_by_one_or_together():
    dag = workload("softmax", M=37, N=20)
    for sketch in sketches(dag, HOST, 1):
        assert [p.domain for p in sketch.params if p.name.endswith(".rows")] == [(1, 37)]
        assert list(compiled(dag, sketch, 1))


@pytest.mark.parametrize(("shape", "axis", "apart"), [((200, 24), 0, True), ((24, 200), 1, False), ((12, 5), 0, False)])
def test_roots_of_the_statistics_of_columns_are_taken_once(shape, axis, apart):
    """Rows compute theirs before the loop over their vectors, and few points are no repetition."""
    x, n, m = te.placeholder(shape, name="X"), shape[axis], shape[1 - axis]
    k = te.reduce_axis(n, name="k")
    squares = te.compute((m,), lambda j: te.sum(x[(k, j) if axis == 0 else (j, k)] * 0.5, axis=k), name="squares")
    scale = te.compute((m,), lambda j: te.rsqrt(squares[j] * squares[j] + 1.0), name="scale")
    dag = collapse(ComputeDAG(te.compute(shape, lambda i, j: x[i, j] * scale[(j, i)[axis]], name="Y")))
    for sketch in sketches(dag, HOST, 1):
        assert ("scale" in (s.name for s in sketch.state.stages)) == apart
    for _ in compiled(dag, sketches(dag, HOST, 1)[0], 1):
        pass


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(300, 203), (3, 257, 131)])
def test_columns_of_what_no_near_cache_holds_are_added_up_in_rows(shape, threads):
    """Whole rows, or a thread's share of them, in few streams; in a cache there are strips of columns as well."""
    x, k = te.placeholder(shape, name="X"), te.reduce_axis(shape[-2], name="k")
    *outer, _, n = shape
    dag = collapse(ComputeDAG(te.compute((*outer, n), lambda *i: te.max(x[(*i[:-1], k, i[-1])], axis=k), name="Y")))
    assert len(sketches(dag, replace(HOST, l2_bytes=1 << 30), threads)) > 1
    (sketch,) = sketches(dag, replace(HOST, l2_bytes=1 << 12), threads)
    assert "thin" in sketch.name
    streams, *_, tiles, width, _ = (p.domain for p in sketch.params)
    assert max(streams) <= 16
    assert tiles[0] * width[-1] * threads >= n > (tiles[0] - 1) * width[-1] * threads
    for _ in compiled(dag, sketch, threads):
        pass


@pytest.mark.parametrize(("length", "blocks"), [(64, False), (130, False), (96, True), (130, True)])
def test_a_product_with_packed_numbers_runs_in_lanes(length, blocks):
    """Two numbers of 4 bits in a byte, and a scale for 32 of them: lanes share bytes and scales. Numbers that share a
    byte are neighbours, or 16 apart in a block of 32."""
    x = te.placeholder((length,), name="X")
    w, s = te.placeholder((3, length // 32 + 1, 16), "uint8", "W"), te.placeholder((3, length // 32 + 1), name="S")
    pairs, k = te.placeholder((3, length // 2), "uint8", "P"), te.reduce_axis(length, name="k")

    def number(j):
        if blocks:
            bits = te.cast(w[j, k // 32, k % 16], "int32") >> te.cast(k % 32 // 16 * 4, "int32") & 15
            return (bits - 8).astype("float32")
        return te.select(te.equal(k % 2, 0), pairs[j, k // 2] % 16, pairs[j, k // 2] // 16).astype("float32") - 8.0

    dag = collapse(ComputeDAG(te.compute((3,), lambda j: te.sum(x[k] * number(j) * s[j, k // 32], axis=k), name="Y")))
    (sketch,) = sketches(dag, parse_target("cpu"), 1)
    assert "Y:lanes" in sketch.name
    for row in compiled(dag, sketch, 1):
        assert row


@pytest.mark.parametrize("rows", [1, 3])
def test_columns_of_packed_numbers_are_lanes(rows):
    """Two columns in a byte: their axis stays whole, and vectors lie along it."""
    x, s = te.placeholder((rows, 12), name="X"), te.placeholder((3, 66), name="S")
    w, k = te.placeholder((12, 33), "uint8", "W"), te.reduce_axis(12, name="k")

    def weight(j):
        bits = te.cast(w[k, j // 2], "int32") >> te.cast(j % 2 * 4, "int32") & 15
        return te.cast(bits, "float32") * s[k // 4, j]

    dag = collapse(ComputeDAG(te.compute((rows, 66), lambda i, j: te.sum(x[i, k] * weight(j), axis=k), name="Y")))
    assert dag.stages[-1].axes[-1].extent == 66
    found = sketches(dag, parse_target("cpu"), 1)
    assert all(f"Y:v{int(rows > 1)}" in f.name for f in found)
    for row in compiled(dag, found[0], 1):
        assert row
