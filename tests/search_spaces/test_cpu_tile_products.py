"""Sketches with products in tile registers: against the interpreter, and compiled, with the instructions and without."""

from __future__ import annotations

import numpy as np
import pytest

from autosched import te
from autosched.codegen.llvm.kernel import emit
from autosched.ir.instructions.dots import INTRINSICS, dots_of
from autosched.lower import concretise, lower
from autosched.schedule import Split, Tensorize
from autosched.target import parse_target
from autosched.te import ComputeDAG
from autosched.te.operators import registry
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from cost_model.analysis.statements import analyse
from cost_model.cpu.latency import statement_cost
from cost_model.cpu.legality import rules
from cost_model.cpu.machine import machine
from search_spaces import cpu
from search_spaces.fusion import has_condition
from search_spaces.space import Sketch
from tests.codegen.running import check_candidate
from tests.helpers import little_rows

TARGET = parse_target("llvm -mcpu=sapphirerapids")
CASES = [
    ("matmul", (5, 17, 8), "uint8", {"w_dtype": "int8"}),
    ("matmul", (17, 20, 18), "uint8", {"w_dtype": "int8"}),
    ("matmul", (19, 18, 13), "int8", {}),
    ("matmul", (4, 33, 3), "uint8", {}),
    ("matmul", (17, 5, 12), "int8", {"w_dtype": "uint8"}),
    ("matmul", (17, 37, 32), "bfloat16", {}),
    ("conv2d", (1, 4, 5, 16, 33, 3, 1, 1), "bfloat16", {}),
    ("conv2d", (1, 4, 5, 8, 17, 3, 1, 1), "uint8", {"w_dtype": "int8"}),
    ("conv2d", (2, 5, 6, 3, 17, 3, 2, 1), "uint8", {"w_dtype": "int8"}),
]


def by_tiles(dag: ComputeDAG) -> list[Sketch]:
    return [
        s
        for s in cpu.sketches(dag, TARGET, 2)
        if any(isinstance(x, Tensorize) and INTRINSICS[x.intrinsic].tile for x in s.state.steps)
    ]


@pytest.mark.parametrize(("name", "shape", "dtype", "settings"), CASES)
def test_sketches_compute_the_reference(
    name: str, shape: tuple[int, ...], dtype: str, settings: dict[str, str]
) -> None:
    dag = collapse(registry.build(name, shape, settings, dtype=dtype)[0])
    inputs, rng = make_inputs(dag, 1, "normal"), np.random.default_rng(sum(shape))
    found = by_tiles(dag)
    assert found
    for sketch in found:  # tiles are loaded from memory: no condition is inlined into their product
        products = [s for s in sketch.state.stages if dots_of(s.op.body)]
        assert products
        assert not any(map(has_condition, products))
    for sketch in found[::2]:
        (row,) = little_rows(sketch, 1, rng, 1 << 14)
        check_candidate(dag, sketch, row, inputs)


def product(M: int, N: int, K: int) -> ComputeDAG:
    A, B = te.placeholder((M, K), "uint8", name="A"), te.placeholder((K, N), "int8", name="B")
    k = te.reduce_axis(K, name="k")
    C = te.compute((M, N), lambda i, j: te.sum(te.cast(A[i, k], "int32") * te.cast(B[k, j], "int32"), axis=k), "C")
    return collapse(ComputeDAG(te.compute((M, N), lambda i, j: te.cast(C[i, j], "float32") * 0.5, "D")))


def image(N: int, H: int, W: int, C: int, K: int, R: int, S: int) -> ComputeDAG:
    """A convolution of an image with channels last."""
    X = te.placeholder((N, H, W, C), "uint8", name="X")
    F = te.placeholder((R, R, C, K), "int8", name="F")
    r, q, c = te.reduce_axis(R, name="r"), te.reduce_axis(R, name="q"), te.reduce_axis(C, name="c")
    Y = te.compute(
        (N, (H - R) // S + 1, (W - R) // S + 1, K),
        lambda n, h, w, k: te.sum(
            te.cast(X[n, h * S + r, w * S + q, c], "int32") * te.cast(F[r, q, c, k], "int32"), axis=[r, q, c]
        ),
        "Y",
    )
    return collapse(ComputeDAG(Y, weights=("F",)))


@pytest.mark.parametrize("shape", [(1, 9, 23, 3, 17, 7, 2), (2, 6, 9, 4, 16, 3, 1), (1, 5, 8, 1, 5, 2, 3)])
def test_taps_of_few_channels_are_the_words_of_a_row(shape: tuple[int, ...]) -> None:
    dag = image(*shape)
    taps = shape[5]
    inputs, rng = make_inputs(dag, 1, "normal"), np.random.default_rng(sum(shape))
    for sketch in by_tiles(dag)[::2]:
        assert any(isinstance(x, Split) and (x.axis, x.factors) == ("q", (taps,)) for x in sketch.state.steps)
        (row,) = little_rows(sketch, 1, rng, 1 << 14)
        check_candidate(dag, sketch, row, inputs)


def test_tiles_ask_for_the_next_panel_of_weights() -> None:
    A, B = te.placeholder((24, 512), "uint8", name="A"), te.placeholder((512, 64), "int8", name="B")
    k = te.reduce_axis(512, name="k")
    C = te.compute((24, 64), lambda i, j: te.sum(te.cast(A[i, k], "int32") * te.cast(B[k, j], "int32"), axis=k), "C")
    dag = collapse(ComputeDAG(C, weights=("B",)))
    sketch = next(s for s in by_tiles(dag) if "columns" in s.name)
    values = {p.name: p.domain[0] for p in sketch.params} | {"C.i.r": 16, "C.j.r": 32}
    func, simplify = concretise(lower(sketch.state), values)
    text = emit(func, simplify, TARGET, 1).ir
    assert "call void @llvm.prefetch.p0(" in text
    assert text.count("call void @llvm.x86.tilezero(") == 2 * 2  # full tiles, and eight rows that are left
    check_candidate(dag, sketch, values, make_inputs(dag, 1, "normal"))


def text_of(M: int, N: int, K: int, rows: int, columns: int) -> str:
    sketch = by_tiles(product(M, N, K))[0]
    values = {p.name: p.domain[-1] for p in sketch.params} | {"D.i.m": 1, "D.j.m": 1, "D.i.r": rows, "D.j.r": columns}
    func, simplify = concretise(lower(sketch.state), values)
    return emit(func, simplify, TARGET, 1).ir


def test_all_tiles_stay_in_registers_where_they_fit() -> None:
    text = text_of(64, 64, 128, 32, 32)
    assert text.count("call void @llvm.x86.tdpbusd(") == 4
    assert text.count("call void @llvm.x86.tileloadd64(") == 4
    assert text.count("call void @llvm.x86.tilezero(") == 4
    assert text.count("call void @llvm.x86.ldtilecfg(") == 1
    assert text.count("call void @llvm.x86.tilerelease()") == 1


def test_rows_that_are_left_take_tiles_of_their_own_size() -> None:
    text = text_of(49, 32, 64, 32, 32)
    assert text.count("call void @llvm.x86.tdpbusd(") == 5  # four, and one in loops
    assert text.count("call void @llvm.x86.ldtilecfg(") == 2


def test_sums_of_rows_that_are_left_stay_in_tiles_as_well() -> None:
    text = text_of(46, 32, 256, 16, 32)  # two full tiles of rows and one of 14, four steps each
    assert text.count("call void @llvm.x86.tilezero(") == 4
    assert text.count("call void @llvm.x86.tilestored64(") == 4


def test_another_processor_gets_no_tiles() -> None:
    func, simplify = concretise(
        lower(by_tiles(product(16, 16, 64))[0].state),
        {p.name: p.domain[0] for p in by_tiles(product(16, 16, 64))[0].params},
    )
    text = emit(func, simplify, parse_target("llvm -mcpu=znver4"), 1).ir
    assert "tdpbusd" not in text
    assert "vpdpbusd" in text


def test_processors_without_tiles_for_bfloat16_convert_it() -> None:
    dag = collapse(registry.build("matmul", (64, 64, 64), {}, dtype="bfloat16")[0])
    assert by_tiles(dag)
    for name in ("icelake-server", "cooperlake", "znver4"):
        assert not any("tdp" in s.name for s in cpu.sketches(dag, parse_target(f"llvm -mcpu={name}"), 2))


def test_the_model_knows_what_fits() -> None:
    sketch = by_tiles(product(64, 64, 128))[0]
    analysis, core = analyse(lower(sketch.state)), machine(TARGET, 1)
    assert any(rule.name.startswith("tiles") for rule in rules(analysis, core))
    (sums,) = [s for s in analysis.statements if s.updates]
    assert set(statement_cost(sums, core).block.limits) == {"arithmetic", "loads", "latency"}
