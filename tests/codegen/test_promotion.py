"""Sums of 8-bit floats by warpgroups are promoted: added to float32 every 128 terms."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from autosched.codegen.c.kernel import emit
from autosched.codegen.c.source import GpuSource
from autosched.errors import ScheduleError
from autosched.ir.stmt import Func
from autosched.lower import concretise, lower
from autosched.target import parse_target
from autosched.te import ComputeDAG
from autosched.te.reference.evaluate import evaluate, within
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from tests.codegen import cuda
from tests.codegen.test_shared_tiles import check, shared
from tests.matrix_products import group_state, product
from tests.search_spaces.gpu_candidates import check_candidates, conv, draw

SM_90 = parse_target("cuda -arch=sm_90")


def emitted(dag: ComputeDAG, **how: int) -> tuple[Func, GpuSource]:
    func, simplify = concretise(lower(group_state(dag, **how)), {})  # type: ignore[arg-type]
    return func, emit(func, simplify, "cuda")


def relative_error(dtype: str, k: int) -> tuple[np.float64, bool]:
    """The root mean square of errors over that of the results, and whether all are within the bound; of numbers in
    0..1, in the simulator, whose sums are cut off as an H200's are."""
    dag = product(64, 16, k, "nt", dtype)
    rng = np.random.default_rng(0)
    inputs: dict[str, npt.NDArray[np.generic]] = {
        name: rng.random(array.shape).astype(array.dtype) for name, array in make_inputs(dag, 0, "normal").items()
    }
    func, source = emitted(dag, steps=4)
    (reference,) = evaluate(dag, inputs)
    ran, execution = cuda.once(source, func, inputs, cuda.HASTY)
    assert not execution.mistakes
    found = ran["C"].reshape(reference.value.shape)
    square = np.square(found - reference.value).mean() / np.square(reference.value).mean()
    return np.sqrt(square), bool(within(reference, found).all())


def test_long_sums_are_precise_by_default_only() -> None:
    promoted, is_within = relative_error("float8_e4m3fn", 16384)
    fast, is_fast_within = relative_error("fp8-fast", 16384)
    assert is_within
    assert is_fast_within
    assert promoted < 1e-3 < 0.1 < fast


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
@pytest.mark.parametrize("k", [16, 128, 144, 272, 400])
def test_stages_of_every_length(steps: int, k: int) -> None:
    """A part of a sum is some stages; the last one may be shorter."""
    dag = product(72, 24, k, "nt", "float8_e4m3fn")
    func, source = emitted(dag, steps=steps)
    assert "are added to float32 every 128 terms" in source.text
    inputs = make_inputs(dag, 0, "normal")
    (reference,) = evaluate(dag, inputs)
    found = cuda.run(source, func, inputs)["C"].reshape(reference.value.shape)
    sizes = np.abs(inputs["A"].astype(np.float64)) @ np.abs(inputs["B"].astype(np.float64)).T
    assert (np.abs(found - reference.value) < 1e-3 * sizes).all(), source.text


def test_a_stage_has_no_more_terms_than_a_part() -> None:
    with pytest.raises(ScheduleError, match=r"a stage of 256 terms of C\.acc is more than the 128"):
        emitted(product(64, 16, 512, "nt", "float8_e4m3fn"), steps=8)


def test_the_fast_form_has_no_partial_sums() -> None:
    _, source = emitted(product(64, 16, 256, "nt", "fp8-fast"))
    assert "_part" not in source.text
    assert source.matrices == ("wgmma.float8_e4m3fn",)


@pytest.mark.parametrize(("k", "steps"), [(272, 4), (144, 2)])
@pytest.mark.parametrize("sharing", [(2, 1), (1, 1, 2)])
def test_blocks_that_share_tiles_and_warpgroups_in_turn(sharing: tuple[int, ...], k: int, steps: int) -> None:
    dag = product(241, 128, k, "nt", "float8_e4m3fn")
    func, source = shared(dag, sharing, steps=steps)
    assert "_part" in source.text
    check(dag, func, source)


def test_convolutions() -> None:
    """Terms of a part are of one tap of the filter or more."""
    dag = collapse(conv("conv2d", (1, 8, 8, 64, 24, 3, 1, 1), "float8_e4m3fn"))
    found = list(draw(dag, SM_90, mark="wgmma."))
    assert found
    check_candidates(dag, found, SM_90)


def test_partial_sums_count_as_registers() -> None:
    """Of 64 x 256 results for each warpgroup a thread has 128, and with partial sums as many again."""
    large = {}
    for dtype in ("float8_e4m3fn", "fp8-fast"):
        dag = collapse(product(4096, 4096, 4096, "nt", dtype))
        points = [
            int(row[columns].prod())
            for one in draw(dag, SM_90, mark="wgmma.")
            for columns in [[n for n, p in enumerate(one.sketch.params) if p.name in ("C.i.s", "C.j.s")]]
            for row in one.legal
        ]
        large[dtype] = max(points)
    assert large["float8_e4m3fn"] < large["fp8-fast"]
