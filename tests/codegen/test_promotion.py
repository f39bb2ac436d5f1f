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
from autosched.te import ComputeDAG
from autosched.te.reference.evaluate import evaluate, within
from autosched.te.reference.inputs import make_inputs
from tests.codegen import cuda
from tests.matrix_products import group_state, product


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
