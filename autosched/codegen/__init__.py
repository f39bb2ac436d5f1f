"""Code generation: a candidate's concrete loop nest as LLVM IR text, CUDA C or OpenCL C."""

from autosched.codegen.backends import EMITTERS, Origin, Source, build_source
from autosched.codegen.c.source import GpuSource
from autosched.codegen.source import KernelSource

__all__ = ["EMITTERS", "GpuSource", "KernelSource", "Origin", "Source", "build_source"]
