"""Rules of reductions."""

from __future__ import annotations

from collections.abc import Mapping

from autosched.errors import GraphError
from autosched.graph.onnx.site import Results, Site, rule

OURS: Mapping[str, str] = {
    **{f"Reduce{name}": f"reduce_{name.lower()}" for name in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2")},
    **{"ReduceLogSum": "reduce_log_sum", "ReduceLogSumExp": "reduce_log_sum_exp"},
    "ReduceSumSquare": "reduce_sum_square",
}
OF_BOOLEANS: Mapping[str, str] = {"ReduceMax": "reduce_any", "ReduceMin": "reduce_all"}


@rule(*OURS)
def reduce(site: Site) -> Results:
    x = site.input(0)
    table = OF_BOOLEANS if site.dtype(x) == "bool" else OURS
    ours, shape = table.get(site.operator, OURS[site.operator]), site.shape(x)
    axes = site.integers(1, "axes", since=13 if site.operator == "ReduceSum" else 18)
    keep = bool(site.attribute("keepdims", 1))
    if site.attribute("noop_with_empty_axes", 0) and not axes:  # elementwise functions of the reduction remain
        return site.emit(ours, site.reshape(x, (*shape, 1)), axes=(len(shape),), keepdims=False)
    reduced_axes = site.axes(axes or range(len(shape)), len(shape))
    if not reduced_axes:  # a scalar
        return site.emit(ours, site.reshape(x, (1,)), axes=(0,), keepdims=False)
    return site.emit(ours, x, axes=tuple(sorted(reduced_axes)), keepdims=keep)


@rule("TopK")
def top_k(site: Site) -> Results:
    """`sorted` = 0 lets the order be any; ours is one."""
    site.ignore("sorted")
    x = site.input(0)
    axis, count = site.axis(site.attribute("axis", -1), site.rank(x)), site.integers(1, "k", since=10)
    if count is None or len(count) != 1:
        raise GraphError("its number of elements is missing")
    return site.emit_all(2, "top_k", x, k=count[0], axis=axis, largest=bool(site.attribute("largest", 1)))


@rule("ArgMax", "ArgMin")
def arg(site: Site) -> Results:
    x = site.input(0)
    axis = site.axis(site.attribute("axis", 0), site.rank(x))
    flags = {"keepdims": bool(site.attribute("keepdims", 1)), "last": bool(site.attribute("select_last_index", 0))}
    return site.emit(site.operator.lower(), x, axis=axis, **flags)
