"""Fills that gather windows: sectors and wavefronts by closed forms, against what the simulator counts."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.codegen import build_source
from autosched.codegen.c.source import GpuSource
from autosched.ir.closed_forms.program import Program
from autosched.ir.expr import Expr
from autosched.ir.stmt import Scope
from autosched.te.operators.registry import build
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from cost_model.analysis.access import Geometry
from cost_model.analysis.statements import analyse
from cost_model.gpu.fills import OUTSIDE
from cost_model.gpu.kernels import kernels, sectors, transfers, wavefronts
from cost_model.gpu.latency import gpu_analytic_latency
from cost_model.gpu.machine import SECTOR, gpu_machine
from tests.codegen import cuda
from tests.codegen.gpu import TARGETS
from tests.search_spaces.gpu_candidates import draw


@pytest.mark.parametrize("number", range(4))
def test_sectors_and_wavefronts(number: int) -> None:
    """64 pixels, 9 taps of 32 channels, no border: tiles and steps of 16 or 32 are whole."""
    dag = build("c2d", (1, 10, 10, 32, 32, 3, 1, 0), dtype="bfloat16")[0]
    one = next(draw(collapse(dag), TARGETS["cuda"], 200, wanted=lambda s: s.name == "conv:mma.bfloat16"))
    names = tuple(p.name for p in one.sketch.params)
    steps = names.index("conv.kh_kw_ci.c")
    row = [r for r in one.legal if r[steps] < 4][number].astype(np.int64)
    (kernel,) = kernels(analyse(one.func, Geometry(SECTOR)))

    def value(expr: object) -> float:
        return float(Program([expr], names)(row[None, :])[0, 0])  # type: ignore[list-item]

    warps = value(kernel.threads) / 32 * value(kernel.blocks)
    moved, cycles = 0.0, 0.0
    for work in kernel.works:
        for access in work.accesses(*OUTSIDE, Scope.SHARED):
            each = sectors if access.buffer.scope in OUTSIDE else wavefronts
            total = value(transfers(work, access)) * warps * value(each(kernel, work, access, 32))
            moved, cycles = (moved + total, cycles) if access.buffer.scope in OUTSIDE else (moved, cycles + total)
    source = build_source(one.func, dict(zip(names, map(int, row), strict=True)), TARGETS["cuda"])
    assert isinstance(source, GpuSource)
    counted = cuda.counted(source, one.func, make_inputs(dag, 0, "normal"))
    assert moved == counted["sectors"]
    assert cycles == pytest.approx(counted["wavefronts"], rel=0.15)


def test_a_thread_waits_for_each_load_that_passes_through_registers_between_borders() -> None:
    """Elements of two bytes that are neighbours nowhere, beyond a border too: of one iteration whatever the stages."""
    dag = build("c2d", (1, 33, 33, 3, 32, 7, 2, 3), dtype="float16")[0]
    one = next(d for d in draw(collapse(dag), TARGETS["cuda"], 200) if d.sketch.name == "conv:mma.float16")
    names = tuple(p.name for p in one.sketch.params)
    machine = gpu_machine(TARGETS["cuda"])
    (cost,) = gpu_analytic_latency(analyse(one.func, Geometry(SECTOR)), machine).kernels
    (gather,) = (w for w in cost.kernel.works if w.statement.write.buffer.name == "conv.left.shared")
    width, stages = names.index("conv.left.shared.w"), names.index("conv.stages")
    row = next(r for r in one.legal if r[width] == 1 and r[stages] == 2).astype(np.int64)

    def value(expr: Expr, stages_now: int) -> float:
        return float(Program([expr], names)(np.where(np.arange(len(row)) == stages, stages_now, row)[None, :])[0, 0])

    assert isinstance(machine.constants.global_latency, float)
    least = value(gather.executions, 2) * machine.constants.global_latency
    assert value(cost.path, 2) >= least
    assert value(cost.path, 4) == pytest.approx(value(cost.path, 2))
