"""Hand-written kernels for a vector addition C = A + B of 1024 floats, good and faulty in known ways."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from autosched.codegen.source import KernelSource
from autosched.measure.problem import DATA_SETS, Problem, write_data_set
from autosched.measure.results import Job
from autosched.runtime.spec import ArraySpec

N = 1024
INPUTS = (ArraySpec("A", (32, 32), "float32"), ArraySpec("B", (32, 32), "float32"))
OUTPUTS = (ArraySpec("C", (32, 32), "float32"),)

# %a, %b, %c are the arrays; {body} runs for each %i below {n} with pointers %ai, %bi, %ci; {after} before the return.
_ADD = """
{globals}
define i32 @{name}(ptr %args, ptr %ws, i64 %threads) {{
entry:
  %a = load ptr, ptr %args
  %b.at = getelementptr ptr, ptr %args, i64 1
  %b = load ptr, ptr %b.at
  %c.at = getelementptr ptr, ptr %args, i64 2
  %c = load ptr, ptr %c.at
  br label %loop
loop:
  %i = phi i64 [ {start}, %entry ], [ %next, %loop ]
  %ai = getelementptr float, ptr %a, i64 %i
  %bi = getelementptr float, ptr %b, i64 %i
  %ci = getelementptr float, ptr %c, i64 %i
  %x = load float, ptr %ai
  %y = load float, ptr %bi
  %sum = f{op} float %x, %y
  store float %sum, ptr %ci
  {body}
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, {n}
  br i1 %more, label %loop, label %done
done:
  {after}
  ret i32 {status}
}}
"""


def source(
    name: str = "add",
    *,
    globals: str = "",
    start: int = 0,
    n: int = N,
    op: str = "add",
    body: str = "",
    after: str = "",
    status: str = "0",
    workspace: int = 0,
) -> KernelSource:
    ir = _ADD.format(name=name, globals=globals, start=start, n=n, op=op, body=body, after=after, status=status)
    return KernelSource(name, ir, workspace, 1)


def job(key: str, kernel: KernelSource | None = None) -> Job:
    return Job(key, kernel or source())


def add_problem(directory: Path) -> Problem:
    rng = np.random.default_rng(7)
    for name in DATA_SETS:
        arrays = {spec.name: rng.standard_normal(spec.shape).astype(np.float32) for spec in INPUTS}
        value = arrays["A"].astype(np.float64) + arrays["B"]
        bound = np.abs(value) * 2.0**-23
        write_data_set(directory, name, INPUTS, OUTPUTS, arrays, [(value, bound)])
    return Problem(INPUTS, OUTPUTS, directory)
