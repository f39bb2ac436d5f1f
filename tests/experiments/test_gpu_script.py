"""The scoreboard for GPUs: order, budget, resuming, the table; with answers put in, and once on PoCL."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from autosched.errors import DeviceError, UsageError
from autosched.measure.gpu.rates import Rates
from autosched.target import parse_target
from autosched.te.operators.registry import WORKLOADS, build
from experiments.arena import Lost, ProcessArena
from experiments.gpu import board as script
from experiments.gpu import cases as suite
from experiments.gpu.board import RESERVE_S, Budget, hold_contest
from experiments.gpu.ledger import GpuLedger
from experiments.gpu.table import HEADER, LARGEST_CASE, cells, rates, ratio, report, totals, verdicts
from experiments.tuning import BenchmarkCase, parse_cases
from tests.helpers import python

ROOT = Path(__file__).resolve().parents[2]
GMM, SFM = parse_cases("gmm:1x1024x1024x1024,sfm:4096x4096")


class Clock:
    """Seconds that pass only when something is done."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def entry(seconds: float, right: bool = True) -> dict[str, object]:
    return {"right": right, "seconds": seconds, "ci": [seconds, seconds]}


def answer(ours: float = 1e-4, **peers: float) -> dict[str, object]:
    return {
        "flops": 2e9, "bytes": 12e6, "peak_gflops": 40_000.0, "copy_bandwidth": 4e12, "ours": entry(ours),
        "peers": {name.replace("_", "."): entry(seconds) for name, seconds in peers.items()},
    }  # fmt: skip


TUNED = {"best_s": 1e-4, "trials": 64, "wall_s": 30.0, "failures": {"wrong_result": 1, "spills": 3}}


# Cases


def test_every_operator_is_verified_and_builds():
    assert {check.workload for check in suite.CHECKS} == set(WORKLOADS)
    assert len({check.label for check in suite.CHECKS}) == len(suite.CHECKS)
    for check in suite.CHECKS:
        build(check.workload, check.shape, check.settings)


def test_the_cases_cover_the_list_and_build():
    labels = [case.label for case in suite.CASES]
    assert len(set(labels)) == len(labels)
    single = {c.shape[1] for c in suite.CASES if c.workload == "gmm" and c.dtype is None}
    assert single == {512, 1024, 2048, 4096}
    assert labels[0] == LARGEST_CASE
    assert {f"c2d:{i}" for i in range(4)} <= set(labels)
    for name in ("cbr", "dep", "tbg", "sfm", "nrm", "grp", "dil", "t2d", "cap"):
        assert set(WORKLOADS[name].shapes) <= {c.shape for c in suite.CASES if c.workload == name}
    for case in (*suite.CASES, *suite.QUICK):
        build(case.workload, case.shape, dtype=case.dtype)


# Time


def test_the_budget_shares_what_is_left():
    clock = Clock()
    budget = Budget(1.0, clock)
    assert budget.left_s == 60.0 - RESERVE_S
    assert budget.share(20.0, 5.0) == 20.0
    clock.now += 40.0
    assert budget.share(20.0, 5.0) == pytest.approx(12.0)
    assert budget.share(20.0, 5.0, kept_s=7.0) == pytest.approx(5.0)
    assert budget.share(20.0, 5.0, kept_s=8.0) is None
    clock.now += 100.0
    assert budget.left_s == 0.0


# The order of things, and going on


class Run:
    """A run with scripted answers that take scripted times."""

    def __init__(self, folder: Path, *, cases=(GMM, SFM), minutes=10.0, tune_s=30.0, hold_s=20.0, answers=None) -> None:
        self.clock = Clock()
        self.ledger = GpuLedger(folder / "cuda.json", "cuda", "a device")
        database = folder / "records.db"
        database.touch()
        names = ("torch", "torch.compile")
        self.plan = script.GpuRun(parse_target("cuda"), cases, (), 64, 4, names, database, 0)
        self.budget = Budget(minutes, self.clock)
        self.tune_s, self.hold_s, self.answers = tune_s, hold_s, answers or {}
        self.done: list[str] = []

    def tune(self, case, seconds):
        self.clock.now += min(self.tune_s, seconds)
        self.done.append(f"tune {case.workload}")
        return self.answers.get(f"tune {case.workload}", TUNED)

    def hold(self, case, names, seconds):
        self.clock.now += min(self.hold_s, seconds)
        self.done.append(f"{case.workload} {'+'.join(names)}")
        return self.answers.get(self.done[-1], answer(**{name.replace(".", "_"): 2e-4 for name in names}))

    def go(self) -> list[str]:
        script.run_cases(self.plan, self.ledger, self.budget, self.tune, self.hold)
        return self.done


def test_slow_peers_come_when_every_case_has_a_result(tmp_path):
    done = Run(tmp_path).go()
    assert done == [
        "tune gmm",
        "gmm torch",
        "tune sfm",
        "sfm torch",
        "gmm torch+torch.compile",
        "sfm torch+torch.compile",
    ]


def test_a_search_that_time_would_cut_short_is_left_for_the_next_call(tmp_path):
    assert Run(tmp_path, minutes=(RESERVE_S + script.LEAST_TUNING_S + script.LEAST_CONTEST_S - 1) / 60).go() == []
    run = Run(tmp_path, minutes=(RESERVE_S + script.LEAST_TUNING_S + script.LEAST_CONTEST_S + 1) / 60)
    assert run.go() == ["tune gmm", "gmm torch"]


def test_a_second_call_goes_on_where_the_first_ended(tmp_path):
    assert Run(tmp_path, minutes=1.0).go() == ["tune gmm", "gmm torch"]
    second = Run(tmp_path)
    assert second.go()[:2] == ["tune sfm", "sfm torch"]
    assert Run(tmp_path).go() == []


def test_what_was_tuned_and_not_compared_is_not_tuned_again(tmp_path):
    first = Run(tmp_path, cases=(GMM,))

    def killed(*_):
        raise KeyboardInterrupt

    first.hold = killed
    with pytest.raises(KeyboardInterrupt):
        first.go()
    assert json.loads(first.ledger.path.read_text())["cases"][GMM.label]["tuning"] == TUNED | {
        name: None for name in script.KEPT if name not in TUNED
    }
    assert Run(tmp_path, cases=(GMM,)).go()[0] == "gmm torch"


def test_a_case_that_fails_is_tried_twice_and_holds_nothing_up(tmp_path):
    failing = {"tune gmm": {"error": {"class": "DeviceError", "message": "lost"}}}
    for _ in range(2):
        run = Run(tmp_path, answers=failing)
        assert run.go()[0] == "tune gmm"
        assert run.ledger.cases[GMM.label]["error"] == "tuning: lost"
        assert "ours" in run.ledger.cases[SFM.label]
    assert Run(tmp_path, answers=failing).go() == []


def test_a_contest_that_fails_is_tried_twice(tmp_path):
    failing = {"gmm torch": {"error": "lost"}}
    assert Run(tmp_path, cases=(GMM,), answers=failing).go() == ["tune gmm", "gmm torch"]
    assert Run(tmp_path, cases=(GMM,), answers=failing).go() == ["gmm torch"]
    assert Run(tmp_path, cases=(GMM,), answers=failing).go() == []


def test_slow_peers_that_fail_leave_the_first_results_alone(tmp_path):
    run = Run(tmp_path, cases=(GMM,), answers={"gmm torch+torch.compile": {"error": "no answer in time"}})
    run.go()
    row = run.ledger.cases[GMM.label]
    assert row["peers"]["torch"]["seconds"] == 2e-4
    assert row["peers"]["torch.compile"] == {"right": False, "reason": "no answer in time"}
    assert "error" not in row


def test_operators_are_verified_once_and_only_while_there_is_time(tmp_path):
    checks = suite.CHECKS[:6]
    run = Run(tmp_path)
    plan = script.GpuRun(run.plan.target, (), checks, 64, 4, (), run.plan.database, 0)
    seen: list[str] = []

    def verify_one(check):
        seen.append(check.label)
        return {"ok": True, "candidates": 4, "right": 4, "failures": {}, "messages": []}

    script.run_checks(plan, run.ledger, lambda: 60.0 if len(seen) < 2 else 0.0, verify_one)
    assert set(run.ledger.checks) == set(seen)
    assert 2 <= len(seen) < 6
    script.run_checks(plan, run.ledger, lambda: 60.0, verify_one)
    assert len(seen) == 6
    assert set(run.ledger.checks) == {check.label for check in checks}


def test_results_of_another_device_or_file_are_refused(tmp_path):
    ledger = GpuLedger(tmp_path / "cuda.json", "cuda", "a device")
    ledger.record("checks", "gmm", {"ok": True})
    assert GpuLedger(ledger.path, "cuda", "a device").checks == {"gmm": {"ok": True}}
    with pytest.raises(UsageError, match="holds results of a device, but this is another"):
        GpuLedger(ledger.path, "cuda", "another")
    ledger.path.write_text("[]")
    with pytest.raises(UsageError, match="holds no results of this script"):
        GpuLedger(ledger.path, "cuda", "a device")


# The process of the contests

ECHO = """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    for name in request["peers"]:
        print(json.dumps({"stage": name}), flush=True)
        if name == "dies":
            sys.exit("dies for a reason")
        if name == "hangs":
            import time
            time.sleep(60)
    print(json.dumps({"row": {"peers": {name: {"right": True} for name in request["peers"]}}}), flush=True)
"""


def arena_of(tmp_path, text=ECHO):
    return ProcessArena([sys.executable, "-c", text], tmp_path / "log")


def hold(arena, names, tmp_path, deadline_s=20.0):
    return hold_contest(arena, GMM, tmp_path / "r.db", names, rounds=1, sample_s=0.1, deadline_s=deadline_s)


def test_a_peer_that_dies_is_left_out_and_named(tmp_path):
    arena = arena_of(tmp_path)
    row = hold(arena, ["torch", "dies", "triton"], tmp_path)
    assert list(row["peers"]) == ["torch", "dies", "triton"]
    assert row["peers"]["torch"] == row["peers"]["triton"] == {"right": True}
    assert "dies for a reason" in row["peers"]["dies"]["reason"]
    assert hold(arena, ["torch"], tmp_path)["peers"] == {"torch": {"right": True}}
    arena.close()


def test_a_peer_that_hangs_is_left_out(tmp_path):
    arena = arena_of(tmp_path)
    row = hold(arena, ["hangs"], tmp_path, deadline_s=4.0)
    assert row["peers"]["hangs"] == {"right": False, "reason": "no answer in time, at hangs"}
    arena.close()


@pytest.mark.parametrize("text", ["print('no json')", "print('[1]')", "raise SystemExit('broken')", "print('{}')"])
def test_a_process_that_fails_before_any_peer_is_an_error(tmp_path, text):
    arena = arena_of(tmp_path, text)
    with pytest.raises(Lost):
        arena.ask({}, 10.0)
    assert "error" in hold(arena, ["torch"], tmp_path)


# The table


def test_rows_and_totals():
    rows = {
        GMM.label: {"workload": "gmm", "tuning": TUNED, **answer(1e-4, torch=8e-5, torch_compile=2e-4, triton=4e-5)},
        SFM.label: {"workload": "sfm", "tuning": TUNED, **answer(4e-6, torch=8e-6)},
        "dep 1": {"workload": "dep", "error": "tuning: no candidate"},
        "nrm 1": {"workload": "nrm", **answer(1e-4, torch=1e-4), "ours": {"right": False, "reason": "C[0] is 1"}},
    }
    rows[GMM.label]["peers"]["triton"]["right"] = False
    lines = [cells(label, row) for label, row in rows.items()]
    assert {len(line) for line in lines} == {len(HEADER)}
    named = dict(zip(HEADER, lines[0], strict=True))
    assert (named["ours us"], named["GFLOP/s"], named["of peak"], named["of copy"]) == (
        "100.0",
        "20000",
        "0.50",
        "0.03",
    )
    assert (named["torch us"], named["compile us"], named["triton us"], named["vs torch"]) == (
        "80.0",
        "200.0",
        "-",
        "0.80",
    )
    assert named["note"] == "triton beyond the error bound"
    assert lines[2][-1] == "tuning: no candidate"
    assert lines[3][1] == "-"
    assert lines[3][-1] == "ours: C[0] is 1"
    assert ratio(rows[SFM.label]) == pytest.approx(2.0)
    assert rates(rows[SFM.label])["of_copy"] == pytest.approx(0.75)

    checks = {"a": {"ok": True, "right": 4}, "b": {"ok": False, "right": 1}}
    found = totals(checks, rows)
    assert found["gmm_vs_torch_geomean"] == pytest.approx(0.8)
    assert found["products_vs_best"] == {"float32": pytest.approx(0.8)}
    assert found["largest_vs_torch"] is None
    assert found["all_vs_torch_geomean"] == pytest.approx((0.8 * 2.0) ** 0.5)
    assert found["memory_bound_of_copy_worst"] == pytest.approx(0.75)
    assert found["wrong_trials"] == 2
    assert found["not_verified"] == ["b"]
    goals = verdicts(found, 2)
    assert goals[0] == "operators verified: 1 of 2, 5 candidates right; not: b"
    assert goals[1].endswith("0.80 (goal >= 1.0): MISSED")
    assert goals[2].endswith("not measured")
    assert goals[3].endswith("(float32 0.80): 0.80 (goal >= 1.0): MISSED")
    assert goals[4].endswith("0.75 (goal >= 0.85): MISSED")
    assert goals[5].endswith("30.00 (goal 64 trials within 90): reached")
    assert goals[1] in report(checks, rows, 2)


def test_an_empty_run_has_a_report():
    assert "operators verified: 0 of 36" in report({}, {}, 36)


# The whole script


def test_help_says_what_to_carry():
    done = python("-m", "experiments.gpu", "--help")
    assert done.returncode == 0, done.stderr
    for word in ("pip download", "xgboost-cpu", "pycuda", "--minutes", "max-autotune", "records.db"):
        assert word in done.stdout


def test_without_a_device_it_ends_with_one_sentence(tmp_path, capsys, monkeypatch):
    def refuse(_):
        raise DeviceError("there is no device")

    monkeypatch.setattr(script, "device_facts", refuse)
    assert script.main(["--out", str(tmp_path)]) == 5
    assert capsys.readouterr().err == "experiments.gpu.board: there is no device\n"


@pytest.fixture
def pocl(tmp_path, monkeypatch):
    pytest.importorskip("pyopencl")
    from autosched.runtime.gpu.devices import device_facts

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    try:
        return parse_target("opencl").with_gpu(device_facts("opencl"))
    except DeviceError as error:
        pytest.skip(str(error))


def test_the_whole_script_on_an_opencl_device(pocl, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(suite, "QUICK", parse_cases("gmm:1x16x16x16"))
    monkeypatch.setattr(suite, "QUICK_CHECKS", suite.QUICK_CHECKS[:1])
    monkeypatch.setattr(script, "ROUNDS", 2)
    rates = Rates("a device", {"float32": 1.0}, 1e9, 1 << 20)  # `test_gpu_peak.py` measures them
    monkeypatch.setattr("experiments.gpu.facts.measure_rates", lambda _: rates)
    words = ["--target", "opencl", "--quick", "--trials", "2", "--minutes", "3", "--out", str(tmp_path)]
    assert script.main(words) == 0
    printed = capsys.readouterr()
    document = json.loads((tmp_path / "opencl.json").read_text())
    (check,), (row,) = document["checks"].values(), document["cases"].values()
    assert check["ok"], check
    assert row["tuning"]["trials"] == 2
    assert row["ours"]["right"], row
    assert row["ours"]["ci"][0] <= row["ours"]["seconds"] <= row["ours"]["ci"][1]
    assert row["peak_gflops"] > 0
    assert row["copy_bandwidth"] > 0
    assert set(row["peers"]) == {"torch", "torch other", "triton", "torch.compile"}
    assert not any(peer["right"] for peer in row["peers"].values())
    assert document["facts"]["rates"] == asdict(rates)
    assert document["host"]["cpu_model"]
    assert "gmm:1x16x16x16  " in printed.out
    assert "operators verified: 1 of 1" in printed.out
    records = (tmp_path / "records.db").stat().st_mtime_ns
    assert script.main(words) == 0  # nothing is left to do
    assert (tmp_path / "records.db").stat().st_mtime_ns == records


def test_a_wrong_kernel_is_seen(pocl, tmp_path, monkeypatch):
    """`contest` with a kernel that computes something else: no time, and the reason."""
    from dataclasses import replace

    from autosched.runtime.gpu.devices import open_device
    from experiments.gpu import contest
    from experiments.gpu.verify import random_jobs

    case = BenchmarkCase("relu", own_shape=(8, 16))
    dag, _ = build(case.workload, case.shape)
    (job,) = random_jobs(dag, pocl, 1, 0)
    broken = replace(job.source, text=job.source.text.replace("0.0f", "1e9f"))
    assert broken.text != job.source.text
    stages: list[str] = []
    device = open_device("opencl")
    for source, right in ((job.source, True), (broken, False)):

        class Kernel:
            pass

        Kernel.source = source
        row = contest.contest(case, Kernel, device, [], 2, 1e-3, stages.append)
        assert row["ours"]["right"] is right
        assert ("seconds" in row["ours"]) is right
    assert "elements are wrong" in row["ours"]["reason"]
    assert stages[:3] == ["rates", "ours", "timing"]
