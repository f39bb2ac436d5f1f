"""Shipped table: schedules by structure for classes of processors, and which kernels cannot be fused.

A class is an instruction set, by the size and number of its vector registers. Each class has a file:

    {structure: {"schedules": [[sizes, steps in JSON], ...], "rates": [[sizes, Infinity], ...]}, ...}

An infinite rate says that no sketch fuses the kernel. Finite rates depend on the number of threads and are not shipped:
with those of 16 threads MobileNet-V2 got 26 kernels on 2 threads, where own rates give 33, fewer of them fused.

The analytic model made the decisions for THREADS threads, and `experiments.shipped_table` wrote them. Processors with
fewer threads take them too: schedules for 16 threads are predicted to take 1.01 times as long on 4 threads as schedules
for 4 threads (geometric mean of 36 kernels, at most 1.09). The reverse is not so: those for 2 threads take 1.13 times
as long on 4 threads, and 1.54 times on 16.

Steps that no longer fit the schedule language fail where the kernel is built, which then has a schedule of its own.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from autosched.kernel.device import Device

THREADS = 16  # that the schedules are for
MAX_THREADS = 32  # of a processor that takes them

Sizes = tuple[int, ...]
Decision = TypeVar("Decision", str, float)
Table = Mapping[str, Mapping[str, list[tuple[list[int], Any]]]]


def path_of(device: Device, folder: Path | None = None) -> Path | None:
    """Return the file of a device's class, which may be absent, in `folder`, by default that of the package.

    None for a GPU, and for more threads than MAX_THREADS.
    """
    target = device.target
    if target.backend.is_gpu or device.threads > MAX_THREADS:
        return None
    name = f"{target.arch}-v{target.vector_bytes}x{target.n_vector_registers}.json.xz"
    return (folder or Path(__file__).parent) / name


def find_shipped(what: str, structure: str, device: Device, hint: type[Decision]) -> dict[Sizes, Decision]:
    """Return the shipped decisions for a structure, by sizes: `what`, "schedules" or "rates", of the type `hint`."""
    path = path_of(device)
    rows = {} if path is None else read_table(path).get(structure, {})
    return {tuple(sizes): decision for sizes, decision in rows.get(what, ()) if isinstance(decision, hint)}


@lru_cache(maxsize=2)
def read_table(path: Path) -> Table:
    """Return the decisions of a file, none if there is no such file."""
    if not path.exists():
        return {}
    table: Table = json.loads(lzma.decompress(path.read_bytes()))
    return table
