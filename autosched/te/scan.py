"""`scan`: stages that are computed along an axis, each position from those before it.

    Y = te.scan((h, w), lambda y, i, j: 0.75 * y[i - 1, j] + 0.25 * X[i, j], init=lambda i, j: X[0, j], axis=0)

A read of the state beyond the beginning is `init` there: y[i - 1, j] is select(i >= 1, Y[i - 1, j], X[0, j]).
The stage is a `ComputeOp` whose body reads its own tensors (`ir.recurrence`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from autosched.errors import ExpressionError
from autosched.ir.expr import Const, Expr, known_dtype
from autosched.ir.expr import select as ir_select
from autosched.ir.recurrence import steps_from
from autosched.ir.symbolic import is_known
from autosched.te.checks import check_shape
from autosched.te.compute import _axis_names, _name, _Stages
from autosched.te.reducers import Reduce, to_expr, typed_const
from autosched.te.tensor import AxisVar, PlaceholderOp, Tensor, TensorLoad, postorder, zero

_REMEDY = "read earlier positions along that axis alone, as y[i - 1, j]; backwards y[i + 1, j]"


def scan(
    shape: Any, fn: Callable[..., Any], init: Any = None, axis: int = 0, dtype: Any = None, name: str | None = None
) -> Any:
    """The tensor Y of `shape` with Y[i, j, ...] = fn(y, i, j, ...), where `y` is Y at earlier positions of one axis.

    fn: reads its state `y` at its own position but for the axis of the recurrence: y[i - 1, j], y[i - 2, j], ...; at
    y[i + 1, j], ... it goes backwards, from the last position to the first.
    init: what the state is beyond the beginning, at positions -1, -2, ... (backwards: extent, extent + 1, ...): a
    number, or a function of the position, as init=lambda i, j: X[0, j]. Without it such reads have to stand in a branch
    of te.select that is not taken.
    axis: the number of the axis of the recurrence; -1 is the last one.
    dtype: of the state; as that of `init` by default.

    Several states go together: where `init` (or what it returns, or `dtype`) is a tuple, so are `y`, what fn returns,
    and the tensors of the result. Raises ExpressionError for reads of the state that are not earlier.
    """
    label = _name(name, "scan")
    extents = check_shape(shape, f"scan {label}", "bool")
    along = _axis_number(axis, len(extents), label)
    if not callable(fn):
        raise ExpressionError(f"the function of scan {label} is {fn!r}, a {type(fn).__name__}; pass a lambda")
    names = _axis_names(partial(fn, None), len(extents), label)
    axes = tuple(AxisVar.fresh(n, e, False) for n, e in zip(names, extents, strict=True))
    start = _Start(label, init, axes, along)
    several, dtypes = start.types(dtype)
    states = tuple(
        ScanState(Tensor(f"{label}.y{n}" if several else f"{label}.y", extents, d, PlaceholderOp(label)), n, start)
        for n, d in enumerate(dtypes)
    )
    try:
        result = fn(states if several else states[0], *axes)
    except ExpressionError as error:
        raise ExpressionError(f"scan {label}: {error}") from error
    values = _values(label, result, several, states)
    return _stage(label, axes, values, states, several)


def _axis_number(axis: Any, rank: int, label: str) -> int:
    if not rank:
        raise ExpressionError(f"scan {label} has the shape () but needs an axis to go along")
    if isinstance(axis, bool) or not isinstance(axis, int) or not -rank <= axis < rank:
        raise ExpressionError(
            f"the axis of scan {label} is {axis!r} but its shape has {rank} dimensions; give a number from {-rank} to "
            f"{rank - 1}"
        )
    return axis % rank


@dataclass(frozen=True)
class _Start:
    """What the states of a scan are beyond the beginning."""

    label: str
    init: Any
    axes: tuple[AxisVar, ...]
    along: int

    def at(self, position: Sequence[Expr]) -> tuple[Any, ...] | None:
        """The value of each state at a position, numbers as they were given; None where there is no `init`."""
        given = self.init(*position) if callable(self.init) else self.init
        if given is None and callable(self.init):
            raise ExpressionError(f"the init of scan {self.label} returned nothing; it must return an expression")
        return None if given is None else tuple(given) if isinstance(given, (tuple, list)) else (given,)

    def types(self, dtype: Any) -> tuple[bool, tuple[str, ...]]:
        """Whether there are several states, and their types."""
        found = self.at(self.axes)
        wanted = None if dtype is None else tuple(map(known_dtype, dtype if _is_several(dtype) else (dtype,)))
        if found is None and wanted is None:
            raise ExpressionError(f"scan {self.label} has neither init nor dtype; give one, so that its type is known")
        if found is not None and wanted is not None and len(found) != len(wanted):
            raise ExpressionError(
                f"the init of scan {self.label} has {len(found)} values but its dtype has {len(wanted)}; give as many"
            )
        what = f"the init of scan {self.label}"
        given = wanted or tuple(to_expr(x, what).dtype for x in found or ())
        if not given:
            raise ExpressionError(f"scan {self.label} has no state; give init or dtype at least one value")
        is_tuple = _is_several(dtype) or _is_several(self.init) or len(given) > 1
        return is_tuple, given

    def value(self, n: int, dtype: str, position: Sequence[Expr]) -> Expr | None:
        """State `n` at a position beyond the beginning."""
        found = self.at(position)
        return None if found is None else _typed(found[n], dtype, f"the init of scan {self.label}")


def _typed(given: Any, dtype: str, what: str) -> Expr:
    """An expression of `dtype`, or a number as one."""
    value = to_expr(given, what)
    if not isinstance(given, Expr) and isinstance(value, Const):
        return typed_const(value.value, dtype)
    if value.dtype != dtype:
        raise ExpressionError(
            f"{what} is {value.dtype} but its state is {dtype}; cast one of them with te.cast, or give "
            f"dtype={value.dtype!r} or an init of that type"
        )
    return value


def _is_several(given: Any) -> bool:
    return isinstance(given, (tuple, list))


@dataclass(frozen=True, eq=False)
class ScanState:
    """A value of a scan at earlier positions, which the scan's function reads: y[i - 1, j]."""

    tensor: Tensor
    number: int
    start: _Start
    steps: set[int] = field(default_factory=set)  # along the axis, of all reads so far

    def __getitem__(self, indices: Any) -> Expr:
        """The state at an earlier position."""
        axes, along = self.start.axes, self.start.along
        items = indices if isinstance(indices, tuple) else (indices,)
        if len(items) != len(axes):
            written = ", ".join(map(str, items))
            raise ExpressionError(f"the state has {len(axes)} dimensions but is read at {len(items)}: y[{written}]")
        position = tuple(to_expr(x, "an index of the state") for x in items)
        steps = steps_from(axes, position)
        written = f"y[{', '.join(map(str, position))}]"
        for n, step in enumerate(steps):
            if n != along and step != 0:
                raise ExpressionError(
                    f"the state is read at {written}, whose index {n} is {position[n]} but must be {axes[n]}, since "
                    f"the recurrence is along the axis {axes[along]}; {_REMEDY}"
                )
        step = steps[along]
        if not step:
            raise ExpressionError(
                f"the state is read at {written}, whose index {along} is {position[along]}, which is "
                f"{'its own position' if step == 0 else 'no constant step'} along the axis {axes[along]}; {_REMEDY}"
            )
        self.steps.add(step)
        return self._read(step, position)

    def _read(self, step: int, position: tuple[Expr, ...]) -> Expr:
        axis = self.start.axes[self.start.along]
        first = self.start.value(self.number, self.tensor.dtype, position)
        if is_known("ge", abs(step), axis.extent):  # no position has one that far before it
            return zero(self.tensor.dtype) if first is None else first
        load: TensorLoad = TensorLoad(self.tensor.name, position, self.tensor.dtype, self.tensor)
        there = axis >= -step if step < 0 else axis < axis.extent - step
        return load if first is None else ir_select(there, load, first)


def _values(label: str, result: Any, several: bool, states: Sequence[ScanState]) -> tuple[Expr, ...]:
    """What the function of a scan returned, one value for each state."""
    if _is_several(result) != several or (several and len(result) != len(states)):
        got = f"a tuple of {len(result)} values" if _is_several(result) else "one value"
        wants = f"a tuple of {len(states)} values" if several else "one value"
        raise ExpressionError(
            f"the function of scan {label} returned {got} but must return {wants}, one for each state"
        )
    steps = {step for state in states for step in state.steps}
    if not steps:
        raise ExpressionError(f"the function of scan {label} does not read its state; use te.compute")
    if min(steps) < 0 < max(steps):
        raise ExpressionError(
            f"scan {label} reads its state both before ({min(steps)}) and after (+{max(steps)}) a position; it goes "
            "one way: read only earlier positions, or only later ones"
        )
    given = zip(states, result if several else (result,), strict=True)
    which = "value {} of scan {}" if several else "the value of scan {1}"
    return tuple(_typed(x, state.tensor.dtype, which.format(n, label)) for n, (state, x) in enumerate(given))


def _stage(
    label: str, axes: tuple[AxisVar, ...], values: tuple[Expr, ...], states: Sequence[ScanState], several: bool
) -> Any:
    own = {state.tensor.key: state.number for state in states}
    _check_reductions(label, values, own)
    reads = [node.tensor for node in postorder(values) if isinstance(node, TensorLoad)]
    stages = _Stages(label)
    if not any(tensor.key in own for tensor in reads):  # the axis is too short for any
        made = stages.build(label, axes, values)
        return made if several else made[0]
    made = stages.recurrence(label, axes, values, [state.tensor for state in states]).outputs
    return made if several else made[0]


def _check_reductions(label: str, values: Sequence[Expr], own: dict[tuple[int, int], int]) -> None:
    """Refuse reductions over the state: their points would not be on one line."""
    for node in postorder(values):
        if isinstance(node, Reduce):
            inside = postorder(node.reduction.sources)
            if any(isinstance(x, TensorLoad) and x.tensor.key in own for x in inside):
                raise ExpressionError(
                    f"scan {label} reduces over its state; lines along its axis must not depend on each other: reduce "
                    "in a te.compute that reads the scan"
                )
            _check_reductions(label, node.reduction.sources, own)
