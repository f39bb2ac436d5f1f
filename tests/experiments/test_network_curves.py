"""The networks' curves: collecting, going on, drawing and summing up, with sessions that nobody ran."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments import network_curves
from experiments.network_curves import CurveSession, CurveSetting, main, run_session, sessions_of

SLOWER = {"gradient": 1.0, "gain": 1.02, "round-robin": 1.2}


class FakeSessions:
    """Plays sessions; remembers which."""

    def __init__(self) -> None:
        self.ran: list[CurveSession] = []
        self.broken: set[str] = set()

    def __call__(self, setting: CurveSetting, session: CurveSession) -> dict[str, Any]:
        self.ran.append(session)
        if session.strategy in self.broken:
            return {"error": {"class": "NoAnswer", "message": "exit code 9"}}
        end = 1e-3 * SLOWER[session.strategy] * (1 + 0.01 * session.seed)
        return {
            "trials": 60, "failed": 0, "wall_s": setting.budget_s, "first_result_s": 1.0, "start_latency_s": 4e-3,
            "latency_s": 1.1 * end, "latency_ci_s": [end, 1.2 * end], "kernels_s": end, "verified": True,
            "curve": [[8, 2.0, 3e-3], [20, 5.0, 1.04 * end], [60, 9.0, end]], "tasks": [],
        }  # fmt: skip


def call(tmp_path: Path, fake: FakeSessions, *more: str) -> int:
    return main(["--networks", "a,b", "--seeds", "2", "--out", str(tmp_path / "curves.json"), *more], fake)


def test_every_session_runs_once_and_the_files_are_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    fake = FakeSessions()
    assert call(tmp_path, fake) == 0
    assert sorted(fake.ran) == sorted(sessions_of("ab", list(SLOWER), 2))
    assert [session.strategy for session in fake.ran[::3]] == ["gradient", "gradient", "gain", "gain"]
    content = json.loads((tmp_path / "curves.json").read_text())
    assert content["host"]["cpu_model"]
    assert len(content["rows"]) == 12
    assert "tasks" not in content["rows"][0]
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    lines = capsys.readouterr().out.splitlines()
    assert "| a | gradient | 2 | 4.000 | 1.106 | 1.100 to 1.111 | 1.005 | 60 | 40 | 7 | 20 | 5 |" in lines
    assert any(line.startswith("| b | round-robin | 2 |") and line.endswith("| inf | inf | 20 | 5 |") for line in lines)
    assert call(tmp_path, fake) == 0
    assert len(fake.ran) == 12  # nothing again


def test_what_failed_is_run_again_and_other_settings_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeSessions()
    fake.broken = {"gain"}
    assert call(tmp_path, fake) == 1
    assert sum("error" in row for row in json.loads((tmp_path / "curves.json").read_text())["rows"]) == 4
    fake.broken.clear()
    assert call(tmp_path, fake) == 0
    assert {session.strategy for session in fake.ran[12:]} == {"gain"}
    for words, sentence in (
        (("--budget", "9s"), "made with other settings"),
        (("--strategies", "gradient,greedy"), "strategy must be one of"),
    ):
        with pytest.raises(SystemExit):
            call(tmp_path, fake, *words)
        assert sentence in capsys.readouterr().err
    (tmp_path / "curves.json").write_text("{}")
    with pytest.raises(SystemExit):
        call(tmp_path, fake)
    assert "no result of this experiment" in capsys.readouterr().err


def test_no_session_begins_later(tmp_path: Path) -> None:
    fake = FakeSessions()
    assert call(tmp_path, fake, "--for", ".000001s") == 1
    assert fake.ran == []


def test_the_command_of_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def answer(command: list[str], timeout_s: float) -> dict[str, Any]:
        said.extend(command)
        assert timeout_s > 25.0
        return {"error": {"message": "none"}}

    monkeypatch.setattr(network_curves, "answer", answer)
    run_session(CurveSetting(25.0, 2, reduced=True), CurveSession(1, "bert_base", "gain"))
    text = " ".join(said[1:])
    assert text.startswith(
        "-m autosched tune experiments.networks.models:build --set name=bert_base --set reduced=true"
    )
    assert "--strategy gain --seed 1 --threads 2 --budget 25.0s --db " in text
