"""The meaning of a DAG in the plainest words: every stage point by point, in float64 and Python integers."""

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from autosched.ir.expr import Binary, Call, Cast, Const, Expr, Load, Select, Var
from autosched.te import ComputeDAG

_BINARY: dict[str, Any] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "floordiv": lambda x, y: x // y,
    "mod": lambda x, y: x % y,
    "min": min,
    "max": max,
    "pow": lambda x, y: x**y,
    "fmod": math.fmod,
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
    "and": lambda x, y: x and y,
    "or": lambda x, y: x or y,
}
_CALLS: dict[str, Any] = {
    "exp": math.exp,
    "exp_negative": math.exp,
    "log": math.log,
    "sqrt": math.sqrt,
    "tanh": math.tanh,
    "abs": abs,
    "neg": lambda x: -x,
    "not": lambda x: not x,
}


def evaluate(dag: ComputeDAG, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Each output in the shape the caller sees; an index out of bounds is an AssertionError."""
    arrays = {t.name: inputs[t.name].reshape(t.shape) for t in dag.inputs}
    for op in dag.stages:
        results = [np.zeros(op.shape, object) for _ in op.outputs]
        arrays.update({t.name: r for t, r in zip(op.outputs, results, strict=True)})  # which a recurrence reads
        points = list(itertools.product(*(range(a.extent) for a in op.axes)))
        for point in reversed(points) if op.recurrence and op.recurrence.backwards else points:
            env = {a.var: p for a, p in zip(op.axes, point, strict=True)}
            for result, value in zip(results, _point(op, env, arrays), strict=True):
                result[point] = value
    return [np.array(arrays[t.name].reshape(t.public_shape).tolist()) for t in dag.outputs]


def _point(op: Any, env: dict[Var, Any], arrays: Mapping[str, np.ndarray]) -> list[Any]:
    if op.reducer is None:
        return [_value(b, env, arrays) for b in op.body]
    total = [c.value for c in op.reducer.identity]
    for point in itertools.product(*(range(a.extent) for a in op.reduce_axes)):
        inner = env | {a.var: p for a, p in zip(op.reduce_axes, point, strict=True)}
        operands = [_value(b, inner, arrays) for b in op.body]
        pair = dict(zip((*op.reducer.lhs, *op.reducer.rhs), (*total, *operands), strict=True))
        total = [_value(r, pair, arrays) for r in op.reducer.results]
    return total


def _value(e: Expr, env: Mapping[Var, Any], arrays: Mapping[str, np.ndarray]) -> Any:
    match e:
        case Const(value=v):
            return v
        case Var():
            return env[e]
        case Binary(op=op, a=a, b=b):
            return _BINARY[op](_value(a, env, arrays), _value(b, env, arrays))
        case Call(fn=fn, args=(a,)):
            return _CALLS[fn](_value(a, env, arrays))
        case Select(cond=c, a=a, b=b):
            return _value(a if _value(c, env, arrays) else b, env, arrays)
        case Cast(a=a, dtype=dtype):
            value = _value(a, env, arrays)
            return float(value) if dtype.startswith("float") else int(value)
        case Load(buffer=name, indices=indices):
            place = tuple(_value(i, env, arrays) for i in indices)
            assert all(0 <= p < n for p, n in zip(place, arrays[name].shape, strict=True)), f"{e} at {place}"
            return arrays[name][place]
    raise TypeError(type(e).__name__)
