"""For tests: whether a plan holds what it promises, and an arena that forgets what is not needed any more."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from autosched.graph.memory.arena import ArenaPlan
from autosched.graph.memory.liveness import LiveBuffer
from autosched.runtime.tensors import ALIGNMENT, aligned_empty

FORGOTTEN = 0xFF  # a NaN of each type of floats, -1 or the largest integer of others


def faults(buffers: Sequence[LiveBuffer], plan: ArenaPlan) -> list[str]:
    """What is wrong with a plan, found by walking through the steps."""
    found = []
    for buffer in buffers:
        offset = plan.offsets[buffer.name]
        if offset % ALIGNMENT:
            found.append(f"{buffer.name} at {offset} is not aligned")
        if not 0 <= offset <= plan.nbytes - buffer.nbytes:
            found.append(f"{buffer.name} at {offset} lies outside of {plan.nbytes} bytes")
    most = 0
    for step in sorted({t.first for t in buffers}):
        alive = sorted((plan.offsets[t.name], t.nbytes, t.name) for t in buffers if t.first <= step <= t.last)
        most = max(most, sum(-(-nbytes // ALIGNMENT) * ALIGNMENT for _, nbytes, _ in alive))
        for (start, nbytes, name), (following, _, other) in pairwise(alive):
            if start + nbytes > following:
                found.append(f"{name} and {other} overlap in step {step}")
    if most != plan.bound_bytes:
        found.append(f"{most} bytes are alive at once, but the plan says {plan.bound_bytes}")
    return found


class Arena:
    """The memory of a plan. It holds NaN wherever no value is needed: before its first step and after its last."""

    def __init__(self, buffers: Sequence[LiveBuffer], plan: ArenaPlan) -> None:
        self.buffers, self.plan = buffers, plan
        self.memory = aligned_empty((plan.nbytes,), np.dtype(np.uint8))
        self.memory[:] = FORGOTTEN

    def view(self, offset: int, shape: Sequence[int], dtype: str) -> npt.NDArray[Any]:
        """The value of that shape and type at an offset."""
        return np.ndarray(tuple(shape), dtype, self.memory, offset)

    def after(self, step: int) -> None:
        """Forgets what no later step needs."""
        for buffer in self.buffers:
            if buffer.last == step:
                offset = self.plan.offsets[buffer.name]
                self.memory[offset : offset + buffer.nbytes] = FORGOTTEN
