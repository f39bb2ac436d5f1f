"""Expressions as C text, with no more parentheses than needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from autosched.codegen.c.dialects import Dialect
from autosched.codegen.c.ranges import Range, in_ranges
from autosched.codegen.c.small_floats import conversion, pair_conversion
from autosched.codegen.c.vectors import is_multiple
from autosched.ir.bitcast import Bitcast
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import INDEX, Binary, Call, Cast, Const, Expr, Load, Select, Var
from autosched.ir.instructions.dots import WORD_BITS, Dot, Word
from autosched.ir.simplify import Simplifier
from autosched.ir.size import form_of, has_size
from autosched.ir.stmt import Buffer, Scope
from autosched.ir.storage import element_count, flat_index, held_index, versions_of
from autosched.ir.visit import loads, substitute

# op -> (C operator, precedence); a higher number binds tighter
OPERATORS: dict[str, tuple[str, int]] = {
    "add": ("+", 12), "sub": ("-", 12), "mul": ("*", 13), "div": ("/", 13),
    "lt": ("<", 10), "le": ("<=", 10), "gt": (">", 10), "ge": (">=", 10), "eq": ("==", 9), "ne": ("!=", 9),
    "and": ("&&", 5), "or": ("||", 4), "bitand": ("&", 8), "bitor": ("|", 6), "bitxor": ("^", 7),
    "shl": ("<<", 11), "shr": (">>", 11),
}  # fmt: skip
TERNARY, ATOM = 3, 16
CAST, SUM, COMPARISON_OPERAND = 14, 12, 11  # precedence of casts, of sums, and least precedence of operands of <
ASSOCIATIVE = frozenset(
    {"and", "or", "bitand", "bitor", "bitxor"}
)  # floats are not, and a * (b / c) is not (a * b) / c
WIDENS = frozenset({"add", "sub", "mul", "shl"})  # results may exceed the range of the operands' type
INT_LIMIT = 1 << 31
UNARY = 15
SHARED_BY_THREADS = (Scope.PARAM, Scope.GLOBAL, Scope.SHARED)  # their arrays are aligned to 16 bytes
ZERO = Const(0, INDEX)

# Functions that C lacks, {name} for {type}; their texts precede the kernels that call them.
HELPERS = {
    # NaN where an operand is, unlike fmin and fmax
    "min": "{type} {name}({type} a, {type} b) {{ return a < b || a != a ? a : b; }}",
    "max": "{type} {name}({type} a, {type} b) {{ return a > b || a != a ? a : b; }}",
    "exp2": "{type} {name}({type} a) {{ return exp2(a); }}",
    "pow": "{type} {name}({type} a, {type} n) {{ {type} p = 1; for (; n > 0; --n) p *= a; return p; }}",
    # 0 where the divisor is 0, as NumPy; where it is -1 (~b == 0), the smallest number would trap
    "floordiv": "{type} {name}({type} a, {type} b) {{ if (b == 0) return 0; if (~b == 0) return -a; "
    "return a / b - (a % b != 0 && (a < 0) != (b < 0)); }}",
    "mod": "{type} {name}({type} a, {type} b) {{ if (b == 0 || ~b == 0) return 0; "
    "return a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0); }}",
    "ceildiv": "{type} {name}({type} a, {type} b) {{ if (b == 0) return 0; if (~b == 0) return -a; "
    "return a / b + (a % b != 0 && (a < 0) == (b < 0)); }}",
}
UNSIGNED_HELPERS = {  # no divisor is -1, which for them is the largest number
    "floordiv": "{type} {name}({type} a, {type} b) {{ return b == 0 ? 0 : a / b; }}",
    "mod": "{type} {name}({type} a, {type} b) {{ return b == 0 ? 0 : a % b; }}",
    "ceildiv": "{type} {name}({type} a, {type} b) {{ return b == 0 ? 0 : a / b + (a % b != 0); }}",
}


@dataclass(frozen=True)
class Expressions:
    """Expressions of one kernel as C text.

    `index_type`: C type of loop variables; `helpers`: texts of the functions that the kernel calls, by name;
    `variables`, `buffers`: C names; `stage_variables`: C variables of stage indices that loops carry
    (`tiles/stage_index.py`); `lanes`: the variables of a block's threads, each with value 0. `table`: the sizes of a
    call that the function reads, by their closed forms; `sizes`: those of this kernel, by the names of their variables.
    """

    dialect: Dialect
    index_type: str
    simplify: Simplifier
    helpers: dict[str, str] = field(default_factory=dict)
    variables: dict[Var, str] = field(default_factory=dict)
    stage_variables: dict[Expr, str] = field(default_factory=dict)
    buffers: dict[str, tuple[Buffer, str]] = field(default_factory=dict)
    lanes: dict[Expr, Expr] = field(default_factory=dict)
    table: dict[Expr, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    def text(self, expr: Expr, limit: int = 0) -> str:
        """Return the C text, in parentheses if its precedence is below `limit`."""
        body, precedence = self._text(expr)
        return f"({body})" if precedence < limit else body

    def element(self, buffer: str, indices: tuple[Expr, ...]) -> str:
        """Return the C text of a buffer's element."""
        array, name = self.buffers[buffer]
        n_stages, one_stage = versions_of(array)
        if n_stages > 1:
            stage = self.simplify(indices[0])
            stage_text = self.stage_variables.get(stage) or self.text(stage)
            name, array, indices = f"{name}[{stage_text}]", one_stage, indices[1:]
        return f"{name}[{self.text(self.flat(array, indices))}]"

    def flat(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Expr:
        """Return an element's index in its array; for a fragment, in the registers of the thread that has it."""
        if buffer.scope is not Scope.WARP:
            return flat_index(buffer, indices, self.simplify)
        return held_index(buffer, tuple(self.simplify(substitute(i, self.lanes)) for i in indices), self.simplify)

    def type(self, dtype: str) -> str:
        known = {"float32": "float", "float64": "double", "bool": "bool", **self.dialect.integers}
        return known[DTYPES[dtype].bits_dtype if DTYPES[dtype].is_stored_only else dtype]

    def memory_type(self, dtype: str) -> str:
        """Return the C type of elements in memory: bool is stored as a byte."""
        return self.type("uint8" if dtype == "bool" else dtype)

    def literal(self, value: bool | int | float, dtype: str) -> str:
        if dtype == "bool":
            return "true" if value else "false"
        if has_size(value):
            return self._size_variable(value)
        if not DTYPES[dtype].is_float:
            text = str(int(value)) if value != -(1 << 63) else f"(-{(1 << 63) - 1} - 1)"
            return text + self.dialect.suffixes.get(dtype, "")
        number = float(value)
        if DTYPES[dtype].is_stored_only:
            return str(DTYPES[dtype].to_bits(number))
        if math.isnan(number):
            return self.dialect.nan
        if math.isinf(number):
            return self.dialect.infinity if number > 0 else f"-{self.dialect.infinity}"
        text = repr(number)
        return text + ("f" if dtype == "float32" else "")

    def _size_variable(self, size: Any) -> str:
        form = form_of(size)
        self.table.setdefault(form, size)
        name = f"size_of_call_{[*self.table].index(form)}"
        self.sizes[name] = size
        return name

    def size_lines(self) -> list[str]:
        """Return the lines that declare the variables of sizes, from the table `sizes_of_call`."""
        places = {form: n for n, form in enumerate(self.table)}
        return [
            f"const {self._size_type(size)} {name} = sizes_of_call[{places[form_of(size)]}];"
            for name, size in self.sizes.items()
        ]

    def _size_type(self, size: int) -> str:
        return "int" if self._is_int(Const(size, INDEX)) else self.type(INDEX)

    def _text(self, expr: Expr) -> tuple[str, int]:
        match expr:
            case Const(value=v, dtype=d):
                text = self.literal(v, d)
                return text, ATOM if not text.startswith("-") else 14
            case Var():
                return self.variables[expr], ATOM
            case Load():
                return self.element(expr.buffer, expr.indices), ATOM
            case Select(cond=c, a=a, b=b):
                parts = (self.text(c, TERNARY + 1), self.text(a, TERNARY + 1))
                return f"{parts[0]} ? {parts[1]} : {self.text(b, TERNARY)}", TERNARY
            case Cast(a=a, dtype=dtype):
                if dtype == "bool":
                    return f"{self.text(a, 10)} != 0", 9
                if DTYPES[dtype].is_stored_only or DTYPES[a.dtype].is_stored_only:
                    return f"{self.conversion(dtype, a.dtype)}({self.text(a)})", ATOM
                return f"({self.type(dtype)}){self.text(a, 15)}", CAST
            case Bitcast(a=a, dtype=dtype):
                return self._bitcast(a, dtype)
            case Call(fn=fn, args=args):
                return self._call(fn, args[0])
            case Binary():
                return self._binary(expr)
            case Word(parts=parts):
                at = self._aligned_word_load(parts)
                text = f"(int)({self.word(parts)})" if at is None else at
                return text, CAST if at is None else UNARY
            case Dot():
                return self.dot(expr, "0"), ATOM
        raise AssertionError(f"no C for {type(expr).__name__}")

    def word(self, values: Sequence[Expr]) -> str:
        """Return 32 bits that pack two or four small numbers, the first one in the lowest bits."""
        bits = WORD_BITS // len(values)
        pairs = [self._pair(values[n : n + 2]) for n in range(0, len(values), 2)]
        if all(pairs):
            return " | ".join(f"{pair} << {2 * n * bits}" if n else str(pair) for n, pair in enumerate(pairs))
        narrow = f"({self.type(f'uint{bits}')})" if bits == 8 or DTYPES[values[0].dtype].kind == "i" else ""
        field = f"(unsigned){narrow}"  # a signed number would fill the word
        fields = [f"{field}{self.text(v, 15)}" for v in values]
        return " | ".join(f"{f} << {n * bits}" if n else f for n, f in enumerate(fields))

    def _pair(self, values: Sequence[Expr]) -> str | None:
        """Return the conversion of two numbers to a packed pair; None if the language has no function for that."""
        sources = [
            v.a for v in values if isinstance(v, Cast) and DTYPES[v.dtype].is_stored_only and v.dtype == values[0].dtype
        ]
        name = pair_conversion(values[0].dtype, "float32")
        if len(sources) != 2 or name not in self.dialect.conversions:
            return None
        self.conversion(values[0].dtype, "float32")  # for processors without the instruction for two
        self.helpers[name] = self.dialect.conversions[name]
        return f"{name}({self.text(sources[0])}, {self.text(sources[1])})"

    def dot(self, expr: Dot, total: str) -> str:
        """Return `total` plus the dot product of two words of bytes."""
        row = expr.row
        name = f"dot_{row.a}_{row.b}"
        kinds = {key: self.dialect.bytes_of[dtype] for key, dtype in (("a", row.a), ("b", row.b))}
        self.helpers[name] = self.dialect.dot.format(name=name, **kinds)
        return f"{name}({self.text(expr.a)}, {self.text(expr.b)}, {total})"

    def _bitcast(self, a: Expr, dtype: str) -> tuple[str, int]:
        """Return the number of `dtype` with the bits of `a`; small floats are held as integers."""
        functions, text = self.dialect.bit_functions, self.text(a, UNARY)
        if a.dtype in functions:
            text = f"{functions[a.dtype][0]}({self.text(a)})"
        if dtype in functions:
            return f"{functions[dtype][1]}(({self.type(f'int{DTYPES[dtype].bits}')}){text})", ATOM
        return f"({self.type(dtype)}){text}", CAST

    def _aligned_word_load(self, parts: tuple[Expr, ...]) -> str | None:
        """Return the load of a word whose elements are adjacent and aligned in memory; None for another word."""
        first, count = parts[0], len(parts)
        if not isinstance(first, Load) or DTYPES[first.dtype].bits * count != WORD_BITS:
            return None
        buffer, _ = self.buffers[first.buffer]
        n_stages, one_stage = versions_of(buffer)
        if buffer.scope not in SHARED_BY_THREADS or (n_stages > 1 and element_count(one_stage) % count):
            return None
        start = self._flat_in_stage(first)
        for n, part in enumerate(parts):
            if not isinstance(part, Load) or part.buffer != first.buffer:
                return None
            is_same_stage = n_stages == 1 or self.simplify(part.indices[0] - first.indices[0]) is ZERO
            if not is_same_stage or self.simplify(self._flat_in_stage(part) - start) is not Const(n, INDEX):
                return None
        if not is_multiple(start, count, self.simplify):
            return None
        return self.dialect.word.format(elements=count, at=f"&{self.element(first.buffer, first.indices)}")

    def _flat_in_stage(self, load: Load) -> Expr:
        """Return the element's index in its stage of the buffer."""
        n_stages, one_stage = versions_of(self.buffers[load.buffer][0])
        return flat_index(one_stage, load.indices[1:] if n_stages > 1 else load.indices, self.simplify)

    def _call(self, fn: str, a: Expr) -> tuple[str, int]:
        if fn == "neg":
            return self._narrow(a.dtype, f"-{self.text(a, 15)}", CAST)
        if fn == "not":
            return f"!{self.text(a, 15)}", 14
        if fn == "abs" and DTYPES[a.dtype].kind == "u":
            return self._text(a)
        if fn == "abs" and not DTYPES[a.dtype].is_float:
            text = self.text(a, 15)
            return self._narrow(a.dtype, f"{text} < 0 ? -{text} : {text}", TERNARY)
        if fn == "sigmoid":
            one = self.literal(1.0, a.dtype)
            return f"{one} / ({one} + {self.function('exp', a.dtype)}(-{self.text(a, 15)}))", 13
        if fn == "exp2":
            return f"{self.helper(fn, a.dtype)}({self.text(a)})", ATOM
        name = self.function("exp" if fn == "exp_negative" else fn, a.dtype)
        return f"{name}({self.text(a)})", ATOM

    def function(self, fn: str, dtype: str) -> str:
        doubles = self.dialect.double_functions if dtype == "float64" else {}
        return doubles.get(fn) or self.dialect.functions[fn]

    def helper(self, op: str, dtype: str) -> str:
        """Add a function of HELPERS for the type to the kernel's helpers; return its name."""
        kind, is_unsigned = self.type(dtype), DTYPES[dtype].kind == "u"
        name = f"{op}_{kind.replace(' ', '_')}"
        form = UNSIGNED_HELPERS.get(op, HELPERS[op]) if is_unsigned else HELPERS[op]
        text = self.dialect.function + form.format(type=kind, name=name)
        self.helpers[name] = self.dialect.helpers.get(name, text)
        return name

    def conversion(self, dtype: str, source: str) -> str:
        """Add the function that converts `source` to `dtype` to the kernel's helpers; return its name."""
        name = conversion(dtype, source)
        self.helpers[name] = self.dialect.conversions[name]
        return name

    def _binary(self, expr: Binary) -> tuple[str, int]:
        op, a, b = expr.op, expr.a, expr.b
        is_float = DTYPES[a.dtype].is_float
        if op == "fmod" or (op == "pow" and is_float):
            return f"{self.function(op, a.dtype)}({self.text(a)}, {self.text(b)})", ATOM
        if op == "pow" or (op in ("min", "max") and is_float):
            return f"{self.helper(op, a.dtype)}({self.text(a)}, {self.text(b)})", ATOM
        if op in ("min", "max"):
            cond = (
                f"{self.text(a, COMPARISON_OPERAND)} {'<' if op == 'min' else '>'} {self.text(b, COMPARISON_OPERAND)}"
            )
            return f"{cond} ? {self.text(a, TERNARY + 1)} : {self.text(b, TERNARY)}", TERNARY
        if op in ("floordiv", "mod", "ceildiv"):
            return self._narrow(a.dtype, *self._divide(op, a, b))
        symbol, precedence = OPERATORS[op]
        if op == "and" and (ranges := self._range_checks(expr)) is not None:
            return ranges, precedence if "&&" in ranges else COMPARISON_OPERAND - 1
        x = self.text(a, precedence)
        is_int = self._is_int(a) and (op == "shl" or self._is_int(b))  # a shift has the type of what is shifted
        if op in WIDENS and expr.dtype == INDEX and is_int and not self._fits_int(expr):
            x = f"({self.type(INDEX)}){self.text(a, 15)}"
        y = self.text(b, precedence + (op not in ASSOCIATIVE))
        text = f"{x} {symbol} {y}"
        return self._narrow(a.dtype, text, precedence) if op in WIDENS else (text, precedence)

    def _range_checks(self, expr: Expr) -> str | None:
        """Return the conjunction with range checks as single comparisons; None without range checks of int numbers."""
        parts = list(in_ranges(expr, self.simplify))
        ranges = [r for r in parts if isinstance(r, Range)]
        if not ranges or not all(self._is_int(r.number) and self._fits_int(r.number) for r in ranges):
            return None
        _, precedence = OPERATORS["and"]

        def text(part: Expr | Range) -> str:
            if isinstance(part, Range):
                return f"(unsigned){self.text(part.number, UNARY)} < {self.literal(part.size, INDEX)}"
            return self.text(part, precedence)

        return " && ".join(map(text, parts))

    def _narrow(self, dtype: str, text: str, precedence: int) -> tuple[str, int]:
        """Cast results of arithmetic on integers below 32 bits, which C does in int, back to the dtype."""
        if not DTYPES[dtype].is_integer or DTYPES[dtype].nbytes >= 4:
            return text, precedence
        return f"({self.type(dtype)})({text})", CAST

    def _is_int(self, expr: Expr) -> bool:
        """Whether an int64 expression has type int in C: it consists of loop variables and small constants only."""
        match expr:
            case Const(value=v):
                return -INT_LIMIT < v < INT_LIMIT
            case Var():
                return self.index_type == "int"
            case Binary(a=a, b=b):
                return self._is_int(a) and self._is_int(b)
            case Call(args=args):
                return self._is_int(args[0])
            case Select(a=a, b=b):
                return self._is_int(a) and self._is_int(b)
        return False

    def _divide(self, op: str, a: Expr, b: Expr) -> tuple[str, int]:
        """Return a division that rounds down, or up for ceildiv; nonnegative indices need no correction."""
        x, y = self.text(a, 13), self.text(b, 14)
        if op != "ceildiv" and self._is_nonnegative(a) and isinstance(b, Const) and b.value > 0:
            return f"{x} {'/' if op == 'floordiv' else '%'} {y}", 13
        if self._may_trap(b):
            return f"{self.helper(op, a.dtype)}({self.text(a)}, {self.text(b)})", ATOM
        loose_x, loose_y = self.text(a, 15), self.text(b, 15)
        signs = "==" if op == "ceildiv" else "!="
        wrong = f"({loose_x} % {loose_y} != 0 && ({loose_x} < 0) {signs} ({loose_y} < 0))"
        if op == "ceildiv":
            return f"{x} / {y} + {wrong}", SUM
        if op == "floordiv":
            return f"{x} / {y} - {wrong}", SUM
        return f"{x} % {y} + ({wrong} ? {loose_y} : 0)", SUM

    def _may_trap(self, divisor: Expr) -> bool:
        """Whether the divisor may be 0, or -1, for which the quotient of the smallest number overflows."""
        if divisor.dtype != INDEX or loads(divisor):
            return not isinstance(divisor, Const) or divisor.value in (0, -1)
        low, high = self.bounds(divisor)
        return low <= 0 and high >= -1

    def _fits_int(self, expr: Expr) -> bool:
        low, high = self.bounds(expr)
        return low >= -INT_LIMIT and high < INT_LIMIT

    def _is_nonnegative(self, expr: Expr) -> bool:
        if DTYPES[expr.dtype].kind == "u":
            return True
        return expr.dtype == INDEX and not loads(expr) and self.bounds(expr)[0] >= 0

    def bounds(self, expr: Expr) -> tuple[int, int]:
        return self.simplify.bounds(expr)
