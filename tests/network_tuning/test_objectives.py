"""What is made small, and what is said of functions that cannot be."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from autosched.errors import UsageError
from autosched.network_tuning.objectives import PATIENCE, parse_objective

START = {"a": 2.0, "b": 8.0}


def test_the_sum_of_all_networks() -> None:
    found = parse_objective("sum").bind(START)
    assert found.value({"a": 1.0, "b": 3.0}) == 4.0
    assert found.derivatives(START) == pytest.approx({"a": 1.0, "b": 1.0})
    assert found.patience is None


def test_a_network_that_is_fast_enough_is_worth_nothing_more() -> None:
    found = parse_objective("required:a=1s,b=9").bind(START)
    assert found.value(START) == 11.0
    assert found.derivatives(START) == pytest.approx({"a": 1.0, "b": 0.0})
    assert found.derivatives({"a": 1.0, "b": 9.1}) == pytest.approx({"a": 0.0, "b": 1.0})
    assert parse_objective("required:4000ms").bind(START).value(START) == 12.0
    assert parse_objective("required:b=7").bind(START).value({"a": 1.5, "b": 1.0}) == 9.0  # a: as it was


def test_the_mean_of_how_many_times_as_fast() -> None:
    found = parse_objective("speedup").bind(START)
    assert found.value({"a": 1.0, "b": 1.0}) == pytest.approx(-4.0)
    assert found.derivatives(START) == pytest.approx({"a": 0.25, "b": 0.0625}, rel=1e-3)
    assert parse_objective("speedup:a=4s,b=8s").bind(START).value(START) == pytest.approx(-math.sqrt(2.0))


def test_an_early_stop_is_a_matter_of_tasks() -> None:
    found = parse_objective("early-stop").bind(START)
    assert (found.value(START), found.patience) == (10.0, PATIENCE)


def test_a_function_of_the_user_s(tmp_path: Path) -> None:
    assert parse_objective(lambda latencies: np.float32(max(latencies.values()))).bind(START).value(START) == 8.0
    file = tmp_path / "mine.py"
    file.write_text("def slowest(latencies):\n    latencies.pop('none', 0)\n    return max(latencies.values())\n")
    found = parse_objective(f"{file}:slowest").bind(START)
    assert found.derivatives(START) == pytest.approx({"a": 0.0, "b": 1.0})
    assert found.name.endswith("mine.py:slowest")


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ("fastest", "objective must be sum"),
        (3, "objective must be sum"),
        ("sum:a=1s", "takes no times"),
        ("required", "takes NAME=TIME"),
        ("required:a=fast", "are written NAME=4ms"),
        ("required:a=0ms", "are written NAME=4ms"),
        ("required:a=1ms,a=2ms", "each name once"),
        ("speedup:", "are written NAME=4ms"),
        ("required:c=1ms", "names c, but there are a, b"),
        ("nowhere.py:f", "there is no file nowhere.py"),
    ],
)
def test_what_is_no_objective(asked: object, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        parse_objective(asked).bind(START)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("return 1 / 0", r"the objective .*mine.py:f failed at mine.py:2: ZeroDivisionError"),
        ("return latencies['c']", r"failed at mine.py:2: KeyError: 'c'"),
        ("return float('nan')", "must return a finite number, got nan for a 2 s, b 8 s"),
        ("return float('inf')", "must return a finite number, got inf"),
        ("return None", "must return a finite number, got None"),
        ("return True", "must return a finite number, got True"),
        ("return '1'", "must return a finite number, got '1'"),
        ("raise SystemExit(3)", "failed at mine.py:2: SystemExit: 3"),
        ("return -latencies['b']", "grows when b gets faster"),
    ],
)
def test_functions_that_fail(tmp_path: Path, body: str, sentence: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"def f(latencies):\n    {body}\n")
    with pytest.raises(UsageError, match=sentence):
        parse_objective(f"{file}:f").bind(START)
