"""Running reductions in blocks: every alternative computes them, and no element is added more often than it must."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.runtime.jit import emit_assembly
from autosched.schedule import ComputeAt
from autosched.target import host_arch, parse_target
from autosched.te import ComputeDAG
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from search_spaces.cpu import sketches
from search_spaces.space import sample
from tests.codegen.running import build, check_candidate
from tests.codegen.test_assembly import innermost_loops
from tests.te.test_scans import running

HOST = parse_target("cpu")


@pytest.mark.parametrize(
    ("shape", "axis", "order", "dtype", "kinds"),
    [((3, 70), 1, "k < i", "float32", "rows blocks"), ((40, 19), 0, "i <= k", "int32", "rows blocks"),
     ((3, 17), 1, "k <= i", "float64", "rows"), ((130,), 0, "k <= i", "bfloat16", "blocks")],
)  # fmt: skip
def test_alternatives(shape, axis, order, dtype, kinds):
    dag = collapse(ComputeDAG(running(shape, axis, order, dtype=dtype)))
    found = sketches(dag, HOST, 2)
    assert {kind for s in found for kind in ("rows", "blocks") if f":{kind}" in s.name} == set(kinds.split())
    for sketch in (next(s for s in found if f":{kind}" in s.name) for kind in kinds.split()):
        (values,) = sample(sketch, 1, np.random.default_rng(2))
        row = {p.name: int(v) for p, v in zip(sketch.params, values, strict=True)}
        check_candidate(dag, sketch, row, make_inputs(dag, 0, "normal"))


def test_all_stages_of_a_row_are_in_its_loop():
    dag = collapse(ComputeDAG(running((64, 4096))))
    rows = next(s for s in sketches(dag, parse_target("llvm -mcpu=haswell"), 1) if s.name == "Y:rows")
    places = {step.stage: step.loop for step in rows.state.steps if isinstance(step, ComputeAt)}
    assert {places[s.name] for s in dag.stages if s.name[2:] in ("s1", "s2", "w0", "w1")} == {"i0.1"}


@pytest.mark.skipif(host_arch() != "x86_64", reason="reads x86 assembly")
@pytest.mark.parametrize("name", ["haswell", "skylake-avx512"])
def test_a_block_of_rows_is_added_up_once(name):
    """Sixteen rows, of which each is added to what comes before it, and to what comes before the block."""
    target = parse_target(f"llvm -mcpu={name}")
    dag = collapse(ComputeDAG(running((256, 512), 0)))
    sketch = next(s for s in sketches(dag, target, 1) if s.name == "Y:blocks")
    row = {p.name: target.vector_bytes // 4 for p in sketch.params}
    assembly = emit_assembly(build(sketch.state, target, 1, row).ir, target)
    adds = [x.count("vaddps") for x in innermost_loops(assembly) if x.count("vmovups") >= 16]
    assert max(adds) <= 33
