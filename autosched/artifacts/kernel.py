"""A kernel as files that need no autosched: an object, a shared library, a C header.

The files hold one function, with C linkage and without state that a caller could see:

    int autosched_NAME(const T *in0, ..., T *out0, ..., void *workspace);

or two, where inputs are weights: these go to the first, once, and the other one takes what that has made of them:

    int autosched_NAME_prepare(const T *weight0, ..., void *packed, void *workspace);
    int autosched_NAME(const T *in0, ..., T *out0, ..., const void *packed, void *workspace);

They return 0. Arrays are dense, row-major and do not overlap; `workspace` is scratch memory, 64-byte aligned, of
AUTOSCHED_NAME_WORKSPACE_BYTES (see the header), one for each call in flight; `packed` has AUTOSCHED_NAME_PACKED_BYTES,
aligned alike, and calls in flight may share it. The thread pool is inside; several of these objects in one program
share it. Needed at link time: the C library with threads, and libm.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from autosched.artifacts.c_interface import Argument, Function, Header, arguments_of, terms, workspace_line, wrapper_ir
from autosched.artifacts.linking import linked, write_whole
from autosched.backends import BACKENDS, exports
from autosched.errors import DeviceError, UsageError
from autosched.target import DEFAULT_ARCH, Target

if TYPE_CHECKING:
    from autosched.codegen import GpuSource, KernelSource, Source
    from autosched.runtime.spec import ArraySpec

S = TypeVar("S", bound="Source")


@dataclass(frozen=True)
class Deployable(Generic[S]):
    """A kernel with all that a caller has to know; `name` is a C identifier without `autosched_`."""

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
        """One for each array, in the kernel's order."""
        return arguments_of(self.inputs, self.outputs, self.weights)


def _functions(kernel: Deployable[KernelSource]) -> tuple[Function, ...]:
    """What the files hold: of a kernel with weights two functions, the one that prepares them first."""
    source, arguments = kernel.source, kernel.arguments
    scratch = "void *workspace"
    if source.prepare is None:
        return (Function(kernel.symbol, source.name, arguments, (scratch,)),)
    given = tuple(a for a in arguments if a.role == "weight")
    rest = tuple(a for a in arguments if a.role != "weight")
    return (
        Function(f"{kernel.symbol}_prepare", source.prepare, given, ("void *packed", scratch)),
        Function(kernel.symbol, source.name, rest, ("const void *packed", scratch)),
    )


@dataclass(frozen=True)
class FileKind:
    """`content` makes the file of a kernel, whose name is known by then; a C header may come beside it."""

    content: Callable[[Deployable[Any], Path], bytes]
    has_header: bool = False


def check_kind(kind: str) -> None:
    """Raises UsageError for a kind of file that cannot be made."""
    if kind not in exports():
        raise UsageError(f"a kernel is exported as {', '.join(exports())}, got {kind!r}")


def write_files(kernel: Deployable[Any], kind: str, out: Path | None) -> list[Path]:
    """Writes `kernel` as a file of `kind` at `out` (default: its name, here), a processor's code with its header.

    Each file is there whole or not at all. Raises UsageError for a path that cannot be written, and where there is no
    linker for a shared library; DeviceError where there is no compiler.
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
    """CUDA C compiled for the target's compute capability."""
    from autosched.runtime.gpu.compile import CompileError, cuda_compiler

    arch = kernel.target.arch
    try:
        return cuda_compiler(arch or DEFAULT_ARCH).compile(kernel.source).code
    except CompileError as error:
        raise DeviceError(f"the CUDA compiler refuses the kernel for {arch}: {error}") from error


def object_code(kernel: Deployable[KernelSource]) -> bytes:
    """The object file: kernel, thread pool and the functions of the module's text."""
    from autosched.runtime.jit import export_object

    ir = kernel.source.ir
    for function in _functions(kernel):
        entry = re.compile(rf"^define (?=i32 @{re.escape(function.entry)}\()", re.MULTILINE)
        ir, n_entries = entry.subn("define internal ", ir)
        assert n_entries == 1, f"the kernel's IR defines {function.entry} {n_entries} times"
        ir += _entry_ir(kernel, function)
    return export_object(ir, kernel.target, kernel.source.threads)


def _entry_ir(kernel: Deployable[KernelSource], function: Function) -> str:
    """A function with one pointer for each of its arrays, which calls its entry of the kernel."""
    names = [a.name for a in kernel.arguments]
    places = [names.index(a.name) for a in function.arguments]
    if kernel.source.prepare is not None:
        places = [*places, len(names)]  # the block comes last
    return wrapper_ir(function.symbol, function.entry, places, len(names) + 1, kernel.source.threads)


def header_text(kernel: Deployable[KernelSource]) -> str:
    """The C header: what the functions take, and how much memory they need."""
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


def _linked(kernel: Deployable[KernelSource], path: Path) -> bytes:
    try:
        return linked([object_code(kernel)], path)
    except UsageError as error:
        raise UsageError(f"{error}; --kind object needs no linker") from error


_TEXT = FileKind(lambda kernel, path: kernel.source.text.encode())  # whose comment says how to launch it
FILE_KINDS: dict[str, FileKind] = {
    "so": FileKind(_linked, has_header=True),
    "object": FileKind(lambda kernel, path: object_code(kernel), has_header=True),
    "c-header": FileKind(lambda kernel, path: header_text(kernel).encode()),
    "cuda": _TEXT,
    "cubin": FileKind(_cubin),
    "opencl": _TEXT,
}
