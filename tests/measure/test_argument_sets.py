"""Arguments by turns: each call finds other memory with the same weights in it, and the first set is the kernel's."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from autosched.measure.argument_sets import MAX_SETS, ArgumentSets, aligned_stride
from autosched.measure.runner import Timer
from autosched.runtime.jit import load_library
from autosched.target import parse_target

# Adds 1 to the element of the output that the weight chooses.
COUNTING = """
define i32 @counting(ptr %args, ptr %ws, i64 %threads) {
  %out = load ptr, ptr %args
  %w.at = getelementptr ptr, ptr %args, i64 1
  %w = load ptr, ptr %w.at
  %at = load i64, ptr %w
  %here = getelementptr i64, ptr %out, i64 %at
  %old = load i64, ptr %here
  %new = add i64 %old, 1
  store i64 %new, ptr %here
  ret i32 0
}
"""


def pointers(sets: ArgumentSets, width: int) -> list[tuple[int, ...]]:
    flat = (ctypes.c_size_t * (sets.count * width)).from_address(sets.args)
    return [tuple(flat[n * width : (n + 1) * width]) for n in range(sets.count)]


@pytest.mark.parametrize("n_bytes", [1, 63, 64, 1000])
def test_every_set_has_the_same_weights_elsewhere(n_bytes: int) -> None:
    packed = np.arange(n_bytes, dtype=np.uint8)
    sets = ArgumentSets((7, None, packed.ctypes.data), packed, 5000)
    found = pointers(sets, 3)
    assert [(a, b) for a, b, _ in found] == [(7, 0)] * len(found)
    places = [place for *_, place in found]
    assert places[0] == packed.ctypes.data
    assert len(set(places)) == len(places)
    assert (len(places) - 1) * aligned_stride(n_bytes) >= 5000
    for place in places:
        assert bytes((ctypes.c_uint8 * n_bytes).from_address(place)) == packed.tobytes()


def test_what_has_no_weights_has_one_set() -> None:
    assert ArgumentSets((1, 2), None, 1 << 20).count == 1
    assert ArgumentSets((1, 2), np.zeros(8, np.uint8), 0).count == 1
    assert ArgumentSets((1, 2), np.zeros(0, np.uint8), 1 << 20).count == 1
    assert ArgumentSets((1, 2), np.zeros(8, np.uint8), 1 << 30).count == MAX_SETS


def test_calls_take_the_sets_by_turns() -> None:
    target = parse_target("cpu")
    library, addresses = load_library(COUNTING, target, ("counting",))
    counts, packed = np.zeros(3, np.int64), np.zeros(8, np.uint8)
    sets = ArgumentSets((counts.ctypes.data, packed.ctypes.data), packed, 2 * aligned_stride(8))
    assert sets.count == 3
    for n, (_, place) in enumerate(pointers(sets, 2)):
        ctypes.c_int64.from_address(place).value = n
    clock = Timer(target).clock(addresses["counting"], sets, 0, 1)
    assert clock(2) >= 0
    assert counts.tolist() == [1, 1, 0]
    clock(3)  # goes on where the last one ended
    assert counts.tolist() == [2, 2, 1]
    assert library is not None
