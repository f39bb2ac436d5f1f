"""The regret of the analytic model's choice: what is drawn, which candidates are measured, what is said of their times."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autosched.errors import UsageError
from autosched.te import ComputeDAG
from autosched.te.operators.registry import WORKLOADS
from experiments.pipelines.random_pipelines import SMALL, pipeline_dag
from experiments.regret import measure as measuring
from experiments.regret.__main__ import main, totals
from experiments.regret.measure import MeasuredCandidates, agree, measure
from experiments.regret.operators import FAMILIES, LONGEST_S, SHORTEST_S, draw, parse
from experiments.regret.pipelines import pipeline_subject
from experiments.report.regret import regret
from experiments.report.results import Results

TINY = replace(SMALL, rows=(9,), columns=(40,), stages=2, dtypes=(("float32",),))
SMALL_PRODUCT = "linear+gelu M=9 N=40 K=17 weights"
HOST = {"cpu_model": "Example CPU", "llvm_cpu": "znver9", "vector_bytes": 32, "cores_usable": 4, "date": "2026-01-09"}


def test_a_seed_is_always_the_same_pipeline():
    one, other = (pipeline_dag("4", SMALL) for _ in range(2))
    assert isinstance(one, ComputeDAG)
    assert [t.shape for t in one.outputs] == [t.shape for t in other.outputs]
    assert len({tuple(t.shape for t in pipeline_dag(str(n), SMALL).outputs) for n in range(6)}) > 1


def test_all_operators_are_drawn_equally_often_and_within_the_budget():
    drawn = [draw(3, n) for n in range(2 * len(FAMILIES))]
    assert set(WORKLOADS) <= set(FAMILIES)
    assert sorted(o.family for o in drawn) == sorted(2 * list(FAMILIES))
    assert all(SHORTEST_S <= o.least_s <= LONGEST_S for o in drawn)
    assert drawn == [draw(3, n) for n in range(2 * len(FAMILIES))] != [draw(4, n) for n in range(2 * len(FAMILIES))]
    assert {bool(o.epilogue) for o in drawn} == {bool(o.weights) for o in drawn} == {True, False}


def test_the_name_of_an_operator_is_all_that_it_is():
    for n in range(len(FAMILIES)):
        assert parse(draw(0, n).name) == draw(0, n)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lineal M=4", "there is no operator lineal; the families are c1d, "),
        ("linear+gell M=4", "there is no operator linear[+]gell; .* the epilogues relu, gelu"),
        ("linear M", "numbers are written as in linear M=64 N=64 K=64, got 'linear M'"),
        ("linear M=4", "linear M=4: .*'N' and 'K'"),
    ],
)
def test_what_is_no_operator_is_named(text, message):
    with pytest.raises(UsageError, match=message):
        parse(text)


def test_the_choice_is_timed_beside_candidates_of_a_search(tmp_path: Path):
    out = tmp_path / "regret.json"
    command = ["--cases", SMALL_PRODUCT, "--candidates", "8", "--threads", "1", "--out", str(out)]
    assert main(command) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert row["case"] == SMALL_PRODUCT
    assert row["failures"] == []
    assert 5 <= row["measured"] <= 9
    times = [entry["seconds"] for entry in row["entries"]]
    assert times == sorted(times)
    assert row["regret"] == row["choice"]["seconds"] / times[0] >= 1

    assert main([*command, "--again"]) == 0
    (again,) = json.loads(out.read_text())["rows"]
    assert again["measured"] <= len(row["entries"]) + 1
    assert again["choice"]["values"] == row["choice"]["values"]

    main([*command, "--resume"])
    assert json.loads(out.read_text())["rows"] == [again]


def test_a_candidate_that_does_not_agree_is_no_time(monkeypatch):
    monkeypatch.setattr(measuring, "agree", lambda a, b: False)
    row = measure(pipeline_subject("0-1", TINY), "cpu", 1, 4)
    assert [entry["sketch"] for entry in row["entries"]] == [row["choice"]["sketch"]]
    assert row["regret"] == 1
    assert row["failures"][0].endswith("does not agree with the choice")


def test_entries_of_sketches_that_there_are_no_more_are_left_out():
    found = MeasuredCandidates(pipeline_subject("0-1", TINY), "cpu", 1)
    entry: dict[str, Any] = found.entry(found.choice)
    assert found.named([entry, {**entry, "sketch": "gone"}, {**entry, "values": {"x": 1}}]) == [found.choice]


def test_results_agree_within_rounding_of_the_largest():
    a = np.array([1.0, 1000.0, np.inf, np.nan])
    assert agree(a, a)
    assert agree(a + np.array([0.9, 0, 0, 0]), a)
    assert not agree(a + np.array([1.1, 0, 0, 0]), a)


def test_the_table_has_the_figures_of_each_target_and_the_worst_first():
    def row(case: str, ratio: float, target: str = "cpu") -> dict[str, Any]:
        choice = {"sketch": "flat", "seconds": 1e-3 * ratio, "predicted_s": 2e-3}
        best = {"sketch": "tiles", "seconds": 1e-3, "predicted_s": 3e-3}
        return {"case": case, "target": target, "threads": 1, "regret": ratio, "choice": choice, "entries": [best]}

    rows = [row("a", 1.0), row("b", 4.0), row("c @ avx2", 1.5, "avx2")]
    lines = regret(Results("made_up", {"host": HOST, "rows": [*rows, {"case": "d", "error": "no kernel"}]}))
    assert lines[2:4] == [
        "| avx2, 1 thread | 1 | 1.50 | 1.50 | 1.50 |",
        "| this processor, 1 thread | 2 | 2.50 | 3.85 | 4.00 |",
    ]
    worst = next(line for line in lines if line.startswith("| `b`"))
    assert worst == "| `b` | 4.00 | 4.000 (2.000) | 1.000 (3.000) | `flat` | `tiles` |"
    assert lines.index(worst) < next(n for n, line in enumerate(lines) if line.startswith("| `a`"))
    assert "Without a time: `d` (no kernel)." in lines
    assert totals(rows) == {"rows": 3, "mean": 6.5 / 3, "p95": pytest.approx(3.75), "worst": 4.0}


def test_an_unknown_program_is_named(capsys, tmp_path: Path):
    with pytest.raises(SystemExit):
        main(["--programs", "blurr", "--out", str(tmp_path / "regret.json")])
    assert "there is no program blurr; there are blur, " in capsys.readouterr().err
