"""The curves' collecting, resuming, drawing and summing up, with sessions that nobody ran."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import tuning_curves, tuning_session
from experiments.tuning_curves import Figure, best_so_far, main
from experiments.tuning_figure import TRIAL, near_at, on_grid, summary

# How much slower than the full system a variant's best stays, and how many times the trials it takes.
SLOWER = {"full": (1.0, 1), "random": (1.6, 4), "no_crossover": (1.0, 1), "no_draft": (1.0, 6)}


class Fake:
    """Plays sessions; remembers which."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, int]] = []
        self.broken: set[tuple[str, int]] = set()

    def __call__(self, setting: Figure, variant: str, seed: int) -> dict[str, Any]:
        self.ran.append((variant, seed))
        if (variant, seed) in self.broken:
            return {"error": {"class": "NoAnswer", "message": "exit code 9"}}
        slower, later = SLOWER[variant]
        best = 1e-3 * slower * (1 + 0.01 * seed)
        curve = [[1, 2.0, 4 * best], [2 * later, 2.0 + later, 1.2 * best], [4 * later, 3.0 + later, best]]
        return {
            "best_s": best, "gflops": 0.5 / best, "wall_s": 10.0, "trials": setting.trials, "failed": 0, "curve": curve,
            "shape": [1, 2],
        }  # fmt: skip


def call(tmp_path: Path, fake: Fake, *more: str) -> int:
    variants = ",".join(SLOWER)
    argv = ["--variants", variants, "--seeds", "3", "--trials", "32", "--batch", "1", "--out", str(tmp_path), *more]
    return main(argv, run=fake)


def content(tmp_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tmp_path / "tuning_curves-c2d-3-n1.json").read_text())
    return found


def test_every_session_runs_once_and_the_files_are_there(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    fake = Fake()
    assert call(tmp_path, fake) == 0
    assert sorted(fake.ran) == sorted((v, s) for v in SLOWER for s in range(3))
    found = content(tmp_path)
    assert found["settings"]["shape"] == [1, 7, 7, 512, 512, 3, 1, 1]
    assert found["host"]["cpu_model"]
    assert len(found["sessions"]) == 12
    assert (tmp_path / "tuning_curves-c2d-3-n1.png").read_bytes().startswith(b"\x89PNG")
    assert call(tmp_path, fake) == 0
    assert len(fake.ran) == 12  # nothing again
    assert call(tmp_path, fake, "--seeds", "4") == 0
    assert sorted(fake.ran[12:]) == sorted((v, 3) for v in SLOWER)


def test_a_failed_session_is_run_again_and_other_settings_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    fake = Fake()
    fake.broken = {("random", 1)}
    assert call(tmp_path, fake) == 0
    assert [s["error"] for s in content(tmp_path)["sessions"] if "error" in s] == ["exit code 9"]
    fake.broken.clear()
    assert call(tmp_path, fake) == 0
    assert fake.ran[12:] == [("random", 1)]
    assert all("error" not in s for s in content(tmp_path)["sessions"])
    with pytest.raises(SystemExit):
        call(tmp_path, fake, "--trials", "33")
    assert "other settings" in capsys.readouterr().err


def test_no_session_starts_when_the_time_is_over(tmp_path: Path) -> None:
    fake = Fake()
    assert call(tmp_path, fake, "--for", "0.000001s") == 1
    assert not fake.ran


@pytest.mark.parametrize(
    "argv",
    [
        ["--variants", "full,quick"], ["--variants", "metaschedule"], ["--case", "c2d"], ["--case", "softmax"],
        ["--seeds", "0"], ["--trials", "0"], ["--batch", "0"], ["--threads", "999"], ["--out", __file__],
    ],
)  # fmt: skip
def test_what_is_not_there_is_refused(argv: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--out", str(tmp_path), *argv], run=Fake())
    assert ended.value.code == 2


def test_the_table_says_what_the_numbers_say() -> None:
    fake, setting = Fake(), Figure("c2d:3", (1, 7), 1, 32, 2)
    sessions = [{"variant": v, "seed": s, **fake(setting, v, s)} for v in SLOWER for s in range(3)]
    names = {v: tuning_session.VARIANTS[v].says for v in SLOWER}
    rows = [line.rstrip() for line in summary(sessions, names).splitlines()]
    expected = (
        ("full system", "3", "495.0", "490.2 to 500.0", "1.00", "4", "4", "10.0"),
        ("random sampling", "3", "309.4", "306.4 to 312.5", "0.63", "inf", "inf", "10.0"),
        ("no crossover", "3", "495.0", "490.2 to 500.0", "1.00", "4", "4", "10.0"),
        ("no draft", "3", "495.0", "490.2 to 500.0", "1.00", "24", "9", "10.0"),
    )
    assert [tuple(re.split(" {2,}", line.strip())) for line in rows[-4:]] == list(expected)
    assert "no session of the full system" in summary(sessions[3:], names)


def test_curves_on_a_grid_and_of_a_history() -> None:
    curve = best_so_far([(1.0, None), (1.0, 5.0), (2.0, 6.0), (2.0, 3.0)])
    assert curve == [[2, 1.0, 5.0], [4, 2.0, 3.0]]
    seconds = on_grid(curve, TRIAL, np.array([1.0, 2.0, 3.0, 4.0, 9.0]))
    assert seconds.tolist() == [math.inf, 5.0, 5.0, 3.0, 3.0]
    session = {"curve": curve}
    assert (near_at(session, 5.0, TRIAL), near_at(session, 4.0, TRIAL), near_at(session, 2.0, TRIAL)) == (2, 4, None)


def test_a_session_is_a_search_of_its_variant(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[dict[str, Any]] = []

    class Answer:
        def to_json(self) -> dict[str, object]:
            return {"best_s": 1.0}

    def tune(workload: str, **given: Any) -> Answer:
        asked.append({"workload": workload, **given})
        return Answer()

    monkeypatch.setattr(tuning_session.at, "tune", tune)
    assert (
        tuning_session.main(["gmm", "--shape", "1,8,8,8", "--variant", "limited", "--seed", "3", "--trials", "5"]) == 0
    )
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"best_s": 1.0}
    (call,) = asked
    assert (call["workload"], call["shape"], call["seed"], call["trials"]) == ("gmm", (1, 8, 8, 8), 3, 5)
    assert call["search"].narrow is tuning_session.plain_tiles
    assert len({v.search.policy for v in tuning_session.VARIANTS.values()}) == 6  # each but `limited` has its own
    assert tuning_curves.KEPT
