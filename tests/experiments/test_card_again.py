"""The step that runs rows of a calibration again: which rows, what the tools are asked, and what is read from them."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import pytest

from autosched.errors import UsageError
from autosched.runtime.simulator.build import find_compiler
from autosched.target import parse_target
from experiments.gpu import again
from experiments.gpu.again import AgainRow, chosen_rows, decode, read_rows
from experiments.gpu.again_run import operands, rebuilt
from experiments.gpu.drawn import CalibrationProblem, drawn, named, problem_model
from experiments.gpu.steps import StepRequest

TOOL = """#!{python}
import subprocess, sys
if "--import" in sys.argv:
    print('"ID","Kernel Name","gpu__time_duration.sum","smsp__issue_active.avg.pct_of_peak_sustained_active","x"')
    print('"","","ns","%",""')
    print('"0","gemm","1400","81.5","1"')
else:
    begin = next(n for n, word in enumerate(sys.argv) if word == {python!r})
    raise SystemExit(subprocess.run(sys.argv[begin:]).returncode)
"""
PROBLEM = {"workload": "gmm", "shape": [1, 24, 20, 12], "dtype": "float32", "label": "p", "candidates": 4}


def a_row(**fields):
    of = problem_model(CalibrationProblem("gmm", (1, 24, 20, 12), candidates=4), parse_target("cuda"))
    candidate = drawn(of, 0)[0]
    row = AgainRow("gmm", (1, 24, 20, 12), "float32", of.sketches[candidate.sketch].name, named(of, candidate))
    return AgainRow(**asdict(row) | fields)


def test_rows_of_a_calibration_are_named_by_problem_and_place():
    lines = [
        {"card": {}}, {"problem": PROBLEM}, {"label": "p", "sketch": "a", "values": {"x": 1}, "seconds": 2.0},
        {"label": "p", "sketch": "b", "values": {"x": 2}, "seconds": 1.0},
        {"label": "p", "sketch": "c", "values": {"x": 3}, "failure": "illegal_address"},
    ]  # fmt: skip
    assert [row.sketch for row in chosen_rows(lines, ["p", "p@1", "failures"])] == ["b", "a", "c"]
    assert len({row.label for row in chosen_rows(lines, ["p", "p@1", "failures"])}) == 3
    (row,) = chosen_rows(lines, ["failures"])
    assert decode(json.dumps(asdict(row))) == row
    for absent in ("q", "p@2"):
        with pytest.raises(UsageError, match="the calibration has no"):
            chosen_rows(lines, [absent])


def test_a_candidate_is_made_again_or_it_is_said_why_not(tmp_path):
    target = parse_target("cuda")
    of = rebuilt(a_row(), target)
    assert [spec.shape for spec in of.arrays] == [(1, 24, 12), (1, 12, 20), (1, 24, 20)]
    (tmp_path / "by-hand.cu").write_text("// changed")
    assert rebuilt(a_row(text=str(tmp_path / "by-hand.cu")), target).source.text == "// changed"
    with pytest.raises(UsageError, match="no sketch of that name; there are"):
        rebuilt(a_row(sketch="none"), target)
    with pytest.raises(UsageError, match="the sketch has no x; it takes"):
        rebuilt(a_row(values={"x": 1}), target)
    first = next(iter(a_row().values))
    assert rebuilt(a_row(values={first: 1}), target).source.text != of.source.text  # others may have come later
    with pytest.raises(UsageError, match="only single products"):
        operands(None, a_row(workload="softmax"))
    with pytest.raises(UsageError, match="has no rows"):
        read_rows(tmp_path / "nothing")


def test_a_dry_run_launches_in_the_simulator(tmp_path, monkeypatch):
    if find_compiler() is None:
        pytest.skip("g++ is not installed (on Debian: g++)")
    for name in ("ncu", "compute-sanitizer"):
        (tmp_path / name).write_text(TOOL.format(python=sys.executable))
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    written = [a_row(), a_row(failure="illegal_address", note="failed")]
    (tmp_path / "again.jsonl").write_text("".join(json.dumps(asdict(row)) + "\n" for row in written))
    rows = dict(again.measure(StepRequest("again", 60.0, True, tmp_path)))
    label = written[0].label
    assert list(rows) == [f"time {label}", f"ncu {label}", f"memcheck {written[1].label}"]
    assert rows[f"time {label}"] == {"wrong": 0}
    assert rows[f"ncu {label}"]["gpu__time_duration.sum ns"] == "1400"
    assert rows[f"memcheck {written[1].label}"]["status"] == 0
    assert "issue_active" in again.summary(rows)
    assert len(list((tmp_path / "again").glob("*.csv"))) == 2
    assert again.predict(StepRequest("again", 60.0, True, tmp_path))
    assert again.summary({}) == "nothing was run again"
