"""Weights under check: packed anew for each data set, into guarded memory, and an input of the kernel from then on."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from autosched.measure.buffers import GuardedBuffer
from autosched.measure.check import (
    Array,
    CandidateError,
    CheckedKernel,
    DataSet,
    Packing,
    check,
    launch,
    load_data_sets,
)
from autosched.measure.problem import DATA_SETS, write_data_set
from autosched.runtime.spec import ArraySpec

N = 8
X, W, Y = (ArraySpec(name, (N,), "float32") for name in "XWY")
Body = Callable[[dict[str, Array]], int | None]


def arrays_at(args: int) -> dict[str, Array]:
    """The arguments of a call; the last one is the block, seen with an element too many."""
    pointers = (ctypes.c_void_p * 4).from_address(args)
    lengths = {"X": N, "W": N, "Y": N, "packed": N + 1}
    return {
        name: np.ctypeslib.as_array((ctypes.c_float * n).from_address(int(pointers[k] or 0)))
        for k, (name, n) in enumerate(lengths.items())
    }


def function(body: Body) -> Callable[[int, int, int], int]:
    return lambda args, workspace, threads: body(arrays_at(args)) or 0


def pack(a: dict[str, Array]) -> None:
    a["packed"][:N] = 2 * a["W"]


def add(a: dict[str, Array]) -> None:
    a["Y"][:] = a["X"] + a["packed"][:N]


def kernel(prepare: Body = pack, run: Body = add) -> CheckedKernel:
    return CheckedKernel(function(run), 1, GuardedBuffer(64), Packing(function(prepare), GuardedBuffer(4 * N)))


@pytest.fixture
def data(tmp_path: Path) -> list[DataSet]:
    for n, name in enumerate(DATA_SETS):
        x, w = (np.arange(N, dtype=np.float32) + 10 * n + k for k in (1, 5))
        write_data_set(tmp_path, name, (X, W), (Y,), {"X": x, "W": w}, [((x + 2 * w).astype(np.float64), np.zeros(N))])
    return load_data_sets(tmp_path, (X, W), (Y,))


def test_each_data_set_has_its_own_weights_and_the_first_stays(data: list[DataSet]) -> None:
    good = kernel()
    check(good, data)
    launch(good, data[0])  # as after the timing loop: nothing is packed again
    with pytest.raises(CandidateError, match="elements are wrong"):
        launch(good, data[1])


def writes_behind(a: dict[str, Array]) -> None:
    pack(a)
    a["packed"][N] = 1.0


def changes_an_input(a: dict[str, Array]) -> None:
    pack(a)
    a["X"][3] = 7.0


def packs_half(a: dict[str, Array]) -> None:
    a["packed"][: N // 2] = 2 * a["W"][: N // 2]


def fails(a: dict[str, Array]) -> int:
    return 3


def changes_the_block(a: dict[str, Array]) -> None:
    add(a)
    a["packed"][0] += 1.0


@pytest.mark.parametrize(
    ("bad", "fault", "sentence"),
    [
        (kernel(prepare=writes_behind), "out_of_bounds", "outside the packed weights: "),
        (kernel(prepare=changes_an_input), "clobbered_input", "changed 1 elements of its input X"),
        (kernel(prepare=packs_half), "wrong_result", "uninitialised"),
        (kernel(prepare=fails), "crash", "status 3"),
        (kernel(run=changes_the_block), "clobbered_input", "changed its packed weights"),
    ],
)
def test_faults(data: list[DataSet], bad: CheckedKernel, fault: str, sentence: str) -> None:
    with pytest.raises(CandidateError, match=sentence) as caught:
        check(bad, data)
    assert caught.value.fault == fault


def test_a_kernel_that_keeps_old_weights_is_wrong(data: list[DataSet]) -> None:
    first: list[Array] = []

    def stale(a: dict[str, Array]) -> None:
        first.append(a["packed"][:N].copy())
        a["Y"][:] = a["X"] + first[0]

    with pytest.raises(CandidateError) as caught:
        check(kernel(run=stale), data)
    assert caught.value.fault == "wrong_result"
