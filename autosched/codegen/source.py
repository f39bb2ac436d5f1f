"""The interface from code generation to the runtime: a kernel as LLVM IR text, and what is known of code that is
compiled."""

from __future__ import annotations

from dataclasses import dataclass

from autosched.ir.expr import Expr
from autosched.target import Target


@dataclass(frozen=True)
class KernelSource:
    """`ir` exports `i32 @<name>(ptr args, ptr workspace, i64 nthreads)`, which returns 0.

    `args` points to one pointer per input, then one per output; `workspace` is 64-byte aligned scratch of
    `workspace_bytes`, enough for a call with `threads` threads.

    Where inputs are weights, `i32 @<name>.prepare` takes the same arguments and goes first, once: one more pointer at
    the end of `args` is a block of `packed_bytes`, 64-byte aligned, that it fills from the weights; it looks at no
    other argument. The kernel itself then reads the block and no weight.

    A kernel of sizes that are known at run time has closed forms of them, `sizes`. The last of `args` is then a table
    of one int64 for each, and the numbers of bytes are sizes themselves (`ir.size`).
    """

    name: str
    ir: str
    workspace_bytes: int
    threads: int
    packed_bytes: int = 0
    winograd: int = 0  # it is held to the error of Winograd's tiles of so many outputs, 0: of the direct form
    sizes: tuple[Expr, ...] = ()

    @property
    def prepare(self) -> str | None:
        """The name of the function that fills the block; None where there are no weights."""
        return f"{self.name}.prepare" if self.packed_bytes else None

    @property
    def text(self) -> str:
        return self.ir

    @property
    def suffix(self) -> str:
        """Of a file with the text."""
        return ".ll"


@dataclass(frozen=True)
class NestCode:
    """What entry points know of the code of a nest: its functions, `name` and where outputs are `non_temporal` also
    `name`.stream, each for one of `n_tasks`. With `reads_sizes` they take the table of sizes as well."""

    name: str
    n_tasks: int
    non_temporal: tuple[str, ...]
    reads_sizes: bool = False


@dataclass(frozen=True)
class PieceCode:
    """What entry points know of the code of a piece: the `buffers` that its nests take, by name, of which some are in
    the workspace, at `offsets` and in `shared_bytes`, and what a thread needs there."""

    buffers: tuple[str, ...]
    offsets: tuple[tuple[str, int], ...]
    shared_bytes: int
    private_bytes: int
    nests: tuple[NestCode, ...]


_STACK_ALIGNMENT = 16  # bytes, by the calling conventions of x86-64 and AArch64


def function_attributes(target: Target) -> str:
    """The attributes every function of a kernel carries: processor, features and the full vector width.

    And that it aligns its stack where vectors are wider than a caller's stack is aligned. LLVM does so by itself only
    when it knows early; vectors that are spilled later would straddle cache lines, or not, as the caller's stack falls:
    a depthwise convolution took 26 to 50 us, with its caller.

    A frame of a page or more touches each of its pages in turn, so that one that does not fit ends at the guard page.
    """
    bits = 8 * target.vector_bytes
    aligned = '"stackrealign" ' if target.vector_bytes > _STACK_ALIGNMENT else ""
    features = f'"target-features"="{target.features}" ' if target.features else ""
    return (
        f'nounwind {aligned}"probe-stack"="inline-asm" "target-cpu"="{target.mcpu}" {features}'
        f'"prefer-vector-width"="{bits}" "min-legal-vector-width"="{bits}"'
    )
