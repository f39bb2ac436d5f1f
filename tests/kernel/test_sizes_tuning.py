"""Tuning over sizes: its searches, the schedule of each class, and that kernels take it from the database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autosched as at
from autosched.errors import UsageError
from autosched.kernel.sizes.tuning import SizesResult, weights_of
from autosched.store import Database
from tests.kernel.test_sized_kernel import check, product

FIXED = {"N": 24, "K": 17}
OPTIONS: dict[str, Any] = {"settings": FIXED, "threads": 1}


def test_each_class_has_the_schedule_that_is_fastest_at_its_sizes(tmp_path: Path) -> None:
    db = tmp_path / "records.db"
    weights = {1: 2.0, 40: 1.0, 64: 3.0, 131: 1.0}
    result = at.tune(product, sizes={"M": (1, 200)}, at={"M": weights}, trials=7, db=db, **OPTIONS)
    assert isinstance(result, SizesResult)
    assert [(tuned.sizes["M"], tuned.result.trials) for tuned in result.classes] == [(1, 2), (64, 5)]
    assert [sorted(tuned.seconds) for tuned in result.classes] == [[(1,)], [(40,), (64,), (131,)]]
    again = at.compile(product, sizes={"M": (1, 200)}, db=db, **OPTIONS)
    by_model = at.compile(product, sizes={"M": (1, 200)}, db=tmp_path / "none.db", **OPTIONS)
    for m in (1, 64, 131, 40, 32, 67, 200, 2, 31):
        for kernel in (result.compile(), again, by_model):
            check(product, kernel, FIXED, {"M": m})
    with Database(db) as database:
        records = [r for row in database.workloads() for r in database.best(row.hash, *_task(again), None)]
    steps = [variant.kernel.schedule.steps for variant in again.variants]
    of_sizes = [r.workload for r in records if r.steps in steps and r.verified]
    assert len(set(of_sizes)) == 4  # the schedule of each class has a record at each of its sizes
    assert data(result)["classes"][1]["at"][0][1] in weights.values()


def _task(kernel: Any) -> tuple[str, int]:
    return kernel.request({"M": 1}).device.target.fingerprint, 1


def data(result: Any) -> Any:
    return result.to_json()


def test_a_record_of_one_size_is_the_schedule_of_its_class(tmp_path: Path) -> None:
    db = tmp_path / "records.db"
    one = at.tune(product, settings={**FIXED, "M": 70}, threads=1, trials=3, db=db)
    kernel = at.compile(product, sizes={"M": (0, 200)}, db=db, **OPTIONS)
    for m in (0, 1, 50, 70, 7):
        check(product, kernel, FIXED, {"M": m})
    with Database(db) as database:
        assert database.record(one.record_id or 0).steps == kernel.variants[2].kernel.schedule.steps
    tuned = [variant.kernel.schedule.sketch for variant in kernel.variants]
    assert [bool(name) for name in tuned] == [True, True, False, True]  # the model's have the names of sketches


def test_a_record_of_another_function_of_the_same_name_is_not_taken(tmp_path: Path) -> None:
    def made(factor: float) -> Any:
        def scaled(M=8):
            a = at.te.placeholder((M, 64), name="a")
            return at.te.compute((M, 64), lambda i, j: at.te.exp(a[i, j]) * factor, name="o")

        return scaled

    db = tmp_path / "records.db"
    at.tune(made(2.0), settings={"M": 70}, threads=1, trials=2, db=db)
    for factor, is_tuned in ((2.0, True), (3.0, False)):
        kernel = at.compile(made(factor), sizes={"M": (1, 99)}, threads=1, db=db)
        assert np.allclose(kernel(np.zeros((40, 64), "float32")), factor)
        assert bool(kernel.variants[0].kernel.schedule.sketch) is not is_tuned


def test_steps_that_give_no_code_for_the_class_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "autosched.kernel.sizes.sized_kernel.tuned_steps", lambda *_: '[["Split", "nothing", "i", [2]]]'
    )
    kernel = at.compile(product, sizes={"M": (1, 200)}, db=tmp_path / "none.db", **OPTIONS)
    check(product, kernel, FIXED, {"M": 50})


def test_weights_are_of_all_combinations() -> None:
    ranges = {"M": range(1, 9), "N": range(4, 65, 4)}
    assert weights_of({"M": [1, 2], "N": {8: 3, 64: 1}}, ranges) == {(1, 8): 3, (1, 64): 1, (2, 8): 3, (2, 64): 1}


@pytest.mark.parametrize(
    ("at_sizes", "reason"),
    [
        ({"M": [0]}, "at= of M has sizes from 1 to 9 with weights above 0, got 0"),
        ({"M": ["1"]}, "at= of M has sizes from 1 to 9"),
        ({"M": {1: 0}}, "got 1 with 0"),
        ({"M": []}, "at= of M has no sizes"),
        ({"N": [1]}, "has the sizes to tune for, of M, got N"),
        (None, "has the sizes to tune for, of M, got none"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_in_a_sentence(at_sizes: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        at.tune(product, sizes={"M": (1, 9)}, at=at_sizes, threads=1)


def test_variants_can_be_printed(cli: Any, tmp_path: Path) -> None:
    db = tmp_path / "records.db"
    record = at.tune("matmul", shape=(70, 8, 9), threads=1, trials=2, db=db).record_id
    kernel = at.compile("matmul", sizes={"M": range(8, 201, 2)}, settings={"N": 8, "K": 9}, threads=1, db=db)
    for m in (70, 8, 72):
        kernel.of(M=m)
    large, small = kernel.describe()
    assert [large.sizes, small.sizes] == [({"M": 70}, {"M": 72}), ({"M": 8},)]
    assert (large.sketch, bool(small.sketch)) == ("", True)
    assert large.guards[0] == "(M/2) >= 16"
    command = ("show", record, "--as", "variants", "--db", db)
    shown = cli(*command, "--sizes", "M=1:200")
    assert shown.code == 0, shown.err
    assert [line for line in shown.out.splitlines() if line.startswith("served")] == [
        "served     M=1", "served     M=2", "served     M=32, M=70, M=200",
    ]  # fmt: skip
    assert "of a record" in shown.out
    assert "has at least one" in cli(*command).err
    assert "is a range, as in M=1:4096" in cli(*command, "--sizes", "M=2,3").err


def test_the_command_tunes_over_sizes(cli: Any, tmp_path: Path) -> None:
    words = ("--sizes", "M=1:200", "--set", "N=8", "--set", "K=8", "--threads", 1, "--trials", 2)
    command = ("tune", "matmul", *words, "--at", "M=1,40,64", "--db", tmp_path / "records.db")
    answer = cli(*command)
    assert answer.code == 0, answer.err
    assert [line.split()[0] for line in answer.out.splitlines()[-3:]] == ["M=1", "M=40", "M=64"]
    assert [len(tuned["at"]) for tuned in cli(*command, "--json").json["classes"]] == [1, 2]
    assert "has at least one" in cli("tune", "matmul", "--at", "M=1").err
    assert "has the sizes to tune for" in cli("tune", "matmul", "--sizes", "M=1:3").err
    assert "measures" in cli("tune", "matmul", "--sizes", "M=1:3", "--at", "M=1", "--no-run").err
