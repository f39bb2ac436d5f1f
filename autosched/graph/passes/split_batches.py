"""Images of a batch a few at a time, so that what lies between two layers stays in the caches of the cores.

    y = f(x)    ->    y = concat(f(x[0:2]), f(x[2:4]), ...)

A value of all images goes through the last cache, once when it is written and once for each reader; one of a few is
read where it was written. But the weights are read for each of these parts. Of each kernel it is decided how many
images are a part, so that the sum of both is least: few where images are large, as in the first layers, and all where
weights are. Parts lie behind each other, so that taking apart and putting together moves nothing.
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

Part = tuple[int, int]  # the first image, and the one after the last


def split_batches(graph: Graph, rates: FusionRates, cache_bytes: int) -> Graph:
    """The graph with parts of the batch where that is faster for cores whose own caches hold so many bytes together."""
    count = next((shape[0] for name in graph.inputs if (shape := graph.values[name].shape)), 1)
    if count == 1:
        return graph
    groups = [step for step in partition(graph, rates) if isinstance(step, Group)]
    sizes = _Sizes(graph, groups, count, rates, cache_bytes).best()
    if all(size == count for size in sizes):
        return graph
    stored = {name: size for group, size in zip(groups, sizes, strict=True) for name in group.outputs}
    return _Split(graph, count, stored).graph_of_parts()


@dataclass(frozen=True)
class _Sizes:
    """How many images are a part, for each kernel in order."""

    graph: Graph
    groups: Sequence[Group]
    count: int
    rates: FusionRates
    cache_bytes: int

    def best(self) -> tuple[int, ...]:
        """The sizes of which the cycles beside arithmetic are fewest: the shortest way from kernel to kernel."""
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
        """Of beginning a kernel for each part and moving its weights, and its images where they leave the cache, or
        where the kernel before has others in a part: the skipped layers of a residual are further away then."""
        parts = self.count // size
        read, written, weights = self._bytes(group)
        leaves = size * (read + written) + weights > self.cache_bytes
        moved = parts * weights + self.count * ((read + 2 * written) * leaves + 2 * read * (size != last))
        return parts * self.rates.call_cycles + moved / self.rates.bytes_per_cycle

    def _bytes(self, group: Group) -> tuple[int, int, int]:
        """Read and written of an image, and those of what all images share."""
        read, weights = 0, 0
        for name in group.inputs:
            if has_batch(self.graph, name, self.count):
                read += self._nbytes(name) // self.count
            else:
                weights += self._nbytes(name)
        return read, sum(map(self._nbytes, group.outputs)) // self.count, weights

    def _nbytes(self, name: str) -> int:
        value = self.graph.values[name]
        return math.prod(value.shape) * DTYPES[value.dtype].nbytes


def _nested(count: int) -> Iterator[int]:
    """Sizes of parts that each divide the one before, from the whole on to one image."""
    while count > 1:
        yield count
        count //= next(n for n in range(2, count + 1) if count % n == 0)
    yield 1


@dataclass(frozen=True)
class _Split:
    """`stored`: of what kernels write, the images of a part."""

    graph: Graph
    count: int
    stored: Mapping[str, int]

    @property
    def whole(self) -> Part:
        return 0, self.count

    @cached_property
    def wanted(self) -> dict[str, dict[Part, None]]:
        """The parts of each value that are read, with those that are made."""
        found: dict[str, dict[Part, None]] = {name: {} for name in self.graph.values}
        for name in self.graph.outputs:
            found[name][self.whole] = None
        for node in reversed(self.graph.nodes):
            for part in self._made(node, found):
                for name in node.used:
                    found[name][part if has_batch(self.graph, name, self.count) else self.whole] = None
        return found

    def _made(self, node: Node, wanted: Mapping[str, Mapping[Part, None]]) -> list[Part]:
        """The parts that a node makes of its results."""
        if not is_batchwise(node, self.graph, self.count):
            return [self.whole]
        return sorted({p for name in node.outputs for part in wanted[name] for p in self._pieces(name, part)})

    def _pieces(self, name: str, part: Part) -> list[Part]:
        """What is made of a value where a part of it is wanted."""
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
            for node in self._taken(name, [self.whole]):
                add(node)
        for node in self.graph.nodes:
            made = self._made(node, self.wanted)
            for part in made:
                inputs = (None if x is None else self._name(x, part) for x in node.inputs)
                add(replace(node, inputs=tuple(inputs), outputs=tuple(self._name(x, part) for x in node.outputs)))
            for name in node.outputs:
                for glue in self._taken(name, made):
                    add(glue)
        return self.graph.with_nodes(nodes, values.values())

    def _taken(self, name: str, made: Sequence[Part]) -> Iterator[Node]:
        """Nodes for the parts of a value that are wanted, but not made as they are."""
        for part in self.wanted[name]:
            if part in made:
                continue
            start, stop = part
            inner = [p for p in made if start <= p[0] and p[1] <= stop]
            if inner:
                yield Node("concat", tuple(self._name(name, p) for p in inner), (self._name(name, part),), {"axis": 0})
            else:
                outer = next(p for p in made if p[0] <= start and stop <= p[1])
                place = {"starts": (start - outer[0],), "stops": (stop - outer[0],), "axes": (0,)}
                yield Node("slice", (self._name(name, outer),), (self._name(name, part),), place)

    def _name(self, name: str, part: Part) -> str:
        if part == self.whole or not has_batch(self.graph, name, self.count):
            return name
        return fresh_name(self.graph.values, f"{name}[{part[0]}:{part[1]}]")
