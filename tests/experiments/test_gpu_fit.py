"""Constants fitted to times that the model itself made with others, and the table that they are kept in."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autosched.errors import TargetError, UsageError
from autosched.ir.closed_forms.program import Program
from autosched.ir.instructions.matrices import MATRICES
from autosched.runtime.gpu.tensor_pipes import PIPES
from autosched.target import parse_target
from cost_model.gpu import constants
from cost_model.gpu.constants import CardConstants, constants_of, matrix_rates_of, read_cards, with_card
from cost_model.gpu.machine import gpu_machine
from experiments.gpu import fit
from experiments.gpu.drawn import CalibrationProblem, card_facts, drawn, named, problem_model
from experiments.gpu.fit_quality import rank_correlation, ranking

TARGET = parse_target("cuda -arch=sm_90")
PROBLEMS = (
    CalibrationProblem("gmm", (1, 512, 512, 512), "float32", 10),
    CalibrationProblem("gmm", (1, 512, 512, 512), "bfloat16", 10),
    CalibrationProblem("softmax", (1024, 1000), "float32", 8),
)
TRUE = replace(CardConstants(), issue=1.3, dram_share=0.88, launch_s=5e-6, global_latency=900.0, alone=2.5)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A file as the calibration writes it, with times that TRUE and a little noise would make."""
    file, rng = tmp_path_factory.mktemp("fit") / "c.jsonl", np.random.default_rng(0)
    lines = [{"schema_version": 1, "card": card_facts(TARGET), "target": "cuda"}]
    for problem in PROBLEMS:
        of = problem_model(problem, TARGET)
        lines.append({"problem": {"label": problem.label, **vars(problem)}})
        picked = drawn(of, 1)
        rows = [
            {"label": problem.label, "sketch": of.sketches[c.sketch].name, "values": named(of, c), "samples": [1.0]}
            for c in picked
        ]
        made, _ = fit._measured(problem, gpu_machine(TARGET, fit.SYMBOLS), [row | {"seconds": 1.0} for row in rows])
        for found in made:
            mine = [row for row in rows if row["sketch"] == found.sketch]
            for row, seconds in zip(mine, found.predicted(fit.vector(TRUE)[None, :])[0], strict=True):
                row["seconds"] = seconds * float(np.exp(rng.normal(0, 0.02)))
                row["samples"] = [row["seconds"]]
        rows[-1] = {"label": problem.label, "sketch": "x", "values": {}, "failure": "spills", "message": ""}
        lines += rows
    file.write_text("\n".join(map(json.dumps, lines)) + '\n{"cut')
    return file


def test_symbolic_constants_say_what_numbers_say():
    of = problem_model(PROBLEMS[0], TARGET)
    candidate = drawn(of, 0)[0]
    row = {"sketch": of.sketches[candidate.sketch].name, "values": named(of, candidate), "samples": [1.0]}
    ((sketch,), _) = fit._measured(PROBLEMS[0], gpu_machine(TARGET, fit.SYMBOLS), [row])
    said = of.model.analytic_latency(candidate.sketch, np.array([candidate.values]))
    assert sketch.predicted(fit.vector(constants_of(TARGET.gpu))[None, :])[0] == pytest.approx(said)


def test_the_fit_finds_what_made_the_times(measured, monkeypatch):
    monkeypatch.setattr(fit, "STEPS", 25)
    of = fit.read([measured])
    assert len(of.left_out) == len(PROBLEMS)
    found = fit.fit(of, CardConstants())
    off = []
    for constants_ in (CardConstants(), found):
        pairs = [of.of_problem(label, constants_) for label in of.problems]
        off.append(np.mean(np.abs(np.log(np.concatenate([p / s for p, s in pairs])))))
        assert max(ranking(*pair).regret for pair in pairs) < 1.2
    assert off[1] < 0.5 * off[0]
    assert found.launch_s == pytest.approx(TRUE.launch_s, rel=0.3)
    assert all(
        a <= fit.FREEDOM * b * 1.001 for a, b in zip(fit.vector(found), fit.vector(CardConstants()), strict=True)
    )


def test_the_command_prints_what_it_found_and_writes_the_table(measured, tmp_path, monkeypatch, capsys):
    cards = tmp_path / "cards.json"
    cards.write_text("{}")
    monkeypatch.setattr(fit, "CARDS", cards)
    monkeypatch.setattr(fit, "STEPS", 2)
    assert fit.main([str(measured), "--write"]) == 0
    shown = capsys.readouterr().out
    assert "launch_s: " in shown
    assert "left out 1 of softmax:1024x1000 float32: spills" in shown
    row = json.loads(cards.read_text())[card_facts(TARGET)["name"]]
    assert set(row["constants"]) == set(constants.NAMES)
    assert row["arch"] == "sm_90"


def test_measurements_of_several_cards_or_none_are_refused(measured, tmp_path):
    other = tmp_path / "d.jsonl"
    other.write_text(json.dumps({"card": {**card_facts(TARGET), "name": "another"}, "target": "cuda"}))
    with pytest.raises(UsageError, match="one card"):
        fit.read([measured, other])
    (tmp_path / "empty").write_text("")
    with pytest.raises(UsageError, match="one card"):
        fit.read([tmp_path / "empty"])
    assert fit.main([str(tmp_path / "missing")]) == UsageError.exit_code


def test_a_card_s_constants_are_found_by_name_then_by_capability(tmp_path, monkeypatch):
    facts = TARGET.gpu
    text = with_card({}, facts, replace(CardConstants(), launch_s=4e-6), "a test", {"mma.int8": 1000.0})
    table = json.loads(with_card(json.loads(text), replace(facts, name="b"), CardConstants(), "a test", {}))
    monkeypatch.setattr(constants, "read_cards", lambda: table)
    assert constants_of(facts).launch_s == 4e-6
    assert constants_of(replace(facts, name="b")) == CardConstants()
    assert constants_of(replace(facts, name="c")).launch_s == 4e-6
    assert constants_of(replace(facts, name="c", arch="")) == CardConstants()
    assert matrix_rates_of(replace(facts, name="c")) == {"mma.int8": 1000.0}
    assert not matrix_rates_of(replace(facts, name="b"))
    machine = gpu_machine(TARGET, replace(CardConstants(), tensor_share=0.9, clock_share=0.75))
    assert fit_value(machine.matrix_rate(MATRICES["mma.int8"])) == pytest.approx(1200.0)
    assert fit_value(machine.matrix_rate(MATRICES["mma.bfloat16"])) == pytest.approx(0.9 * 1288)


def fit_value(closed):
    return float(Program([closed], ())(np.zeros((1, 0), np.int64))[0, 0])


def test_tensor_cores_are_as_fast_as_a_ledger_says(measured, tmp_path):
    facts, ledger = TARGET.gpu, tmp_path / "ledger.json"
    rows = {"attributes": {"name": facts.name}, "wgmma.bfloat16": {"gflops": 660_000.0}, "mma.int8": {"error": "no"}}
    ledger.write_text(json.dumps({"steps": {"facts": {"rows": rows}}}))
    expected = 660e12 / (2 * facts.multiprocessors * facts.clock_ghz * 1e9)
    assert fit.read([measured], ledger).matrix_rates == {"wgmma.bfloat16": pytest.approx(expected)}
    rows["attributes"]["name"] = "another"
    ledger.write_text(json.dumps({"steps": {"facts": {"rows": rows}}}))
    with pytest.raises(UsageError, match="is of another, but the measurements are of"):
        fit.read([measured], ledger)
    ledger.write_text("{}")
    with pytest.raises(UsageError, match="no ledger"):
        fit.read([measured], ledger)


@pytest.mark.parametrize("text", ["", "[]", '{"a": {"arch": "sm_90"}}', '{"a": {"arch": "", "constants": {"no": 1}}}'])
def test_a_table_of_another_form_is_refused(text, tmp_path):
    file = tmp_path / "cards.json"
    file.write_text(text)
    with pytest.raises(TargetError, match=r"table of cards"):
        read_cards(file)


def test_the_table_in_the_package_is_sound():
    for name, row in read_cards().items():
        assert name
        assert all(float(x) > 0 for x in row["constants"].values())
        assert set(row["matrix_rates"]) <= set(PIPES)


def test_rank_correlation_and_regret():
    a, b = np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    assert rank_correlation(a, b) == pytest.approx(1.0)
    assert rank_correlation(-a, b) == pytest.approx(-1.0)
    found = ranking(1 / a, b)
    assert (found.regret, found.regret_of_4) == (5.0, 2.0)


CALIBRATION = Path(__file__).resolve().parents[2] / "experiments" / "results" / "gpu" / "nvidia-h200-calibration.jsonl"
QUICKLY_READ = ("softmax", "layer_norm", "gmm:1x512x", "gmm:1x8192x")


def test_the_model_orders_what_was_measured(tmp_path):
    """Of a few problems; experiments.gpu.fit prints all."""
    lines = [json.loads(line) for line in CALIBRATION.read_text().splitlines()]
    kept = [
        x
        for x in lines
        if str(x.get("label") or x.get("problem", x).get("label", QUICKLY_READ[0])).startswith(QUICKLY_READ)
    ]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, kept)))
    of = fit.read([tmp_path / "c.jsonl"])
    found = [ranking(*of.of_problem(label, constants_of(of.facts))) for label in of.problems]
    assert len(found) == len(QUICKLY_READ)
    assert np.mean([q.correlation for q in found]) > 0.75
    assert max(q.regret for q in found) < 1.2
