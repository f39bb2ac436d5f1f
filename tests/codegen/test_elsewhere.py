"""Texts for AVX-512 on whatever x86-64 the tests run on: with its intrinsics replaced they compute the same."""

from __future__ import annotations

import re

import numpy as np
import pytest

from autosched import te
from autosched.schedule import Vectorize, initial_state
from autosched.target import Target, parse_target
from autosched.te import ComputeDAG
from autosched.te.operators import registry
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from search_spaces import cpu
from search_spaces.space import sample
from tests.codegen import running
from tests.codegen.elsewhere import BODIES, HOST, emulated
from tests.codegen.running import build, check_outputs, run

pytestmark = pytest.mark.skipif(not HOST.has("avx2"), reason="intrinsics of AVX2 are not replaced")
WIDE = parse_target("llvm -mcpu=cooperlake")
WITHOUT_VNNI = parse_target("llvm -mcpu=skylake-avx512")


@pytest.fixture(autouse=True)
def replaced(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The intrinsics that were replaced, on hosts that have them too."""
    found: set[str] = set()
    compiled = running.compile_here

    def compile_emulated(ir: str, target: Target, level: int) -> bytes:
        text = emulated(ir)
        assert "@llvm.x86.avx512" not in text
        found.update(stem for stem in BODIES if re.search(rf"@llvm\.x86\.{stem}", ir))
        return compiled(text, HOST, level)

    monkeypatch.setattr(running, "compile_here", compile_emulated)
    running.machine_code.cache_clear()
    return found


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_elementary_functions(dtype: str, replaced: set[str]) -> None:
    A = te.placeholder((3, 35), dtype, "A")
    functions = (te.exp, te.log, te.tanh, te.sigmoid, te.erf)
    outputs = [te.compute((3, 35), lambda i, j, f=f: f(A[i, j]), f.__name__) for f in functions]
    dag = ComputeDAG([*outputs, te.compute((3, 35), lambda i, j: te.maximum(A[i, j], A[i, 34 - j]), "larger")])
    state = initial_state(dag)
    for stage in state.stages:
        state = state.apply(Vectorize(stage.name, "j"))
    values = np.linspace(-120, 120, 105).astype(dtype)
    values[:5] = np.nan, np.inf, -np.inf, 0, np.finfo(dtype).smallest_subnormal
    inputs = {"A": values.reshape(3, 35)}
    check_outputs(dag, inputs, run(build(state, WIDE, 1), dag, inputs, WIDE), dtype)
    assert replaced >= {"avx512.mask.scalef", "avx512.mask.range", "avx512.mask.fixupimm"}
    assert dtype == "float64" or replaced >= {"avx512.vpermi2var", "avx512.mask.getexp", "avx512.mask.getmant"}


@pytest.mark.parametrize(
    ("dtype", "settings", "target", "stem"),
    [
        ("bfloat16", {}, WIDE, "avx512bf16.dpbf16ps"),
        ("uint8", {"w_dtype": "int8"}, WIDE, "avx512.vpdpbusd"),
        ("int8", {}, WIDE, "avx512.vpdpbusd"),
        ("uint8", {}, WITHOUT_VNNI, "avx512.pmaddw"),
    ],
)
def test_dot_products(dtype: str, settings: dict[str, str], target: Target, stem: str, replaced: set[str]) -> None:
    dag = collapse(registry.build("matmul", (6, 31, 12), settings, dtype=dtype)[0])
    inputs, rng = make_inputs(dag, 1, "normal"), np.random.default_rng(0)
    for sketch in cpu.sketches(dag, target, 1):
        row = {p.name: int(v) for p, v in zip(sketch.params, sample(sketch, 1, rng)[0], strict=True)}
        check_outputs(dag, inputs, run(build(sketch.state, target, 1, row), dag, inputs, target), sketch.name)
    assert stem in replaced
