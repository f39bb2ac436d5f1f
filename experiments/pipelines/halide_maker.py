"""What a program is written with, for Halide. Indices of an image are innermost last here, and first in Halide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from experiments.pipelines.makers import BYTE, Image, Shape, Value


@dataclass
class HalideImage:
    """A Func or an ImageParam, read by indices in NumPy's order.

    `type`: of a Func, whose call `cast` makes an expression; None of an ImageParam. `reads`: where something is told at
    each read; `name` what. `places`: where it is read; `readers`: names of stages that do. `updates`: how many update
    definitions the Func has; `inner`: the Func of a scan, which `func` copies.
    """

    func: Any
    shape: Shape
    name: str
    cast: Callable[[Any, Any], Any]
    type: Any
    reads: set[str]
    places: set[str] = field(default_factory=set)
    readers: set[str] = field(default_factory=set)
    updates: int = 0
    inner: Any = None

    def __getitem__(self, indices: Any) -> Any:
        indices = indices if isinstance(indices, tuple) else (indices,)
        self.places.add(str(indices))
        self.reads.add(self.name)
        value = self.func[tuple(reversed(indices))]
        return value if self.type is None else self.cast(self.type, value)


@dataclass
class HalideMaker:
    """Makes Funcs. `inputs` in order; `stages` in order, producers first."""

    hl: Any
    inputs: list[HalideImage] = field(default_factory=list)
    stages: list[HalideImage] = field(default_factory=list)
    reads: set[str] = field(default_factory=set)  # since the last stage

    def type_of(self, dtype: str) -> Any:
        makers = {"float": self.hl.Float, "uint": self.hl.UInt, "int": self.hl.Int}
        name = dtype.rstrip("0123456789")
        return makers[name](int(dtype[len(name) :]))

    def variables(self, shape: Shape) -> list[Any]:
        return [self.hl.Var(f"d{n}") for n in range(len(shape))]

    def input(self, name: str, shape: Shape, dtype: str = "float32", high: int = BYTE) -> Image:
        param = self.hl.ImageParam(self.type_of(dtype), len(shape), name)
        self.inputs.append(HalideImage(param, shape, name, self.hl.cast, None, self.reads))
        return self.inputs[-1]

    def stage(self, name: str, shape: Shape, value: Value) -> Image:
        func, variables = self.hl.Func(name), self.variables(shape)
        func[tuple(reversed(variables))] = value(*variables)
        return self._added(name, func, shape)

    def _added(self, name: str, func: Any, shape: Shape, updates: int = 0, inner: Any = None) -> HalideImage:
        for stage in self.stages:
            if stage.name in self.reads:
                stage.readers.add(name)
        self.reads.clear()
        image = HalideImage(func, shape, name, self.hl.cast, func.types()[0], self.reads, updates=updates, inner=inner)
        self.stages.append(image)
        return self.stages[-1]

    def _domain(self, extents: Shape) -> tuple[Any, ...]:
        """Variables of a reduction, the last one innermost."""
        domain = self.hl.RDom([(0, extent) for extent in reversed(extents)])
        return tuple(domain[n] for n in reversed(range(len(extents))))

    def total(self, name: str, shape: Shape, extents: Shape, value: Value) -> Image:
        func, variables, over = self.hl.Func(name), self.variables(shape), self._domain(extents)
        term, point = value(*variables, *over), tuple(reversed(variables))
        func[point] = self.hl.cast(term.type(), 0)
        func[point] += term
        return self._added(name, func, shape, updates=1)

    def scatter(self, name: str, shape: Shape, axis: int, extents: Shape, place: Value, value: Value) -> Image:
        func, variables, over = self.hl.Func(name), self.variables(shape), self._domain(extents)
        term = value(*variables, *over)
        func[tuple(reversed(variables))] = self.hl.cast(term.type(), 0)
        point = [*variables[:axis], self.hl.clamp(place(*variables, *over), 0, shape[axis] - 1), *variables[axis + 1 :]]
        func[tuple(reversed(point))] += term
        return self._added(name, func, shape, updates=1)

    def least(self, name: str, shape: Shape, extent: int, value: Value) -> Image:
        func, variables, (over,) = self.hl.Func(name), self.variables(shape), self._domain((extent,))
        func[tuple(reversed(variables))] = self.hl.argmin(value(*variables, over))[0]
        return self._added(name, func, shape)

    def scan(self, name: str, shape: Shape, axis: int, step: Value, before: Value, is_backwards: bool = False) -> Image:
        """A Func with an update, whose first dimension in memory is not the scan's, and a copy of it."""
        hl, variables, n = self.hl, self.variables(shape), shape[axis]
        order = sorted(range(len(shape)), key=lambda dimension: dimension != axis)  # of dimensions, outermost first
        scanned, func = hl.Func(f"{name}_scan"), hl.Func(name)

        def at(position: Any) -> tuple[Any, ...]:
            return tuple(reversed([position if d == axis else variables[d] for d in order]))

        def point(position: Any) -> list[Any]:
            return [position if d == axis else v for d, v in enumerate(variables)]

        over = hl.RDom([(1, n - 1)]).x if n > 1 else None
        first = step(before(*point(n - 1 if is_backwards else 0)), *point(n - 1 if is_backwards else 0))
        scanned[at(variables[axis])] = hl.undef(first.type())
        scanned[at(n - 1 if is_backwards else 0)] = first
        if over is not None:
            here, earlier = (n - 1 - over, n - over) if is_backwards else (over, over - 1)
            scanned[at(here)] = step(scanned[at(earlier)], *point(here))
        func[tuple(reversed(variables))] = scanned[at(variables[axis])]
        return self._added(name, func, shape, inner=scanned)

    def edge(self, image: Image) -> Image:
        assert isinstance(image, HalideImage)
        h, w = image.shape[-2:]
        clamped = self.hl.BoundaryConditions.repeat_edge(image.func, [(0, w), (0, h)])
        return replace(image, func=clamped, type=clamped.types()[0])

    def maximum(self, a: Any, b: Any) -> Any:
        return self.hl.max(a, b)

    def minimum(self, a: Any, b: Any) -> Any:
        return self.hl.min(a, b)

    def sqrt(self, a: Any) -> Any:
        return self.hl.sqrt(a)

    def exp(self, a: Any) -> Any:
        return self.hl.fast_exp(a)

    def select(self, condition: Any, a: Any, b: Any) -> Any:
        return self.hl.select(condition, a, b)

    def equal(self, a: Any, b: Any) -> Any:
        return a == b

    def absolute(self, a: Any) -> Any:
        return self.hl.abs(a)

    def average(self, a: Any, b: Any) -> Any:
        return self.hl.rounding_halving_add(a, b)

    def apart(self, a: Any, b: Any) -> Any:
        return self.hl.absd(a, b)

    def floor(self, a: Any) -> Any:
        return self.hl.floor(a)

    def cast(self, a: Any, dtype: str) -> Any:
        return self.hl.cast(self.type_of(dtype), a)
