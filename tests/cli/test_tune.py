import io
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autosched import api
from autosched.cli.progress import LiveLine, PlainLines
from autosched.cli.tune import summary
from autosched.errors import DeviceError
from autosched.tuner.policy import SearchSetup
from tests.cli.fakes import event, result

FIELDS = {
    *("schema_version", "workload", "shape", "dtype", "target", "threads", "trials", "failed"),
    *("wall_s", "search_s", "build_s", "measure_s", "first_result_s"),
    *("best_s", "best_ci_s", "gflops", "peak_gflops", "fraction_of_peak", "record_id", "verified"),
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What `api.tune` was called with; it reports three trials to the callbacks."""
    seen: list[dict[str, Any]] = []

    def tune(workload: str, **keywords: Any) -> Any:
        seen.append({"workload": workload, **keywords})
        done = result()
        for callback in keywords["callbacks"]:
            callback.on_start(event(0, None))
            callback.on_round(event(0, None))
            callback.on_result(event(1, 90e-6))
            callback.on_result(event(2, 90e-6, failed=1))
            callback.on_result(event(3, 83.1e-6, failed=1, phase="descend"))
            callback.on_finish(done)
        return done

    monkeypatch.setattr(api, "tune", tune)
    return seen


def test_options_reach_the_library(cli: Any, calls: list[dict[str, Any]], tmp_path: Path) -> None:
    words = (
        f"tune gmm --shape 1,2,3,4 --set N=5 --set M=6 --batch 2 --dtype float64 --weights X,Y --winograd --precision tf32 --target cpu --threads 1 --seed 3 \
--trials 9 --budget 2m --db {tmp_path}/r.db --resume --out-dir {tmp_path}/out"
    )
    assert cli(*words.split()).code == 0
    (call,) = calls
    search = call.pop("search")
    assert isinstance(search.started, float)
    assert search == SearchSetup(started=search.started)
    call.pop("callbacks")
    assert call == {
        "workload": "gmm",
        "shape": (1, 2, 3, 4),
        "settings": {"N": 5, "M": 6},
        "batch": 2,
        "dtype": "float64",
        "weights": ("X", "Y"),
        "winograd": True,
        "precision": "tf32",
        "target": "cpu",
        "threads": 1,
        "trials": 9,
        "budget_s": 120.0,
        "seed": 3,
        "db": tmp_path / "r.db",
        "resume": True,
        "out_dir": tmp_path / "out",
    }


def test_defaults(cli: Any, calls: list[dict[str, Any]]) -> None:
    cli("tune", "conv2d")
    cli("tune", "conv2d", "--budget", "5s")
    assert [c["trials"] for c in calls] == [64, 10_000]
    assert calls[0]["settings"] == {}
    assert calls[0]["dtype"] is None  # the library's default
    assert calls[0]["target"] == "cpu"
    assert calls[0]["budget_s"] is None


def test_json_is_the_contract_and_nothing_else(cli: Any, calls: list[dict[str, Any]]) -> None:
    answer = cli("tune", "matmul", "--json")
    assert answer.err == ""
    assert answer.out.count("\n") == 1
    assert set(answer.json) >= FIELDS
    assert answer.json["best_ci_s"] == [82.7e-6, 83.6e-6]
    assert calls[0]["callbacks"] == ()


def test_json_on_a_terminal_shows_lines_on_stderr(
    cli: Any, calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert cli("tune", "matmul", "--json").out.count("\n") == 1
    assert "best 83.1 us" in terminal.getvalue()


def test_plain_lines_tell_improvements_and_rounds(cli: Any, calls: list[dict[str, Any]]) -> None:
    lines = cli("tune", "matmul").out.splitlines()
    assert lines[:4] == [
        "matmul on cpu, 2 threads: 2 sketches",
        "[0:00] 0 trials  round 0, draft: no verified kernel yet",
        "[0:01] 1 trial  best 90.0 us, 289 GFLOP/s, 56 % of peak",
        "[0:03] 3 trials, 1 failed  best 83.1 us, 313 GFLOP/s, 60 % of peak",
    ]
    assert "  best    83.1 us [82.7, 83.6], 312 GFLOP/s, 60 % of the measured peak of 520 GFLOP/s" in lines


def test_summary_names_the_next_commands() -> None:
    text = summary(result(interrupted=True), Path("x.db"))
    assert "autosched show 17 --db x.db" in text
    assert "autosched best matmul --db x.db" in text
    assert "autosched export 17 --kind so --db x.db" in text
    assert "3 measured, 1 failed (1 crash)" in text
    assert "interrupted" in text


def test_the_next_commands_name_what_the_record_is_of() -> None:
    text = summary(replace(result(), workload="my ops.py:gelu", target="llvm -mcpu=haswell"))
    assert "autosched export 17 --workload 'my ops.py:gelu' --target 'llvm -mcpu=haswell' --kind so" in text
    assert "autosched best 'my ops.py:gelu' --target 'llvm -mcpu=haswell'" in text
    assert "--target" not in summary(replace(result(), target="cuda"))


def test_interrupted_with_a_result_exits_130(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "tune", lambda *_, **__: result(interrupted=True))
    answer = cli("tune", "matmul", "--json")
    assert (answer.code, answer.json["interrupted"]) == (130, True)


def test_missing_device_exits_5(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def tune(*_: object, **__: object) -> None:
        raise DeviceError("no CUDA driver was found")

    monkeypatch.setattr(api, "tune", tune)
    answer = cli("tune", "conv2d", "--target", "cuda")
    assert (answer.code, answer.err) == (5, "autosched: error: no CUDA driver was found\n")


def test_live_line_draws_and_gives_the_terminal_back(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setenv("TERM", "xterm")
    live = LiveLine(budget_s=10.0)
    live.on_start(event(0, None))
    live.on_round(event(0, None))
    live.on_result(event(1, 90e-6, failed=1))
    live.close()
    live.on_result(event(2, 90e-6))  # late news are ignored
    live.close()
    shown = terminal.getvalue()
    assert "no verified kernel yet" in shown
    assert "1 trial, 1 failed  best 90.0 us, 289 GFLOP/s, 56 % of peak" in shown
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1  # cursor hidden, then shown


def test_plain_lines_show_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("autosched.cli.progress.time.monotonic", lambda: now[0])
    stream = io.StringIO()
    lines = PlainLines(stream)
    for trial in range(1, 30):
        now[0] += 1.0
        lines.on_result(event(trial, None, failed=trial))
    assert stream.getvalue().count("\n") == 2
