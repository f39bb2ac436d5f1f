"""`placeholder`, `compute`, `reduce_axis` and the functions of expressions: how a user defines an operator.

`compute` traces the user's function once with symbolic axes. Reductions inside an expression are
hoisted into stages `<name>.red`, `<name>.red1`, ... over just the axes they depend on, so that every
stage is either elementwise or one reduction.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autosched.errors import ExpressionError
from autosched.ir.bitcast import bitcast as ir_bitcast
from autosched.ir.expr import INDEX, Const, Expr, Load, Var, call, known_dtype
from autosched.ir.expr import cast as ir_cast
from autosched.ir.expr import select as ir_select
from autosched.ir.size import has_size
from autosched.ir.stmt import Reducer
from autosched.ir.symbolic import is_known
from autosched.ir.visit import depth
from autosched.te.checks import check_op, check_shape
from autosched.te.reducer_laws import check_laws
from autosched.te.reducers import Reduce, Reduction, pair, to_expr, typed_const
from autosched.te.tensor import Axis, AxisVar, ComputeOp, PlaceholderOp, Tensor, TensorLoad, postorder, rewrite

_TERMS = 8  # of an ordered reduction, for each total that is written
_DEEPEST = 8  # nodes in one another, of a combination that is written out for that many terms
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


def placeholder(shape: Any, dtype: str = "float32", name: str | None = None) -> Tensor:
    """An input of `shape` (integers >= 0, () for a scalar)."""
    label = _name(name, "input")
    try:
        dtype = known_dtype(dtype)
    except ExpressionError as error:
        raise ExpressionError(f"placeholder {label}: {error}") from error
    return Tensor(label, check_shape(shape, f"placeholder {label}", dtype), dtype, PlaceholderOp(label))


def reduce_axis(extent: Any, name: str | None = None) -> AxisVar:
    """An axis 0 <= k < extent to reduce over; a range (0, extent) is accepted as well. Over no elements a reduction is
    the identity of its reducer."""
    label = _name(name, "r")
    if isinstance(extent, (tuple, list)):
        if len(extent) != 2 or extent[0] != 0 or isinstance(extent[0], bool):
            raise ExpressionError(
                f"the range of reduce axis {label} is {tuple(extent)} but must be an extent or (0, extent); "
                "add an offset to the index instead"
            )
        extent = extent[1]
    return AxisVar.fresh(label, check_shape((extent,), f"reduce axis {label}", "bool")[0], True)


def compute(shape: Any, fn: Callable[..., Any], name: str | None = None) -> Any:
    """The tensor T of `shape` with T[i, j, ...] = fn(i, j, ...); a tuple of tensors when `fn` returns a tuple.

    The axes take the names of `fn`'s arguments. Integers are int64, Python numbers take the dtype of the expression
    they meet.
    """
    label = _name(name, "compute")
    extents = check_shape(shape, f"stage {label}", "bool")
    axes = tuple(AxisVar.fresh(n, e, False) for n, e in zip(_axis_names(fn, len(extents), label), extents, strict=True))
    try:
        result = fn(*axes)
    except ExpressionError as error:
        raise ExpressionError(f"stage {label}: {error}") from error
    except RecursionError as error:
        raise ExpressionError(f"stage {label} nests far too many operations; reduce over a te.reduce_axis") from error
    several = isinstance(result, (tuple, list))
    values = tuple(_value(v, label) for v in (result if several else (result,)))
    if not values:
        raise ExpressionError(f"the function of stage {label} returned an empty tuple; return at least one expression")
    tensors = _Stages(label).build(label, axes, values)
    return tensors if several else tensors[0]


def view(tensor: Tensor, shape: Any) -> Tensor:
    """`tensor` as an output of another shape: the same elements in the same order, nothing is copied."""
    if not isinstance(tensor, Tensor):
        raise ExpressionError(f"te.view needs a tensor but got {tensor!r}, a {type(tensor).__name__}")
    new = check_shape(shape, f"the view of tensor {tensor.name}", tensor.dtype)
    if _count(new) != _count(tensor.shape):
        raise ExpressionError(
            f"the view {list(new)} of tensor {tensor.name} has {_count(new)} elements but its shape "
            f"{list(tensor.shape)} has {_count(tensor.shape)}; a view keeps the number of elements"
        )
    if isinstance(tensor.op, PlaceholderOp):
        raise ExpressionError(f"te.view is for outputs but {tensor.name} is a placeholder; declare it with that shape")
    return replace(tensor, view=None if new == tensor.shape else new)


def _count(shape: Sequence[int]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


def _name(name: str | None, default: str) -> str:
    if name is None:
        return default
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ExpressionError(
            f"the name {name!r} is not usable; a name is letters, digits, _ and . and begins with a letter or _"
        )
    return name


def _axis_names(fn: Any, rank: int, label: str) -> list[str]:
    if not callable(fn):
        raise ExpressionError(f"the function of stage {label} is {fn!r}, a {type(fn).__name__}; pass a lambda")
    try:
        parameters = inspect.signature(fn).parameters.values()
    except ValueError:  # some built-in callables have no signature
        return [f"i{d}" for d in range(rank)]
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    rest = [p for p in parameters if p.kind is p.VAR_POSITIONAL]
    if len(required) > rank or (len(positional) < rank and not rest):
        raise ExpressionError(
            f"the function of stage {label} takes {len(required)} arguments ({', '.join(p.name for p in required)}) "
            f"but the shape has {rank} dimensions; give it one argument per dimension"
        )
    named = [p.name for p in positional][:rank]
    return named + [f"{rest[0].name if len(rest[0].name) == 1 else 'i'}{d}" for d in range(len(named), rank)]


def _value(value: Any, label: str) -> Expr:
    if value is None:
        raise ExpressionError(f"the function of stage {label} returned nothing; it must return an expression")
    if isinstance(value, Tensor):
        raise ExpressionError(
            f"the function of stage {label} returned the tensor {value.name}; return one element, {value._example()}"
        )
    return to_expr(value, f"the function of stage {label}")


@dataclass
class _Stages:
    """Makes the stages of one `compute` call; `hoisted` keeps a reduction that occurs twice from being made twice."""

    label: str
    hoisted: dict[Reduction, tuple[tuple[Tensor, ...], tuple[Expr, ...]]] = field(default_factory=dict)

    def build(self, name: str, axes: tuple[AxisVar, ...], values: tuple[Expr, ...]) -> tuple[Tensor, ...]:
        """The stage `name` over `axes` after the stages it needs; of an elementwise tuple each value gets a stage."""
        top = values[0]
        if isinstance(top, Reduce) and not _is_recurrence(name, top.reduction) and values == top.reduction.parts:
            return self.stage(name, axes, top.reduction.sources, top.reduction).outputs
        if len(values) == 1:
            return self.stage(name, axes, values, None).outputs
        return tuple(self.stage(f"{name}.v{i}", axes, (value,), None).outputs[0] for i, value in enumerate(values))

    def stage(
        self, name: str, axes: tuple[AxisVar, ...], values: tuple[Expr, ...], reduction: Reduction | None
    ) -> ComputeOp:
        """The stage of `values`; what it reads of itself are loads of its own names."""
        reduce_axes = reduction.axes if reduction else ()
        known = (*axes, *reduce_axes)
        exprs = rewrite(values, lambda node, new: self._hoist(name, node, known) if isinstance(node, Reduce) else new)
        self._check_axes(name, postorder(exprs), known)
        loops = _named_axes(known)
        body = rewrite(exprs, lambda node, new: loops[node] if isinstance(node, AxisVar) else new)
        inputs = {n.tensor.key: n.tensor for n in postorder(body) if isinstance(n, TensorLoad)}
        op = ComputeOp(
            name,
            tuple(Axis(loops[a], a.extent) for a in axes),
            tuple(Axis(loops[a], a.extent, True) for a in reduce_axes),
            body,
            reduction.reducer if reduction else None,
            tuple(inputs.values()),
        )
        check_op(op)
        if reduction is not None and not reduction.is_ordered:
            check_laws(reduction.reducer, name)
        return op

    def _hoist(self, name: str, node: Reduce, known: tuple[AxisVar, ...]) -> Expr:
        """The load that replaces `node`; its reduction becomes a stage over those axes of `known` that it uses."""
        reduction = node.reduction
        if reduction not in self.hoisted:
            used = _free_axes(reduction)
            self._check_axes(name, used, known)
            axes = tuple(a for a in known if a in used)
            label = f"{self.label}.red{len(self.hoisted) or ''}"
            self.hoisted[reduction] = ((), axes)  # takes its number before the reductions inside take theirs
            if _is_recurrence(name, reduction):
                self.hoisted[reduction] = self._in_order(label, axes, reduction)
            else:
                self.hoisted[reduction] = (self.stage(label, axes, reduction.sources, reduction).outputs, axes)
        tensors, indices = self.hoisted[reduction]
        self._check_axes(name, indices, known)
        return tensors[node.index][indices]

    def _in_order(
        self, name: str, axes: tuple[AxisVar, ...], reduction: Reduction
    ) -> tuple[tuple[Tensor, ...], tuple[Expr, ...]]:
        """The totals of a reduction whose terms are combined in order, as a recurrence, and the indices of the last.

        Its axis is the last one where a term is read along it in memory, as the rows of a matrix are. Otherwise it is
        the first, and each of its positions combines several terms, so that fewer totals are written.
        """
        along, terms = self._terms_in_order(name, axes, reduction)
        reducer = reduction.reducer
        reads = [node for node in postorder(terms) if isinstance(node, TensorLoad) and node.indices]
        place = len(axes) if any(along in postorder((read.indices[-1],)) for read in reads) else 0
        run = _TERMS if place == 0 and _may_be_chained(reducer, along.extent) else 1
        steps, rest = divmod(along.extent, run)
        step = AxisVar.fresh(along.name, steps, True)

        def combined(totals: tuple[Expr, ...], position: Any) -> tuple[Expr, ...]:
            term = rewrite(terms, lambda node, new: to_expr(position, name) if node is along else new)
            operands: dict[Expr, Expr] = dict(zip((*reducer.lhs, *reducer.rhs), (*totals, *term), strict=True))
            return rewrite(reducer.results, lambda node, new: operands.get(node, new))

        def at(position: Expr) -> tuple[Expr, ...]:
            return (*axes[:place], position, *axes[place:])

        start: tuple[Expr, ...] = reducer.identity
        for n in range(rest):
            start = combined(start, n)
        domain = (*axes[:place], step, *axes[place:])
        shape = tuple(a.extent for a in domain)
        states = [Tensor(f"{name}.y{n}", shape, t.dtype, PlaceholderOp(name)) for n, t in enumerate(terms)]
        is_single = is_known("le", steps, 1)
        totals = start
        if not is_single:
            before = (y[at(step - 1)] for y in states)
            totals = tuple(ir_select(step >= 1, y, x) for y, x in zip(before, start, strict=True))
        for n in range(run):
            totals = combined(totals, step * run + (rest + n))
        if is_single:
            tensors = tuple(self.stage(f"{name}.v{n}", domain, (x,), None).outputs[0] for n, x in enumerate(totals))
        else:
            tensors = self.recurrence(name, domain, totals, states).outputs
        return tensors, at(Const(steps - 1, INDEX))

    def _terms_in_order(
        self, name: str, axes: tuple[AxisVar, ...], reduction: Reduction
    ) -> tuple[AxisVar, tuple[Expr, ...]]:
        """One axis for all of a reduction's, the last of them fastest, and the terms along it."""
        if len(reduction.axes) == 1 and not any(isinstance(x, Reduce) for x in postorder(reduction.sources)):
            (axis,) = reduction.axes
            return axis, reduction.sources
        domain = (*reduction.axes, *axes)
        stages = [self.stage(f"{name}.term{n or ''}", domain, (x,), None) for n, x in enumerate(reduction.sources)]
        along = AxisVar.fresh(reduction.axes[-1].name, _count([a.extent for a in reduction.axes]), True)
        position: list[Expr] = []
        rest: Expr = along
        for axis in reversed(reduction.axes):
            position.insert(0, rest % axis.extent)
            rest = rest // axis.extent
        return along, tuple(stage.outputs[0][(*position, *axes)] for stage in stages)

    def recurrence(
        self, label: str, axes: tuple[AxisVar, ...], values: tuple[Expr, ...], states: Sequence[Tensor]
    ) -> ComputeOp:
        """The stage of `values`, one for each of the `states`, which stand for what the stage reads of itself."""
        own = {state.key: number for number, state in enumerate(states)}
        reads = {node.tensor.name for node in postorder(values) if isinstance(node, TensorLoad)}
        name, count = label, 0
        while reads & {name, *(f"{name}.v{n}" for n in own.values())}:  # names tell its own reads, until it is linked
            count += 1
            name = f"{label}_{count}"
        names = [f"{name}.v{n}" for n in own.values()] if len(own) > 1 else [name]

        def own_read(node: Expr, new: Expr) -> Expr:
            if not isinstance(node, TensorLoad) or node.tensor.key not in own:
                return new
            load: Load = Load(names[own[node.tensor.key]], new.children, node.dtype)
            return load

        return self.stage(name, axes, rewrite(values, own_read), None)

    def _check_axes(self, name: str, nodes: Sequence[Expr], known: tuple[AxisVar, ...]) -> None:
        for node in nodes:
            if not isinstance(node, Var) or node in known:
                continue
            if isinstance(node, AxisVar) and node.reduce:
                raise ExpressionError(
                    f"stage {name} uses the reduce axis {node.name} outside of a reduction over it; "
                    f"wrap the expression in te.sum(..., axis={node.name}) or another reducer"
                )
            raise ExpressionError(f"stage {name} uses the axis {node.name}, which belongs to another stage")


def _may_be_chained(reducer: Reducer, count: int) -> bool:
    """Whether so many terms are enough for several in one expression, which has each total before once and is not deep:
    with it twice, as in argmax, every term would double the expression."""
    uses = [sum(node is x for result in reducer.results for node in _with_repeats(result)) for x in reducer.lhs]
    is_shallow = all(depth(result) <= _DEEPEST for result in reducer.results)
    return not has_size(count) and count >= 2 * _TERMS and is_shallow and max(uses) <= 1


def _with_repeats(expr: Expr) -> Iterator[Expr]:
    """The nodes of a shallow expression as often as they occur."""
    yield expr
    for child in expr.children:
        yield from _with_repeats(child)


def _is_recurrence(stage: str, reduction: Reduction) -> bool:
    """Whether its terms are combined in order. Refuses sizes by which there may be none, or some."""
    count = _count([a.extent for a in reduction.axes])
    if not reduction.is_ordered or is_known("le", count, 0):
        return False
    if not is_known("ge", count, 1):
        raise ExpressionError(
            f"stage {stage}: reducer {reduction.reducer.name} is ordered but the extent of its axes, {count}, may be "
            "0; give te.size a range from 1 on"
        )
    return True


def _free_axes(reduction: Reduction) -> tuple[AxisVar, ...]:
    """The axes a reduction depends on, those of reductions inside it included, in order of first use."""
    axes: dict[AxisVar, None] = {}
    for node in postorder(reduction.sources):
        if isinstance(node, Reduce):
            axes.update(dict.fromkeys(_free_axes(node.reduction)))
        elif isinstance(node, AxisVar):
            axes[node] = None
    return tuple(a for a in axes if a not in reduction.axes)


def _named_axes(axes: tuple[AxisVar, ...]) -> dict[AxisVar, Var]:
    """A variable for each axis; a name that is taken gets a number: k, k_1, k_2."""
    taken: set[str] = set()
    table: dict[AxisVar, Var] = {}
    for axis in axes:
        name, count = axis.name, 0
        while name in taken:
            count += 1
            name = f"{axis.name}_{count}"
        taken.add(name)
        table[axis] = Var(name, INDEX)
    return table


def const(value: Any, dtype: str | None = None) -> Expr:
    """A constant; without `dtype` an int is int64, a float is float32."""
    node = to_expr(value, "te.const", truth=True)
    return node if dtype is None else typed_const(value, dtype)


def cast(value: Any, dtype: str) -> Expr:
    """`value` converted to `dtype`; a float becomes an integer by cutting off the fraction."""
    return ir_cast(to_expr(value, "te.cast"), dtype)


def bitcast(value: Any, dtype: str) -> Expr:
    """The number of `dtype` whose bits are those of `value`, which is of the same size."""
    return ir_bitcast(to_expr(value, "te.bitcast"), dtype)


def select(cond: Any, a: Any, b: Any) -> Expr:
    """`a` where `cond` holds, else `b`. The branch not taken is not evaluated: it may be out of bounds."""
    x, y = to_expr(a, "te.select", truth=True), to_expr(b, "te.select", truth=True)
    # Of an expression and a number the number takes the dtype of the expression.
    weak = isinstance(a, Expr) != isinstance(b, Expr) and not isinstance(a, bool) and not isinstance(b, bool)
    return ir_select(to_expr(cond, "te.select"), a if weak else x, b if weak else y)


def if_then_else(cond: Any, a: Any, b: Any) -> Expr:
    """The same as `select`."""
    return select(cond, a, b)


def _unary(fn: str) -> Callable[[Any], Expr]:
    def function(x: Any) -> Expr:
        return call(fn, to_expr(x, f"te.{fn}"))

    function.__name__ = function.__qualname__ = fn
    function.__doc__ = f"{fn}, elementwise."
    return function


exp = _unary("exp")
log = _unary("log")
tanh = _unary("tanh")
sqrt = _unary("sqrt")
rsqrt = _unary("rsqrt")
erf = _unary("erf")
floor = _unary("floor")
ceil = _unary("ceil")
round = _unary("round")
abs = _unary("abs")
sigmoid = _unary("sigmoid")
sin = _unary("sin")
cos = _unary("cos")


def logical_not(cond: Any) -> Expr:
    """Whether `cond` does not hold."""
    return call("not", to_expr(cond, "te.logical_not"))


def pow(x: Any, y: Any) -> Expr:
    """x to the power y."""
    return pair("pow", x, y)


def minimum(a: Any, b: Any) -> Expr:
    """The smaller of two values."""
    return pair("min", a, b)


def maximum(a: Any, b: Any) -> Expr:
    """The greater of two values."""
    return pair("max", a, b)


def floordiv(a: Any, b: Any) -> Expr:
    """Integer division rounding towards minus infinity."""
    return pair("floordiv", a, b)


def mod(a: Any, b: Any) -> Expr:
    """The remainder of `floordiv`; it has the sign of `b`."""
    return pair("mod", a, b)


def fmod(a: Any, b: Any) -> Expr:
    """The exact remainder of a / b of floats; it has the sign of `a`, as C's."""
    return pair("fmod", a, b)


def equal(a: Any, b: Any) -> Expr:
    """Elementwise ==."""
    return pair("eq", a, b)


def not_equal(a: Any, b: Any) -> Expr:
    """Elementwise !=."""
    return pair("ne", a, b)


__all__ = [
    "abs", "cast", "ceil", "compute", "const", "cos", "equal", "erf", "exp", "floor", "floordiv", "fmod",
    "if_then_else", "log", "logical_not", "maximum", "minimum", "mod", "not_equal", "placeholder", "pow",
    "reduce_axis", "round", "rsqrt", "select", "sigmoid", "sin", "sqrt", "tanh", "view",
]  # fmt: skip
