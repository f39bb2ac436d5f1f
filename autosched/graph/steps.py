"""What a network is made of when it runs: kernels, views and parts of memory, rows that are written to inputs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from autosched.graph.graph import Array, Node, Shape


@dataclass(frozen=True)
class Group:
    """One kernel. `inputs`: values from outside, constants last; `outputs`: values that are needed outside."""

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def __str__(self) -> str:
        return f"{', '.join(self.outputs)} = {' '.join(node.operator for node in self.nodes)}({', '.join(self.inputs)})"


@dataclass(frozen=True)
class Alias:
    """`output` is `base` in another shape, from the element `offset` on."""

    output: str
    base: str
    offset: int = 0

    def part_of(self, array: Array, shape: Shape) -> Array:
        """The elements of `output`, of this `shape`, in the array of `base`."""
        return array.reshape(-1)[self.offset : self.offset + math.prod(shape)].reshape(shape)


@dataclass(frozen=True)
class Join:
    """`output` is its `parts`, results of groups, behind each other."""

    output: str
    parts: tuple[str, ...]

    def of(self, arrays: Sequence[Array], shape: Shape) -> Array:
        """`output`, of this `shape`, from the arrays of its parts."""
        return np.concatenate([array.reshape(-1) for array in arrays]).reshape(shape)


@dataclass(frozen=True)
class Write:
    """`output` is `base`, an input, with `rows` at the places `at` along `axis`, [n] or for each index of the first
    dimension [batch, n]. It is in the input's memory where the caller gives that for both, and else in a copy."""

    output: str
    base: str
    at: str
    rows: str
    axis: int

    @property
    def reads(self) -> tuple[str, ...]:
        return self.base, self.at, self.rows

    def of(self, base: Array, at: Array, rows: Array) -> Array:
        """`output` from the arrays that it is made of."""
        if at.ndim == 2:
            each = replace(self, axis=self.axis - 1)
            return np.stack([each.of(*parts) for parts in zip(base, at, rows, strict=True)])
        made, size = np.moveaxis(base.copy(), self.axis, 0), base.shape[self.axis]
        for place, row in zip(at.tolist(), np.moveaxis(rows, self.axis, 0), strict=True):
            if -size <= place < size:
                made[place] = row
        return np.moveaxis(made, 0, self.axis)


NetworkStep: TypeAlias = Group | Alias | Join | Write


def views_of(steps: Iterable[NetworkStep]) -> dict[str, Alias]:
    """Of each value that is a view, where it lies in one that is none."""
    views: dict[str, Alias] = {}
    for step in steps:
        if isinstance(step, Alias):
            outer = views.get(step.base, Alias(step.base, step.base))
            views[step.output] = Alias(step.output, outer.base, outer.offset + step.offset)
    return views
