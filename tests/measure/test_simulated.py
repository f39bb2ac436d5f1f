"""Sources checked without a GPU: a right one passes, and each way to be wrong has its class."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autosched import te
from autosched.codegen.c.kernel import emit
from autosched.codegen.c.source import GpuSource
from autosched.lower import concretise, lower
from autosched.measure.check import CandidateError
from autosched.measure.gpu.simulated import SimulatedData
from autosched.measure.problem import DATA_SETS, write_data_set
from autosched.runtime.simulator.build import find_compiler
from autosched.runtime.spec import ArraySpec
from autosched.te.reference.evaluate import evaluate
from autosched.te.reference.inputs import make_inputs
from tests.gpu_schedules import matmul, matmul_state, parameters

DAG = matmul(7, 12, 8)


def problem(dag: te.ComputeDAG, directory: Path) -> SimulatedData:
    if find_compiler() is None:
        pytest.skip("g++ is not installed (on Debian: g++)")
    inputs = tuple(ArraySpec(t.name, t.public_shape, t.dtype) for t in dag.inputs)
    outputs = tuple(ArraySpec(t.name, t.public_shape, t.dtype) for t in dag.outputs)
    for name in DATA_SETS:
        arrays = make_inputs(dag, 0, name)
        expected = [(r.value, r.bound) for r in evaluate(dag, arrays)]
        write_data_set(directory, name, inputs, outputs, arrays, expected)
    return SimulatedData(directory, inputs, outputs)


def source() -> GpuSource:
    state = matmul_state(DAG)
    values = dict.fromkeys(parameters(state), 2)
    return emit(*concretise(lower(state), values), "cuda")


def changed(before: str, after: str) -> GpuSource:
    made = source()
    assert before in made.text
    return replace(made, text=made.text.replace(before, after))


def test_a_right_source_passes(tmp_path: Path) -> None:
    problem(DAG, tmp_path).check(source())


@pytest.mark.parametrize(("before", "after", "fault"), [
    (" += ", " -= ", "wrong_result"),
    ("  __syncthreads();\n", "", "wrong_result"),
    ("__syncthreads();", "if (threadIdx.x) __syncthreads(); else __syncwarp();", "hang"),
    ("&A[", "&A[1 + ", "misaligned_address"),
    ("&B[", "&B[4096 + ", "illegal_address"),
    (";\n", ";;; oh\n", "build_error"),
])  # fmt: skip
def test_what_is_wrong_has_its_class(tmp_path: Path, before: str, after: str, fault: str) -> None:
    with pytest.raises(CandidateError) as caught:
        problem(DAG, tmp_path).check(changed(before, after))
    assert caught.value.fault == fault


def test_an_input_that_is_written(tmp_path: Path) -> None:
    with pytest.raises(CandidateError) as caught:
        problem(DAG, tmp_path).check(changed("= blockIdx.x;", "= blockIdx.x; ((float*)A)[0] = 9;"))
    assert caught.value.fault == "clobbered_input"
