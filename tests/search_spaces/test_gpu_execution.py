"""Every operator through the GPU search space, executed on an OpenCL device (in CI PoCL, on the processor) and as CUDA C
by the simulator.

What runs are random rows that the cost model's predicates pass, as in a search: each must compile, be launched and
be within the reference's bound. Shapes are small, and nothing divides them.
"""

from __future__ import annotations

import pytest

from autosched.te import ComputeDAG
from autosched.te.operators.registry import WORKLOADS, build, small_numbers
from autosched.te.rewrites.collapse import collapse
from search_spaces.gpu import sketches
from tests.codegen.gpu import TARGETS, dialects
from tests.codegen.test_gather import CASES
from tests.search_spaces.gpu_candidates import check_candidates, drawn_of
from tests.te import scans
from tests.te.test_scans import running
from tests.te.test_windows import window

RUNS = 3  # candidates of a case, or one of each sketch
MANY = 8  # sketches; of more, which both dialects have, each runs every other one

NHWC: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("c1d", (1, 12, 6, 20, 3, 2, 1)),
    ("c2d", (2, 7, 9, 3, 17, 3, 1, 1)),
    ("c3d", (1, 4, 6, 5, 3, 7, 3, 1, 1)),
    ("gmm", (3, 1, 17, 45)),
    ("gmm", (2, 13, 17, 31)),
    ("grp", (1, 7, 6, 8, 16, 3, 1, 1, 1, 4)),
    ("dil", (1, 9, 8, 4, 18, 3, 1, 1, 2)),
    ("dep", (2, 7, 6, 5, 3, 2, 1)),
    ("t2d", (1, 4, 3, 6, 17, 3, 2, 1)),
    ("cap", (1, 5, 5, 3, 6, 3, 2, 1)),
    ("nrm", (1, 33, 65)),
    ("nrm", (3, 64, 128)),
    ("sfm", (7, 33)),
    ("sfm", (9, 5)),
    ("sfm", (1, 50)),
    ("cbr", (1, 9, 9, 3, 17, 3, 1, 1)),
    ("tbg", (1, 17, 3, 5)),
    ("tbs", (1, 40, 2, 8)),
    ("attention", (1, 2, 19, 5, 23)),
    ("matmul", (1, 1, 1)),
    ("matmul", (40, 1, 70)),
    ("matmul", (5, 7, 300)),
    ("batch_matmul", (3, 5, 33, 7)),
    ("batch_matmul", (11, 2, 3, 5)),
    ("dense", (5, 33, 7)),
    ("conv2d", (1, 5, 6, 1, 1, 3, 1, 0)),
    ("depthwise", (1, 6, 5, 7, 3, 1, 1)),
    ("winograd", (1, 6, 6, 4, 16, 1, 2)),
    ("max_pool2d", (1, 9, 8, 20, 3, 2, 1)),
    ("avg_pool2d", (1, 9, 8, 20, 3, 2, 1)),
    ("global_max_pool2d", (2, 17, 20, 3)),
    ("global_avg_pool2d", (2, 7, 5, 20)),
    ("softmax", (3, 200)),
    ("layer_norm", (5, 33)),
    ("rms_norm", (5, 40)),
    ("batch_norm", (2, 5, 6, 17)),
    ("relu", (5, 33)),
    ("relu", (1, 1)),
    ("gelu", (7, 45)),
    ("add", (1, 1000)),
    ("elementwise", (31, 17)),
    ("transpose", (33, 47)),
)
NCHW: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("conv2d", (1, 9, 8, 5, 17, 3, 1, 1)),
    ("depthwise", (2, 9, 8, 5, 3, 2, 1)),
    ("max_pool2d", (1, 9, 8, 5, 3, 2, 1)),
    ("avg_pool2d", (1, 9, 8, 5, 3, 2, 1)),
    ("global_avg_pool2d", (2, 7, 5, 20)),
    ("batch_norm", (2, 5, 6, 17)),
)
DTYPES: tuple[tuple[str, tuple[int, ...], str], ...] = (
    ("gmm", (1, 13, 17, 31), "int8"),
    ("c2d", (1, 5, 6, 3, 17, 3, 2, 1), "uint8"),
    ("dep", (1, 7, 6, 5, 3, 1, 1), "int32"),
    ("max_pool2d", (1, 9, 8, 20, 3, 2, 1), "int8"),
    ("global_max_pool2d", (2, 7, 5, 20), "int64"),
    ("matmul", (17, 33, 40), "float64"),
    ("softmax", (7, 33), "float64"),
    ("layer_norm", (3, 70), "float64"),
    ("gelu", (5, 9), "float64"),
    ("elementwise", (31, 17), "int64"),
    ("transpose", (33, 47), "bool"),
    ("attention", (1, 2, 19, 16, 21, 1), "bfloat16"),
    ("elementwise", (31, 32), "int8"),
    *((name, shape, dtype) for dtype in ("float16", "bfloat16") for name, shape in (
        ("gmm", (2, 13, 17, 31)),
        ("matmul", (8, 16, 40)),
        ("matmul", (1, 1, 1)),
        ("c2d", (1, 5, 6, 3, 17, 3, 2, 1)),
        ("conv2d", (1, 5, 6, 8, 16, 3, 1, 1)),
        ("dep", (1, 7, 6, 5, 3, 1, 1)),
        ("max_pool2d", (1, 5, 4, 16, 3, 2, 1)),
        ("softmax", (3, 72)),
        ("layer_norm", (5, 33)),
        ("nrm", (1, 16, 24)),
        ("gelu", (7, 48)),
        ("add", (1, 1000)),
        ("transpose", (32, 47)),
    )),
)  # fmt: skip


def check(dialect: str, name: str, shape: tuple[int, ...], **settings: str) -> None:
    """Runs one candidate of a sketch, more where there are few sketches, and compares with the reference."""
    check_dag(dialect, build(name, shape, settings)[0])


def check_dag(dialect: str, dag: ComputeDAG) -> None:
    target = TARGETS[dialect]
    found = sketches(collapse(dag), target)
    if len(found) > MANY:
        found = found[list(TARGETS).index(dialect) :: 2]
    drawn = (drawn_of(sketch, target) for sketch in found)
    check_candidates(dag, drawn, target, max(1, RUNS // len(found)))


_LISTED = {name for name, _ in NHWC}
OTHERS = tuple((w.name, tuple(small_numbers(w).values())) for w in WORKLOADS.values() if w.name not in _LISTED)


@dialects
@pytest.mark.parametrize(("name", "shape"), [*NHWC, *OTHERS])
def test_operator(dialect: str, name: str, shape: tuple[int, ...]) -> None:
    check(dialect, name, shape)


@dialects
@pytest.mark.parametrize(("name", "shape"), NCHW)
def test_channels_first(dialect: str, name: str, shape: tuple[int, ...]) -> None:
    check(dialect, name, shape, layout="NCHW")


@dialects
@pytest.mark.parametrize(("name", "shape", "dtype"), DTYPES)
def test_dtype(dialect: str, name: str, shape: tuple[int, ...], dtype: str) -> None:
    check(dialect, name, shape, dtype=dtype)


@dialects
@pytest.mark.parametrize("name", [n for n in scans.CASES if n not in ("no positions", "no lines")])
def test_recurrences(dialect: str, name: str) -> None:
    check_dag(dialect, scans.case(name))


@dialects
@pytest.mark.parametrize("case", CASES)
def test_lookups(dialect: str, case: str) -> None:
    check_dag(dialect, ComputeDAG(CASES[case]()))


@dialects
@pytest.mark.parametrize(("shape", "axis"), [((3, 70), 1), ((70, 3), 0)])
def test_running_sums(dialect: str, shape: tuple[int, ...], axis: int) -> None:
    check_dag(dialect, ComputeDAG(running(shape, axis)))


@dialects
def test_long_windows(dialect: str) -> None:
    check_dag(dialect, ComputeDAG(window((60, 3), (31,))))
