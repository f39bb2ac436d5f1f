"""Code generation: a candidate's concrete loop nest as LLVM IR text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from autosched.codegen.source import KernelSource

if TYPE_CHECKING:
    from autosched.ir.stmt import Func
    from autosched.target import Target


def build_source(func: Func, values: Mapping[str, int], target: Target, threads: int) -> KernelSource:
    """The kernel of a lowered schedule with the values of its parameters."""
    from autosched.codegen.llvm.kernel import emit
    from autosched.lower import concretise

    concrete, simplify = concretise(func, values)
    return emit(concrete, simplify, target, threads)


__all__ = ["KernelSource", "build_source"]
