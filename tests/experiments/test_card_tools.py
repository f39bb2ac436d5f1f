"""The steps that watch a process with NVIDIA's tools: what they ask for, and what they read."""

from __future__ import annotations

import json
import sys

import pytest

from experiments.gpu import counters, sanitizer
from experiments.gpu.steps import StepRequest

TOOL = """#!{python}
import sys
print("==PROF== connected")
print('"ID","Kernel Name","gpu__time_duration.sum","sm__inst_executed_pipe_tensor_op_gmma.pct","other"')
print('"","","ns","%",""')
print('"0","gemm","1400","81.5","1"')
"""


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """Stand-ins on the path, and results of earlier steps."""
    for name in ("ncu", "compute-sanitizer"):
        path = tmp_path / name
        path.write_text(TOOL.format(python=sys.executable))
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    forms = {"a": {"status": "PASS"}, "b": {"status": "LOST"}, "b, bit 21 of the map 1": {"status": "FAIL"}}
    rungs = {
        "8x8x8: x": {"tflops": 1.0, "form": {}},
        "8x8x8: y": {"error": "e"},
        "8x8x8: z": {"tflops": 2.0, "form": {}},
    }
    (tmp_path / "card.json").write_text(
        json.dumps({"steps": {"instructions": {"rows": forms}, "ladder": {"rows": rungs}}})
    )
    return StepRequest("counters", 30.0, True, tmp_path)


def test_counters_of_the_best_rungs(tools):
    rows = dict(counters.measure(tools))
    assert list(rows) == ["8x8x8: z", "8x8x8: x"]
    assert rows["8x8x8: z"] == {
        "gpu__time_duration.sum ns": "1400", "sm__inst_executed_pipe_tensor_op_gmma.pct %": "81.5",
    }  # fmt: skip
    assert "gmma.pct % 81.5" in counters.summary(rows)


def test_the_sanitizer_looks_at_what_failed(tools):
    rows = dict(sanitizer.measure(tools))
    assert list(rows) == ["memcheck b", "racecheck b"]
    assert rows["memcheck b"]["status"] == 0
    assert "connected" in sanitizer.summary(rows)


def test_a_tool_that_does_not_end_is_killed():
    found = sanitizer.watched([sys.executable, "-c", "import time; time.sleep(60)"], 0.5)
    assert found == {"status": "killed", "words": "not done within 0 s"}


def test_without_the_tools_the_steps_say_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    request = StepRequest("counters", 30.0, True, tmp_path)
    assert "not installed" in counters.summary(dict(counters.measure(request)))
    assert "not installed" in sanitizer.summary(dict(sanitizer.measure(request)))
