"""What kernels of a network on a GPU compute of constants alone: once, when the network is loaded.

Of a kernel's launches some may read nothing but constants: a weight that is unpacked, transformed, in another order.
So may whole kernels. What they write stays, and has a place of its own where nothing of the arena comes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from autosched.codegen.c.source import GpuSource
from autosched.graph.steps import Group
from autosched.planning.execution_plan import NetworkProgram, aligned, array_spec

Place: TypeAlias = tuple[int, str]  # a buffer of a step between its launches, or a value, of no step in particular
_ANY = -1


@dataclass(frozen=True)
class Ahead:
    """`launches`: of steps, by number, the launches of their kernels that go ahead. `offsets`: where what they write
    lies in a block of `nbytes`; `runs`: the steps whose launches have to run, others find the same there."""

    launches: Mapping[int, frozenset[int]]
    offsets: Mapping[Place, int]
    nbytes: int
    runs: tuple[int, ...]

    def of_value(self, program: NetworkProgram, name: str) -> int | None:
        """Where a value lies in the block; None if it does not."""
        at = self.offsets.get((_ANY, program.root(name)))
        return None if at is None else at + program.start(name)

    def of_step(self, step: int) -> frozenset[int]:
        return self.launches.get(step, frozenset())


@dataclass(frozen=True)
class _Call:
    """A launch of a step's kernel, by its number there, and what it touches."""

    step: int
    number: int
    reads: frozenset[Place]
    writes: frozenset[Place]


def ahead_of(program: NetworkProgram, sources: Mapping[str, GpuSource]) -> Ahead:
    """What of a program can go ahead; `sources`: its kernels by name."""
    calls = [call for n in sorted(program.kernels) for call in _calls_of(program, n, sources[program.kernels[n].name])]
    found = _alone(calls, _constants(program, calls), _ends(program))
    launches: dict[int, set[int]] = {}
    for call in found:
        launches.setdefault(call.step, set()).add(call.number)
    offsets: dict[Place, int] = {}
    runs: list[int] = []
    twins: dict[tuple[object, ...], int] = {}
    used, alignment = 0, program.backend.array_alignment
    for step in launches:
        source = sources[program.kernels[step].name]
        mine = [call for call in found if call.step == step]
        written = sorted({place for call in mine for place in call.writes} - offsets.keys())
        twin = _twin(twins, program, source, step, mine)
        if twin is not None:
            offsets |= {(step, name): offsets[twin, name] for _, name in written}
            continue
        runs.append(step)
        for place in written:
            offsets[place] = used
            used += aligned(_nbytes(program, source, place), alignment)
    return Ahead({step: frozenset(numbers) for step, numbers in launches.items()}, offsets, used, tuple(runs))


def _calls_of(program: NetworkProgram, number: int, source: GpuSource) -> list[_Call]:
    values = _values(program, number, source)

    def place(buffer: str) -> Place:
        return (_ANY, program.root(values[buffer])) if buffer in values else (number, buffer)

    return [
        _Call(
            number,
            n,
            frozenset(place(b) for b in launch.buffers if b not in launch.writes),
            frozenset(map(place, launch.writes)),
        )
        for n, launch in enumerate(source.launches)
    ]


def _values(program: NetworkProgram, number: int, source: GpuSource) -> dict[str, str]:
    """The values that a step's kernel has in its buffers."""
    step = program.steps[number]
    assert isinstance(step, Group)
    return dict(zip((*source.inputs, *source.outputs), (*step.inputs, *step.outputs), strict=True))


def _constants(program: NetworkProgram, calls: Sequence[_Call]) -> frozenset[Place]:
    read = {place for call in calls for place in call.reads}
    return frozenset(place for place in read if place[0] == _ANY and program.graph.is_constant(place[1]))


def _ends(program: NetworkProgram) -> frozenset[Place]:
    """What callers have the memory of."""
    return frozenset((_ANY, program.root(name)) for name in (*program.graph.inputs, *program.graph.outputs))


def _alone(calls: Sequence[_Call], constants: frozenset[Place], ends: frozenset[Place]) -> list[_Call]:
    """The calls that read constants and what such calls write alone, and that nobody else writes to: all, less those
    that this is not true of, until it is true of the rest."""
    found = {n for n, call in enumerate(calls) if call.writes}
    while True:
        last = {place: n for n in sorted(found) for place in calls[n].writes}
        spoilt = set(ends)
        for n, call in enumerate(calls):
            if n not in found:
                spoilt |= call.writes | {place for place in call.reads if n < last.get(place, n)}
        kept = {
            n for n in found
            if spoilt.isdisjoint(calls[n].writes)
            and all(p in constants or (p in last and p not in spoilt) for p in calls[n].reads)
        }  # fmt: skip
        if kept == found:
            return [calls[n] for n in sorted(found)]
        found = kept


def _twin(
    twins: dict[tuple[object, ...], int], program: NetworkProgram, source: GpuSource, step: int, calls: Sequence[_Call]
) -> int | None:
    """A step before whose kernel does the same with the same constants, if that is all it does ahead."""
    values = _values(program, step, source)
    if any(place[0] == _ANY for call in calls for place in call.writes):
        return None
    read = sorted({b for call in calls for b in source.launches[call.number].buffers if b in values})
    given = tuple((program.root(values[b]), program.start(values[b])) for b in read)
    key = (source.name, tuple(call.number for call in calls), given)
    first = twins.setdefault(key, step)
    return None if first == step else first


def _nbytes(program: NetworkProgram, source: GpuSource, place: Place) -> int:
    step, name = place
    return array_spec(program.graph, name).nbytes if step == _ANY else dict(source.workspace)[name]
