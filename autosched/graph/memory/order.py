"""Order of the steps of a network that keeps few bytes live and reads values soon after they are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autosched.graph.memory.liveness import KernelRun, analyse_liveness, base_of
from autosched.graph.memory.placement import Arena


def order_steps(
    steps: Sequence[KernelRun],
    sizes: Mapping[str, int],
    kept: Iterable[str] = (),
    aliases: Mapping[str, str] | None = None,
) -> tuple[int, ...]:
    """Return the numbers of `steps` in a topological order; the parameters are those of `analyse_liveness`.

    It is the one with the lowest peak of live bytes of three orders: greedy by freed bytes, depth first, and as given.
    """
    import networkx

    graph = _Dependences(steps, dict(aliases or {}), sizes, frozenset(kept))
    edges = graph.edges()
    if not networkx.is_directed_acyclic_graph(edges):
        raise ValueError(f"steps wait for each other: {networkx.find_cycle(edges)}")
    candidates = [graph.greedy(), _depth_first(edges), tuple(networkx.lexicographical_topological_sort(edges))]

    def peak(numbers: tuple[int, ...]) -> int:
        return Arena(analyse_liveness([steps[n] for n in numbers], sizes, graph.kept, graph.aliases).buffers).bound

    return min(dict.fromkeys(candidates), key=peak)


def _depth_first(graph: Any) -> tuple[int, ...]:
    """Return a depth first order from the last steps back, the longest branch of a step first."""
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
    """The dependences between steps."""

    steps: Sequence[KernelRun]
    aliases: Mapping[str, str]
    sizes: Mapping[str, int]
    kept: frozenset[str]

    def _bases(self, names: Iterable[str]) -> dict[str, None]:
        """Return the values that `names` are views of, in this order, so that ties are broken alike in each run."""
        return dict.fromkeys(base_of(name, self.aliases) for name in names)

    def edges(self) -> Any:
        """Return a directed graph of the numbers of steps: from the writer of a value to its readers."""
        import networkx

        graph = networkx.DiGraph()
        graph.add_nodes_from(range(len(self.steps)))
        writers = {base: n for n, step in enumerate(self.steps) for base in self._bases(step.writes)}
        for n, step in enumerate(self.steps):
            graph.add_edges_from((writers[base], n) for base in self._bases(step.reads) if base in writers)
        return graph

    def greedy(self) -> tuple[int, ...]:
        """Return an order that always takes the ready step after which the fewest bytes are live.

        Of equal steps, it takes the one that reads the value that was written last.
        """
        reads = [self._bases(step.reads) for step in self.steps]
        writes = [self._bases(step.writes) for step in self.steps]
        waiting: dict[str, set[int]] = {}  # the readers of each value that have not run
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
