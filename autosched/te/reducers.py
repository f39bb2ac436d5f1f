"""Reductions: the built-in reducers, the user's own, and the node that stands for one while tracing.

`Reduce` never survives in a `ComputeOp`: `compute` turns it into a stage's reducer or hoists it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autosched.errors import ExpressionError
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import INDEX, Call, Const, Expr, Load, Var, binary, cast, const, known_dtype, select, widened
from autosched.ir.stmt import Reducer
from autosched.ir.symbolic import no_comparison, scalar
from autosched.te.tensor import AxisVar, Tensor, postorder


@dataclass(frozen=True)
class Reduction:
    """`reducer` applied to `sources` over all values of `axes`; with `is_ordered`, from its identity on, in order."""

    reducer: Reducer
    sources: tuple[Expr, ...]
    axes: tuple[AxisVar, ...]
    is_ordered: bool = False

    @property
    def parts(self) -> tuple[Expr, ...]:
        """The results, one for each source."""
        shown = (*self.sources, *self.axes)
        return tuple(Reduce(self.reducer.name, shown, self, i) for i in range(len(self.sources)))


@dataclass(frozen=True, eq=False, repr=False)
class Reduce(Call):
    """The `index`-th result of a reduction, while its stage is being traced; it prints as the call it is.

    It has no children: its sources are over axes of their own and are not part of the expression around it.
    """

    reduction: Reduction
    index: int

    @property
    def children(self) -> tuple[Expr, ...]:
        return ()

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.reduction.sources[self.index].dtype


def smallest(dtype: str) -> Const:
    """The neutral element of max: -inf, or the least value of an integer type."""
    return _limit(dtype, -math.inf, 0)


def largest(dtype: str) -> Const:
    """The neutral element of min: inf, or the greatest value of an integer type."""
    return _limit(dtype, math.inf, 1)


def _limit(dtype: str, infinite: float, end: int) -> Const:
    kind = DTYPES[dtype].kind
    value = infinite if kind == "f" else bool(end) if kind == "b" else DTYPES[dtype].integer_range[end]
    node: Const = Const(value, dtype)
    return node


def to_expr(value: Any, what: str, truth: bool = False) -> Expr:
    """An expression from what a user may write for one: an expression or a Python or NumPy number; a plain `truth`
    value only where it says so, since `i == 0` is False for an axis i."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, Tensor):
        raise ExpressionError(
            f"{what} got the tensor {value.name} as a whole; write one of its elements, {value._example()}"
        )
    number = scalar(value, what)
    if isinstance(number, bool):
        if not truth:
            raise ExpressionError(f"{what}: {no_comparison(number)}")
        return const(number, "bool")
    if isinstance(number, float):
        return const(number, "float32")
    return typed_const(number, INDEX if number <= DTYPES[INDEX].integer_range[1] else "uint64")


def typed_const(value: bool | int | float, dtype: str) -> Expr:
    """A constant of exactly `dtype`; refuses an unknown dtype and a number outside its range."""
    dtype = known_dtype(dtype)
    if DTYPES[dtype].is_integer:
        low, high = DTYPES[dtype].integer_range
        if not low <= value <= high:
            raise ExpressionError(f"the constant {value} does not fit in {dtype}, whose range is {low} to {high}")
    return const(value, dtype)


def _axes(axis: Any, what: str) -> tuple[AxisVar, ...]:
    axes = () if axis is None else tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    if not axes:
        raise ExpressionError(f"{what} got no axis; pass axis=k, where k = te.reduce_axis(extent), or several of them")
    for item in axes:
        if not isinstance(item, AxisVar):
            raise ExpressionError(f"axis of {what} is {item!s}, a {type(item).__name__}, but must be a te.reduce_axis")
        if not item.reduce:
            raise ExpressionError(f"axis of {what} is {item.name}, an output axis; make one with te.reduce_axis")
    if len(set(axes)) != len(axes):
        names = ", ".join(a.name for a in axes)
        raise ExpressionError(f"{what} reduces over the same axis twice: axis=[{names}]")
    return axes


@dataclass(frozen=True)
class TupleReducer:
    """A reducer made by `reducer`; call it with one operand or a tuple of operands and `axis=`.

    Operands of small floats are reduced in float32.
    """

    name: str
    combine: Callable[[Any, Any], Any]
    identity: Any
    is_ordered: bool = False

    def __call__(self, operands: Any, axis: Any = None) -> Any:
        """The reduction of `operands` over `axis`: an expression, or a tuple of them for a tuple of operands."""
        axes = _axes(axis, self.name)
        single = not isinstance(operands, (tuple, list))
        sources = tuple(widened(to_expr(o, self.name)) for o in ((operands,) if single else operands))
        if not sources:
            raise ExpressionError(f"{self.name} got an empty tuple of operands")
        specialised = self._specialise(tuple(s.dtype for s in sources), single)
        reduction = Reduction(specialised, sources, axes, self.is_ordered)
        return reduction.parts[0] if single else reduction.parts

    def _specialise(self, dtypes: tuple[str, ...], single: bool) -> Reducer:
        lhs: tuple[Var, ...] = tuple(Var(f"lhs{i}", t) for i, t in enumerate(dtypes))
        rhs: tuple[Var, ...] = tuple(Var(f"rhs{i}", t) for i, t in enumerate(dtypes))
        combined = self.combine(lhs[0], rhs[0]) if single else self.combine(lhs, rhs)
        results = self._tuple(combined, single, len(dtypes), "combine")
        typed = tuple(self._typed(to_expr(r, self.name), t) for r, t in zip(results, dtypes, strict=True))
        for node in postorder(typed):
            if isinstance(node, (Load, Reduce)) or (isinstance(node, Var) and node not in (*lhs, *rhs)):
                raise ExpressionError(
                    f"the combiner of reducer {self.name} uses {node}; it may use only its two arguments and constants"
                )
        return Reducer(self.name, lhs, rhs, typed, self._identities(dtypes, single))

    def _typed(self, result: Expr, dtype: str) -> Expr:
        if result.dtype != dtype:
            raise ExpressionError(
                f"the combiner of reducer {self.name} turns two values of {dtype} into {result.dtype} ({result}); "
                f"it must return {dtype}, cast the operands or the result"
            )
        return result

    def _tuple(self, value: Any, single: bool, count: int, what: str) -> tuple[Any, ...]:
        items = (value,) if single else value
        if not isinstance(items, (tuple, list)) or len(items) != count:
            got = len(items) if isinstance(items, (tuple, list)) else f"a {type(items).__name__}"
            raise ExpressionError(f"{what} of reducer {self.name} must return {count} values but returned {got}")
        return tuple(items)

    def _identities(self, dtypes: tuple[str, ...], single: bool) -> tuple[Const, ...]:
        value = self.identity(*dtypes) if callable(self.identity) else self.identity
        identities: list[Const] = []
        for item, dtype in zip(self._tuple(value, single, len(dtypes), "identity"), dtypes, strict=True):
            node = item if isinstance(item, Expr) else typed_const(item, dtype)
            node = cast(node, dtype)
            if not isinstance(node, Const):
                raise ExpressionError(f"the identity of reducer {self.name} is {node} but must be a constant")
            identities.append(node)
        return tuple(identities)


def reducer(
    combine: Callable[[Any, Any], Any], identity: Any, name: str = "reduce", ordered: bool = False
) -> TupleReducer:
    """A reducer of your own.

    `combine(lhs, rhs)` takes two values, or two tuples of values for a tuple of operands, and returns the combined
    one; it must be associative and commutative, for the search reorders and splits reductions. `identity` is the
    value (or tuple of values) that changes nothing, or a function of the operands' dtypes returning it. Both are tried
    on random numbers where the reducer is used, and refused where they do not hold.

    With `ordered`, combine may be any function: it is applied to `identity` and the first element, to the result and
    the second one, and so on, in the order of the reduction's axes, the last of them fastest. Such a reduction is a
    recurrence (`te.scan`) whose last values are read.
    """
    if not callable(combine):
        raise ExpressionError(f"combine of te.reducer must be a function of (lhs, rhs) but is {combine!r}")
    return TupleReducer(name, combine, identity, ordered)


_SUM = TupleReducer("sum", lambda x, y: x + y, lambda t: const(0, t))
_PROD = TupleReducer("prod", lambda x, y: x * y, lambda t: const(1, t))
_MAX = TupleReducer("max", lambda x, y: binary("max", x, y), smallest)
_MIN = TupleReducer("min", lambda x, y: binary("min", x, y), largest)
_ANY = TupleReducer("any", lambda x, y: x | y, False)
_ALL = TupleReducer("all", lambda x, y: x & y, True)


def sum_reducer(dtype: str) -> Reducer:
    """What adds up numbers of a type."""
    return _SUM._specialise((dtype,), True)


def sum(expr: Any, axis: Any = None) -> Expr:
    """Sum over `axis`; bool and integers below 32 bits are added up in int32."""
    return _accumulate(_SUM, expr, axis)


def prod(expr: Any, axis: Any = None) -> Expr:
    """Product over `axis`; bool and integers below 32 bits are multiplied in int32."""
    return _accumulate(_PROD, expr, axis)


def _accumulate(builtin: TupleReducer, expr: Any, axis: Any) -> Expr:
    source = to_expr(expr, f"te.{builtin.name}")
    result: Expr = builtin(cast(source, DTYPES[source.dtype].accumulates_in), axis)
    return result


def max(a: Any, b: Any = None, axis: Any = None) -> Expr:
    """max(x, axis=k) reduces; max(x, y) is the greater of two values."""
    return _extremum("max", _MAX, _ANY, a, b, axis)


def min(a: Any, b: Any = None, axis: Any = None) -> Expr:
    """min(x, axis=k) reduces; min(x, y) is the smaller of two values."""
    return _extremum("min", _MIN, _ALL, a, b, axis)


def _extremum(op: str, numbers: TupleReducer, bools: TupleReducer, a: Any, b: Any, axis: Any) -> Expr:
    if (b is None) == (axis is None):
        raise ExpressionError(f"te.{op} needs either axis= to reduce over or a second value to compare with")
    if axis is None:
        return pair(op, a, b)
    source = to_expr(a, f"te.{op}")
    result: Expr = (bools if source.dtype == "bool" else numbers)(source, axis)
    return result


def pair(op: str, a: Any, b: Any) -> Expr:
    """`a op b` with Python numbers taking the dtype of the other side."""
    x, y = to_expr(a, f"te.{op}"), to_expr(b, f"te.{op}")
    if isinstance(a, Expr) != isinstance(b, Expr):
        return binary(op, x if isinstance(a, Expr) else _number(x), y if isinstance(b, Expr) else _number(y))
    return binary(op, x, y)


def _number(node: Expr) -> bool | int | float:
    assert isinstance(node, Const)
    return node.value


def any(*conditions: Any, axis: Any = None) -> Expr:
    """Whether one of the conditions holds; with `axis=`, whether the one condition holds anywhere along it."""
    return _logical("any", "or", _ANY, conditions, axis)


def all(*conditions: Any, axis: Any = None) -> Expr:
    """Whether all conditions hold; with `axis=`, whether the one condition holds everywhere along it."""
    return _logical("all", "and", _ALL, conditions, axis)


def _logical(name: str, op: str, builtin: TupleReducer, conditions: Sequence[Any], axis: Any) -> Expr:
    operands = [to_expr(c, f"te.{name}") for c in conditions]
    if not operands or (axis is not None and len(operands) > 1):
        raise ExpressionError(f"te.{name} takes conditions, or one condition and axis=, but got {len(operands)}")
    for node in operands:
        if node.dtype != "bool":
            raise ExpressionError(f"te.{name} needs conditions but {node} is {node.dtype}; compare it with something")
    if axis is not None:
        reduced: Expr = builtin(operands[0], axis)
        return reduced
    result = operands[0]
    for node in operands[1:]:
        result = binary(op, result, node)
    return result


def is_first_best(op: str, place: Expr, value: Expr, other_place: Expr, other: Expr) -> Expr:
    """Whether `value` is kept rather than `other`: it is better, which `op` says, or as good and its place smaller.

    NaN is better than every number, as NumPy has it, and as good as another NaN: so the order does not matter.
    """
    comes_first = place < other_place
    if not DTYPES[value.dtype].is_float:
        return binary(op, value, other) | (value.equal(other) & comes_first)
    is_nan = value.not_equal(value)
    is_as_good = (value.equal(other) | is_nan) & comes_first
    return binary(op, value, other) | is_as_good | (is_nan & other.equal(other))


def _pick(op: str) -> Callable[[Any, Any], Any]:
    """The better of two (index, value) pairs."""

    def combine(x: Any, y: Any) -> Any:
        first = is_first_best(op, *x, *y)
        return select(first, x[0], y[0]), select(first, x[1], y[1])

    return combine


# The index of the identity is the largest one, so that it loses every tie against an element.
_ARGMAX = TupleReducer("argmax", _pick("gt"), lambda i, v: (largest(i), smallest(v)))
_ARGMIN = TupleReducer("argmin", _pick("lt"), lambda i, v: (largest(i), largest(v)))


def argmax(operand: Any, axis: Any = None) -> tuple[Expr, Expr]:
    """(index, value) of the first maximum, or of the first NaN if there is one: `operand` is a value, or a pair
    (index expression, value)."""
    return _arg(_ARGMAX, operand, axis)


def argmin(operand: Any, axis: Any = None) -> tuple[Expr, Expr]:
    """(index, value) of the first minimum, or of the first NaN if there is one: `operand` is a value, or a pair
    (index expression, value)."""
    return _arg(_ARGMIN, operand, axis)


def _arg(builtin: TupleReducer, operand: Any, axis: Any) -> tuple[Expr, Expr]:
    if isinstance(operand, (tuple, list)):
        if len(operand) != 2:
            raise ExpressionError(f"te.{builtin.name} takes a value or a pair (index, value) but got {len(operand)}")
        pair_: tuple[Any, Any] = (operand[0], operand[1])
    else:
        axes = _axes(axis, f"te.{builtin.name}")
        if len(axes) > 1:
            raise ExpressionError(
                f"te.{builtin.name} over {len(axes)} axes needs its index spelled out: "
                f"te.{builtin.name}((index expression, value), axis=...)"
            )
        pair_ = (axes[0], operand)
    index, value = builtin(pair_, axis)
    return index, value
