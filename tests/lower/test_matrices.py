"""Products of matrices by warps mean what the operators say, whatever the extents; the oracle is that of test_gpu.py."""

from __future__ import annotations

import pytest

from autosched.errors import ScheduleError
from autosched.ir.printer import func_text
from autosched.ir.stmt import Store, walk
from autosched.lower import concretise, lower
from autosched.schedule import Cooperate, Mma, initial_state, replay, steps_to_json
from tests.helpers import exact
from tests.matrix_products import ORDERS, matrix_state, product

NAMES = {"uint8*int8": "uint8.int8", "float8_e4m3fn": "float8_e4m3fn.promoted", "fp8-fast": "float8_e4m3fn"}  # of rows


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "int8", "uint8", "uint8*int8", "tf32", "3xtf32", "float8_e4m3fn", "fp8-fast"]
)
def test_every_order_of_operands(order: str, dtype: str) -> None:
    dag = product(17, 9, 35, order, dtype)
    func = exact(dag, matrix_state(dag, pad=16))
    assert {s.matrix for s in walk(func.body) if isinstance(s, Store)} == {"", f"mma.{NAMES.get(dtype, dtype)}"}


@pytest.mark.parametrize(
    ("m", "n", "k", "warps", "tiles", "stages"),
    [
        (9, 7, 16, (1, 1), (1, 1), 1),
        (33, 13, 47, (2, 1), (1, 2), 2),
        (16, 40, 33, (1, 2), (1, 3), 3),
        (40, 24, 64, (1, 1), (2, 2), 2),
        (1, 40, 33, (1, 2), (1, 1), 2),
        (19, 1, 5, (1, 1), (1, 2), 1),
        (3, 5, 1, (1, 1), (1, 1), 1),
    ],
)
def test_ragged_tiles(m: int, n: int, k: int, warps: tuple[int, int], tiles: tuple[int, int], stages: int) -> None:
    dag = product(m, n, k)
    exact(dag, matrix_state(dag, warps, tiles, stages))


def test_copies_of_two_elements_are_asynchronous() -> None:
    dag = product(16, 8, 64)
    state = matrix_state(dag, stages=2)
    steps = [s if s != Cooperate("A.shared", 1) else Cooperate("A.shared", 2) for s in state.steps]
    func = exact(dag, initial_state(dag).apply(*steps))
    started = {b for s in walk(func.body) if isinstance(s, Store) and s.asynchronous for b in s.buffers}
    assert started == {"A.shared"}


def test_a_record_brings_the_schedule_back() -> None:
    dag = product(32, 16, 32)
    state = matrix_state(dag)
    again = replay(dag, steps_to_json(state, {}))
    assert func_text(concretise(lower(again), {})[0]) == func_text(concretise(lower(state), {})[0])


def test_what_is_refused() -> None:
    dag = product(32, 16, 32)
    state = matrix_state(dag)
    before = state.steps[:-1]
    for step, reason in (
        (Mma("C.acc", "mma.bfloat16"), "products of float16 and float16 in float32"),
        (Mma("C.acc", "mma"), "known are"),
        (Mma("C", "mma.float16"), "no sum of products"),
    ):
        with pytest.raises(ScheduleError, match=reason):
            initial_state(dag).apply(*before, step)
    for missing, reason in (("Unroll", "unroll i, j and k.2 innermost"), ("Bind", "bind j.3 of C to threadIdx.x")):
        last = max(n for n, s in enumerate(before) if type(s).__name__ == missing)
        with pytest.raises(ScheduleError, match=reason):
            initial_state(dag).apply(*before[:last], *before[last + 1 :], state.steps[-1])


def test_parts_are_whole_steps() -> None:
    """What comes after a part is the next one."""
    dag = product(32, 16, 80)
    exact(dag, matrix_state(dag, part=64))
    with pytest.raises(ScheduleError, match=r"a part of k\.i is no multiple of 32"):
        matrix_state(dag, part=48)
