"""A compute DAG as the Python program that defines it, to paste into a regression test."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from autosched.ir.bitcast import Bitcast
from autosched.ir.expr import COMPARISON, INDEX, Binary, Call, Cast, Const, Expr, Load, Select, Var
from autosched.te import ComputeDAG
from autosched.te.tensor import ComputeOp

_SYMBOLS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%", "lt": "<", "le": "<=", "gt": ">",
    "ge": ">=", "and": "&", "or": "|", "bitand": "&", "bitor": "|", "bitxor": "^", "shl": "<<", "shr": ">>",
}  # fmt: skip
_FUNCTIONS = {
    "min": "te.minimum",
    "max": "te.maximum",
    "pow": "te.pow",
    "fmod": "te.fmod",
    "eq": "te.equal",
    "ne": "te.not_equal",
}
_BUILT_IN = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin")


def program_text(dag: ComputeDAG) -> str:
    """Statements that end in `dag = te.ComputeDAG(...)`."""
    lines = [f'{_identifier(t.name)} = te.placeholder({_shape(t.shape)}, "{t.dtype}", "{t.name}")' for t in dag.inputs]
    for op in dag.stages:
        lines += _stage_lines(op)
    outputs = ", ".join(_identifier(t.name) for t in dag.outputs)
    weights = f", weights={list(dag.weights)}" if dag.weights else ""
    return "\n".join([*lines, f"dag = te.ComputeDAG([{outputs}]{weights})"])


def _identifier(name: str) -> str:
    return name.replace(".", "_")


def _shape(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _stage_lines(op: ComputeOp) -> list[str]:
    names = {a.var: _identifier(a.name) for a in (*op.axes, *op.reduce_axes)}
    lines = [f'{names[a.var]} = te.reduce_axis({a.extent}, "{a.name}")' for a in op.reduce_axes]
    own = {t.name: "y" if len(op.body) == 1 else f"y[{n}]" for n, t in enumerate(op.outputs)}
    values = [_text(b, names, own) for b in op.body]
    value = values[0] if len(values) == 1 else f"({', '.join(values)})"
    if op.reducer is not None:
        over = ", ".join(names[a.var] for a in op.reduce_axes)
        value = f"{_reducer(op)}({value}, axis=({over},))"
    args = ", ".join(names[a.var] for a in op.axes)
    left = ", ".join(_identifier(t.name) for t in op.outputs)
    if op.recurrence is not None:
        types = ", ".join(f'"{t.dtype}"' for t in op.outputs)
        more = f'axis={op.recurrence.axis}, dtype={types if len(op.body) == 1 else f"({types})"}, name="{op.name}"'
        return [*lines, f"{left} = te.scan({_shape(op.shape)}, lambda y, {args}: {value}, {more})"]
    return [*lines, f'{left} = te.compute({_shape(op.shape)}, lambda {args}: {value}, "{op.name}")']


def _reducer(op: ComputeOp) -> str:
    reducer = op.reducer
    assert reducer is not None
    if reducer.name in _BUILT_IN:
        return f"te.{reducer.name}"
    single = len(reducer.results) == 1
    names: dict[Var, str] = {}
    for side, operands in (("x", reducer.lhs), ("y", reducer.rhs)):
        names |= {v: side if single else f"{side}[{n}]" for n, v in enumerate(operands)}
    parts = [", ".join(_text(e, names) for e in group) for group in (reducer.results, reducer.identity)]
    combined, identity = parts if single else [f"({p})" for p in parts]
    return f'te.reducer(lambda x, y: {combined}, {identity}, "{reducer.name}")'


def _text(e: Expr, names: Mapping[Var, str], own: Mapping[str, str] = MappingProxyType({})) -> str:
    """An expression; `own`: how a recurrence names its states."""

    def text(x: Expr) -> str:
        return _text(x, names, own)

    match e:
        case Const(value=value, dtype=dtype):
            if dtype == INDEX and value >= 0:
                return str(value)
            shown = f'float("{value}")' if isinstance(value, float) and not math.isfinite(value) else repr(value)
            return f'te.const({shown}, "{dtype}")'
        case Var():
            return names[e]
        case Load(buffer=buffer, indices=indices):
            return f"{own.get(buffer, _identifier(buffer))}[{', '.join(map(text, indices)) or '()'}]"
        case Cast(a=a, dtype=dtype):
            return f'te.cast({text(a)}, "{dtype}")'
        case Bitcast(a=a, dtype=dtype):
            return f'te.bitcast({text(a)}, "{dtype}")'
        case Select(cond=c, a=a, b=b):
            return f"te.select({', '.join(map(text, (c, a, b)))})"
        case Call(fn=fn, args=args):
            inner = ", ".join(text(a) for a in args)
            return f"(-{inner})" if fn == "neg" else f"te.{'logical_not' if fn == 'not' else fn}({inner})"
        case Binary(op=op, a=a, b=b):
            x, y = text(a), text(b)
            if op in _FUNCTIONS:
                return f"{_FUNCTIONS[op]}({x}, {y})"
            return f"({x} {_SYMBOLS[op]} {y})"
    raise TypeError(f"{type(e).__name__} cannot stand in a program")


assert _SYMBOLS.keys() | _FUNCTIONS.keys() >= COMPARISON
