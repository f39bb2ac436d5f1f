"""Values beyond the register file: which candidates are predicted to take longer because of them.

Each case was measured on Zen 4 (`experiments.regret`); the times of the commits that count them are in their messages.
"""

from __future__ import annotations

import numpy as np
import pytest

from autosched.ir.closed_forms.program import Program
from autosched.lower import lower
from autosched.target import parse_target
from autosched.te.operators.registry import build
from autosched.te.rewrites.collapse import collapse
from cost_model.analysis.statements import analyse
from cost_model.cpu.latency import AnalyticLatency, analytic_latency
from cost_model.cpu.machine import machine
from search_spaces.cpu import sketches
from search_spaces.space import Sketch

AVX2, AVX512 = "llvm -mcpu=haswell", "llvm -mcpu=znver4"


def sketch_of(target: str, operator: str, shape: tuple[int, ...], name: str) -> tuple[Sketch, AnalyticLatency]:
    """The sketch `name` of an operator, and its latency in closed form."""
    parsed = parse_target(target)
    found = sketches(collapse(build(operator, shape)[0]), parsed, 1)
    (sketch,) = [s for s in found if s.name == name]
    return sketch, analytic_latency(analyse(lower(sketch.state)), machine(parsed, 1))


def rows_of(sketch: Sketch, *changes: dict[str, int]) -> np.ndarray:
    """Rows with values by the ends of the parameters' names, 1 or the least for the others."""
    names = [p.name for p in sketch.params]
    for change in changes:
        assert all(any(n.endswith(end) for n in names) for end in change), (names, change)
    values = [
        [next((v for end, v in c.items() if p.name.endswith(end)), p.domain[0]) for p in sketch.params] for c in changes
    ]
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("target", "tile", "is_slower"),
    [
        (AVX2, {".oh.r": 2, ".ow.r": 3, ".co.r": 16}, True),  # measured: 2.26 times as long with kw unrolled
        (AVX2, {".oh.r": 1, ".ow.r": 6, ".co.r": 16}, True),  # 1.40 times
        (AVX2, {".oh.r": 1, ".ow.r": 3, ".co.r": 16}, False),  # 0.99
        (AVX512, {".oh.r": 2, ".ow.r": 7, ".co.r": 32}, True),  # 1.44 times
        (AVX512, {".oh.r": 1, ".ow.r": 6, ".co.r": 32}, False),  # 1.00
    ],
)
def test_elements_of_a_window_between_steps_take_registers(target, tile, is_slower):
    sketch, latency = sketch_of(target, "c2d", (1, 42, 42, 64, 64, 3, 1, 1), "conv:v2-rows-W@root/pad@root")
    rows = rows_of(sketch, *({**tile, ".kw.u": k, ".ci.u": 1} for k in (1, 3)))
    params = tuple(p.name for p in sketch.params)
    plain, unrolled = Program([latency.seconds], params)(rows)[0]
    assert (unrolled > 1.05 * plain) == is_slower


@pytest.mark.parametrize(("columns", "is_slower"), [(7, False), (10, True), (13, True)])  # 0.98, 1.84, 2.16 times
def test_elements_of_a_window_that_fits_take_registers_between_steps(columns, is_slower):
    """Two vectors of weights stay beside all accumulators of a transposed convolution."""
    sketch, latency = sketch_of(AVX2, "t2d", (2, 14, 14, 106, 79, 4, 2, 2), "phases:v5-rows")
    rows = rows_of(sketch, *({".qw.r": columns, ".co.r": 8, ".tw.u": n} for n in (1, 2)))
    plain, unrolled = Program([latency.seconds], tuple(p.name for p in sketch.params))(rows)[0]
    assert (unrolled > 1.05 * plain) == is_slower


def test_a_spilled_accumulator_waits_for_memory():
    """Twelve accumulators of a tile in which rows of two sets of weights are used again, on 16 registers."""
    sketch, latency = sketch_of(AVX2, "cap", (2, 10, 10, 23, 13, 1, 1, 0), "capsule:v2-panel")
    (update,) = [c for c in latency.costs if c.statement.updates]
    params = tuple(p.name for p in sketch.params)
    rows = rows_of(sketch, *({"_i.r": 3, ".j.r": j, ".co.r": 16, ".ci.u": 1} for j in (1, 2)))
    spills, waiting = Program([update.block.spills, update.block.latency], params)(rows)
    assert spills.tolist() == [0, 1]  # 12 sums, 4 vectors of which 3 elements are fewer, one row more, and the mask
    forward = machine(parse_target(AVX2), 1).uarch.store_forward
    assert waiting[1] - waiting[0] == pytest.approx(forward)


def test_the_mask_of_a_last_vector_takes_a_register():
    operands = []
    for channels in (16, 13):
        sketch, latency = sketch_of(AVX2, "cap", (2, 10, 10, 23, channels, 1, 1, 0), "capsule:v2-panel")
        (update,) = [c for c in latency.costs if c.statement.updates]
        params = tuple(p.name for p in sketch.params)
        rows = rows_of(sketch, {"_i.r": 3, ".j.r": 1, ".co.r": 16, ".ci.u": 1})
        operands.append(int(Program([update.block.operands], params)(rows)[0][0]))
    assert operands == [3, 4]


@pytest.mark.parametrize(("target", "narrow", "wide"), [(AVX2, 8, 64), (AVX512, 16, 256)])
def test_polynomials_of_many_vectors_at_a_time_are_spilled(target, narrow, wide):
    sketch, latency = sketch_of(target, "gelu", (192, 2825), "default")
    params = tuple(p.name for p in sketch.params)
    rows = rows_of(sketch, *({"_j.m": 64, "_j.r": r} for r in (narrow, wide)))
    (gelu,) = latency.costs
    few, many = Program([gelu.block.spills], params)(rows)[0]
    assert few == 0 < many
