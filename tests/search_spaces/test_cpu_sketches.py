"""Every built-in workload's sketches, at tiny shapes that nothing divides: well-formed, exact, and told apart by name."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from autosched.codegen.llvm.kernel import emit
from autosched.ir.stmt import Allocate, For, ForKind, Scope, Stmt, walk
from autosched.ir.verify import verify
from autosched.lower import concretise, lower
from autosched.schedule import replay, steps_to_json
from autosched.target import parse_target
from autosched.te import ComputeDAG
from autosched.te.operators.registry import WORKLOADS, build, small_numbers
from autosched.te.reference.evaluate import evaluate
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from search_spaces import space
from search_spaces.cpu import sketches
from search_spaces.space import Sketch
from tests.codegen.running import run
from tests.helpers import check_nest, exact

NARROW, WIDE = parse_target("llvm -mcpu=nehalem"), parse_target("llvm -mcpu=skylake-avx512")
HOST = parse_target("cpu")
WORK = 400_000  # stores that the interpreter may do for one workload

TINY = {
    "B": 1, "C": 5, "CI": 3, "CO": 7, "D": 3, "H": 5, "K": 7, "L": 9, "M": 5, "N": 3, "W": 4,
    "dim": 3, "heads": 2, "k": 2, "pad": 1, "seq": 5,
}  # fmt: skip
TINIER = {
    "cap": {"N": 1, "H": 3, "W": 3, "CI": 2, "CO": 2},
    "c3d": {"N": 1, "D": 2, "H": 3, "W": 3, "CO": 5},
    "grp": {"groups": 2, "CI": 4, "CO": 6},
    "winograd": {"N": 1, "H": 3, "W": 3, "CI": 2, "CO": 3, "m": 2},
    "nrm": {"M": 13, "N": 17},
}


@cache
def tiny(name: str) -> ComputeDAG:
    workload = WORKLOADS[name]
    args = {**TINY, "N": 1} if "H" in workload.args else TINY
    args = {**small_numbers(workload), **{a: n for a, n in args.items() if a in workload.numbers}}
    return collapse(build(name, settings={**args, **TINIER.get(name, {})})[0])


def row(sketch: Sketch, values: np.ndarray) -> dict[str, int]:
    return {p.name: int(v) for p, v in zip(sketch.params, values, strict=True)}


def serialised(body: Stmt) -> list[For]:
    """Parallel loops that a buffer on the stack around them keeps on one thread."""
    around = [s for s in walk(body) if isinstance(s, Allocate) and s.buffer.scope is not Scope.GLOBAL]
    return [x for s in around for x in walk(s.body) if isinstance(x, For) and x.kind is ForKind.PARALLEL]


@pytest.mark.parametrize("name", WORKLOADS)
def test_sketches_are_exact(name):
    dag = tiny(name)
    rng = np.random.default_rng(3)
    done = 0
    for target, threads in ((NARROW, 1), (WIDE, 2)):
        found = sketches(dag, target, threads)
        assert found
        names = [s.name for s in found]
        assert len(set(names)) == len(names)
        for sketch in found:
            func = lower(sketch.state)
            verify(func)
            (values,) = space.sample(sketch, 1, rng) if sketch.params else np.zeros((1, 0), np.int64)
            concrete, _ = concretise(func, row(sketch, values))
            verify(concrete, concrete=True)
            assert not serialised(concrete.body)
            if done < WORK:
                done += sum(check_nest(concrete, dag).values())


def test_few_channels_are_vectorised_along_the_rows_of_the_image():
    """3 channels out of 4 lanes: the padded image is transposed, row by row with its padding or once a task."""
    settings = {"N": 2, "H": 5, "W": 6, "CI": 5, "CO": 3, "k": 4, "stride": 2, "pad": 1}
    dag = collapse(build("t2d", settings=settings)[0])
    found = [s for s in sketches(dag, NARROW, 2) if ":v3-" in s.name]
    assert {s.name.partition("/")[2] for s in found} == {"pad@pad.pack", "pad@phases", "pad@root", "pad@inline"}
    assert {"root", "task"} == {s.name.partition("/")[0].rpartition("@")[2] for s in found}
    rng = np.random.default_rng(1)
    for sketch in found:
        for values in space.sample(sketch, 1, rng):
            exact(dag, sketch.state, row(sketch, values))


@pytest.mark.parametrize(
    ("target", "name", "settings"),
    [
        (NARROW, "conv2d", {"H": 4, "W": 5, "CI": 6, "CO": 7, "k": 3, "layout": "NCHW"}),
        (NARROW, "conv2d", {"H": 3, "W": 3, "CI": 9, "CO": 7, "k": 1, "pad": 0, "layout": "NCHW"}),
        (NARROW, "gmm", {"B": 1, "N": 9, "M": 6, "K": 259}),
        (HOST, "gmm", {"B": 1, "N": 40, "M": 3, "K": 13}),
    ],
)
def test_panels_along_another_axis_than_the_contiguous_one_are_copied_across(target, name, settings):
    dag = collapse(build(name, settings=settings)[0])
    data, rng = make_inputs(dag, 0, "integers"), np.random.default_rng(2)
    expected = evaluate(dag, data)[0].value
    across = 0
    for sketch in sketches(dag, target, 1):
        copies = [
            s for s in sketch.state.stages if ".pack" in s.name and any(x.kind is ForKind.UNROLL for x in s.loops)
        ]
        if copies:
            across += 1
            concrete, simplify = concretise(lower(sketch.state), row(sketch, space.sample(sketch, 1, rng)[0]))
            check_nest(concrete, dag)
            (got,) = run(emit(concrete, simplify, HOST, 1), dag, data, HOST)
            np.testing.assert_array_equal(got, expected)
    assert across


@pytest.mark.parametrize("name", ["matmul", "conv2d", "softmax", "tbs", "layer_norm", "max_pool2d", "transpose"])
def test_a_candidate_is_its_steps_with_integers(name):
    """What a record holds makes the same nest again."""
    dag = tiny(name)
    rng = np.random.default_rng(0)
    for sketch in sketches(dag, WIDE, 2):
        (values,) = space.sample(sketch, 1, rng)
        text = steps_to_json(sketch.state, row(sketch, values))
        assert concretise(lower(replay(dag, text)), {})[0] == concretise(lower(sketch.state), row(sketch, values))[0]


def test_every_parameter_is_used_and_named_once():
    for name in WORKLOADS:
        for sketch in sketches(tiny(name), WIDE, 2):
            names = [p.name for p in sketch.params]
            assert len(set(names)) == len(names)
            steps = repr(sketch.state.steps)
            assert all(f"'{n}'" in steps for n in names), (name, sketch.name)


@pytest.mark.parametrize("dtype", ["float64", "int8", "int32", "int64"])
def test_other_types(dtype):
    args = {"M": 5, "N": 17, "K": 7}
    dag = collapse(build("matmul", settings=args, dtype=dtype)[0])
    rng = np.random.default_rng(1)
    for sketch in sketches(dag, WIDE, 2):
        (values,) = space.sample(sketch, 1, rng)
        exact(dag, sketch.state, row(sketch, values))
