"""Hand-written OpenCL kernels for the problem of `kernels`, good and faulty in known ways."""

from __future__ import annotations

import pytest

from autosched.codegen.c.source import GpuSource, Launch
from autosched.errors import DeviceError
from autosched.measure.results import Job
from autosched.target import Target, parse_target

BLOCK = 64
_TEXT = """
__kernel __attribute__((reqd_work_group_size({block}, 1, 1)))
void {name}_0({const}__global const float* restrict A, __global {b_const} float* restrict B, __global float* restrict C)
{{
  const int i = get_group_id(0) * {block} + get_local_id(0);
  {before}
  if (i < {n}) C[i + {shift}] = A[i] {op} B[i];
  {after}
}}
"""


def gpu_source(
    name: str = "add",
    *,
    n: int = 1024,
    shift: int = 0,
    op: str = "+",
    before: str = "",
    after: str = "",
    b_const: str = "const",
    block: int = BLOCK,
    blocks: int = 16,
    workspace: tuple[tuple[str, int], ...] = (),
) -> GpuSource:
    text = _TEXT.format(
        name=name, n=n, shift=shift, op=op, before=before, after=after, b_const=b_const, block=block, const=""
    )
    launch = Launch(f"{name}_0", (blocks, 1, 1), (block, 1, 1), ("A", "B", "C"), 0)
    return GpuSource(name, "opencl", text, (launch,), ("A", "B"), ("C",), workspace)


# Two launches with a buffer between them.
STAGED = GpuSource(
    "staged",
    "opencl",
    """
__kernel void staged_0(__global const float* A, __global float* T)
{ const int i = get_global_id(0); T[i] = A[i]; }
__kernel void staged_1(__global const float* T, __global const float* B, __global float* C)
{ const int i = get_global_id(0); C[i] = T[i] + B[i]; }
""",
    (
        Launch("staged_0", (8, 1, 1), (128, 1, 1), ("A", "T"), 0),
        Launch("staged_1", (8, 1, 1), (128, 1, 1), ("T", "B", "C"), 0),
    ),
    ("A", "B"),
    ("C",),
    (("T", 4096),),
)


def gpu_job(key: str, source: GpuSource | None = None) -> Job:
    return Job(key, source or gpu_source())


def opencl_target() -> Target:
    """The target with this machine's facts; skips the test where OpenCL has no device."""
    pytest.importorskip("pyopencl")
    from autosched.runtime.gpu.devices import device_facts

    try:
        return parse_target("opencl").with_gpu(device_facts("opencl"))
    except DeviceError as error:
        pytest.skip(str(error))
