"""Batch splitting: kernels compute a few images at a time, so that intermediates stay in the caches of the cores.

    y = f(x)    ->    y = concat(f(x[0:2]), f(x[2:4]), ...)

A value of the whole batch goes through the last cache, once when it is written and once for each reader; one of a few
images stays in the core's cache. But each part of the batch reads the weights again. The number of images of a part is
chosen for each kernel so that the traffic of both is least: few for large images, as in the first layers, and all for
large weights. The parts of a value are contiguous, so that slicing and concatenating them copies nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from autosched.graph.fusion.cost import FusionRates
from autosched.graph.fusion.node_properties import has_batch, is_batchwise
from autosched.graph.fusion.partition import partition
from autosched.graph.graph import Graph, Node, fresh_name
from autosched.graph.operators import results_of
from autosched.graph.steps import Group
from autosched.ir.dtype import DTYPES
from autosched.ir.size import has_size, value_of

Part = tuple[int, int]  # a range of images, without its end


def split_batches(graph: Graph, rates: FusionRates, cache_bytes: int) -> Graph:
    """Split the batch where that is faster for cores whose private caches have `cache_bytes` in total."""
    inputs = [graph.values[name] for name in graph.inputs]
    count = next((value.shape[0] for value in inputs if value.shape and not value.is_empty), 1)
    if count == 1 or has_size((count,)):
        return graph
    groups = [step for step in partition(graph, rates) if isinstance(step, Group)]
    sizes = _Sizes(graph, groups, count, rates, cache_bytes).best()
    if all(size == count for size in sizes):
        return graph
    stored = {name: size for group, size in zip(groups, sizes, strict=True) for name in group.outputs}
    return _Split(graph, count, stored).graph_of_parts()


@dataclass(frozen=True)
class _Sizes:
    """The choice of the images of a part for each kernel, in order."""

    graph: Graph
    groups: Sequence[Group]
    count: int
    rates: FusionRates
    cache_bytes: int

    def best(self) -> tuple[int, ...]:
        """Return the sizes with the fewest cycles of calls and traffic, by dynamic programming over the kernels."""
        ways: dict[int, tuple[float, tuple[int, ...]]] = {self.count: (0.0, ())}
        for group in self.groups:
            before = list(ways.items())
            ways = {
                size: min((spent + self._cycles(group, size, last), (*way, size)) for last, (spent, way) in before)
                for size in self._possible(group)
            }
        return min(ways.values())[1]

    def _possible(self, group: Group) -> list[int]:
        if not all(is_batchwise(node, self.graph, self.count) for node in group.nodes):
            return [self.count]
        return list(_nested(self.count))

    def _cycles(self, group: Group, size: int, last: int) -> float:
        """Return the cycles of calling a kernel for each part, of reading its weights, and of moving its images.

        Images are moved if they do not fit in the cache, or if the previous kernel has parts of another size `last`,
        because the operands of residual connections are then further away.
        """
        parts = self.count // size
        read, written, weights = self._bytes(group)
        is_evicted = size * (read + written) + weights > self.cache_bytes
        moved = parts * weights + self.count * ((read + 2 * written) * is_evicted + 2 * read * (size != last))
        return parts * self.rates.call_cycles + moved / self.rates.bytes_per_cycle

    def _bytes(self, group: Group) -> tuple[int, int, int]:
        """Return the bytes read and written per image, and those of the operands that all images share."""
        read, weights = 0, 0
        for name in group.inputs:
            if has_batch(self.graph, name, self.count):
                read += self._nbytes(name) // self.count
            else:
                weights += self._nbytes(name)
        return read, sum(map(self._nbytes, group.outputs)) // self.count, weights

    def _nbytes(self, name: str) -> int:
        value = self.graph.values[name]
        return value_of(math.prod(value.shape)) * DTYPES[value.dtype].nbytes


def _nested(count: int) -> Iterator[int]:
    """Yield sizes of parts from the whole batch to one image, each a divisor of the one before."""
    while count > 1:
        yield count
        count //= next(n for n in range(2, count + 1) if count % n == 0)
    yield 1


@dataclass(frozen=True)
class _Split:
    """The graph with the batch split. `stored`: the images of a part, for each value that kernels write."""

    graph: Graph
    count: int
    stored: Mapping[str, int]

    @property
    def whole(self) -> Part:
        return 0, self.count

    @cached_property
    def needed(self) -> dict[str, dict[Part, None]]:
        """The parts of each value that its readers need."""
        parts_of: dict[str, dict[Part, None]] = {name: {} for name in self.graph.values}
        for name in self.graph.outputs:
            parts_of[name][self.whole] = None
        for node in reversed(self.graph.nodes):
            for part in self._computed_parts(node, parts_of):
                for name in node.used:
                    parts_of[name][part if has_batch(self.graph, name, self.count) else self.whole] = None
        return parts_of

    def _computed_parts(self, node: Node, needed: Mapping[str, Mapping[Part, None]]) -> list[Part]:
        """Return the parts of its results that a node computes."""
        if not is_batchwise(node, self.graph, self.count):
            return [self.whole]
        return sorted({p for name in node.outputs for part in needed[name] for p in self._covering_parts(name, part)})

    def _covering_parts(self, name: str, part: Part) -> list[Part]:
        """Return the computed parts of a value that cover a part."""
        if name not in self.stored:
            return [part]
        size, (start, stop) = self.stored[name], part
        return [(n, n + size) for n in range(start // size * size, stop, size)]

    def graph_of_parts(self) -> Graph:
        nodes, values = list[Node](), dict(self.graph.values)

        def add(node: Node) -> None:
            nodes.append(node)
            values.update((value.name, value) for value in results_of(node, values))

        for name in self.graph.inputs:
            for node in self._glue_nodes(name, [self.whole]):
                add(node)
        for node in self.graph.nodes:
            computed = self._computed_parts(node, self.needed)
            for part in computed:
                inputs = (None if x is None else self._name(x, part) for x in node.inputs)
                add(replace(node, inputs=tuple(inputs), outputs=tuple(self._name(x, part) for x in node.outputs)))
            for name in node.outputs:
                for glue in self._glue_nodes(name, computed):
                    add(glue)
        return self.graph.with_nodes(nodes, values.values())

    def _glue_nodes(self, name: str, computed: Sequence[Part]) -> Iterator[Node]:
        """Yield concatenations and slices for the parts of a value that are needed but not computed as such."""
        for part in self.needed[name]:
            if part in computed:
                continue
            start, stop = part
            inner = [p for p in computed if start <= p[0] and p[1] <= stop]
            if inner:
                yield Node("concat", tuple(self._name(name, p) for p in inner), (self._name(name, part),), {"axis": 0})
            else:
                outer = next(p for p in computed if p[0] <= start and stop <= p[1])
                place = {"starts": (start - outer[0],), "stops": (stop - outer[0],), "axes": (0,)}
                yield Node("slice", (self._name(name, outer),), (self._name(name, part),), place)

    def _name(self, name: str, part: Part) -> str:
        if part == self.whole or not has_batch(self.graph, name, self.count):
            return name
        return fresh_name(self.graph.values, f"{name}[{part[0]}:{part[1]}]")
