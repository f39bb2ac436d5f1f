"""What a pipeline is written with: images that are indexed, stages that compute one from others.

A program is a function of a maker, rows and columns. `TeMaker` makes a tensor expression of it, `NumpyMaker` an array.
Integers are computed in their own type, in NumPy in 64 bits: programs cast to a type that holds the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from autosched import te
from autosched.te import Tensor

Shape = tuple[int, ...]
Value = Callable[..., Any]  # of the indices of a point
BYTE = 256


class Image(Protocol):
    """Elements by their indices: plain ones, or through `edge` clamped to the image."""

    @property
    def shape(self) -> Shape: ...

    def __getitem__(self, indices: Any) -> Any: ...


class Maker(Protocol):
    """Makes the images of a program."""

    def input(self, name: str, shape: Shape, dtype: str = "float32", high: int = BYTE) -> Image:
        """An image that is given; its integers are less than `high`, its floats about 0 to 1."""
        ...

    def stage(self, name: str, shape: Shape, value: Value) -> Image: ...

    def total(self, name: str, shape: Shape, extents: Shape, value: Value) -> Image:
        """The sum of `value` of a point's indices and those of `extents`."""
        ...

    def scatter(self, name: str, shape: Shape, axis: int, extents: Shape, place: Value, value: Value) -> Image:
        """The sum of `value` over those indices of `extents` whose `place` is the point's index along `axis`.

        Both take the indices of a point and those of `extents`, and neither uses the index along `axis`.
        """
        ...

    def least(self, name: str, shape: Shape, extent: int, value: Value) -> Image:
        """The number from 0 to `extent` - 1, the last index of `value`, for which `value` is least, as int32."""
        ...

    def scan(self, name: str, shape: Shape, axis: int, step: Value, before: Value, is_backwards: bool = False) -> Image:
        """`step` of the value one position earlier along `axis`, or later, and of a point's indices; at the first
        position the value one earlier is `before` of the indices."""
        ...

    def edge(self, image: Image) -> Image:
        """The image with its border repeated outside, in its last two dimensions."""
        ...

    def maximum(self, a: Any, b: Any) -> Any: ...

    def minimum(self, a: Any, b: Any) -> Any: ...

    def sqrt(self, a: Any) -> Any: ...

    def exp(self, a: Any) -> Any: ...

    def floor(self, a: Any) -> Any: ...

    def absolute(self, a: Any) -> Any: ...

    def average(self, a: Any, b: Any) -> Any:
        """The mean of two integers that are not negative, rounded up, in their type."""
        ...

    def apart(self, a: Any, b: Any) -> Any:
        """The absolute difference of two integers."""
        ...

    def select(self, condition: Any, a: Any, b: Any) -> Any: ...

    def equal(self, a: Any, b: Any) -> Any: ...

    def cast(self, a: Any, dtype: str) -> Any:
        """`a`, which fits, as another type; floats become integers towards 0."""
        ...


@dataclass(frozen=True)
class TeMaker:
    """Makes tensors. `inputs`: the placeholders in order, with `highs`. `dtypes`: of inputs and casts."""

    inputs: list[Tensor] = field(default_factory=list)
    highs: list[int] = field(default_factory=list)
    dtypes: set[str] = field(default_factory=set)
    maximum: Value = te.max
    minimum: Value = te.min
    sqrt: Value = te.sqrt
    exp: Value = te.exp
    floor: Value = te.floor
    absolute: Value = te.abs
    select: Value = te.select
    equal: Value = te.equal

    def input(self, name: str, shape: Shape, dtype: str = "float32", high: int = BYTE) -> Image:
        self.dtypes.add(dtype)
        self.highs.append(high)
        self.inputs.append(te.placeholder(shape, dtype, name=name))
        return self.inputs[-1]

    def stage(self, name: str, shape: Shape, value: Value) -> Image:
        made: Image = te.compute(shape, value, name=name)
        return made

    def total(self, name: str, shape: Shape, extents: Shape, value: Value) -> Image:
        over = _reduce_axes(name, extents)
        return self.stage(name, shape, lambda *point: te.sum(value(*point, *over), axis=over))

    def scatter(self, name: str, shape: Shape, axis: int, extents: Shape, place: Value, value: Value) -> Image:
        over = _reduce_axes(name, extents)

        def arriving(*point: Any) -> Any:
            term = value(*point, *over)
            return te.sum(te.select(te.equal(place(*point, *over), point[axis]), term, term * 0), axis=over)

        return self.stage(name, shape, arriving)

    def least(self, name: str, shape: Shape, extent: int, value: Value) -> Image:
        over = _reduce_axes(name, (extent,))[0]
        number, _ = te.compute(shape, lambda *point: te.argmin(value(*point, over), axis=over), name=name)
        found: Image = number
        return found

    def scan(self, name: str, shape: Shape, axis: int, step: Value, before: Value, is_backwards: bool = False) -> Image:
        by = 1 if is_backwards else -1

        def fn(y: Any, *point: Any) -> Any:
            return step(y[(*point[:axis], point[axis] + by, *point[axis + 1 :])], *point)

        made: Image = te.scan(shape, fn, init=before, axis=axis, name=name)
        return made

    def average(self, a: Any, b: Any) -> Any:
        return te.cast((te.cast(a, "int32") + te.cast(b, "int32") + 1) >> 1, a.dtype)

    def apart(self, a: Any, b: Any) -> Any:
        return te.max(a, b) - te.min(a, b)

    def edge(self, image: Image) -> Image:
        return _Clamped(image, lambda i, n: te.min(te.max(i, 0), n - 1))

    def cast(self, a: Any, dtype: str) -> Any:
        self.dtypes.add(dtype)
        return te.cast(a, dtype)


def _reduce_axes(name: str, extents: Shape) -> tuple[Any, ...]:
    return tuple(te.reduce_axis(extent, name=f"{name}_r{n}") for n, extent in enumerate(extents))


@dataclass(frozen=True)
class _Clamped:
    """An image whose last two indices are clamped."""

    image: Image
    clamp: Callable[[Any, int], Any]

    @property
    def shape(self) -> Shape:
        return self.image.shape

    def __getitem__(self, indices: Sequence[Any]) -> Any:
        pairs = list(zip(indices, self.shape, strict=True))
        return self.image[(*(i for i, _ in pairs[:-2]), *(self.clamp(i, n) for i, n in pairs[-2:]))]


@dataclass(frozen=True)
class NumpyMaker:
    """Evaluates a program in float64 and int64. `arrays`: its inputs in order."""

    arrays: list[npt.NDArray[Any]] = field(default_factory=list)
    maximum: Value = np.maximum
    minimum: Value = np.minimum
    sqrt: Value = np.sqrt
    exp: Value = np.exp
    floor: Value = np.floor
    absolute: Value = np.abs
    select: Value = np.where
    equal: Value = np.equal

    def input(self, name: str, shape: Shape, dtype: str = "float32", high: int = BYTE) -> Image:
        given = self.arrays.pop(0)
        assert given.shape == shape, f"{name} has shape {shape}, got {given.shape}"
        image: Image = self.cast(given, dtype)
        return image

    def stage(self, name: str, shape: Shape, value: Value) -> Image:
        return np.array(np.broadcast_to(value(*_grid(shape)), shape))

    def total(self, name: str, shape: Shape, extents: Shape, value: Value) -> Image:
        terms = (np.broadcast_to(value(*_grid(shape), *over), shape) for over in np.ndindex(*extents))
        total: Image = sum(terms, np.zeros(shape))
        return total

    def scatter(self, name: str, shape: Shape, axis: int, extents: Shape, place: Value, value: Value) -> Image:
        others = (*shape[:axis], 1, *shape[axis + 1 :])
        grid = _grid((*others, *extents))
        places, terms = (np.broadcast_to(f(*grid), (*others, *extents)) for f in (place, value))
        out = np.zeros(shape, terms.dtype)
        np.add.at(out, (*grid[:axis], places, *grid[axis + 1 : len(shape)]), terms)
        return out

    def least(self, name: str, shape: Shape, extent: int, value: Value) -> Image:
        number: Image = np.argmin([np.broadcast_to(value(*_grid(shape), n), shape) for n in range(extent)], axis=0)
        return number

    def scan(self, name: str, shape: Shape, axis: int, step: Value, before: Value, is_backwards: bool = False) -> Image:
        grid, lines = _grid(shape), list[npt.NDArray[Any]]()
        line_shape = (*shape[:axis], 1, *shape[axis + 1 :])
        order = range(shape[axis])[:: -1 if is_backwards else 1]
        for n in order:
            point = (*grid[:axis], n, *grid[axis + 1 :])
            lines.append(np.broadcast_to(step(lines[-1] if lines else before(*point), *point), line_shape))
        return np.concatenate(lines[:: -1 if is_backwards else 1], axis)

    def average(self, a: Any, b: Any) -> Any:
        return (a + b + 1) >> 1

    def apart(self, a: Any, b: Any) -> Any:
        return np.abs(a - b)

    def edge(self, image: Image) -> Image:
        return _Clamped(image, lambda i, n: np.clip(i, 0, n - 1))

    def cast(self, a: Any, dtype: str) -> Any:
        return np.asarray(a).astype("float64" if dtype.startswith("float") else "int64")


def _grid(shape: Shape) -> tuple[npt.NDArray[Any], ...]:
    return np.ogrid[tuple(slice(0, n) for n in shape)]
