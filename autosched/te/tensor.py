"""Tensors, axes and the operations that make tensors: what a user's definition is turned into.

A `ComputeOp` has one value expression per output (several only for tuple reducers and recurrences). Its spatial
axes index the output; with a reducer, `body[i]` is the i-th reduced operand, accumulated over
`reduce_axes`. Loads inside `body` name tensors; the objects are in `inputs`, but for the stage's own, which a
recurrence reads (`ir.recurrence`).

While the user's function is being traced, two node kinds exist that know more than their base class:
`AxisVar` (a variable that knows its extent) and `TensorLoad` (a load that knows its tensor). Two
tensors may share a name until `ComputeDAG` links them; a `ComputeDAG` holds plain `Var` and `Load` only.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn

from autosched.errors import ExpressionError
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import INDEX, Binary, Call, Cast, Const, Expr, Load, Select, Var, binary, cast, select
from autosched.ir.interning import N, interned
from autosched.ir.recurrence import Recurrence, find_recurrence
from autosched.ir.size import has_size, whole
from autosched.ir.stmt import Reducer
from autosched.ir.symbolic import FOLDS
from autosched.ir.types import integer_bounds
from autosched.ir.visit import rebuild

MAX_CHOSEN = 256  # elements that an index chooses between; three clamped dimensions have 27

_CREATED = itertools.count()
AS_GIVEN: ContextVar[bool] = ContextVar("indices that are data stay as they are given", default=False)


@contextmanager
def indices_as_given() -> Iterator[None]:
    """Within it, stages that are made have indices that are data as users give them, not clamped: they can be looked at
    and not be computed."""
    token = AS_GIVEN.set(True)
    try:
        yield
    finally:
        AS_GIVEN.reset(token)


@dataclass(frozen=True)
class Axis:
    """One loop of a stage's domain: `var` runs over 0 <= var < extent."""

    var: Var
    extent: int
    reduce: bool = False

    @property
    def name(self) -> str:
        return self.var.name


@dataclass(frozen=True, eq=False, repr=False, init=False)
class AxisVar(Var):
    """An axis while its stage is being traced; `uid` keeps axes apart that happen to share a name."""

    extent: int = 1
    reduce: bool = False
    uid: int = 0

    def __new__(cls: type[N], *fields: Any) -> N:
        return interned(cls, (cls, *fields), fields)

    @staticmethod
    def fresh(name: str, extent: int, reduce: bool) -> AxisVar:
        """A new axis, different from every other one."""
        return AxisVar(name, INDEX, extent, reduce, next(_CREATED))


@dataclass(frozen=True, eq=False)
class PlaceholderOp:
    """An input; `order` counts creations, which is the order of a kernel's arguments."""

    name: str
    order: int = field(default_factory=lambda: next(_CREATED))


@dataclass(frozen=True, eq=False, repr=False)
class ComputeOp:
    """A stage: for all `axes`, outputs[i][axes] = body[i], reduced over `reduce_axes` when there is a `reducer`."""

    name: str
    axes: tuple[Axis, ...]
    reduce_axes: tuple[Axis, ...]
    body: tuple[Expr, ...]
    reducer: Reducer | None
    inputs: tuple[Tensor, ...]

    def __repr__(self) -> str:
        reduced = f" reduced over [{', '.join(a.name for a in self.reduce_axes)}]" if self.reducer else ""
        return f"<stage {self.name}[{', '.join(a.name for a in self.axes)}]{reduced}>"

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the spatial axes."""
        return tuple(axis.extent for axis in self.axes)

    @property
    def has_points(self) -> bool:
        """Whether `body` is evaluated: no axis has the extent 0."""
        return all(axis.extent for axis in (*self.axes, *self.reduce_axes))

    @property
    def without_points(self) -> tuple[Const, ...]:
        """The value of each output if there are no points: the reducer's identity; of no elements any."""
        if self.reducer is not None:
            return self.reducer.identity
        return tuple(zero(value.dtype) for value in self.body)

    @cached_property
    def outputs(self) -> tuple[Tensor, ...]:
        """The tensors this stage writes: one of its own name, or `<name>.v0`, `<name>.v1` for a tuple."""
        names = [self.name] if len(self.body) == 1 else [f"{self.name}.v{i}" for i in range(len(self.body))]
        return tuple(
            Tensor(name, self.shape, value.dtype, self, i)
            for i, (name, value) in enumerate(zip(names, self.body, strict=True))
        )

    @cached_property
    def recurrence(self) -> Recurrence | None:
        """How the stage reads itself; None where it does not."""
        return find_recurrence([a.var for a in self.axes], self.body, {t.name for t in self.outputs})


@dataclass(frozen=True, eq=False)
class Tensor:
    """A named n-dimensional array, `op` says where it comes from; `index` is its place among the op's outputs."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    op: PlaceholderOp | ComputeOp = field(repr=False)
    index: int = 0
    view: tuple[int, ...] | None = field(default=None)  # the shape the caller sees, same elements in the same order

    def __getitem__(self, indices: Any) -> Expr:
        """One element; `indices` are axes, integers or integer expressions, one per dimension.

        An index that is a minimum, a maximum, an absolute value or a select chooses between elements: V[min(i, 7)] is
        select(i <= 7, V[i], V[7]), so that what is read stands at affine indices.

        An index may be data, any integer expression with elements of tensors in it, V[I[i]], or of axes that is not
        quasi-affine (sums of constant * axis, and floordiv and mod of such by positive constants): V[i * i]. Where it
        is outside of 0 .. extent - 1 the nearest element is read, the first one for negative numbers.
        """
        items = indices if isinstance(indices, tuple) else (indices,)
        if self.view is not None:
            raise ExpressionError(
                f"the view {list(self.view)} of tensor {self.name} cannot be read by another stage; "
                f"index {self.name} itself, whose shape is {list(self.shape)}"
            )
        if len(items) != len(self.shape):
            raise ExpressionError(
                f"tensor {self.name} has {len(self.shape)} dimensions but is indexed with {len(items)}: "
                f"{self.name}[{', '.join(map(str, items))}]"
            )
        indices = tuple(_as_affine(self._index(d, item)) for d, item in enumerate(items))
        data = data_nodes(indices)
        inside = (_clamped(i, n) if i in data else i for i, n in zip(indices, self.shape, strict=True))
        return self._element(tuple(inside), [])

    def _element(self, indices: tuple[Expr, ...], among: list[Expr]) -> Expr:
        """The load at `indices`, below one select for each choice in them; it is put to those `among` which is chosen.
        Choices that do not know of each other multiply; those between data are data."""
        data = data_nodes(indices)
        for node in postorder(i for i in indices if i not in data):
            made = None if node in data else choice(node)
            if made is not None:
                cond, a, b = made
                return select(cond, *(self._element(_replaced(indices, node, way), among) for way in (a, b)))
        if len(among) == MAX_CHOSEN:
            raise ExpressionError(
                f"tensor {self.name}: choices (te.min, te.max, te.abs, te.select) in an index are between more than "
                f"{MAX_CHOSEN} elements; compute a stage that makes some of them first, and index that"
            )
        load: TensorLoad = TensorLoad(self.name, indices, self.dtype, self)
        among.append(load)
        return load

    def seen_as(self, shape: tuple[int, ...]) -> Tensor:
        """The same elements, which the caller sees in this shape."""
        return Tensor(self.name, self.shape, self.dtype, self.op, self.index, None if shape == self.shape else shape)

    def _index(self, dim: int, item: Any) -> Expr:
        if isinstance(item, Expr):
            return item
        if isinstance(item, bool) or not hasattr(item, "__index__"):
            raise ExpressionError(
                f"index {dim} of tensor {self.name} is {item!r}, a {type(item).__name__}, but must be an axis, "
                "an integer or an integer expression: one element is read at a time"
            )
        return Const(whole(item), INDEX)

    def __iter__(self) -> Iterator[Expr]:
        raise ExpressionError(f"tensor {self.name} cannot be iterated over; index it with axes inside te.compute")

    def _refuse(self, *_: object) -> NoReturn:
        raise ExpressionError(
            f"tensor {self.name} is used as a whole in arithmetic; write its elements, {self._example()}, "
            "inside te.compute"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __abs__ = __float__ = __array_ufunc__ = __array_function__ = _refuse

    def _example(self) -> str:
        return f"{self.name}[{', '.join('ijklmnopqrstuvw'[: len(self.shape)]) or '()'}]"

    @property
    def public_shape(self) -> tuple[int, ...]:
        return self.shape if self.view is None else self.view

    @property
    def key(self) -> tuple[int, int]:
        """Identity of the data: views of a tensor share it."""
        return (id(self.op), self.index)

    @property
    def nbytes(self) -> int:
        """Size of the elements in bytes."""
        count = DTYPES[self.dtype].nbytes
        for extent in self.shape:
            count *= extent
        return count


@dataclass(frozen=True, eq=False, repr=False, init=False)
class TensorLoad(Load):
    """A `Load` that remembers which tensor its name means."""

    tensor: Tensor


def _replaced(indices: tuple[Expr, ...], old: Expr, way: Expr) -> tuple[Expr, ...]:
    return rewrite(indices, lambda node, new: way if node is old else new)


def data_nodes(roots: Iterable[Expr]) -> set[Expr]:
    """The nodes below `roots` that are computed from elements of tensors, not only chosen by a condition on them, or
    are not quasi-affine in the axes."""
    nodes: set[Expr] = set()
    for node in postorder(roots):
        operands = (node.a, node.b) if isinstance(node, Select) else node.children
        if any(x in nodes for x in operands) or not (_is_affine(node) or choice(node) is not None):
            nodes.add(node)
    return nodes


def _as_affine(index: Expr) -> Expr:
    """Return an index over axes without casts to integer types in which it fits: int32(i) + 1 becomes i + 1, which is
    known to be the next element after i, so that lanes are loaded as a vector."""
    wide = _without_casts(index) if any(isinstance(x, Cast) for x in postorder((index,))) else None
    return index if wide is None or data_nodes((wide,)) else wide


def _without_casts(e: Expr) -> Expr | None:
    """The same integer in the type of indices; None where it may have wrapped around, or is other arithmetic."""
    match e:
        case Const() if DTYPES[e.dtype].is_integer and not has_size(e):
            return Const(e.value, INDEX)
        case AxisVar() if not has_size(e.extent):
            return e
        case Cast(a=a):
            wide = _without_casts(a)
        case Binary(op="add" | "sub" | "mul" | "floordiv" | "mod" | "min" | "max" as op, a=a, b=b):
            x, y = _without_casts(a), _without_casts(b)
            wide = None if x is None or y is None else binary(op, x, y)
        case _:
            return None
    if wide is None or not DTYPES[e.dtype].is_integer:
        return None
    axes = {x: (0, x.extent - 1) for x in postorder((wide,)) if isinstance(x, AxisVar)}
    (low, high), (least, most) = integer_bounds(wide, axes), DTYPES[e.dtype].integer_range
    return wide if least <= low and high <= most else None


def _is_affine(node: Expr) -> bool:
    """Whether `node` keeps quasi-affine children quasi-affine. Without children others than axes and constants are a
    scalar input, or a reduction that is no stage yet."""
    match node:
        case Const() | Var():
            return node.dtype == INDEX
        case Binary(op="add" | "sub", dtype="int64"):
            return True
        case Binary(op="mul", a=a, b=b, dtype="int64"):
            return isinstance(a, Const) or isinstance(b, Const)
        case Binary(op="floordiv" | "mod", b=Const(value=v), dtype="int64"):
            return v > 0
        case Call(fn="neg", dtype="int64"):
            return True
    return False


def _clamped(index: Expr, extent: int) -> Expr:
    """An index that is data, within 0 .. extent - 1: clamped in its own type, where that reaches beyond it."""
    if not DTYPES[index.dtype].is_integer:
        return index
    if AS_GIVEN.get():
        return cast(index, INDEX)
    extent = FOLDS["max"](extent, 1)  # of a dimension without elements `check_op` refuses every index
    low, high = integer_bounds(index)
    index = binary("max", index, 0) if low < 0 else index
    return cast(binary("min", index, extent - 1) if high >= extent else index, INDEX)


def choice(node: Expr) -> tuple[Expr, Expr, Expr] | None:
    """(condition, what the integer `node` is where that holds, what else it is); None if `node` is no choice."""
    match node:
        case Select(cond=cond, a=a, b=b, dtype="int64"):
            return cond, a, b
        case Binary(op="min", a=a, b=b, dtype="int64"):
            return a <= b, a, b
        case Binary(op="max", a=a, b=b, dtype="int64"):
            return a >= b, a, b
        case Call(fn="abs", args=(a,), dtype="int64"):
            return a >= 0, a, -a
    return None


def zero(dtype: str) -> Const:
    """The constant 0 of a type."""
    return Const(DTYPES[dtype].numpy_dtype.type(0).item(), dtype)


def fresh_name(name: str, taken: set[str]) -> str:
    """`name`, with a number behind it where that is taken; what it answers is taken from then on."""
    candidate, count = name, 0
    while candidate in taken:
        count += 1
        candidate = f"{name}_{count}"
    taken.add(candidate)
    return candidate


def postorder(roots: Iterable[Expr]) -> list[Expr]:
    """Every distinct node below `roots` once, children before parents, in order of first use; depth is not limited."""
    done: dict[Expr, None] = {}
    stack = [(root, False) for root in reversed(tuple(roots))]
    while stack:
        node, expanded = stack.pop()
        if node in done:
            continue
        if expanded:
            done[node] = None
            continue
        stack.append((node, True))
        stack.extend((child, False) for child in reversed(node.children) if child not in done)
    return list(done)


def rewrite(roots: Iterable[Expr], fn: Callable[[Expr, Expr], Expr]) -> tuple[Expr, ...]:
    """`roots` with every distinct node replaced bottom up by fn(node, node over already rewritten children)."""
    exprs = tuple(roots)
    done: dict[Expr, Expr] = {}
    for node in postorder(exprs):
        new = rebuild(node, done.__getitem__) if node.children else node
        if isinstance(node, TensorLoad):
            new = TensorLoad(node.buffer, new.children, node.dtype, node.tensor)
        done[node] = fn(node, new)
    return tuple(done[root] for root in exprs)
