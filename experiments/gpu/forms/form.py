"""What an instruction form is: a small kernel, what it is given, and what it must give by a formula in NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from autosched.codegen.c.source import GpuSource, Launch, PixelBox, TensorMap

Array = npt.NDArray[Any]
ALIGNMENT = 256

SHARED = """extern __shared__ __align__(1024) unsigned char s[];
  const unsigned base = (unsigned)__cvta_generic_to_shared(s);"""
SHARED_BYTES, BARRIER = 65536, 60000  # what a form has, and where its mbarriers are
TENSOR_MAP = "struct __align__(64) TensorMap { unsigned long long opaque[16]; };\n"


def map_of(
    name: str, array: Array, box: tuple[int, ...] | PixelBox, swizzle: int = 0, steps: tuple[int, ...] = ()
) -> TensorMap:
    """The kernel's `map` of a contiguous array, which is called `name`."""
    strides = tuple(reversed(array.strides[:-1]))
    return TensorMap("map", name, array.dtype.name, tuple(reversed(array.shape)), strides, box, swizzle, steps)


@dataclass(frozen=True)
class FormOutput:
    """What an output is: `values`, in the array seen as `dtype` at `places` of its flat elements (None: all, in order),
    at most `bound` away from it."""

    values: Array
    dtype: str
    places: Array | None = None
    bound: Array | float = 0.0

    def complaint(self, name: str, found: Array) -> str | None:
        flat = found.reshape(-1).view(self.dtype)
        got = flat if self.places is None else flat[self.places]
        with np.errstate(invalid="ignore"):
            wanted, seen = self.values.astype(np.float64).reshape(got.shape), got.astype(np.float64)
            same = (np.abs(seen - wanted) <= self.bound) | (np.isnan(seen) & np.isnan(wanted)) | (seen == wanted)
        if same.all():
            return None
        where = np.flatnonzero(~same.reshape(-1))
        at = where[0]
        return (
            f"{len(where)} of {same.size} of {name} are wrong, the first at {at}: {seen.reshape(-1)[at]:.9g}, expected "
            f"{wanted.reshape(-1)[at]:.9g}"
        )


@dataclass(frozen=True)
class InstructionForm:
    """`body` in a kernel `k(parameters)`; `arguments`: names in `memory`, or maps of what is there.

    Arrays whose names are in lower case are written, and hold nothing that is known before. `cluster`: blocks of one,
    and of the grid. `others`: what the instruction may also mean, by name, to be tried where this one is wrong.
    """

    name: str
    body: str
    helpers: str
    parameters: str
    arguments: tuple[str | TensorMap, ...]
    memory: Mapping[str, Array]
    expected: Mapping[str, FormOutput]
    threads: int = 32
    shared: int = SHARED_BYTES
    cluster: int = 1
    others: Mapping[str, InstructionForm] = field(default_factory=dict)

    @property
    def has_maps(self) -> bool:
        return any(isinstance(argument, TensorMap) for argument in self.arguments)

    @property
    def text(self) -> str:
        words = f"__cluster_dims__({self.cluster}, 1, 1) " if self.cluster > 1 else ""
        bounds = f"__launch_bounds__({self.threads}, 1) "
        kernel = f'extern "C" __global__ void {words}{bounds}k({self.parameters})'
        return f"{TENSOR_MAP if self.has_maps else ''}{self.helpers}\n{kernel}\n{{\n  {self.body}\n}}\n"

    @property
    def launch(self) -> Launch:
        return Launch("k", (self.cluster, 1, 1), (self.threads, 1, 1), self.arguments, self.shared)

    @property
    def source(self) -> GpuSource:
        outputs = tuple(name for name in self.memory if name.islower())
        inputs = tuple(name for name in self.memory if name not in outputs)
        return GpuSource("form", "cuda", self.text, (self.launch,), inputs, outputs, (), is_arch_specific=True)

    def fresh(self) -> dict[str, Array]:
        """Aligned copies of the arrays."""
        return {name: aligned(array) for name, array in self.memory.items()}

    def complaint(self, memory: Mapping[str, Array]) -> str | None:
        """What is wrong with the outputs; None when nothing is."""
        found = (e.complaint(name, memory[name]) for name, e in self.expected.items())
        return next((text for text in found if text is not None), None)


def aligned(array: Array) -> Array:
    """A copy whose address is a multiple of ALIGNMENT, as the memory of a device is."""
    raw = np.zeros(array.nbytes + ALIGNMENT, np.uint8)
    begin = -raw.ctypes.data % ALIGNMENT
    made: Array = raw[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


def helper(signature: str, ptx: str, operands: str) -> str:
    """A function of one instruction that gives nothing back."""
    return f'static __device__ __forceinline__ void {signature}\n{{\n  asm volatile("{ptx}" {operands});\n}}\n'


def giver(kind: str, signature: str, ptx: str, operands: str) -> str:
    """A function of one instruction whose value, %0, is of a C type."""
    letter = {"unsigned": "r", "int": "r", "float": "f", "unsigned short": "h"}[kind]
    return (
        f"static __device__ __forceinline__ {kind} {signature}\n"
        f'{{\n  {kind} r;\n  asm volatile("{ptx}" : "={letter}"(r) {operands});\n  return r;\n}}\n'
    )


BARRIERS = "".join((
    helper("init(unsigned bar, unsigned count)", "mbarrier.init.shared::cta.b64 [%0], %1;",
           ':: "r"(bar), "r"(count) : "memory"'),
    helper("fence_init()", "fence.mbarrier_init.release.cluster;", '::: "memory"'),
    helper("expect(unsigned bar, unsigned bytes)", "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;",
           ':: "r"(bar), "r"(bytes) : "memory"'),
    helper("arrive(unsigned bar)", "mbarrier.arrive.shared::cta.b64 _, [%0];", ':: "r"(bar) : "memory"'),
    giver("unsigned", "done(unsigned bar, unsigned parity)",
          "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }",
          ': "r"(bar), "r"(parity) : "memory"'),
    helper("fence()", "fence.proxy.async.shared::cta;", '::: "memory"'),
))  # fmt: skip
