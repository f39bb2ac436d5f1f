"""Draft, legality, features, ranker and their joint: directions, invariances, shapes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from autosched import te
from autosched.errors import ExpressionError
from autosched.ir.closed_forms.program import Program
from autosched.ir.stmt import Func
from autosched.lower import lower
from autosched.schedule import Split, Vectorize, initial_state
from autosched.target import Target, parse_target
from autosched.te import ComputeDAG
from autosched.te.operators.registry import build
from autosched.te.rewrites.collapse import collapse
from cost_model.analysis.statements import analyse
from cost_model.cpu.features import ANALYTIC_COLUMN, FEATURES
from cost_model.cpu.latency import analytic_latency, statement_cost
from cost_model.cpu.machine import CLOCK_HZ, machine
from cost_model.model import CostModel
from cost_model.ranker import FIRST_FIT, Ranker, labels, slope, targets
from experiments import ranking_metrics as metrics
from search_spaces.cpu import sketches
from search_spaces.cpu.domains import ROW_BLOCK
from search_spaces.space import sample
from tests.cost_model import nests
from tests.helpers import copies_of
from tests.te import scans


def model(func: Func, params: Sequence[str], target: Target = nests.TARGET, threads: int = 1) -> CostModel:
    return CostModel([func], [tuple(params)], target, threads)


def matmul_model(n: int = 1024, threads: int = 1, target: Target = nests.TARGET) -> CostModel:
    return model(nests.matmul(n, n, n), nests.MATMUL_PARAMS, target, threads)


def seconds(cost: CostModel, **values: int) -> float:
    return float(cost.analytic_latency(0, np.array([[values[p] for p in cost.sketches[0].params]]))[0])


def population(n: int, seed: int = 0) -> np.ndarray:
    """Rows of the matmul sketch: mc, mr, nc, nr, kc."""
    rng = np.random.default_rng(seed)
    domains = [[1, 2, 4, 8, 16], range(1, 15), [1, 2, 4, 8], [16, 32, 48, 64], [16, 64, 128, 256]]
    return np.stack([rng.choice(list(d), n) for d in domains], 1)


BASE = {"mc": 8, "mr": 12, "nc": 4, "nr": 32, "kc": 256}


@pytest.mark.parametrize(
    "worse",
    [
        {"mr": 1, "nr": 16},  # one accumulator: a chain of dependent additions
        {"mr": 14, "nr": 64},  # 56 accumulators of 32: spills
        {"nr": 8},  # half of every vector idle
        {"mr": 1},  # as many loads as multiply-adds
    ],
)
def test_draft_knows_what_hurts(worse: dict[str, int]) -> None:
    cost = matmul_model()
    assert seconds(cost, **{**BASE, **worse}) > 1.3 * seconds(cost, **BASE)


@pytest.mark.parametrize(("mcpu", "shows"), [("emeraldrapids", True), ("skylake-avx512", False), ("znver4", False)])
def test_loads_that_arithmetic_hides_show_on_a_shared_core(mcpu: str, shows: bool) -> None:
    """24 accumulators in tiles of 6 x 64 and 12 x 32: 10 loads a step, or 14."""
    cost = matmul_model(1008, target=parse_target(f"llvm -mcpu={mcpu}")).sketches[0]
    update = next(c for c in cost.latency.costs if c.statement.stage == "C")
    rows = np.array([[1, 6, 1, 64, 256], [1, 12, 1, 32, 256]])
    wide, narrow = Program([update.block.cycles], cost.params)(rows)[0]
    assert (wide < narrow) == shows


@pytest.mark.parametrize(("mcpu", "cycles"), [("emeraldrapids", 48), ("skylake-avx512", 0), ("znver4", 24)])
def test_sums_of_lanes_are_awaited_once_for_the_rows_that_are_taken_together(mcpu: str, cycles: int) -> None:
    """Softmax of 64 rows: a maximum and a sum of the lanes, for each row or for eight at a time."""
    target = parse_target(f"llvm -mcpu={mcpu}")
    (sketch,) = sketches(collapse(build("sfm", (64, 200))[0]), target, 1)
    cpu, excess = machine(target, 1), []
    costless = replace(cpu, uarch=replace(cpu.uarch, horizontal_reduction=0.0))
    params = tuple(p.name for p in sketch.params)
    for rows in (1, 8):
        ours, others = (
            [c.core for c in analytic_latency(analyse(lower(sketch.state)), which).costs] for which in (cpu, costless)
        )
        values = np.array([[rows if p.name.endswith(ROW_BLOCK) else p.domain[0] for p in sketch.params]])
        excess.append(Program(ours, params)(values).sum() - Program(others, params)(values).sum())
    assert excess == pytest.approx([2 * 64 * cycles, 2 * 8 * cycles])


@pytest.mark.parametrize(("mcpu", "cycles_a_byte"), [("emeraldrapids", 1 / 10), ("znver4", 1 / 33)])
def test_what_comes_from_l3_takes_as_long_as_it_was_measured(mcpu: str, cycles_a_byte: float) -> None:
    """64 MB of a matrix in reach of L3 alone."""
    target = replace(parse_target(f"llvm -mcpu={mcpu}"), l3_bytes=1 << 28)
    update = next(s for s in analyse(nests.row_maximum(4096, 4096)).statements if s.updates)
    cost = statement_cost(update, machine(target, 1))
    moved, cycles = Program([cost.moved[1], cost.memory[1]], nests.ROW_PARAMS)(np.array([[16]]))
    assert cycles / moved == pytest.approx(cycles_a_byte, rel=1e-3)  # of the few bytes written half are free on Zen 4


def ragged_seconds(m: int, n: int) -> float:
    """Of m x n outputs and a long reduction, in tiles of 6 x 16: with AVX2 six cycles a step, a chain takes four."""
    cost = model(nests.matmul(m, n, 256), nests.MATMUL_PARAMS, nests.AVX2)
    return seconds(cost, mc=1, mr=6, nc=1, nr=16, kc=256)


@pytest.mark.parametrize(("rows", "least"), [(7, 1.55), (8, 1.55), (12, 1.95)])
def test_a_short_tile_takes_as_long_as_its_chains(rows: int, least: float) -> None:
    """One row more than a tile is no sixth of it."""
    assert least < ragged_seconds(rows, 64) / ragged_seconds(6, 64) < 2.05


def test_the_last_tile_has_no_more_vectors_than_it_needs() -> None:
    """33 columns are two vectors, two and one, 48 three times two."""
    assert ragged_seconds(6, 33) < 0.93 * ragged_seconds(6, 48)
    assert ragged_seconds(6, 41) == pytest.approx(ragged_seconds(6, 48), rel=0.03)


@pytest.mark.parametrize(("chunk", "loops"), [(64, 1), (32, 2)])
def test_loops_of_one_iteration_cost_nothing(chunk: int, loops: int) -> None:
    """Of 64 x 64 x 64: 16 x 4 tiles in one task; of the reduction's two loops the outer one has one iteration or two."""
    cost = matmul_model(64, target=nests.AVX2)
    update = next(c for c in cost.sketches[0].latency.costs if c.statement.stage == "C")
    found = Program([update.loop_overhead], cost.sketches[0].params)(np.array([[16, 4, 4, 16, chunk]]))
    steps = (6 + 16) + 16 * (6 + 4) + (loops > 1) * 64 * (6 + 2) + loops * 64 * 6
    assert found[0, 0] == pytest.approx(steps)


def test_draft_is_near_peak_for_a_good_tile_and_never_above() -> None:
    cost = matmul_model(1008)
    peak = 2 * 1008**3 / (2 * 16 * 2 * 3e9)  # two pipes of 16 lanes at the nominal clock
    assert peak < seconds(cost, **BASE) < 1.3 * peak
    rows = population(2000)
    assert (cost.analytic_latency(0, rows) >= peak).all()


def test_rows_that_crowd_in_few_sets_of_the_cache_cost_time() -> None:
    """1024 columns are 4096 bytes: twelve rows of a tile share one set of eight ways, six of them do not fill it."""
    twelve, six = BASE, {**BASE, "mr": 6, "nr": 64}
    assert seconds(matmul_model(1024), **twelve) > 1.3 * seconds(matmul_model(1008), **twelve)
    assert seconds(matmul_model(1024), **six) < seconds(matmul_model(1024), **twelve)


def depthwise_seconds(channels: int, columns: int, rows: int) -> float:
    """A tile of 4 vectors of channels and `rows` x `columns` outputs, of 7 x 7 in steps of two, its window's rows or
    columns written out."""
    dag = collapse(build("dep", (1, 14, 14, channels, 3, 2, 1))[0])
    sketch = next(s for s in sketches(dag, nests.TARGET, 1) if "v2-rows/pad@inline" in s.name)
    tile = {"oh.m": 1, "oh.r": rows, "ow.m": 7, "ow.r": columns, "c.m": 8, "c.r": 64}
    steps = {"acc.kh.u": min(rows, 3), "acc.kw.u": min(columns, 3)}
    row = [{**tile, **steps}[p.name.split(".", 1)[1]] for p in sketch.params]
    cost = CostModel([lower(sketch.state)], [tuple(p.name for p in sketch.params)], nests.TARGET, 1)
    return float(cost.analytic_latency(0, np.array([row]))[0])


def test_lines_of_a_block_that_crowd_are_fetched_slowly() -> None:
    """Rows of 14 x 512 channels are 7 pages apart: a column's pixels all lie in the same sets, a row's in two."""
    assert depthwise_seconds(512, columns=1, rows=7) > 1.2 * depthwise_seconds(512, columns=7, rows=1)
    assert depthwise_seconds(480, columns=1, rows=7) < 1.2 * depthwise_seconds(480, columns=7, rows=1)


def test_pieces_of_rows_are_fetched_slowly_from_beyond_the_second_level() -> None:
    """Maxima of 80 x 80 pixels of 64 channels, half a pixel or a whole one after the other: 2 MB in and out.
    Where nobody measured it that is not counted."""

    def seconds_of(order: str, target: Target) -> float:
        dag = collapse(build("max_pool2d", (1, 80, 80, 64, 3, 2, 0))[0])
        sketch = next(s for s in sketches(dag, target, 1) if s.name == f"max_pool:v2-{order}")
        tile = {"oh.m": 3, "oh.r": 3, "ow.m": 39, "ow.r": 1, "c.m": 2, "c.r": 32, "acc.kh.u": 3, "acc.kw.u": 1}
        row = [tile[p.name.split(".", 1)[1]] for p in sketch.params]
        cost = CostModel([lower(sketch.state)], [tuple(p.name for p in sketch.params)], target, 1)
        return float(cost.analytic_latency(0, np.array([row]))[0])

    pieces, rows = (seconds_of(order, nests.ZEN3) for order in ("panel", "rows"))
    assert pieces > 1.15 * rows
    assert seconds_of("panel", nests.TARGET) == pytest.approx(seconds_of("rows", nests.TARGET), rel=0.05)


def test_lanes_picked_from_vectors_cost_less_than_one_by_one() -> None:
    def analytic_latency(step: int) -> float:
        x = te.placeholder((4096 * step,), name="X")
        dag = ComputeDAG(te.compute((4096,), lambda i: x[i * step], name="Y"))
        func = lower(initial_state(dag).apply(Split("Y", "i", (64,)), Vectorize("Y", "i.1")))
        return float(CostModel([func], [()], nests.TARGET, 1).analytic_latency(0, np.zeros((1, 0), np.int64))[0])

    assert analytic_latency(1) < analytic_latency(2) < analytic_latency(3) < analytic_latency(5)
    assert analytic_latency(3) < 0.7 * analytic_latency(5)


def test_more_threads_help_until_tasks_run_out() -> None:
    one, four = matmul_model(threads=1), matmul_model(threads=4)
    even, lonely = BASE, {**BASE, "mc": 128}  # 11 tasks, one task
    assert seconds(four, **even) < 0.4 * seconds(one, **even)
    assert seconds(four, **lonely) > 0.9 * seconds(one, **lonely)


def test_strided_vectors_cost_more() -> None:
    flat = model(nests.elementwise(64, 64), nests.ELEMENTWISE_PARAMS)
    block = flat.sketches[0].latency.costs[0].block
    assert block.lanes == 16
    rows = model(nests.row_maximum(64, 64), nests.ROW_PARAMS)
    assert seconds(rows, t=8) > 0


def test_legality_rules_and_their_names() -> None:
    cost = matmul_model()
    rows = np.array([[8, 12, 4, 32, 256], [8, 14, 4, 32, 256], [8, 15, 4, 32, 256], [8, 14, 4, 64, 256]])
    assert cost.legal(0, rows).tolist() == [True, True, False, False]
    assert cost.broken_rules(0, rows[3]) == ("registers",)
    assert "unrolled C" in cost.broken_rules(0, np.array([1, 512, 1, 64, 16]))
    narrow = matmul_model(target=nests.AVX2)
    assert narrow.legal(0, np.array([[8, 6, 4, 16, 64], [8, 7, 4, 16, 64], [8, 8, 4, 16, 64]])).tolist() == [
        True,
        True,
        False,
    ]


def test_copies_of_long_arithmetic_are_as_few_as_their_instructions_allow() -> None:
    """Weighted means over windows; that of exponentials has six times the instructions for its operands."""
    x, (u, v) = te.placeholder((36, 68), name="X"), (te.reduce_axis(5, "u"), te.reduce_axis(5, "v"))
    most = []
    for weight in (lambda d: d, lambda d: te.exp(d * d * -2.0) * te.exp(te.abs(d))):
        S = te.compute(
            (32, 64), lambda i, j, w=weight: te.sum(w(x[i + u, j + v] - x[i + 2, j + 2]), axis=(u, v)), name="S"
        )
        sketch = sketches(collapse(ComputeDAG(S)), nests.TARGET, 1)[0]
        cost = model(lower(sketch.state), [p.name for p in sketch.params])
        rows = cost.legal_rows(0, sample(sketch, 512, np.random.default_rng(0)))
        most.append(max(copies_of(dict(zip(cost.sketches[0].params, map(int, row), strict=True))) for row in rows))
    assert 4 * most[1] < most[0]


def test_local_buffers_are_limited() -> None:
    cost = model(nests.packed_matmul(64, 65536, 1024), nests.PACKED_PARAMS)
    rows = np.array([[4, 32, 16], [4, 32, 1024]])  # panels of 4 MB and 256 MB
    assert cost.legal(0, rows).tolist() == [True, False]


@pytest.mark.parametrize(
    ("mcpu", "channels", "fewer"),
    [("znver3", 16, True), ("znver3", 512, False), ("haswell", 16, False), ("skylake-avx512", 64, False)],
)
def test_short_reductions_want_few_accumulators(mcpu: str, channels: int, fewer: bool) -> None:
    """Tiles of 4 x 2 vectors or 6 x 2, of a product with as many rows as both divide."""
    target = parse_target(f"llvm -mcpu={mcpu}")
    lanes = target.vector_bytes // 4
    dag = collapse(build("matmul", (48, 2 * lanes, channels))[0])
    sketch = next(s for s in sketches(dag, target, 1) if s.name == "matmul:v1-rows")
    names = [p.name for p in sketch.params]
    cost = CostModel([lower(sketch.state)], [tuple(names)], target, 1)
    sizes = {"j.m": 1, "j.r": 2 * lanes, "k.u": 16 if channels == 16 else 8}

    def drafted(rows: int) -> float:
        values = sizes | {"i.m": 48 // rows, "i.r": rows}
        return seconds(cost, **{p: values[".".join(p.split(".")[-2:])] for p in names})

    assert (drafted(4) < drafted(6)) == fewer


def test_feature_table_and_matrix_agree() -> None:
    cost = matmul_model(threads=4)
    rows = population(5000)
    values = cost.features(0, rows)
    assert values.shape == (5000, len(FEATURES))
    assert values.dtype == np.float32
    assert values.flags.c_contiguous
    assert np.isfinite(values).all()
    assert len({f.name for f in FEATURES}) == len(FEATURES)
    np.testing.assert_allclose(values[:, ANALYTIC_COLUMN], np.log2(cost.analytic_latency(0, rows)), rtol=1e-5)


def test_features_of_one_candidate() -> None:
    cost = model(nests.matmul(1152, 1024, 1024), nests.MATMUL_PARAMS)
    row = cost.features(0, np.array([list(BASE.values())]))[0]
    values = {f.name: v for f, v in zip(FEATURES, row, strict=True)}
    raw = {k: 2.0**v - 1 for k, v in values.items()}
    assert raw["float_mad"] == pytest.approx(1152 * 1024**2, rel=1e-3)
    assert raw["accumulators"] == pytest.approx(24, rel=1e-3)
    assert raw["block_loads"] == pytest.approx(12 + 2, rel=1e-3)
    assert raw["access0_is_update"] == pytest.approx(1)
    assert raw["access1_vector_stride"] == pytest.approx(1)  # B, along the vector loop
    assert raw["access2_vector_stride"] == pytest.approx(0)  # A, a broadcast
    assert raw["lane_waste"] == pytest.approx(1)
    assert raw["tile_waste"] == pytest.approx(1)
    assert values["registers_over"] < 0


def test_every_sketch_fits_the_same_columns() -> None:
    funcs = [
        (nests.matmul(64, 64, 64), nests.MATMUL_PARAMS),
        (nests.packed_matmul(64, 64, 64), nests.PACKED_PARAMS),
        (nests.conv(10, 10, 4, 32, 3, 1), nests.CONV_PARAMS),
        (nests.elementwise(30, 50), nests.ELEMENTWISE_PARAMS),
        (nests.row_maximum(30, 50), nests.ROW_PARAMS),
    ]
    cost = CostModel([f for f, _ in funcs], [p for _, p in funcs], nests.TARGET, 2)
    for i, (_, params) in enumerate(funcs):
        rows = np.full((3, len(params)), 4)
        assert np.isfinite(cost.features(i, rows)).all()
        assert (cost.analytic_latency(i, rows) > 0).all()
        assert cost.legal(i, rows).all()


def test_renaming_axes_changes_nothing() -> None:
    rows = population(200)
    plain = model(nests.matmul(100, 120, 140), nests.MATMUL_PARAMS, threads=4)
    other = model(nests.matmul(100, 120, 140, prefix="zz_"), nests.MATMUL_PARAMS, threads=4)
    np.testing.assert_array_equal(plain.features(0, rows), other.features(0, rows))
    np.testing.assert_array_equal(plain.analytic_latency(0, rows), other.analytic_latency(0, rows))


def test_row_order_and_batch_do_not_matter() -> None:
    cost, rows = matmul_model(), population(9000)
    whole = cost.features(0, rows)
    np.testing.assert_array_equal(whole[::-1][:50], cost.features(0, rows[::-1][:50]))
    np.testing.assert_array_equal(cost.analytic_latency(0, rows)[7:8], cost.analytic_latency(0, rows[7:8]))


def test_score_is_the_draft_until_data_comes_and_learns_from_it() -> None:
    pytest.importorskip("xgboost")
    cost, rows = matmul_model(threads=2), population(1200)
    drafted = cost.analytic_latency(0, rows)
    np.testing.assert_allclose(cost.score(0, rows), -np.log2(drafted))
    truth = drafted * np.where(rows[:, 3] == 48, 2.5, 1.0) * (1 + 0.1 * (rows[:, 1] % 3))
    assert not cost.update([0] * 4, list(rows[:4]), list(truth[:4]))  # too few
    assert cost.update([0] * 196, list(rows[4:200]), [None, *truth[5:200]])
    assert not cost.update([0], [rows[200]], [truth[200]])  # not a fifth more
    test = slice(201, None)
    before = metrics.pairwise_accuracy(-drafted[test], truth[test])
    after = metrics.pairwise_accuracy(cost.score(0, rows[test]), truth[test])
    assert after > max(0.93, before)


def test_a_model_without_its_analytic_latency_learns_from_times_alone() -> None:
    pytest.importorskip("xgboost")
    rows = population(1200)
    func = nests.matmul(100, 120, 140)
    blind = CostModel([func], [nests.MATMUL_PARAMS], nests.TARGET, 2, analytic=False)
    assert not blind.score(0, rows).any()  # knows nothing
    truth = CostModel([func], [nests.MATMUL_PARAMS], nests.TARGET, 2).analytic_latency(0, rows)
    assert blind.update([0] * 400, list(rows[:400]), list(truth[:400]))
    assert metrics.pairwise_accuracy(blind.score(0, rows[400:]), truth[400:]) > 0.8


def test_update_checks_its_lengths_and_survives_failures_only() -> None:
    cost, rows = matmul_model(), population(FIRST_FIT)
    assert not cost.update([0] * FIRST_FIT, list(rows), [None] * FIRST_FIT)
    assert np.isfinite(cost.score(0, rows)).all()
    with pytest.raises(ExpressionError, match="as many"):
        cost.update([0], list(rows), [1.0])


def test_ranker_is_deterministic_and_refits_by_a_fifth() -> None:
    pytest.importorskip("xgboost")
    x = matmul_model().features(0, population(100))
    y = labels(np.exp(np.sin(np.arange(100.0))), np.zeros(100, np.int64))
    first, second = Ranker(), Ranker()
    for ranker in (first, second):
        ranker.fit(x, y, np.zeros(100, np.int64))
    np.testing.assert_array_equal(first.predict(x), second.predict(x))
    assert [first.should_refit(n) for n in (100, 119, 120)] == [False, False, True]
    assert Ranker().should_refit(FIRST_FIT)
    assert not Ranker().should_refit(FIRST_FIT - 1)


def test_targets_are_logarithms_within_a_workload_and_mark_failures() -> None:
    groups = np.array([0, 0, 0, 1])
    y = labels(np.array([1.0, 2.0, np.inf, 5.0]), groups)
    assert y.tolist() == [1.0, 0.5, 0.0, 1.0]
    assert targets(y, groups).tolist() == [0.0, -1.0, -2.0, 0.0]


def test_slope_is_that_within_groups() -> None:
    sums, groups = np.array([0.0, 2.0, 104.0, 100.0]), np.array([0, 0, 1, 1])
    assert slope(sums, np.array([5.0, 6.0, 2.0, 0.0]), groups) == pytest.approx(0.5)
    assert slope(sums, np.zeros(4), groups) == 1.0  # all as fast
    assert slope(np.zeros(4), sums, groups) == 1.0  # all the same
    assert slope(sums, -sums, groups) == 1.0  # nobody can want the opposite order


def learnable(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features of which two decide the time, and the logarithm of that, base 2."""
    x = np.random.default_rng(seed).random((n, len(FEATURES))).astype(np.float32)
    return x, x[:, 0] + 2 * (x[:, 1] > 0.5) + x[:, ANALYTIC_COLUMN]


def test_workloads_in_any_order_with_failures_and_without_a_valid_program() -> None:
    """Groups that alternate, are called by any number, and one that only failed."""
    pytest.importorskip("xgboost")
    x, times = learnable(300)
    groups = np.resize([7, 3, 5], 300)
    seconds = np.where((groups == 5) | (x[:, 2] > 0.9), np.inf, np.exp2(times + groups))
    judge = Ranker()
    judge.fit(x, labels(seconds, groups), groups)
    fresh, truth = learnable(400, seed=1)
    fails = fresh[:, 2] > 0.9
    assert judge.predict(fresh[fails]).mean() < judge.predict(fresh[~fails]).mean()
    fresh, truth = fresh[~fails], truth[~fails]
    assert metrics.pairwise_accuracy(judge.predict(fresh), np.exp2(truth)) > 0.9
    assert metrics.pairwise_accuracy(-fresh[:, ANALYTIC_COLUMN], np.exp2(truth)) < 0.75
    nothing = Ranker()
    nothing.fit(x[:9], np.zeros(9), np.zeros(9, np.int64))
    np.testing.assert_array_equal(nothing.predict(x), -x[:, ANALYTIC_COLUMN])


@pytest.mark.parametrize("n", [FIRST_FIT, 64, 400])
def test_scores_are_logarithms_of_speed(n: int) -> None:
    """Sums that are right in order alone can be as far apart as they like; a search adds to scores."""
    pytest.importorskip("xgboost")
    x, times = learnable(n)
    judge, one = Ranker(), np.zeros(n, np.int64)
    judge.fit(x, labels(np.exp2(times), one), one)
    assert slope(judge.predict(x), -times, one) == pytest.approx(1.0, rel=1e-3)


def test_only_the_order_of_times_is_learned() -> None:
    """A time that was disturbed counts no more the larger it is."""
    pytest.importorskip("xgboost")
    x, times = learnable(64)
    sums, one = [], np.zeros(64, np.int64)
    for stretched in (times, np.where(times > np.median(times), 2.0 * times, times)):
        judge = Ranker()
        judge.fit(x, labels(np.exp2(stretched), one), one)
        sums.append(judge.predict(x))
    np.testing.assert_allclose(sums[0] / np.ptp(sums[0]), sums[1] / np.ptp(sums[1]), rtol=1e-4, atol=1e-6)


def test_equal_times_teach_nothing() -> None:
    pytest.importorskip("xgboost")
    x, _ = learnable(FIRST_FIT)
    judge, one = Ranker(), np.zeros(FIRST_FIT, np.int64)
    judge.fit(x, np.ones(FIRST_FIT), one)
    np.testing.assert_allclose(judge.predict(x), -x[:, ANALYTIC_COLUMN], rtol=1e-5)


def test_metrics() -> None:
    times = np.array([1.0, 2.0, 3.0, 4.0])
    assert metrics.pairwise_accuracy(-times, times) == 1.0
    assert metrics.pairwise_accuracy(times, times) == 0.0
    assert metrics.pairwise_accuracy(np.zeros(4), times) == 0.5
    assert metrics.pairwise_accuracy(np.array([1.0, 2.0, 0.0, -1.0]), times, apart=2.0) == 1.0  # 3 and 4 against 1
    assert metrics.recall_at_k(-times, times, 2) == 1.0
    assert metrics.recall_at_k(np.array([0.0, 3, 2, 1]), times, 2) == 0.5
    assert np.isnan(metrics.pairwise_accuracy(times[:1], times[:1]))


def test_throughput_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    cost, rows = matmul_model(threads=2), population(40_000)
    for judge in (cost.legal, cost.analytic_latency, cost.features):
        judge(0, rows[:10])
    start = time.perf_counter()
    for judge in (cost.legal, cost.analytic_latency, cost.features):
        judge(0, rows)
    rate = len(rows) / (time.perf_counter() - start)
    with capsys.disabled():
        print(f"\nchecked, drafted and featurised: {rate:,.0f} candidates/s")


def test_a_recurrence_is_linear_work_and_waits_for_itself():
    """Twice the positions take twice as long; lines in lanes are faster than one after the other."""
    target = parse_target("llvm -mcpu=znver4")

    def by_name(shape: tuple[int, int]) -> dict[str, float]:
        found = sketches(collapse(ComputeDAG(scans.smoothed(shape, 1))), target, 1)
        costs = ((s, model(lower(s.state), [p.name for p in s.params], target)) for s in found)
        rows = {s.name: np.array([[p.domain[0] for p in s.params]]) for s in found}
        return {s.name: float(cost.analytic_latency(0, rows[s.name])[0]) for s, cost in costs}

    short, long = by_name((64, 256)), by_name((64, 512))
    for name, seconds_of in short.items():
        assert 1.7 < long[name] / seconds_of < 2.3
    assert short["Y:lines"] > 3 * short["Y:blocks"]
    chain = 2 * machine(target, 1).uarch.fma_latency  # a product and a multiply-add
    assert short["Y:lines"] >= 64 * 256 * chain / CLOCK_HZ
