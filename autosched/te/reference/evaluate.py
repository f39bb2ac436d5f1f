"""The reference: what a DAG computes, in NumPy, with a bound on what a correct kernel may differ by.

Independent of lowering and code generation. Floats are evaluated in float64, integers exactly in their
own dtype with wrap-around. The bound is that of any kernel that computes in the declared dtypes, in any order of
summation, with or without fused multiply-adds, and with exp, tanh, erf and log of at most 4 ulp; the rules
stand in `reference_rules`. A sum of n terms t has the bound sum of the terms' errors + 2 n u sum |t|, twice
Higham's gamma_n, and none at all where all terms are integers and sum |t| is exactly representable: data
of small integers therefore checks sums of products exactly. Instructions that multiply floats of 8 bits lose more.

A reducer of the user's own that only selects (argmax and its like) is combined in a tree; one that rounds
is combined in order, with its errors doubled for other orders. Where a tuple reducer depends on which
operand comes first (a tie), both answers are within the bound, as are near-ties within the values' errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TypeAlias

import numpy as np

from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Binary, Call, Const, Expr, Load, Select
from autosched.ir.recurrence import Recurrence
from autosched.ir.stmt import Reducer
from autosched.te.compute import placeholder
from autosched.te.dag import ComputeDAG
from autosched.te.reference import blas
from autosched.te.reference import error_bounds as rules
from autosched.te.reference.blocks import DomainBox
from autosched.te.reference.error_bounds import Array, Bounded
from autosched.te.reference.parallel import for_each
from autosched.te.reference.scans import Scan, find_scan
from autosched.te.rewrites.winograd import TILES, match_stage, transformed
from autosched.te.tensor import ComputeOp, Tensor, postorder

BLOCK = 1 << 18  # points evaluated at a time: a temporary of 2 MB stays in cache
StageValues: TypeAlias = Callable[[ComputeOp, Mapping[str, Bounded]], Sequence[Array]]


@dataclass(frozen=True)
class Reference:
    """`value` (float64, or the integer type) in the shape the caller sees; |kernel - value| <= bound is correct.

    Where `value` is NaN a NaN is expected, where it is infinite the same infinity: see `within`.
    """

    value: Array
    bound: Array


def within(reference: Reference, got: Array) -> Array:
    """Elementwise: whether `got` is a correct result."""
    value = reference.value
    if value.dtype.kind != "f":
        exact = np.asarray(got == value)
        if not reference.bound.any():
            return exact
        distance = np.abs(got.astype("float64") - value.astype("float64"))
        return np.asarray(exact | (distance <= reference.bound))
    actual = got.astype("float64")
    with np.errstate(all="ignore"):
        near = np.abs(actual - value) <= reference.bound
    anything = np.isinf(reference.bound)
    return np.asarray(near | (actual == value) | (np.isnan(actual) & np.isnan(value)) | anything)


def evaluate(dag: ComputeDAG, inputs: Mapping[str, Array], tile: int = 0) -> tuple[Reference, ...]:
    """The outputs of `dag` for `inputs`, arrays of the placeholders' shapes and dtypes by name. Floats may be given in
    float64, whatever their dtype is: they are taken as they are.

    The bound is that of kernels in which convolutions may be computed by Winograd's transforms with tiles of up to
    `tile` outputs along a dimension; 0: of none. The value is the direct form's in any case.
    """
    tensors = {t.name: _input(t, inputs[t.name]) for t in dag.inputs}
    _run(dag, tensors, tile)
    return tuple(_seen(tensors[t.name], t) for t in dag.outputs)


def evaluate_exactly(dag: ComputeDAG, inputs: Mapping[str, Array]) -> tuple[Array, ...]:
    """The values that `evaluate` gives, without their bounds: those of products take as long as the values again."""
    return evaluate_through(dag, inputs, _exact_values)


def evaluate_through(dag: ComputeDAG, inputs: Mapping[str, Array], values: StageValues) -> tuple[Array, ...]:
    """The outputs, in the shapes that the caller sees, where `values` gives what a stage computes."""
    tensors = {t.name: _input(t, inputs[t.name]) for t in dag.inputs}
    with np.errstate(all="ignore"):
        for op, unused in zip(dag.stages, _unused_after(dag), strict=True):
            for tensor, value in zip(op.outputs, values(op, tensors), strict=True):
                tensors[tensor.name] = Bounded(value)
            for name in unused:
                del tensors[name]
    return tuple(tensors[t.name].value.reshape(t.public_shape) for t in dag.outputs)


def _exact_values(op: ComputeOp, tensors: Mapping[str, Bounded]) -> list[Array]:
    product = product_of(op, tensors)
    if product is not None:
        return [blas.values(product, op.shape, op.body[0].dtype)]
    return [x.value for x in evaluate_stage(op, tensors)]


def _unused_after(dag: ComputeDAG) -> list[list[str]]:
    """For each stage the tensors that nothing needs after it."""
    wanted = {t.name for t in dag.outputs}
    last = {t.name: i for i, op in enumerate(dag.stages) for t in op.inputs}
    known = {t.name for t in dag.inputs}
    unused_after = []
    for i, op in enumerate(dag.stages):
        known |= {t.name for t in op.outputs}
        unused = [name for name in known if last.get(name, i) <= i and name not in wanted]
        known.difference_update(unused)
        unused_after.append(unused)
    return unused_after


def _run(dag: ComputeDAG, tensors: dict[str, Bounded], tile: int = 0) -> None:
    """Adds the outputs of `dag` to `tensors`, which has its inputs; what is not needed any more goes."""
    with np.errstate(all="ignore"):
        for op, unused in zip(dag.stages, _unused_after(dag), strict=True):
            errors = [_winograd_error(op, tensors, m) for m in TILES if m <= tile]
            for tensor, result in zip(op.outputs, evaluate_stage(op, tensors), strict=True):
                tensors[tensor.name] = _widened(result, errors)
            for name in unused:
                del tensors[name]


def _winograd_error(op: ComputeOp, tensors: Mapping[str, Bounded], m: int) -> Array | None:
    """The error of the stage computed with Winograd's tiles of m outputs; None where it is no such convolution."""
    convolution = match_stage(op)
    if convolution is None:
        return None
    data, weights = (next(t for t in op.inputs if t.name == x.buffer) for x in (convolution.data, convolution.weights))
    result = transformed(convolution, m, _as_input(data), _as_input(weights), op.name, op.axes)
    values = {t.name: tensors[t.name] for t in (data, weights)}
    _run(ComputeDAG(result), values)
    return values[op.name].err


def _as_input(tensor: Tensor) -> Tensor:
    return placeholder(tensor.shape, tensor.dtype, tensor.name)


def _widened(result: Bounded, errors: Sequence[Array | None]) -> Bounded:
    for err in errors:
        if err is not None:
            result = Bounded(result.value, np.maximum(rules.error_of(result), err))
    return result


def _input(tensor: Tensor, array: Array) -> Bounded:
    working = rules.working_type(tensor.dtype)
    if array.shape != tensor.shape or array.dtype not in (DTYPES[tensor.dtype].numpy_dtype, working):
        raise ValueError(
            f"input {tensor.name} must be {tensor.dtype}{list(tensor.shape)} but is {array.dtype}{list(array.shape)}"
        )
    return Bounded(np.asarray(array, dtype=working, order="C"))


def _seen(result: Bounded, tensor: Tensor) -> Reference:
    bound = np.zeros(tensor.shape) if result.err is None else result.err
    return Reference(result.value.reshape(tensor.public_shape), bound.reshape(tensor.public_shape))


def evaluate_stage(op: ComputeOp, tensors: Mapping[str, Bounded]) -> tuple[Bounded, ...]:
    if not op.has_points:
        return tuple(Bounded(np.full(op.shape, rules.constant(c.value, c.dtype).value)) for c in op.without_points)
    if op.recurrence is not None:
        return _along(op, op.recurrence, tensors)
    product = product_of(op, tensors)
    if product is not None:
        cut = rules.cut_off(op.body[0], product.terms)
        return (blas.evaluate(product, op.shape, op.body[0].dtype, cut),)
    scan = find_scan(op)
    if scan is not None and op.reducer is not None and (kind := kind_of(op.reducer)) in _ACCUMULATED:
        (term,) = evaluate_stage(scan.term_stage(op), tensors)
        return (prefix_scan(op, scan, term, kind),)
    out = _Output(op)

    def compute(box: Mapping[str, tuple[int, int]]) -> None:
        with np.errstate(all="ignore"):  # which each thread has for itself
            if op.reducer is None:
                block = DomainBox(box, tensors)
                out.put(box, tuple(block.eval(b) for b in op.body))
            else:
                out.put(box, _reduce(op, op.reducer, box, tensors))

    for_each(compute, list(domain_boxes([(a.name, a.extent) for a in op.axes], BLOCK)))
    return out.done()


def _along(op: ComputeOp, recurrence: Recurrence, tensors: Mapping[str, Bounded]) -> tuple[Bounded, ...]:
    """The values of a recurrence, one position after the other; so errors grow along its axis. What does not depend on
    earlier positions is computed for many of them at once."""
    out, dim, axis = _Output(op), recurrence.axis, op.axes[recurrence.axis]
    for array in out.values:
        array.fill(0)  # what is read before the beginning, and not used
    free = _free_of(op.body, {t.name for t in op.outputs})

    for lines in domain_boxes([(a.name, 1 if a is axis else a.extent) for a in op.axes], BLOCK):
        several = max(1, BLOCK // math.prod(hi - lo for lo, hi in lines.values()))
        starts = range(0, axis.extent, several)
        for start in reversed(starts) if recurrence.backwards else starts:
            positions = range(start, min(start + several, axis.extent))
            with np.errstate(all="ignore"):
                known = DomainBox({**lines, axis.name: (start, positions.stop)}, tensors)
                values = {e: known.eval(e) for e in free}
                for at in reversed(positions) if recurrence.backwards else positions:
                    own = {t.name: Bounded(v, e) for t, v, e in zip(op.outputs, out.values, out.errors, strict=True)}
                    here = {e: _at_position(x, dim, at - start) for e, x in values.items()}
                    box = {**lines, axis.name: (at, at + 1)}
                    out.put(box, tuple(map(DomainBox(box, {**tensors, **own}, memo=here).eval, op.body)))
    return out.done()


def _free_of(roots: Sequence[Expr], buffers: Collection[str]) -> list[Expr]:
    """The largest expressions below `roots` that read none of these buffers, without constants and axes."""
    reading: set[Expr] = set()
    nodes = postorder(roots)
    for node in nodes:
        if (isinstance(node, Load) and node.buffer in buffers) or any(c in reading for c in node.children):
            reading.add(node)
    below = [*roots, *(c for node in nodes if node in reading and not isinstance(node, Load) for c in node.children)]
    return [e for e in dict.fromkeys(below) if e not in reading and e.children]


def _at_position(x: Bounded, dim: int, at: int) -> Bounded:
    """The values at one position along a dimension."""

    def of(array: Array) -> Array:
        is_same = array.ndim == 0 or array.shape[dim] == 1
        return array if is_same else array[(slice(None),) * dim + (slice(at, at + 1),)]

    return Bounded(of(x.value), None if x.err is None else of(x.err))


def product_of(op: ComputeOp, tensors: Mapping[str, Bounded]) -> blas.Contraction | None:
    """The stage as sums of products that are better left to BLAS."""
    if op.reducer is None or not op.has_points or kind_of(op.reducer) != "sum":
        return None
    extents = {axis.name: axis.extent for axis in (*op.axes, *op.reduce_axes)}
    contraction = blas.match(op.body[0], extents, len(op.axes), tensors)
    return contraction if contraction is not None and (contraction.worthwhile or math.prod(op.shape) < 4096) else None


_ACCUMULATED = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def prefix_scan(op: ComputeOp, scan: Scan, term: Bounded, kind: str) -> Bounded:
    """All results of a prefix scan, each from the one before. `term`: over the axes of `op`, with k instead of i."""
    dtype, n, places = op.body[0].dtype, term.value.shape[scan.i], np.arange(op.axes[scan.i].extent)
    taken = np.clip(n - places - scan.strict if scan.backwards else places + (not scan.strict), 0, n)

    def up_to(array: Array, function: np.ufunc, start: bool | int | float) -> Array:
        """Of the elements that each place takes, in the order that they join."""
        ordered = np.flip(array, scan.i) if scan.backwards else array
        before = np.full_like(np.take(array, [0], scan.i), start)
        results = function.accumulate(ordered, scan.i, dtype=array.dtype)
        return np.take(np.concatenate([before, results], scan.i), taken, scan.i)

    assert op.reducer is not None
    value = up_to(term.value, _ACCUMULATED[kind], op.reducer.identity[0].value)
    err = None if term.err is None else np.broadcast_to(term.err, term.value.shape)
    if kind != "sum":
        return Bounded(value, None if err is None else up_to(err, np.maximum, 0))
    err = None if err is None else up_to(err, np.add, 0)
    if not DTYPES[dtype].is_float:
        return Bounded(value, err)
    size = up_to(np.abs(term.value), np.add, 0)
    if err is None and rules.integral(term.value) and float(size.max()) <= DTYPES[dtype].largest_exact_integer:
        return Bounded(value)
    terms = np.expand_dims(taken, tuple(range(1, value.ndim - scan.i)))
    own = size * (2.0 * terms * rules.unit(dtype)) + terms * DTYPES[dtype].underflow
    return Bounded(value, rules.tamed(value, own if err is None else own + err, dtype, err))


class _Output:
    """The arrays of a stage's tensors while they are filled block by block; errors are stored once there are some."""

    def __init__(self, op: ComputeOp) -> None:
        self.shape = op.shape
        self.values = [np.empty(op.shape, rules.working_type(b.dtype)) for b in op.body]
        self.errors: list[Array | None] = [None] * len(op.body)
        self._lock = Lock()

    def put(self, box: Mapping[str, tuple[int, int]], results: Sequence[Bounded]) -> None:
        place = tuple(slice(lo, hi) for lo, hi in box.values())
        for i, val in enumerate(results):
            self.values[i][place] = val.value
            if val.err is not None:
                self._errors(i)[place] = val.err

    def _errors(self, i: int) -> Array:
        with self._lock:
            errors = self.errors[i]
            if errors is None:
                errors = self.errors[i] = np.zeros(self.shape)
            return errors

    def done(self) -> tuple[Bounded, ...]:
        return tuple(
            Bounded(value, err if err is not None and err.any() else None)
            for value, err in zip(self.values, self.errors, strict=True)
        )


def domain_boxes(axes: Sequence[tuple[str, int]], limit: int) -> Iterator[dict[str, tuple[int, int]]]:
    """The domain of named axes in boxes of at most `limit` points."""
    for box in blas.ranges_within([(i, extent) for i, (_, extent) in enumerate(axes)], limit):
        yield {axes[i][0]: (lo, hi) for i, lo, hi in box}


def kind_of(reducer: Reducer) -> str:
    """sum, max, min by structure; otherwise choose (no operand is changed, only chosen) or general."""
    if len(reducer.results) == 1:
        (x,), (y,), result, identity = reducer.lhs, reducer.rhs, reducer.results[0], reducer.identity[0].value
        if isinstance(result, Binary) and {result.a, result.b} == {x, y}:
            if result.op == "add" and identity == 0:
                return "sum"
            if result.op in ("max", "min"):
                return result.op
    chosen = all(_chooses(e) for e in reducer.results)
    return "choose" if chosen else "general"


def _chooses(expr: Expr) -> bool:
    """Whether no node but a comparison's operand computes a new number."""
    harmless = ("min", "max", "and", "or", "eq", "ne", "lt", "le", "gt", "ge")
    return all(
        isinstance(n, (Select, Const))
        or not n.children
        or (isinstance(n, Binary) and n.op in harmless)
        or (isinstance(n, Call) and n.fn == "not")
        for n in postorder((expr,))
    )


def _reduce(
    op: ComputeOp, reducer: Reducer, box: Mapping[str, tuple[int, int]], tensors: Mapping[str, Bounded]
) -> tuple[Bounded, ...]:
    """The reduction of `op` over a box of its space."""
    points = math.prod(hi - lo for lo, hi in box.values())
    space = tuple(hi - lo for lo, hi in box.values())
    kind = kind_of(reducer)
    limit = max(1, BLOCK // points)
    parts = term_parts(op, box, tensors, 1 if kind == "general" else limit)
    if kind == "sum":
        return (_sum(parts, space, op),)
    if kind in ("max", "min"):
        return (_peak(parts, space, kind),)
    total = tuple(Bounded(np.broadcast_to(rules.constant(c.value, c.dtype).value, space)) for c in reducer.identity)
    if kind == "general":
        parts = _in_any_order(parts, _whole(op, term_parts(op, box, tensors, limit)))
    for part in parts:
        total = _combine(reducer, total, _tree(reducer, part))
    if kind == "general":
        return tuple(Bounded(v.value, None if v.err is None else 2.0 * v.err) for v in total)
    return total


def _in_any_order(parts: Iterator[tuple[Bounded, ...]], whole: Sequence[bool]) -> Iterator[tuple[Bounded, ...]]:
    """The operands with every rounding counted of what they are combined with, but for `whole` ones: that in this order
    some numbers happen to add up exactly says nothing of a kernel's order."""
    for part in parts:
        yield tuple(
            x if w or x.err is not None else Bounded(x.value, np.zeros(x.value.shape))
            for x, w in zip(part, whole, strict=True)
        )


def _whole(op: ComputeOp, parts: Iterator[tuple[Bounded, ...]]) -> list[bool]:
    """Of each operand whether all its numbers are integers, which are exact in any order."""
    is_whole = [True] * len(op.body)
    for part in parts:
        known = zip(is_whole, part, op.body, strict=True)
        is_whole = [w and (not DTYPES[b.dtype].is_float or rules.integral(x.value)) for w, x, b in known]
        if not any(is_whole):
            break
    return is_whole


def term_parts(
    op: ComputeOp, box: Mapping[str, tuple[int, int]], tensors: Mapping[str, Bounded], limit: int
) -> Iterator[tuple[Bounded, ...]]:
    """The operands of the reduction over parts of the reduce axes, as arrays [space..., points]."""
    for part in domain_boxes([(a.name, a.extent) for a in op.reduce_axes], limit):
        block = DomainBox({**box, **part}, tensors)
        shape = block.shape
        flat = (*shape[: len(box)], math.prod(shape[len(box) :]))
        yield tuple(_flat(block.eval(b), shape, flat) for b in op.body)


def _flat(x: Bounded, shape: tuple[int, ...], flat: tuple[int, ...]) -> Bounded:
    err = None if x.err is None else np.broadcast_to(x.err, shape).reshape(flat)
    return Bounded(np.broadcast_to(x.value, shape).reshape(flat), err)


def _sum(parts: Iterator[tuple[Bounded, ...]], space: tuple[int, ...], op: ComputeOp) -> Bounded:
    dtype = op.body[0].dtype
    total = np.zeros(space, rules.working_type(dtype))
    if not DTYPES[dtype].is_float:
        errors: Array | None = None
        for (part,) in parts:
            total += _over(np.add, part.value, dtype)
            errors = rules.errors(errors, None if part.err is None else _over(np.add, part.err))
        return Bounded(total, errors)
    size, err, exact = np.zeros(space), np.zeros(space), True
    for (part,) in parts:
        total += _over(np.add, part.value)
        size += _over(np.add, np.abs(part.value))
        exact = exact and part.err is None and rules.integral(part.value)
        if part.err is not None:
            err += _over(np.add, part.err)
    terms = math.prod(a.extent for a in op.reduce_axes)
    cut = rules.cut_off(op.body[0], terms)
    if exact and float(size.max(initial=0.0)) <= rules.exact_up_to(dtype, cut):
        return Bounded(total)
    own = size * (2.0 * terms * rules.unit(dtype) + cut) + terms * DTYPES[dtype].underflow
    return Bounded(total, rules.tamed(total, err + own, dtype, err))


def _over(function: np.ufunc, array: Array, dtype: str | None = None) -> Array:
    """The last axis reduced; one point alone is itself, which NumPy takes as long for as for ten."""
    if array.shape[-1] == 1:
        return array[..., 0] if dtype is None else array[..., 0].astype(dtype)
    reduced: Array = function.reduce(array, axis=-1, dtype=dtype)
    return reduced


def _peak(parts: Iterator[tuple[Bounded, ...]], space: tuple[int, ...], kind: str) -> Bounded:
    """max or min: 1-Lipschitz, so the greatest error of any operand bounds the result's."""
    total: Array | None = None
    err: Array | None = None
    for (part,) in parts:
        peak_of_part = _over(_ACCUMULATED[kind], part.value)
        total = peak_of_part if total is None else _ACCUMULATED[kind](total, peak_of_part)
        if part.err is not None:
            worst = _over(np.maximum, part.err)
            err = worst if err is None else np.maximum(err, worst)
    assert total is not None, "a reduction has at least one point"
    return Bounded(total, err)


def _tree(reducer: Reducer, part: tuple[Bounded, ...]) -> tuple[Bounded, ...]:
    """The last axis combined in halves until one point is left."""
    while (count := part[0].value.shape[-1]) > 1:
        half = count // 2
        pairs = _combine(reducer, _cut(part, 0, half), _cut(part, half, 2 * half))
        if count % 2:
            rest = _cut(part, 2 * half, count)
            pairs = tuple(_joined(p, r) for p, r in zip(pairs, rest, strict=True))
        part = pairs
    return tuple(Bounded(v.value[..., 0], None if v.err is None else v.err[..., 0]) for v in part)


def _cut(part: tuple[Bounded, ...], lo: int, hi: int) -> tuple[Bounded, ...]:
    return tuple(Bounded(v.value[..., lo:hi], None if v.err is None else v.err[..., lo:hi]) for v in part)


def _joined(a: Bounded, b: Bounded) -> Bounded:
    err = None
    if a.err is not None or b.err is not None:
        pair = [np.broadcast_to(rules.error_of(v), v.value.shape) for v in (a, b)]
        err = np.concatenate(pair, axis=-1)
    return Bounded(np.concatenate([a.value, b.value], axis=-1), err)


def _combine(reducer: Reducer, x: tuple[Bounded, ...], y: tuple[Bounded, ...]) -> tuple[Bounded, ...]:
    """combine(x, y); of a tuple reducer also combine(y, x), the difference of both being allowed."""
    combined = _apply(reducer, x, y)
    if len(combined) == 1:
        return combined
    return tuple(_either(a, b) for a, b in zip(combined, _apply(reducer, y, x), strict=True))


def _apply(reducer: Reducer, x: tuple[Bounded, ...], y: tuple[Bounded, ...]) -> tuple[Bounded, ...]:
    names = [v.name for v in (*reducer.lhs, *reducer.rhs)]
    block = DomainBox({}, {}, dict(zip(names, (*x, *y), strict=True)))
    shape = np.broadcast_shapes(x[0].value.shape, y[0].value.shape)
    return tuple(_full(block.eval(result), shape) for result in reducer.results)


def _full(x: Bounded, shape: tuple[int, ...]) -> Bounded:
    return Bounded(np.broadcast_to(x.value, shape), None if x.err is None else np.broadcast_to(x.err, shape))


def _either(a: Bounded, b: Bounded) -> Bounded:
    differ = (a.value != b.value) & ~((a.value != a.value) & (b.value != b.value))
    if not differ.any() and a.err is None and b.err is None:
        return a
    gap = np.where(differ, rules.distance(a.value, b.value), 0.0)
    return Bounded(a.value, np.maximum(rules.error_of(a), rules.error_of(b) + gap))
