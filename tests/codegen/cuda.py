"""Runs generated CUDA C on the processor; tests that call it are skipped without g++.

Each text runs twice: copies as late as they may be and threads forward, with every access checked; then copies at once
and threads backward. Both must leave the same bytes behind, unless updates are atomic.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from autosched.codegen.c.source import GpuSource
from autosched.ir.dtype import numpy_dtype
from autosched.ir.stmt import Func
from autosched.runtime.simulator.build import find_compiler
from autosched.runtime.simulator.execute import Execution, Mode, Simulated, build, execute

Array = npt.NDArray[Any]
POISON, GUARD = 0xA5, 256  # every byte that a kernel has not written; bytes before and after each buffer
CHECKED, HASTY = Mode(late=True, backward=False, checked=True), Mode(late=False, backward=True)
COUNTING = Mode(checked=True, counted=True)


@lru_cache(maxsize=4)
def built(text: str) -> Simulated:
    if find_compiler() is None:
        pytest.skip("g++ is not installed (on Debian: g++)")
    return build(text, checked=True)


class Guarded:
    """A buffer between two regions that no kernel may write, all of it poisoned; it begins as a GPU's memory does."""

    def __init__(self, nbytes: int, dtype: npt.DTypeLike, content: Array | None = None) -> None:
        raw = np.full(nbytes + 3 * GUARD, POISON, np.uint8)
        begin = -raw.ctypes.data % GUARD
        self.whole = raw[begin : begin + nbytes + 2 * GUARD]
        self.array = self.whole[GUARD : GUARD + nbytes].view(dtype)
        if content is not None:
            self.array[:] = content.reshape(-1)

    def check(self) -> None:
        for part in (self.whole[:GUARD], self.whole[GUARD + self.array.nbytes :]):
            assert (part == POISON).all(), "a kernel wrote outside of its buffer"


def run(source: GpuSource, func: Func, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs by name. Nothing may be found wrong, inputs must be left alone, buffers not be overrun."""
    first, ran = once(source, func, inputs, CHECKED)
    assert not ran.mistakes, f"{'; '.join(map(str, ran.mistakes))}\n{source.text}"
    again, ran = once(source, func, inputs, HASTY)
    assert not ran.mistakes, f"{'; '.join(map(str, ran.mistakes))}\n{source.text}"
    if "atomic" not in source.text:
        for name, array in first.items():
            assert array.tobytes() == again[name].tobytes(), f"{name} depends on when copies are made\n{source.text}"
    return again


def counted(source: GpuSource, func: Func, inputs: Mapping[str, Array]) -> Mapping[str, int]:
    """What the simulator counts, by the names of `COUNTED`."""
    _, ran = once(source, func, inputs, COUNTING)
    return ran.numbers


def once(source: GpuSource, func: Func, inputs: Mapping[str, Array], mode: Mode) -> tuple[dict[str, Array], Execution]:
    """The outputs by name, and what is said of how they came."""
    outputs = func.params[len(func.params) - func.n_outputs :]
    shapes = {b.name: tuple(int(e.value) for e in b.shape) for b in func.params}  # type: ignore[attr-defined]
    buffers = {
        b.name: Guarded(int(np.prod(shapes[b.name])) * b.itemsize, numpy_dtype(b.dtype), inputs.get(b.name))
        for b in func.params
    }
    buffers |= {name: Guarded(nbytes, "uint8") for name, nbytes in source.workspace}
    memory = {name: buffer.array for name, buffer in buffers.items()}
    ran = execute(built(source.text), source.launches, memory, frozenset(source.inputs), mode)
    for buffer in buffers.values():
        buffer.check()
    for b in func.params[: len(func.params) - func.n_outputs]:
        assert memory[b.name].tobytes() == inputs[b.name].tobytes(), f"the input {b.name} was written"
    return {b.name: memory[b.name].reshape(shapes[b.name]) for b in outputs}, ran
