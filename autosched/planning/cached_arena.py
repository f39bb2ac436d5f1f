"""Plan of the arena, kept in the disk cache: the search for it took 0.4 s of 1.0 (MobileNet-V2) when all else was."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass

from autosched.errors import UsageError
from autosched.graph.memory.arena import ArenaPlan, plan_arena
from autosched.graph.memory.liveness import LiveBuffer
from autosched.kernel.versions import code_version
from autosched.measure.protocol import ProtocolError, checked
from autosched.runtime.disk_cache import key_of, read, write


@dataclass(frozen=True)
class _Entry:
    """The fields of an `ArenaPlan`."""

    offsets: tuple[tuple[str, int], ...]
    nbytes: int
    bound_bytes: int


def find_arena(buffers: Sequence[LiveBuffer]) -> ArenaPlan:
    """Return the plan of these buffers from the cache, or plan them and keep it."""
    key = key_of("arena", json.dumps([astuple(buffer) for buffer in buffers]), *code_version())
    if (entry := read(key)) is not None:
        with suppress(ProtocolError):
            kept: _Entry = checked(entry[0], _Entry, "a plan of memory")
            if {name for name, _ in kept.offsets} == {buffer.name for buffer in buffers}:
                return ArenaPlan(dict(kept.offsets), kept.nbytes, kept.bound_bytes)
    plan = plan_arena(buffers)
    with suppress(UsageError):  # a complete cache may be on a file system that cannot be written
        write(key, asdict(_Entry(tuple(plan.offsets.items()), plan.nbytes, plan.bound_bytes)), b"")
    return plan
