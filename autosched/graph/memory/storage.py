"""Storage of a network: one home for each value, and the check of what each home holds whenever a step reads it.

    Region   the position of a value within another one, as the steps Alias and Join declare it
    Home     the bytes of a buffer that hold a value: dense, in row-major order, so that strides follow from the shape

The buffers are the caller's arrays, one for each input and each output, the arena and the block of weights. The check
interprets the steps on labels instead of numbers: each byte is labelled with the value that was written there last, and
a step must read the labels of its operands. So two live values cannot share bytes unless one is declared a view of the
other, whatever passes and plans do.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from autosched.codegen.calls import ARENA, ARGUMENT, WEIGHTS, Pointer
from autosched.errors import InternalError
from autosched.graph.graph import Graph
from autosched.graph.memory.liveness import KernelRun
from autosched.graph.steps import Alias, Join, NetworkStep, Write
from autosched.ir.dtype import DTYPES

Region = Alias  # `output` is within `base`, which is within no other value, from the element `offset` on
Buffer = tuple[str, int]  # the kind of the buffer, and the number of the caller's array or 0
Label = tuple[str, int, int]  # bytes of a value: its name, the first byte, the number of bytes


class StorageError(InternalError):
    """A memory plan by which live values would overwrite each other."""


@dataclass(frozen=True)
class Home:
    """`nbytes` bytes of a buffer, from its byte `start` on."""

    buffer: Buffer
    start: int
    nbytes: int

    @property
    def pointer(self) -> Pointer:
        block, number = self.buffer
        return Pointer(ARGUMENT, number, self.start) if block == ARGUMENT else Pointer(block, self.start)

    def overlaps(self, other: Home) -> bool:
        return (
            self.start < other.start + other.nbytes
            and other.start < self.start + self.nbytes
            and self.buffer == other.buffer
        )

    def __str__(self) -> str:
        block, number = self.buffer
        buffer = f"argument {number}" if block == ARGUMENT else f"the {block}"
        return f"bytes {self.start} to {self.start + self.nbytes} of {buffer}"


def nbytes_of(graph: Graph, name: str) -> int:
    value = graph.values[name]
    return math.prod(value.shape) * DTYPES[value.dtype].nbytes


def regions_of(graph: Graph, steps: Iterable[NetworkStep]) -> dict[str, Region]:
    """Return, for each value that is a part or a view of another one, its region in the outermost value.

    Raises StorageError for a value that is declared to be within two others, or within itself.
    """
    declared: dict[str, Region] = {}
    for part in (part for step in steps for part in _declared(graph, step)):
        if part.output in declared:
            raise StorageError(f"{part.output} is stored within both {declared[part.output].base} and {part.base}")
        declared[part.output] = part
    regions: dict[str, Region] = {}
    for name in declared:
        base, offset = name, 0
        for _ in declared:
            if base not in declared:
                break
            base, offset = declared[base].base, offset + declared[base].offset
        if base in declared:
            raise StorageError(f"{name} is stored within itself")
        regions[name] = Region(name, base, offset)
    return regions


def _declared(graph: Graph, step: NetworkStep) -> Iterator[Region]:
    if isinstance(step, Alias):
        yield step
    elif isinstance(step, Join):
        starts = accumulate((math.prod(graph.values[name].shape) for name in step.parts), initial=0)
        yield from (Region(part, step.output, start) for part, start in zip(step.parts, starts, strict=False))


def homes_of(
    graph: Graph, regions: Mapping[str, Region], arena: Mapping[str, int], weights: Mapping[str, int]
) -> dict[str, Home]:
    """Return the home of each stored value.

    `arena` and `weights` map values that are within no other one to their first byte there. Raises StorageError
    where two arrays of the caller would share memory.
    """
    roots: dict[str, tuple[Buffer, int]] = {name: ((ARENA, 0), at) for name, at in arena.items()}
    roots |= {name: ((WEIGHTS, 0), at) for name, at in weights.items()}
    for n, name in enumerate((*graph.inputs, *graph.outputs)):
        base = regions[name].base if name in regions else name
        if base in roots or nbytes_of(graph, base) != nbytes_of(graph, name):
            raise StorageError(f"the array of {name}, which callers hold, would be that of {base} as well")
        roots[base] = (ARGUMENT, n), 0
    homes = {name: Home(*root, nbytes_of(graph, name)) for name, root in roots.items() if name in graph.values}
    for name, region in regions.items():
        if region.base in roots:
            buffer, start = roots[region.base]
            start += region.offset * DTYPES[graph.values[name].dtype].nbytes
            homes[name] = Home(buffer, start, nbytes_of(graph, name))
    return homes


@dataclass(frozen=True)
class Storage:
    """The storage of a network, to be verified.

    `runs`: everything that reads or writes memory, in order, with descriptions for messages. `homes`: those of values,
    workspaces and packed weights. `sizes`: bytes of the buffers. `alignment`: bytes, of homes in the arena and the
    weights that are no regions of others.
    """

    graph: Graph
    steps: Sequence[NetworkStep]
    runs: Sequence[tuple[str, KernelRun]]
    regions: Mapping[str, Region]
    homes: Mapping[str, Home]
    sizes: Mapping[Buffer, int]
    alignment: int


def verify_storage(storage: Storage) -> None:
    """Check that each step reads the values it should and does not overwrite its operands, and that the outputs are in
    the caller's arrays at the end. Raises StorageError."""
    graph = storage.graph
    for name, home in storage.homes.items():
        _check_home(storage, name, home)
    contents, labels = _Contents(), _Labels(graph, storage.steps)
    for name in (*graph.inputs, *_initial(storage)):
        home = storage.homes[name]
        if contents.read(home):
            raise StorageError(f"{name} would be stored at {home}, where {contents.names(home)} is from the start")
        contents.write(home, labels.of(name, home.nbytes))
    for step in storage.steps:
        if isinstance(step, Write):
            contents.write(storage.homes[step.output], labels.of(step.base, storage.homes[step.output].nbytes))
    for step_text, run in storage.runs:
        _run(storage, step_text, run, contents, labels)
    for name in graph.outputs:
        _check_read(storage, f"the network {graph.name} ends, and a caller", name, contents, labels)


def _check_home(storage: Storage, name: str, home: Home) -> None:
    size = storage.sizes.get(home.buffer)
    if size is None or home.start < 0 or home.start + home.nbytes > size:
        raise StorageError(f"{name} would be stored at {home}, which has {size} bytes")
    is_root = name not in storage.regions and home.buffer[0] != ARGUMENT
    item = DTYPES[storage.graph.values[name].dtype].nbytes if name in storage.graph.values else 1
    alignment = storage.alignment if is_root else item
    if home.start % alignment:
        raise StorageError(f"{name} would be stored at {home}, but must begin at a multiple of {alignment} bytes")


def _initial(storage: Storage) -> Iterator[str]:
    """Yield the constants and the packed weights, which are in the block of weights from the start."""
    held = (name for name, home in storage.homes.items() if home.buffer[0] == WEIGHTS)
    yield from (name for name in held if name not in storage.regions)


def _run(storage: Storage, step: str, run: KernelRun, contents: _Contents, labels: _Labels) -> None:
    for name in run.reads:
        _check_read(storage, step, name, contents, labels)
    read = [(name, storage.homes[name]) for name in run.reads]
    written: list[tuple[str, Home]] = []
    for name in run.writes:
        home = storage.homes.get(name)
        if home is None:
            raise StorageError(f"{step} writes {name}, which is stored nowhere")
        for other, its in (*read, *written):
            if home.overlaps(its):
                raise StorageError(f"{step} would write {name} to {home}, over {other} at {its}")
        written.append((name, home))
    for name, home in written:
        if home.buffer[0] == WEIGHTS:
            raise StorageError(f"{step} would write {name} over weights, to {home}")
        contents.write(home, labels.of(name, home.nbytes))


def _check_read(storage: Storage, step: str, name: str, contents: _Contents, labels: _Labels) -> None:
    home = storage.homes.get(name)
    if home is None:
        raise StorageError(f"{step} reads {name}, which is stored nowhere")
    if contents.read(home) != labels.of(name, home.nbytes):
        held = contents.names(home) or "nothing"
        raise StorageError(f"{step} reads {name} at {home}, which holds {held} by then")


class _Labels:
    """The labels of the bytes of each value: its own, unless steps declare it a concatenation or a view of others."""

    def __init__(self, graph: Graph, steps: Sequence[NetworkStep]) -> None:
        self._graph = graph
        self._steps = {step.output: step for step in steps if isinstance(step, Alias | Join)}
        self._labels: dict[str, tuple[Label, ...]] = {}

    def of(self, name: str, nbytes: int) -> tuple[Label, ...]:
        """Return the labels of a value of `nbytes` bytes."""
        if name not in self._labels:
            self._labels[name] = self._compute(name, nbytes)
        return self._labels[name]

    def _compute(self, name: str, nbytes: int) -> tuple[Label, ...]:
        step = self._steps.get(name)
        if isinstance(step, Alias):
            start = step.offset * DTYPES[self._graph.values[name].dtype].nbytes
            whole = self.of(step.base, nbytes_of(self._graph, step.base))
            return _merged(_cut(whole, start, start + nbytes))
        if isinstance(step, Join):
            parts = [self.of(part, nbytes_of(self._graph, part)) for part in step.parts]
            return _merged(label for part in parts for label in part)
        return ((name, 0, nbytes),) if nbytes else ()


def _cut(labels: Iterable[Label], start: int, stop: int) -> Iterator[Label]:
    """Yield the labels of the bytes from `start` to `stop` of a labelled range."""
    at = 0
    for name, first, count in labels:
        low, high = max(start, at), min(stop, at + count)
        if low < high:
            yield name, first + low - at, high - low
        at += count


def _merged(labels: Iterable[Label]) -> tuple[Label, ...]:
    """Merge the labels of neighbouring bytes of one value."""
    merged: list[Label] = []
    for name, first, count in labels:
        if merged and merged[-1][0] == name and merged[-1][1] + merged[-1][2] == first:
            merged[-1] = (name, merged[-1][1], merged[-1][2] + count)
        else:
            merged.append((name, first, count))
    return tuple(merged)


@dataclass
class _Contents:
    """The labels of all buffers: sorted spans of each buffer, and the first byte of each span."""

    starts: dict[Buffer, list[int]] = field(default_factory=dict)
    spans: dict[Buffer, list[Label]] = field(default_factory=dict)

    def read(self, home: Home) -> tuple[Label, ...]:
        """Return the labels of a home in order, without bytes that were never written."""
        low, high = self._touched(home)
        starts, spans = self.starts.get(home.buffer, []), self.spans.get(home.buffer, [])
        labels = []
        for at, (name, first, count) in zip(starts[low:high], spans[low:high], strict=True):
            begin, end = max(at, home.start), min(at + count, home.start + home.nbytes)
            labels.append((name, first + begin - at, end - begin))
        return tuple(labels) if len(labels) == 1 else _merged(labels)

    def names(self, home: Home) -> str:
        return ", ".join(dict.fromkeys(name for name, _, _ in self.read(home)))

    def write(self, home: Home, labels: Sequence[Label]) -> None:
        starts, spans = self.starts.setdefault(home.buffer, []), self.spans.setdefault(home.buffer, [])
        low, high = self._touched(home)
        stop = home.start + home.nbytes
        kept: list[tuple[int, Label]] = []
        for at, (name, first, count) in zip(starts[low:high], spans[low:high], strict=True):
            if at < home.start:
                kept.append((at, (name, first, home.start - at)))
            if at + count > stop:
                kept.append((stop, (name, first + stop - at, at + count - stop)))
        kept += zip(accumulate((count for _, _, count in labels), initial=home.start), labels, strict=False)
        kept.sort()  # by where they begin
        starts[low:high] = [at for at, _ in kept]
        spans[low:high] = [label for _, label in kept]

    def _touched(self, home: Home) -> tuple[int, int]:
        """Return the range of the numbers of the spans that overlap a home."""
        starts, spans = self.starts.get(home.buffer, []), self.spans.get(home.buffer, [])
        low = bisect_right(starts, home.start)
        if low and starts[low - 1] + spans[low - 1][2] > home.start:
            low -= 1
        return low, max(low, bisect_left(starts, home.start + home.nbytes))
