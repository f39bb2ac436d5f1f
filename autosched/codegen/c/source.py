"""The interface from the C emitter to a device: one text, its launches in order, and the memory they need."""

from __future__ import annotations

from dataclasses import dataclass

from autosched.codegen.c.dialects import DIALECTS

Triple = tuple[int, int, int]


@dataclass(frozen=True)
class PixelBox:
    """Of an image to columns: corners of its box along W, H, (D); `channels` and `pixels` that are copied at a time."""

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    channels: int
    pixels: int


@dataclass(frozen=True)
class TensorMap:
    """How a GPU's copy engine sees a buffer: 128 bytes that a kernel takes by value, at a multiple of 64.

    In CUDA C the parameter is `const __grid_constant__ T name`, of a type that the text declares itself:
    `struct __align__(64) T { unsigned long long opaque[16]; };`. The driver makes it for the buffer's address.

    Lists are innermost first. `extents` in elements of `dtype`; `strides` in bytes, one fewer, for the innermost
    elements are neighbours; `box`: elements that are copied at a time, of an image with its channels innermost a
    PixelBox. `steps`: between the elements that are taken, 1 where there is none for a dimension; of a box of n there
    are n / step then. `swizzle`: bytes of the span within which 16 bytes change places; 0, 32, 64 or 128.
    """

    name: str
    buffer: str
    dtype: str
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...] | PixelBox
    swizzle: int = 0
    steps: tuple[int, ...] = ()

    def __str__(self) -> str:
        """The parameters from which a caller makes the tensor map."""
        box = self.box
        if isinstance(box, PixelBox):
            part = f"{box.pixels} pixels of {box.channels} channels, corners {box.lower} and {box.upper}"
        else:
            part = f"box {box}"
        steps = f", steps {self.steps}" if self.steps else ""
        tensor = f"{self.buffer}, {self.dtype}{self.extents} innermost first, strides {self.strides} bytes"
        return f"{tensor}, {part}{steps}, swizzle {self.swizzle}"


@dataclass(frozen=True)
class Launch:
    """One kernel call: blocks and threads as (x, y, z), its arguments in order, bytes of shared memory.

    An argument is the name of a buffer, or a map of one. In CUDA C the shared memory of a kernel is arrays of known
    size or one `extern` array, which is then all of it. Clusters of blocks are in the text, as `__cluster_dims__`:
    launches need no word on them. `is_early`: it may be started before the launch before it has ended, for the kernel
    waits for that itself. `writes`: the buffers that it stores to; nothing where that is not known.
    """

    kernel: str
    grid: Triple
    block: Triple
    arguments: tuple[str | TensorMap, ...]
    shared_bytes: int
    is_early: bool = False
    writes: tuple[str, ...] = ()

    @property
    def buffers(self) -> tuple[str, ...]:
        """The buffer of each argument."""
        return tuple(a.buffer if isinstance(a, TensorMap) else a for a in self.arguments)

    @property
    def parameters(self) -> tuple[str, ...]:
        """For each argument the name that a reader knows it by."""
        return tuple(a.name if isinstance(a, TensorMap) else a for a in self.arguments)

    @property
    def description(self) -> list[str]:
        """How a caller starts the kernel, for the comment at the top: in ASCII, as not all compilers know more."""
        sizes = f"grid {self.grid}, block {self.block}, {self.shared_bytes} shared bytes"
        maps = [f"  {a.name}: tensor map of {a}" for a in self.arguments if isinstance(a, TensorMap)]
        lines = [f"launch {self.kernel}({', '.join(self.parameters)}): {sizes}", *maps]
        return [line.encode("ascii", "backslashreplace").decode() for line in lines]


@dataclass(frozen=True)
class GpuSource:
    """`workspace` are (name, bytes) of buffers between launches; `text` is C in a `dialect`, one of DIALECTS.

    `is_arch_specific`: it has instructions of one architecture that later ones lack, as wgmma of sm_90a, and is
    compiled for that one alone. `matrices`: rows of `ir/instructions/matrices.py` that it multiplies by.
    """

    name: str
    dialect: str
    text: str
    launches: tuple[Launch, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    workspace: tuple[tuple[str, int], ...]
    is_arch_specific: bool = False
    matrices: tuple[str, ...] = ()

    @property
    def suffix(self) -> str:
        """Of a file with the text."""
        return DIALECTS[self.dialect].suffix

    @property
    def threads(self) -> int:
        """Of the processor: one launches it."""
        return 1
