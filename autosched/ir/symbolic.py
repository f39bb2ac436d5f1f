"""Number protocols of Python and NumPy on expressions: operators, and errors that name the alternative.

Operators work with NumPy's numbers on either side. `np.float32(2) * x` is a call of NumPy's, which is handed back to
Python's operator; without that NumPy would look for methods of its own names on the expression.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias, cast

from autosched.errors import ExpressionError

Scalar: TypeAlias = "bool | int | float"  # an integer may be a SymbolicInteger

# NumPy's name of a function -> Python's operator.
_OPERATORS: dict[str, Callable[..., Any]] = {
    "absolute": operator.abs,
    "negative": operator.neg,
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "power": operator.pow,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor,
    "left_shift": operator.lshift,
    "right_shift": operator.rshift,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}
# NumPy's name of a function -> that of `te`, where they differ.
OTHER_NAMES = {"clip": "min and te.max", "logical_and": "all", "logical_or": "any", "power": "pow", "rint": "round",
               "where": "select"}  # fmt: skip


class SymbolicInteger:
    """The base of `ir.size.SymbolicSize`, an integer that constants may have as their value."""

    __slots__ = ()

    def computed(self, op: str, a: Any, b: Any) -> Any:
        """Return `a op b`, one of which is this: min, max or ceildiv, for which Python has no operator."""
        raise NotImplementedError

    def is_known(self, op: str, a: Any, b: Any) -> bool:
        """Return whether `a op b`, one of which is this, holds for all values."""
        raise NotImplementedError

    @property
    def identity(self) -> object:
        """Two are the same where this is equal."""
        raise NotImplementedError

    @property
    def constant(self) -> int:
        """The number that is added to the rest of its closed form."""
        raise NotImplementedError

    @property
    def divisor(self) -> int:
        """The greatest number that divides all its values."""
        raise NotImplementedError


INTEGERS = (int, SymbolicInteger)


def common_divisor(*numbers: int) -> int:
    """Return the greatest number that divides all of `numbers`, those that are not known yet for all their values."""
    return math.gcd(*(n.divisor if isinstance(n, SymbolicInteger) else n for n in numbers))


def is_known(op: str, a: Any, b: Any) -> bool:
    """Return whether the comparison `a op b` of integers holds, for sizes whether that is proven for all values.

    For questions whose answer "no" leads to results that are right for all sizes: it takes no guard.
    """
    if isinstance(a, SymbolicInteger):
        return a.is_known(op, a, b)
    return b.is_known(op, a, b) if isinstance(b, SymbolicInteger) else bool(_COMPARE[op](a, b))


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    op: getattr(operator, op) for op in ("lt", "le", "gt", "ge", "eq", "ne")
}


def _fold(op: str, compute: Callable[[int, int], int]) -> Callable[[Any, Any], Any]:
    def folded(a: Any, b: Any) -> Any:
        for x in (a, b):
            if isinstance(x, SymbolicInteger):
                return x.computed(op, a, b)
        return compute(a, b)

    return folded


def _divides(number: Any) -> bool:
    return is_known("gt", number, 0) or bool(number)


# How constants fold. Division by zero is left to the run.
_CEILDIV = _fold("ceildiv", lambda a, b: -(-a // b))
FOLDS: dict[str, Callable[[Any, Any], Any]] = {
    **{op: getattr(operator, op) for op in ("add", "sub", "mul", "lt", "le", "gt", "ge", "eq", "ne")},
    "floordiv": lambda a, b: a // b if _divides(b) else None,
    "mod": lambda a, b: a % b if _divides(b) else None,
    "ceildiv": lambda a, b: _CEILDIV(a, b) if _divides(b) else None,
    "min": _fold("min", min),
    "max": _fold("max", max),
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
}


class Symbolic:
    """A base of what stands for numbers that are not known yet."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise ExpressionError(
            f"the expression {self} is no number while the operator is being defined; write te.exp instead of "
            "math.exp, te.round instead of round, te.cast instead of float and int, te.reduce_axis instead of range"
        )

    __float__ = __int__ = __complex__ = __index__ = __round__ = __trunc__ = __floor__ = __ceil__ = _refuse

    def __bool__(self) -> bool:
        raise ExpressionError(
            f"the expression {self} has no truth value while the operator is being defined; use te.select(cond, a, b) "
            "instead of if; te.all, te.any or &, | instead of and, or, a < b < c; te.max, te.min instead of max, min"
        )

    def __iter__(self) -> NoReturn:
        raise ExpressionError(
            f"the expression {self} is one element and cannot be iterated over; use te.sum(..., axis=k) instead of "
            "sum, te.any of te.equal(a, b) instead of in"
        )

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __repr__(self) -> str:
        return str(self)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """NumPy's operators, which its numbers call; the rest is refused."""
        name = ufunc.__name__
        if name not in _OPERATORS or method != "__call__" or options:
            return self.__array_function__(ufunc)
        return _OPERATORS[name](*(x if isinstance(x, Symbolic) else scalar(x, "an operator") for x in inputs))

    def __array_function__(self, function: Any, *_: Any) -> NoReturn:
        name = function.__name__
        raise ExpressionError(
            f"NumPy's {name} is for arrays and not for the expression {self}; write te.{OTHER_NAMES.get(name, name)}"
        )


def scalar(value: Any, what: str) -> Scalar:
    """A Python number for a Python or NumPy one. Raises ExpressionError for anything else, on behalf of `what`."""
    shape = getattr(value, "shape", None)
    number = value.item() if shape == () and hasattr(value, "item") else value
    if isinstance(number, SymbolicInteger):
        return cast(int, number)
    if isinstance(number, bool | int | float):
        return number
    if shape:
        raise ExpressionError(
            f"{what} got a whole {type(value).__name__} of shape {tuple(shape)}; write one element, A[i], where A is a "
            "tensor: arrays are inputs, te.placeholder"
        )
    raise ExpressionError(f"{what} got {value!r}, a {type(value).__name__}, but needs an expression or a number")


def no_comparison(value: bool) -> str:
    """Why a plain truth value is refused where an expression is asked for: Python's == made it, most likely."""
    return (
        f"{value} is no expression: ==, != and in only tell whether two expressions are the same; write te.equal(a, b)"
    )


def type_name(dtype: Any) -> str:
    """The name of a type of elements that is given by its name, as NumPy's or PyTorch's, or by its class."""
    name = getattr(dtype, "name", getattr(dtype, "__name__", dtype))
    return dtype if isinstance(dtype, str) else str(name).removeprefix("torch.")
