"""Constant folding at load time: launches of a GPU network that depend on constants alone run once, at load.

Such launches unpack or transform weights, or are whole kernels. Their results are kept in a block of their own, outside
of the arena, whose memory is reused during a call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from autosched.codegen.c.source import SIZES, GpuSource
from autosched.graph.memory.buffers import aligned
from autosched.graph.steps import Group
from autosched.planning.execution_plan import NetworkProgram, array_spec

# A buffer that the launches of a step exchange, as (step, buffer), or a value of the graph, as (_VALUE, name).
BufferKey: TypeAlias = tuple[int, str]
_VALUE = -1


@dataclass(frozen=True)
class ConstantLaunches:
    """The launches that run at load, and where their results are.

    `launches`: by step, the indices of its kernel's constant launches. `offsets`: of their results, in a block of
    `nbytes`. `steps_to_run`: the steps whose launches have to run; the others share the results of an equal step.
    """

    launches: Mapping[int, frozenset[int]]
    offsets: Mapping[BufferKey, int]
    nbytes: int
    steps_to_run: tuple[int, ...]

    def offset_of_value(self, program: NetworkProgram, name: str) -> int | None:
        """Return the offset of a value in the block; None if it is not a constant result."""
        at = self.offsets.get((_VALUE, program.root(name)))
        return None if at is None else at + program.start(name)

    def of_step(self, step: int) -> frozenset[int]:
        return self.launches.get(step, frozenset())


@dataclass(frozen=True)
class _Launch:
    """A launch of a step's kernel, its index there, and the buffers that it reads and writes."""

    step: int
    index: int
    reads: frozenset[BufferKey]
    writes: frozenset[BufferKey]


def find_constant_launches(program: NetworkProgram, sources: Mapping[str, GpuSource]) -> ConstantLaunches:
    """Return the launches of a program that depend on constants alone. `sources`: its kernels by name."""
    all_launches = [
        launch for n in sorted(program.kernels) for launch in _launches_of(program, n, sources[program.kernels[n].name])
    ]
    constant = _constant_launches(all_launches, _constants(program, all_launches), _caller_arrays(program))
    indices: dict[int, set[int]] = {}
    for launch in constant:
        indices.setdefault(launch.step, set()).add(launch.index)
    offsets: dict[BufferKey, int] = {}
    steps_to_run: list[int] = []
    first_equal: dict[tuple[object, ...], int] = {}
    used, alignment = 0, program.backend.array_alignment
    for step in indices:
        source = sources[program.kernels[step].name]
        own = [launch for launch in constant if launch.step == step]
        written = sorted({key for launch in own for key in launch.writes} - offsets.keys())
        equal = _equal_step(first_equal, program, source, step, own)
        if equal is not None:
            offsets |= {(step, name): offsets[equal, name] for _, name in written}
            continue
        steps_to_run.append(step)
        for key in written:
            offsets[key] = used
            used += aligned(_nbytes(program, source, key), alignment)
    launches = {step: frozenset(numbers) for step, numbers in indices.items()}
    return ConstantLaunches(launches, offsets, used, tuple(steps_to_run))


def _launches_of(program: NetworkProgram, step: int, source: GpuSource) -> list[_Launch]:
    values = _values(program, step, source)

    def key(buffer: str) -> BufferKey:
        return (_VALUE, program.root(values[buffer])) if buffer in values else (step, buffer)

    return [
        _Launch(
            step,
            n,
            frozenset(key(b) for b in launch.buffers if b not in launch.writes and b != SIZES),
            frozenset(map(key, launch.writes)),
        )
        for n, launch in enumerate(source.launches)
    ]


def _values(program: NetworkProgram, number: int, source: GpuSource) -> dict[str, str]:
    """Return the graph's values by the names of the kernel's arguments."""
    step = program.steps[number]
    assert isinstance(step, Group)
    return dict(zip((*source.inputs, *source.outputs), (*step.inputs, *step.outputs), strict=True))


def _constants(program: NetworkProgram, launches: Sequence[_Launch]) -> frozenset[BufferKey]:
    read = {key for launch in launches for key in launch.reads}
    return frozenset(key for key in read if key[0] == _VALUE and program.graph.is_constant(key[1]))


def _caller_arrays(program: NetworkProgram) -> frozenset[BufferKey]:
    """Return inputs and outputs of the network, whose memory belongs to the caller."""
    return frozenset((_VALUE, program.root(name)) for name in (*program.graph.inputs, *program.graph.outputs))


def _constant_launches(
    launches: Sequence[_Launch], constants: frozenset[BufferKey], caller_arrays: frozenset[BufferKey]
) -> list[_Launch]:
    """Return the launches that read only constants and results of such launches, and whose results no other launch
    overwrites. The greatest fixed point: it begins with all launches and removes those that violate the rule."""
    constant = {n for n, launch in enumerate(launches) if launch.writes}
    while True:
        last_write = {key: n for n in sorted(constant) for key in launches[n].writes}
        varying = set(caller_arrays)
        for n, launch in enumerate(launches):
            if n not in constant:
                varying |= launch.writes | {key for key in launch.reads if n < last_write.get(key, n)}
        kept = {
            n for n in constant
            if varying.isdisjoint(launches[n].writes)
            and all(k in constants or (k in last_write and k not in varying) for k in launches[n].reads)
        }  # fmt: skip
        if kept == constant:
            return [launches[n] for n in sorted(constant)]
        constant = kept


def _equal_step(
    first_equal: dict[tuple[object, ...], int],
    program: NetworkProgram,
    source: GpuSource,
    step: int,
    launches: Sequence[_Launch],
) -> int | None:
    """Return an earlier step whose constant launches compute the same from the same constants into buffers of their
    step; None without one."""
    values = _values(program, step, source)
    if any(key[0] == _VALUE for launch in launches for key in launch.writes):
        return None
    read = sorted({b for launch in launches for b in source.launches[launch.index].buffers if b in values})
    arguments = tuple((program.root(values[b]), program.start(values[b])) for b in read)
    content = (source, tuple(launch.index for launch in launches), arguments)
    first = first_equal.setdefault(content, step)
    return None if first == step else first


def _nbytes(program: NetworkProgram, source: GpuSource, key: BufferKey) -> int:
    step, name = key
    return array_spec(program.graph, name).nbytes if step == _VALUE else dict(source.workspace)[name]
