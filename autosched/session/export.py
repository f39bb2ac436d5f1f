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

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from autosched.backends import BACKENDS, exports
from autosched.errors import DeviceError, UsageError
from autosched.ir.dtype import DTYPES
from autosched.target import DEFAULT_ARCH, Target

if TYPE_CHECKING:
    from autosched.codegen import GpuSource, KernelSource, Source
    from autosched.runtime.spec import ArraySpec

S = TypeVar("S", bound="Source")
C_FLOATS = {"float32": "float", "float64": "double"}
# Programs that can link, in the order of preference, with what they need besides the object.
LINKERS = (
    ("cc", ("-lm", "-lpthread")),
    ("gcc", ("-lm", "-lpthread")),
    ("clang", ("-lm", "-lpthread")),
    ("ld", ()),  # what is undefined is found in the program that loads the library
    ("ld.lld", ()),
)


@dataclass(frozen=True)
class Argument:
    """An array in C: its pointer's type, its name, and whether it is "in ", "out" or a "weight"."""

    kind: str
    name: str
    spec: ArraySpec
    role: str


@dataclass(frozen=True)
class Function:
    """A function in C that calls `entry` of the kernel's module with `arguments` and memory of the caller's."""

    symbol: str
    entry: str
    arguments: tuple[Argument, ...]
    memory: tuple[str, ...]

    @property
    def prototype(self) -> str:
        return f"int {self.symbol}({', '.join([*(f'{a.kind}{a.name}' for a in self.arguments), *self.memory])});"


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
        names = _c_names(spec.name for spec in (*self.inputs, *self.outputs))
        found = []
        for n, (name, spec) in enumerate(zip(names, (*self.inputs, *self.outputs), strict=True)):
            is_input = n < len(self.inputs)
            role = ("weight" if spec.name in self.weights else "in ") if is_input else "out"
            found.append(Argument(f"{'const ' if is_input else ''}{_c_type(spec.dtype)} *", name, spec, role))
        return tuple(found)


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
    taken = [f"ptr %a{i}" for i in places]
    if kernel.source.prepare is not None:
        places, taken = [*places, len(names)], [*taken, f"ptr %a{len(names)}"]  # the block comes last
    n = len(names) + 1
    lines = [f"\ndefine i32 @{function.symbol}({', '.join([*taken, 'ptr %workspace'])}) nounwind {{"]
    lines.append(f"  %args = alloca [{n} x ptr], align 16")
    for i in places:
        lines.append(f"  %p{i} = getelementptr [{n} x ptr], ptr %args, i64 0, i64 {i}")
        lines.append(f"  store ptr %a{i}, ptr %p{i}")
    call = f"call i32 @{function.entry}(ptr %args, ptr %workspace, i64 {kernel.source.threads})"
    return "\n".join([*lines, f"  %status = {call}", "  ret i32 %status", "}", ""])


def header_text(kernel: Deployable[KernelSource]) -> str:
    """The C header (C99 or C++): what the functions take, and how much memory they need."""
    guard = f"{kernel.symbol.upper()}_H"
    target, threads, packed_bytes = kernel.target, kernel.source.threads, kernel.source.packed_bytes
    rows = [f" *   {a.name:<12} {a.role}  {a.spec}" for a in kernel.arguments]
    if packed_bytes:
        rows.append(
            f" *   {'packed':<12} what {kernel.symbol}_prepare makes of the weights, once: 64-byte aligned,"
            f" {packed_bytes} bytes"
        )
    return "\n".join(
        [
            f"/* {_comment(kernel.title)}",
            " *",
            *rows,
            f" *   {'workspace':<12} scratch, 64-byte aligned, {kernel.source.workspace_bytes} bytes, one for each call"
            " in flight",
            " *",
            f" * Dense row-major arrays that do not overlap; runs on at most {threads} thread(s); returns 0.",
            f" * Made for {target.fingerprint}: another processor may not have its instructions.",
            " */",
            f"#ifndef {guard}",
            f"#define {guard}",
            "",
            "#include <stdint.h>",
            "",
            f'#define {kernel.symbol.upper()}_TARGET "{target.arch}-{target.mcpu}"',
            f"#define {kernel.symbol.upper()}_THREADS {threads}",
            f"#define {kernel.symbol.upper()}_WORKSPACE_BYTES {kernel.source.workspace_bytes}",
            *([f"#define {kernel.symbol.upper()}_PACKED_BYTES {packed_bytes}"] if packed_bytes else []),
            "",
            "#ifdef __cplusplus",
            'extern "C"',
            "#endif",
            *(function.prototype for function in _functions(kernel)),
            "",
            f"#endif /* {guard} */",
            "",
        ]
    )


def c_identifier(text: str) -> str:
    """`text` with everything that a C name cannot hold replaced by an underscore."""
    return re.sub(r"\W", "_", text, flags=re.ASCII) or "kernel"


def _c_names(names: Iterator[str]) -> list[str]:
    """Distinct argument names that are no words of C or C++: each ends in an underscore if it has to."""
    used = {"workspace", *_RESERVED}
    found = []
    for name in names:
        word = c_identifier(name)
        word = f"_{word}" if word[0].isdigit() else word
        while word in used:
            word += "_"
        used.add(word)
        found.append(word)
    return found


_RESERVED = {
    "auto", "bool", "break", "case", "catch", "char", "class", "const", "continue", "default", "delete", "do",
    "double", "else", "enum", "extern", "false", "float", "for", "friend", "goto", "if", "inline", "int", "long",
    "mutable", "namespace", "new", "operator", "private", "protected", "public", "register", "restrict", "return",
    "short", "signed", "sizeof", "static", "struct", "switch", "template", "this", "throw", "true", "try", "typedef",
    "union", "unsigned", "using", "virtual", "void", "volatile", "while", "and", "or", "not", "xor", "asm", "int8_t",
    "uint8_t", "int16_t", "uint16_t", "int32_t", "uint32_t", "int64_t", "uint64_t",
}  # fmt: skip


def _c_type(dtype: str) -> str:
    """The type of an element; an unsigned integer of its bits where C has none."""
    row = DTYPES[dtype]
    return C_FLOATS.get(dtype) or f"{dtype if row.is_integer else row.bits_dtype}_t"


def _comment(text: str) -> str:
    """Text of a record inside a C comment."""
    return "".join(c if c.isprintable() else "?" for c in text).replace("*/", "* /")


def _linked(code: bytes, path: Path) -> bytes:
    """A shared library of the object `code`; `path` is the name that the library is known by."""
    found = next(((which, words) for name, words in LINKERS if (which := shutil.which(name))), None)
    if found is None:
        raise UsageError(
            f"a shared library needs a linker and none of {', '.join(name for name, _ in LINKERS)} is installed: "
            "install one, or export with --kind object, which needs none"
        )
    linker, words = found
    with tempfile.TemporaryDirectory() as directory:
        source, library = Path(directory) / "kernel.o", Path(directory) / "kernel.so"
        source.write_bytes(code)
        named = ["-soname", path.name]
        if words:  # a compiler that calls the linker
            named = ["-Xlinker", "-soname", "-Xlinker", path.name]
        command = [linker, "-shared", *named, "-o", str(library), str(source), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
            raise UsageError(f"{linker} cannot link the library: {lines[-1]}; --kind object needs no linker")
        return library.read_bytes()


def write_whole(path: Path, content: bytes) -> None:
    """Writes beside `path`, then renames; raises UsageError where that cannot be done."""
    if path.exists() and not path.is_file() and not path.is_dir():  # a device would be replaced by a file
        raise UsageError(f"{path} cannot be written: it is not a regular file, so name another")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error


_TEXT = FileKind(lambda kernel, path: kernel.source.text.encode())  # whose comment says how to launch it
FILE_KINDS: dict[str, FileKind] = {
    "so": FileKind(lambda kernel, path: _linked(object_code(kernel), path), has_header=True),
    "object": FileKind(lambda kernel, path: object_code(kernel), has_header=True),
    "c-header": FileKind(lambda kernel, path: header_text(kernel).encode()),
    "cuda": _TEXT,
    "cubin": FileKind(_cubin),
    "opencl": _TEXT,
}
