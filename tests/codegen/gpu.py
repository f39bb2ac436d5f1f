"""Generated C where it can be run here: OpenCL C on a device, CUDA C in the simulator. What is missing is a skip."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
import pytest

from autosched.codegen.c.source import GpuSource
from autosched.ir.stmt import Func
from autosched.target import parse_target

Array = npt.NDArray[Any]
TARGETS = {"opencl": parse_target("opencl"), "cuda": parse_target("cuda -arch=sm_80")}
dialects = pytest.mark.parametrize("dialect", TARGETS)  # of a test that takes a `dialect`


def run(source: GpuSource, func: Func, inputs: Mapping[str, Array], optimised: bool = False) -> dict[str, Array]:
    """The outputs by name. Inputs must be left alone, nothing may be written beyond a buffer. `optimised`: by compilers
    of OpenCL C, which then take four times as long."""
    if source.dialect == "cuda":
        from tests.codegen import cuda

        return cuda.run(source, func, inputs)
    from tests.codegen import opencl

    return opencl.run(source, func, inputs, () if optimised else opencl.PLAIN)
