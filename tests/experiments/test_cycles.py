"""Counting cycles: what is counted, and what is said where nobody may count."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from autosched.errors import DeviceError
from experiments import cycles, metaschedule
from experiments.tuning import BenchmarkCase


@pytest.fixture
def counting() -> None:
    try:
        cycles.CycleCounter(cycles.CYCLES).__exit__()
    except DeviceError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("counting")
def test_more_work_is_more_instructions() -> None:
    with cycles.CycleCounter(cycles.INSTRUCTIONS) as counter:
        few, many = (counter.during(lambda n=n: sum(range(n))) for n in (1000, 100_000))
    assert 0 < 10 * few < many


@pytest.mark.usefixtures("counting")
def test_a_tuned_kernel_is_counted() -> None:
    row = cycles.measure(BenchmarkCase("matmul", own_shape=(33, 17, 65)), 1, trials=2, seed=0, peak_rate=32.0)
    assert row["flops"] == 2 * 33 * 17 * 65
    assert 0 < row["share"] <= 64 / 32  # of two pipes of 16 lanes, if the processor has as many
    assert row["instructions"] > row["flops"] / 2 / 16
    assert row["called"] > row["cycles"] / 2
    assert row["case"] in cycles.cells(row)


def test_where_nobody_may_count_a_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cycles, "_SYSCALL", {"riscv64": 241})
    with pytest.raises(DeviceError, match="counting cycles is written for riscv64, this is"):
        cycles.CycleCounter(cycles.CYCLES)


def test_a_case_that_could_not_be_tuned_keeps_its_place_in_the_table() -> None:
    assert cycles.cells({"case": "c2d:1", "batch": 1, "error": "no kernel"}) == (
        *("c2d:1", "1", "-", "-", "-", "-", "-", "no kernel"),
    )


def test_pytorch_is_compared_with_the_kernel_called_as_it_is() -> None:
    row = {"case": "c2d:1", "batch": 1, "cycles": 100, "flops": 640, "share": 0.2, "called": 150, "sketch": "s"}
    assert cycles.over_torch(row | {"torch": 300}) == 2.0
    assert cycles.cells(row | {"torch": 300})[5] == "2.00"
    assert cycles.cells(row | {"torch": None})[5] == "-"


def test_metaschedule_is_compared_with_the_kernel_alone() -> None:
    row = {"case": "c2d:1", "batch": 1, "cycles": 100, "flops": 640, "share": 0.2, "called": 150, "sketch": "s"}
    assert cycles.over_metaschedule(row | {"metaschedule": {"cycles": 170, "tuning_s": 80.0}}) == 1.7
    assert cycles.cells(row | {"metaschedule": {"cycles": 170}})[6] == "1.70"
    assert cycles.cells(row | {"metaschedule": {"reason": "none of 64 candidates ran"}})[6] == "-"


PEER = """
import json, sys
import numpy as np
if sys.argv[2] == "tune":
    raise SystemExit("it is in the cache")
for line in sys.stdin:
    request = json.loads(line)
    if request["op"] == "enter":
        A, B = (np.load(request["directory"] + f"/in{i}.npy") for i in range(2))
        np.save(request["directory"] + "/metaschedule.npy", A @ B)
    else:
        sum(range(100_000 * (1 + request["times"])))
    print(json.dumps({"row": {}}), flush=True)
"""


@pytest.mark.usefixtures("counting")
def test_calls_of_another_process_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in whose calls add up numbers, one by one, beside a request's own work."""
    case = BenchmarkCase("matmul", own_shape=(33, 17, 65))
    stand_in = tmp_path / "peer.py"
    stand_in.write_text(PEER)
    monkeypatch.setattr(cycles, "SAMPLES_S", 0.2)
    monkeypatch.setattr(metaschedule, "PEER", stand_in)
    peer = metaschedule.MetaSchedule(Path(sys.executable), tmp_path, "cpu", 2)
    library = peer.library(case.label, 1, 1)
    library.parent.mkdir()
    library.touch()
    library.with_suffix(".json").write_text(json.dumps({"shapes": [[33, 65], [65, 17], [33, 17]], "tuning_s": 80.0}))
    row = cycles.measure(case, 1, trials=2, seed=0, peak_rate=32.0, peer=peer)
    assert row["metaschedule"]["tuning_s"] == 80.0
    with cycles.CycleCounter(cycles.CYCLES) as counter:
        alone = min(counter.during(lambda: sum(range(100_000))) for _ in range(5))
    assert alone / 3 < row["metaschedule"]["cycles"] < alone * 3
