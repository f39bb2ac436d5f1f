"""Hand-written symbolic nests for the tests: matmul, convolution, elementwise, row reduction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autosched.ir.expr import Binary, Const, Expr, Load, Param, Var, binary, call, ceildiv, imin
from autosched.ir.stmt import Allocate, Buffer, For, ForKind, Func, Layout, Reducer, Scope, Seq, Stmt, Store
from autosched.target import Target

F32 = "float32"
X, Y = Var("lhs", F32), Var("rhs", F32)
SUM = Reducer("sum", (X,), (Y,), (Binary("add", X, Y),), (Const(0.0, F32),))

TARGET = Target("cpu", "skylake-avx512", "", 64, 32, True, 4, 32 << 10, 1 << 20, 16 << 20, 64)
AVX2 = Target("cpu", "haswell", "", 32, 16, True, 4, 32 << 10, 256 << 10, 8 << 20, 64)
ZEN3 = replace(AVX2, mcpu="znver3")


def size(*values: int | Expr) -> tuple[Expr, ...]:
    return tuple(v if isinstance(v, Expr) else Const(v) for v in values)


def buffer(name: str, *shape: int | Expr, scope: Scope = Scope.PARAM, layout: Layout | None = None) -> Buffer:
    return Buffer(name, size(*shape), F32, scope, layout)


def load(name: str, *indices: Expr) -> Load:
    return Load(name, tuple(indices), F32)


def nest(loops: Sequence[tuple[Var, Expr, Expr, ForKind, bool]], body: Stmt) -> Stmt:
    for var, extent, bound, kind, reduce in reversed(loops):
        body = For(var, extent, bound, kind, body, reduce)
    return body


class Axis:
    """An axis of `extent` points tiled by parameters; each loop stops where the axis ends."""

    def __init__(self, name: str, extent: int, factors: Sequence[str], reduce: bool = False, prefix: str = "") -> None:
        self.extent, self.reduce = extent, reduce
        self.factors = [Param(f) for f in factors]
        self.vars = [Var(f"{prefix}{name}{n}") for n in range(len(factors) + 1)]

    def stride(self, level: int) -> Expr:
        result: Expr = Const(1)
        for factor in self.factors[level:]:
            result = result * factor
        return result

    def value(self, first: int = 0) -> Expr:
        """The position, without what the loops outside level `first` contribute."""
        result: Expr = Const(0)
        for level in range(first, len(self.vars)):
            result = result + self.vars[level] * self.stride(level)
        return result

    def loop(self, level: int, kind: ForKind = ForKind.SERIAL) -> tuple[Var, Expr, Expr, ForKind, bool]:
        covered: Expr = Const(0)
        for outer in range(level):
            covered = covered + self.vars[outer] * self.stride(outer)
        stride = self.stride(level)
        bound, extent = ceildiv(self.extent, stride), ceildiv(self.extent - covered, stride)
        if level:
            bound, extent = imin(self.factors[level - 1], bound), imin(self.factors[level - 1], extent)
        return self.vars[level], extent, bound, kind, self.reduce


MATMUL_PARAMS = ("mc", "mr", "nc", "nr", "kc")


def matmul(m: int, n: int, k: int, prefix: str = "", parallel: bool = True) -> Func:
    """C = A B: i, j in three levels, k in two; mr x nr accumulators in registers, written back at the end."""
    i, j = Axis("i", m, ("mc", "mr"), prefix=prefix), Axis("j", n, ("nc", "nr"), prefix=prefix)
    kk = Axis("k", k, ("kc",), True, prefix)
    mr, nr = Param("mr"), Param("nr")
    acc = Buffer("acc", (mr, nr), F32, Scope.REGISTER)
    update = Store(
        ("acc",),
        (i.vars[2], j.vars[2]),
        (load("A", i.value(), kk.value()) * load("B", kk.value(), j.value()),),
        SUM,
        "C",
    )
    zero = Store(("acc",), (i.vars[2], j.vars[2]), (Const(0.0, F32),), None, "C.init")
    back = Store(("C",), (i.value(), j.value()), (load("acc", i.vars[2], j.vars[2]),), None, "C.back")
    tile = [i.loop(2, ForKind.UNROLL), j.loop(2, ForKind.VECTORIZE)]
    inside = Seq((nest(tile, zero), nest([kk.loop(0), kk.loop(1), *tile], update), nest(tile, back)))
    outer = [i.loop(0, ForKind.PARALLEL if parallel else ForKind.SERIAL), j.loop(0), i.loop(1), j.loop(1)]
    body = nest(outer, Allocate(acc, inside))
    return Func(f"{prefix}matmul", (buffer("A", m, k), buffer("B", k, n), buffer("C", m, n)), 1, body)


PACKED_PARAMS = ("mr", "nr", "kc")


def packed_matmul(m: int, n: int, k: int) -> Func:
    """B is copied into a private panel [j // nr][k][j % nr] for each k block before it is used."""
    nr, mr, kc = Param("nr"), Param("mr"), Param("kc")
    i, j, kk = Axis("i", m, ("mr",)), Axis("j", n, ("nr",)), Axis("k", k, ("kc",), True)
    pj, pk = Axis("j", n, ("nr",), prefix="p"), Var("pk")
    panel = Buffer("panel", (kc, Const(n)), F32, Scope.LOCAL, Layout((1, 0), ((1, nr),)))
    acc = Buffer("acc", (mr, nr), F32, Scope.REGISTER)
    pack_loops = [
        pj.loop(0),
        (pk, imin(kc, k - kk.vars[0] * kc), imin(kc, Const(k)), ForKind.SERIAL, False),
        pj.loop(1, ForKind.VECTORIZE),
    ]
    pack = nest(
        pack_loops, Store(("panel",), (pk, pj.value()), (load("B", kk.vars[0] * kc + pk, pj.value()),), None, "pack")
    )
    update = Store(
        ("acc",),
        (i.vars[1], j.vars[1]),
        (load("A", i.value(), kk.value()) * load("panel", kk.value() - kk.vars[0] * kc, j.value()),),
        SUM,
        "C",
    )
    tile = [i.loop(1, ForKind.UNROLL), j.loop(1, ForKind.VECTORIZE)]
    back = Store(("C",), (i.value(), j.value()), (load("acc", i.vars[1], j.vars[1]),), SUM, "C.back")
    inside = Seq((nest([kk.loop(1), *tile], update), nest(tile, back)))
    use = nest([i.loop(0), j.loop(0)], Allocate(acc, inside))
    body = nest([kk.loop(0)], Allocate(panel, Seq((pack, use))))
    return Func("packed", (buffer("A", m, k), buffer("B", k, n), buffer("C", m, n)), 1, body)


CONV_PARAMS = ("th", "tw", "tc")


def conv(h: int, w: int, ci: int, co: int, k: int, stride: int) -> Func:
    """NHWC without the N: y[h, w, co] += x[h s + r, w s + q, ci] * f[r, q, ci, co], accumulated in memory."""
    ho, wo = (h - k) // stride + 1, (w - k) // stride + 1
    y, x, c = Axis("y", ho, ("th",)), Axis("x", wo, ("tw",)), Axis("c", co, ("tc",))
    r, q, z = Axis("r", k, (), True), Axis("q", k, (), True), Axis("z", ci, (), True)
    data = load("x", y.value() * stride + r.value(), x.value() * stride + q.value(), z.value())
    value = data * load("f", r.value(), q.value(), z.value(), c.value())
    store = Store(("y",), (y.value(), x.value(), c.value()), (value,), SUM, "y")
    order = [
        y.loop(0),
        x.loop(0),
        c.loop(0),
        r.loop(0),
        q.loop(0),
        z.loop(0),
        y.loop(1),
        x.loop(1),
        c.loop(1, ForKind.VECTORIZE),
    ]
    func_params = (buffer("x", h, w, ci), buffer("f", k, k, ci, co), buffer("y", ho, wo, co))
    return Func("conv", func_params, 1, nest(order, store))


ELEMENTWISE_PARAMS = ("t",)


def elementwise(rows: int, columns: int) -> Func:
    """out[f // columns, f % columns] = tanh(in) over a fused, tiled and vectorised index."""
    f = Axis("f", rows * columns, ("t",))
    place = (f.value() // columns, f.value() % columns)
    body = nest(
        [f.loop(0, ForKind.PARALLEL), f.loop(1, ForKind.VECTORIZE)],
        Store(("out",), place, (call("tanh", load("in", *place)),), None, "out"),
    )
    return Func("elementwise", (buffer("in", rows, columns), buffer("out", rows, columns)), 1, body)


ROW_PARAMS = ("t",)


def row_maximum(rows: int, columns: int) -> Func:
    """out[i] = max_k in[i, k], the rows tiled, lanes along the reduction."""
    biggest = Reducer("max", (X,), (Y,), (binary("max", X, Y),), (Const(-1e30, F32),))
    i, k = Axis("i", rows, ("t",)), Axis("k", columns, (), True)
    store = Store(("out",), (i.value(),), (load("in", i.value(), k.value()),), biggest, "out")
    body = nest([i.loop(0, ForKind.PARALLEL), i.loop(1), k.loop(0, ForKind.VECTORIZE)], store)
    return Func("rows", (buffer("in", rows, columns), buffer("out", rows)), 1, body)
