"""Runs generated OpenCL C with pyopencl on the first device; tests that import this are skipped without the package."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cache, lru_cache
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from autosched.codegen.c.dialects import OPENCL
from autosched.codegen.c.expressions import Expressions
from autosched.codegen.c.lanes import vector_widths
from autosched.codegen.c.source import GpuSource
from autosched.ir.dtype import DTYPES, numpy_dtype
from autosched.ir.simplify import Simplifier
from autosched.ir.stmt import Func

cl = pytest.importorskip("pyopencl")

Array = npt.NDArray[Any]
PLAIN = ("-cl-opt-disable",)  # optimising takes four times as long; `test_c_kernels.py` has every kind of schedule so
# What kernels call, declared here: clang takes ten times as long as for a kernel to read its header of all of OpenCL C,
# which this definition leaves out. What calls anything else is compiled with the header.
BRIEF = "-D_OPENCL_H_"
POISON, GUARD = 0xA5, 256  # every byte that a kernel has not written; bytes before and after each buffer


@cache
def queue() -> Any:
    try:
        devices = [d for platform in cl.get_platforms() for d in platform.get_devices()]
    except cl.Error:
        devices = []
    if not devices:
        pytest.skip("no OpenCL device; install one (on Debian: pocl-opencl-icd)")
    return cl.CommandQueue(cl.Context(devices[:1]))


class Guarded:
    """A buffer on the device between two regions that no kernel may write, all of it poisoned."""

    def __init__(self, nbytes: int, content: Array | None = None) -> None:
        self.nbytes = nbytes
        self.host = np.full(nbytes + 2 * GUARD, POISON, np.uint8)
        if content is not None:
            self.host[GUARD : GUARD + nbytes] = np.frombuffer(content.tobytes(), np.uint8)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        self.memory = cl.Buffer(queue().context, flags, hostbuf=self.host)
        self.device = self.memory.get_sub_region(GUARD, nbytes)

    def bytes(self) -> Array:
        now = np.empty_like(self.host)
        cl.enqueue_copy(queue(), now, self.memory)
        for part in (slice(0, GUARD), slice(GUARD + self.nbytes, None)):
            assert (now[part] == POISON).all(), "a kernel wrote outside of its buffer"
        return now[GUARD : GUARD + self.nbytes]


def declarations() -> str:
    """Of the functions that the emitter knows."""
    function = "__attribute__((overloadable))"
    lines = ["#pragma OPENCL EXTENSION cl_khr_fp64 : enable"]
    lines += [f"size_t {function} {name}(uint);" for name in ("get_group_id", "get_local_id")]
    lines += [f"void {function} barrier(cl_mem_fence_flags);"]
    for real in ("float", "double"):
        for name in OPENCL.functions.values():
            lines.append(f"{real} {function} {name}({', '.join([real] * (2 if name == 'pow' else 1))});")
    for dtype, element in {d: Expressions(OPENCL, "int", Simplifier()).memory_type(d) for d in DTYPES}.items():
        for space, lanes in product(("__global", "__local", "__private"), vector_widths(dtype)):
            vector = f"{element}{lanes}"
            lines.append(f"{vector} {function} vload{lanes}(size_t, const {space} {element}*);")
            lines.append(f"void {function} vstore{lanes}({vector}, size_t, {space} {element}*);")
    lines.append(f"float {function} vload_half(size_t, const __private half*);")
    lines.append(f"void {function} vstore_half_rte(float, size_t, __private half*);")
    for kind in ("float", "uint", "int", "double", "long", "char4", "uchar4"):
        lines += [f"#define as_{kind}(x) __builtin_astype((x), {kind})"]
    for integer, swap in (("int", "atomic_cmpxchg"), ("long", "atom_cmpxchg")):
        at = f"volatile __global {integer}*"
        lines.append(f"{integer} {function} {swap}({at}, {integer}, {integer});")
    lines += [f"int {function} {name}(volatile __global int*, int);" for name in OPENCL.atomics.values()]
    return "\n".join(lines)


@lru_cache(maxsize=1)
def _built(text: str, options: tuple[str, ...]) -> Any:
    context = queue().context
    if context.devices[0].platform.name == "Portable Computing Language":
        with suppress(cl.Error):
            return cl.Program(context, f"{declarations()}\n{text}").build([*options, BRIEF])
    return cl.Program(context, text).build(list(options))


def run(
    source: GpuSource, func: Func, inputs: Mapping[str, Array], options: tuple[str, ...] = PLAIN
) -> dict[str, Array]:
    """The outputs by name. Inputs must be left alone, nothing may be written beyond a buffer."""
    program = _built(source.text, options)
    first_output = len(func.params) - func.n_outputs
    shapes = {b.name: tuple(int(e.value) for e in b.shape) for b in func.params}  # type: ignore[attr-defined]
    buffers = {}
    for n, b in enumerate(func.params):
        nbytes = int(np.prod(shapes[b.name])) * b.itemsize
        buffers[b.name] = Guarded(nbytes, inputs[b.name] if n < first_output else None)
    for name, nbytes in source.workspace:
        buffers[name] = Guarded(nbytes)
    for launch in source.launches:
        size = [g * t for g, t in zip(launch.grid, launch.block, strict=True)]
        arguments = [buffers[name].device for name in launch.arguments]
        cl.Kernel(program, launch.kernel)(queue(), size, list(launch.block), *arguments)
    after = {name: buffer.bytes() for name, buffer in buffers.items()}
    for b in func.params[:first_output]:
        assert after[b.name].tobytes() == inputs[b.name].tobytes(), f"the input {b.name} was written"
    outputs = func.params[first_output:]
    return {b.name: after[b.name].view(numpy_dtype(b.dtype)).reshape(shapes[b.name]) for b in outputs}
