"""Arrays with guard bytes around them, which nothing may write to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from autosched.runtime import kernel
from autosched.runtime.spec import ArraySpec

ALIGNMENT = 64
GUARD_BYTES = 4096  # behind and before each array
SIGN = 0xA5


@dataclass(frozen=True)
class GuardedArray:
    """`array`, in the middle of `memory`, which is SIGN everywhere else; all ones itself until it is written."""

    array: npt.NDArray[Any]
    memory: npt.NDArray[np.uint8]
    start: int

    @property
    def is_intact(self) -> bool:
        outside = self.memory[: self.start], self.memory[self.start + self.array.nbytes :]
        return all((part == SIGN).all() for part in outside)


def guarded(shape: Sequence[int], dtype: Any) -> GuardedArray:
    kind = np.dtype(dtype)
    nbytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    memory = np.full(nbytes + 2 * GUARD_BYTES + ALIGNMENT, SIGN, np.uint8)
    start = GUARD_BYTES + -(memory.ctypes.data + GUARD_BYTES) % ALIGNMENT
    memory[start : start + nbytes] = 0xFF
    return GuardedArray(np.ndarray(tuple(shape), kind, memory, start), memory, start)


FOLDERS = frozenset(
    ("artifacts", "executor", "graph", "inspection", "kernel", "network_tuning", "planning", "torch_backend",
     "verification")
)  # fmt: skip # of tests that call networks


@pytest.fixture(autouse=True)
def guarded_results(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The arrays that networks make for their results have guards, looked at after the test."""
    if FOLDERS.isdisjoint(request.path.parts):
        yield
        return
    made: list[GuardedArray] = []

    def new_outputs(specs: Sequence[ArraySpec], beside: int = 0) -> list[npt.NDArray[Any]]:
        mine = [guarded(spec.shape, spec.numpy_dtype) for spec in specs]
        made.extend(mine)
        return [one.array for one in mine]

    monkeypatch.setattr(kernel, "new_outputs", new_outputs)
    yield
    assert all(one.is_intact for one in made), "something was written around a result"
