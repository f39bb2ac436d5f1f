"""Sizes that are declared in an expression: integers of a range, which arrays tell when its kernel is called.

    M = te.size("M", 1, 4096)
    A = te.placeholder((M, 64), name="A")
    B = te.compute((M - 1, 64), lambda i, j: A[i, j] + A[i + 1, j], name="B")

Shapes and expressions have closed forms of the sizes (`ir.size`). A definition must not depend on what a size is: to
compile it, `at_sizes` puts numbers, or symbols whose guards are collected, in place of the sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autosched.errors import ExpressionError
from autosched.ir.expr import INDEX, Binary, Const, Expr, Var
from autosched.ir.interning import N, interned
from autosched.ir.size import computed, declared, form_of, has_size, unit_of, whole
from autosched.te.checks import check_op
from autosched.te.compute import _name
from autosched.te.dag import ComputeDAG
from autosched.te.tensor import Axis, ComputeOp, PlaceholderOp, Tensor, postorder, rewrite


@dataclass(frozen=True, eq=False, repr=False, init=False)
class DeclaredSize(Var):
    """The symbol of the size `of`, one of `allowed`, counted in what divides all of them."""

    of: str = ""
    allowed: range = range(0)

    def __new__(cls: type[N], *fields: Any) -> N:
        return interned(cls, (cls, *fields), fields)


def size(name: str, low: int, high: int, multiple: int = 1) -> int:
    """Return a size from `low` to `high` that is a multiple of `multiple`, for extents, indices and conditions.

    Sizes of one name and range are one size. Raises ExpressionError for a range without sizes.
    """
    label = _name(name, "size")
    try:
        first, last, step = whole(low), whole(high), whole(multiple)
    except TypeError:
        raise ExpressionError(f"the size {label} has integers as its range, got {low!r} to {high!r}") from None
    if step < 1:
        raise ExpressionError(f"the size {label} is a multiple of {step}, which must be at least 1")
    allowed = range(-(-first // step) * step, last + 1, step)
    if first < 0 or not allowed:
        multiples = f"multiple of {step}" if step > 1 else "size"
        raise ExpressionError(f"the size {label} from {first} to {last}: there is no {multiples} >= 0 in this range")
    unit = unit_of(allowed)
    symbol = DeclaredSize(label if unit == 1 else f"{label}/{unit}", INDEX, label, allowed)
    return declared(symbol, allowed[-1] // unit, allowed.start // unit, allowed[-1] // unit) * unit


def declared_sizes(dag: ComputeDAG) -> dict[str, range]:
    """Return the declared sizes of a graph with their ranges. Raises ExpressionError for two of one name."""
    ranges: dict[str, range] = {}
    for number in _numbers(dag):
        for symbol in _symbols(form_of(number)):
            if ranges.setdefault(symbol.of, symbol.allowed) != symbol.allowed:
                raise ExpressionError(f"the size {symbol.of} is declared with two ranges, {symbol.allowed} is one")
    return ranges


def at_sizes(dag: ComputeDAG, sizes: Mapping[str, int]) -> ComputeDAG:
    """Return the graph with `sizes`, by name, in place of declared ones. Raises ExpressionError if it is none then."""

    def number(n: Any) -> Any:
        return _replaced(form_of(n), sizes) if has_size(n) else n

    def shape(extents: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(map(number, extents))

    def node(_: Expr, new: Expr) -> Expr:
        return Const(number(new.value), new.dtype) if isinstance(new, Const) else new

    tensors: dict[str, Tensor] = {}
    for t in dag.inputs:
        assert isinstance(t.op, PlaceholderOp)
        tensors[t.name] = Tensor(t.name, shape(t.shape), t.dtype, PlaceholderOp(t.name, t.op.order))
    for op in dag.stages:
        axes, reduce_axes = (
            tuple(Axis(a.var, number(a.extent), a.reduce) for a in own) for own in (op.axes, op.reduce_axes)
        )
        inputs = tuple(tensors[t.name] for t in op.inputs)
        made = ComputeOp(op.name, axes, reduce_axes, rewrite(op.body, node), op.reducer, inputs)
        check_op(made)
        tensors |= {t.name: t for t in made.outputs}
    outputs = [tensors[t.name].seen_as(shape(t.public_shape)) for t in dag.outputs]
    return ComputeDAG(outputs, weights=dag.weights, winograd=dag.winograd, weights_in=dag.weights_in)


def _replaced(form: Expr, sizes: Mapping[str, int]) -> int:
    """Return a closed form of declared sizes with others, by name, in place of them."""
    match form:
        case DeclaredSize(of=name, allowed=allowed):
            return computed("floordiv", sizes[name], unit_of(allowed))
        case Binary(op=op, a=a, b=b):
            return computed(op, _replaced(a, sizes), _replaced(b, sizes))
    assert isinstance(form, Const), f"{form} is no form of declared sizes"
    return form.number


def _numbers(dag: ComputeDAG) -> Iterator[Any]:
    """Yield the extents and constants of a graph that are sizes."""
    for t in (*dag.inputs, *dag.outputs):
        yield from filter(has_size, (*t.shape, *t.public_shape))
    for op in dag.stages:
        yield from filter(has_size, (a.extent for a in (*op.axes, *op.reduce_axes)))
        yield from (n.value for n in postorder(op.body) if isinstance(n, Const) and has_size(n))


def _symbols(form: Expr) -> Iterator[DeclaredSize]:
    yield from (node for node in postorder([form]) if isinstance(node, DeclaredSize))
