"""Rows put together from the independent parts of a sketch, legal ones and the best."""

from __future__ import annotations

import numpy as np

from autosched import te
from autosched.ir.closed_forms.program import Program
from autosched.ir.expr import INDEX, Const, Expr, Param
from autosched.lower import lower
from autosched.target import parse_target
from autosched.te import ComputeDAG
from cost_model import CostModel
from cost_model.cpu.legality import Rule
from cost_model.independent_nests import IndependentGroup, best_rows, independent_parts, legal_rows
from search_spaces.cpu import sketches
from search_spaces.space import enumerate_grid

NAMES = ("a", "b", "c", "d", "e")
A, B, C, D = (Param(n) for n in "abcd")
RULES = tuple(Rule(str(n), holds) for n, holds in enumerate((A * B <= 8, C <= 2, B >= 2, C + D >= 4)))


def some_rows(n: int) -> np.ndarray:
    return np.random.default_rng(0).integers(1, 9, (n, len(NAMES)))


def holding(rules: tuple[Rule, ...], rows: np.ndarray) -> np.ndarray:
    return Program([r.holds for r in rules], NAMES)(rows) != 0


def test_rules_that_share_a_parameter_are_one_part() -> None:
    assert independent_parts(RULES, NAMES) == (IndependentGroup((0, 2), (0, 1)), IndependentGroup((1, 3), (2, 3)))
    joined = (*RULES, Rule("both", A + D <= 9))
    assert independent_parts(joined, NAMES) == (IndependentGroup((0, 1, 2, 3, 4), (0, 1, 2, 3)),)
    of_all = (*RULES, Rule("sum", A + B + C + D <= 20, whole=True))
    assert independent_parts(of_all, NAMES) == independent_parts(RULES, NAMES)


def test_every_row_takes_legal_parts_of_others() -> None:
    rows = some_rows(500)
    holds = holding(RULES, rows)
    assert holds.all(axis=0).mean() < 0.1
    made = legal_rows(rows, holds, independent_parts(RULES, NAMES))
    assert len(made) == len(rows)
    assert holding(RULES, made).all()
    assert (made[:, 4] == rows[:, 4]).all()  # no rule says anything about it
    fine = holds.all(axis=0)
    assert (made[fine] == rows[fine]).all()
    assert len(np.unique(made[:, :4], axis=0)) > 100
    assert (made == legal_rows(rows, holds, independent_parts(RULES, NAMES))).all()


def test_what_cannot_be_made_legal_is_left_out() -> None:
    never: Expr = Const(1, INDEX) > 2
    rows = some_rows(50)
    for rules in ((*RULES, Rule("never", never)), (*RULES, Rule("beyond", C > 9))):
        assert not len(legal_rows(rows, holding(rules, rows), independent_parts(rules, NAMES)))
    assert (
        legal_rows(rows, holding(RULES[:1], rows), independent_parts(RULES[:1], NAMES))
        == rows[rows[:, 0] * rows[:, 1] <= 8]
    ).all()
    assert (legal_rows(rows, np.ones((0, 50), bool), ()) == rows).all()


def test_the_best_columns_of_each_part_come_together() -> None:
    rows = np.array([[4, 1, 1, 7], [2, 1, 3, 8], [1, 1, 2, 9], [1, 1, 5, 9]])
    parts = (IndependentGroup((0,), (0, 1)), IndependentGroup((1,), (2,)))
    cost = np.stack([rows[:, 0], rows[:, 2]]).astype(float)
    found = best_rows(rows, cost, parts, 3)
    assert found.tolist() == [[1, 1, 1, 9], [2, 1, 2, 9], [4, 1, 3, 9]]  # the last column is that of the third row


def test_products_behind_each_other_are_judged_by_themselves() -> None:
    """Registers are those of one nest at a time: of two products with a legal tile in every third row, all rows."""

    def product(x: te.Tensor, name: str) -> te.Tensor:
        w, k = te.placeholder((96, 96), name=f"W{name}"), te.reduce_axis(96, name="k")
        return te.compute((96, 96), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k), name=name)

    target = parse_target("llvm -mcpu=haswell")
    dag = ComputeDAG(product(product(te.placeholder((96, 96), name="X"), "H"), "Y"))
    sketch = next(s for s in sketches(dag, target, 1) if not s.fuses_reductions)
    model = CostModel([lower(sketch.state)], [tuple(p.name for p in sketch.params)], target, 1)
    rows = enumerate_grid(sketch, 200, np.random.default_rng(0))
    assert model.n_parts(0) == len(model.sketches[0].parts) == 2
    assert model.legal(0, rows).mean() < 0.5
    legal = model.legal_rows(0, rows)
    assert len(legal) > 0.9 * len(rows)
    assert model.legal(0, legal).all()
    seconds, best = model.analytic_latency_with_best(0, legal)
    assert (seconds == model.analytic_latency(0, legal)).all()
    assert len(best)
    assert model.legal(0, best).all()
    assert model.analytic_latency(0, best).min() <= seconds.min()
    assert not len(model.analytic_latency_with_best(0, legal[:0])[1])
