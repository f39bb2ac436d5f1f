"""Reinterpreted bits: Bitcast(a, dtype) is the number of `dtype` whose bits are those of the number `a`.

Integers and bools of equal size need no node of their own: between them `cast` keeps the bits. A number of a small
float is not widened: its bits are those that are stored.
"""

from __future__ import annotations

from dataclasses import dataclass

from autosched.errors import ExpressionError
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Expr, cast, known_dtype


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Bitcast(Expr):
    a: Expr
    dtype: str

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.a,)


def bitcast(a: Expr, dtype: str) -> Expr:
    """`a` as the number of `dtype` with the same bits. Raises ExpressionError for a type of another size."""
    source, target = DTYPES[a.dtype], DTYPES[known_dtype(dtype)]
    if source.bits != target.bits:
        raise ExpressionError(
            f"bitcast of {a} from {a.dtype} to {target.name}: both must have the same size, and have {source.bits} and "
            f"{target.bits} bits; cast it first"
        )
    if source is target or not (source.is_float or target.is_float):
        return cast(a, target.name)
    made: Expr = Bitcast(a, target.name)
    return made
