"""The pipelines beside Halide: what te and Halide make of them is what NumPy does, at odd sizes; rows and tables."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import autosched as at
from experiments.pipelines.__main__ import main, size_of
from experiments.pipelines.contest import Contest
from experiments.pipelines.entries import (
    AUTOMATIC,
    BY_HAND,
    OPENCV,
    TUNED,
    UNTUNED,
    gigabytes_per_second,
    means,
    totals,
)
from experiments.pipelines.measure import Participant, row_of
from experiments.pipelines.programs import PROGRAMS
from experiments.pipelines.schedules import DEEP
from experiments.report.pipelines import pipelines
from experiments.report.results import Results
from tests.experiments.test_report import HOST, cells

SIZES = [(67, 131), (1, 40)]
# Each size of a program that is slow to compile is of another one.
CASES: list[Any] = [(name, size) for name in PROGRAMS if name not in DEEP for size in SIZES]
CASES += [pytest.param(name, SIZES[n % 2], marks=pytest.mark.slow) for n, name in enumerate(DEEP)]


@pytest.mark.parametrize(("name", "size"), CASES)
def test_programs_compute_what_numpy_does(name, size):
    contest = Contest.of(name, size)
    out = contest.out()
    at.compile(contest.workload, threads=2)(*contest.arrays, out=out)
    assert contest.is_right(out)
    assert np.isfinite(out).all()
    out[...] += 9
    assert not contest.is_right(out), "wrong elements are seen"


@pytest.mark.parametrize("name", PROGRAMS)
def test_schedules_by_hand_compute_what_numpy_does(name):
    pytest.importorskip("halide")
    os.environ.setdefault("HL_NUM_THREADS", "2")
    from experiments.pipelines import schedules

    hl = schedules.load_autoschedulers()
    contest, ran = Contest.of(name, (67, 131)), 0
    for schedule in schedules.hand_schedules(name, 67).values():
        out = contest.out()
        try:
            schedules.by_hand(hl, schedule, name, contest.size, contest.arrays, out)()
        except hl.HalideError:  # a family that does not fit the program
            continue
        assert contest.is_right(out)
        ran += 1
    assert ran


def row(case: str = "blur:8x8", threads: int = 1, **milliseconds: float) -> dict[str, object]:
    names = {"untuned": UNTUNED, "tuned": TUNED, "by_hand": BY_HAND}
    entries = {names.get(name, name): {"seconds": ms / 1e3} for name, ms in milliseconds.items()}
    facts = {"date": "2026-01-09T10:00:00", "revision": "abc", "trials": 16}
    return {"case": case, "batch": 1, "threads": threads, "entries": entries, "least_bytes": 8_000_000, **facts}


def test_ratios_are_to_the_fastest_autoscheduler():
    rows = [row(untuned=2.0, tuned=1.0, Mullapudi2016=8.0, Adams2019=4.0), row(untuned=1.0, Li2018=0.5, by_hand=3.0)]
    assert means(rows, UNTUNED) == {AUTOMATIC: pytest.approx(1.0), BY_HAND: pytest.approx(3.0), OPENCV: None}
    assert means(rows, TUNED)[AUTOMATIC] == pytest.approx(4.0)
    assert gigabytes_per_second(rows[0], AUTOMATIC) == pytest.approx(2.0)
    assert gigabytes_per_second(rows[0], OPENCV) is None


def test_wrong_results_of_ours_and_errors_are_told():
    wrong = row(Adams2019=4.0)
    wrong["entries"][UNTUNED] = {"reason": "wrong result"}
    refused = row("warp:8x8", untuned=4.0)
    refused["entries"]["Adams2019"] = {"reason": "unbounded"}
    rows = [wrong, refused, {"case": "iir:8x8", "batch": 1, "threads": 2, "error": "no answer within 9 s"}]
    assert totals(rows)["wrong"] == ["blur:8x8"]
    lines = pipelines(Results("made_up", {"schema_version": 1, "host": HOST, "rows": rows}))
    (failed,) = [line for line in lines if line.startswith("Without a time")]
    assert failed == (
        "Without a time: `iir:8x8` (no answer within 9 s); untuned on `blur:8x8`, 1 thread (wrong result); Adams2019 on "
        "`warp:8x8`, 1 thread (unbounded)."
    )


def test_the_table_has_times_ratios_and_traffic():
    rows = [row(untuned=2.0, tuned=1.0, Mullapudi2016=8.0), row("warp:8x8", threads=2, untuned=1.0, OpenCV=2.0)]
    lines = pipelines(Results("made_up", {"schema_version": 1, "host": HOST, "rows": rows}))
    assert lines[0] == "**1 thread**"
    times, traffic = ([line for line in lines if line.startswith("| `blur:8x8`")][n] for n in (0, 1))
    assert cells([times], "`blur:8x8`") == ["2.00", "1.00", "8.00", *["-"] * 4, "4.00", "-", "-", "8.00", "-", "-"]
    assert cells([traffic], "`blur:8x8`") == ["8.0", "4.0", "8.0", "1.0", "-"]
    assert "**2 threads**" in lines


def test_a_wrong_side_is_not_timed_and_the_fastest_schedule_by_hand_is_kept():
    contest = Contest.of("grey_bytes", (3, 40))

    def filling(error: int, loops: int):
        def make(out):
            def run():
                for _ in range(loops):
                    out[...] = contest.expected + error

            return run

        return make

    def failing(out):
        raise RuntimeError("no such schedule\nat all")

    found = [
        Participant(UNTUNED, filling(0, 1), ()), Participant(TUNED, filling(1, 1), ()),
        Participant(OPENCV, filling(1, 1), (), is_rounded=True), Participant("Adams2019", failing, (RuntimeError,)),
        Participant(f"{BY_HAND} slow", filling(0, 500), ()), Participant(f"{BY_HAND} fast", filling(0, 1), ()),
    ]  # fmt: skip
    entries = row_of(contest, found, rounds=2)["entries"]
    assert {name for name in entries if "seconds" in entries[name]} == {UNTUNED, OPENCV, BY_HAND}
    assert entries[TUNED]["reason"] == "wrong result"
    assert entries["Adams2019"] == {"reason": "no such schedule"}
    assert entries[BY_HAND]["schedule"] == "fast"


@pytest.mark.parametrize("text", ["1536", "0x5", "ax3", "3x4x5"])
def test_a_size_is_two_numbers(text):
    with pytest.raises(Exception, match="a size is ROWSxCOLUMNS"):
        size_of(text)
    assert size_of("1536x2560") == (1536, 2560)


def test_an_unknown_program_is_named(capsys, tmp_path):
    with pytest.raises(SystemExit):
        main(["--programs", "blurr", "--out", str(tmp_path / "rows.json")])
    assert "there is no program blurr; there are blur, " in capsys.readouterr().err


def test_a_small_run_writes_rows_that_are_shown_again(capsys, tmp_path):
    out = str(tmp_path / "rows.json")
    options = ["--size", "16x64", "--threads", "1", "--trials", "0", "--rounds", "1", "--out", out]
    assert main(["--programs", "grey_bytes", *options]) == 0
    first = capsys.readouterr().out
    assert "`grey_bytes:16x64`" in first
    assert main(["--report", "--out", out]) == 0
    assert capsys.readouterr().out == first
