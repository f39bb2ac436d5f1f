"""A program at a size: its inputs, its result in float64, and whether a result is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

import autosched as at
from autosched.te import Tensor
from experiments.pipelines.makers import NumpyMaker, Shape, TeMaker
from experiments.pipelines.programs import PROGRAMS

RIGHT = 1e-3  # of the largest value
STEPS = 1  # of integers that come from floats, where a rounding may fall to either side
ALIGNMENT = 64  # bytes of images in memory
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Contest:
    """A program at a size of rows and columns."""

    name: str
    size: tuple[int, int]
    inputs: list[Tensor]
    result: Tensor
    arrays: list[Array]
    is_exact: bool

    @classmethod
    def of(cls, name: str, size: tuple[int, int]) -> Contest:
        """Raises KeyError for an unknown program."""
        maker, rng = TeMaker(), np.random.default_rng(0)
        result = PROGRAMS[name](maker, *size)
        assert isinstance(result, Tensor)
        arrays = [_drawn(t, high, rng) for t, high in zip(maker.inputs, maker.highs, strict=True)]
        return cls(name, size, maker.inputs, result, arrays, "float32" not in maker.dtypes)

    @cached_property
    def expected(self) -> Array:
        """The result in float64 or int64, computed when it is first read: it takes gigabytes for some programs."""
        result = PROGRAMS[self.name](NumpyMaker(list(self.arrays)), *self.size)
        assert isinstance(result, np.ndarray)
        return result

    @property
    def workload(self) -> Callable[[], Tensor]:
        def pipeline() -> Tensor:
            return self.result

        pipeline.__name__ = self.name
        return at.workload(pipeline)

    @property
    def least_bytes(self) -> int:
        """The compulsory traffic: each input read once and the output written once."""
        return sum(t.nbytes for t in (*self.inputs, self.result))

    def out(self) -> Array:
        return aligned(self.result.shape, self.result.dtype)

    def is_right(self, out: Array, with_steps: bool = False) -> bool:
        """Integers computed from integers are equal, from floats (or `with_steps`) within STEPS; floats within RIGHT
        of the largest."""
        apart = np.abs(out.astype(self.expected.dtype) - self.expected)
        if self.result.dtype == "float32":
            return bool((apart <= RIGHT * np.abs(self.expected).max()).all())
        return bool((apart <= (0 if self.is_exact and not with_steps else STEPS)).all())


def aligned(shape: Shape, dtype: npt.DTypeLike) -> Array:
    """An array without values that begins at a multiple of ALIGNMENT."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def _drawn(tensor: Tensor, high: int, rng: np.random.Generator) -> Array:
    array = aligned(tensor.shape, tensor.dtype)
    array[...] = rng.random(tensor.shape) + 0.1 if tensor.dtype == "float32" else rng.integers(0, high, tensor.shape)
    return array
