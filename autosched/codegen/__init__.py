"""Code generation: a candidate's concrete loop nest as LLVM IR text, CUDA C or OpenCL C."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from autosched.codegen.c.source import GpuSource
from autosched.codegen.source import KernelSource

if TYPE_CHECKING:
    from autosched.ir.stmt import Func
    from autosched.target import Target


def build_source(func: Func, values: Mapping[str, int], target: Target, threads: int) -> KernelSource:
    """The LLVM IR of a lowered schedule with the values of its parameters, for a processor."""
    from autosched.codegen.llvm.kernel import emit
    from autosched.lower import concretise

    concrete, simplify = concretise(func, values)
    return emit(concrete, simplify, target, threads)


def build_gpu_source(func: Func, values: Mapping[str, int], dialect: str, head: str = "") -> GpuSource:
    """The C of a lowered GPU schedule with the values of its parameters; `dialect` is "cuda" or "opencl".

    `head` goes into the comment at the top, before the launches."""
    from autosched.codegen.c.kernel import emit
    from autosched.lower import concretise

    concrete, simplify = concretise(func, values)
    return emit(concrete, simplify, dialect, head)


__all__ = ["GpuSource", "KernelSource", "build_gpu_source", "build_source"]
