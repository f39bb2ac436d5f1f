"""The quick part of `python -m tests.replay`: every third case, and that a changed text is seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.replay.__main__ import _check
from tests.replay.cases import Case, hash_of, read

CASES = read()


@pytest.mark.parametrize("case", CASES[::3], ids=lambda case: case.name)
def test_the_emitted_text_is_that_of_the_table(case: Case) -> None:
    assert hash_of(case.text()) == case.sha256, "see python -m tests.replay --diff HEAD; --update if it is meant"


def test_a_changed_text_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    case = next(case for case in CASES if case.problem.workload == "elementwise")
    assert _check([case], update=False) == 0
    assert _check([replace(case, sha256=hash_of("another"))], update=False) == 1
    assert f"changed: {case.name}" in capsys.readouterr().out


def test_every_kind_of_text_is_there() -> None:
    assert {case.problem.target.split()[0] for case in CASES} == {"llvm", "cuda", "opencl"}
    assert len({case.name for case in CASES}) == len(CASES) >= 60
