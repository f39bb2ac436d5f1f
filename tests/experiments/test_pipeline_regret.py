"""The regret of the analytic model's choice: which candidates are measured, and what is said of their times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autosched.te import ComputeDAG
from experiments.pipelines import regret
from experiments.pipelines.random_pipelines import SMALL, pipeline_dag
from experiments.pipelines.regret import main, measure, random_workload, report

TINY = replace(SMALL, rows=(9,), columns=(40,), stages=2, dtypes=(("float32",),))


def test_a_seed_is_always_the_same_pipeline():
    one, other = (pipeline_dag("4", SMALL) for _ in range(2))
    assert isinstance(one, ComputeDAG)
    assert [t.shape for t in one.outputs] == [t.shape for t in other.outputs]
    assert len({tuple(t.shape for t in pipeline_dag(str(n), SMALL).outputs) for n in range(6)}) > 1


def test_the_choice_is_timed_beside_candidates_of_sketches():
    workload, arrays, _ = random_workload("0-1", TINY)
    row = measure("0-1", workload, arrays, threads=1, most=2)
    assert row["failures"] == []
    assert row["entries"][0]["sketch"] == row["choice"]
    assert 1 <= len(row["entries"]) <= 3
    assert row["regret"] >= 1
    assert row["best_s"] == min(entry["seconds"] for entry in row["entries"])


def test_a_candidate_that_does_not_agree_is_no_time(monkeypatch):
    monkeypatch.setattr(regret, "_agree", lambda a, b: False)
    workload, arrays, _ = random_workload("0-1", TINY)
    row = measure("0-1", workload, arrays, threads=1, most=1)
    assert [entry["sketch"] for entry in row["entries"]] == [row["choice"]]
    assert row["failures"][0].endswith("does not agree with the choice")


def test_results_agree_within_rounding_of_the_largest():
    a = np.array([1.0, 1000.0, np.inf, np.nan])
    assert regret._agree(a, a)
    assert regret._agree(a + np.array([0.9, 0, 0, 0]), a)
    assert not regret._agree(a + np.array([1.1, 0, 0, 0]), a)


def test_the_report_has_the_worst_first_and_the_means():
    rows = [
        {"pipeline": name, "regret": ratio, "choice": "flat", "choice_s": 1e-3 * ratio, "choice_predicted_s": 2e-3,
         "best": "tiles", "best_s": 1e-3, "best_predicted_s": 3e-3, "entries": [1, 2], "failures": []}
        for name, ratio in (("a", 1.0), ("b", 4.0))
    ]  # fmt: skip
    lines = report(rows).splitlines()
    assert lines[1].split() == ["b", "4.00", "4.000", "(2.000)", "1.000", "(3.000)", "1", "0", "flat,", "tiles"]
    assert lines[-1] == "regret: mean 2.50, geometric mean 2.00, worst 4.00"


def test_an_unknown_program_is_named(capsys):
    with pytest.raises(SystemExit):
        main(["--programs", "blurr"])
    assert "there is no program blurr; there are blur, " in capsys.readouterr().err
