"""Sums whose weights are shares of a softmax of a product's results, as users may write them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from autosched import te
from autosched.te import Tensor


@dataclass(frozen=True)
class Sizes:
    """Rows of queries, of keys and values; terms of a score, columns of a value; operands that lie transposed; the order
    in which the dimensions of the result are written, where that is another."""

    rows: int
    places: int
    depth: int
    width: int
    batch: int = 0
    turned: str = ""
    order: tuple[int, ...] = ()


def weighted(sizes: Sizes, dtype: str = "float16", masked: str = "", sharp: float = 0.5) -> te.ComputeDAG:
    """softmax(sharp * A B^T + mask) C, with `masked` as "" for no mask, "added", "kept" or "causal"."""
    lead = (sizes.batch,) if sizes.batch else ()
    a, b, c = (
        te.placeholder((*lead, *(shape[::-1] if name in sizes.turned else shape)), dtype, name=name)
        for name, shape in (
            ("A", (sizes.rows, sizes.depth)),
            ("B", (sizes.places, sizes.depth)),
            ("C", (sizes.places, sizes.width)),
        )
    )
    mask = te.placeholder((sizes.rows, sizes.places), "bool" if masked == "kept" else "float32", name="mask")
    d, k, r, s = (te.reduce_axis(n, name=x) for n, x in zip((sizes.depth, *[sizes.places] * 3), "dkrs", strict=True))

    def element(t: Tensor, i: Any, row: Any, column: Any) -> Any:
        place = (column, row) if t.name in sizes.turned else (row, column)
        return te.cast(t[(*i[:-2], *place)], "float32")

    def product(*i: Any) -> Any:
        return te.sum(element(a, i, i[-2], d) * element(b, i, i[-1], d), axis=d)

    def score(*i: Any) -> Any:
        value = found[i] * sharp
        if masked == "added":
            return value + mask[i[-2:]]
        if masked == "kept":
            return te.select(mask[i[-2:]], value, -math.inf)
        return te.select(i[-1] <= i[-2], value, -math.inf) if masked == "causal" else value

    found = te.compute((*lead, sizes.rows, sizes.places), product, name="P")
    x: Tensor = te.compute(found.shape, score, name="X")
    top = te.compute(found.shape[:-1], lambda *i: te.max(x[(*i, k)], axis=k), name="top")
    e = te.compute(found.shape, lambda *i: te.exp(x[i] - top[i[:-1]]), name="E")
    all_of = te.compute(found.shape[:-1], lambda *i: te.sum(e[(*i, r)], axis=r), name="all")
    w = te.compute(found.shape, lambda *i: te.cast(e[i] / all_of[i[:-1]], dtype), name="W")

    def added(*i: Any) -> Any:
        return te.sum(te.cast(w[(*i[:-1], s)], "float32") * element(c, i, s, i[-1]), axis=s)

    y = te.compute((*lead, sizes.rows, sizes.width), added, name="Y")
    order = sizes.order or tuple(range(len(y.shape)))
    back = [order.index(n) for n in range(len(order))]
    shape = tuple(y.shape[n] for n in order)
    return te.ComputeDAG(te.compute(shape, lambda *i: te.cast(y[tuple(i[n] for n in back)], dtype), name="Z"))
