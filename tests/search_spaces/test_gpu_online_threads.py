"""Two products and the softmax between them in one kernel whose threads have whole rows: exact, in any type."""

from __future__ import annotations

import pytest

from autosched import te
from autosched.ir.interpreter.interpret import interpret
from autosched.lower.pipeline import concretise
from autosched.schedule import replay, steps_to_json
from autosched.target import Target, parse_target
from autosched.te.reference.evaluate import evaluate, within
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from search_spaces.gpu import sketches
from tests.codegen.gpu import TARGETS
from tests.search_spaces.gpu_candidates import Drawn, best_with_and_without, draw
from tests.search_spaces.one_launch import check_one_launch, check_rows_without_a_first_block
from tests.weighted_sums import Sizes, weighted

MARK = ":online-threads"
SM_80 = TARGETS["cuda"]


def drawn(dag: te.ComputeDAG, target: Target = SM_80) -> Drawn:
    (found,) = draw(collapse(dag), target, 300, mark=MARK)
    return found


def check(dag: te.ComputeDAG, runs: int = 2, kind: str = "cuda") -> None:
    check_one_launch(dag, [drawn(dag, TARGETS[kind])], runs, kind)


@pytest.mark.parametrize("masked", ["", "added", "kept", "causal"])
def test_masks_and_odd_sizes(masked: str) -> None:
    check(weighted(Sizes(37, 53, 23, 19), "float32", masked))
    check(weighted(Sizes(2, 7, 3, 5), "float32", masked), 1)


def test_blocks_of_which_rows_have_few_columns() -> None:
    """All threads of a block meet as often as its last row needs."""
    check(weighted(Sizes(70, 70, 16, 16), "float32", "causal"), 2)
    check(weighted(Sizes(70, 20, 16, 16), "float32", "causal"), 1)
    check(weighted(Sizes(20, 70, 16, 16), "float32", "causal"), 1)


def test_batches() -> None:
    check(weighted(Sizes(41, 70, 32, 24, batch=3), "float32"), 1)
    check(weighted(Sizes(40, 33, 64, 96, batch=2), "float32"), 1)
    check(weighted(Sizes(5, 40, 9, 7), "float32", sharp=40.0), 1)


@pytest.mark.parametrize("turned", ["A", "B", "C", "ABC"])
def test_operands_that_lie_transposed(turned: str) -> None:
    check(weighted(Sizes(21, 43, 23, 19, turned=turned), "float32"))


@pytest.mark.parametrize("kind", ["cuda", "opencl"])
@pytest.mark.parametrize("order", [(1, 0, 2), (0, 2, 1)])
def test_results_in_another_order(order: tuple[int, ...], kind: str) -> None:
    check(weighted(Sizes(21, 43, 23, 19, batch=3, order=order), "float32", "causal"), 1, kind)


def test_rows_of_which_a_first_block_has_nothing() -> None:
    dag = weighted(Sizes(24, 70, 16, 16), "float32", "kept")
    check_rows_without_a_first_block(dag, drawn(dag))


def test_in_opencl_and_of_16_bits() -> None:
    check(weighted(Sizes(37, 53, 23, 19), "float32", "causal"), 1, "opencl")
    check(weighted(Sizes(33, 40, 5, 19), "float16"), 1, "opencl")


def test_interpreted() -> None:
    dag = collapse(weighted(Sizes(17, 35, 16, 8), "float32", "causal"))
    inputs = make_inputs(dag, 0, "normal")
    (reference,) = evaluate(dag, inputs)
    one = drawn(dag)
    values = next(one.candidates(1))
    (got,) = interpret(concretise(one.func, values)[0], inputs)
    assert within(reference, got).all()


def test_records_find_the_schedule_again() -> None:
    dag = collapse(weighted(Sizes(33, 40, 16, 16), "float32"))
    one = drawn(dag)
    text = steps_to_json(one.sketch.state, next(one.candidates(1)))
    assert steps_to_json(replay(dag, text), {}) == text


def test_where_it_is_offered() -> None:
    def in_one(dag: te.ComputeDAG, target: str = "cuda -arch=sm_80") -> bool:
        return any(MARK in s.name for s in sketches(collapse(dag), parse_target(target)))

    assert in_one(weighted(Sizes(64, 64, 64, 64), "float32"))
    assert in_one(weighted(Sizes(64, 64, 64, 64), "float32"), "opencl")
    assert not in_one(weighted(Sizes(64, 64, 64, 64)))  # instructions for matrices do it
    assert not in_one(weighted(Sizes(64, 64, 64, 200), "float32"))


def test_the_model_prefers_it_where_scores_are_many() -> None:
    target = parse_target("cuda -arch=sm_90")
    in_one_s, others_s = best_with_and_without(
        weighted(Sizes(1024, 1024, 32, 32, batch=48), "float32"), target, MARK, 200
    )
    assert in_one_s < others_s
