"""Two products and the softmax between them in one kernel: where that is offered, and that it is right."""

from __future__ import annotations

import numpy as np
import pytest

from autosched import te
from autosched.graph.operators.attention import attention
from autosched.ir.interpreter.interpret import interpret
from autosched.lower.pipeline import concretise
from autosched.schedule import replay, steps_to_json
from autosched.target import parse_target
from autosched.te.reference.evaluate import evaluate, within
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from autosched.te.rewrites.precision import with_precision
from search_spaces.gpu import sketches
from tests.codegen.gpu import TARGETS
from tests.search_spaces.gpu_candidates import Drawn, best_with_and_without, draw
from tests.search_spaces.one_launch import check_one_launch, check_rows_without_a_first_block
from tests.weighted_sums import Sizes, weighted

MARK = ":online-mma"
SM_80 = TARGETS["cuda"]


def in_one(dag: te.ComputeDAG, target: str = "cuda -arch=sm_80") -> list[str]:
    return [s.name for s in sketches(collapse(dag), parse_target(target)) if MARK in s.name]


def drawn(dag: te.ComputeDAG) -> tuple[Drawn, ...]:
    """With rows of the first product's left operand in shared memory, and in registers where these can be."""
    found = tuple(draw(collapse(dag), SM_80, 300, mark=MARK))
    assert found
    assert [d.sketch.name.endswith("-held") for d in found] == [False, True][: len(found)]
    return found


def check(dag: te.ComputeDAG, runs: int = 1) -> None:
    check_one_launch(dag, drawn(dag), runs)


@pytest.mark.parametrize("masked", ["", "added", "kept", "causal"])
def test_masks_and_odd_sizes(masked: str) -> None:
    check(weighted(Sizes(37, 53, 23, 19), "bfloat16", masked))


def test_blocks_of_which_rows_have_few_columns() -> None:
    """Of a triangle that is wider than a block, and of one that is cut off."""
    check(weighted(Sizes(150, 150, 16, 16), masked="causal"))
    check(weighted(Sizes(150, 40, 16, 16), masked="causal"))
    check(weighted(Sizes(40, 150, 16, 16), masked="causal"))


def test_batches_and_several_candidates() -> None:
    check(weighted(Sizes(41, 70, 32, 24, batch=3)), 3)
    check(weighted(Sizes(5, 40, 9, 7), sharp=40.0))


def test_rows_of_which_a_first_block_has_nothing() -> None:
    """The maximum is -inf there; later blocks have numbers, of other rows none has any."""
    dag = weighted(Sizes(24, 70, 16, 16), masked="kept")
    check_rows_without_a_first_block(dag, drawn(dag)[0])


@pytest.mark.parametrize("causal", [False, True])
def test_the_operator(causal: bool) -> None:
    """Heads of keys that serve several of queries, a mask that hides whole rows."""
    q, k, v = (te.placeholder((2, h, n, w), "float16", name=x) for x, h, n, w in (("Q", 4, 19, 24), ("K", 2, 33, 24),
                                                                               ("V", 2, 33, 17)))  # fmt: skip
    mask = None if causal else te.placeholder((19, 33), "bool", name="mask")
    check(te.ComputeDAG(attention(q, k, v, mask, causal=causal)))


@pytest.mark.parametrize(("precision", "masked"), [("tf32", ""), ("tf32", "added"), ("3xtf32", "causal")])
def test_products_of_float32_that_may_be_short(precision: str, masked: str) -> None:
    check(with_precision(weighted(Sizes(37, 53, 23, 19), "float32", masked), precision))
    check(with_precision(weighted(Sizes(20, 70, 16, 32, batch=2), "float32", masked), precision))


@pytest.mark.parametrize("turned", ["A", "B", "C", "ABC"])
def test_operands_that_lie_transposed(turned: str) -> None:
    check(weighted(Sizes(37, 56, 24, 17, turned=turned)))
    check(with_precision(weighted(Sizes(21, 43, 23, 19, turned=turned), "float32"), "tf32"))


@pytest.mark.parametrize(("order", "masked"), [((1, 0, 2), "causal"), ((1, 0, 2), "added"), ((0, 2, 1), "")])
def test_results_in_another_order(order: tuple[int, ...], masked: str) -> None:
    check(weighted(Sizes(37, 53, 23, 19, batch=3, order=order), masked=masked), 2)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2)])
def test_interpreted(order: tuple[int, ...]) -> None:
    dag = collapse(weighted(Sizes(17, 35, 16, 8, batch=2, order=order), masked="causal"))
    inputs = make_inputs(dag, 0, "normal")
    (reference,) = evaluate(dag, inputs)
    for one in drawn(dag):
        small = [n for n, p in enumerate(one.sketch.params) if p.name.endswith((".w", ".s")) and p.name.startswith("Z")]
        row = min(one.legal, key=lambda row: int(np.prod(row[small])))
        values = {p.name: int(v) for p, v in zip(one.sketch.params, row, strict=True)}
        (got,) = interpret(concretise(one.func, values)[0], inputs)
        assert within(reference, got).all()


def test_records_find_the_schedule_again() -> None:
    dag = collapse(weighted(Sizes(33, 40, 16, 16)))
    one, _ = drawn(dag)
    values = next(one.candidates(1))
    text = steps_to_json(one.sketch.state, values)
    assert steps_to_json(replay(dag, text), {}) == text


def test_where_it_is_offered() -> None:
    dag = weighted(Sizes(64, 64, 64, 64))
    assert in_one(dag) == ["Y:online-mma.float16", "Y:online-mma.float16-held"]
    assert in_one(dag, "cuda -arch=sm_90")
    assert in_one(dag, "cuda -arch=sm_75")[0] == "Y:online-mma.float16.k8"
    assert not in_one(weighted(Sizes(64, 64, 64, 64), "bfloat16"), "cuda -arch=sm_75")
    assert not in_one(dag, "opencl")
    exact = weighted(Sizes(64, 64, 64, 64), "float32")
    assert not in_one(exact)
    assert in_one(with_precision(exact, "tf32")) == ["Y:online-mma.tf32"]
    assert not in_one(weighted(Sizes(64, 64, 5, 64)))
    assert not in_one(weighted(Sizes(64, 64, 64, 512)))


def test_the_model_prefers_it_where_scores_are_many() -> None:
    in_one_s, others_s = best_with_and_without(weighted(Sizes(1024, 1024, 64, 64, batch=24)), SM_80, MARK, 100)
    assert in_one_s < others_s
