"""Products by warpgroups in several forms, on the simulator; the step that times them, with answers put in."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.ir.dtype import numpy_dtype
from autosched.runtime.simulator.build import find_compiler
from autosched.runtime.simulator.execute import EXTREMES, Mode, build, execute
from experiments.gpu import ladder
from experiments.gpu.climb import answer, wrong_elements
from experiments.gpu.forms.form import aligned
from experiments.gpu.steps import StepRequest
from experiments.gpu.warpgroup_product import MOST_SHARED, ProductForm, Size, source

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="g++ is not installed (on Debian: g++)")
P = ProductForm
FORMS = (
    P(128, 128, stages=3), P(128, 128, stages=2, stores_tiles=True), P(128, 128, stages=3, cluster=2),
    P(128, 128, stages=3, takes_turns=True), P(128, 128, stages=3, takes_turns=True, cluster=2, stores_tiles=True),
    P(128, 128, cluster=2, is_transposed=True, persistent=False), P(128, 256, stages=2, cluster=2, stores_tiles=True),
    P(256, 128, stages=2), P(128, 256, stages=2, stores_tiles=True, panels=2), P(64, 192, consumers=1, stages=2, group=2),
)  # fmt: skip


@needs_compiler
@pytest.mark.parametrize("mode", [Mode(checked=True), *EXTREMES])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_products_are_right_at_any_size(form, mode):
    size = Size(264, 264, 200)
    made = source(form, size, 2 * form.cluster)
    dtype, rng = numpy_dtype("bfloat16"), np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((size.m, size.k), (size.k, size.n)))
    c = aligned(np.full((size.m, size.n), np.nan, dtype))
    memory = {"A": aligned(a), "B": aligned(np.ascontiguousarray(b.T) if form.is_transposed else b), "C": c}
    ran = execute(build(made.text, mode.checked), list(made.launches), memory, frozenset("AB"), mode)
    assert not ran.mistakes, [str(m) for m in ran.mistakes]
    assert wrong_elements(c, a, b) is None


def test_every_rung_fits_on_a_multiprocessor():
    assert len(set(ladder.RUNGS)) == len(ladder.RUNGS)
    for form in ladder.RUNGS:
        assert form.n_stages >= 2
        assert form.shared_bytes <= MOST_SHARED - 1024
        assert form.rows % (64 * (1 if form.takes_turns else form.consumers)) == 0
        assert form.is_transposed or form.columns // form.cluster % 64 == 0
        assert form.blocks_of_rows * form.columns // 2 <= 192, "sums of a thread"


def test_wrong_elements_are_counted():
    a = np.ones((2, 3), np.float32)
    assert wrong_elements(np.array([[3.0, 3.0], [np.nan, 4.0]]), a, a.T) == "2 of 4 elements are beyond the bound"


@needs_compiler
def test_the_step_without_a_card(tmp_path):
    rows = dict(ladder.measure(StepRequest("ladder", 100.0, True, tmp_path)))
    assert len(rows) == len(ladder.DRY_RUNGS)
    assert all(row["wrong"] is None for row in rows.values()), rows
    assert ladder.summary(rows).startswith(f"{len(rows)} forms, 0 failed")


def test_the_table_names_what_is_fast_and_what_failed():
    rows = {
        "8x8x8: a": {"tflops": 600.0, "ratio": 0.8, "wrong": None, "warnings": ["slow"]},
        "8x8x8: b": {"tflops": 700.0, "ratio": 0.9, "wrong": None, "warnings": []},
        "8x8x8: c": {"error": "hang: no answer"},
    }
    lines = ladder.summary(rows).splitlines()
    assert lines[0] == "3 forms, 1 failed"
    assert [line.split()[1] for line in lines if "8x8x8" in line] == ["b", "a", "c"]
    assert "hang: no answer" in lines[-1]
    assert ladder.summary({}) == ""


def test_what_fails_is_a_row():
    request = {"form": {"rows": 128}, "size": [128, 132, 64]}  # rows of B that no map takes
    assert "strides must be multiples of 16 bytes" in answer(request, "simulator")["error"]
