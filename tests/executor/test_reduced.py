"""Some of the reduced networks on GPUs: as OpenCL C, and as CUDA C in the simulator. `reduced` has them all."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from autosched.runtime.simulator.build import find_compiler
from tests.executor.reduced import verified
from tests.measure.gpu_kernels import opencl_target

SIMULATED = "cuda -arch=sm_80"
CASES = [("opencl", "dcgan", "float32"), (SIMULATED, "dcgan", "float16"), (SIMULATED, "lstm_tagger", "float32")]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("target", "name", "dtype"), CASES)
def test_a_reduced_network_is_right(target, name, dtype):
    if target != "opencl" and find_compiler() is None:
        pytest.skip("no g++")
    if target == "opencl":
        opencl_target()
    assert "of the bound" in verified(name, dtype, target, target == SIMULATED)
