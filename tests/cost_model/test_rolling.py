"""Register tiles whose outputs pass by: what is alive at a time, and how much code is worth it."""

from __future__ import annotations

import random

import numpy as np
import pytest

from autosched.ir.stmt import Allocate, For, ForKind, Store, walk
from autosched.ir.visit import vector_tile
from autosched.lower import concretise, lower
from autosched.lower.register_tiles.context import RegisterTile, TileContext
from autosched.lower.register_tiles.window import RegisterWindow, find_window
from autosched.target import Target, parse_target
from autosched.te.operators.registry import build
from autosched.te.rewrites.collapse import collapse
from cost_model import CostModel
from cost_model.analysis.statements import analyse
from cost_model.cpu.latency import make_block
from cost_model.cpu.machine import machine
from search_spaces.cpu import sketches
from search_spaces.space import Sketch
from tests.cost_model.test_analysis import evaluate

TARGET = parse_target("llvm -mcpu=znver4")


HALF_LINES = parse_target("llvm -mcpu=haswell")


def rows_of_depthwise(target: Target = TARGET, channels: int = 96) -> Sketch:
    """The sketch whose tile goes along rows, of 7 x 7 images."""
    dag = collapse(build("dep", (1, 7, 7, channels, 3, 1, 1))[0])
    return next(s for s in sketches(dag, target, 1) if s.name == "depthwise:v2-rows/pad@inline")


def tile(sketch: Sketch, oh: int, ow: int, c: int, kh: int = 3, kw: int = 3) -> dict[str, int]:
    sizes = {"oh.r": oh, "ow.r": ow, "c.r": c, "acc.kh.u": kh, "acc.kw.u": kw}
    return {p.name: 1 for p in sketch.params} | {f"depthwise.{name}": n for name, n in sizes.items()}


@pytest.mark.parametrize(
    ("oh", "ow", "kw", "want"),
    [
        (7, 7, 3, 2 * 7 + 3),  # two rows have begun, and three outputs of the third
        (2, 7, 3, 2 * 2 + 2),  # column by column: two of them have begun, and the third
        (1, 7, 3, 3),
        (7, 1, 3, 3),
        (2, 2, 3, 4),  # no more than there are
        (7, 7, 1, 7 * 7),  # the reduction is not whole: none is complete before the end
    ],
)
def test_outputs_that_have_begun_and_are_not_complete_take_registers(oh: int, ow: int, kw: int, want: int) -> None:
    sketch = rows_of_depthwise()
    (update,) = (s for s in analyse(lower(sketch.state)).statements if s.stage == "depthwise.acc" and s.updates)
    assert evaluate([update.registers(16, TARGET)], tile(sketch, oh, ow, 16, kw=kw)) == [want]


@pytest.mark.parametrize(
    ("target", "channels", "sizes", "want"),
    [
        (HALF_LINES, 96, (1, 7, 8), 3),
        (HALF_LINES, 1024, (1, 7, 8), 7),  # 27 pixels that are 4 KiB apart: each line would be fetched twice
        (TARGET, 1024, (7, 7, 16), 2 * 7 + 3),  # a vector is a line
    ],
)
def test_no_half_lines_that_crowd_in_a_few_sets_pass_by(
    target: Target, channels: int, sizes: tuple[int, int, int], want: int
) -> None:
    sketch = rows_of_depthwise(target, channels)
    (update,) = (s for s in analyse(lower(sketch.state)).statements if s.stage == "depthwise.acc" and s.updates)
    assert evaluate([update.registers(target.vector_bytes // 4, target)], tile(sketch, *sizes)) == [want]


@pytest.mark.parametrize(
    ("target", "fine", "long"),
    [
        (TARGET, [(7, 7, 16), (2, 3, 64), (4, 3, 32)], [(7, 7, 32)]),  # 441 copies and 882
        (HALF_LINES, [(4, 2, 8), (2, 7, 8), (2, 2, 16), (2, 2, 24)], [(4, 2, 16), (2, 7, 16), (4, 2, 32)]),
    ],
)
def test_only_so_much_code_is_written_for_outputs_that_pass_by(
    target: Target, fine: list[tuple[int, int, int]], long: list[tuple[int, int, int]]
) -> None:
    sketch = rows_of_depthwise(target)
    model = CostModel([lower(sketch.state)], [[p.name for p in sketch.params]], target, 1)

    def broken(sizes: tuple[int, int, int]) -> tuple[str, ...]:
        values = tile(sketch, *sizes)
        return model.broken_rules(0, np.array([values[p.name] for p in sketch.params]))

    assert {broken(sizes) for sizes in fine} == {()}
    assert {broken(sizes) for sizes in long} == {("unrolled depthwise.acc",)}


def test_vectors_of_one_read_ask_together_whether_it_is_inside() -> None:
    """Lanes are channels, of which no condition speaks: four vectors do not take four times as long as one."""
    sketch = rows_of_depthwise(HALF_LINES)
    (update,) = (s for s in analyse(lower(sketch.state)).statements if s.stage == "depthwise.acc" and s.updates)
    cycles = make_block(update, machine(HALF_LINES, 1)).cycles
    (one,), (four,) = (evaluate([cycles], tile(sketch, 2, 2, channels)) for channels in (8, 32))
    assert four < 2 * one


def window_of(sketch: Sketch, values: dict[str, int], target: Target) -> RegisterWindow | None:
    """The window of a candidate's whole tiles, as the plan of register tiles has it."""
    func, simplify = concretise(lower(sketch.state), values)
    buffers = {b.name: b for b in (*func.params, *(s.buffer for s in walk(func.body) if isinstance(s, Allocate)))}
    context = TileContext(target, simplify, buffers.__getitem__)
    loops = [s for s in walk(func.body) if isinstance(s, For) and s.kind is ForKind.UNROLL]
    tiles = [RegisterTile(*nest) for loop in loops if (nest := vector_tile(loop)) and isinstance(nest[1].body, Store)]
    windows = [window for x in tiles if (window := find_window(x, context)) is not None]
    return max(windows, key=lambda w: len(w.points), default=None)


@pytest.mark.parametrize("target", [TARGET, HALF_LINES], ids=lambda t: t.mcpu)
def test_the_closed_form_counts_what_the_plan_counts(target: Target) -> None:
    """Of random windows: outputs, taps, strides, and channels whose lines share few sets or do not."""
    rng, geometry = random.Random(7), machine(target, 1).geometry
    n_windows = 0
    for _ in range(20):
        rows, columns, stride, taps = rng.randint(1, 7), rng.randint(1, 7), rng.randint(1, 3), rng.randint(2, 5)
        channels = rng.choice((96, 512, 1024))
        size = ((max(rows, columns) - 1) * stride + taps,) * 2
        dag = collapse(build("dep", (1, *size, channels, taps, stride, 0))[0])
        sketch = next(s for s in sketches(dag, target, 1) if "rows" in s.name)
        values = tile(sketch, rows, columns, target.vector_bytes // 4, taps, taps)
        (found,) = (s.rolling for s in analyse(lower(sketch.state), geometry).statements if s.updates and s.rolling)
        live, *counts = evaluate([found.live_accumulators, found.operands, found.has_set_conflicts], values)
        window = window_of(sketch, values, target)
        case = f"{rows} x {columns} outputs, {taps} taps, stride {stride}, {channels} channels"
        if window is None:  # outputs share nothing, so that all are live
            assert live == rows * columns, case
        else:
            assert live == min(w.live_accumulators for w in window.sweeps()), case
            assert counts == [window.operands, window.has_set_conflicts(target)], case
            n_windows += 1
    assert n_windows > 5


def test_outputs_that_share_nothing_take_a_register_for_each_vector() -> None:
    """A transposed convolution of 2 x 2 with stride 2, all 6 channels in one tile: 12 outputs of three vectors."""
    dag = collapse(build("t2d", (3, 11, 11, 6, 133, 2, 2, 1))[0])
    sketch = next(s for s in sketches(dag, TARGET, 1) if s.name == "phases:v5-panel")
    (update,) = (s for s in analyse(lower(sketch.state)).statements if s.updates)
    sizes = {"n.r": 3, "qh.r": 2, "rw.r": 2, "co.r": 48, "acc.ci.u": 6}
    values = {p.name: 1 for p in sketch.params} | {f"phases.{name}": n for name, n in sizes.items()}
    assert evaluate([update.registers(16, TARGET)], values) == [36]


def test_vectors_of_which_all_lanes_read_the_same_window_pass_by_at_a_time() -> None:
    """A convolution of 3 x 3, 2 channels in one tile: 8 rows of two vectors have no registers of one vector alone."""
    dag = collapse(build("c2d", (1, 34, 34, 2, 64, 3, 1, 0))[0])
    sketch = next(s for s in sketches(dag, TARGET, 1) if s.name == "conv:v2-panel")
    (update,) = (s for s in analyse(lower(sketch.state)).statements if s.updates)
    for lanes, want in ((16, 3), (32, 16)):
        sizes = {"oh.r": 8, "co.r": lanes, "acc.kh.u": 3, "acc.kw.u": 3, "acc.ci.u": 2}
        values = {p.name: 1 for p in sketch.params} | {f"conv.{name}": n for name, n in sizes.items()}
        assert evaluate([update.registers(16, TARGET)], values) == [want]
