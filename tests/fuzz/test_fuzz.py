"""The fuzzer in the test suite: every case it once found, then 200 programs of a fixed seed and some of a new one.

It runs in a process of its own, because it forks, which is only safe without threads and loaded kernels. A failing seed
is repeated by `python -m tests.fuzz --seed SEED`.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from autosched import te
from autosched.errors import ExpressionError
from tests.fuzz.regressions import CASES

ROOT = Path(__file__).resolve().parents[2]


def fuzz(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.fuzz", *options]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    """The regressions' failures by name, "" for none."""
    done = fuzz("--regressions")
    lines = dict(line.split("\t", 1) for line in done.stdout.splitlines() if "\t" in line)
    assert set(lines) == {case.__name__ for case in CASES}, done.stdout + done.stderr
    return lines


@pytest.mark.parametrize("name", [case.__name__ for case in CASES])
def test_regression(found: dict[str, str], name: str) -> None:
    assert not found[name].strip()


def test_fixed_seed() -> None:
    done = fuzz("--dags", "200", "--candidates", "5", "--seed", "0", "--shrink", "2", "--shrink-seconds", "20")
    assert done.returncode == 0, done.stdout + done.stderr


def test_new_seed() -> None:
    seed = secrets.token_hex(4)
    done = fuzz("--dags", "20", "--candidates", "5", "--seed", seed, "--shrink", "2", "--shrink-seconds", "20")
    print(f"seed {seed}")
    assert done.returncode == 0, done.stdout + done.stderr


def test_bool_arithmetic_is_refused() -> None:
    """It went through the front end, and code generation took it for arithmetic modulo 2."""
    A = te.placeholder((), "bool", "A")
    for operation in (te.abs, lambda x: -x, lambda x: x + x, lambda x: x * x):
        with pytest.raises(ExpressionError, match=r"needs (a number|numbers) but got bool"):
            operation(A[()])
