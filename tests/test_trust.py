"""Records that another installation made: none is run in the user's process before a worker here has verified it."""

from __future__ import annotations

import json
import platform
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autosched as at
from autosched.codegen.source import KernelSource
from autosched.errors import DeviceError, RecordWarning, StoreError, UsageError, VerificationError
from autosched.kernel.device import find_device
from autosched.store import Database, Finding, TargetRow, WorkloadRow
from autosched.store.signing import key_path
from autosched.tuner.definition import define
from tests.test_api import IR, M, N, added, hand_written

__all__ = ["hand_written"]  # the fixture: a search space of hand-written kernels

RIGHT, WRONG, CRASH, NO_CODE, NOT_GENERATED = range(5)
LANES = 4
CRASHING = (
    "define i32 @add(ptr %args, ptr %ws, i64 %threads) {\n store i32 1, ptr inttoptr (i64 8 to ptr)\n ret i32 0\n}"
)


def source(nest: Any, values: Mapping[str, int], target: object, threads: int, origin: object) -> KernelSource:
    """The code that a record's steps [["Split", lanes, kind]] mean."""
    lanes, kind = (values["a"], values["b"]) if values else nest.steps[0][1:]
    if kind == NOT_GENERATED:
        raise IndexError("a fault of this version")
    right = IR.format(vector=f"<{lanes} x float>", op="fsub" if kind == WRONG else "fadd", lanes=lanes, n=M * N)
    return KernelSource("add", {CRASH: CRASHING, NO_CODE: "nonsense"}.get(kind, right), 0, threads)


@pytest.fixture(autouse=True)
def steps_matter(monkeypatch: pytest.MonkeyPatch, hand_written: None) -> None:
    import autosched.codegen

    monkeypatch.setattr(autosched.codegen, "build_source", source)


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "records.db"


def add(db: Path, kind: int, seconds: float, lanes: int = LANES, target: str = "cpu") -> int:
    """A record of this installation, whoever that is now, which says that it took `seconds`."""
    problem, fingerprint = define(added), at.parse_target(target).fingerprint
    with Database(db) as database:
        run = database.start_run(
            WorkloadRow(problem.dag.content_hash, problem.name, problem.spec), TargetRow(fingerprint, "{}"), 1, 0
        )
        row = database.append(
            run, "flat", json.dumps([["Split", lanes, kind]]), {"a": lanes, "b": kind}, 0, Finding(seconds)
        )
        database.certify(row, seconds, (seconds, seconds))
    return row


def become_another_installation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "another home"))


def compiled(db: Path) -> tuple[Any, list[str]]:
    """What `at.compile` gives for ones and twos, and what it says."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        kernel = at.compile(added, threads=1, db=db)
    assert all(w.category is RecordWarning for w in said)
    assert all(w.filename == __file__ for w in said)
    A = np.ones((M, N), np.float32)
    return float(kernel(A, 2 * A)[0, 0]), [str(w.message) for w in said]


def test_a_claim_is_verified_by_a_worker_and_is_a_record_then(
    db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = add(db, RIGHT, 1e-12)
    become_another_installation(monkeypatch, tmp_path)
    (claim,) = at.best(added, threads=1, db=db)
    assert not claim.verified
    value, said = compiled(db)
    assert value == 3
    assert said == [f"record {row}: not verified by this installation yet, which a worker does now, before any use"]
    (found,) = at.best(added, threads=1, db=db)
    assert (found.id, found.verified) == (row, True)
    assert found.seconds is not None
    assert found.seconds > 1e-9
    assert compiled(db) == (3, [])


def test_a_forged_time_does_not_bring_a_wrong_kernel_into_the_process(
    db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong, crashes, text = (add(db, kind, 1e-12) for kind in (WRONG, CRASH, NO_CODE))
    good = add(db, RIGHT, 1e-3)
    become_another_installation(monkeypatch, tmp_path)
    value, (first, passed) = compiled(db)
    assert value == 3
    assert "which a worker does now" in first
    for number, reason in (wrong, "wrong_result"), (crashes, "crash"), (text, "build_error"):
        assert f"record {number}: {reason}" in passed
    assert [(r.id, r.verified) for r in at.best(added, threads=1, db=db, n=9)] == [(good, True)]
    with Database(db) as database:
        assert [database.record(n).failure for n in (wrong, crashes, text)] == ["wrong_result", "crash", "build_error"]
    assert compiled(db) == (3, [])


def test_claims_are_not_asked_where_there_is_a_record(
    db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(db, CRASH, 1e-12)
    become_another_installation(monkeypatch, tmp_path)
    mine = add(db, RIGHT, 1e-3)
    assert compiled(db) == (3, [])
    assert [r.id for r in at.best(added, threads=1, db=db)] == [mine]


@pytest.mark.parametrize("kind", [NO_CODE, NOT_GENERATED])
def test_a_record_that_cannot_be_built_hides_no_other(db: Path, kind: int) -> None:
    bad, good = add(db, kind, 1e-6), add(db, RIGHT, 1e-3)
    value, (passed,) = compiled(db)
    assert value == 3
    assert f"(record {bad}: " in passed
    assert f"record {good}" not in passed


def test_where_no_record_will_do_the_analytic_best_does(
    db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for lanes in (1, 2, 4):
        add(db, NOT_GENERATED, 1e-6, lanes)
    become_another_installation(monkeypatch, tmp_path)
    add(db, NOT_GENERATED, 1e-6, 8)
    value, (passed,) = compiled(db)
    assert value in (3, -1)  # nobody has verified it
    assert passed.endswith("; and 1 more)")


def test_all_that_a_machine_cannot_verify_is_passed_over(
    db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = add(db, RIGHT, 1e-6)
    become_another_installation(monkeypatch, tmp_path)

    def no_room(*_: object) -> None:
        raise StoreError("there is no room")

    monkeypatch.setattr("autosched.tuner.memory_check.check_memory_and_disk", no_room)
    _, said = compiled(db)
    assert f"(record {row}: there is no room)" in said[-1]


def test_what_cannot_be_recorded_is_used_all_the_same(
    db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = add(db, RIGHT, 1e-6)
    become_another_installation(monkeypatch, tmp_path)

    def read_only(*_: object) -> None:
        raise StoreError("it is read-only")

    monkeypatch.setattr(Database, "append_to", read_only)
    value, said = compiled(db)
    assert value == 3
    assert said[-1] == f"the verification of record {row} is not recorded: it is read-only"


def test_a_lost_key_costs_a_verification_only(db: Path) -> None:
    add(db, RIGHT, 1e-6)
    key_path().unlink()
    value, said = compiled(db)
    assert (value, len(said)) == (3, 1)
    assert compiled(db) == (3, [])


# verify


def test_a_failed_verification_withdraws_the_record(db: Path) -> None:
    wrong, good = add(db, WRONG, 1e-6), add(db, RIGHT, 1e-3)
    assert [r.id for r in at.best(added, threads=1, db=db)] == [wrong]
    with pytest.raises(VerificationError, match="wrong_result"):
        at.verify(wrong, db, workload=added)
    assert [r.id for r in at.best(added, threads=1, db=db, n=9)] == [good]
    with Database(db) as database:
        assert database.record(wrong).failure == "wrong_result"
    with pytest.raises(VerificationError, match=rf"record {wrong} failed with wrong_result: .*; `autosched best --db "):
        at.export(wrong, db, workload=added)


def test_a_record_that_passes_after_a_failure_counts_again(db: Path) -> None:
    row = add(db, RIGHT, 1e-6)
    with Database(db) as database:
        database.append_to(database.record(row), Finding(None, (), "hang", "the machine was busy"))
    assert at.best(added, threads=1, db=db) == []
    at.verify(row, db, workload=added)
    assert [r.id for r in at.best(added, threads=1, db=db)] == [row]


def test_a_passed_verification_makes_a_claim_a_record(
    db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = add(db, RIGHT, 1e-12)
    become_another_installation(monkeypatch, tmp_path)
    seconds = at.verify(row, db, workload=added).seconds
    (found,) = at.best(added, threads=1, db=db)
    assert (found.verified, found.seconds) == (True, seconds)


@pytest.mark.parametrize("kind", ["device_lost", "killed", "impossible_time"])
def test_what_says_nothing_of_the_record_does_not_withdraw_it(
    db: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    from autosched.measure import Failure, Measurer

    row = add(db, RIGHT, 1e-6)
    monkeypatch.setattr(Measurer, "measure", lambda *_: iter([Failure("x", kind, "no answer")]))
    with pytest.raises(VerificationError, match=kind):
        at.verify(row, db, workload=added)
    assert [r.id for r in at.best(added, threads=1, db=db)] == [row]


def test_a_time_that_no_kernel_can_have_verifies_nothing(
    db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = add(db, RIGHT, 1e-6)
    become_another_installation(monkeypatch, tmp_path)
    monkeypatch.setattr("autosched.tuner.time_bound.CLOCK_HZ", 1e-9)
    with pytest.raises(VerificationError, match="impossible_time"):
        at.verify(row, db, workload=added)
    assert not at.best(added, threads=1, db=db)[0].verified


# export


def test_a_claim_is_verified_before_it_is_exported(db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, wrong = add(db, RIGHT, 1e-6), add(db, WRONG, 1e-12)
    become_another_installation(monkeypatch, tmp_path)
    out = tmp_path / "kernel.o"
    with pytest.raises(VerificationError, match="wrong_result"), pytest.warns(RecordWarning, match="a worker does now"):
        at.export(wrong, db, "object", out, workload=added)
    assert not out.exists()
    with pytest.warns(RecordWarning, match=f"record {good}: not verified"):
        at.export(good, db, "object", out, workload=added)
    assert out.exists()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        at.export(good, db, "object", out, workload=added)


def test_a_kind_that_is_not_the_records_is_refused_before_it_is_verified(
    db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = add(db, RIGHT, 1e-6)
    become_another_installation(monkeypatch, tmp_path)
    with warnings.catch_warnings(record=True) as said, pytest.raises(UsageError, match="a schedule for a processor"):
        at.export(row, db, "opencl", workload=added)
    assert said == []


def test_claims_that_no_time_was_left_for_are_told(db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = add(db, RIGHT, 1e-6)
    become_another_installation(monkeypatch, tmp_path)
    monkeypatch.setattr("autosched.kernel.lookup.CLAIMS_S", 0.0)
    _, (said,) = compiled(db)
    assert f"record {row}: not verified within" in said


def test_a_claim_about_another_processor_is_not_exported(
    db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = "llvm -mcpu=haswell" if platform.machine() in ("aarch64", "arm64") else "llvm -mcpu=neoverse-n1"
    row = add(db, RIGHT, 1e-6, target=foreign)
    become_another_installation(monkeypatch, tmp_path)
    with pytest.raises(DeviceError, match=rf"only there: run `autosched verify {row} --db .*` and the export on that"):
        at.export(row, db, "object", tmp_path / "kernel.o", workload=added, target=foreign)
    assert list(tmp_path.glob("kernel*")) == []


# tune


def test_a_search_begins_with_claims_and_believes_none(
    db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(db, RIGHT, 1e-12, lanes=2)  # the draft would begin with 32
    become_another_installation(monkeypatch, tmp_path)
    result = at.tune(added, trials=2, threads=1, db=db, resume=True)
    assert (result.resumed, result.known_s, len(result.records)) == (0, None, 2)
    assert 2 in {t.candidate.values[0] for t in result.records}
    assert result.best_s > 1e-9


def test_failures_of_others_keep_nothing_from_being_tried(
    db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = at.tune(added, trials=12, threads=1, db=db)
    with Database(db) as database:
        key = (define(added).dag.content_hash, find_device("cpu", 1).target.fingerprint, 1)
        for record in database.records(*key):
            database.append_to(record, Finding(None, (), "crash", "so they say"))
    assert (first.trials, at.best(added, threads=1, db=db)) == (12, [])
    become_another_installation(monkeypatch, tmp_path)
    again = at.tune(added, trials=12, threads=1, db=db, resume=True)
    assert (again.resumed, again.failures) == (0, {"wrong_result": 6})
    assert all(r.verified for r in at.best(added, threads=1, db=db, n=99))
    assert len(at.best(added, threads=1, db=db, n=99)) == 6


def test_a_search_without_a_key_says_that_its_records_will_not_be_known(
    db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("where a directory would be")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    with pytest.warns(RecordWarning, match="no key to sign them with"):
        result = at.tune(added, trials=2, threads=1, db=db)
    assert result.verified
    (record,) = at.best(added, threads=1, db=db)
    assert not record.verified
    assert compiled(db)[0] == 3
