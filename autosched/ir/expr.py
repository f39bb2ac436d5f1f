"""Expressions of the intermediate representation.

    Expr = Const(value, dtype) | Var(name, dtype) | Param(name)
         | Binary(op, a, b) | Call(fn, args) | Select(cond, a, b) | Cast(a, dtype)
         | Load(buffer, indices, dtype)

Numbers of a small float (float16, bfloat16) are stored, loaded, selected and cast from and to the dtype that they are
computed in; `binary` and `call` widen them.

Nodes are immutable and interned: structurally equal nodes are the same object, so `is`, `==` and `hash` are
constant-time and shared subtrees stay shared. Loop variables and indices are int64. A `Param` is a number of a schedule
that is not chosen yet (a tile size, an unroll limit); an expression over `Const` and `Param` only is a *closed form*.

`floordiv`, `mod` and `ceildiv` round towards minus infinity, as Python does; `div` and `fmod`, C's exact remainder with
the sign of the dividend, are for floats.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, TypeAlias

from autosched.errors import ExpressionError
from autosched.ir.dtype import DTYPES, promote
from autosched.ir.instructions.precision import PRECISIONS
from autosched.ir.interning import KNOWN, N, interned
from autosched.ir.symbolic import FOLDS, Scalar, Symbolic, SymbolicInteger, no_comparison, scalar, type_name

INDEX = "int64"

ARITHMETIC = frozenset({"add", "sub", "mul", "div", "floordiv", "mod", "ceildiv", "min", "max", "pow", "fmod"})
COMPARISON = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
LOGICAL = frozenset({"and", "or"})
TRUTHS = COMPARISON | LOGICAL
BITWISE = frozenset({"bitand", "bitor", "bitxor", "shl", "shr"})
COMMUTATIVE = frozenset({"add", "mul", "min", "max", "eq", "ne", "and", "or", "bitand", "bitor", "bitxor"})
INT_ONLY = frozenset({"floordiv", "mod", "ceildiv"}) | BITWISE
FLOAT_ONLY = frozenset({"div", "fmod"})
STEPS = frozenset({"floor", "ceil", "round"})
FLOAT_CALLS = frozenset(
    {"exp", "log", "tanh", "sqrt", "rsqrt", "erf", "sigmoid", "sin", "cos", *STEPS, *PRECISIONS}
    | {"exp_negative", "exp2"}  # of what is at most 0; of kernels for GPUs, which have an instruction for it
)
CALLS = FLOAT_CALLS | {"abs", "neg", "not"}

ExprLike: TypeAlias = "Expr | bool | int | float"


class Expr(Symbolic):
    """Base of all expressions; arithmetic operators build `Binary` nodes with constants folded.

    Constructing an equal node returns the existing one. That is no metaclass's work: `isinstance`, and a class pattern
    of `match`, would look for its hook at every node that is not of the very class, which doubles their time.
    """

    dtype: str

    def __new__(cls: type[N], *fields: Any) -> N:
        return interned(cls, (cls, *fields), fields)

    @property
    def children(self) -> tuple[Expr, ...]:
        return ()

    def __add__(self, other: ExprLike) -> Expr:
        return binary("add", self, other)

    def __radd__(self, other: ExprLike) -> Expr:
        return binary("add", other, self)

    def __sub__(self, other: ExprLike) -> Expr:
        return binary("sub", self, other)

    def __rsub__(self, other: ExprLike) -> Expr:
        return binary("sub", other, self)

    def __mul__(self, other: ExprLike) -> Expr:
        return binary("mul", self, other)

    def __rmul__(self, other: ExprLike) -> Expr:
        return binary("mul", other, self)

    def __truediv__(self, other: ExprLike) -> Expr:
        return binary("div", self, other)

    def __rtruediv__(self, other: ExprLike) -> Expr:
        return binary("div", other, self)

    def __floordiv__(self, other: ExprLike) -> Expr:
        return binary("floordiv", self, other)

    def __rfloordiv__(self, other: ExprLike) -> Expr:
        return binary("floordiv", other, self)

    def __mod__(self, other: ExprLike) -> Expr:
        return binary("mod", self, other)

    def __rmod__(self, other: ExprLike) -> Expr:
        return binary("mod", other, self)

    def __pow__(self, other: ExprLike, modulus: object = None) -> Expr:
        if modulus is not None:
            raise ExpressionError(f"pow of {self} and {other} takes no modulus; write pow(a, b) % c")
        return binary("pow", self, other)

    def __rpow__(self, other: ExprLike) -> Expr:
        return binary("pow", other, self)

    def __and__(self, other: ExprLike) -> Expr:
        return binary("and" if self.dtype == "bool" else "bitand", self, other)

    def __or__(self, other: ExprLike) -> Expr:
        return binary("or" if self.dtype == "bool" else "bitor", self, other)

    def __xor__(self, other: ExprLike) -> Expr:
        return binary("ne" if self.dtype == "bool" else "bitxor", self, other)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __lshift__(self, other: ExprLike) -> Expr:
        return binary("shl", self, other)

    def __rlshift__(self, other: ExprLike) -> Expr:
        return binary("shl", other, self)

    def __rshift__(self, other: ExprLike) -> Expr:
        return binary("shr", self, other)

    def __rrshift__(self, other: ExprLike) -> Expr:
        return binary("shr", other, self)

    def __invert__(self) -> Expr:
        return call("not", self) if self.dtype == "bool" else self ^ _wrapped(-1, self.dtype)

    def __neg__(self) -> Expr:
        return call("neg", self)

    def __abs__(self) -> Expr:
        return call("abs", self)

    def __lt__(self, other: ExprLike) -> Expr:
        return binary("lt", self, other)

    def __le__(self, other: ExprLike) -> Expr:
        return binary("le", self, other)

    def __gt__(self, other: ExprLike) -> Expr:
        return binary("gt", self, other)

    def __ge__(self, other: ExprLike) -> Expr:
        return binary("ge", self, other)

    def equal(self, other: ExprLike) -> Expr:
        """Elementwise ==; the Python operator `==` is identity."""
        return binary("eq", self, other)

    def not_equal(self, other: ExprLike) -> Expr:
        return binary("ne", self, other)

    def astype(self, dtype: str) -> Expr:
        return cast(self, dtype)

    def __str__(self) -> str:
        from autosched.ir.printer import expr_text

        return expr_text(self)


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Const(Expr):
    value: bool | int | float
    dtype: str = INDEX

    def __new__(cls: type[N], value: Scalar, dtype: str = INDEX) -> N:
        kind = type(value)  # True is 1 and 1.0
        if isinstance(value, SymbolicInteger):
            exact: object = value.identity
        else:
            exact = value if kind is int or (value and value == value) else repr(value)  # 0.0 is -0.0
        key = (cls, kind, exact, dtype)
        known = KNOWN.get(key)
        node: N | None = None if known is None else known()  # as in `Binary`
        return interned(cls, key, (value, dtype)) if node is None else node

    @property
    def number(self) -> int:
        """The value of an integer constant."""
        value = self.value
        return int(value) if isinstance(value, bool | float) else value


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Var(Expr):
    """A loop variable, an axis of a stage, or an operand of a reducer's combiner."""

    name: str
    dtype: str = INDEX

    def __new__(cls: type[N], name: str, dtype: str = INDEX) -> N:
        return interned(cls, (cls, name, dtype), (name, dtype))


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Param(Expr):
    """A schedule parameter: a positive integer chosen by the search."""

    name: str
    dtype: ClassVar[str] = INDEX  # type: ignore[misc]


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Binary(Expr):
    op: str
    a: Expr
    b: Expr
    dtype: str  # stored, since asking the operands would walk the whole left spine

    def __new__(cls: type[N], op: str, a: Expr, b: Expr) -> N:
        key = (cls, op, a, b)
        known = KNOWN.get(key)
        node: N | None = None if known is None else known()  # as `interned` does: most nodes come from here
        if node is None:
            node = interned(cls, key, (op, a, b, "bool" if op in TRUTHS else a.dtype))
        return node

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.a, self.b)


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Call(Expr):
    fn: str
    args: tuple[Expr, ...]

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.args[0].dtype

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.args


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Select(Expr):
    """`a` where `cond` holds, else `b`. The branch not taken is not evaluated: it may be out of bounds."""

    cond: Expr
    a: Expr
    b: Expr

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.a.dtype

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.cond, self.a, self.b)


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Cast(Expr):
    a: Expr
    dtype: str

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.a,)


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Load(Expr):
    """One element of the tensor or buffer named `buffer`."""

    buffer: str
    indices: tuple[Expr, ...]
    dtype: str

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.indices


def const(value: ExprLike, dtype: str = INDEX) -> Expr:
    """A constant of `dtype`; an expression is passed through."""
    if isinstance(value, Expr):
        return value
    if dtype == INDEX and (type(value) is int or isinstance(value, SymbolicInteger)):
        return Const(value, INDEX)
    row = DTYPES[dtype]
    if isinstance(value, SymbolicInteger):
        return cast(Const(value, INDEX), dtype) if row.is_float else Const(value, dtype)
    if row.is_float:
        return Const(row.nearest(value) if row.is_stored_only else float(value), dtype)
    if row.kind == "b":
        return Const(bool(value), dtype)
    if isinstance(value, float) and not value.is_integer():
        raise ExpressionError(
            f"the constant {value} is not an integer but {dtype} was expected; cast the other operand"
        )
    return Const(int(value), dtype)


def _of_scalar(a: ExprLike, b: ExprLike) -> tuple[Expr, Expr]:
    """Both operands where one is a Python scalar."""
    if type(b) is int and isinstance(a, Expr) and a.dtype == INDEX:  # as most are
        return a, Const(b, INDEX)
    return _unify(widened(a), widened(b))


def _unify(a: ExprLike, b: ExprLike) -> tuple[Expr, Expr]:
    """Python scalars are weak: they take the dtype of the other side (a float next to an int makes float32)."""
    if isinstance(a, Expr) and isinstance(b, Expr):
        if a.dtype == b.dtype:
            return a, b
        dtype = promote(a.dtype, b.dtype)
        return cast(a, dtype), cast(b, dtype)
    if isinstance(a, Expr):
        number = scalar(b, "an operator")
        dtype = _weak(a.dtype, number)
        return cast(a, dtype), const(number, dtype)
    if isinstance(b, Expr):
        number = scalar(a, "an operator")
        dtype = _weak(b.dtype, number)
        return const(number, dtype), cast(b, dtype)
    dtype = "float32" if isinstance(a, float) or isinstance(b, float) else INDEX
    return const(a, dtype), const(b, dtype)


def _weak(dtype: str, number: Scalar) -> str:
    if isinstance(number, bool):
        raise ExpressionError(no_comparison(number))
    if isinstance(number, float) and not DTYPES[dtype].is_float:
        return "float32"
    return INDEX if isinstance(number, int) and dtype == "bool" else dtype


def binary(op: str, lhs: ExprLike, rhs: ExprLike) -> Expr:
    """Build `lhs op rhs` with dtypes unified, integer constants folded and neutral elements dropped."""
    a, b = (lhs, rhs) if isinstance(lhs, Expr) and isinstance(rhs, Expr) else _of_scalar(lhs, rhs)
    dtype = a.dtype
    if dtype != b.dtype or DTYPES[dtype].is_stored_only:
        a, b = _unify(widened(a), widened(b))
        dtype = a.dtype
    kind = DTYPES[dtype].kind
    if op in _REFUSED[kind]:
        raise ExpressionError(_refusal(op, a, b))
    if kind == "f" and op != "pow":  # float arithmetic is left exactly as written
        return Binary(op, a, b)
    constant = isinstance(b, Const)
    if not (constant or a is b or isinstance(a, Const)):
        return Binary(op, a, b)
    if constant and isinstance(a, Const) and (dtype == INDEX or kind == "b"):
        value = FOLDS[op](a.value, b.value) if op in FOLDS else None  # type: ignore[attr-defined]
        if value is not None:
            return Const(value, "bool" if op in TRUTHS else dtype)
    simpler = _neutral(op, a, b)
    loses_input = isinstance(simpler, Const) and op in ARITHMETIC and (_reads(a) or _reads(b))  # x - x, x * 0
    return Binary(op, a, b) if simpler is None or loses_input else simpler


@lru_cache(maxsize=1 << 14)
def _reads(expr: Expr) -> bool:
    return isinstance(expr, Load) or any(map(_reads, expr.children))


# Kind of the operands -> what cannot be done with them.
_REFUSED: dict[str, frozenset[str]] = {
    "f": INT_ONLY | LOGICAL,
    "i": LOGICAL | FLOAT_ONLY,
    "u": LOGICAL | FLOAT_ONLY,
    "b": INT_ONLY | ARITHMETIC - {"min", "max"},
}


def _refusal(op: str, a: Expr, b: Expr) -> str:
    """Why `op` is not for operands of their kind."""
    if op in INT_ONLY:
        return f"{op} needs integers but got {a.dtype} in {op}({a}, {b})"
    if op in FLOAT_ONLY:
        sign, text, other = ("/", f"({a}) / ({b})", "//") if op == "div" else ("fmod", f"fmod({a}, {b})", "%")
        return f"{sign} needs floats but got {a.dtype} in {text}; use {other} or cast one side"
    if op in LOGICAL:
        return f"{op} needs bool operands but got {a.dtype} in {op}({a}, {b})"
    return f"{op} needs numbers but got bool in {op}({a}, {b}); cast one side first"


def _neutral(op: str, a: Expr, b: Expr) -> Expr | None:
    """x+0, x*1, x*0, x//1, x%1, min(x,x), x-x and their like, for integers; true and/or for bools."""
    numbers = (e.value if isinstance(e, Const) and not isinstance(e.value, SymbolicInteger) else None for e in (a, b))
    av, bv = numbers
    match op:
        case "add":
            return a if bv == 0 else b if av == 0 else None
        case "sub":
            return a if bv == 0 else Const(0, a.dtype) if a is b else None
        case "mul":
            if av == 0 or bv == 0:
                return Const(0, a.dtype)
            return a if bv == 1 else b if av == 1 else None
        case "floordiv" | "ceildiv":
            return a if bv == 1 else None
        case "mod":
            return Const(0, a.dtype) if bv == 1 else None
        case "min" | "max":
            return a if a is b else None
        case "and":
            return (
                a if bv is True else b if av is True else Const(False, "bool") if av is False or bv is False else None
            )
        case "or":
            return a if bv is False else b if av is False else Const(True, "bool") if av is True or bv is True else None
    return None


def call(fn: str, *args: Expr) -> Expr:
    """`fn(args)`; functions of floats refuse integers with a sentence."""
    if fn not in CALLS:
        raise ExpressionError(f"unknown function {fn!r}; known are {', '.join(sorted(CALLS))}")
    if fn in FLOAT_CALLS and not DTYPES[args[0].dtype].is_float:
        raise ExpressionError(f"{fn} needs a float but got {args[0].dtype} in {fn}({args[0]}); cast it first")
    if fn == "not" and args[0].dtype != "bool":
        raise ExpressionError(f"~ needs a bool but got {args[0].dtype} in ~({args[0]})")
    if fn != "not" and args[0].dtype == "bool":
        raise ExpressionError(f"{fn} needs a number but got bool in {fn}({args[0]}); cast it first")
    operands = tuple(map(widened, args))
    if fn == "neg" and isinstance(operands[0], Const):
        return Const(_wrapped(-operands[0].value, operands[0].dtype), operands[0].dtype)
    return Call(fn, operands)


def select(cond: Expr, a: ExprLike, b: ExprLike) -> Expr:
    """`a` where `cond` holds, else `b`; the branch not taken may be out of bounds."""
    if cond.dtype != "bool":
        raise ExpressionError(f"the condition of select must be bool but {cond} is {cond.dtype}")
    x, y = _unify(a, b)
    if isinstance(cond, Const):
        return x if cond.value else y
    return x if x is y else Select(cond, x, y)


def known_dtype(dtype: Any) -> str:
    """The name of a type of elements, which may be given as NumPy's."""
    name = type_name(dtype)
    if name not in DTYPES:
        raise ExpressionError(f"dtype {name!r} is not supported; use one of {', '.join(DTYPES)}")
    return name


def cast(a: Expr, dtype: str) -> Expr:
    if a.dtype == dtype:
        return a
    dtype = known_dtype(dtype)
    is_size = isinstance(a, Const) and isinstance(a.value, SymbolicInteger)
    if isinstance(a, Const) and is_size and not DTYPES[dtype].is_float:
        return Const(a.value, dtype)
    if isinstance(a, Const) and not is_size and not (isinstance(a.value, float) and not DTYPES[dtype].is_float):
        return const(_wrapped(a.value, dtype) if type(a.value) is int else a.value, dtype)
    for step in (DTYPES[a.dtype].computes_in, DTYPES[dtype].computes_in, dtype):
        a = a if a.dtype == step else Cast(a, step)
    return a


def _wrapped(value: int | float, dtype: str) -> int | float:
    """Convert an integer to `dtype`: the lowest bits, if that is an integer type as well."""
    if not DTYPES[dtype].is_integer:
        return value
    low, high = DTYPES[dtype].integer_range
    return (value - low) % (high - low + 1) + low


def widened(a: Any) -> Any:
    """A number of a dtype without arithmetic in the one that it is computed in; everything else as it is."""
    return cast(a, DTYPES[a.dtype].computes_in) if isinstance(a, Expr) else a


def imin(a: ExprLike, b: ExprLike) -> Expr:
    return binary("min", a, b)


def imax(a: ExprLike, b: ExprLike) -> Expr:
    return binary("max", a, b)


def ceildiv(a: ExprLike, b: ExprLike) -> Expr:
    return binary("ceildiv", a, b)


def product(values: Iterator[Expr] | tuple[Expr, ...] | list[Expr]) -> Expr:
    """The integer product of closed forms, 1 for none."""
    return math.prod(values, start=Const(1, INDEX))


def precision_of(expr: Expr) -> str:
    """That in which `expr` may be taken (`ir/instructions/precision.py`); empty where it has to be exact."""
    return expr.fn if isinstance(expr, Call) and expr.fn in PRECISIONS else ""
