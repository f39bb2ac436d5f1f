"""How the step `instructions` runs the forms of instructions, with answers put in, and on the simulator."""

from __future__ import annotations

import sys
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest

from autosched.runtime.simulator.build import find_compiler
from autosched.runtime.simulator.execute import Mode
from experiments.arena import ProcessArena
from experiments.gpu import instructions
from experiments.gpu.forms import all_forms
from experiments.gpu.run_form import FAIL, PASS, judged, on_simulator, outputs
from experiments.gpu.steps import StepRequest

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="g++ is not installed (on Debian: g++)")
FORMS = all_forms()


def test_a_wrong_result_is_told():
    form = FORMS["ldmatrix.sync.aligned.m8n8.x1.shared.b16"]
    memory = form.fresh()
    memory["c"][...] = form.expected["c"].values.reshape(memory["c"].shape)
    assert form.complaint(memory) is None
    memory["c"].reshape(-1)[5] += 1
    assert form.complaint(memory) == "1 of 32 of c are wrong, the first at 5: 720907, expected 720906"


@needs_compiler
def test_other_meanings_of_a_descriptor_are_told_apart():
    form = next(f for name, f in FORMS.items() if "swizzle 0, A k-major, B k-major" in name and "bf16" in name)
    found = {other: judged(f, lambda g: on_simulator(g, Mode()))["status"] for other, f in form.others.items()}
    assert found["A exchanged"] == found["A exchanged, B exchanged"] == FAIL
    assert len(form.others) == 15


class Scripted:
    """An arena with answers put in."""

    is_new = False

    def __init__(self, answers):
        self.answers, self.asked, self.closed = answers, [], 0

    def ask(self, request, deadline_s):
        self.asked.append((request.get("other"), request.get("bit")))
        return dict(self.answers[request.get("other")])

    def close(self):
        self.closed += 1


def prepared(refusal=None, simulated=b""):
    future = Future()
    future.set_result((refusal, simulated))
    return future


def test_a_wrong_descriptor_is_tried_with_its_other_meanings(tmp_path):
    form = next(f for f in FORMS.values() if f.others)
    answers = {other: {"status": FAIL, "words": "w"} for other in (None, *form.others)}
    answers["B exchanged"] = {"status": PASS, "words": ""}
    arena = Scripted(answers)
    ((name, row),) = instructions.tried(arena, form.name, form, prepared(), tmp_path / "o.npy")
    assert (name, row["status"], row["passes as"]) == (form.name, FAIL, ["B exchanged"])
    assert f"FAIL {form.name}: w; passes as ['B exchanged']" in instructions.summary({name: row})


def test_what_is_refused_does_not_run_and_a_lost_device_is_left(tmp_path):
    form = FORMS["cvt.f32.f16"]
    arena = Scripted({None: {"status": "FAULT", "words": "illegal_address", "sticky": True}})
    ((_, row),) = instructions.tried(arena, form.name, form, prepared("not known"), tmp_path / "o.npy")
    assert (row["status"], row["words"], arena.asked) == ("REFUSED", "not known", [])
    ((_, row),) = instructions.tried(arena, form.name, form, prepared(), tmp_path / "o.npy")
    assert (row["status"], arena.closed) == ("FAULT", 1)


def test_maps_are_tried_with_either_value_of_a_bit(tmp_path):
    form = next(f for f in FORMS.values() if f.has_maps)
    arena = Scripted({None: {"status": PASS, "words": ""}})
    rows = dict(instructions.tried(arena, form.name, form, prepared(), tmp_path / "o.npy"))
    assert list(rows) == [form.name, *(f"{form.name}{instructions.BIT}{bit}" for bit in (0, 1))]
    assert arena.asked == [(None, None), (None, False), (None, True)]


def test_bytes_are_compared():
    form = FORMS["cvt.f32.f16"]
    a, b = np.array([1, 2], np.float32), np.array([1, 2.5], np.float32)
    assert instructions.compared(b"", a.tobytes(), form) == {"as simulated": None}
    assert instructions.compared(a.tobytes(), a.tobytes(), form) == {"as simulated": True}
    found = instructions.compared(a.tobytes(), b.tobytes(), form)
    assert found == {"as simulated": False, "apart": 0.5, "of": 2.0}


@needs_compiler
def test_the_step_without_a_card(tmp_path, monkeypatch):
    kept = {name: FORMS[name] for name in list(FORMS)[::40]}
    monkeypatch.setattr(instructions, "chosen", lambda is_dry: kept)
    rows = dict(instructions.measure(StepRequest("instructions", 60.0, True, tmp_path)))
    assert {row["status"] for row in rows.values()} == {PASS}
    assert all(row["as simulated"] for name, row in rows.items() if name in kept)
    assert instructions.summary(rows).startswith(f"{len(rows)} PASS; the simulator's bytes: {len(kept)} of {len(kept)}")


def test_a_process_is_new_until_it_is_asked(tmp_path):
    arena = ProcessArena([sys.executable, "-c", "print('{\"row\": {}}'); input()"], tmp_path / "log")
    assert arena.is_new
    arena.ask({}, 10.0)
    arena.close()
    assert arena.is_new


def test_outputs_are_what_is_compared():
    form = FORMS["cp.async.bulk to global"]
    assert outputs(form, form.memory).nbytes == 256


def test_clusters_are_said_in_the_text():
    form = replace(FORMS["cvt.f32.f16"], cluster=2)
    assert "__cluster_dims__(2, 1, 1) __launch_bounds__(512, 1) k(" in form.text
    assert form.launch.grid == (2, 1, 1)
