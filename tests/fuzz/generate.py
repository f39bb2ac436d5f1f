"""Random compute DAGs: one to six stages that read each other, small enough to run thousands of them.

A program grows from a pool of tensors: each step takes a recent tensor as its `base` and adds a stage, or a few that
belong together. Other operands come from the pool where one fits, else they are new placeholders. Values stay finite
for finite inputs, so that no comparison is decided by NaN.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

from autosched import te
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Expr
from autosched.ir.instructions.matrices import MATRICES
from autosched.ir.instructions.precision import EXACT, PRECISIONS
from autosched.te import ComputeDAG, Tensor
from autosched.te.reducers import smallest
from autosched.te.rewrites.precision import with_precision
from tests.fuzz import expressions as ex
from tests.fuzz.images import ImageProduct
from tests.fuzz.indices import arithmetic, looked_up, moved, moves_within

EXTENTS = (1, 2, 3, 5, 7, 12, 13, 16, 17, 31, 33, 64)
LONG_EXTENTS = (100, 129, 1000, 1030, 4097)
LONG_REDUCTIONS = (256, 300, 513, 1025)
MAX_POINTS = 1 << 14  # of a stage's domain
MAX_STAGES = 6
MAX_RANK = 5
DTYPE_WEIGHTS = {
    "float32": 12, "float64": 3, "int32": 3, "int64": 2, "int8": 2, "uint8": 2, "bool": 1, "float16": 1, "bfloat16": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "int16": 1, "uint16": 1, "uint32": 1, "uint64": 1,
}  # fmt: skip

_MATRIX_TYPES = sorted({(row.left, row.right, row.accumulator) for row in MATRICES.values()})
_INDEX_TYPES = ("int32", "int64", "int8", "uint8", "int16", "uint16", "uint32", "uint64")

_ORDERS: tuple[Callable[[Expr, Expr], Expr], ...] = (
    lambda k, i: k <= i,
    lambda k, i: k < i,
    lambda k, i: k >= i,
    lambda k, i: k > i,
    lambda k, i: te.all(k <= i + 3, k > i - 9),
)

Index = tuple[Expr | int, int]  # an index expression, and the extent a dimension needs for it


def random_dag(seed: str) -> ComputeDAG:
    """The program of `seed`, always the same one; of a quarter of them some inputs are weights, a few more may multiply
    float32 less precisely."""
    dag = _Program(random.Random(seed)).grow()
    precision = random.Random(f"{seed} precision").choice((*PRECISIONS, *[EXACT] * 8))
    dag = dag if precision == EXACT else with_precision(dag, precision)
    rng = random.Random(f"{seed} weights")
    names = [t.name for t in dag.inputs]
    if len(names) < 2 or rng.random() < 0.75:
        return dag
    return dag.with_weights(rng.sample(names, rng.randint(1, len(names) - 1)))


class _Program:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.pool: list[Tensor] = []
        self.stages: list[Tensor] = []
        self.read: set[str] = set()
        self.serial = 0
        self.dtype = self.weighted(DTYPE_WEIGHTS)

    def grow(self) -> ComputeDAG:
        target = self.rng.randint(1, MAX_STAGES)
        while len(self.stages) < target:
            kind = self.weighted(_KINDS)
            kind(self, self.base())
        sinks = [t for t in self.stages if t.name not in self.read]
        outputs = sinks if self.chance(0.6) else sinks[-1:]
        inner = [t for t in self.stages if t not in sinks]
        if inner and self.chance(0.2):
            outputs = [*outputs, self.rng.choice(inner)]
        return ComputeDAG(outputs)

    # choices

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def weighted(self, table: dict[Any, int]) -> Any:
        return self.rng.choices(list(table), list(table.values()))[0]

    def name(self, prefix: str) -> str:
        self.serial += 1
        return f"{prefix}{self.serial}"

    def extent(self, room: int = MAX_POINTS) -> int:
        return self.rng.choice([e for e in EXTENTS if e <= max(room, 1)])

    def shape(self, rank: int) -> tuple[int, ...]:
        """Random extents whose product stays small."""
        if rank == 1 and self.chance(0.15):
            return (self.rng.choice(LONG_EXTENTS),)
        room, extents = MAX_POINTS // 8, []
        for _ in range(rank):
            extents.append(self.extent(room))
            room //= extents[-1]
        self.rng.shuffle(extents)
        return tuple(extents)

    def base(self) -> Tensor:
        """A tensor to go on from: the latest stage most of the time."""
        if self.stages and self.chance(0.7):
            return self.stages[-1]
        if self.pool and self.chance(0.6):
            return self.rng.choice(self.pool)
        return self.placeholder(self.shape(self.rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 4, 5))))

    def placeholder(self, shape: Sequence[int], dtype: str | None = None) -> Tensor:
        chosen = dtype or (self.dtype if self.chance(0.85) else self.weighted(DTYPE_WEIGHTS))
        tensor = te.placeholder(tuple(shape), chosen, self.name("A"))
        self.pool.append(tensor)
        return tensor

    def load(self, tensor: Tensor, indices: Sequence[Expr | int]) -> Expr:
        self.read.add(tensor.name)
        return tensor[tuple(indices)]

    def operand(self, indices: Sequence[Index], dtype: str | None = None) -> Expr:
        """One element of some tensor with the given indices in some order: of the pool, or of a new placeholder."""
        fitting = [t for t in self.pool if dtype in (None, t.dtype) and self.arranged(t, indices) is not None]
        if fitting and self.chance(0.5):
            tensor = self.rng.choice(fitting[-4:])
            order = self.arranged(tensor, indices)
            assert order is not None
            return self.load(tensor, order)
        shuffled = list(indices)
        if self.chance(0.4):
            self.rng.shuffle(shuffled)
        return self.load(self.placeholder([e for _, e in shuffled], dtype), [i for i, _ in shuffled])

    def arranged(self, tensor: Tensor, indices: Sequence[Index]) -> list[Expr | int] | None:
        """The indices in an order in which they fit into `tensor`, which may be larger; None if there is none."""
        rest, order = list(indices), []
        if len(tensor.shape) != len(rest):
            return None
        for size in tensor.shape:
            fit = next((x for x in rest if x[1] == size), None) or next((x for x in rest if x[1] < size), None)
            if fit is None:
                return None
            rest.remove(fit)
            order.append(fit[0])
        return order

    def stage(self, shape: Sequence[int], fn: Callable[..., Any], prefix: str = "T") -> Tensor:
        """A new stage of one value or of a tuple, of which the last is returned."""
        made = te.compute(tuple(shape), fn, self.name(prefix))
        tensors: tuple[Tensor, ...] = made if isinstance(made, tuple) else (made,)
        self.stages.extend(tensors)
        self.pool.extend(tensors)
        return tensors[-1]

    def subset(self, indices: Sequence[Index]) -> list[Index]:
        return [x for x in indices if self.chance(0.6)]

    def mixed(self, values: list[Expr]) -> Expr:
        return ex.mixed(self.rng, values)

    # kinds of stages

    def elementwise(self, base: Tensor) -> None:
        """Over the base's axes, permuted at times, perhaps with one more: broadcasts, transposes, slices."""
        order = list(range(len(base.shape)))
        if self.chance(0.3):
            self.rng.shuffle(order)
        extents = [base.shape[d] for d in order]
        room = MAX_POINTS // math.prod(extents)
        extra = len(extents) if len(extents) < MAX_RANK and room > 1 and self.chance(0.2) else None
        if extra is not None:
            extra = self.rng.randint(0, len(extents))
            extents.insert(extra, self.extent(room))

        def body(*axes: Expr) -> Expr:
            own = [a for n, a in enumerate(axes) if n != extra]
            index = dict(zip(order, own, strict=True))
            values = [self.load(base, [index[d] for d in range(len(order))])]
            every = list(zip(axes, extents, strict=True))
            for _ in range(self.rng.choice((0, 1, 1, 2))):
                values.append(self.operand(every if self.chance(0.5) else self.subset(every)))
            if axes and self.chance(0.15):
                values.append(te.cast(self.rng.choice(axes), values[0].dtype))
            value = self.mixed(values)
            if axes and self.chance(0.15):
                value = te.select(ex.index_condition(self.rng, every), value, ex.number(value.dtype, 0))
            return value

        self.stage(extents, body)

    def contraction(self, base: Tensor) -> None:
        """Products, or other pairs, reduced over axes that both operands have: matrix products and their like."""
        if self.chance(0.1):  # reductions long enough to be cut in blocks
            base = self.placeholder((self.rng.choice(LONG_REDUCTIONS), self.rng.choice((1, 3, 8, 17))))
        base_dims = list(base.shape)
        n_reduced = self.rng.choice((1, 1, 1, 2)) if base_dims else 0
        reduced_dims = set(self.rng.sample(range(len(base_dims)), min(n_reduced, len(base_dims))))
        spatial = [d for d in range(len(base_dims)) if d not in reduced_dims]
        room = max(1, 2 * MAX_POINTS // math.prod(base_dims))
        others = [self.extent(room)] if len(spatial) < MAX_RANK else []
        ks = {d: te.reduce_axis(base_dims[d], f"k{d}") for d in reduced_dims}
        if not ks:
            ks = {-1: te.reduce_axis(self.extent(room), "k")}
        order = list(range(len(spatial) + len(others)))
        if self.chance(0.3):
            self.rng.shuffle(order)
        extents = [base_dims[d] for d in spatial] + others

        def body(*axes: Expr) -> Any:
            place = dict(zip(order, axes, strict=True))
            own = {d: place[n] for n, d in enumerate(spatial)} | {d: ks[d] for d in reduced_dims}
            x = self.load(base, [own[d] for d in range(len(base_dims))])
            shared: list[Index] = [(place[n], extents[n]) for n in range(len(spatial)) if self.chance(0.25)]
            new: list[Index] = [(place[len(spatial) + n], e) for n, e in enumerate(others)]
            summed: list[Index] = [(k, k.extent) for k in ks.values()]
            y = self.operand([*summed, *new, *shared])
            return ex.reduced(self.rng, [x, y], tuple(ks.values()), product=True)

        self.stage([extents[n] for n in order], body)

    def matrices(self, _: Tensor) -> None:
        """A product of two matrices, or several of them, of types that there are instructions for."""
        left, right, wide = self.rng.choice(_MATRIX_TYPES)
        batch = [self.rng.choice((2, 3))] if self.chance(0.2) else []
        m, n, k = (self.rng.choice(EXTENTS[1:]) for _ in range(3))
        axis, turned = te.reduce_axis(k, "k"), (self.chance(0.5), self.chance(0.5))

        def element(tensor: Tensor, lead: Sequence[Expr], pair: tuple[Expr, Expr], is_turned: bool) -> Expr:
            return te.cast(self.load(tensor, (*lead, *(pair[::-1] if is_turned else pair))), wide)

        shapes = ((k, m) if turned[0] else (m, k), (n, k) if turned[1] else (k, n))
        a, b = (self.placeholder((*batch, *s), d) for s, d in zip(shapes, (left, right), strict=True))

        def body(*point: Expr) -> Any:
            *lead, i, j = point
            x, y = element(a, lead, (i, axis), turned[0]), element(b, lead, (axis, j), turned[1])
            return te.sum(x * y, axis=axis)

        self.stage([*batch, m, n], body)

    def reduction(self, base: Tensor) -> None:
        """Some of the base's axes reduced by some reducer."""
        if not base.shape:
            return self.elementwise(base)
        dims = self.rng.sample(range(len(base.shape)), self.rng.randint(1, min(2, len(base.shape))))
        ks = {d: te.reduce_axis(base.shape[d], f"k{d}") for d in dims}
        rest = [d for d in range(len(base.shape)) if d not in ks]

        def body(*axes: Expr) -> Any:
            index = dict(zip(rest, axes, strict=True)) | ks
            every: list[Index] = [(index[d], e) for d, e in enumerate(base.shape)]
            values = [self.load(base, [i for i, _ in every])]
            if self.chance(0.4):
                values.append(self.operand(self.subset(every)))
            return ex.reduced(self.rng, values, tuple(ks.values()), product=False)

        self.stage([base.shape[d] for d in rest], body)
        return None

    def running(self, base: Tensor) -> None:
        """Sums, or extremes, of all elements along an axis up to each one, from it on, or around it."""
        if not base.shape or base.dtype == "bool":
            return self.elementwise(base)
        dim = max(range(len(base.shape)), key=lambda d: base.shape[d])
        if base.shape[dim] * max(1, math.prod(base.shape)) > 8 * MAX_POINTS:
            return self.elementwise(base)
        k = te.reduce_axis(base.shape[dim], "k")
        before, name = self.rng.choice(_ORDERS), self.rng.choice(("sum", "sum", "max"))

        def body(*axes: Expr) -> Any:
            value = self.load(base, [*axes[:dim], k, *axes[dim + 1 :]])
            start = te.const(0, value.dtype) if name == "sum" else smallest(value.dtype)
            return getattr(te, name)(te.select(before(k, axes[dim]), value, start), axis=k)

        self.stage(base.shape, body)
        return None

    def recurrence(self, base: Tensor) -> None:
        """Each position along an axis from up to three before it, or after it; one state, or two of each other."""
        if not base.shape:
            return self.elementwise(base)
        dim, step = self.rng.randrange(len(base.shape)), self.rng.choice((-1, -1, 1))
        several, order = self.chance(0.25), self.rng.choice((1, 1, 2, 3))
        edge = base.shape[dim] - 1 if step > 0 else 0
        more = self.chance(0.4)

        def at(axes: Sequence[Expr], by: int) -> tuple[Expr, ...]:
            return tuple(a + by if d == dim else a for d, a in enumerate(axes))

        def init(*axes: Expr) -> Any:
            first = self.load(base, [edge if d == dim else a for d, a in enumerate(axes)])
            return (first, te.const(1, base.dtype)) if several else first

        def value(y: Any, *axes: Expr) -> Any:
            values = [self.load(base, axes)]
            if more:
                values.append(self.operand(list(zip(axes, base.shape, strict=True)), base.dtype))
            if not several:
                before = [y[at(axes, step * n)] for n in {1, order}]
                return ex.steady(self.rng, [*values, *before])
            first, second = y[0][at(axes, step)], y[1][at(axes, step * order)]
            return ex.steady(self.rng, [*values, second, first]), ex.steady(self.rng, [first, second])

        dtype = (base.dtype, base.dtype) if several else base.dtype
        made = te.scan(base.shape, value, init=init, axis=dim, dtype=dtype, name=self.name("S"))
        tensors: tuple[Tensor, ...] = made if isinstance(made, tuple) else (made,)
        self.stages.extend(tensors)
        self.pool.extend(tensors)
        return None

    def argument(self, base: Tensor) -> None:
        """argmax or argmin along one axis; one of the two results may stay unused."""
        if not base.shape or base.dtype == "bool":
            return self.elementwise(base)
        dim = self.rng.randrange(len(base.shape))
        k = te.reduce_axis(base.shape[dim], "k")
        reducer = te.argmax if self.chance(0.5) else te.argmin

        def body(*axes: Expr) -> Any:
            index = [*axes[:dim], k, *axes[dim:]]
            return reducer(self.load(base, index), axis=k)

        self.stage([e for d, e in enumerate(base.shape) if d != dim], body)
        return None

    def window(self, base: Tensor) -> None:
        """Convolutions (plain or depthwise), pooling: strided, dilated, padded by a select or by a stage before."""
        if not base.shape:
            return self.elementwise(base)
        n_dims = min(len(base.shape), self.rng.choice((1, 1, 2)))
        first = self.rng.randint(0, len(base.shape) - n_dims)
        dims = list(range(first, first + n_dims))
        plan = {d: self._window_of(base.shape[d]) for d in dims}
        others = [d for d in range(len(base.shape)) if d not in dims]
        channel = self.rng.choice(others) if others and self.chance(0.5) else None
        source, staged = base, self.chance(0.3)
        if staged and any(p[3] for p in plan.values()):
            source = self._padded(base, {d: p[3] for d, p in plan.items()})
            plan = {d: (size, stride, dilation, 0, out) for d, (size, stride, dilation, _, out) in plan.items()}
        self._window_stage(source, plan, channel)
        return None

    def _window_of(self, extent: int) -> tuple[int, int, int, int, int]:
        """(size, stride, dilation, padding, number of places) of a window over `extent` elements."""
        size, stride = self.rng.choice((1, 2, 3, 3, 13)), self.rng.choice((1, 1, 2, 3))
        dilation, pad = self.rng.choice((1, 1, 2)), self.rng.choice((0, 1, 1, 2))
        span = (size - 1) * dilation + 1
        if span > extent + 2 * pad:
            size, dilation, span = 1, 1, 1
        return size, stride, dilation, pad, (extent + 2 * pad - span) // stride + 1

    def _window_stage(
        self, source: Tensor, plan: dict[int, tuple[int, int, int, int, int]], channel: int | None
    ) -> None:
        rank = len(source.shape)
        ks = {d: te.reduce_axis(p[0], f"k{d}") for d, p in plan.items()}
        summed = {**ks, channel: te.reduce_axis(source.shape[channel], "c")} if channel is not None else ks
        kept = [d for d in range(rank) if d != channel]
        extents = [plan[d][4] if d in plan else source.shape[d] for d in kept]
        room = 4 * MAX_POINTS // (math.prod(extents) * math.prod(k.extent for k in summed.values()))
        filters = self.extent(room) if channel is not None and room > 1 else None
        pooled = channel is None and self.chance(0.5)

        def body(*axes: Expr) -> Any:
            place = dict(zip(kept, axes, strict=False))
            index, conditions = [], []
            for d, size in enumerate(source.shape):
                if d not in plan:
                    index.append(summed[d] if d == channel else place[d])
                    continue
                _, stride, dilation, pad, _ = plan[d]
                at = place[d] * stride + ks[d] * dilation - pad
                index.append(at)
                conditions += [at >= 0, at < size] if pad else []
            x = self.load(source, index)
            if conditions:
                x = te.select(te.all(*conditions), x, ex.number(x.dtype, 0))
            if pooled:
                return ex.reduced(self.rng, [x], tuple(summed.values()), product=False)
            weights: list[Index] = [(k, k.extent) for k in summed.values()]
            if filters is not None:
                weights.append((axes[-1], filters))
            elif self.chance(0.6):  # depthwise
                weights += [(place[d], source.shape[d]) for d in kept if d not in plan][-1:]
            return ex.reduced(self.rng, [x, self.operand(weights)], tuple(summed.values()), product=True)

        self.stage([*extents, *([filters] if filters is not None else [])], body)

    def image(self, base: Tensor) -> None:
        """A convolution of its own, of numbers that tensor cores take."""
        for tensor in ImageProduct.random(self.rng).tensors(self.name("I")):
            self.read.update(t.name for t in tensor.op.inputs)
            self.stages.append(tensor)
        self.pool.append(self.stages[-1])

    def overlap(self, base: Tensor) -> None:
        """A reduction that reads two moving windows of a stage before it, whose region is therefore their union."""
        if not base.shape or max(base.shape) < 3:
            return self.window(base)
        dim = self.rng.choice([d for d, e in enumerate(base.shape) if e >= 3])
        source = base
        if self.chance(0.7):  # a stage that is worth computing where it is read
            source = self._padded(base, {dim: 1}) if self.chance(0.5) else self._expensive(base)
        size = self.rng.choice((1, 2, 3))
        k = te.reduce_axis(size, "k")
        places = source.shape[dim] - size + 1
        ways = moves_within(places)
        if self.chance(0.4):  # windows that move together
            ways = ways[:3]
        moves = [self.rng.choice(ways) for _ in range(self.rng.choice((1, 2, 2)))]
        extents = list(source.shape)
        extents[dim] = min(extent for extent, _ in moves)
        room = 4 * MAX_POINTS // (math.prod(extents) * size)
        filters = self.extent(room) if room > 1 and len(extents) < MAX_RANK and self.chance(0.8) else None

        def body(*axes: Expr) -> Any:
            values = []
            for _, move in moves:
                index = [move(a) + k if d == dim else a for d, a in enumerate(axes[: len(extents)])]
                values.append(self.load(source, index))
            weights: list[Index] = [(k, size)] + ([(axes[-1], filters)] if filters is not None else [])
            values = [self.mixed(values), self.operand(weights)]
            return ex.reduced(self.rng, values, (k,), product=True)

        self.stage([*extents, *([filters] if filters is not None else [])], body)
        return None

    def _expensive(self, base: Tensor) -> Tensor:
        def body(*axes: Expr) -> Expr:
            x = self.load(base, axes)
            if DTYPES[x.dtype].is_float:
                return te.tanh(x)
            return te.logical_not(x) if x.dtype == "bool" else x // 3

        return self.stage(base.shape, body, "E")

    def constant(self, base: Tensor) -> None:
        """A stage that reads nothing but its axes."""

        def body(*axes: Expr) -> Expr:
            value = te.const(2, "float32")
            for axis in axes:
                value = value * 0.5 + te.cast(te.mod(axis * 3 + 1, 7), "float32")
            return value

        self.stage(base.shape, body, "C")

    def _padded(self, base: Tensor, pads: dict[int, int]) -> Tensor:
        extents = [e + 2 * pads.get(d, 0) for d, e in enumerate(base.shape)]

        def body(*axes: Expr) -> Expr:
            index = [a - pads.get(d, 0) for d, a in enumerate(axes)]
            inside = [c for d, i in enumerate(index) if pads.get(d) for c in (i >= 0, i < base.shape[d])]
            return te.select(te.all(*inside), self.load(base, index), ex.number(base.dtype, 0))

        return self.stage(extents, body, "P")

    def softmax(self, base: Tensor) -> None:
        """Maximum, exponentials, their sum, quotient, along one axis; some of it in one expression at times."""
        if not base.shape or base.dtype not in ("float32", "float64"):
            return self.reduction(base)
        dim = len(base.shape) - 1 if self.chance(0.7) else self.rng.randrange(len(base.shape))
        rest = [e for d, e in enumerate(base.shape) if d != dim]
        k, r = te.reduce_axis(base.shape[dim], "k"), te.reduce_axis(base.shape[dim], "r")

        def along(axes: Sequence[Expr], axis: Expr) -> list[Expr]:
            return [*axes[:dim], axis, *axes[dim:]]

        def without(axes: Sequence[Expr]) -> list[Expr]:
            return [a for d, a in enumerate(axes) if d != dim]

        top = self.stage(rest, lambda *x: te.max(self.load(base, along(x, k)), axis=k), "max")
        e = self.stage(base.shape, lambda *x: te.exp(self.load(base, x) - self.load(top, without(x))), "exp")
        if self.chance(0.5):
            total = self.stage(rest, lambda *x: te.sum(self.load(e, along(x, r)), axis=r), "total")
            self.stage(base.shape, lambda *x: self.load(e, x) / self.load(total, without(x)), "soft")
        else:
            self.stage(
                base.shape, lambda *x: self.load(e, x) / te.sum(self.load(e, along(without(x), r)), axis=r), "soft"
            )
        return None

    def normalise(self, base: Tensor) -> None:
        """Mean and variance of rows, and the normalised rows."""
        if not base.shape or base.dtype not in ("float32", "float64"):
            return self.reduction(base)
        *rest, size = base.shape
        k = te.reduce_axis(size, "k")

        def moments(*x: Expr) -> Any:
            value = self.load(base, [*x, k])
            return te.reducer(
                lambda a, b: (a[0] + b[0], a[1] + b[1]), lambda s, t: (te.const(0.0, s), te.const(0.0, t)), "moments"
            )((value, value * value), axis=k)

        made = te.compute(tuple(rest), moments, self.name("moments"))
        self.stages.extend(made)
        self.pool.extend(made)

        def body(*x: Expr) -> Expr:
            mean, square = (self.load(t, x[:-1]) / float(size) for t in made)
            return (self.load(base, x) - mean) / te.sqrt(te.abs(square - mean * mean) + 1.0)

        self.stage(base.shape, body, "norm")
        return None

    def copy(self, base: Tensor) -> None:
        """Elements moved by a quasi-affine index: reshapes, slices, flips, shifts, repetitions, concatenations."""
        if not base.shape:
            return self.elementwise(base)
        dim = self.rng.randrange(len(base.shape))
        size = base.shape[dim]
        before, after = list(base.shape[:dim]), list(base.shape[dim + 1 :])
        shapes = {
            "flip": [size],
            "shift": [size],
            "slice": [max(1, size // 2)],
            "repeat": [2 * size],
            "tile": [size + 3],
            "split": [max(1, size // 3), min(3, size)],
            "merge": [size * after[0]] if after else [size],
            "concat": [size + 2],
            "pick": [],
        }
        way = self.rng.choice(list(shapes))
        if way == "merge":
            after = after[1:]
        low = self.rng.randint(0, size - 1)

        def body(*axes: Expr) -> Expr:
            middle = axes[len(before) : len(before) + len(shapes[way])]
            index = moved(way, middle, size, base.shape[dim + 1 :], low)
            rest = axes[len(before) + len(shapes[way]) :]
            if way == "concat":
                i = middle[0]
                x = te.select(i < size, self.load(base, [*axes[: len(before)], i, *rest]), ex.number(base.dtype, 1))
                return x
            return self.load(base, [*axes[: len(before)], *index, *rest])

        self.stage([*before, *shapes[way], *after], body)
        return None

    def lookup(self, base: Tensor) -> None:
        """Elements of the base at an index that is data, or arithmetic, along one dimension, or of a table at the base's
        elements; some of them with another operand, some reduced."""
        if not base.shape:
            return self.elementwise(base)
        dim, extents = self.rng.randrange(len(base.shape)), list(base.shape)
        dtype, as_table = self.rng.choice(_INDEX_TYPES), base.dtype not in _INDEX_TYPES or self.chance(0.5)
        size = extents[dim]
        extents[dim] = self.extent(MAX_POINTS * size // math.prod(extents)) if as_table else size
        last = te.reduce_axis(extents[-1], "k") if self.chance(0.4) else None

        def body(*axes: Expr) -> Any:
            axes = axes if last is None else (*axes, last)
            every: list[Index] = list(zip(axes, extents, strict=True))
            if as_table and self.chance(0.4):
                at = arithmetic(self.rng, axes)
                values = [self.load(base, [*axes[:dim], at, *axes[dim + 1 :]])]
            elif as_table:
                at = looked_up(self.rng, self.operand(self.subset(every), dtype), axes)
                values = [self.load(base, [*axes[:dim], at, *axes[dim + 1 :]])]
            else:
                at = looked_up(self.rng, self.load(base, axes), axes)
                table = self.placeholder((self.extent(), extents[dim]) if self.chance(0.5) else (self.extent(),))
                values = [self.load(table, [at, axes[dim]][: len(table.shape)])]
            if self.chance(0.5):
                values.append(self.operand(self.subset(every)))
            return self.mixed(values) if last is None else ex.reduced(self.rng, values, (last,), product=True)

        self.stage(extents if last is None else extents[:-1], body)
        return None

    def stencil(self, base: Tensor) -> None:
        """Neighbours along one axis combined: of the inner points, or of all with a select at the ends."""
        if not base.shape:
            return self.elementwise(base)
        dim = self.rng.randrange(len(base.shape))
        size, reach = base.shape[dim], self.rng.choice((1, 1, 2))
        guarded = size <= 2 * reach or self.chance(0.5)
        shape = [e - 2 * reach if d == dim and not guarded else e for d, e in enumerate(base.shape)]

        def body(*axes: Expr) -> Expr:
            values = []
            for offset in range(-reach, reach + 1):
                at = axes[dim] + (offset if guarded else offset + reach)
                value = self.load(base, [*axes[:dim], at, *axes[dim + 1 :]])
                if guarded and offset:
                    value = te.select(te.all(at >= 0, at < size), value, ex.number(base.dtype, 1))
                values.append(value)
            return self.mixed(values)

        self.stage(shape, body)
        return None


_KINDS: dict[Callable[[_Program, Tensor], None], int] = {
    _Program.elementwise: 6,
    _Program.contraction: 6,
    _Program.matrices: 2,
    _Program.reduction: 5,
    _Program.window: 5,
    _Program.image: 2,
    _Program.overlap: 4,
    _Program.copy: 3,
    _Program.stencil: 2,
    _Program.lookup: 3,
    _Program.softmax: 2,
    _Program.normalise: 1,
    _Program.argument: 1,
    _Program.running: 1,
    _Program.recurrence: 2,
    _Program.constant: 1,
}
assert set(DTYPE_WEIGHTS) == set(DTYPES)
