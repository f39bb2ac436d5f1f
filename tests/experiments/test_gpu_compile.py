"""What the scoreboard would run on a GPU compiles: random candidates of operators of every kind, with NVRTC."""

from __future__ import annotations

import pytest

from autosched.runtime.gpu.compile import NvrtcCompiler, nvrtc_version
from autosched.target import parse_target
from autosched.te.operators.registry import build
from experiments.gpu.cases import CHECKS
from experiments.gpu.verify import random_jobs

KINDS = ("gmm", "c2d", "cbr", "dep", "grp", "t2d", "cap", "nrm", "sfm", "tbs", "layer_norm", "max_pool2d", "transpose")
# Of halves bfloat16 alone: the other type has the same nests.
CASES = [c for c in CHECKS if c.workload in KINDS and c.settings.get("dtype") != "float16"]


@pytest.mark.parametrize("check", CASES, ids=lambda c: c.label)
def test_random_candidates_compile_without_spills(check):
    version = nvrtc_version()
    if version is None:
        pytest.skip("NVRTC is not installed")
    target = parse_target("cuda")
    assert target.gpu is not None
    compiler = NvrtcCompiler(target.gpu.arch, version)
    dag, _ = build(check.workload, check.shape, check.settings)
    jobs = list(random_jobs(dag, target, 2, seed=1))[::2]  # of every other sketch
    assert jobs
    for job in jobs:
        binary = compiler.compile(job.source)
        assert binary.code
        assert {r.kernel for r in binary.resources} == {launch.kernel for launch in job.source.launches}
        assert binary.spills is None, job.key
