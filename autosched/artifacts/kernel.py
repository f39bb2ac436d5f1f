"""Export of a kernel to files that need no autosched: an object, a shared library, a C header.

The files contain one stateless function with C linkage:

    int autosched_NAME(const T *in0, ..., T *out0, ..., void *workspace);

or two, if inputs are weights: the first one packs them, once, and the other one reads the packed weights:

    int autosched_NAME_prepare(const T *weight0, ..., void *packed, void *workspace);
    int autosched_NAME(const T *in0, ..., T *out0, ..., const void *packed, void *workspace);

They return 0. Arrays are dense, row-major and do not overlap; `workspace` is scratch memory, 64-byte aligned, of
AUTOSCHED_NAME_WORKSPACE_BYTES (see the header), one for each call in flight; `packed` has AUTOSCHED_NAME_PACKED_BYTES,
64-byte aligned, and calls in flight may share it. The thread pool is part of the object; several of these objects in
one program share one pool. Needed at link time: the C library with threads, and libm.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from autosched.artifacts.c_interface import Argument, Function, Header, arguments_of, terms, workspace_line, wrapper_ir
from autosched.artifacts.linking import link_library, write_whole
from autosched.backends import BACKENDS, exports
from autosched.errors import DeviceError, UsageError
from autosched.target import DEFAULT_ARCH, Target

if TYPE_CHECKING:
    from autosched.codegen import GpuSource, KernelSource, Source
    from autosched.runtime.spec import ArraySpec

S = TypeVar("S", bound="Source")


@dataclass(frozen=True)
class Deployable(Generic[S]):
    """A kernel to export, with its interface; `name` is a C identifier without the prefix `autosched_`."""

    name: str
    title: str  # of the header
    source: S
    target: Target
    inputs: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]
    weights: tuple[str, ...] = ()

    @property
    def symbol(self) -> str:
        return f"autosched_{self.name}"

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The array parameters in the kernel's order."""
        return arguments_of(self.inputs, self.outputs, self.weights)


def _functions(kernel: Deployable[KernelSource]) -> tuple[Function, ...]:
    """Return the exported functions; of a kernel with weights two, the one that packs them first."""
    source, arguments = kernel.source, kernel.arguments
    scratch = "void *workspace"
    if source.prepare is None:
        return (Function(kernel.symbol, source.name, arguments, (scratch,)),)
    weights = tuple(a for a in arguments if a.role == "weight")
    rest = tuple(a for a in arguments if a.role != "weight")
    return (
        Function(f"{kernel.symbol}_prepare", source.prepare, weights, ("void *packed", scratch)),
        Function(kernel.symbol, source.name, rest, ("const void *packed", scratch)),
    )


@dataclass(frozen=True)
class FileKind:
    """A format of exported files: the function that returns the content for a path, and whether it has a C header."""

    content: Callable[[Deployable[Any], Path], bytes]
    has_header: bool = False


def check_kind(kind: str) -> None:
    """Raise UsageError for an unknown kind of file."""
    if kind not in exports():
        raise UsageError(f"a kernel is exported as {', '.join(exports())}, got {kind!r}")


def write_files(kernel: Deployable[Any], kind: str, out: Path | None) -> list[Path]:
    """Write `kernel` as a file of `kind` at `out`, with a C header for processors, and return the paths.

    `out` is by default the kernel's symbol in the current directory. Each file is written atomically. Raises UsageError
    for a path that cannot be written, or for a shared library without a linker; DeviceError without a compiler.
    """
    suffix = BACKENDS[exports()[kind]].exports[kind]
    path = Path(f"{kernel.symbol}{suffix}") if out is None else out
    header = path.with_suffix(".h")
    if FILE_KINDS[kind].has_header and header == path:
        raise UsageError(f"{path} is the header's name: give the {kind} another, as in {path.with_suffix('.o')}")
    write_whole(path, FILE_KINDS[kind].content(kernel, path))
    if not FILE_KINDS[kind].has_header:
        return [path]
    write_whole(header, header_text(kernel).encode())
    return [path, header]


def _cubin(kernel: Deployable[GpuSource], path: Path) -> bytes:
    """Return CUDA C compiled for the target's compute capability."""
    from autosched.runtime.gpu.compile import CompileError, cuda_compiler

    arch = kernel.target.arch
    try:
        return cuda_compiler(arch or DEFAULT_ARCH).compile(kernel.source).code
    except CompileError as error:
        raise DeviceError(f"the CUDA compiler refuses the kernel for {arch}: {error}") from error


def object_code(kernel: Deployable[KernelSource]) -> bytes:
    """Return the object file with the kernel, the thread pool and the exported functions."""
    from autosched.runtime.jit import export_object

    ir = kernel.source.ir
    for function in _functions(kernel):
        entry = re.compile(rf"^define (?=i32 @{re.escape(function.entry)}\()", re.MULTILINE)
        ir, n_entries = entry.subn("define internal ", ir)
        assert n_entries == 1, f"the kernel's IR defines {function.entry} {n_entries} times"
        ir += _entry_ir(kernel, function)
    return export_object(ir, kernel.target, kernel.source.threads)


def _entry_ir(kernel: Deployable[KernelSource], function: Function) -> str:
    """Return the LLVM IR of an exported function, which calls its entry of the kernel."""
    names = [a.name for a in kernel.arguments]
    positions = [names.index(a.name) for a in function.arguments]
    if kernel.source.prepare is not None:
        positions = [*positions, len(names)]  # the packed weights are the last
    return wrapper_ir(function.symbol, function.entry, positions, len(names) + 1, kernel.source.threads)


def header_text(kernel: Deployable[KernelSource]) -> str:
    """Return the C header: the functions, their parameters, and the sizes of memory that they need."""
    target, threads, packed_bytes = kernel.target, kernel.source.threads, kernel.source.packed_bytes
    about = [f"  {a.name:<12} {a.role}  {a.spec}" for a in kernel.arguments]
    macros: list[tuple[str, object]] = [("TARGET", f'"{target.arch}-{target.mcpu}"'), ("THREADS", threads)]
    macros.append(("WORKSPACE_BYTES", kernel.source.workspace_bytes))
    if packed_bytes:
        about.append(
            f"  {'packed':<12} what {kernel.symbol}_prepare makes of the weights, once: 64-byte aligned,"
            f" {packed_bytes} bytes"
        )
        macros.append(("PACKED_BYTES", packed_bytes))
    about += [workspace_line(kernel.source.workspace_bytes), "", *terms(target, threads)]
    prototypes = [function.prototype for function in _functions(kernel)]
    return Header(kernel.symbol, kernel.title, about, ("stdint.h",), macros, prototypes).text


def _library(kernel: Deployable[KernelSource], path: Path) -> bytes:
    try:
        return link_library([object_code(kernel)], path)
    except UsageError as error:
        raise UsageError(f"{error}; --kind object needs no linker") from error


_TEXT = FileKind(lambda kernel, path: kernel.source.text.encode())  # a comment in it describes the launch
FILE_KINDS: dict[str, FileKind] = {
    "so": FileKind(_library, has_header=True),
    "object": FileKind(lambda kernel, path: object_code(kernel), has_header=True),
    "c-header": FileKind(lambda kernel, path: header_text(kernel).encode()),
    "cuda": _TEXT,
    "cubin": FileKind(_cubin),
    "opencl": _TEXT,
}
