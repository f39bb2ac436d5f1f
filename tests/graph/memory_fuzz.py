"""Random buffers and random networks for memory planning: `python -m tests.graph.memory_fuzz --count 10000`.

Plans are walked through step by step. Networks are run in an arena that forgets each value after its last reader, in
the order that `order` chooses, and compared with a run where each value has memory of its own.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autosched.graph.memory.arena import plan_arena
from autosched.graph.memory.liveness import KernelRun, LiveBuffer, analyse_liveness
from autosched.graph.memory.order import order_steps
from tests.graph.arena import FORGOTTEN, Arena, faults

Array = npt.NDArray[Any]
LENGTHS = (1, 15, 16, 17, 100, 1024, 1500, 5000)  # elements of 4 bytes: around a cache line, around a page


def random_buffers(rng: random.Random) -> list[LiveBuffer]:
    steps = rng.choice((1, 4, 10, 40))
    buffers: list[LiveBuffer] = []
    for n in range(rng.choice((1, 2, 5, 12, 30))):
        first = rng.randrange(steps)
        nbytes = rng.choice((rng.randint(1, 300), rng.randint(1, 100_000), 4096 * rng.randint(1, 10)))
        read = [t.name for t in buffers if t.first < first <= t.last]
        read_with = tuple(rng.sample(read, min(len(read), 2)))
        buffers.append(
            LiveBuffer(f"t{n}", nbytes, first, min(steps - 1, first + rng.randrange(1 + steps // 2)), read_with)
        )
    return buffers


@dataclass(frozen=True)
class Network:
    """Steps of integer vectors. Reads of `backwards`, pairs (written, read), are from the last element to the first."""

    steps: tuple[KernelRun, ...]
    lengths: Mapping[str, int]
    backwards: frozenset[tuple[str, str]]
    aliases: Mapping[str, str]
    kept: tuple[str, ...]

    def base(self, name: str) -> str:
        """The value that a name is a view of, or itself."""
        while name in self.aliases:
            name = self.aliases[name]
        return name

    def compute(self, name: str, inputs: Mapping[str, Array]) -> Array:
        """A value: the sum of its inputs and 1; inputs of another length end early or are repeated."""
        total = np.ones(self.lengths[name], np.uint32)
        for read, array in inputs.items():
            total += np.resize(array[::-1] if (name, read) in self.backwards else array, len(total))
        return total


def random_network(rng: random.Random) -> Network:
    """Most steps read what was written last; what nobody reads is a workspace."""
    lengths = {"input": rng.choice(LENGTHS)}
    steps: list[KernelRun] = []
    aliases: dict[str, str] = {}
    backwards = set()
    for n in range(rng.choice((1, 3, 8, 20, 40))):
        known = [*lengths, *aliases]
        recent = known[-4:] if rng.random() < 0.8 else known
        reads = tuple(rng.sample(recent, min(len(recent), rng.choice((1, 1, 2, 3)))))
        writes = (f"v{n}", f"w{n}")[: rng.choice((1, 1, 1, 2))]
        for name in writes:
            lengths[name] = lengths[rng.choice(reads)] if rng.random() < 0.7 else rng.choice(LENGTHS)
            backwards |= {(name, read) for read in reads if rng.random() < 0.3}
        # What is read element by element for each result may be overwritten by each.
        plain = [x for x in reads if not any((y, x) in backwards or lengths[y] != lengths[x] for y in writes)]
        steps.append(KernelRun(reads, writes, tuple((name, read) for name in writes for read in plain)))
        if rng.random() < 0.3:
            view, base = f"view{n}", rng.choice([*known[-2:], *writes])
            aliases[view], lengths[view] = base, lengths[base]
    return Network(
        tuple(steps), lengths, frozenset(backwards), aliases, (rng.choice(list(lengths)), steps[-1].writes[0])
    )


def reference(network: Network, given: Array) -> dict[str, Array]:
    """All values, each in memory of its own."""
    values = {"input": given}
    for step in network.steps:
        inputs = {read: values[network.base(read)] for read in step.reads}
        values |= {name: network.compute(name, inputs) for name in step.writes}
    return values


def network_faults(network: Network, given: Array) -> list[str]:
    """What is wrong with the kept values of a network that is run in one arena."""
    sizes = {name: 4 * length for name, length in network.lengths.items()}
    numbers = order_steps(network.steps, sizes, network.kept, network.aliases)
    steps = [network.steps[n] for n in numbers]
    found = analyse_liveness(steps, sizes, network.kept, network.aliases)
    made = plan_arena(found.buffers)
    arena = Arena(found.buffers, made)
    offsets = found.offsets(made.offsets)
    views = {name: arena.view(offsets[name], (length,), "uint32") for name, length in network.lengths.items()}
    views["input"][:] = given
    for n, step in enumerate(steps):
        run_step(network, step, views)
        arena.after(n)
    expected = reference(network, given)
    wrong = [name for name in network.kept if not np.array_equal(views[name], expected[network.base(name)])]
    return [*faults(found.buffers, made), *(f"{name} is not what it should be" for name in wrong)]


def run_step(network: Network, step: KernelRun, views: Mapping[str, Array]) -> None:
    """A step that writes into each result before it reads, but for the inputs that may be overwritten by it."""
    early = {read: views[read].copy() for _, read in step.overwrites}
    for name in step.writes:
        views[name].view("uint8")[:] = FORGOTTEN
    inputs = {read: views[read].copy() for read in step.reads} | early
    for name in step.writes:
        views[name][:] = network.compute(name, inputs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="buffers and networks, of each so many")
    parser.add_argument("--seed", type=int, default=0, help="of the first; each later one has the next number")
    words = parser.parse_args()
    failed = 0
    for seed in range(words.seed, words.seed + words.count):
        found = faults_of(seed)
        failed += bool(found)
        for fault in found:
            print(f"seed {seed}: {fault}")
    print(f"{words.count} seeds, {failed} with faults")
    return int(failed > 0)


def faults_of(seed: int) -> list[str]:
    """What is wrong with the plans of one seed."""
    rng = random.Random(seed)
    buffers, network = random_buffers(rng), random_network(rng)
    given = np.random.default_rng(seed).integers(0, 1 << 20, network.lengths["input"], np.uint32)
    return [*faults(buffers, plan_arena(buffers)), *network_faults(network, given)]


if __name__ == "__main__":
    raise SystemExit(main())
