"""Fusion candidates: chains of reductions that one kernel may compute without storing the intermediates as a whole.

The intermediate between the expansion and the projection of an inverted bottleneck has six times the channels, the one
between the two products of a perceptron four times the columns. A chain is a candidate where its intermediates do not
fit in the second level cache and their traffic takes a share of the time of the arithmetic. In the fused kernel, each
task computes the rows of the intermediates that it needs. The analytic model selects the faster variant until both are
measured in the network.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol

from autosched.graph.fusion.choice import FusionChoice, Kernel, KernelSequence, PredictedGroup
from autosched.graph.fusion.cost import FusionRates, rates_of
from autosched.graph.fusion.node_properties import NodeKind, properties_of
from autosched.graph.graph import Graph
from autosched.graph.group_description import flops_of
from autosched.graph.memory.storage import nbytes_of
from autosched.graph.steps import Alias, Group, NetworkStep, Repeat, Write
from autosched.ir.size import value_of
from autosched.target import Target

MIN_TRAFFIC_SHARE = 0.1  # cycles of an intermediate's traffic over those of the arithmetic
L2_SHARE = 0.5  # an intermediate of at most this share of the second level cache stays there until it is read
MAX_LATENCY_RATIO = 0.97  # predicted latency, fused over unfused, up to which the fused kernel is selected


class FusionModel(Protocol[Kernel]):
    """What fusion asks of the kernels' side: which groups have a fused kernel, and how long kernels take.

    `max_groups`: of one fused kernel. `target` and `threads` are those of the kernels.
    """

    @property
    def max_groups(self) -> int: ...

    @property
    def target(self) -> Target: ...

    @property
    def threads(self) -> int: ...

    def can_fuse(self, fused: Group, unfused: Sequence[Group]) -> bool:
        """Whether `fused` can be one kernel instead of the kernels of `unfused`."""
        ...

    def predict(self, groups: Sequence[Group]) -> Sequence[PredictedGroup[Kernel]]:
        """Return the groups in order, each with its kernel and the predicted seconds."""
        ...


def find_fusion_candidates(
    graph: Graph, steps: Sequence[NetworkStep], model: FusionModel[Kernel], unfusible: frozenset[str] = frozenset()
) -> tuple[FusionChoice[Kernel], ...]:
    """Return disjoint chains of groups that can be fused, each with the faster variant by the model selected.

    Groups that compute a value of `unfusible` are in none. There are no candidates on GPUs.
    """
    if model.target.backend.is_gpu:
        return ()
    finder = _CandidateFinder(graph, tuple(steps), model, unfusible)
    chains = [chain for path in finder.paths() for chain in finder.candidates(path)]
    if not chains:
        return ()
    members = [n for chain in chains for n in chain]
    predicted = iter(model.predict([*map(finder.group, members), *map(finder.fuse, chains)]))
    unfused = [KernelSequence(tuple(next(predicted) for _ in chain)) for chain in chains]
    return tuple(_choose(KernelSequence((next(predicted),)), kernels) for kernels in unfused)


def _choose(fused: KernelSequence[Kernel], unfused: KernelSequence[Kernel]) -> FusionChoice[Kernel]:
    return FusionChoice(fused, unfused, fused.estimate_s < MAX_LATENCY_RATIO * unfused.estimate_s)


Chain = tuple[int, ...]  # numbers of steps, each of which only the next one reads


@dataclass(frozen=True)
class _CandidateFinder(Generic[Kernel]):
    graph: Graph
    steps: tuple[NetworkStep, ...]
    model: FusionModel[Kernel]
    unfusible: frozenset[str]

    @property
    def rates(self) -> FusionRates:
        return rates_of(self.model.target, self.model.threads)

    def group(self, number: int) -> Group:
        step = self.steps[number]
        assert isinstance(step, Group)
        return step

    def paths(self) -> Iterator[Chain]:
        """Yield the chains of groups, each as long as possible."""
        successors = self._successors()
        firsts = [n for n in successors if n not in successors.values()]
        for n in firsts:
            path = [n]
            while path[-1] in successors:
                path.append(successors[path[-1]])
            yield tuple(path)

    def _successors(self) -> dict[int, int]:
        """Map each group to the only reader of its only output; of groups with one reader, only the largest output."""
        readers: dict[str, list[int]] = {}
        for n, step in enumerate(self.steps):
            for name in _read(step):
                readers.setdefault(name, []).append(n)
        successors: dict[int, int] = {}
        for n, step in enumerate(self.steps):
            if not isinstance(step, Group) or len(step.outputs) != 1 or step.outputs[0] in self.graph.outputs:
                continue
            (name,) = step.outputs
            match readers.get(name, []):
                case [reader] if self._is_fusible(n, reader):
                    others = [k for k, other in successors.items() if other == reader]
                    if all(self._nbytes(self.group(k).outputs[0]) < self._nbytes(name) for k in others):
                        successors = {k: other for k, other in successors.items() if other != reader} | {n: reader}
        return successors

    def _is_fusible(self, first: int, last: int) -> bool:
        """Whether both steps are reductions outside `unfusible`, and no input is overwritten between them."""
        if any(isinstance(step, Write) for step in self.steps[first:last]):
            return False
        groups = (self.steps[first], self.steps[last])
        return all(isinstance(g, Group) and self.unfusible.isdisjoint(g.outputs) and self._reduces(g) for g in groups)

    def _reduces(self, group: Group) -> bool:
        return any(properties_of(node, self.graph).kind is NodeKind.GENERAL for node in group.nodes)

    def _nbytes(self, name: str) -> int:
        return value_of(nbytes_of(self.graph, name))

    def candidates(self, path: Chain) -> Iterator[Chain]:
        """Yield disjoint chains of a path that may be faster fused, chosen greedily by the bytes that they save.

        Chains that cannot save time are skipped here, because predicting a latency takes long.
        """
        begin, runs = 0, list[Chain]()
        for end in range(1, len(path) + 1):
            if end == len(path) or not self._has_costly_traffic(path[end - 1], path[end]):
                runs.append(path[begin:end])
                begin = end
        chains = [chain for run in runs if len(run) > 1 for chain in _chains(run, self.model.max_groups)]
        chosen = set[int]()
        for chain in sorted(chains, key=self._saved_bytes, reverse=True):
            if chosen.isdisjoint(chain) and self.model.can_fuse(self.fuse(chain), [self.group(n) for n in chain]):
                chosen.update(chain)
                yield chain

    def _saved_bytes(self, chain: Chain) -> int:
        return sum(self._nbytes(self.group(n).outputs[0]) for n in chain[:-1])

    def _has_costly_traffic(self, before: int, after: int) -> bool:
        """Whether the intermediate leaves the cache, and its traffic takes a share of the time of the arithmetic."""
        n_bytes = self._nbytes(self.group(before).outputs[0])
        if n_bytes <= L2_SHARE * self.model.target.l2_bytes:
            return False
        operations = sum(flops_of(self.graph, self.group(n)) for n in (before, after)) / 2
        share = MIN_TRAFFIC_SHARE * operations / self.rates.operations_per_cycle
        return 2 * n_bytes / self.rates.bytes_per_cycle > share

    def fuse(self, chain: Chain) -> Group:
        """Return one group of all nodes of a chain."""
        groups = [self.group(n) for n in chain]
        nodes = tuple(node for group in groups for node in group.nodes)
        intermediates = {name for group in groups[:-1] for name in group.outputs}
        read = dict.fromkeys(name for group in groups for name in group.inputs if name not in intermediates)
        return Group(nodes, tuple(sorted(read, key=self.graph.is_constant)), groups[-1].outputs)


def _chains(run: Chain, max_groups: int) -> Iterator[Chain]:
    for length in range(2, max_groups + 1):
        yield from (run[start : start + length] for start in range(len(run) - length + 1))


def _read(step: NetworkStep) -> tuple[str, ...]:
    match step:
        case Group(inputs=inputs):
            return inputs
        case Alias(base=base):
            return (base,)
        case Write(reads=reads) | Repeat(reads=reads):
            return reads
    return step.parts
