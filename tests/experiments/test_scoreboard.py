"""The scoreboard's own logic, with contestants put in where a run would have processes."""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import types
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autosched.errors import UsageError
from autosched.target import parse_target
from autosched.te.operators.registry import build
from experiments import metaschedule, metaschedule_peer
from experiments.arena import Lost
from experiments.metaschedule import MetaSchedule, check_peer, same_sizes
from experiments.scoreboard import __main__ as script
from experiments.scoreboard import contest, contestant
from experiments.scoreboard.bouts import FAMILIES, OPT_INS, QUICK, Bout, choose, integers, label_of, level_of
from experiments.scoreboard.chart import ALL, bars, draw, normalised
from experiments.scoreboard.contest import CALL, METASCHEDULE, MULTIPLY, OURS, READ, Rules, alternate, hold
from experiments.scoreboard.ledger import Ledger
from experiments.scoreboard.table import (
    HEADER,
    best_peer,
    cells,
    disturbed,
    falls_short,
    opt_in_ratio,
    ratio,
    report,
    roof,
    totals,
    until_near,
)
from experiments.tuning import BenchmarkCase
from tests.helpers import python

BOUT = Bout(BenchmarkCase("gmm", 0), 1, 2)
PACKED, WINOGRAD = OPT_INS


def row(case="gmm:0", batch=1, threads=2, roof_s=1e-4, **seconds):
    """Times in microseconds by contestant; `autosched_call` where it is not ours in the loop."""
    times = {"autosched": 125.0, **{name.replace("_", "."): us for name, us in seconds.items()}}
    times.setdefault("autosched.call", times["autosched"])
    entries = {name: {"reason": "broken"} if us is None else {"seconds": us / 1e6} for name, us in times.items()}
    if "metaschedule" in entries:
        entries["metaschedule"]["tuning_s"] = 80.0
    tuning = {
        "wall_s": 8.0,
        "search_s": 2.0,
        "measure_s": 4.0,
        "trials_to_95": 20,
        "seconds_to_95": 3.0,
        "first_result_s": 1.5,
        "first_round_ratio": 1.25,
    }
    return {
        "case": case, "workload": case.partition(":")[0], "batch": batch, "threads": threads, "level": "L2",
        "roof": {"seconds": roof_s, "limit": "arithmetic"}, "rates": {"peak_gflops": 100.0, "bandwidth": 1e10}, "entries": entries, "tuning": tuning, "wrong": 0,
    }  # fmt: skip


# Selection


def test_one_case_a_family_or_all():
    assert [b.label for b in choose(["c2d:1"], (1, 16), (2,), False)] == ["c2d:1 N=1 t=2", "c2d:1 N=16 t=2"]
    assert [b.case.index for b in choose(["c2d"], (1,), (1,), False)] == [0, 1, 2, 3]
    everything = choose([], (1,), (1, 2), False)
    assert len(everything) == 2 * 4 * len(FAMILIES) == 112
    assert {b.case.workload for b in choose([], (1,), (2,), True)} == set(FAMILIES)
    assert len(choose([], (1,), (2,), True)) == QUICK.count(",") + 1 == 14


@pytest.mark.parametrize("word", ["relu", "c2d:9", "nothing"])
def test_what_has_no_benchmark_shape_is_refused(word):
    with pytest.raises(UsageError):
        choose([word], (1,), (2,), False)


def test_a_shape_of_ones_own_is_a_case():
    (bout,) = choose(["matmul:5x6x7"], (1,), (2,), False)
    assert bout.label == "matmul:5x6x7 N=1 t=2"
    assert bout.built[1] == {"M": 5, "N": 6, "K": 7}


def test_lists_of_integers():
    assert integers("1,16") == (1, 16)
    for text in ("0", "a", "1,", "-2"):
        with pytest.raises(argparse.ArgumentTypeError, match="a whole number of at least 1 is needed"):
            integers(text)


def test_a_bout_knows_its_work():
    target = parse_target("cpu")
    facts = Bout(BenchmarkCase("gmm", 0), 16, 1).facts(target)
    assert facts["args"] == {"B": 16, "N": 128, "M": 128, "K": 128}
    assert facts["flops"] == 16 * 2 * 128**3
    assert facts["bytes"] == 16 * 3 * 4 * 128**2
    assert level_of(target.l2_bytes * 2, target, 2) == "L2"
    assert level_of(target.l2_bytes + 1, target, 1) == "L3"
    assert level_of(target.l3_bytes + 1, target, 1) == "DRAM"


# The contest


class Fake:
    """A process whose contestants answer from a table: seconds, or the reason for which one fails."""

    def __init__(self, directory: Path, calls: list[str], **results) -> None:
        self.directory, self.calls, self.results = directory, calls, results
        self.reading, self.multiplying = itertools.cycle([2e-5, 1e-5, 5e-5]), itertools.cycle([0.02, 0.01, 0.03])

    def ask(self, request, deadline_s):
        assert deadline_s > 0
        name = request.get("name", METASCHEDULE)
        if request["op"] == "peak":
            return {"peak_gflops": 100.0 + len(self.calls)}
        if name == READ:
            return {"seconds": next(self.reading)}
        if name == MULTIPLY:
            return {"seconds": next(self.multiplying)}
        found = self.results[name.replace(".", "_")]
        if found == "lost":
            raise Lost("start", "the process ended")
        if isinstance(found, str):
            return {"reason": found}
        if request["op"] == "enter":
            np.save(self.directory / f"{name}.npy", np.full((1, 128, 128), found[1], "float32"))
            return {"entered": True}
        self.calls.append(name)
        return {"seconds": found[0]}

    def close(self):
        pass


def test_contestants_alternate_after_a_round_to_warm_up():
    calls = []

    def sampler(name, seconds):
        return lambda: calls.append(name) or {"seconds": seconds}

    found = alternate("ab", Rules(rounds=4), {"a": sampler("a", 1e-3), "b": sampler("b", 2e-3)}, calls.append)
    assert "".join(c for c in calls if isinstance(c, str)) == "abbaabbaab"
    assert {c for c in calls if not isinstance(c, str)} == {contest.REST_S}
    assert found["b"] == {"seconds": 2e-3, "ci": [2e-3, 2e-3], "least_s": 2e-3, "samples": 4}


def test_there_is_a_longer_rest_after_threads_that_spin_longer():
    rests = []
    samplers = {name: lambda: {"seconds": 1e-3} for name in (OURS, METASCHEDULE)}
    alternate([OURS, METASCHEDULE], Rules(rounds=2), samplers, rests.append)
    assert rests.count(0.5) == 2  # its last block has none after it, and in turned order it comes twice in a row


def test_slow_calls_have_fewer_rounds_and_one_that_fails_is_out():
    answers = iter([{"seconds": 1.0}, {"reason": "gone"}])
    found = alternate("ab", Rules(rounds=10, rest_s=0), {"a": lambda: {"seconds": 0.5}, "b": lambda: next(answers)})
    assert found["a"]["samples"] == 4
    assert found["b"] == {"reason": "gone"}
    assert [contest.rounds_of(s, most) for s, most in ((0.2, 10), (2.0, 10), (0.5, 3), (2.0, 1))] == [10, 2, 3, 1]


def test_a_contest_has_an_entry_for_everyone(tmp_path):
    calls = []
    own = Fake(
        tmp_path, calls, autosched=(1e-4, 1.0), autosched_call=(1.1e-4, 1.0), torch=(2e-4, 1.0 + 1e-6),
        torch_compile="lost", numpy=(3e-4, 1.5),
    )  # fmt: skip
    given = dict.fromkeys((OURS, "torch", "torch.compile", "numpy"), own)
    entries, rates = hold(BOUT, Rules(rounds=2, rest_s=0), tmp_path, tmp_path / "x.db", 1, given)
    assert entries[OURS]["seconds"] == 1e-4
    assert entries[CALL]["seconds"] == 1.1e-4
    assert entries["torch"]["seconds"] == 2e-4
    assert entries["torch"]["difference"] < 1e-5
    assert entries["torch.compile"] == {"reason": "the process ended"}
    assert "differs from ours by 0.5" in entries["numpy"]["reason"]
    assert entries[METASCHEDULE] == {"reason": "no --peer-python"}
    assert set(calls) == {OURS, CALL, "torch"}  # a wrong one is not timed
    assert rates["peak_gflops"] == 109.0  # the larger one, of before and after
    assert rates["bandwidth"] == pytest.approx(3 * 4 * 128**2 / 3e-5)  # by the median of two rounds after the first
    assert rates["fma_gflops"] == pytest.approx(1e7 / 0.02 / 1e9)
    assert READ not in entries


def test_a_contestant_enters_and_is_timed(tmp_path):
    dag, args = BOUT.built
    arrays = [np.full(t.public_shape, i + 1.0, "float32") for i, t in enumerate(dag.inputs)]
    for i, array in enumerate(arrays):
        np.save(tmp_path / f"in{i}.npy", array)
    clocks, repeats = {}, {}
    request = {
        "directory": str(tmp_path),
        "workload": "gmm",
        "args": args,
        "threads": 1,
        "n_inputs": 2,
        "block_s": 1e-4,
        "asked": {},
    }
    found = contestant.answer({**request, "op": "enter", "name": "numpy"}, clocks, repeats)
    assert found == {"entered": ["numpy"]}
    assert (np.load(tmp_path / "numpy.npy") == 256.0).all()
    assert contestant.answer({**request, "op": "time", "name": "numpy"}, clocks, repeats)["seconds"] > 0
    assert repeats["numpy"] >= 1
    missing = contestant.answer({**request, "op": "enter", "name": "numpy", "workload": "cap"}, clocks, repeats)
    assert missing == {"reason": "LookupError: it has no single call for this operator"}
    assert "no 'sing'" in contestant.answer({"op": "sing"}, clocks, repeats)["reason"]


def test_what_a_kernel_writes_lives_as_long_as_its_clock():
    arrays = [np.zeros(4, "float32")]
    known = weakref.ref(arrays[0])
    clock = contestant.compiled_clock(0, arrays, 0, 1)
    del arrays
    assert known() is not None
    del clock
    assert known() is None


def test_constant_weights_are_a_contest_of_their_own(tmp_path):
    bout = Bout(BenchmarkCase("cbr", 1), 1, 2)
    assert bout.asked(PACKED) == {"weights": [t.name for t in bout.built[0].inputs][1:]}
    assert contest.contestants(BOUT, Rules(("torch",), opt_ins=(PACKED,))) == (OURS, "torch")  # two data inputs
    names = contest.contestants(bout, Rules(("torch",), opt_ins=(PACKED,)))
    assert names == (OURS, "torch", "autosched.weights", "torch.prepacked")
    one = row("c2d:1", autosched=100.0, torch=90.0, autosched_weights=80.0, torch_prepacked=60.0)
    assert opt_in_ratio(one, PACKED) == pytest.approx(0.75)
    assert best_peer(one) == ("torch", pytest.approx(0.9))
    assert totals([one, row(torch=100.0)])["geomean_with_weights"] == pytest.approx(0.75)
    assert "packed ahead of time" in report([one])
    assert "packed ahead of time" not in report([row(torch=100.0)])


def test_winograd_is_a_contest_of_the_convolutions_that_can_take_it():
    strided, square = Bout(BenchmarkCase("c2d", 0), 1, 2), Bout(BenchmarkCase("c2d", 3), 1, 2)
    assert (strided.asked(WINOGRAD), square.asked(WINOGRAD)) == ({}, {"winograd": True})
    assert contest.contestants(square, Rules((), opt_ins=(WINOGRAD,))) == (OURS, "autosched.winograd", "torch")
    assert contest.contestants(square, Rules(("torch", "numpy"), opt_ins=(WINOGRAD,)))[1:3] == ("torch", "numpy")
    one = row("c2d:3", autosched=100.0, torch=150.0, autosched_winograd=60.0)
    assert opt_in_ratio(one, WINOGRAD) == pytest.approx(2.5)
    assert best_peer(one) == ("torch", pytest.approx(1.5))
    assert "Winograd" in report([one])


def test_without_our_kernel_nobody_is_timed(tmp_path):
    own = Fake(tmp_path, [], autosched="no record", torch=(1e-4, 1.0))
    entries, _ = hold(BOUT, Rules(("torch",), 2, rest_s=0), tmp_path, tmp_path / "x.db", 1, {OURS: own, "torch": own})
    assert entries == {OURS: {"reason": "no record"}, "torch": {"reason": "there is no result of ours to compare with"}}


def test_metaschedule_takes_part_from_its_cache(tmp_path):
    peer = MetaSchedule(Path(sys.executable), tmp_path, "znver4", 64)
    rules = Rules((METASCHEDULE,), 2, rest_s=0, metaschedule=peer)
    library = peer.library("gmm:0", 1, 2)
    assert library.parts[-2:] == ("znver4-2threads-64trials-seed0", "gmm-0.so")
    assert peer.library("gmm:0", 16, 2).name == "gmm-0-batch16.so"
    library.parent.mkdir()
    library.touch()
    note = {"tuning_s": 60.0, "trials": 64, "failed": 1, "shapes": [[1, 128, 128]] * 3}
    library.with_suffix(".json").write_text(json.dumps(note))
    given = {
        OURS: Fake(tmp_path, [], autosched=(1e-4, 1.0), autosched_call=(1e-4, 1.0)),
        METASCHEDULE: Fake(tmp_path, [], metaschedule=(2e-4, 1.0)),
    }
    entries, _ = hold(BOUT, rules, tmp_path, tmp_path / "x.db", 1, given)
    assert entries[METASCHEDULE]["seconds"] == 2e-4
    assert entries[METASCHEDULE]["tuning_s"] == 60.0
    note["shapes"] = [[1, 128, 127]] * 3
    library.with_suffix(".json").write_text(json.dumps(note))
    assert "another problem" in contest.metaschedule_note(rules, BOUT)["reason"]


def test_metaschedule_gets_arguments_in_its_own_order(monkeypatch, tmp_path):
    """Its CBR takes bn_offset before bn_scale."""
    tvm = types.SimpleNamespace(runtime=types.SimpleNamespace(tensor=lambda a: types.SimpleNamespace(numpy=lambda: a)))
    monkeypatch.setitem(sys.modules, "tvm", tvm)
    names = [t.name for t in build("cbr", (1, 8, 8, 4, 4, 3, 1, 1))[0].inputs]
    for i, _ in enumerate(names):
        np.save(tmp_path / f"in{i}.npy", np.full(2, i, np.float32))
    shapes = [(2,)] * (len(names) + 1)
    arguments = metaschedule_peer.enter({"main": lambda *_: None}, "cbr", shapes, tmp_path)
    order = [names[int(a.numpy()[0])] for a in arguments[:-1]]
    assert order == ["X", "W", "bias", "bn_offset", "bn_scale"]
    assert (tmp_path / "metaschedule.npy").exists()


def test_an_unfit_interpreter_is_refused(monkeypatch, tmp_path):
    with pytest.raises(UsageError, match="no interpreter"):
        check_peer(tmp_path / "python")
    for code, message in ((3, "no TVM"), (4, "unfair")):
        done = subprocess.CompletedProcess([], code)
        monkeypatch.setattr(metaschedule.subprocess, "run", lambda *_, done=done, **__: done)
        with pytest.raises(UsageError, match=message):
            check_peer(Path(sys.executable))


def test_sizes_are_compared_without_order():
    dag, _ = build("tbg", (1, 4, 2, 8))
    assert same_sizes(dag, [[1, 4, 2, 8], [1, 4, 2, 8], [1, 2, 4, 4]])
    assert not same_sizes(dag, [[1, 4, 2, 8], [1, 4, 2, 8], [1, 2, 4, 5]])


# Ratios and totals


def test_a_peer_is_compared_with_our_kernel_called_in_its_manner():
    one = row(autosched=100.0, autosched_call=120.0, torch=180.0, numpy=None, metaschedule=160.0)
    assert ratio(one, "torch") == pytest.approx(1.5)
    assert ratio(one, "metaschedule") == pytest.approx(1.6)
    assert ratio(one, "numpy") is None
    assert best_peer(one) == ("torch", pytest.approx(1.5))
    assert best_peer(row()) is None


def test_the_roofline():
    assert roof(2_000_000, 1000, 1.0, 1e9) == {"seconds": 2e-3, "limit": "arithmetic"}
    assert roof(2000, 4_000_000, 1.0, 1e9) == {"seconds": 4e-3, "limit": "memory"}


def test_when_a_search_was_near_its_end():
    curve = [[1, 0.5, 2e-3], [2, 0.9, 1.06e-3], [3, 1.2, 1.05e-3], [9, 4.0, 1e-3]]
    assert until_near(curve) == {"trials_to_95": 3, "seconds_to_95": 1.2}
    assert until_near([]) == {"trials_to_95": None, "seconds_to_95": None}


def test_totals_and_what_falls_short():
    rows = [
        row("gmm:0", torch=250.0, metaschedule=500.0),
        row("c2d:1", torch=100.0, roof_s=9e-5),
        row("dep:1", torch=200.0, roof_s=2e-5),
        {"case": "c3d:0", "workload": "c3d", "batch": 1, "threads": 2, "error": "tuning: no answer within 1800 s"},
    ]
    found = totals(rows)
    assert found["geomean_vs_best_peer"] == pytest.approx((2.0 * 0.8 * 1.6) ** (1 / 3))
    assert found["geomean_vs_metaschedule"] == pytest.approx(4.0)
    assert (found["compared"], found["below_1"], found["below_0.85"]) == (3, 1, 1)
    assert next(iter(found["worst"].items())) == ("c2d:1 N=1 t=2", pytest.approx(0.8))
    assert found["by_operator"] == pytest.approx({"gmm": 2.0, "c2d": 0.8, "dep": 1.6})
    assert found["without_result"] == ["c3d:0 N=1 t=2"]
    assert found["tuning_time_ratio_vs_metaschedule"] == pytest.approx(10.0)
    assert found["share_of_wall"]["measure"] == pytest.approx(0.5)
    assert found["median_first_round_ratio"] == pytest.approx(1.25)
    assert found["median_share_by_limit"] == {"arithmetic": pytest.approx(0.72), "memory": None}  # of 0.8, 0.72, 0.16
    assert [r["case"] for r in falls_short(rows)] == ["c2d:1", "dep:1"]  # slower than a peer, then below the roofline
    lines = [cells(r) for r in rows]
    assert {len(line) for line in lines} == {len(HEADER)}
    assert lines[-1][-1] == "tuning: no answer within 1800 s"
    text = report(rows)
    assert "below_1: 1" in text
    assert "Slower than a peer" in text


# Chart


def test_throughput_is_normalised_to_the_best_contestant():
    assert normalised(row(autosched=100.0, torch=50.0, numpy=400.0)) == pytest.approx(
        {"torch": 1.0, OURS: 0.5, "numpy": 0.125}
    )
    assert normalised({"entries": {}}) == {}
    heights = bars(
        [
            row("gmm:0", autosched=100.0, torch=400.0),
            row("gmm:1", autosched=100.0, torch=100.0),
            row("c2d:0", torch=None),
        ]
    )
    assert heights["gmm"] == pytest.approx({OURS: 1.0, "torch": 0.5})
    assert heights["c2d"] == {OURS: 1.0}
    assert heights[ALL]["torch"] == pytest.approx(0.5)


def test_the_chart_is_written(tmp_path):
    pytest.importorskip("matplotlib")
    draw([row(torch=90.0), row(batch=16, torch=200.0, metaschedule=300.0)], tmp_path / "deep" / "chart.png", "title")
    assert (tmp_path / "deep" / "chart.png").read_bytes().startswith(b"\x89PNG")


# The file


def test_a_run_goes_on_where_it_ended(tmp_path):
    path = tmp_path / "board.json"
    bouts = choose(["gmm"], (1,), (2,), False)
    played = []

    def play(bout, directory):
        assert directory.is_dir()
        played.append(bout.label)
        return {**row(bout.case.label), **({"error": "busy"} if bout.case.index == 1 else {})}

    script.run(bouts[:2], Ledger(path, totals), False, play)
    script.run(bouts, Ledger(path, totals), True, play)
    assert played == [f"gmm:{i} N=1 t=2" for i in (0, 1, 1, 2, 3)]  # what failed is tried again
    script.run(choose(["c2d:0"], (1,), (2,), False), Ledger(path, totals), False, play)
    document = json.loads(path.read_text())
    assert [label_of(r) for r in document["rows"]] == [
        f"{c} N=1 t=2" for c in ("gmm:0", "gmm:1", "gmm:2", "gmm:3", "c2d:0")
    ]
    assert document["totals"]["cases"] == 5
    assert document["host"]["cpu_model"]
    assert [p.name for p in tmp_path.iterdir()] == ["board.json"]


def test_what_was_disturbed_is_measured_again_but_not_for_ever(tmp_path):
    path = tmp_path / "board.json"
    bouts = choose(["gmm"], (1,), (2,), False)
    played = []

    def play(bout, _):
        played.append(bout.case.index)
        found = row(bout.case.label)
        found["entries"][OURS]["ci"] = [1.2e-4, 1.6e-4] if bout.case.index == 1 else [1.24e-4, 1.26e-4]
        found["rates"] = {
            "peak_gflops": 92.0 if bout.case.index == 2 and played.count(2) == 1 else 100.0,
            "bandwidth": 1e10,
        }
        return found

    script.run(bouts, Ledger(path, totals), True, play)
    assert disturbed(list(Ledger(path, totals).rows.values())) == ["gmm:1 N=1 t=2", "gmm:2 N=1 t=2"]
    for _ in range(4):
        script.run(bouts, Ledger(path, totals), True, play)
    assert played == [0, 1, 2, 3, 1, 2, 1]


def test_files_of_others_are_refused(tmp_path):
    path = tmp_path / "board.json"
    path.write_text('{"cases": []}')
    with pytest.raises(UsageError, match="holds no scoreboard"):
        Ledger(path, totals)
    path.write_text(json.dumps({"rows": [], "host": {"cpu_model": "another"}}))
    with pytest.raises(UsageError, match="results of another"):
        Ledger(path, totals)


def test_a_search_that_fails_is_a_row_with_its_error(monkeypatch, tmp_path):
    monkeypatch.setattr(script, "tune", lambda *_, **__: {"error": {"class": "Timeout", "message": "no answer"}})
    setting = script.setting_of(script.build_parser().parse_args(["gmm:0", "--peers", "numpy"]))
    found = script.play(BOUT, setting, tmp_path)
    assert found["error"] == "tuning: no answer"
    assert (found["case"], found["asked_trials"], found["flops"]) == ("gmm:0", 64, 2 * 128**3)


def test_a_contest_that_we_lose_on_the_way_is_a_row_with_its_error(monkeypatch, tmp_path):
    answer = {
        "record_id": 1,
        "failures": {"wrong_result": 2},
        "peak_gflops": 90.0,
        "wall_s": 5.0,
        "curve": [[1, 0.5, 1e-3]],
    }
    monkeypatch.setattr(script, "tune", lambda *_, **__: answer)
    fake = Fake(tmp_path, [], autosched=(1e-4, 1.0), autosched_call="gone", numpy=(2e-4, 1.0))
    monkeypatch.setattr(script, "processes", lambda *_: nullcontext({OURS: fake, "numpy": fake}))
    setting = script.setting_of(script.build_parser().parse_args(["gmm:0", "--peers", "numpy"]))
    found = script.play(BOUT, replace(setting, rules=Rules(("numpy",), 2, rest_s=0)), tmp_path)
    assert found["error"] == "our kernel: gone"
    assert found["wrong"] == 2
    assert found["tuning"]["trials_to_95"] == 1
    fake.results["autosched_call"] = (1e-4, 1.0)
    found = script.play(BOUT, replace(setting, rules=Rules(("numpy",), 2, rest_s=0)), tmp_path)
    assert "error" not in found
    assert found["roof"]["seconds"] == pytest.approx(2 * 128**3 / found["rates"]["peak_gflops"] / 1e9)


def test_the_command_reports_without_measuring(tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    path = tmp_path / "board.json"
    Ledger(path, totals).record(row(torch=90.0))
    monkeypatch.setattr(script, "play", lambda *_: pytest.fail("nothing is measured"))
    assert script.main(["--report", "--out", str(path)]) == 0
    assert "gmm:0" in capsys.readouterr().out
    assert path.with_suffix(".png").exists()


def test_the_command_refuses_what_it_does_not_know(tmp_path, capsys):
    for words in (
        ["--peers", "jax"], ["--batch", "0"], ["relu"], ["--peer-python", str(tmp_path / "none")], ["--threads", "999"],
        ["--trials", "0"], ["--budget", "-1"], ["--budget", "0"], ["--seed", "-1"],
    ):  # fmt: skip
        with pytest.raises(SystemExit) as ended:
            script.main([*words, "--out", str(tmp_path / "x.json")])
        assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "there is no peer 'jax'" in said
    assert "threads must be a whole number from 1 to 256, got 999" in said


@pytest.mark.slow
def test_a_block_of_multiplications_is_more_than_its_call(monkeypatch):
    asked = []
    fake = (lambda count: asked.append(count) or count * 3e-9, 512)  # as long for each 512 operations
    monkeypatch.setattr(contestant, "multiplier", lambda target, threads: fake)
    seconds = contestant.multiply_clock(1)(2)
    assert asked[0] * 512 >= 2 * contestant.OPERATIONS
    assert seconds == pytest.approx(2 * contestant.OPERATIONS / 512 * 3e-9)


def test_a_case_from_end_to_end(tmp_path):
    """The real processes, without PyTorch: NumPy is everywhere."""
    out = tmp_path / "board.json"
    words = ["gmm:0", "--peers", "numpy", "--trials", "2", "--threads", "1", "--out", str(out)]
    done = python("-m", "experiments.scoreboard", *words)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(out.read_text())["rows"]
    assert found["entries"]["numpy"]["seconds"] > 0
    assert found["entries"]["numpy"]["difference"] < 1e-5
    assert found["rates"]["bandwidth"] > 1e8
    assert found["rates"]["fma_gflops"] > 0.1
    assert found["roof"]["limit"] == "arithmetic"


def test_a_process_outlives_the_thread_that_asks_it(tmp_path):
    """The kernel's death signal goes with the thread that started the process, not with its parent process."""
    with contest.processes(BOUT, Rules(("numpy",)), tmp_path) as given:
        asked = {"op": "enter", "name": "nobody"}
        with ThreadPoolExecutor(1) as pool:
            assert "reason" in pool.submit(given["numpy"].ask, asked, 60.0).result()
        before = given["numpy"]._process.pid
        assert "reason" in given["numpy"].ask({"op": "sing"}, 60.0)
        assert given["numpy"]._process.pid == before
