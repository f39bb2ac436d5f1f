"""What a pipeline is written with: images that are indexed, stages that compute one from others.

A program is a function of a maker, rows and columns. `TeMaker` makes a tensor expression of it, `NumpyMaker` an array.
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


class Image(Protocol):
    """Elements by their indices: plain ones, or through `edge` clamped to the image."""

    @property
    def shape(self) -> Shape: ...

    def __getitem__(self, indices: Any) -> Any: ...


class Maker(Protocol):
    """Makes the images of a program."""

    def input(self, name: str, shape: Shape, dtype: str = "float32") -> Image: ...

    def stage(self, name: str, shape: Shape, value: Value) -> Image: ...

    def edge(self, image: Image) -> Image:
        """The image with its border repeated outside, in its last two dimensions."""
        ...

    def maximum(self, a: Any, b: Any) -> Any: ...

    def minimum(self, a: Any, b: Any) -> Any: ...

    def sqrt(self, a: Any) -> Any: ...

    def exp(self, a: Any) -> Any: ...

    def select(self, condition: Any, a: Any, b: Any) -> Any: ...

    def is_even(self, i: Any) -> Any: ...

    def as_float(self, a: Any) -> Any: ...

    def as_byte(self, a: Any) -> Any:
        """A float from 0 to 255 as uint8, rounded to the nearest."""
        ...


@dataclass(frozen=True)
class TeMaker:
    """Makes tensors. `inputs`: the placeholders in order."""

    inputs: list[Tensor] = field(default_factory=list)
    maximum: Value = te.max
    minimum: Value = te.min
    sqrt: Value = te.sqrt
    exp: Value = te.exp
    select: Value = te.select

    def input(self, name: str, shape: Shape, dtype: str = "float32") -> Image:
        self.inputs.append(te.placeholder(shape, dtype, name=name))
        return self.inputs[-1]

    def stage(self, name: str, shape: Shape, value: Value) -> Image:
        made: Image = te.compute(shape, value, name=name)
        return made

    def edge(self, image: Image) -> Image:
        return _Clamped(image, lambda i, n: te.min(te.max(i, 0), n - 1))

    def is_even(self, i: Any) -> Any:
        return te.equal(i % 2, 0)

    def as_float(self, a: Any) -> Any:
        return te.cast(a, "float32")

    def as_byte(self, a: Any) -> Any:
        return te.cast(te.floor(a + 0.5), "uint8")


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
    """Evaluates a program in float64. `arrays`: its inputs in order."""

    arrays: list[npt.NDArray[Any]] = field(default_factory=list)
    maximum: Value = np.maximum
    minimum: Value = np.minimum
    sqrt: Value = np.sqrt
    exp: Value = np.exp
    select: Value = np.where

    def input(self, name: str, shape: Shape, dtype: str = "float32") -> Image:
        given = self.arrays.pop(0)
        assert given.shape == shape, f"{name} has shape {shape}, got {given.shape}"
        return given.astype("float64" if dtype.startswith("float") else "int64")

    def stage(self, name: str, shape: Shape, value: Value) -> Image:
        grid = np.ogrid[tuple(slice(0, n) for n in shape)]
        return np.array(np.broadcast_to(value(*grid), shape))

    def edge(self, image: Image) -> Image:
        return _Clamped(image, lambda i, n: np.clip(i, 0, n - 1))

    def is_even(self, i: Any) -> Any:
        return i % 2 == 0

    def as_float(self, a: Any) -> Any:
        return a.astype("float64")

    def as_byte(self, a: Any) -> Any:
        return np.floor(a + 0.5).astype("int64")
