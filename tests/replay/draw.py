"""Draws the table's cases: for each problem schedules that the analytic cost model likes, of different sketches."""

from __future__ import annotations

from autosched.kernel.task import make_task
from autosched.schedule import steps_to_json
from autosched.tuner.search import Search
from tests.replay.cases import Case, Problem, hash_of

SKETCHES = 2  # schedules of a problem
DRAWN = 64  # candidates among which those are looked for
AVX2, AVX512, BFLOAT, SSE, ARM = (
    f"llvm -mcpu={name}" for name in ("haswell", "skylake-avx512", "cooperlake", "nehalem", "neoverse-n1")
)
CUDA, AMPERE, TURING, OPENCL = "cuda -arch=sm_90", "cuda -arch=sm_80", "cuda -arch=sm_75", "opencl"
OWN = "experiments/my_ops.py"


def _problem(
    workload: str,
    target: str,
    threads: int = 1,
    dtype: str | None = "float32",
    weights: tuple[str, ...] = (),
    **settings: int | str,
) -> Problem:
    winograd = bool(settings.pop("winograd_form", 0))
    return Problem(workload, tuple(settings.items()), dtype, target, threads, weights, winograd)


PROBLEMS: tuple[Problem, ...] = (
    _problem("matmul", AVX512, 2, M=333, N=777, K=64),
    _problem("matmul", AVX2, M=128, N=128, K=128),
    _problem("matmul", BFLOAT, dtype="bfloat16", M=64, N=128, K=96),
    _problem("matmul", AVX512, dtype="uint8", w_dtype="int8", M=64, N=128, K=96),
    _problem("matmul", ARM, dtype="int8", M=64, N=96, K=64),
    _problem("dense", AVX512, weights=("W",), M=16, N=256, K=256),
    _problem("dense", SSE, M=1, N=256, K=256),
    _problem("batch_matmul", AVX2, 2, B=3, M=50, N=64, K=32),
    _problem("conv2d", AVX512, 2, N=1, H=14, W=14, CI=64, CO=64),
    _problem("conv2d", AVX2, N=1, H=28, W=28, CI=3, CO=32, k=7, stride=2, pad=3),
    _problem("conv2d", AVX2, layout="NCHW", N=1, H=14, W=14, CI=16, CO=32),
    _problem("conv2d", AVX512, winograd_form=1, weights=("W",), N=1, H=14, W=14, CI=32, CO=32),
    _problem("depthwise", AVX512, N=1, H=28, W=28, C=32),
    _problem("depthwise", AVX2, layout="NCHW", N=1, H=28, W=28, C=32, k=5, pad=2),
    _problem("c1d", AVX2, L=64, CI=32, CO=64),
    _problem("c3d", AVX512, D=4, H=7, W=7, CI=16, CO=32),
    _problem("grp", AVX2, H=14, W=14, CI=64, CO=64),
    _problem("dil", ARM, H=14, W=14, CI=32, CO=32),
    _problem("t2d", AVX512, H=8, W=8, CI=32, CO=32),
    _problem("cap", AVX2, H=8, W=8, CI=8, CO=8),
    _problem("cbr", AVX512, H=7, W=7, CI=64, CO=64),
    _problem("tbg", AVX512, seq=64, heads=4, dim=32),
    _problem("tbs", AVX2, 2, seq=64, heads=4, dim=32),
    _problem("nrm", AVX512, M=128, N=128),
    _problem("softmax", AVX512, 2, M=100, N=1000),
    _problem("softmax", AVX2, dtype="float64", M=31, N=77),
    _problem("layer_norm", AVX512, M=64, N=768),
    _problem("rms_norm", AVX2, dtype="bfloat16", M=64, N=100),
    _problem("batch_norm", AVX2, H=14, W=14, C=64),
    _problem("max_pool2d", AVX512, H=28, W=28, C=64),
    _problem("avg_pool2d", AVX2, layout="NCHW", H=28, W=28, C=16),
    _problem("gelu", AVX512, 2, M=64, N=100),
    _problem("elementwise", SSE, M=33, N=64),
    _problem("transpose", AVX2, M=100, N=128),
    _problem(f"{OWN}:int4_matmul", AVX512, dtype=None, M=4, N=128, K=128),
    _problem(f"{OWN}:running_sum", AVX2, dtype=None),
    _problem(f"{OWN}:gelu_matmul", CUDA, dtype=None, M=64, N=128, K=96),
    _problem("matmul", CUDA, M=333, N=777, K=64),
    _problem("conv2d", AMPERE, N=1, H=14, W=14, CI=64, CO=64),
    _problem("conv2d", OPENCL, layout="NCHW", N=1, H=14, W=14, CI=16, CO=32),
    _problem("depthwise", CUDA, H=28, W=28, C=32),
    _problem("softmax", CUDA, M=100, N=1000),
    _problem("softmax", OPENCL, M=31, N=77),
    _problem("layer_norm", TURING, M=64, N=768),
    _problem("nrm", AMPERE, M=128, N=128),
    _problem("max_pool2d", OPENCL, H=28, W=28, C=64),
    _problem("t2d", CUDA, H=8, W=8, CI=32, CO=32),
    _problem("winograd", CUDA, H=14, W=14, CI=32, CO=32),
    _problem("transpose", TURING, M=100, N=128),
    _problem(f"{OWN}:running_sum", CUDA, dtype=None),
)


def draw(problem: Problem) -> list[Case]:
    """The first of each of SKETCHES sketches, in the order of the analytic cost model."""
    request = problem.request()
    task, sketches = make_task(request)
    found: dict[int, Case] = {}
    for candidate in Search(task.space, task.sketches, task.model, seed=0).propose(0, DRAWN, "draft"):
        if candidate.sketch not in found:
            steps = steps_to_json(sketches[candidate.sketch].state, task.values(candidate))
            drawn = Case(problem, len(found), steps, "")
            found[candidate.sketch] = Case(problem, len(found), steps, hash_of(drawn.text()))
        if len(found) == SKETCHES:
            break
    return list(found.values())
