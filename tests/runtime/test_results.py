"""Large results come in memory that is used again, and never while anything looks at it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from autosched.runtime import results
from autosched.runtime.results import LARGE_BYTES, SPARE_BYTES, Spare, Spares, result_memory
from autosched.runtime.spec import ArraySpec
from autosched.runtime.tensors import ALIASED_BYTES, SHIFT, address_of, aligned_empty, new_outputs

LARGE = ArraySpec("Y", (LARGE_BYTES // 4,), "float32")


def _result() -> npt.NDArray[Any]:
    return new_outputs([LARGE])[0]


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    gc.disable()  # results that other tests left in cycles must not come back meanwhile
    results._kept.clear()
    yield
    results._kept.clear()
    gc.enable()


def test_the_memory_of_a_dropped_result_is_used_again() -> None:
    first = _result()
    address = address_of(first)
    del first
    assert address_of(_result()) == address


def test_a_loop_that_holds_its_last_result_needs_two_pieces() -> None:
    addresses, result = set(), None
    for _ in range(6):
        result = _result()
        addresses.add(address_of(result))
    assert len(addresses) == 2
    del result


@pytest.mark.parametrize(
    "look",
    [
        lambda array: array,
        lambda array: array[5:],
        lambda array: array[5:][::7].reshape(-1),
        lambda array: array.view(np.int32),
        memoryview,
        lambda array: memoryview(array)[3:9],
        np.from_dlpack,
        lambda array: array.__dlpack__(),
        lambda array: array.ctypes.data_as,
        lambda array: iter(array),
        lambda array: weakref.ref(array.base),
    ],
)
def test_memory_that_something_looks_at_is_not_given_out(look: Callable[[Any], object]) -> None:
    first = _result()
    address, held = address_of(first), look(first)
    del first
    second = _result()
    assert address_of(second) != address
    del held
    assert address_of(_result()) == address


def test_another_size_gets_memory_of_its_own_and_small_ones_are_not_kept() -> None:
    first = result_memory(LARGE_BYTES)
    result_memory(LARGE_BYTES + 1)
    result_memory(LARGE_BYTES - 1)
    assert [memory.nbytes for memory in results._kept] == [LARGE_BYTES, LARGE_BYTES + 1]
    assert first.nbytes == LARGE_BYTES


def test_no_more_is_kept_than_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "KEPT_BYTES", 5 * LARGE_BYTES)
    held = [result_memory(LARGE_BYTES) for _ in range(6)]
    assert [id(memory) for memory in results._kept] == [id(memory) for memory in held[1:]]
    result_memory(5 * LARGE_BYTES + 1)
    assert len(results._kept) == 5
    assert len({address_of(memory) for memory in held}) == 6


def test_threads_never_share_a_piece() -> None:
    def use(mark: int) -> bool:
        for _ in range(60):
            memory = result_memory(LARGE_BYTES)
            memory[:64] = mark
            if (memory[:64] != mark).any():
                return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(use, range(6)))


def _small(n: int = 16) -> npt.NDArray[Any]:
    return new_outputs([ArraySpec("Y", (n,), "float32")])[0]


def test_small_results_of_a_kernel_are_given_out_again() -> None:
    spares, array, other = Spares(64), _small(), _small()
    place = id(array)
    spares.keep(Spare(1, [array]))
    assert spares.take(1) is None, "the caller has it"
    spares.keep(Spare(1, [other]))
    del array
    assert spares.take(2) is None, "it lies best beside another input"
    found = spares.take(1)
    assert found is not None
    assert [id(result) for result in found.results] == [place]
    assert spares.take(1) is None, "one is taken, the other in use"


@pytest.mark.parametrize(
    "look",
    [
        lambda array: array,
        lambda array: array[3:],
        lambda array: array.base,
        lambda array: weakref.ref(array.base),
        np.ravel,
        memoryview,
        weakref.ref,
        lambda array: array.__dlpack__(),
        lambda array: array[2:].__dlpack__(),
    ],
)
@pytest.mark.parametrize("which", [0, 1])
def test_small_results_that_something_looks_at_are_not_given_out(which: int, look: Callable[[Any], object]) -> None:
    spares, arrays = Spares(128), [_small(), _small()]
    held = look(arrays[which])
    spares.keep(Spare(1, arrays))
    del arrays
    assert spares.take(1) is None
    del held
    assert spares.take(1) is not None


def test_an_array_that_was_given_other_memory_is_not_given_out() -> None:
    spares, array = Spares(64), _small()
    spares.keep(Spare(1, [array]))
    array.__setstate__((1, (16,), array.dtype, False, bytes(64)))
    del array
    assert spares.take(1) is None


def test_results_that_take_long_are_not_kept() -> None:
    spares = Spares(SPARE_BYTES + 1)
    spares.keep(Spare(1, [_small(SPARE_BYTES // 4 + 1)]))
    assert spares.take(1) is None


@pytest.mark.parametrize("n_bytes", [ALIASED_BYTES, 3 * ALIASED_BYTES + 4, LARGE_BYTES])
@pytest.mark.parametrize("offset", [0, 4, 64, 2816, 4092])
def test_results_lie_apart_from_the_input(n_bytes: int, offset: int) -> None:
    specs = [ArraySpec(name, (n_bytes,), "uint8") for name in "YZ"]
    given = address_of(aligned_empty((ALIASED_BYTES,), "uint8")) + offset
    for n, result in enumerate(new_outputs(specs, given), start=1):
        behind = (address_of(result) - given) % ALIASED_BYTES
        assert n * SHIFT - 64 < behind <= n * SHIFT
        assert (address_of(result) % 64, result.nbytes) == (0, n_bytes)
        result[:] = 1  # all of it is there


@pytest.mark.parametrize("n_bytes", [0, 1, ALIASED_BYTES - 1])
def test_small_results_are_only_aligned(n_bytes: int) -> None:
    (result,) = new_outputs([ArraySpec("Y", (n_bytes,), "uint8")], 64)
    assert result.nbytes == n_bytes
    assert n_bytes == 0 or address_of(result) % 64 == 0
