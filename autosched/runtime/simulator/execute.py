"""Runs the launches of a source on arrays of the processor, and tells what was found wrong on the way."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from autosched.codegen.c.source import Launch
from autosched.errors import UsageError
from autosched.runtime.simulator.build import compile_kernels, runtime
from autosched.runtime.simulator.translate import Translated, translate

Array = npt.NDArray[Any]
MOST_THREADS, MOST_SHARED = 1024, 227 << 10  # of a block


@dataclass(frozen=True)
class Mode:
    """`late`: asynchronous work is done when it is waited for, else at once. `backward`: the last thread runs first.

    `checked`: races, reads of what nobody wrote, misaligned and foreign addresses are found. `counted`: also wavefronts
    of shared memory and sectors of the rest; both need kernels that were compiled so.
    """

    late: bool = True
    backward: bool = False
    checked: bool = False
    counted: bool = False


# Two ways through a kernel that have little in common: what is right in both waits for what it needs.
EXTREMES = (Mode(late=True, backward=False), Mode(late=False, backward=True))


@dataclass(frozen=True)
class Mistake:
    """Something wrong: a `kind` ("race", "unwritten", "under way", "misaligned", "outside", "deadlock", "diverged"),
    how often, and the first of them in words."""

    kind: str
    times: int
    first: str

    def __str__(self) -> str:
        return f"{self.kind} ({self.times} times): {self.first}"


@dataclass(frozen=True)
class Execution:
    """`numbers`: what was counted, by the names of COUNTED. `is_whole`: it was not broken off."""

    mistakes: tuple[Mistake, ...]
    numbers: Mapping[str, int]
    is_whole: bool


@dataclass(frozen=True)
class Simulated:
    """The compiled kernels of a text."""

    translated: Translated
    library: ctypes.CDLL = field(repr=False)
    checked: bool


COUNTED = (
    "switches", "collectives", "accesses", "shared_requests", "wavefronts", "least_wavefronts", "requests", "sectors",
    "least_sectors",
)  # fmt: skip


class _Options(ctypes.Structure):
    _fields_ = (
        ("late", ctypes.c_int), ("backward", ctypes.c_int), ("checked", ctypes.c_int), ("counted", ctypes.c_int),
        ("granule", ctypes.c_uint),
    )  # fmt: skip


class _Buffer(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p), ("start", ctypes.c_void_p), ("bytes", ctypes.c_uint64), ("granule", ctypes.c_uint),
        ("is_written", ctypes.c_uint), ("is_known", ctypes.c_uint),
    )  # fmt: skip


class _Numbers(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in COUNTED)


def build(text: str, checked: bool = False) -> Simulated:
    """CUDA C for the processor, in a fraction of a second. Raises CompileError, UsageError for PTX that is not known,
    DeviceError where there is no compiler."""
    translated = translate(text)
    return Simulated(translated, compile_kernels(translated.text, checked), checked)


def execute(
    kernels: Simulated,
    launches: Sequence[Launch],
    memory: Mapping[str, Array],
    known: frozenset[str],
    mode: Mode = EXTREMES[0],
) -> Execution:
    """Runs `launches` in order with the arrays of `memory` by the names of their arguments.

    `known`: those that have a content. Values that a kernel takes are arrays of their bytes. Nothing may lie behind an
    array that matters: only a checked run keeps within them. Raises UsageError for a launch that no GPU takes.
    """
    library, _ = runtime()
    options = _Options(mode.late, mode.backward, mode.checked, mode.counted, kernels.translated.granule)
    buffers = _buffers(kernels, launches, memory, known)
    library.simulator_forget()
    library.simulator_open(ctypes.byref(options), buffers, len(buffers))
    is_whole = all(_launch(library, kernels, launch, memory) for launch in launches)
    library.simulator_findings.restype = ctypes.c_char_p
    library.simulator_numbers.restype = ctypes.POINTER(_Numbers)
    lines = [line.split("\t") for line in library.simulator_findings().decode().splitlines()]
    numbers = library.simulator_numbers().contents
    mistakes = tuple(Mistake(kind, int(times), first) for kind, times, first in lines)
    return Execution(mistakes, {name: int(getattr(numbers, name)) for name in COUNTED}, is_whole)


def _launch(library: ctypes.CDLL, kernels: Simulated, launch: Launch, memory: Mapping[str, Array]) -> bool:
    if math.prod(launch.block) > MOST_THREADS or launch.shared_bytes > MOST_SHARED:
        raise UsageError(
            f"{launch.kernel} asks for blocks of {math.prod(launch.block)} threads and {launch.shared_bytes} shared "
            f"bytes; a GPU has at most {MOST_THREADS} and {MOST_SHARED}"
        )
    cluster = kernels.translated.clusters[launch.kernel]
    sizes = (ctypes.c_uint * 7)(*launch.grid, *launch.block, cluster)
    given = (ctypes.c_void_p * len(launch.arguments))(*(memory[name].ctypes.data for name in launch.arguments))
    entry = getattr(kernels.library, f"enter_{launch.kernel}")
    return int(library.simulator_launch(entry, given, sizes, launch.shared_bytes)) == 0


def _buffers(
    kernels: Simulated, launches: Sequence[Launch], memory: Mapping[str, Array], known: frozenset[str]
) -> ctypes.Array[_Buffer]:
    written = {
        name
        for launch in launches
        for name, is_written in zip(launch.arguments, kernels.translated.written[launch.kernel], strict=True)
        if is_written
    }
    rows = [
        _Buffer(name.encode(), a.ctypes.data, a.nbytes, a.itemsize, name in written, name in known)
        for name, a in memory.items()
    ]
    return (_Buffer * len(rows))(*rows)
