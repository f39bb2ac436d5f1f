"""Execution of a source's launches on arrays of the processor, and detection of mistakes."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from autosched.codegen.c.source import Launch, TensorMap
from autosched.errors import UsageError
from autosched.runtime.simulator.build import CompiledKernels, compile_kernels, runtime
from autosched.runtime.simulator.flaws import Flaw, flaws_of_launch
from autosched.runtime.simulator.maps import encoded
from autosched.runtime.simulator.translate import Translated, translate

Array = npt.NDArray[Any]
MOST_THREADS, MOST_SHARED = 1024, 227 << 10  # limits of a block: threads, bytes of shared memory
MOST_ALIGNED = 1024  # bytes, that anything in shared memory must be aligned to
_LOCK = threading.Lock()  # the runtime runs one launch at a time
EARLY = 90  # the compute capability from which on launches may be early
CAPABILITY = 90  # 9.0: it has all instructions of the simulator


@dataclass(frozen=True)
class Mode:
    """How launches are executed. `late`: asynchronous copies complete when they are waited for, else at once.
    `backward`: the last thread runs first.

    `checked`: detect races, reads of uninitialised memory, misaligned and foreign addresses. `counted`: also count
    wavefronts of shared memory and sectors of global memory. Both need kernels that were compiled for that. `seconds`:
    processor time that a launch may take, 0 for any.
    """

    late: bool = True
    backward: bool = False
    checked: bool = False
    counted: bool = False
    seconds: int = 0


# Two very different orders of execution: a kernel that is correct in both has the barriers that it needs.
EXTREMES = (Mode(late=True, backward=False), Mode(late=False, backward=True))


KINDS = {
    "race": "accesses of two threads to one place, at least one a write, with no barrier between",
    "unwritten": "a read of what nobody has written",
    "under way": "an access to what an asynchronous copy is going to write",
    "unfenced": "an asynchronous read of what a thread wrote, or a use of registers, with no fence between",
    "misaligned": "an address that is no multiple of what is moved at once",
    "outside": "an address that is in none of the kernel's arrays, nor in its shared memory",
    "deadlock": "every thread waits, or has ended",
    "diverged": "threads that must be at one place of the program are not",
    "protocol": "arrivals or bytes that an mbarrier does not wait for",
    "early": "an access to what kernels before may still write or read, with no griddepcontrol.wait before it",
    "unfinished": "an end of threads whose asynchronous copies, stores or products are under way",
    "movable": "a statement that a compiler may move or leave out, and must not",
    "refused": "what a GPU does not take",
    "endless": "a launch that takes longer than it may",
    "trap": "what the processor refuses, as a division by zero",
}


# From kinds of mistakes to fault classes; other kinds make results wrong.
FAULTS_OF = {
    "misaligned": "misaligned_address", "outside": "illegal_address", "trap": "crash", "refused": "launch_refused",
    "deadlock": "hang", "diverged": "hang", "endless": "hang",
}  # fmt: skip


@dataclass(frozen=True)
class Mistake:
    """A mistake: a `kind` of KINDS, its number, and a description of the first one.

    `line` of the text, and its `code`, if they are known: in kernels that were compiled with checks.
    """

    kind: str
    times: int
    first: str
    line: int | None = None
    code: str = ""

    def __str__(self) -> str:
        where = "" if self.line is None else f", in line {self.line}: {self.code}"
        return f"{self.kind} ({self.times} times): {self.first}{where}"


@dataclass(frozen=True)
class Execution:
    """The result of launches. `numbers`: counters, by the names of COUNTED. `is_whole`: they ran to the end."""

    mistakes: tuple[Mistake, ...]
    numbers: Mapping[str, int]
    is_whole: bool


@dataclass(frozen=True)
class Simulated:
    """The compiled kernels of a text."""

    translated: Translated
    kernels: CompiledKernels
    capability: int = CAPABILITY

    def is_early(self, launch: Launch) -> bool:
        """Return whether the device starts the launch before those before it have ended."""
        return launch.is_early and self.capability >= EARLY


COUNTED = (
    "switches", "collectives", "accesses", "shared_requests", "wavefronts", "least_wavefronts", "requests", "sectors",
    "least_sectors",
)  # fmt: skip


class _Options(ctypes.Structure):
    _fields_ = (
        ("late", ctypes.c_int), ("backward", ctypes.c_int), ("checked", ctypes.c_int), ("counted", ctypes.c_int),
        ("granule", ctypes.c_uint), ("seconds", ctypes.c_uint),
    )  # fmt: skip


class _Buffer(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p), ("start", ctypes.c_void_p), ("bytes", ctypes.c_uint64), ("granule", ctypes.c_uint),
        ("is_written", ctypes.c_uint), ("is_known", ctypes.c_uint),
    )  # fmt: skip


class _Numbers(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in COUNTED)


def build(text: str, checked: bool = False, capability: int = CAPABILITY) -> Simulated:
    """Compile CUDA C for the processor, in a fraction of a second, as for a GPU of that compute capability.

    Raises CompileError, UsageError for unknown PTX, DeviceError if there is no compiler.
    """
    translated = translate(text)
    return Simulated(translated, compile_kernels(translated.text, checked, capability), capability)


def execute(
    simulated: Simulated,
    launches: Sequence[Launch],
    memory: Mapping[str, Array],
    initialised: frozenset[str],
    mode: Mode = EXTREMES[0],
    before: Sequence[Launch] = (),
) -> Execution:
    """Run `launches` in order with the arrays of `memory` by the names of their arguments.

    `before`: launches of the same call that have been executed. `initialised`: the arrays that have a content.
    Arguments by value are arrays of their bytes. Without checks kernels may write behind an array. Raises UsageError
    for a launch that no GPU accepts.
    """
    with _LOCK:
        return _execute(simulated, launches, memory, initialised, mode, before)


def _execute(
    simulated: Simulated,
    launches: Sequence[Launch],
    memory: Mapping[str, Array],
    initialised: frozenset[str],
    mode: Mode,
    before: Sequence[Launch],
) -> Execution:
    library, _ = runtime()
    options = _Options(mode.late, mode.backward, mode.checked, mode.counted, simulated.translated.granule, mode.seconds)
    buffers = _buffers(simulated, launches, memory, initialised)
    library.simulator_forget()
    library.simulator_open(ctypes.byref(options), buffers, len(buffers))
    flaws, is_whole = list(simulated.translated.flaws), True
    for n, launch in enumerate(launches):
        earlier = (*before, *launches[:n])
        flaws += _flaws(simulated, launch, earlier)
        hazards = _hazards(simulated, earlier, list(memory))
        library.simulator_hazards(hazards, len(hazards))
        is_whole = is_whole and _launch(library, simulated, launch, memory)
    library.simulator_findings.restype = ctypes.c_char_p
    library.simulator_numbers.restype = ctypes.POINTER(_Numbers)
    findings = [line.split("\t") for line in library.simulator_findings().decode().splitlines()]
    numbers = library.simulator_numbers().contents
    mistakes = tuple(_mistake(simulated, kind, int(times), int(place), first) for kind, times, place, first in findings)
    counted = {name: int(getattr(numbers, name)) for name in COUNTED}
    return Execution((*_of_flaws(flaws), *mistakes), counted, is_whole)


def _of_flaws(flaws: Sequence[Flaw]) -> list[Mistake]:
    """Return a mistake of each kind, with the first of its flaws."""
    kinds = dict.fromkeys(flaw.kind for flaw in flaws)
    mistakes = []
    for kind in kinds:
        first, *others = (flaw for flaw in flaws if flaw.kind == kind)
        mistakes.append(Mistake(kind, 1 + len(others), first.words, first.line or None, first.code))
    return mistakes


def _flaws(simulated: Simulated, launch: Launch, before: Sequence[Launch]) -> Iterator[Flaw]:
    translated, kernel = simulated.translated, launch.kernel
    earlier = frozenset(b for x in before for b in _written(simulated, x) if simulated.is_early(launch))
    return flaws_of_launch(launch, translated.parameters[kernel], translated.most_threads[kernel], earlier)


def _written(simulated: Simulated, launch: Launch) -> set[str]:
    """Return the buffers that a launch may write."""
    if launch.writes:
        return set(launch.writes)
    flags = simulated.translated.written(launch.kernel)
    by_engine = {a.buffer for a in launch.arguments if isinstance(a, TensorMap)}
    return {b for b, is_written in zip(launch.buffers, flags, strict=True) if is_written} | by_engine


def _hazards(simulated: Simulated, before: Sequence[Launch], names: Sequence[str]) -> ctypes.Array[ctypes.c_uint]:
    """Return for each buffer whether launches before read it, 1, or write it, 2."""
    written = {b for launch in before for b in _written(simulated, launch)}
    read = {b for launch in before for b in launch.buffers}
    return (ctypes.c_uint * len(names))(*(2 if name in written else int(name in read) for name in names))


def _mistake(simulated: Simulated, kind: str, times: int, place: int, first: str) -> Mistake:
    line = simulated.kernels.line(place)
    return Mistake(kind, times, first, line, "" if line is None else simulated.translated.line(line))


def _launch(library: ctypes.CDLL, simulated: Simulated, launch: Launch, memory: Mapping[str, Array]) -> bool:
    if math.prod(launch.block) > MOST_THREADS or launch.shared_bytes > MOST_SHARED:
        raise UsageError(
            f"{launch.kernel} asks for blocks of {math.prod(launch.block)} threads and {launch.shared_bytes} shared "
            f"bytes; a GPU has at most {MOST_THREADS} and {MOST_SHARED}"
        )
    cluster = simulated.translated.clusters[launch.kernel]
    if launch.grid[0] % cluster:
        raise UsageError(f"{launch.kernel} has clusters of {cluster} blocks, but {launch.grid[0]} of them along x")
    alignment = simulated.translated.alignments[launch.kernel]
    shift = alignment if alignment < MOST_ALIGNED else 0
    sizes = (ctypes.c_uint * 9)(*launch.grid, *launch.block, cluster, shift, simulated.is_early(launch))
    values = [
        encoded(a, memory[a.buffer].ctypes.data) if isinstance(a, TensorMap) else memory[a] for a in launch.arguments
    ]
    given = (ctypes.c_void_p * len(values))(*(value.ctypes.data for value in values))
    entry = getattr(simulated.kernels.library, f"enter_{launch.kernel}")
    return (
        int(
            library.simulator_launch(
                entry, given, sizes, launch.shared_bytes + simulated.translated.gaps[launch.kernel]
            )
        )
        == 0
    )


def _buffers(
    simulated: Simulated, launches: Sequence[Launch], memory: Mapping[str, Array], initialised: frozenset[str]
) -> ctypes.Array[_Buffer]:
    written = {
        name
        for launch in launches
        for name, is_written in zip(launch.buffers, simulated.translated.written(launch.kernel), strict=True)
        if is_written
    }
    # Mapped arrays without content: the copy engine writes them, in this launch or before another one reads them.
    maps = {a.buffer for launch in launches for a in launch.arguments if isinstance(a, TensorMap)}
    written |= maps - initialised
    rows = [
        _Buffer(name.encode(), a.ctypes.data, a.nbytes, a.itemsize, name in written, name in initialised)
        for name, a in memory.items()
    ]
    return (_Buffer * len(rows))(*rows)
