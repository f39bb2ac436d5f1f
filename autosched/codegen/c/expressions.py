"""Expressions as C text, with no more parentheses than needed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from autosched.codegen.c.words import Words
from autosched.ir.expr import DTYPES, INDEX, Binary, Call, Cast, Const, Expr, Load, Select, Var

# op -> (C operator, precedence); a higher number binds tighter
OPERATORS: dict[str, tuple[str, int]] = {
    "add": ("+", 12), "sub": ("-", 12), "mul": ("*", 13), "div": ("/", 13),
    "lt": ("<", 10), "le": ("<=", 10), "gt": (">", 10), "ge": (">=", 10), "eq": ("==", 9), "ne": ("!=", 9),
    "and": ("&&", 5), "or": ("||", 4), "bitand": ("&", 8), "bitor": ("|", 6), "bitxor": ("^", 7),
    "shl": ("<<", 11), "shr": (">>", 11),
}  # fmt: skip
TERNARY, ATOM = 3, 16
CAST, SUM, COMPARED = 14, 12, 11  # what a cast is, a sum, and what stands beside < needs at least
ASSOCIATIVE = frozenset(
    {"and", "or", "bitand", "bitor", "bitxor"}
)  # floats are not, and a * (b / c) is not (a * b) / c
WIDENS = frozenset({"add", "sub", "mul", "shl"})  # may leave the range of the operands' type
INT_LIMIT = 1 << 31

# Functions that C lacks: {name} of {type}, written before the kernels that call them.
HELPERS = {
    # NaN where an operand is, unlike fmin and fmax
    "min": "{type} {name}({type} a, {type} b) {{ return a < b || a != a ? a : b; }}",
    "max": "{type} {name}({type} a, {type} b) {{ return a > b || a != a ? a : b; }}",
    "pow": "{type} {name}({type} a, {type} n) {{ {type} p = 1; for (; n > 0; --n) p *= a; return p; }}",
}


@dataclass(frozen=True)
class Expressions:
    """`variables`: C names of loop variables; `address`: C text of an element of a buffer; `helpers`: those in use."""

    words: Words
    variables: Mapping[Var, str]
    index_type: str
    helpers: dict[str, str] = field(default_factory=dict)

    def text(self, expr: Expr, address: Addresser, limit: int = 0) -> str:
        """C text; in parentheses if it binds looser than `limit`."""
        body, precedence = self._text(expr, address)
        return f"({body})" if precedence < limit else body

    def type(self, dtype: str) -> str:
        return {
            "float32": "float", "float64": "double", "int32": "int", "int64": self.words.long,
            "int8": self.words.byte, "uint8": self.words.unsigned_byte, "bool": "bool",
        }[dtype]  # fmt: skip

    def literal(self, value: bool | int | float, dtype: str) -> str:
        if dtype == "bool":
            return "true" if value else "false"
        if DTYPES[dtype][0] != "f":
            return str(int(value)) if value != -(1 << 63) else f"(-{(1 << 63) - 1} - 1)"
        number = float(value)
        if math.isnan(number):
            return self.words.nan
        if math.isinf(number):
            return self.words.infinity if number > 0 else f"-{self.words.infinity}"
        text = repr(number)
        return text + ("f" if dtype == "float32" else "")

    def _text(self, expr: Expr, address: Addresser) -> tuple[str, int]:
        match expr:
            case Const(value=v, dtype=d):
                text = self.literal(v, d)
                return text, ATOM if not text.startswith("-") else 14
            case Var():
                return self.variables[expr], ATOM
            case Load():
                return address.element(expr.buffer, expr.indices), ATOM
            case Select(cond=c, a=a, b=b):
                parts = (self.text(c, address, TERNARY + 1), self.text(a, address, TERNARY + 1))
                return f"{parts[0]} ? {parts[1]} : {self.text(b, address, TERNARY)}", TERNARY
            case Cast(a=a, dtype=dtype):
                if dtype == "bool":
                    return f"{self.text(a, address, 10)} != 0", 9
                return f"({self.type(dtype)}){self.text(a, address, 15)}", CAST
            case Call(fn=fn, args=args):
                return self._call(fn, args[0], address)
            case Binary():
                return self._binary(expr, address)
        raise AssertionError(f"no C for {type(expr).__name__}")

    def _call(self, fn: str, a: Expr, address: Addresser) -> tuple[str, int]:
        if fn == "neg":
            return self._narrow(a.dtype, f"-{self.text(a, address, 15)}", CAST)
        if fn == "not":
            return f"!{self.text(a, address, 15)}", 14
        if fn == "abs" and DTYPES[a.dtype][0] != "f":
            text = self.text(a, address, 15)
            return self._narrow(a.dtype, f"{text} < 0 ? -{text} : {text}", TERNARY)
        if fn == "sigmoid":
            one = self.literal(1.0, a.dtype)
            return f"{one} / ({one} + {self.function('exp', a.dtype)}(-{self.text(a, address, 15)}))", 13
        name = self.function("exp" if fn == "exp_negative" else fn, a.dtype)
        return f"{name}({self.text(a, address)})", ATOM

    def function(self, fn: str, dtype: str) -> str:
        name = self.words.functions[fn]
        if dtype == "float64" and self.words.name == "cuda":
            return {"rsqrtf": "rsqrt", "fabsf": "fabs", "rintf": "rint"}.get(name, name[:-1])
        return name

    def helper(self, op: str, dtype: str) -> str:
        """The name of a function of HELPERS, which is in use from now on."""
        kind = self.type(dtype)
        name = f"{op}_{kind.replace(' ', '_')}"
        self.helpers[name] = self.words.function + HELPERS[op].format(type=kind, name=name)
        return name

    def _binary(self, expr: Binary, address: Addresser) -> tuple[str, int]:
        op, a, b = expr.op, expr.a, expr.b
        is_float = DTYPES[a.dtype][0] == "f"
        if op == "pow" and is_float:
            return f"{self.function('pow', a.dtype)}({self.text(a, address)}, {self.text(b, address)})", ATOM
        if op == "pow" or (op in ("min", "max") and is_float):
            return f"{self.helper(op, a.dtype)}({self.text(a, address)}, {self.text(b, address)})", ATOM
        if op in ("min", "max"):
            cond = f"{self.text(a, address, COMPARED)} {'<' if op == 'min' else '>'} {self.text(b, address, COMPARED)}"
            return f"{cond} ? {self.text(a, address, TERNARY + 1)} : {self.text(b, address, TERNARY)}", TERNARY
        if op in ("floordiv", "mod", "ceildiv"):
            return self._narrow(a.dtype, *self._divide(op, a, b, address))
        symbol, precedence = OPERATORS[op]
        x = self.text(a, address, precedence)
        if (
            op in WIDENS
            and expr.dtype == INDEX
            and self._is_int(a)
            and self._is_int(b)
            and not _fits_int(expr, address)
        ):
            x = f"({self.words.long}){self.text(a, address, 15)}"
        y = self.text(b, address, precedence + (op not in ASSOCIATIVE))
        text = f"{x} {symbol} {y}"
        return self._narrow(a.dtype, text, precedence) if op in WIDENS else (text, precedence)

    def _narrow(self, dtype: str, text: str, precedence: int) -> tuple[str, int]:
        """Arithmetic on bytes is done in int: the result is cut off as the dtype says."""
        if DTYPES[dtype][0] not in "iu" or DTYPES[dtype][1] > 1:
            return text, precedence
        return f"({self.type(dtype)})({text})", CAST

    def _is_int(self, expr: Expr) -> bool:
        """Whether an int64 expression is made of loop variables and small numbers only, which are of type int in C."""
        match expr:
            case Const(value=v):
                return abs(v) < INT_LIMIT
            case Var():
                return self.index_type == "int"
            case Binary(a=a, b=b):
                return self._is_int(a) and self._is_int(b)
            case Call(args=args):
                return self._is_int(args[0])
            case Select(a=a, b=b):
                return self._is_int(a) and self._is_int(b)
        return False

    def _divide(self, op: str, a: Expr, b: Expr, address: Addresser) -> tuple[str, int]:
        """Rounds down, ceildiv up; indices known not to be negative need no correction."""
        x, y = self.text(a, address, 13), self.text(b, address, 14)
        if op != "ceildiv" and address.is_nonnegative(a) and isinstance(b, Const) and b.value > 0:
            return f"{x} {'/' if op == 'floordiv' else '%'} {y}", 13
        loose_x, loose_y = self.text(a, address, 15), self.text(b, address, 15)
        signs = "==" if op == "ceildiv" else "!="
        wrong = f"({loose_x} % {loose_y} != 0 && ({loose_x} < 0) {signs} ({loose_y} < 0))"
        if op == "ceildiv":
            return f"{x} / {y} + {wrong}", SUM
        if op == "floordiv":
            return f"{x} / {y} - {wrong}", SUM
        return f"{x} % {y} + ({wrong} ? {loose_y} : 0)", SUM


class Addresser:
    """Where an element of a buffer is, as C text. (An interface: the kernel emitter implements it.)"""

    def element(self, buffer: str, indices: tuple[Expr, ...]) -> str:
        raise NotImplementedError

    def is_nonnegative(self, expr: Expr) -> bool:
        raise NotImplementedError

    def bounds(self, expr: Expr) -> tuple[int, int]:
        raise NotImplementedError


def _fits_int(expr: Expr, address: Addresser) -> bool:
    low, high = address.bounds(expr)
    return low >= -INT_LIMIT and high < INT_LIMIT
