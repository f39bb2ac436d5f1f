"""What calibrates the GPU's cost model and what libraries reach: dry runs with tiny shapes, on PoCL and the processor."""

from __future__ import annotations

import json

import numpy as np
import pytest

from autosched.target import parse_target
from autosched.tuner.search import Search
from experiments.gpu import calibrate, ceilings
from experiments.gpu.calibrate import PROBLEMS, QUICK
from experiments.gpu.ceilings import CEILINGS, Ceiling
from experiments.gpu.drawn import CalibrationProblem, drawn, parts, problem_model
from experiments.gpu.steps import StepRequest
from search_spaces import space


def test_candidates_begin_with_the_search_s_first_pick_and_spread_over_the_ranks():
    of = problem_model(CalibrationProblem("gmm", (1, 128, 128, 128), "bfloat16", 20), parse_target("cuda"))
    found = drawn(of, 0)
    assert len(set(found)) == len(found) == 20
    seconds = [of.model.analytic_latency(c.sketch, np.array([c.values]))[0] for c in found]
    assert seconds[0] <= 1.2 * min(seconds)
    assert max(seconds) > 4 * min(seconds)
    kernels = parts(of, found[0])
    assert sum(k["seconds"] for k in kernels) == pytest.approx(seconds[0])


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("shape", [(1, 4096, 4096, 4096), (1, 17, 4096, 4096), (96, 1024, 64, 1024)])
def test_nothing_random_is_much_better_than_the_draft_s_pick(arch, shape):
    """By its own model, among 20,000 rows of each sketch."""
    of = problem_model(CalibrationProblem("gmm", shape, "bfloat16"), parse_target(f"cuda -arch={arch}"))
    (pick,) = Search(space, of.sketches, of.model, 1).propose(0, 1, "draft")
    rng, seconds = np.random.default_rng(2), []
    for i, sketch in enumerate(of.sketches):
        rows = of.model.legal_rows(i, space.enumerate_grid(sketch, 20_000, rng))
        seconds.append(of.model.analytic_latency(i, rows).min(initial=1.0))
    assert of.model.analytic_latency(pick.sketch, np.array([pick.values]))[0] <= 1.05 * min(seconds)


def test_every_problem_builds_and_has_a_label_of_its_own():
    assert len({p.label for p in PROBLEMS}) == len(PROBLEMS)
    for problem in PROBLEMS:
        assert problem_model(problem, parse_target("cuda")).sketches


def request(step, out, seconds=60.0):
    return StepRequest(step, seconds, True, out)


def test_a_dry_run_writes_a_line_for_each_candidate(tmp_path):
    pytest.importorskip("pyopencl")
    rows = dict(calibrate.measure(request("calibrate", tmp_path)))
    first, *lines = map(json.loads, (tmp_path / calibrate.FILE).read_text().splitlines())
    assert first["target"] == "opencl"
    assert first["card"]["name"]
    assert [x["problem"]["label"] for x in lines if "problem" in x] == [p.label for p in QUICK] == list(rows)
    found = [x for x in lines if "sketch" in x]
    assert len(found) == sum(row["measured"] + sum(row["failures"].values()) for row in rows.values()) > 4
    assert all(x["predicted"] > 0 and ("seconds" in x or "failure" in x) for x in found)
    assert all(len(x["features"]) == len(found[0]["features"]) for x in found)
    assert len(calibrate.summary(rows).splitlines()) == len(QUICK)


def test_summaries_of_parts_and_of_failures():
    assert calibrate.summary({}) == "nothing was measured"
    rows = {"a": {"error": "no device"}, "b": {"measured": 0, "failures": {"spills": 2}}}
    assert calibrate.summary(rows) == "a: no device\nb: nothing was measured; 2 spills"
    assert ceilings.summary({"card": {"name": "x"}}) == "nothing was timed"
    assert not list(ceilings.measure(request("ceilings", None)))
    assert calibrate.predict(request("calibrate", None))
    assert ceilings.predict(request("ceilings", None))


TINY = (
    Ceiling("gemm", (32, 32, 32), "bfloat16"), Ceiling("gemm", (32, 32, 32), "tf32"),
    Ceiling("gemm", (32, 32, 32), "int8"), Ceiling("gemm", (32, 32, 32), "no such type"),
    Ceiling("conv", (2, 8, 8, 4, 8, 3, 1, 1), "float32", "channels_last"),
    Ceiling("attention", (1, 2, 8, 4), "float32"), Ceiling("softmax", (4, 8), "float32"),
    Ceiling("layer_norm", (4, 8), "float32"), Ceiling("copy", (4, 8), "float32"),
)  # fmt: skip


def test_every_kind_of_ceiling_is_measured_and_failures_do_not_end_it():
    torch = pytest.importorskip("torch")

    def clock(runs, is_long):
        assert len(runs) == ceilings.MOST_COPIES
        runs[-1]()
        return 1e-3

    rows = [ceilings.timed(torch, case, clock, "cpu") for case in TINY]
    assert ["error" in row for row in rows] == [c.dtype == "no such type" for c in TINY]
    assert rows[0]["flops_per_s"] == pytest.approx(2 * 32**3 / 1e-3)
    assert rows[0]["bytes"] == 3 * 32 * 32 * 2
    assert {c.kind for c in CEILINGS} == {c.kind for c in TINY}
    labels = [c.label for c in TINY]
    assert len(ceilings.summary(dict(zip(labels, rows, strict=True))).splitlines()) == len(TINY)


def test_operations_of_a_convolution():
    assert Ceiling("conv", (1, 14, 14, 256, 256, 3, 1, 1), "float32").flops == 2 * 14 * 14 * 256 * 256 * 9
