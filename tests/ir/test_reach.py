"""Which conditions end rows of scores, and that blocks of columns that no row reaches are left out."""

from __future__ import annotations

import math

import pytest

from autosched.ir.expr import INDEX, Const, Expr, Load, Param, Var, select
from autosched.ir.reach import Reach, reach
from autosched.ir.stmt import For, walk
from autosched.lower import lower
from autosched.te.rewrites.collapse import collapse
from search_spaces.gpu import sketches
from tests.codegen.gpu import TARGETS
from tests.weighted_sums import Sizes, weighted

ROW, K, W = Var("i", INDEX), Var("k", INDEX), Var("w", INDEX)
X = Load("X", (ROW, K), "float32")
LEAST = Const(-math.inf, "float32")
OTHER: Expr = ROW < 5


def found(condition: Expr, other: Expr = LEAST) -> Reach | None:
    return reach(select(condition, X, other), ROW, K, LEAST)


@pytest.mark.parametrize(
    ("condition", "end"),
    [(K <= ROW, 1), (K < ROW, 0), (ROW >= K, 1), (ROW > K, 0), (K <= ROW + 3, 4), (K - 2 < ROW, 2), (K + 7 <= ROW, -6)],
)
def test_ends_of_rows(condition: Expr, end: int) -> None:
    assert found(condition) == Reach(Const(end, INDEX), X)
    both = found(OTHER & condition)
    assert both == Reach(Const(end, INDEX), select(OTHER, X, LEAST))


def test_an_end_may_be_a_closed_form() -> None:
    moved = found(ROW + Param("n") > K)
    assert moved is not None
    assert moved.end is Param("n")


@pytest.mark.parametrize(
    "condition",
    [
        K < 7,
        ROW < 9,
        K * 2 <= ROW,
        K <= ROW * 2,
        K <= ROW + W,
        K >= ROW,
        Load("mask", (ROW, K), "bool"),
        (K <= ROW) | OTHER,
    ],
)
def test_other_conditions(condition: Expr) -> None:
    assert found(condition) is None


def test_other_values() -> None:
    assert found(K <= ROW, Const(0.0, "float32")) is None
    assert reach(X, ROW, K, LEAST) is None


@pytest.mark.parametrize(("masked", "is_shorter"), [("causal", True), ("", False)])
def test_sums_end_where_the_rows_of_a_block_do(masked: str, is_shorter: bool) -> None:
    dag = collapse(weighted(Sizes(96, 96, 32, 16), masked=masked))
    [sketch] = [s for s in sketches(dag, TARGETS["cuda"]) if s.name.endswith(":online-mma.float16")]
    [loop] = [s for s in walk(lower(sketch.state).body) if isinstance(s, For) and s.var.name == "Y.acc.s.0"]
    assert (loop.extent is not loop.bound) == is_shorter
