"""Tensor expressions: how an operator is defined.

>>> from autosched import te
>>> A, B = te.placeholder((8, 4), name="A"), te.placeholder((4, 8), name="B")
>>> k = te.reduce_axis(4, name="k")
>>> C = te.compute((8, 8), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
>>> te.ComputeDAG(C).flops
512
"""

from typing import NoReturn

from autosched.ir.symbolic import OTHER_NAMES
from autosched.te.compute import (
    abs,
    bitcast,
    cast,
    ceil,
    compute,
    const,
    cos,
    equal,
    erf,
    exp,
    floor,
    floordiv,
    fmod,
    if_then_else,
    log,
    logical_not,
    maximum,
    minimum,
    mod,
    not_equal,
    placeholder,
    pow,
    reduce_axis,
    round,
    rsqrt,
    select,
    sigmoid,
    sin,
    sqrt,
    tanh,
    view,
)
from autosched.te.dag import ComputeDAG
from autosched.te.reducers import all, any, argmax, argmin, max, min, prod, reducer, sum
from autosched.te.scan import scan
from autosched.te.sizes import size
from autosched.te.tensor import Axis, ComputeOp, PlaceholderOp, Tensor

__all__ = [
    "Axis", "ComputeDAG", "ComputeOp", "PlaceholderOp", "Tensor", "abs", "all", "any", "argmax", "argmin", "bitcast",
    "cast", "ceil", "compute", "const", "cos", "equal", "erf", "exp", "floor", "floordiv", "fmod", "if_then_else",
    "log", "logical_not", "max", "maximum", "min", "minimum", "mod", "not_equal", "placeholder", "pow", "prod",
    "reduce_axis", "reducer", "round", "rsqrt", "scan", "select", "sigmoid", "sin", "size", "sqrt", "sum", "tanh",
    "view",
]  # fmt: skip


def __getattr__(name: str) -> NoReturn:
    hint = f"; it is te.{OTHER_NAMES[name]} here" if name in OTHER_NAMES else ""
    raise AttributeError(f"te has no {name!r}{hint}")
