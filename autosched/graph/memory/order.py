"""The order of steps: one in which few bytes are needed at once, and values are read soon after they are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autosched.graph.memory.liveness import KernelRun, base_of, live
from autosched.graph.memory.placement import Arena


def order(
    steps: Sequence[KernelRun],
    sizes: Mapping[str, int],
    kept: Iterable[str] = (),
    aliases: Mapping[str, str] | None = None,
) -> tuple[int, ...]:
    """The numbers of `steps`, each after those that write what it reads; parameters as of `live`.

    Of the order that frees most with each step, the one that is depth first and the given one, it is the first with
    the fewest bytes alive at once.
    """
    import networkx

    graph = _Dependences(steps, dict(aliases or {}), sizes, frozenset(kept))
    found = graph.edges()
    if not networkx.is_directed_acyclic_graph(found):
        raise ValueError(f"steps wait for each other: {networkx.find_cycle(found)}")
    candidates = [graph.frees_most(), _depth_first(found), tuple(networkx.lexicographical_topological_sort(found))]

    def peak(numbers: tuple[int, ...]) -> int:
        return Arena(live([steps[n] for n in numbers], sizes, graph.kept, graph.aliases).tenants).bound

    return min(dict.fromkeys(candidates), key=peak)


def _depth_first(graph: Any) -> tuple[int, ...]:
    """From the last steps back: before a step what it reads, of several branches the longest first."""
    import networkx

    depths: dict[int, int] = {}
    for n in networkx.topological_sort(graph):
        depths[n] = 1 + max((depths[m] for m in graph.predecessors(n)), default=0)
    backwards = networkx.DiGraph()
    backwards.add_nodes_from(sorted(graph, key=lambda n: (graph.out_degree(n) > 0, n)))
    for n in graph:
        backwards.add_edges_from((n, m) for m in sorted(graph.predecessors(n), key=lambda m: -depths[m]))
    return tuple(networkx.dfs_postorder_nodes(backwards))


@dataclass(frozen=True)
class _Dependences:
    """Which step waits for which."""

    steps: Sequence[KernelRun]
    aliases: Mapping[str, str]
    sizes: Mapping[str, int]
    kept: frozenset[str]

    def _bases(self, names: Iterable[str]) -> dict[str, None]:
        """Whose bytes are read or written; in the order of the names, so that ties are the same in each run."""
        return dict.fromkeys(base_of(name, self.aliases) for name in names)

    def edges(self) -> Any:
        """A directed graph of the numbers of steps: from the writer of a value to its readers."""
        import networkx

        graph = networkx.DiGraph()
        graph.add_nodes_from(range(len(self.steps)))
        writers = {base: n for n, step in enumerate(self.steps) for base in self._bases(step.writes)}
        for n, step in enumerate(self.steps):
            graph.add_edges_from((writers[base], n) for base in self._bases(step.reads) if base in writers)
        return graph

    def frees_most(self) -> tuple[int, ...]:
        """Of the steps that can be done next, each time the one after which the fewest bytes are alive; of several
        the one that reads what was written last."""
        reads = [self._bases(step.reads) for step in self.steps]
        writes = [self._bases(step.writes) for step in self.steps]
        waiting: dict[str, set[int]] = {}  # the readers of each value that are not done
        for n, names in enumerate(reads):
            for name in names:
                waiting.setdefault(name, set()).add(n)
        stays = self._bases(self.kept)
        unwritten = set().union(*writes)
        done: list[int] = []
        times: dict[str, int] = {}

        def rank(n: int) -> tuple[int, int, int]:
            freed = sum(self.sizes.get(x, 0) for x in reads[n] if waiting[x] == {n} and x not in stays)
            taken = sum(self.sizes.get(x, 0) for x in writes[n] if x in waiting or x in stays)
            return freed - taken, max((times.get(x, -1) for x in reads[n]), default=-1), -n

        left = dict.fromkeys(range(len(self.steps)))
        while left:
            n = max((n for n in left if unwritten.isdisjoint(reads[n])), key=rank)
            del left[n]
            done.append(n)
            unwritten -= writes[n].keys()
            times |= dict.fromkeys(writes[n], len(done))
            for x in reads[n]:
                waiting[x].discard(n)
        return tuple(done)
