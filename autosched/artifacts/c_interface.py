"""C interface of exported functions: types, names, prototypes and the header."""

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
    """An array parameter in C: the type of its pointer, its name, and its role: "in ", "out" or "weight"."""

    kind: str
    name: str
    spec: ArraySpec
    role: str


@dataclass(frozen=True)
class Function:
    """A C function that calls `entry` of the kernel's module with `arguments` and the caller's `memory`."""

    symbol: str
    entry: str
    arguments: tuple[Argument, ...]
    memory: tuple[str, ...]

    @property
    def prototype(self) -> str:
        return f"int {self.symbol}({', '.join([*(f'{a.kind}{a.name}' for a in self.arguments), *self.memory])});"


@dataclass(frozen=True)
class Header:
    """A C header (C99 or C++).

    `about`: lines of its comment. `macros`: (name, value); names get the prefix `SYMBOL_`. `own`: text after the
    prototypes, for functions that only this header defines. The prototype of the thread pool follows `prototypes`;
    several headers may declare it.
    """

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
    """Return the parameters of the arrays, in their order; `weights`: names of inputs."""
    arguments = []
    names = c_names(spec.name for spec in (*inputs, *outputs))
    for n, (name, spec) in enumerate(zip(names, (*inputs, *outputs), strict=True)):
        is_input = n < len(inputs)
        role = ("weight" if spec.name in weights else "in ") if is_input else "out"
        arguments.append(Argument(f"{'const ' if is_input else ''}{c_type(spec.dtype)} *", name, spec, role))
    return tuple(arguments)


def wrapper_ir(symbol: str, entry: str, positions: Sequence[int], size: int, threads: int) -> str:
    """Return LLVM IR of a function `symbol` with a parameter for each of `positions` and one for scratch memory.

    It calls `entry` with an array of `size` pointers, which has the parameters at these positions.
    """
    parameters = ", ".join([*(f"ptr %a{i}" for i in positions), "ptr %workspace"])
    lines = [f"\ndefine i32 @{symbol}({parameters}) nounwind {{", f"  %args = alloca [{size} x ptr], align 16"]
    for i in positions:
        lines.append(f"  %p{i} = getelementptr [{size} x ptr], ptr %args, i64 0, i64 {i}")
        lines.append(f"  store ptr %a{i}, ptr %p{i}")
    call = f"call i32 @{entry}(ptr %args, ptr %workspace, i64 {threads})"
    return "\n".join([*lines, f"  %status = {call}", "  ret i32 %status", "}", ""])


def workspace_line(nbytes: int) -> str:
    return f"  {'workspace':<12} scratch, 64-byte aligned, {nbytes} bytes, one for each call in flight"


def terms(target: Target, threads: int) -> list[str]:
    """Return the comment lines that apply to all exported functions."""
    return [
        f"Dense row-major arrays that do not overlap; runs on at most {threads} thread(s); returns 0.",
        f"Made for {target.fingerprint}: another processor may not have its instructions.",
        "Threads idle between calls. autosched_pool_shutdown ends them, unless a call is in flight; the next call",
        "starts them again. Unloading the library (dlclose) and the end of the program end them, too.",
    ]


def c_identifier(text: str) -> str:
    """Replace each character of `text` that a C identifier cannot have by an underscore."""
    return re.sub(r"\W", "_", text, flags=re.ASCII) or "kernel"


def c_names(names: Iterable[str]) -> list[str]:
    """Return distinct argument names that are no keywords of C or C++, with underscores appended where needed."""
    used = {*MEMORY, *_RESERVED}
    distinct = []
    for name in names:
        word = c_identifier(name)
        word = f"_{word}" if word[0].isdigit() else word
        while word in used:
            word += "_"
        used.add(word)
        distinct.append(word)
    return distinct


MEMORY = ("workspace", "packed", "weights")  # parameters besides arrays
_RESERVED = {
    "auto", "bool", "break", "case", "catch", "char", "class", "const", "continue", "default", "delete", "do",
    "double", "else", "enum", "extern", "false", "float", "for", "friend", "goto", "if", "inline", "int", "long",
    "mutable", "namespace", "new", "operator", "private", "protected", "public", "register", "restrict", "return",
    "short", "signed", "sizeof", "static", "struct", "switch", "template", "this", "throw", "true", "try", "typedef",
    "union", "unsigned", "using", "virtual", "void", "volatile", "while", "and", "or", "not", "xor", "asm", "int8_t",
    "uint8_t", "int16_t", "uint16_t", "int32_t", "uint32_t", "int64_t", "uint64_t",
}  # fmt: skip


def c_type(dtype: str) -> str:
    """Return the C type of an element; an unsigned integer of the same bits if C has no such type."""
    row = DTYPES[dtype]
    return C_FLOATS.get(dtype) or f"{dtype if row.is_integer else row.bits_dtype}_t"


def _comment(text: str) -> str:
    """Escape text for a C comment."""
    return "".join(c if c.isprintable() else "?" for c in text).replace("*/", "* /")
