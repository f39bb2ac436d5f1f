"""What the rules let through, NVIDIA's compiler takes without spilling registers; a larger sample: see the experiment."""

from __future__ import annotations

import pytest

from autosched.runtime.gpu.compile import find_nvcc
from autosched.target import parse_target
from experiments.gpu_registers import Candidate, compare, compile_together, draw

N = 42  # two of each operator: one for each architecture
WITHOUT_SPILLS = 0.95


@pytest.fixture(scope="module")
def candidates() -> list[Candidate]:
    return draw(N, parse_target("cuda"), seed=1)


@pytest.mark.parametrize(("arch", "first"), [("sm_80", 0), ("sm_90", 1)])
def test_the_compiler_agrees_with_the_estimates(candidates: list[Candidate], arch: str, first: int) -> None:
    nvcc = find_nvcc()
    if nvcc is None:
        pytest.skip("nvcc is not installed")
    assert len(candidates) >= 0.9 * N
    own = candidates[first::2]
    agreement = compare(own, compile_together(own, arch, nvcc))
    assert agreement.share_without_spills >= WITHOUT_SPILLS, agreement.spills
    assert agreement.correlation > 0.8
    assert 0.6 < agreement.mean_ratio < 1.2
    assert not agreement.wrong_shared
