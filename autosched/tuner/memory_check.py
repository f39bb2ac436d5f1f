"""Memory check of a task (precondition): memory and disk for its arrays, before any of them is allocated."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from autosched.errors import UsageError
from autosched.ir.dtype import DTYPES

if TYPE_CHECKING:
    from autosched.te import ComputeDAG, Tensor

N_DATA_SETS = 2  # of `measure.problem`
REFERENCE_BYTES = 8  # of an element of the reference, and of its error bound
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def check_memory_and_disk(dag: ComputeDAG, directory: Path) -> None:
    """Check that memory and `directory` hold the arrays of a task. Raises UsageError with the sizes.

    The reference needs the inputs, the inputs in float64, and the larger of a stage's result with its error bound and
    the outputs. A worker needs all data sets (inputs, lower and upper limits of the outputs) and the kernel's outputs.
    """
    inputs, outputs = _bytes(dag.inputs), _bytes(dag.outputs)
    reference_outputs = REFERENCE_BYTES * _elements(dag.outputs)
    largest = max(2 * REFERENCE_BYTES * _elements(op.outputs) for op in dag.stages)
    reference = inputs + REFERENCE_BYTES * _elements(dag.inputs) + max(largest, 2 * reference_outputs)
    worker = N_DATA_SETS * (inputs + 2 * outputs) + outputs
    _check("memory", max(reference, worker), free_memory(), inputs, outputs, "use a smaller shape")
    import shutil

    files = N_DATA_SETS * (inputs + 2 * reference_outputs + 2 * outputs)
    advice = f"make room in {directory} or set XDG_CACHE_HOME"
    _check("disk space", files, shutil.disk_usage(directory).free, inputs, outputs, advice)


def _check(what: str, needed: int, free: int, inputs: int, outputs: int, advice: str) -> None:
    if needed > free:
        raise UsageError(
            f"the inputs ({size_text(inputs)}) and outputs ({size_text(outputs)}) need about {size_text(needed)} of "
            f"{what} to be checked against the reference, but {size_text(free)} are free: {advice}"
        )


def size_text(n_bytes: int) -> str:
    """2500000 -> '2.5 MB'."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= scale:
            return f"{n_bytes / scale:.1f} {unit}"
    return f"{n_bytes} bytes"


def _elements(tensors: Iterable[Tensor]) -> int:
    return sum(math.prod(t.shape) for t in tensors)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(math.prod(t.shape) * DTYPES[t.dtype].nbytes for t in tensors)


def free_memory() -> int:
    """Return the bytes of memory that a program can allocate: those available by Linux, at most the cgroup's limit."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        pass
    try:
        return min(free, int(_CGROUP_LIMIT.read_text()))
    except (OSError, ValueError):  # no cgroup, or no limit: "max"
        return free
