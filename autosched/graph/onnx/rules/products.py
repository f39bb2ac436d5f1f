"""Rules of matrix products."""

from __future__ import annotations

from autosched.graph.onnx.site import Results, Site, rule
from autosched.ir.dtype import DTYPES


@rule("MatMul")
def matmul(site: Site) -> Results:
    return site.emit("matmul", site.input(0), site.input(1))


@rule("Gemm")
def gemm(site: Site) -> Results:
    attributes = {
        "alpha": site.attribute("alpha", 1.0),
        "beta": site.attribute("beta", 1.0),
        "trans_a": bool(site.attribute("transA", 0)),
        "trans_b": bool(site.attribute("transB", 0)),
    }
    return site.emit("gemm", site.input(0), site.input(1), site.optional(2), **attributes)


@rule("Einsum")
def einsum(site: Site) -> Results:
    return site.emit("einsum", *site.all_inputs(), equation=site.attribute("equation").replace(" ", ""))


@rule("Det")
def determinant(site: Site) -> Results:
    """The product of the pivots of an elimination, in float32 at least."""
    x = site.input(0)
    dtype = site.dtype(x)
    rest, result = site.cast(x, DTYPES[dtype].computes_in), ""
    for n in range(site.shape(x)[-1], 0, -1):
        pivot, *left = site.emit_all(min(n, 2), "eliminate", rest)
        result = site.emit("mul", result, pivot) if result else pivot
        rest = left[0] if left else rest
    return site.cast(result, dtype)
