"""What C sees of an exported function: types, names, prototypes, and the header around them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autosched.ir.dtype import DTYPES
from autosched.runtime.spec import ArraySpec
from autosched.target import Target

_POOL_PROTOTYPE = "void autosched_pool_shutdown(void);"
C_FLOATS = {"float32": "float", "float64": "double"}


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
class Header:
    """A C header (C99 or C++). `about`: lines of its comment; `macros`: (name, value) that `symbol` in capitals and an
    underscore go before; `own`: text after the prototypes, for functions that are only here. The thread pool's comes
    after `prototypes`; several headers may declare it."""

    symbol: str
    title: str
    about: Sequence[str]
    includes: Sequence[str]
    macros: Sequence[tuple[str, object]]
    prototypes: Sequence[str]
    own: str = ""

    @property
    def text(self) -> str:
        guard, capitals = f"{self.symbol.upper()}_H", self.symbol.upper()
        lines = [f"/* {_comment(self.title)}", " *", *(f" * {line}".rstrip() for line in self.about), " */"]
        lines += [f"#ifndef {guard}", f"#define {guard}", "", *(f"#include <{name}>" for name in self.includes), ""]
        lines += [f"#define {capitals}_{name} {value}" for name, value in self.macros]
        lines += ["", "#ifdef __cplusplus", 'extern "C" {', "#endif"]
        lines += [*self.prototypes, _POOL_PROTOTYPE, "#ifdef __cplusplus", "}"]
        return "\n".join([*lines, "#endif", *([self.own] if self.own else []), "", f"#endif /* {guard} */", ""])


def arguments_of(
    inputs: Sequence[ArraySpec], outputs: Sequence[ArraySpec], weights: Sequence[str] = ()
) -> tuple[Argument, ...]:
    """One for each array, in the order of the arrays; `weights` names inputs."""
    found = []
    names = c_names(spec.name for spec in (*inputs, *outputs))
    for n, (name, spec) in enumerate(zip(names, (*inputs, *outputs), strict=True)):
        is_input = n < len(inputs)
        role = ("weight" if spec.name in weights else "in ") if is_input else "out"
        found.append(Argument(f"{'const ' if is_input else ''}{c_type(spec.dtype)} *", name, spec, role))
    return tuple(found)


def wrapper_ir(symbol: str, entry: str, places: Sequence[int], size: int, threads: int) -> str:
    """LLVM IR of a function `symbol` with a pointer for each of `places` and one of scratch memory; it calls `entry`
    with an array of `size` pointers, which has them at their places."""
    taken = ", ".join([*(f"ptr %a{i}" for i in places), "ptr %workspace"])
    lines = [f"\ndefine i32 @{symbol}({taken}) nounwind {{", f"  %args = alloca [{size} x ptr], align 16"]
    for i in places:
        lines.append(f"  %p{i} = getelementptr [{size} x ptr], ptr %args, i64 0, i64 {i}")
        lines.append(f"  store ptr %a{i}, ptr %p{i}")
    call = f"call i32 @{entry}(ptr %args, ptr %workspace, i64 {threads})"
    return "\n".join([*lines, f"  %status = {call}", "  ret i32 %status", "}", ""])


def workspace_line(nbytes: int) -> str:
    return f"  {'workspace':<12} scratch, 64-byte aligned, {nbytes} bytes, one for each call in flight"


def terms(target: Target, threads: int) -> list[str]:
    """What holds of all exported functions."""
    return [
        f"Dense row-major arrays that do not overlap; runs on at most {threads} thread(s); returns 0.",
        f"Made for {target.fingerprint}: another processor may not have its instructions.",
        "Threads idle between calls. autosched_pool_shutdown ends them, unless a call is in flight; the next call",
        "starts them again. Unloading the library (dlclose) and the end of the program end them, too.",
    ]


def c_identifier(text: str) -> str:
    """`text` with everything that a C name cannot hold replaced by an underscore."""
    return re.sub(r"\W", "_", text, flags=re.ASCII) or "kernel"


def c_names(names: Iterable[str]) -> list[str]:
    """Distinct argument names that are no words of C or C++: each ends in an underscore if it has to."""
    used = {*MEMORY, *_RESERVED}
    found = []
    for name in names:
        word = c_identifier(name)
        word = f"_{word}" if word[0].isdigit() else word
        while word in used:
            word += "_"
        used.add(word)
        found.append(word)
    return found


MEMORY = ("workspace", "packed", "weights")  # what functions take besides arrays
_RESERVED = {
    "auto", "bool", "break", "case", "catch", "char", "class", "const", "continue", "default", "delete", "do",
    "double", "else", "enum", "extern", "false", "float", "for", "friend", "goto", "if", "inline", "int", "long",
    "mutable", "namespace", "new", "operator", "private", "protected", "public", "register", "restrict", "return",
    "short", "signed", "sizeof", "static", "struct", "switch", "template", "this", "throw", "true", "try", "typedef",
    "union", "unsigned", "using", "virtual", "void", "volatile", "while", "and", "or", "not", "xor", "asm", "int8_t",
    "uint8_t", "int16_t", "uint16_t", "int32_t", "uint32_t", "int64_t", "uint64_t",
}  # fmt: skip


def c_type(dtype: str) -> str:
    """The type of an element; an unsigned integer of its bits where C has none."""
    row = DTYPES[dtype]
    return C_FLOATS.get(dtype) or f"{dtype if row.is_integer else row.bits_dtype}_t"


def _comment(text: str) -> str:
    """Text of a record inside a C comment."""
    return "".join(c if c.isprintable() else "?" for c in text).replace("*/", "* /")
