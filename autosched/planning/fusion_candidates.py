"""Kernels over several reductions: what one kernel computes and only the next one reads, not stored as a whole.

Between the expansion and the projection of an inverted bottleneck lies an image of six times the channels, and between
the two products of a perceptron one of four times the columns. Where that does not stay in the second level cache, and
moving it takes a share of the time that the arithmetic takes, the kernels in a row are also drafted as one, whose tasks
make of it the rows that they need. Whichever way the analytic model says is faster is taken, until it is measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from autosched.graph.fusion.cost import FusionRates, rates_of
from autosched.graph.fusion.node_properties import Kind, facts_of
from autosched.graph.fusion.partition import dag_of
from autosched.graph.graph import Graph
from autosched.graph.steps import Alias, Group, NetworkStep, Write
from autosched.ir.dtype import DTYPES
from autosched.kernel.device import Device
from autosched.planning.fusion_choice import Alternative, PartForm, PricedGroup
from autosched.te.rewrites.collapse import collapse
from search_spaces.cpu.fused_reductions import FUSED_MARK, MOST_MEMBERS

LEAST_SHARE = 0.1  # of the cycles of the arithmetic, that moving what lies between takes, for it to be drafted
HELD_SHARE = 0.5  # of the second level cache, for what the next kernel finds there
SLOWER = 0.97  # of the time of the kernels apart, at most, for one that is drafted to be taken
Price = Callable[[Sequence[Group]], Sequence[PricedGroup]]
Joins = Callable[[Group, Sequence[Group]], bool]  # whether the first may be a kernel instead of the others


def chains_of(
    graph: Graph,
    steps: Sequence[NetworkStep],
    device: Device,
    price: Price,
    joins: Joins,
    alone: frozenset[str] = frozenset(),
) -> tuple[Alternative, ...]:
    """Groups in a row that may be one kernel, none of which makes a value of `alone`; each with what is faster by the
    analytic model. No group is in two of them."""
    if device.target.backend.is_gpu:
        return ()
    found = _Chains(graph, tuple(steps), device, joins, alone)
    segments = [s for path in found.paths() for s in found.worthwhile(path)]
    if not segments:
        return ()
    parts = [n for segment in segments for n in segment]
    priced = iter(price([*map(found.group, parts), *map(found.joined, segments)]))
    apart = [PartForm(tuple(next(priced) for _ in segment)) for segment in segments]
    return tuple(_alternative(PartForm((next(priced),)), form) for form in apart)


def _alternative(joined: PartForm, apart: PartForm) -> Alternative:
    return Alternative(joined, apart, joined.estimate_s < SLOWER * apart.estimate_s)


Segment = tuple[int, ...]  # numbers of steps, each of which is read by the next one alone


@dataclass(frozen=True)
class _Chains:
    graph: Graph
    steps: tuple[NetworkStep, ...]
    device: Device
    joins: Joins
    alone: frozenset[str]

    @property
    def rates(self) -> FusionRates:
        return rates_of(self.device.target, self.device.threads)

    def group(self, number: int) -> Group:
        step = self.steps[number]
        assert isinstance(step, Group)
        return step

    def paths(self) -> Iterator[Segment]:
        """Groups in a row, as long as possible."""
        follows = self._follows()
        firsts = [n for n in follows if n not in follows.values()]
        for n in firsts:
            path = [n]
            while path[-1] in follows:
                path.append(follows[path[-1]])
            yield tuple(path)

    def _follows(self) -> dict[int, int]:
        """Of each group whose only result one other group reads, that; of several before the same, the largest."""
        readers: dict[str, list[int]] = {}
        for n, step in enumerate(self.steps):
            for name in _read(step):
                readers.setdefault(name, []).append(n)
        found: dict[int, int] = {}
        for n, step in enumerate(self.steps):
            if not isinstance(step, Group) or len(step.outputs) != 1 or step.outputs[0] in self.graph.outputs:
                continue
            (name,) = step.outputs
            match readers.get(name, []):
                case [reader] if self._may_join(n, reader):
                    others = [k for k, other in found.items() if other == reader]
                    if all(self._nbytes(self.group(k).outputs[0]) < self._nbytes(name) for k in others):
                        found = {k: other for k, other in found.items() if other != reader} | {n: reader}
        return found

    def _may_join(self, first: int, last: int) -> bool:
        """Whether both are kernels that may be one, and no input is written before the last one runs."""
        if any(isinstance(step, Write) for step in self.steps[first:last]):
            return False
        groups = (self.steps[first], self.steps[last])
        return all(isinstance(g, Group) and self.alone.isdisjoint(g.outputs) and self._reduces(g) for g in groups)

    def _reduces(self, group: Group) -> bool:
        return any(facts_of(node, self.graph).kind is Kind.GENERAL for node in group.nodes)

    def _nbytes(self, name: str) -> int:
        value = self.graph.values[name]
        return math.prod(value.shape) * DTYPES[value.dtype].nbytes

    def worthwhile(self, path: Segment) -> Iterator[Segment]:
        """Parts of a path, apart from each other, that might be faster as one kernel each: those first that do not
        store most. What is drafted takes time."""
        begin, runs = 0, list[Segment]()
        for end in range(1, len(path) + 1):
            if end == len(path) or not self._moves_much(path[end - 1], path[end]):
                runs.append(path[begin:end])
                begin = end
        found = [s for run in runs if len(run) > 1 for s in _parts(run)]
        taken = set[int]()
        for segment in sorted(found, key=self._not_stored, reverse=True):
            if taken.isdisjoint(segment) and self.joins(self.joined(segment), [self.group(n) for n in segment]):
                taken.update(segment)
                yield segment

    def _not_stored(self, segment: Segment) -> int:
        return sum(self._nbytes(self.group(n).outputs[0]) for n in segment[:-1])

    def _moves_much(self, before: int, after: int) -> bool:
        """Whether what lies between two groups leaves the cache, and takes a share of the time of what they compute."""
        n_bytes = self._nbytes(self.group(before).outputs[0])
        if n_bytes <= HELD_SHARE * self.device.target.l2_bytes:  # as most parts of a batch, of which there are many
            return False
        operations = sum(dag_of(self.graph, self.group(n)).flops for n in (before, after)) / 2
        share = LEAST_SHARE * operations / self.rates.operations_per_cycle
        return 2 * n_bytes / self.rates.bytes_per_cycle > share

    def joined(self, segment: Segment) -> Group:
        """One group of all nodes."""
        groups = [self.group(n) for n in segment]
        nodes = tuple(node for group in groups for node in group.nodes)
        made = {name for group in groups[:-1] for name in group.outputs}
        read = dict.fromkeys(name for group in groups for name in group.inputs if name not in made)
        return Group(nodes, tuple(sorted(read, key=self.graph.is_constant)), groups[-1].outputs)


def is_chain(graph: Graph, group: Group, device: Device) -> bool:
    """Whether a rule of the search space has a nest for all of a group."""
    dag = collapse(dag_of(graph, group))
    return any(FUSED_MARK in sketch.name for sketch in device.hardware.sketches(dag, device, ()))


def _parts(run: Segment) -> Iterator[Segment]:
    for length in range(2, MOST_MEMBERS + 1):
        yield from (run[start : start + length] for start in range(len(run) - length + 1))


def _read(step: NetworkStep) -> tuple[str, ...]:
    match step:
        case Group(inputs=inputs):
            return inputs
        case Alias(base=base):
            return (base,)
        case Write(reads=reads):
            return reads
    return step.parts
