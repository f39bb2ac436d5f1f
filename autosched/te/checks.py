"""What a stage must satisfy before anything else sees it.

Indices are integers. One that is not quasi-affine, but data or other arithmetic on axes, is clamped, so it is inside
whatever the data are; choices in the others have become selects of loads (`Tensor.__getitem__` does both).
Every other load lies within its tensor for all values of the axes, or stands in a branch of a select whose
condition keeps it there. The proof is by intervals: a form g is at least L over the axes' ranges,
and, under a condition f >= 0, at least the bound of g - f.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from autosched.errors import ExpressionError
from autosched.ir.conditions import NEGATED
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import INDEX, Binary, Call, Const, Expr, Load, Select
from autosched.ir.simplify import Affine, Simplifier
from autosched.ir.size import presumed, whole
from autosched.ir.symbolic import FOLDS
from autosched.te.tensor import AS_GIVEN, ComputeOp, data_nodes, postorder

MAX_BYTES = 1 << 62  # byte counts and element indices stay well inside int64
MAX_DEPTH = 200  # later passes walk expressions recursively, with up to four Python frames a level
_FACT_DEPTH = 2  # how many conditions may be combined for one bound
_INT_DTYPES = frozenset(name for name, row in DTYPES.items() if row.is_integer)
_TOO_DEEP = "operations in one another; reduce over a te.reduce_axis, or split the stage in two"

CHECKED: ContextVar[bool] = ContextVar("stages that are made were checked before", default=False)

Facts = tuple[Expr, ...]  # integer expressions known to be >= 0


def check_shape(shape: Any, what: str, dtype: str) -> tuple[int, ...]:
    """`shape` as a tuple of Python integers >= 0 whose tensor of `dtype` has at most 2**62 bytes."""
    items = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    extents: list[int] = []
    for dim, item in enumerate(items):
        if isinstance(item, (bool, Expr)) or not hasattr(item, "__index__"):
            raise ExpressionError(
                f"extent {dim} of {what} is {item!s}, a {type(item).__name__}, but must be an integer >= 0"
            )
        extent = whole(item)
        if extent < 0:
            raise ExpressionError(f"extent {dim} of {what} is {extent} but must be >= 0")
        extents.append(extent)
    size = DTYPES[dtype].nbytes
    for extent in extents:
        size *= FOLDS["max"](extent, 1)
    if size > MAX_BYTES:
        raise ExpressionError(f"{what} of shape {extents} has more than 2**62 bytes; no machine can hold it")
    return tuple(extents)


@contextmanager
def checked_before() -> Iterator[None]:
    """Within it, stages that are made are not checked: they have been, over operands of the same shapes."""
    token = CHECKED.set(True)
    try:
        yield
    finally:
        CHECKED.reset(token)


def check_op(op: ComputeOp) -> None:
    """Refuse a domain that is too large, a division by zero, and an index that is not affine or not inside.

    Expressions of a stage without points are never evaluated, so their divisors and indices may be any.
    """
    if CHECKED.get():
        return
    with presumed():
        _check_op(op)


def _check_op(op: ComputeOp) -> None:
    points = 1
    for axis in (*op.axes, *op.reduce_axes):
        points *= axis.extent
    if points > MAX_BYTES:
        domain = " x ".join(str(a.extent) for a in (*op.axes, *op.reduce_axes))
        raise ExpressionError(f"stage {op.name} has a domain of {domain} points, more than 2**62")
    for output in op.outputs:
        check_shape(output.shape, f"stage {op.name}", output.dtype)
    depth: dict[Expr, int] = {}
    for node in postorder((*op.body, *(op.reducer.results if op.reducer is not None else ()))):
        depth[node] = 1 + max((depth[c] for c in node.children), default=0)
        if depth[node] > MAX_DEPTH:
            raise ExpressionError(f"stage {op.name} nests more than {MAX_DEPTH} {_TOO_DEEP}")
        if not points:
            continue
        if isinstance(node, Binary) and node.op in ("floordiv", "mod") and _is_zero(node.b):
            raise ExpressionError(f"stage {op.name} divides by zero in {node}; the divisor must be another number")
        if isinstance(node, Const) and node.dtype in _INT_DTYPES and not _fits(node):
            low, high = DTYPES[node.dtype].integer_range
            raise ExpressionError(
                f"stage {op.name} uses the constant {node.value} as {node.dtype}, whose range is {low} to {high}; "
                'cast the other operand to a wider type, for example with .astype("int64")'
            )
        if isinstance(node, Load):
            _check_indices(op, node)
    if points:
        _check_bounds(op)


def is_inside(op: ComputeOp) -> bool:
    """Whether a stage that was made from another one satisfies it: what it reads is known to lie within its tensors."""
    try:
        check_op(op)
    except ExpressionError:
        return False
    return True


def _is_zero(node: Expr) -> bool:
    return isinstance(node, Const) and node.value == 0


def _fits(node: Const) -> bool:
    low, high = DTYPES[node.dtype].integer_range
    return low <= node.value <= high


def _check_indices(op: ComputeOp, load: Load) -> None:
    for dim, index in enumerate(load.indices):
        if index.dtype not in _INT_DTYPES:
            raise ExpressionError(
                f"stage {op.name} reads {load}, whose index {dim} is {index} of type {index.dtype} but must be an "
                "integer; use // instead of /, or te.cast"
            )


def _check_bounds(op: ComputeOp) -> None:
    shapes = {t.key: t.shape for t in (*op.outputs, *op.inputs)}
    by_name = {t.name: t.key for t in (*op.outputs, *op.inputs)}
    own = {t.name for t in op.outputs}
    prover = _Prover(Simplifier({a.var: (0, a.extent - 1) for a in (*op.axes, *op.reduce_axes)}))
    for load, facts in _guarded_loads(op.body):
        tensor = getattr(load, "tensor", None)
        shape = shapes[tensor.key if tensor is not None else by_name[load.buffer]]
        for dim, (index, extent) in enumerate(zip(load.indices, shape, strict=True)):
            if AS_GIVEN.get() and index in data_nodes((index,)):
                continue
            low, high = prover.range(index, ())
            if facts and (low < 0 or high >= extent):
                low, high = prover.range(index, facts)
            if (low >= 0 and high < extent) or any(-prover.lower(-fact, ()) < 0 for fact in facts):
                continue  # inside, or in a branch that is never taken
            under = " under its condition" if facts else ""
            end = " (it does not count from the end)" if high < 0 else ""
            remedy = "give the scan an init" if load.buffer in own and tensor is None else "change the shapes"
            raise ExpressionError(
                f"stage {op.name} reads {load} out of bounds: index {dim}, {index}, runs over {low} .. {high}{under} "
                f"but dimension {dim} of {load.buffer} has extent {extent}{end}; {remedy}, or guard the read "
                "with te.select(te.all(0 <= index, index < extent), ..., 0.0)"
            )


def _guarded_loads(body: tuple[Expr, ...]) -> Iterator[tuple[Load, Facts]]:
    """Every load with the conditions of the selects around it; a node under several conditions comes once for each."""
    stack: list[tuple[Expr, Facts]] = [(root, ()) for root in reversed(body)]
    seen: set[tuple[Expr, Facts]] = set()
    while stack:
        item = stack.pop()
        if item in seen:
            continue
        seen.add(item)
        node, facts = item
        if isinstance(node, Load):
            yield node, facts
        elif isinstance(node, Select):
            stack.append((node.b, _merge(facts, _facts(node.cond, False))))
            stack.append((node.a, _merge(facts, _facts(node.cond, True))))
            stack.append((node.cond, facts))
        else:
            stack.extend((child, facts) for child in reversed(node.children))


def _merge(old: Facts, new: Facts) -> Facts:
    return old + tuple(f for f in new if f not in old)


def _facts(cond: Expr, holds: bool) -> Facts:
    """What is known to be >= 0 when `cond` holds (or does not); conditions that are not about indices say nothing."""
    match cond:
        case Call(fn="not", args=(a,)):
            return _facts(a, not holds)
        case Binary(op="and", a=a, b=b) if holds:
            return _merge(_facts(a, True), _facts(b, True))
        case Binary(op="or", a=a, b=b) if not holds:
            return _merge(_facts(a, False), _facts(b, False))
        case Binary(op=op, a=a, b=b) if op in NEGATED and a.dtype == INDEX and _is_index(cond):
            return _comparison(op if holds else NEGATED[op], a, b)
    return ()


def _is_index(expr: Expr) -> bool:
    return not any(isinstance(n, Load) for n in postorder((expr,)))


def _comparison(op: str, a: Expr, b: Expr) -> Facts:
    match op:
        case "lt":
            return (b - a - 1,)
        case "le":
            return (b - a,)
        case "gt":
            return (a - b - 1,)
        case "ge":
            return (a - b,)
        case "eq":
            return (a - b, b - a)
    return ()


class _Prover:
    """Lower bounds of index expressions over the ranges of a stage's axes."""

    def __init__(self, simplifier: Simplifier) -> None:
        self.simplifier = simplifier
        self.open: set[Expr] = set()  # the quotients whose dividend is being bounded: facts may lead back to one

    def range(self, expr: Expr, facts: Facts) -> tuple[int, int]:
        """Numbers that `expr` is never below and never above while all `facts` hold."""
        return self.lower(expr, facts), -self.lower(-expr, facts)

    def lower(self, expr: Expr, facts: Facts, depth: int = _FACT_DEPTH) -> int:
        """A number that `expr` is never below while all `facts` hold."""
        form = self.simplifier.affine(expr)
        best = self._plain(form, facts)
        if depth > 0:
            for fact in facts:
                for times, of_fact in self._multiples(form, fact):
                    left = self.lower(expr * times - fact * of_fact, facts, depth - 1)
                    best = max(best, -(-left // times))
        return best

    def _plain(self, form: Affine, facts: Facts) -> int:
        total = form.constant
        for atom, c in form.terms:
            low, high = self._atom(atom, facts)
            total += c * (low if c > 0 else high)
        return total

    def _atom(self, atom: Expr, facts: Facts) -> tuple[int, int]:
        match atom:
            case Binary(op="floordiv", a=a, b=Const(value=f)) if f > 0 and facts and atom not in self.open:
                self.open.add(atom)
                low, high = self.lower(a, facts) // int(f), -self.lower(-a, facts) // int(f)
                self.open.remove(atom)
                return low, high
        return self.simplifier.bounds(atom)

    def _multiples(self, form: Affine, fact: Expr) -> set[tuple[int, int]]:
        """Multiples of the form and of the fact whose difference can help: it lacks a term, or a part of one."""
        other = dict(self.simplifier.affine(fact).terms)
        shared = [(c, d) for atom, c in form.terms if (d := other.get(atom, 0)) * c > 0]
        return {pair for c, d in shared for pair in ((1, 1), (d // c or 1, 1), (1, c // d or 1))}
