"""Tiles of inner products: which reductions have them, and that every size and type of theirs is exact."""

from __future__ import annotations

import numpy as np
import pytest

from autosched import te
from autosched.codegen.llvm.kernel import emit
from autosched.lower import concretise, lower
from autosched.schedule import Tensorize
from autosched.target import parse_target
from autosched.te import ComputeDAG
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from search_spaces import space
from search_spaces.cpu import sketches
from search_spaces.space import Sketch
from tests.codegen.running import build, check_outputs, run, targets
from tests.helpers import check_nest, exact

HOST, WIDE, NARROW = (parse_target(t) for t in ("cpu", "llvm -mcpu=skylake-avx512", "llvm -mcpu=nehalem"))

WORDS = parse_target("llvm -mcpu=znver4")


def product(M: int, N: int, K: int, dtype: str = "float32", is_transposed: bool = True) -> ComputeDAG:
    """gelu-like A W^T + bias, or A B where W is not contiguous along the reduction."""
    wide = "float32" if dtype in ("float16", "bfloat16") else "int32" if dtype in ("int8", "uint8") else dtype
    A = te.placeholder((M, K), dtype, name="A")
    W = te.placeholder((N, K) if is_transposed else (K, N), dtype, name="W")
    k = te.reduce_axis(K, name="k")

    def term(i, j):
        return te.cast(A[i, k], wide) * te.cast(W[j, k] if is_transposed else W[k, j], wide)

    C = te.compute((M, N), lambda i, j: te.sum(term(i, j), axis=k), name="C")
    bias = te.placeholder((N,), wide, name="bias")
    return collapse(ComputeDAG(te.compute((M, N), lambda i, j: te.max(C[i, j] + bias[j], 0), name="Y")))


def window(CO: int) -> ComputeDAG:
    """A convolution with 65 channels in and few out: W[kh, kw, c, o]."""
    X, W = te.placeholder((1, 7, 8, 65), name="X"), te.placeholder((2, 2, 65, CO), name="W")
    a, b, c = te.reduce_axis(2, name="a"), te.reduce_axis(2, name="b"), te.reduce_axis(65, name="c")
    return collapse(
        ComputeDAG(
            te.compute(
                (1, 6, 7, CO),
                lambda n, y, x, o: te.sum(X[n, y + a, x + b, c] * W[a, b, c, o], axis=[a, b, c]),
                name="Y",
            )
        )
    )


def in_blocks(blocks: int, lanes: int) -> ComputeDAG:
    """A W^T, where rows of W are blocks with two more elements each."""
    A, W = te.placeholder((2, blocks * lanes), name="A"), te.placeholder((9, blocks * (lanes + 2)), name="W")
    b, k = te.reduce_axis(blocks, name="b"), te.reduce_axis(lanes, name="k")

    def term(i, j):
        return te.sum(A[i, b * lanes + k] * W[j, b * (lanes + 2) + 2 + k], axis=[b, k])

    return collapse(ComputeDAG(te.compute((2, 9), term, name="Y")))


def dots(dag: ComputeDAG, target=WIDE) -> list[Sketch]:
    return [s for s in sketches(dag, target, 2) if "dots" in s.name]


@pytest.mark.parametrize(
    ("target", "dag"),
    [
        (WIDE, product(3, 5, 67)),
        (WIDE, product(3, 19, 64)),
        (WIDE, product(1, 21, 131)),
        (NARROW, product(9, 2, 17, "float64")),
        (NARROW, product(1, 6, 19)),
        (WIDE, product(40, 3, 65, is_transposed=False)),
        (WIDE, product(2, 17, 66, "float16")),
        (WIDE, window(3)),
        (WIDE, window(1)),
        (WIDE, in_blocks(5, 16)),
    ],
)
def test_sketches_are_exact(target, dag):
    (sketch,) = dots(dag, target)
    for values in space.sample(sketch, 3, np.random.default_rng(2)):
        row = {p.name: int(v) for p, v in zip(sketch.params, values, strict=True)}
        exact(dag, sketch.state, row)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32"])
@pytest.mark.parametrize("threads", [1, 2])
def test_kernels_are_right(dtype, threads):
    dag = product(5, 37, 150, dtype)
    data = make_inputs(dag, 0, "normal")
    found = dots(dag, HOST)  # of small types more than one: where the small operand is converted
    assert found
    for sketch in found:
        for values in space.sample(sketch, 4, np.random.default_rng(5)):
            row = {p.name: int(v) for p, v in zip(sketch.params, values, strict=True)}
            check_outputs(dag, data, run(build(sketch.state, HOST, threads, row), dag, data, HOST), f"{row}")


@pytest.mark.parametrize(
    ("dtype", "K"), [("bfloat16", 128), ("bfloat16", 98), ("int8", 64), ("int8", 196), ("uint8", 132)]
)
@pytest.mark.parametrize("M", [1, 3])
def test_small_numbers_are_multiplied_in_words(dtype, K, M):
    dag = product(M, 21, K, dtype)
    data = make_inputs(dag, 0, "normal")
    (sketch,) = dots(dag, WORDS)
    assert any(isinstance(step, Tensorize) for step in sketch.state.steps)
    sums = [s.name for s in sketch.state.stages if s.name.endswith(".sums")]
    assert len(sums) == (dtype != "bfloat16"), "what flipped bits add is taken off once"
    for values in space.sample(sketch, 2, np.random.default_rng(7)):
        row = {p.name: int(v) for p, v in zip(sketch.params, values, strict=True)}
        func, simplify = concretise(lower(sketch.state), row)
        check_nest(func, dag)
        for target in targets():
            check_outputs(dag, data, run(emit(func, simplify, target, 2), dag, data, target), f"{row} {target.mcpu}")


def test_what_is_not_in_whole_words_is_multiplied_one_by_one():
    for dag in (product(3, 21, 129, "bfloat16"), product(3, 21, 130, "int8")):
        (sketch,) = dots(dag, WORDS)
        assert not any(isinstance(step, Tensorize) for step in sketch.state.steps)


def test_only_what_few_outputs_use_has_them():
    assert dots(product(32, 512, 64))
    assert dots(product(512, 2, 64))
    assert dots(in_blocks(4, 16))
    assert not dots(in_blocks(3, 16)), "the reduction is short"
    assert not dots(in_blocks(9, 15)), "lanes would be empty in each block"
    assert not dots(product(33, 512, 64)), "a panel pays"
    assert not dots(product(3, 512, 63)), "the reduction is short"
    assert not dots(product(3, 512, 64, is_transposed=False)), "the large operand is not contiguous along it"
    assert not dots(product(20, 20, 64, is_transposed=False)), "nothing small to copy across"
