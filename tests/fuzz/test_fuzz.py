"""The fuzzer in the test suite: every case it once found, then 36 programs of a fixed seed and some of a new one, and
ten bottlenecks.

For GPUs the same with fewer programs on OpenCL, where there is a device, and 150 candidates as CUDA C in the simulator.
The long runs are `python -m tests.fuzz`, `python -m tests.fuzz --target opencl --dags 300 --candidates 4`, and
`python -m tests.fuzz --target "cuda -arch=sm_80" --dags 500 --candidates 10`.

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
from autosched.errors import ExpressionError, ScheduleError
from autosched.ir.expr import Const, Var
from autosched.ir.stmt import For, ForKind, Store
from autosched.lower.limits import MAX_STATEMENTS, check_nest
from autosched.runtime.simulator.build import find_compiler
from tests.fuzz.candidate import TOO_LARGE
from tests.fuzz.regressions import CASES, GPU_CASES

ROOT = Path(__file__).resolve().parents[2]


def fuzz(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.fuzz", *options]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def regressions(*options: str) -> dict[str, str]:
    """The regressions' failures by name, "" for none."""
    done = fuzz("--regressions", *options)
    lines = (line.split("\t", 1) for line in done.stdout.splitlines() if "\t" in line)
    found = {name: failures.strip() for name, failures in lines}
    assert found, done.stdout + done.stderr
    return found


@pytest.fixture(scope="module")
def opencl() -> None:
    """Skips where there is no device; asked in another process, for this one must not load a driver."""
    pytest.importorskip("pyopencl")
    probe = "import pyopencl as cl; assert any(p.get_devices() for p in cl.get_platforms())"
    if subprocess.run([sys.executable, "-c", probe], capture_output=True, check=False).returncode:
        pytest.skip("no OpenCL device; install one (on Debian: pocl-opencl-icd)")


def test_regressions() -> None:
    """All in one test: they share a process, and tests of one file may run in several."""
    assert regressions() == dict.fromkeys((case.__name__ for case in CASES), "")


def test_regressions_on_opencl(opencl: None) -> None:
    assert regressions("--target", "opencl") == dict.fromkeys((case.__name__ for case in GPU_CASES), "")


def test_fixed_seed_on_opencl(opencl: None) -> None:
    done = fuzz("--target", "opencl", "--dags", "6", "--candidates", "2", "--shrink", "2", "--shrink-seconds", "20")
    assert done.returncode == 0, done.stdout + done.stderr


def test_fixed_seed_in_the_simulator() -> None:
    if find_compiler() is None:
        pytest.skip("g++ is not installed (on Debian: g++)")
    words = ("--target", "cuda -arch=sm_80", "--dags", "25", "--candidates", "6")
    done = fuzz(*words, "--shrink", "2", "--shrink-seconds", "20")
    assert done.returncode == 0, done.stdout + done.stderr


def test_fixed_seed() -> None:
    done = fuzz("--dags", "36", "--candidates", "5", "--seed", "0", "--shrink", "2", "--shrink-seconds", "20")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", ["bottlenecks", "pipelines"])
def test_programs_of_a_kind(kind: str) -> None:
    words = ("--programs", kind, "--dags", "10", "--candidates", "2")
    done = fuzz(*words, "--shrink", "2", "--shrink-seconds", "20")
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


def test_a_nest_beyond_a_limit_is_told_from_other_refusals() -> None:
    extent = Const(2 * MAX_STATEMENTS)
    store = Store(("X",), (Const(0),), (Const(0.0, "float32"),), stage="X")
    with pytest.raises(ScheduleError) as refused:
        check_nest("kernel", (), For(Var("i"), extent, extent, ForKind.UNROLL, store))
    assert TOO_LARGE.search(str(refused.value))
    assert not TOO_LARGE.search("a step needs the stage T3, which the workload does not have")
