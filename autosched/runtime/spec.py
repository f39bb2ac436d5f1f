"""Specification of a kernel's argument. NumPy is imported on first use: a worker that compiles has no arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from autosched.errors import UsageError
from autosched.ir.dtype import DTYPES

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class ArraySpec:
    """Name, shape and dtype (autosched's names, which are NumPy's and ml_dtypes') of one argument of a kernel."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @cached_property
    def numpy_dtype(self) -> np.dtype[Any]:
        return DTYPES[self.dtype].numpy_dtype

    @cached_property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.numpy_dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


def largest(specs: Sequence[ArraySpec]) -> int:
    """Return the number of the first of the largest of `specs`; 0 if there is none."""
    return max(range(len(specs)), key=lambda n: specs[n].nbytes, default=0)


def in_order(names: Sequence[str], arrays: tuple[object, ...], named: Mapping[str, object]) -> tuple[object, ...]:
    """Return an array for each of `names`: the first ones by position, the others by name. Raises UsageError if one is
    missing.
    """
    rest = names[len(arrays) :]
    if len(arrays) > len(names) or set(rest) != set(named):
        got = f" and {', '.join(named)}" if named else ""
        raise UsageError(f"the kernel takes {len(names)} arrays ({', '.join(names)}), but got {len(arrays)}{got}")
    return (*arrays, *(named[name] for name in rest))
