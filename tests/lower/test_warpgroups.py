"""Products by warpgroups, tiles in rings and tiles that are written back mean what the operators say."""

from __future__ import annotations

import pytest

from autosched.errors import ScheduleError
from autosched.ir.printer import func_text
from autosched.ir.stmt import Store, TileCopy, walk
from autosched.lower import concretise, lower
from autosched.schedule import Pipeline, ShareTiles, StoreTiles, WarpgroupMma, initial_state, replay, steps_to_json
from tests.helpers import exact
from tests.matrix_products import ORDERS, group_state, product


@pytest.mark.parametrize("order", ORDERS)
def test_every_order_of_operands(order: str) -> None:
    dag = product(40, 16, 24, order)
    func = exact(dag, group_state(dag, steps=1))
    assert {s.matrix for s in walk(func.body) if isinstance(s, Store)} == {"", "wgmma.float16"}
    assert {s.outside for s in walk(func.body) if isinstance(s, TileCopy)} == {"A", "B"}


@pytest.mark.parametrize(
    ("m", "n", "k", "groups", "columns", "steps", "stages"),
    [(67, 16, 8, (1, 1), 2, 1, 2), (17, 24, 16, (2, 1), 2, 1, 3), (65, 8, 24, (1, 2), 2, 2, 2)],
)
@pytest.mark.parametrize("staged", [False, True])
def test_ragged_tiles(
    m: int, n: int, k: int, groups: tuple[int, int], columns: int, steps: int, stages: int, staged: bool
) -> None:
    dag = product(m, n, k)
    func = exact(dag, group_state(dag, groups, columns, steps, stages, 3, staged))
    back = [s for s in walk(func.body) if isinstance(s, TileCopy) and s.back]
    assert [s.outside for s in back] == ["C"] * staged


@pytest.mark.parametrize("sharing", [(), (ShareTiles("C", 2, 1),)])
def test_a_record_brings_the_schedule_back(sharing: tuple[ShareTiles, ...]) -> None:
    dag = product(128, 16, 32)
    state = group_state(dag, staged=True, multiprocessors=4).apply(*sharing)
    again = replay(dag, steps_to_json(state, {}))
    assert func_text(concretise(lower(again), {})[0]) == func_text(concretise(lower(state), {})[0])


def test_clusters_change_nothing_of_what_is_computed() -> None:
    dag = product(67, 32, 24)
    func = exact(dag, group_state(dag, steps=1, multiprocessors=3).apply(ShareTiles("C", 1, 2)))
    assert "# blockIdx.y, clusters of 1 by 2 blocks" in func_text(func)


def test_what_cannot_be_shared_is_refused() -> None:
    dag = product(64, 16, 32)
    alone = group_state(dag)
    with pytest.raises(
        ScheduleError, match=r"share_tiles\(C\): none of its pipelines loads 'tiles' for the work of all"
    ):
        alone.apply(ShareTiles("C", 2, 1))
    with pytest.raises(ScheduleError, match="bind two of its loops to blocks first"):
        initial_state(dag).apply(ShareTiles("C", 2, 1))
    for counts in ((2, 2), (4, 1), (0, 1)):
        with pytest.raises(ScheduleError, match=r"a cluster has 2 blocks at most, got|is not an integer from 1"):
            group_state(dag, multiprocessors=4).apply(ShareTiles("C", *counts))


def test_the_nest_as_text() -> None:
    dag = product(64, 16, 32)
    text = func_text(concretise(lower(group_state(dag, staged=True, multiprocessors=4)), {})[0])
    assert "# reduce, 2 stages, by tiles, on 4 multiprocessors" in text
    assert "load tile A.tile[0, 0, 0] = A[0, 0]  # 64 x 32" in text
    assert "alloc C.staged: float32[1, 64, 16] shared layout(0,1,2; panels)" in text
    assert "store tile C[0, 0] = C.staged[0, 0, 0]  # 64 x 16" in text


def test_what_is_refused() -> None:
    dag = product(64, 16, 32)
    *before, pipeline, last = group_state(dag).steps
    assert isinstance(pipeline, Pipeline)
    for steps, reason in (
        ((pipeline, WarpgroupMma("C.acc", "mma.float16")), "no row of MATRICES of 4 warps is called so"),
        ((pipeline, WarpgroupMma("C.acc", "wgmma.bfloat16")), "products of float16 and float16 in float32"),
        ((last,), "by a pipeline of 'tiles' first"),
        ((Pipeline("C.acc", "k.0", 2, "asynchronous", 4),), "only tiles are loaded ahead for other blocks' work"),
        ((pipeline, StoreTiles("C.acc")), "it is not elementwise"),
    ):
        with pytest.raises(ScheduleError, match=reason):
            initial_state(dag).apply(*before, *steps)


def test_rows_that_the_engine_does_not_load() -> None:
    """Their tiles are the same; threads copy them."""
    dag = product(67, 37, 131)
    exact(dag, group_state(dag, stages=4))


def test_rows_that_the_engine_cannot_write_are_refused() -> None:
    with pytest.raises(ScheduleError, match=r"rows of its result are no multiples of 16 bytes"):
        group_state(product(64, 18, 32, "nt"), staged=True)
