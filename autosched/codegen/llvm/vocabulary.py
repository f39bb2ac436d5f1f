"""LLVM's names for the IR's types, operators, intrinsics and constants."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from functools import cache

from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Expr
from autosched.ir.size import printed_form
from autosched.ir.symbolic import SymbolicInteger

# dtype -> (type of a value, type in memory)
TYPES: dict[str, tuple[str, str]] = {
    "bool": ("i1", "i8"),
    "int8": ("i8", "i8"),
    "uint8": ("i8", "i8"),
    "int16": ("i16", "i16"),
    "uint16": ("i16", "i16"),
    "int32": ("i32", "i32"),
    "uint32": ("i32", "i32"),
    "int64": ("i64", "i64"),
    "uint64": ("i64", "i64"),
    "float8_e4m3fn": ("i8", "i8"),  # bits, since there is no arithmetic in these four: see `arithmetic.cast`
    "float8_e5m2": ("i8", "i8"),
    "float16": ("i16", "i16"),
    "bfloat16": ("i16", "i16"),
    "float32": ("float", "float"),
    "float64": ("double", "double"),
}

# op -> opcode for (float, signed, unsigned)
ARITHMETIC: dict[str, tuple[str, str, str]] = {
    "add": ("fadd", "add", "add"),
    "sub": ("fsub", "sub", "sub"),
    "mul": ("fmul", "mul", "mul"),
    "div": ("fdiv", "sdiv", "udiv"),
    "bitand": ("", "and", "and"),
    "bitor": ("", "or", "or"),
    "bitxor": ("", "xor", "xor"),
    "shl": ("", "shl", "shl"),
    "shr": ("", "ashr", "lshr"),
    "and": ("", "and", "and"),
    "or": ("", "or", "or"),
}

# op -> predicate for (float, signed, unsigned)
PREDICATES: dict[str, tuple[str, str, str]] = {
    "eq": ("oeq", "eq", "eq"),
    "ne": ("une", "ne", "ne"),
    "lt": ("olt", "slt", "ult"),
    "le": ("ole", "sle", "ule"),
    "gt": ("ogt", "sgt", "ugt"),
    "ge": ("oge", "sge", "uge"),
}
INVERSE_OF_FLOATS = {"lt": "uge", "le": "ugt", "gt": "ule", "ge": "ult"}  # where the comparison does not hold

# Functions that are one LLVM intrinsic; `round` is to even, as NumPy's.
INTRINSICS: dict[str, str] = {"sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "round": "roundeven", "abs": "fabs"}


@cache
def value_type(dtype: str, lanes: int = 1) -> str:
    scalar = TYPES[dtype][0]
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


@cache
def memory_type(dtype: str, lanes: int = 1) -> str:
    scalar = TYPES[dtype][1]
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


@cache
def suffix(dtype: str, lanes: int = 1) -> str:
    """The mangled type in an intrinsic's name: v16f32, i64."""
    scalar = {"float": "f32", "double": "f64"}.get(TYPES[dtype][1], TYPES[dtype][1])
    return scalar if lanes == 1 else f"v{lanes}{scalar}"


def literal(value: bool | int | float, dtype: str) -> str:
    if dtype == "bool":
        return "true" if value else "false"
    if DTYPES[dtype].is_stored_only:
        return str(DTYPES[dtype].to_bits(value))
    if dtype not in ("float32", "float64"):
        return str(value if isinstance(value, SymbolicInteger) else int(value))
    number = float(value)
    if dtype == "float32":
        number = _float32(number)
    return "0x" + struct.pack(">d", number).hex().upper()


def _float32(number: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", number))[0])
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")


def is_literal(text: str) -> bool:
    """Whether a value is a constant of LLVM's, not a register or a size."""
    return not text.startswith(("%", "⟦"))


def splat(text: str, dtype: str, lanes: int) -> str:
    """A vector constant with one value everywhere."""
    return text if lanes == 1 else f"splat ({value_type(dtype)} {text})"


# Where the mask of every other one of 32 lanes is. As a number it would become an instruction, in place of permutations
# that take it along: LLVM clears lanes by a vector.
UPPER_HALVES = "@upper.halves"
_FILL = re.compile(r"@fill\.(\w+)\.([-\w]+)")


def fill_name(value: bool | int | float, dtype: str) -> str:
    """The constant that reads beyond a border go to: `value` in all lanes of the longest vector."""
    return f"@fill.{memory_type(dtype)}.{literal(value, dtype)}"


def fill_constants(parts: Iterable[str], vector_bytes: int) -> list[str]:
    """The definitions of the constants that `parts`, functions, name: with `fill_name`, and UPPER_HALVES."""
    texts = tuple(parts)
    fills = sorted({match.groups() for part in texts for match in _FILL.finditer(part)})
    upper = [f"{UPPER_HALVES} = internal global i32 -1431655766, align 4"]
    sizes = {memory: DTYPES[dtype].nbytes for dtype, (_, memory) in TYPES.items()}
    return [
        *(upper if any(UPPER_HALVES in part for part in texts) else ()),
        *(
            f"@fill.{kind}.{text} = private unnamed_addr constant "
            f"<{vector_bytes // sizes[kind]} x {kind}> splat ({kind} {text}), align {vector_bytes}"
            for kind, text in fills
        ),
    ]


# The text of a size (`ir.size`) is its closed form in brackets and stands where an i64 is expected. It becomes a value
# that its function loads from the table of sizes: the last of a kernel's `args` points to it.
LOADS = "  ⟦⟧"  # the line of a function where its sizes are loaded; %sizes is known there
_SIZE = re.compile("⟦([^⟧]+)⟧")


def reads_sizes(text: str) -> bool:
    """Whether sizes are in the text of a function."""
    return _SIZE.search(text) is not None


def load_sizes(functions: Sequence[str]) -> tuple[list[str], tuple[Expr, ...]]:
    """Return the functions with loads in place of sizes, and the closed forms of the table."""
    places: dict[str, int] = {}
    return [_with_loads(text, places) for text in functions], tuple(map(printed_form, places))


def table_lines(slot: int) -> list[str]:
    """Return the lines that load %sizes, the pointer to the table, which is this one of %args."""
    at = f"  %sizes.at = getelementptr inbounds ptr, ptr %args, i64 {slot}"
    return [at, "  %sizes = load ptr, ptr %sizes.at, align 8"]


def _with_loads(text: str, places: dict[str, int]) -> str:
    forms = dict.fromkeys(_SIZE.findall(text))
    lines = []
    for form in forms:
        n = places.setdefault(form, len(places))
        lines.append(f"  %size{n}.at = getelementptr inbounds i64, ptr %sizes, i64 {n}")
        lines.append(f"  %size{n} = load i64, ptr %size{n}.at, align 8")
    text = text.replace(LOADS + "\n", "\n".join([*lines, ""]))
    return _SIZE.sub(lambda match: f"%size{places[match[1]]}", text)
