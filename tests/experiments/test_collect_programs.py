"""Programs of a case, measured for the data that the cost model is judged by."""

from __future__ import annotations

from pathlib import Path

import pytest

from autosched.store import Database
from autosched.target import parse_target
from experiments import collect_programs as collecting
from experiments.collect_programs import Mixture, collect
from experiments.scoreboard.bouts import Bout
from experiments.tuning import BenchmarkCase


def test_the_fastest_sample_of_all_turns_counts_and_a_pass_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, passes = (
        Bout(BenchmarkCase("gmm", 0), 1, 1),
        (Mixture((("draft", 3),), 2, 1), Mixture((("evolve", 2),), 1, 0)),
    )
    path = tmp_path / "programs.db"
    monkeypatch.setattr(collecting, "PASSES", passes[:1])
    first = collect(path, 5.0, [case])
    assert 1 <= first <= 6
    monkeypatch.setattr(collecting, "PASSES", passes)
    second = collect(path, 5.0, [case])
    assert collect(path, 5.0, [case]) == 0
    with Database(path, create=False) as database:
        dag, _ = case.built
        records = database.records(dag.content_hash, parse_target("cpu").fingerprint, 1)
    timed = [r for r in records if r.seconds is not None]
    assert len(timed) == first + second
    assert {r.round for r in timed} == ({0, 1} if second else {0})
    for record in timed:
        assert record.seconds == min(record.samples)
        assert len(record.samples) >= collecting.TURNS
