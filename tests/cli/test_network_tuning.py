"""`autosched tune` of networks: what reaches the library, what is shown meanwhile and at the end."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autosched
from autosched.cli.network import tune
from autosched.cli.network.tune import COLUMNS, LiveTable, RoundLines, state_text
from autosched.errors import UsageError
from autosched.measure.measurer import Measurer
from autosched.network_tuning.results import NetworkEvent, TaskResult
from tests.graph import networks


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "net.asc"
    autosched.load(networks.perceptron((3, 17)), threads=1, records=False).save(path)
    return path


def event(trials: int, best_s: float | None, **more: Any) -> NetworkEvent:
    tasks = (
        TaskResult("conv-relu", 2, 1.0, 2e-3, best_s, trials, 0, 0.5),
        TaskResult("linear [fast]", 1, 0.0, 2e-9, 1e-9, 4, 1, 0.9),
    )
    known = None if best_s is None else 2 * best_s
    facts = {"turn": 0, "most_trials": None, "elapsed_s": 65.0, "eta_s": None, "start_s": known, "gain": 0.01, **more}
    return NetworkEvent(tasks=tasks, trials=trials, kernels_s=known, **facts)


def test_a_network_is_tuned_by_the_command(cli: Any, saved: Path, tmp_path: Path) -> None:
    words = ("--db", tmp_path / "records.db", "--threads", 1, "--trials", 3)
    answer = cli("tune", saved, *words, "--json")
    assert answer.code == 0
    data = answer.json
    assert (data["model"], data["trials"], data["failed"], data["threads"]) == (str(saved), 3, 0, 1)
    assert [task["trials"] for task in data["tasks"]] == [3]
    assert data["verified"]
    assert data["first_result_s"] < data["wall_s"]
    assert data["latency_ci_s"][0] <= data["latency_s"] <= data["latency_ci_s"][1]
    assert (data["strategy"], data["objective"], data["resumed"]) == ("gradient", "sum", 0)
    plain = cli("tune", saved, *words, "--resume", "--strategy", "round-robin")
    assert "3 measured, 3 of them from records, 0 failed; by round-robin" in plain.out
    assert f"{saved} on cpu, 1 thread: 1 tasks" in plain.out
    assert f"plot {saved} --threads 1 --db" in plain.out
    assert all(name in plain.out for name in COLUMNS)


def varying(path: Path) -> Path:
    """An ONNX file: y = x u for x of any number of rows."""
    onnx = pytest.importorskip("onnx")
    from tests.graph.onnx.models import model, node

    u = np.random.default_rng(0).standard_normal((6, 9), "float32")
    onnx.save(model([node("MatMul", ["x", "u"], ["y"])], {"x": ["rows", 6]}, constants={"u": u}), path)
    return path


def test_several_sizes_are_tuned_together(cli: Any, tmp_path: Path) -> None:
    path = varying(tmp_path / "net.onnx")
    words = ("--db", tmp_path / "records.db", "--threads", 1, "--trials", 4)
    answer = cli("tune", path, "--sizes", "rows=3,17,3", *words)
    assert (answer.code, answer.err) == (0, "")
    for rows in (3, 17):
        assert f"{path} rows={rows} on cpu, 1 thread: 1 tasks" in answer.out
        assert f"plot {path} --size rows={rows} --threads 1" in answer.out
        model = autosched.load(path, sizes={"rows": rows}, threads=1, db=tmp_path / "records.db")
        assert model.inputs[0].shape == (rows, 6)
    for given, reason in (
        (("--sizes", "rows=3,-1"), "is at least 0, got 'rows=-1'"),
        (("--sizes", "rows"), "is written NAME=N"),
        (("--sizes", "columns=2,3"), "no dimension columns to give a size to; it has: rows"),
        ((), "sizes must be given: rows (of x); with --size NAME=N"),
    ):
        answer = cli("tune", path, *given, *words)
        assert answer.code == 2
        assert reason in answer.err
    assert "--sizes of a network are numbers" in cli("tune", path, "--sizes", "rows=3:17").err
    assert "--at is of workloads" in cli("tune", path, "--at", "rows=3").err
    assert "--sizes of a workload is a range" in cli("tune", "matmul", "--sizes", "n=3,4").err


def test_the_arrays_of_a_run_say_sizes(cli: Any, tmp_path: Path) -> None:
    path = varying(tmp_path / "net.onnx")
    x = np.ones((5, 6), "float32")
    np.savez(tmp_path / "in.npz", x=x)
    answer = cli("run", path, "--inputs", tmp_path / "in.npz", "--threads", 1)
    assert (answer.code, answer.err) == (0, "")
    assert "y: float32[5, 9]" in answer.out
    answer = cli("run", path, "--inputs", tmp_path / "in.npz", "--size", "rows=4")
    assert (answer.code, answer.out) == (2, "")
    assert "x must be float32[4, 6], but got float32[5, 6]" in answer.err


def test_ctrl_c_ends_with_the_network_so_far(
    cli: Any, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = Measurer.measure

    def interrupted(self: Measurer, *given: Any) -> Any:
        yield from itertools.islice(measure(self, *given), 1)
        raise KeyboardInterrupt

    monkeypatch.setattr(Measurer, "measure", interrupted)
    answer = cli("tune", saved, "--db", tmp_path / "records.db", "--threads", 1, "--json")
    assert answer.code == 130
    assert (answer.json["interrupted"], answer.json["trials"]) == (True, 1)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--weights", "W"), "weights is of workloads"),
        (("--shape", "1,2"), "shape is of workloads"),
        (("--out-dir", "here"), "--out-dir is of workloads"),
        (("--no-run", "--shape", "1,2"), "--shape is of workloads"),
        (("--no-run", "--trials", "3"), "--trials is of measurements"),
        (("--no-run", "--strategy", "gain"), "--strategy is of measurements"),
        (("--simulate", "--target", "cuda"), "autosched verify has --simulate"),
        (("--size", "n=3"), "--size says what symbolic dimensions"),
        (("--set", "n=3"), "--set gives arguments to a function"),
    ],
)
def test_what_networks_do_not_take(cli: Any, saved: Path, words: tuple[str, ...], sentence: str) -> None:
    answer = cli("tune", saved, *words)
    assert answer.code == 2
    assert sentence in answer.err


def test_a_plan_for_a_gpu_that_is_elsewhere(cli: Any, saved: Path, tmp_path: Path) -> None:
    words = ("tune", saved, "--target", "cuda", "--arch", "sm_90", "--no-run", "--out-dir", tmp_path / "kernels")
    plain = cli(*words)
    assert plain.code == 0
    assert f"{saved} on cuda -arch=sm_90: 1 kernels, 1 tasks" in plain.out
    assert "by the cost model, NOT verified" in plain.out
    assert "__global__" in (tmp_path / "kernels" / "kernel-1.cu").read_text()
    data = cli(*words, "--json").json
    assert (data["model"], data["kernels"], data["target"]) == (str(saved), 1, "cuda -arch=sm_90")
    assert "takes one network, got 2" in cli("tune", saved, saved, "--no-run").err


def test_what_workloads_do_not_take(cli: Any) -> None:
    assert "is none" in cli("tune", "matmul", "--size", "n=3").err
    with pytest.raises(UsageError, match="of networks"):
        autosched.tune("matmul", inputs={"n": 3})  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="at is of workloads"):
        autosched.tune(networks.perceptron((3, 5)), at={"n": [3]})  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="network callbacks"):
        autosched.tune(networks.perceptron((3, 5)), callbacks=[object()])  # type: ignore[call-overload]


def test_lines_tell_how_far_it_is() -> None:
    stream = io.StringIO()
    lines = RoundLines(stream)
    lines.on_turn(event(4, None))
    lines.on_turn(event(8, 1e-3, most_trials=64, eta_s=30.0, start_s=3e-3))
    lines.on_end(event(64, 1e-3, turn=None))
    first, second, last = stream.getvalue().splitlines()
    assert first == "[1:05] 4 trials  1 of 2 tasks have a verified kernel  next: conv-relu"
    assert "8/64 trials  kernels 2.00 ms, 3.00 ms at the start" in second
    assert "0:30 left" in second
    assert last.endswith("final comparison")


def test_the_table_is_drawn_and_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    monkeypatch.setattr("rich._console", None)  # no other test meets the one that is made here
    table = LiveTable()
    table.close()
    table.on_turn(event(4, 1e-3))
    table.on_end(event(8, 1e-3))
    table.close()
    table.close()
    text = io.StringIO()
    Console(file=text, width=120).print(tune._render(event(8, 1e-3)))
    assert state_text(event(8, 1e-3)) in text.getvalue()
    assert "linear [fast]" in text.getvalue()


@pytest.fixture
def second(tmp_path: Path) -> Path:
    path = tmp_path / "other.asc"
    autosched.load(networks.perceptron((3, 17, 5)), threads=1, records=False).save(path)
    return path


def test_several_networks_are_tuned_together(cli: Any, saved: Path, second: Path, tmp_path: Path) -> None:
    words = ("--db", tmp_path / "records.db", "--threads", 1, "--trials", 6, "--objective", "speedup")
    data = cli("tune", saved, second, *words, "--json").json
    assert (data["trials"], data["objective"], data["strategy"]) == (6, "speedup", "gradient")
    assert list(data["networks"]) == ["net", "other"]
    assert [len(network["tasks"]) for network in data["networks"].values()] == [1, 2]
    assert data["networks"]["net"]["tasks"][0]["name"] == data["networks"]["other"]["tasks"][0]["name"]
    assert max(data["start_value"], data["value"]) < 0.0
    assert data["verified"]
    plain = cli("tune", saved, second, *words, "--resume")
    assert f"{second} on cpu, 1 thread: 2 tasks" in plain.out
    assert "objective speedup: " in plain.out


def test_what_is_no_search_for_several_networks(cli: Any, saved: Path, tmp_path: Path) -> None:
    alike = tmp_path / "folder" / "net.asc"
    alike.parent.mkdir()
    alike.write_bytes(saved.read_bytes())
    for words, sentence in (
        ((saved, "matmul"), "matmul is no network, and only networks are tuned together"),
        ((saved, alike), "need names of their own"),
        ((saved, "--strategy", "greedy"), "strategy must be one of gradient, gain, round-robin"),
        (("matmul", "--strategy", "gain"), "--strategy is of networks"),
        (("matmul", "--objective", "sum"), "--objective is of networks"),
    ):
        answer = cli("tune", *words)
        assert answer.code == 2
        assert sentence in answer.err


@pytest.mark.parametrize("body", ["return 1 / 0", "return float('nan')", "return 'fast'", "return -latencies['net']"])
def test_an_objective_that_fails_writes_nothing(cli: Any, saved: Path, tmp_path: Path, body: str) -> None:
    file, records = tmp_path / "mine.py", tmp_path / "records.db"
    file.write_text(f"def f(latencies):\n    {body}\n")
    answer = cli("tune", saved, "--objective", f"{file}:f", "--db", records, "--threads", 1)
    assert answer.code == 2
    assert answer.err.startswith(f"autosched: error: the objective {file}:f ")
    assert answer.err.count("\n") == 1
    assert not records.exists()
