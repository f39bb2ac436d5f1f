"""The steps of the script for a card: their order, their time, processes that hang or die, and what is kept."""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path

import pytest

from autosched.errors import UsageError
from experiments.gpu import __main__ as script
from experiments.gpu.card_ledger import CardLedger
from experiments.gpu.step import decode, encode, go
from experiments.gpu.steps import BY_NAME, STEPS, CardStep, StepRequest, chosen, seconds_of, step_table
from tests.helpers import python

STEP = """
import sys, time
def predict(request): return "what is expected"
def measure(request):
    yield "one", {"seconds": request.seconds}
    if request.words == ("hangs",): time.sleep(60)
    if request.words == ("dies",): raise ValueError("of a reason")
    print("said aside")
    yield "two", {"is_dry": request.is_dry}
def summary(rows): return f"{len(rows)} rows"
"""


@pytest.fixture
def trial(tmp_path, monkeypatch):
    """A step `trial` whose module lies in the folder of the test, in this process and in those that it starts."""
    (tmp_path / "trial_step.py").write_text(STEP)
    (tmp_path / "sitecustomize.py").write_text(
        "import experiments.gpu.steps as s, sys, importlib\n"
        "class Trial(s.CardStep):\n    def load(self): return importlib.import_module('trial_step')\n"
        "s.BY_NAME['trial'] = Trial('trial', 5, 'a trial', 'trial')\n"
    )
    root = Path(script.__file__).resolve().parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{root}")
    monkeypatch.syspath_prepend(tmp_path)

    class Trial(CardStep):
        def load(self):
            return importlib.import_module("trial_step")

    monkeypatch.setitem(BY_NAME, "trial", Trial("trial", 5, "a trial", "trial"))
    return tmp_path


def test_steps_are_named_and_shared_out():
    assert [s.name for s in chosen("facts, verify")] == ["facts", "verify"]
    with pytest.raises(UsageError, match="--steps takes names of facts"):
        chosen("facts,nothing")
    short, opened = CardStep("a", 40, "", ""), CardStep("b", 100, "", "", is_open=True)
    assert seconds_of((short, opened), 1000.0) == 40
    assert seconds_of((opened,), 1000.0) == 1000
    assert seconds_of((short, opened), 70.0) == pytest.approx(20)
    assert all(step.name in step_table() for step in STEPS)


def test_requests_survive_the_way():
    request = StepRequest("facts", 3.5, True, Path("/x"), ("--trials", "2"))
    assert decode(encode(request)) == request


@pytest.mark.parametrize(
    ("words", "end", "rows"),
    [((), "done", ["one", "two"]), (("dies",), "ended with 1", ["one"]), (("hangs",), "killed", ["one"])],
)
def test_a_step_that_fails_keeps_its_rows(trial, words, end, rows, monkeypatch):
    monkeypatch.setattr(script, "GRACE_S", 0.5)
    ledger = CardLedger(trial / "card.json", True)
    request = StepRequest("trial", 2.0 if "hangs" in words else 20.0, True, trial, words)
    begun = time.monotonic()
    script.run_one(BY_NAME["trial"], request, ledger, trial / "card.log")
    assert time.monotonic() - begun < 20
    kept = json.loads((trial / "card.json").read_text())["steps"]["trial"]
    assert list(kept["rows"]) == rows
    assert kept["prediction"] == "what is expected"
    assert kept["end"].startswith(end)
    assert ("of a reason" in kept["end"]) == ("dies" in words)
    assert kept["summary"] == f"{len(rows)} rows"
    assert f"{len(rows)} rows" in ledger.report(["trial"])


def test_steps_of_earlier_calls_stay(tmp_path):
    first = CardLedger(tmp_path / "card.json", True)
    first.begin("facts")
    first.take("facts", json.dumps({"label": "a", "row": {"x": 1}}), print)
    first.end("facts", "done", 1.0)
    second = CardLedger(tmp_path / "card.json", True)
    second.begin("verify")
    second.write()
    assert list(json.loads((tmp_path / "card.json").read_text())["steps"]) == ["facts", "verify"]
    (tmp_path / "card.json").write_text("{")
    assert CardLedger(tmp_path / "card.json", True).steps == {}
    assert (tmp_path / "card.unreadable").exists()


def test_what_is_no_message_is_said(tmp_path):
    said: list[str] = []
    ledger = CardLedger(tmp_path / "card.json", True)
    ledger.begin("facts")
    ledger.take("facts", "no json", said.append)
    assert said == ["   ? no json"]


def test_the_facts_of_an_opencl_device(tmp_path):
    pytest.importorskip("pyopencl")
    done = python("-m", "experiments.gpu", "--steps", "facts", "--dry", "--minutes", "1", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "card.json").read_text())["steps"]["facts"]["rows"]
    assert rows["software"]["cores"]
    if "attributes" not in rows:
        pytest.skip("no OpenCL device")
    assert rows["copy"]["bytes_s"] > 0
    assert rows["launches"]["in_turn_s"] > 0
    assert "FFMA" in done.stdout


def test_a_step_ends_with_its_summary_even_when_it_raises(trial, capsys):
    module = type(sys)("m")
    exec_lines: list[str] = []

    class To:
        def write(self, text):
            exec_lines.append(text)

        def flush(self):
            pass

    module.predict = lambda request: "p"
    module.summary = lambda rows: f"{len(rows)}"

    def measure(request):
        yield "a", {}
        raise ValueError("x")

    module.measure = measure

    class Trial(CardStep):
        def load(self):
            return module

    BY_NAME["trial"] = Trial("trial", 5, "", "")
    with pytest.raises(ValueError, match="x"):
        go(StepRequest("trial", 1.0, True, trial), To())
    assert [next(iter(json.loads(line))) for line in exec_lines] == ["prediction", "label", "summary"]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_every_step_can_be_loaded_and_sums_up_nothing(step, tmp_path):
    module = step.load()
    assert module.predict(StepRequest(step.name, 1.0, True, tmp_path))
    assert isinstance(module.summary({}), str)
