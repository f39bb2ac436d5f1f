"""Steps of a network at run time: kernels, views, concatenations in place, row writes to inputs, and loops."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from autosched.graph.graph import Array, Node, Shape
from autosched.graph.loops import Read


@dataclass(frozen=True)
class Group:
    """The nodes of one kernel. `inputs`: values from outside, constants last; `outputs`: values read outside."""

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def __str__(self) -> str:
        return f"{', '.join(self.outputs)} = {' '.join(node.operator for node in self.nodes)}({', '.join(self.inputs)})"


@dataclass(frozen=True)
class Alias:
    """A view: `output` is `base` in another shape, from the element `offset` on."""

    output: str
    base: str
    offset: int = 0

    def part_of(self, array: Array, shape: Shape) -> Array:
        """Return the view of the array of `base` that is `output`, of this `shape`."""
        return array.reshape(-1)[self.offset : self.offset + math.prod(shape)].reshape(shape)


@dataclass(frozen=True)
class Join:
    """A concatenation in place: `output` consists of the results `parts`, which are written one after the other."""

    output: str
    parts: tuple[str, ...]

    def of(self, arrays: Sequence[Array], shape: Shape) -> Array:
        """Return `output`, of this `shape`, from the arrays of its parts."""
        return np.concatenate([array.reshape(-1) for array in arrays]).reshape(shape)


@dataclass(frozen=True)
class Write:
    """A row write: `output` is `base`, an input, with `rows` at the indices `at` along `axis`.

    `at` is [n], or [batch, n] with indices for each index of the first dimension. `output` is in the input's memory if
    the caller passes that memory for both, else in a copy.
    """

    output: str
    base: str
    at: str
    rows: str
    axis: int

    @property
    def reads(self) -> tuple[str, ...]:
        return self.base, self.at, self.rows

    def of(self, base: Array, at: Array, rows: Array) -> Array:
        """Return `output` from the arrays of its operands."""
        if at.ndim == 2:
            each = replace(self, axis=self.axis - 1)
            return np.stack([each.of(*parts) for parts in zip(base, at, rows, strict=True)])
        written, size = np.moveaxis(base.copy(), self.axis, 0), base.shape[self.axis]
        for index, row in zip(at.tolist(), np.moveaxis(rows, self.axis, 0), strict=True):
            if -size <= index < size:
                written[index] = row
        return np.moveaxis(written, 0, self.axis)


@dataclass(frozen=True)
class Repeat:
    """A loop. `operands`: what it reads, and as what (`graph.loops`), in the order of its node; constants that are the
    same in all iterations are constants of its body."""

    node: Node
    operands: tuple[tuple[str, Read], ...]

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.operands)

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.node.outputs


NetworkStep: TypeAlias = Group | Alias | Join | Write | Repeat


def views_of(steps: Iterable[NetworkStep]) -> dict[str, Alias]:
    """Return each view as a view of a value that is no view."""
    views: dict[str, Alias] = {}
    for step in steps:
        if isinstance(step, Alias):
            outer = views.get(step.base, Alias(step.base, step.base))
            views[step.output] = Alias(step.output, outer.base, outer.offset + step.offset)
    return views
