"""The contest of networks: its processes with a tiny network, and what is said of rows that are known by hand."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autosched.errors import UsageError
from autosched.executor.compile_graph import compile_graph
from autosched.graph.graph import Graph, Node, Value
from autosched.measure.timing import python_clock
from experiments.metaschedule import MetaSchedule
from experiments.networks import __main__ as script
from experiments.networks.chart import draw, heights
from experiments.networks.contest import NetworkBout, entrants, hold
from experiments.networks.contestant import Contestant
from experiments.networks.contestants import EAGER, ORT, OURS, OWN, PEERS, TUNED, Loaded, relative_error
from experiments.networks.kernels import facts_of
from experiments.networks.table import HEADER, best_peer, cells, failures, losses, present, searches, totals
from experiments.report.networks import networks
from experiments.report.results import Results
from experiments.scoreboard.contest import METASCHEDULE, Rules
from experiments.scoreboard.ledger import Ledger
from tests.helpers import python

BOUT = NetworkBout("perceptron", 1, 1, reduced=True)


def row(case: str = "perceptron", threads: int = 1, ours_s: float = 1e-3, **times: Any) -> dict[str, Any]:
    """Times in milliseconds by contestant, or the reason why there is none."""
    entries = {name: {"reason": t} if isinstance(t, str) else {"seconds": t / 1e3} for name, t in times.items()}
    own = {
        "seconds": ours_s,
        "load_s": 9.0,
        "warm_load_s": 0.5,
        "tasks": 2,
        "kernels": 3,
        "arena_bytes": 128,
        "bound_bytes": 64,
    }
    alone = {"kernels_s": 0.8e-3, "network_s": 1e-3, "bound_s": 0.5e-3}
    return {"case": case, "batch": 1, "threads": threads, "date": "2026-01-02", "entries": {OURS: own, **entries}, "alone": alone}  # fmt: skip


class FakeContestant:
    """Answers as a contestant's process does; `results` are what it computes, None for one that ends."""

    def __init__(self, directory, name, results, seconds):
        self.directory, self.name, self.results, self.seconds = directory, name, results, seconds
        self.asked = []

    def ask(self, request, deadline_s):
        self.asked.append(request["op"])
        if self.results is None:
            return {"reason": "the process ended at load"}
        if request["op"] == "enter":
            np.savez(self.directory / f"{self.name}.npz", np.asarray(self.results, "float32"))
            return {"load_s": 1.0}
        return {"kernels_s": 1.0} if request["op"] == "kernels" else {"seconds": self.seconds}

    def close(self):
        pass


def test_everybody_is_compared_and_timed_in_turn(tmp_path):
    results = {
        OURS: [1, 2],
        EAGER: [1, 2],
        "inductor": [1, 3],
        "onnxruntime": None,
        "openvino": [1, 2.0001],
        "export": [],
    }
    given = {name: FakeContestant(tmp_path, name, found, 1e-3) for name, found in results.items()}
    found = hold(BOUT, Rules(("inductor", "onnxruntime", "openvino"), rounds=2, rest_s=0), tmp_path, given)
    entries = found["entries"]
    assert found["alone"] == {"kernels_s": 1.0, "of": OURS}
    assert {"load_s", "seconds", "least_s", "rms_error"} <= set(entries[OURS]) & set(entries["openvino"])
    assert "differ from those of eager by 0.447" in entries["inductor"]["reason"]
    assert entries["onnxruntime"] == {"reason": "the process ended at load"}
    assert given["inductor"].asked == ["enter"]  # what is wrong is not timed


def test_without_an_exported_file_those_that_read_it_say_why(tmp_path):
    given = {name: FakeContestant(tmp_path, name, [1.0], 1e-3) for name in (OURS, EAGER, "openvino")}
    given["export"] = FakeContestant(tmp_path, "export", None, 0.0)
    entries = hold(BOUT, Rules(("openvino",), rounds=2, rest_s=0), tmp_path, given)["entries"]
    assert entries["openvino"] == {"reason": "no ONNX file: the process ended at load"}
    assert given["openvino"].asked == []


def test_metaschedule_is_tuned_once_and_takes_part_from_its_cache(tmp_path):
    peer = MetaSchedule(Path(sys.executable), tmp_path, "znver4", 2000)
    rules = Rules((), 2, rest_s=0, metaschedule=peer)
    library = peer.library(BOUT.label, 1, 1)
    assert library.name == "perceptron-reduced.so"
    library.parent.mkdir()
    library.touch()
    kept = {"tuning_s": 3000.0, "trials": 2000, "failed": 3, "mcpu": "znver4", "version": "0", "history": []}
    library.with_suffix(".json").write_text(json.dumps(kept), encoding="utf-8")
    results = {OURS: [1, 2], EAGER: [1, 2], METASCHEDULE: [1, 2], "export": []}
    given = {name: FakeContestant(tmp_path, name, found, 2e-3) for name, found in results.items()}
    found = {**row(), **hold(BOUT, rules, tmp_path, given)}
    entry = found["entries"][METASCHEDULE]
    assert (entry["seconds"], entry["tuning_s"], "history" in entry) == (2e-3, 3000.0, False)
    said = (
        "`perceptron`: TVM's MetaSchedule 2.000 ms after 2000 trials in 3000 s, 1.00 of ours after 1.0 s (as loaded)."
    )
    assert searches([found, row("wide", eager=2.0)]) == [said]
    assert METASCHEDULE not in entrants(NetworkBout("perceptron_int8", 1, 1, reduced=True), rules)


def test_eager_always_takes_part():
    assert entrants(BOUT, Rules(())) == (OURS, EAGER)
    assert entrants(BOUT, Rules(PEERS)) == (OURS, *PEERS)


def test_ours_takes_part_as_often_as_asked():
    assert entrants(replace(BOUT, tuning_s=9.0), Rules(())) == (OURS, TUNED, EAGER)
    assert entrants(replace(BOUT, tuning_s=9.0, winograd=True), Rules(())) == (*OWN, EAGER)
    rows = [{**row(eager=2.0), "tuning_s": 9.0}]
    rows[0]["entries"][TUNED] = {"seconds": 0.5e-3}
    rows[0]["alone"]["of"] = TUNED
    plain, tuned = (dict(zip(HEADER, cells(rows[0], own), strict=True)) for own in present(rows[0]))
    assert (plain["network"], plain["best peer"], plain["of the bound"]) == ("`perceptron`", "**2.00**", "-")
    assert tuned["network"] == "`perceptron`, tuned 9 s"
    assert (tuned["best peer"], tuned["of the bound"]) == ("**4.00**", "0.50")


def test_networks_of_bytes_are_for_those_that_read_files(tmp_path):
    bout = NetworkBout("perceptron_int8", 1, 1, reduced=True)
    assert entrants(bout, Rules(PEERS)) == (OURS, ORT, "openvino")
    results = {OURS: [1, 2.05], ORT: [1, 2], "openvino": [1, 3], "export": []}
    given = {name: FakeContestant(tmp_path, name, found, 1e-3) for name, found in results.items()}
    entries = hold(bout, Rules(("openvino",), rounds=2, rest_s=0), tmp_path, given)["entries"]
    assert "seconds" in entries[OURS]
    assert "differ from those of onnxruntime" in entries["openvino"]["reason"]
    assert given["export"].asked == ["export"]


def test_errors_of_results():
    want = [np.ones(4), np.zeros(2)]
    assert relative_error([np.full(4, 1.5), np.zeros(2)], want) == 0.5
    assert relative_error([np.ones(4)], want) == relative_error([np.ones(4), np.full(2, np.nan)], want) == float("inf")


def test_kernels_alone_and_their_bound():
    values = (("x", (1, 33)), ("w", (17, 33)), ("h", (1, 17)), ("y", (1, 17)))
    weights = np.ones((17, 33), "float32")
    nodes = (Node("linear", ("x", "w", None), ("h",)), Node("softmax", ("h",), ("y",), {"axis": 1}))
    graph = Graph(("x",), ("y",), nodes, {n: Value(n, s, "float32") for n, s in values}, {"w": weights})
    model, x = compile_graph(graph, threads=1), np.ones((1, 33), "float32")
    found = facts_of(model, python_clock(lambda: model(x)), 2, 1e-5)
    assert found["kernels_s"] == pytest.approx(sum(t["count"] * t["seconds"] for t in found["kernel_times"]))
    assert found["flops"] >= 2 * 17 * 33
    assert found["bytes"] >= 4 * 17 * 33
    assert 0 < found["bound_s"] < found["kernels_s"]


def test_ratios_shares_and_losses():
    rows = [row(eager=4.0, inductor=2.0), row("wide", eager=0.5, openvino="no such operator"), row("alone")]
    line = dict(zip(HEADER, cells(rows[0]), strict=True))
    assert best_peer(rows[0]) == ("inductor", 2.0)
    assert (line["ours, ms"], line["eager"], line["openvino"], line["best peer"]) == ("1.000", "4.00", "-", "**2.00**")
    assert (line["of the best kernels"], line["of the bound"], line["arena"]) == ("0.80", "0.50", "2.00")
    assert (line["load, s"], line["kernels"]) == ("9.0, 0.5", "3 of 2 tasks")
    assert losses(rows) == "`wide` 0.500 (eager)"
    assert failures(rows) == ["`wide`, openvino: no such operator"]
    assert totals(rows)["best_peer"] == pytest.approx(1.0)
    assert cells({"case": "x", "entries": {OURS: {"reason": "?"}}})[1:-1] == ["-"] * (len(HEADER) - 4) + ["-, -", "-"]


def test_the_table_shows_what_is_slower_and_what_failed():
    host = {
        "cpu_model": "Example",
        "llvm_cpu": "znver9",
        "vector_bytes": 32,
        "cores_usable": 4,
        "packages": {"torch": "2.5.0"},
    }
    lines = networks(
        Results("made_up", {"host": host, "rows": [row(eager=0.5, inductor="broken"), row(threads=2, eager=3.0)]})
    )
    assert "**N=1, 1 thread**" in lines
    assert (
        "Against the best peer 0.50, the geometric mean of 1. A peer is faster in `perceptron` 0.500 (eager)." in lines
    )
    assert "Without a time: `perceptron`, inductor: broken." in lines
    assert "Against the best peer 3.00, the geometric mean of 1. In no network is a peer faster." in lines


def test_bars_are_relative_to_the_best_of_the_network(tmp_path):
    assert heights(row(eager=2.0, inductor=0.5, openvino="broken")) == {OURS: 0.5, EAGER: 0.25, "inductor": 1.0}
    pytest.importorskip("matplotlib")
    draw([row(eager=2.0), row("wide", threads=2, inductor=0.5)], tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_goes_on_where_it_ended(tmp_path):
    played = []

    def play(bout, directory):
        played.append(bout.network)
        return {**row(bout.network, eager=1.0), **({"error": "busy"} if bout.network == "b" else {})}

    bouts = [NetworkBout(name, 1, 1) for name in "abc"]
    script.run(bouts[:2], Ledger(tmp_path / "n.json", totals), False, play)
    script.run(bouts, Ledger(tmp_path / "n.json", totals), True, play)
    assert "".join(played) == "abbc"  # what failed is tried again
    assert len(json.loads((tmp_path / "n.json").read_text())["rows"]) == 3


def test_the_command_refuses_what_it_does_not_know():
    parser = script.build_parser()
    with pytest.raises(UsageError, match="there is no peer 'tvm': --peers takes eager, inductor"):
        script.rules_of(parser.parse_args(["--peers", "eager,tvm"]))
    pytest.importorskip("torch")
    with pytest.raises(UsageError, match="there is no network 'alexnet': there are resnet50"):
        script.bouts_of(parser.parse_args(["alexnet"]))
    assert len(script.bouts_of(parser.parse_args(["unet", "dcgan", "--threads", "1,2"]))) == 4


@pytest.mark.slow
def test_a_tiny_run(tmp_path):
    pytest.importorskip("torch")
    words = [
        "dcgan",
        "--reduced",
        "--peers",
        "eager",
        "--rounds",
        "2",
        "--threads",
        "1",
        "--out",
        str(tmp_path / "n.json"),
    ]
    done = python("-m", "experiments.networks", *words)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads((tmp_path / "n.json").read_text())["rows"]
    assert found["entries"][OURS]["rms_error"] < 1e-5
    assert found["entries"][EAGER]["seconds"] > 0
    assert found["alone"]["kernels_s"] > found["alone"]["bound_s"] > 0
    assert f"| `{found['case']}` |" in done.stdout


def test_a_long_call_warms_up_by_itself(monkeypatch):
    calls: list[int] = []
    contestant = Contestant(Loaded(lambda: calls.append(1), list))
    monkeypatch.setattr("experiments.networks.contestant.LONG_S", -1.0)
    assert contestant.sample(0.0)["seconds"] >= 0.0
    assert contestant.sample(0.0)["seconds"] >= 0.0
    assert len(calls) == 2
    monkeypatch.setattr("experiments.networks.contestant.LONG_S", 60.0)
    contestant.sample(0.0)
    assert len(calls) == 4
