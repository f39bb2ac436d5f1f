"""Generated GPU source: one text, its kernel launches in order, and the buffers between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from autosched.codegen.c.dialects import DIALECTS

Triple = tuple[int, int, int]
SIZES = "sizes of the call"  # the argument of a launch that is the buffer of `GpuSource.sizes`


@dataclass(frozen=True)
class PixelBox:
    """The box of an im2col tensor map: corners along W, H, (D), and the `channels` and `pixels` of one copy."""

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    channels: int
    pixels: int


@dataclass(frozen=True)
class TensorMap:
    """A tensor map: a buffer as the copy engine of a GPU addresses it. A kernel takes its 128 bytes by value, aligned
    to 64.

    In CUDA C the parameter is `const __grid_constant__ T name`, of a type that the text declares itself:
    `struct __align__(64) T { unsigned long long opaque[16]; };`. The driver makes it for the buffer's address.

    Tuples are innermost first. `extents`: in elements of `dtype`; `strides`: in bytes, without the innermost one, whose
    elements are adjacent; `box`: elements of one copy, a PixelBox for im2col of an image with channels innermost.
    `steps`: element strides (traversal strides), a copy has n / step elements of a box of n; empty: 1. `swizzle`: bytes
    of the span within which units of 16 bytes are permuted; 0, 32, 64 or 128.
    """

    name: str
    buffer: str
    dtype: str
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...] | PixelBox
    swizzle: int = 0
    steps: tuple[int, ...] = ()

    def with_numbers(self, number: Callable[[int], int]) -> TensorMap:
        return replace(self, extents=tuple(map(number, self.extents)), strides=tuple(map(number, self.strides)))

    def __str__(self) -> str:
        """Return the parameters from which a caller encodes the tensor map."""
        box = self.box
        if isinstance(box, PixelBox):
            box_text = f"{box.pixels} pixels of {box.channels} channels, corners {box.lower} and {box.upper}"
        else:
            box_text = f"box {box}"
        steps = f", steps {self.steps}" if self.steps else ""
        tensor = f"{self.buffer}, {self.dtype}{self.extents} innermost first, strides {self.strides} bytes"
        return f"{tensor}, {box_text}{steps}, swizzle {self.swizzle}"


@dataclass(frozen=True)
class Launch:
    """One kernel launch: blocks and threads as (x, y, z), its arguments in order, bytes of shared memory.

    An argument is the name of a buffer, or the tensor map of one. In CUDA C the shared memory of a kernel is either
    static arrays or one dynamic `extern` array. Clusters of blocks are an attribute in the text, `__cluster_dims__`.
    `is_early`: the launch may start before the previous one has ended, since the kernel waits for that itself
    (programmatic dependent launch). `writes`: the buffers that the kernel stores to; empty if unknown.
    """

    kernel: str
    grid: Triple
    block: Triple
    arguments: tuple[str | TensorMap, ...]
    shared_bytes: int
    is_early: bool = False
    writes: tuple[str, ...] = ()

    def with_numbers(self, number: Callable[[int], int]) -> Launch:
        x, y, z = map(number, self.grid)
        arguments = (a.with_numbers(number) if isinstance(a, TensorMap) else a for a in self.arguments)
        return replace(self, grid=(x, y, z), arguments=tuple(arguments))

    @property
    def buffers(self) -> tuple[str, ...]:
        """The buffer of each argument."""
        return tuple(a.buffer if isinstance(a, TensorMap) else a for a in self.arguments)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The name of each argument in descriptions: of the buffer or of the tensor map."""
        return tuple(a.name if isinstance(a, TensorMap) else a for a in self.arguments)

    @property
    def description(self) -> list[str]:
        """How a caller launches the kernel, as comment lines in ASCII, since not all compilers accept more."""
        sizes = f"grid {self.grid}, block {self.block}, {self.shared_bytes} shared bytes"
        maps = [f"  {a.name}: tensor map of {a}" for a in self.arguments if isinstance(a, TensorMap)]
        lines = [f"launch {self.kernel}({', '.join(self.parameters)}): {sizes}", *maps]
        return [line.encode("ascii", "backslashreplace").decode() for line in lines]


@dataclass(frozen=True)
class GpuSource:
    """The generated source of a function: C `text` in a `dialect` of DIALECTS, and its `launches` in order.

    `workspace`: (name, bytes) of buffers between launches. `is_arch_specific`: the text has instructions that later
    architectures lack, such as wgmma of sm_90a, and is compiled for its own only. `matrices`: names of the matrix
    instructions that it uses, rows of `ir/instructions/matrices.py`. `sizes`: the numbers of the int64 buffer SIZES.

    In code for sizes that are known at a call the `numbers` are sizes (`ir.size`).
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
    sizes: tuple[int, ...] = ()

    @property
    def suffix(self) -> str:
        """The suffix of a file with the text."""
        return DIALECTS[self.dialect].suffix

    @property
    def threads(self) -> int:
        """The host threads that a call takes: one, which launches the kernels."""
        return 1

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers that may be sizes: of grids, tensor maps, the workspace and the table, in this order."""
        numbers: list[int] = []

        def taken(number: int) -> int:
            numbers.append(number)
            return number

        self.with_numbers(taken)
        return tuple(numbers)

    def renumbered(self, numbers: Iterable[int]) -> GpuSource:
        """Return the source with others in place of its `numbers`."""
        following = iter(numbers)
        return self.with_numbers(lambda _: next(following))

    def with_numbers(self, number: Callable[[int], int]) -> GpuSource:
        """Return the source with `number(n)` in place of each n of its `numbers`, in their order."""
        launches = tuple(launch.with_numbers(number) for launch in self.launches)
        workspace = tuple((name, number(nbytes)) for name, nbytes in self.workspace)
        return replace(self, launches=launches, workspace=workspace, sizes=tuple(map(number, self.sizes)))
