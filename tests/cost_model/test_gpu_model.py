"""The cost model of GPUs as a whole: what is slower is said to be slower, features, what the search would find, ranker."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from autosched import te
from autosched.ir.closed_forms.program import Program
from autosched.lower import lower
from autosched.target import parse_target
from autosched.te import ComputeDAG
from autosched.te.operators.registry import WORKLOADS, build
from autosched.te.rewrites.collapse import collapse
from cost_model.gpu.features import GPU_FEATURES
from cost_model.gpu.machine import ARITHMETIC_LATENCY
from cost_model.model import CostModel
from experiments import ranking_metrics as metrics
from search_spaces.gpu import sketches
from search_spaces.space import Population, Sketch, enumerate_grid
from tests.search_spaces.gpu_candidates import draw

TARGET = parse_target("cuda -arch=sm_90")
PEAK = 132 * 128 * 2 * 1.98e9  # flop/s of the target
GMM = "matmul:X@shared-Y@shared"


@lru_cache(maxsize=4)
def model_of(name: str, shape: tuple[int, ...] | None = None) -> tuple[tuple[Sketch, ...], CostModel]:
    found = sketches(collapse(build(name, shape)[0]), TARGET)
    names = [tuple(p.name for p in s.params) for s in found]
    return found, CostModel([lower(s.state) for s in found], names, TARGET, 1)


def rows_of(sketch: Sketch, n: int) -> Population:
    return enumerate_grid(sketch, n, np.random.default_rng(0)) if sketch.params else np.zeros((1, 0), np.int64)


def gmm(size: int, **values: int) -> tuple[CostModel, int, npt.NDArray[np.int64]]:
    """A good candidate of a square product, with other values for some parameters."""
    found, model = model_of("gmm", (1, size, size, size))
    i = [s.name for s in found].index(GMM)
    good = {"i.v": 2, "i.t": 16, "i.s": 4, "j.v": 2, "j.t": 16, "j.s": 4, "acc.k.c": 2, "acc.k.u": 8, "acc.stages": 1}
    good |= {"X.shared.w": 4, "Y.shared.w": 4}
    assert not values.keys() - good.keys()
    plain = {p.name.removeprefix("matmul."): p.domain[0] for p in found[i].params}  # what is not named: none of it
    assert good.keys() <= plain.keys()
    return model, i, np.array([list({**plain, **good, **values}.values())])


def seconds(size: int, **values: int) -> float:
    model, i, row = gmm(size, **values)
    return float(model.analytic_latency(i, row)[0])


def feature(size: int, name: str, **values: int) -> float:
    model, i, row = gmm(size, **values)
    program = model.sketches[i].feature_program
    return float(program(row)[[f.name for f in GPU_FEATURES].index(name), 0])


def test_what_is_known_of_a_good_product() -> None:
    model, i, row = gmm(2048)
    assert model.legal(i, row).all()
    assert feature(2048, "threads") == 256
    assert feature(2048, "blocks") == 256
    assert feature(2048, "vthreads") == 4
    assert feature(2048, "shared_bytes") == 2 * 4 * 16 * 128
    assert feature(2048, "accumulators") == 64
    assert feature(2048, "chains") == 64
    assert feature(2048, "barriers") == 2 * 2048 / 16
    assert feature(2048, "unrolled") == 8 * 64
    assert feature(2048, "waste") == 1
    assert 1 <= seconds(2048) / (2 * 2048**3 / PEAK) < 2


@pytest.mark.parametrize("tiles", [{"i.s": 8, "i.t": 16}, {"i.v": 2, "i.s": 8, "i.t": 8}])
def test_large_register_tiles_are_legal(tiles: dict[str, int]) -> None:
    model, i, row = gmm(4096, **tiles)
    assert model.broken_rules(i, row[0]) == ()


def test_slower_is_slower() -> None:
    best = seconds(2048)
    assert seconds(2048, **{"X.shared.w": 1, "Y.shared.w": 1}) > best  # more instructions for the same copies
    assert seconds(2048, **{"j.v": 1, "j.t": 2, "i.t": 32, "j.s": 8}) > best  # global memory in short pieces
    assert seconds(2048, **{"i.s": 1, "j.s": 1}) > 1.3 * best  # less reuse in registers
    assert seconds(2048, **{"i.t": 2, "j.t": 16, "i.s": 8}) > best  # one warp cannot hide anything
    assert seconds(2048, **{"acc.k.c": 1, "acc.k.u": 1}) > best  # two barriers for each step


def test_large_products_store_the_operand_along_the_reduction_transposed() -> None:
    """Registers of vectors along it would be in the same bank; measured on an H200."""
    found, model = model_of("gmm", (1, 4096, 4096, 4096))
    best = {}
    for name in (GMM, "matmul:X@shared.T-Y@shared"):
        i = [s.name for s in found].index(name)
        rows = rows_of(found[i], 20000)
        best[name] = model.analytic_latency(i, rows[model.legal(i, rows)]).min()
    assert best["matmul:X@shared.T-Y@shared"] < best[GMM]


@pytest.mark.parametrize("size", [1024, 2048, 4096])
def test_an_iteration_of_a_pipeline_costs_instructions(size: int) -> None:
    """So chunks of 16 steps are better than those of 8; and copies by the memory system better than by the threads."""
    assert seconds(size, **{"acc.k.c": 1, "acc.stages": 3}) > seconds(size, **{"acc.k.c": 2, "acc.stages": 3})
    assert seconds(size, **{"acc.k.c": 4, "acc.stages": 1}) > seconds(size, **{"acc.k.c": 4, "acc.stages": 3})


def test_one_block_more_than_a_round_costs_a_round() -> None:
    """Latency falls in steps of a round of blocks, not in proportion."""
    few = feature(1024, "waves", **{"i.s": 8, "i.t": 16})
    assert few < 1  # 32 blocks for 132 multiprocessors
    assert seconds(1024, **{"i.s": 8, "i.t": 16}) > 1.5 * seconds(1024)
    assert feature(2048, "wave_efficiency") < 1


@pytest.mark.parametrize(("name", "most"), [("layer_norm", 8), ("softmax", 20)])
def test_what_is_the_same_in_a_row_is_computed_once(name: str, most: float) -> None:
    """Division by a row's sum is a product, its mean and deviation take no slots of an element."""
    found, model = model_of(name, (512, 512))
    for i, sketch in enumerate(found):
        cost = model.sketches[i].latency.kernels[0].costs[-1]  # type: ignore[union-attr]
        forms = Program([cost.slots, cost.work.executions], [p.name for p in sketch.params])
        slots, executions = forms(rows_of(sketch, 4))
        assert cost.work.statement.stage == name
        assert (slots <= most * executions).all()


def test_what_threads_of_a_row_add_up_takes_few_registers() -> None:
    found, model = model_of("layer_norm", (512, 4096))
    row = np.array([[1024 if p.kind == "thread" else p.domain[0] for p in found[0].params]])
    registers = model.sketches[0].latency.kernels[0].registers  # type: ignore[union-attr]
    assert Program([registers], [p.name for p in found[0].params])(row)[0, 0] <= 40  # ptxas: 32


def test_bank_conflicts_cost() -> None:
    found, model = model_of("transpose", (1024, 1024))
    i = next(n for n, s in enumerate(found) if "shared" in s.name)
    names = [p.name for p in found[i].params]
    rows = rows_of(found[i], 4000)
    rows = rows[model.legal(i, rows)]
    pad = next(n for n, name in enumerate(names) if name.endswith("pad"))
    narrow = [f.name for f in GPU_FEATURES].index("shared_traffic")
    best = {}
    for gap in (0, 1):
        chosen = rows[rows[:, pad] == gap]
        best[gap] = model.sketches[i].feature_program(chosen)[narrow].min()
    assert best[1] <= best[0]


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_features_of_every_operator_are_finite(name: str) -> None:
    found, model = model_of(name)
    n_legal = 0
    for i, sketch in enumerate(found[:4]):
        rows = rows_of(sketch, 300)
        rows = rows[model.legal(i, rows)]
        if len(rows):
            n_legal += len(rows)
            assert np.isfinite(model.features(i, rows)).all(), sketch.name
            assert (model.analytic_latency(i, rows) > 2e-6).all(), sketch.name
    assert n_legal


def test_the_table_of_features_says_what_and_in_which_unit() -> None:
    assert len({f.name for f in GPU_FEATURES}) == len(GPU_FEATURES) > 120
    assert all(f.name and f.unit and f.formula for f in GPU_FEATURES)
    names = {f.name for f in GPU_FEATURES}
    wanted = {
        "blocks", "threads", "vthreads", "occupancy", "waves", "wave_efficiency", "registers", "shared_bytes",
        "barriers", "chains", "unrolled", "requests", "shared_traffic", "l2_bytes", "dram_bytes", "l2_intensity",
        "dram_intensity", "shared_intensity", "access0_sectors", "access1_wavefronts", "fill0_width",
    }  # fmt: skip
    assert wanted <= names


@pytest.mark.parametrize("size", [1024, 2048, 4096])
def test_the_draft_finds_what_experts_choose(size: int) -> None:
    """Among random rows: both operands through shared memory, tiles of 64 and more, short chunks, many multiply-adds
    for each word of shared memory, and an estimate between one and two times the roofline (a small one: 2.2)."""
    found, model = model_of("gmm", (1, size, size, size))
    best: tuple[float, int, Any] = (np.inf, 0, None)
    for i, sketch in enumerate(found):
        rows = enumerate_grid(sketch, 6000, np.random.default_rng(i))
        rows = rows[model.legal(i, rows)]
        times = model.analytic_latency(i, rows)
        if len(times) and times.min() < best[0]:
            best = (float(times.min()), i, rows[times.argmin()])
    latency, i, row = best
    assert 1.0 <= latency / (2 * size**3 / PEAK) <= (2.2 if size == 1024 else 2.0)
    assert "X@shared" in found[i].name
    assert "Y@shared" in found[i].name
    values = {p.name: int(v) for p, v in zip(found[i].params, row, strict=True)}
    stem = "matmul.rf" if "rf" in found[i].name else "matmul"
    tile = [
        int(np.prod([v for n, v in values.items() if n in {f"{stem}.{axis}.{level}" for level in "vts"}]))
        for axis in "ij"
    ]
    assert min(tile) >= 32
    assert max(tile) >= 64
    chunk = np.prod([v for n, v in values.items() if n.startswith(f"{stem}.acc.k") and n[-2:] in (".c", ".u")])
    assert 4 <= chunk <= 64
    costs = model.sketches[i].latency.kernels  # type: ignore[union-attr]
    warps = Program([costs[0].occupancy * costs[0].kernel.warps(32)], list(values))(row[None, :])[0, 0]
    assert warps >= 4  # one for each scheduler


def test_the_ranker_learns_what_the_draft_does_not_know() -> None:
    pytest.importorskip("xgboost")
    found, _ = model_of("gmm", (1, 1024, 1024, 1024))
    i = [s.name for s in found].index(GMM)
    fresh = CostModel([lower(found[i].state)], [tuple(p.name for p in found[i].params)], TARGET, 1)
    rows = rows_of(found[i], 3000)
    rows = rows[fresh.legal(0, rows)][:600]
    drafted = fresh.analytic_latency(0, rows)
    np.testing.assert_allclose(fresh.score(0, rows), -np.log2(drafted))
    chunk = [p.name for p in found[i].params].index("matmul.acc.k.u")
    truth = drafted * np.where(rows[:, chunk] >= 4, 2.0, 1.0)
    assert fresh.update([0] * 300, list(rows[:300]), [None, *truth[1:300]])
    before = metrics.pairwise_accuracy(-drafted[300:], truth[300:])
    after = metrics.pairwise_accuracy(fresh.score(0, rows[300:]), truth[300:])
    assert after > max(0.9, before)


def test_throughput_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    found, model = model_of("gmm", (1, 1024, 1024, 1024))
    i = [s.name for s in found].index(GMM)
    rows = rows_of(found[i], 30_000)
    for judge in (model.legal, model.analytic_latency, model.features):
        judge(i, rows[:10])
    start = time.perf_counter()
    legal = rows[model.legal(i, rows)]
    model.analytic_latency(i, legal)
    model.features(i, legal)
    rate = len(rows) / (time.perf_counter() - start)
    with capsys.disabled():
        print(f"\nchecked, and if legal drafted and featurised, on a GPU: {rate:,.0f} candidates/s")


def chained(length: int, products: int) -> ComputeDAG:
    """A recurrence with so many products from one position to the next."""
    x = te.placeholder((length, 256), name="X")

    def value(y, i, j):
        result = y[i - 1, j]
        for _ in range(products):
            result = result * x[i, j]
        return result

    return ComputeDAG(te.scan((length, 256), value, init=1.0, name="Y"))


def test_the_positions_of_a_recurrence_wait_for_each_other():
    cases = [collapse(chained(*n)) for n in ((2048, 1), (4096, 1), (2048, 150))]
    short, long, deep = (one.best_s for dag in cases for one in draw(dag, TARGET, 100))
    assert 1.8 < long / short < 2.2
    assert deep >= 2048 * 150 * ARITHMETIC_LATENCY / 2e9
    assert deep > 2 * short
