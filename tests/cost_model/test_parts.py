"""Legal rows from the independent parts of a sketch."""

from __future__ import annotations

import numpy as np

from autosched.ir.expr import INDEX, Const, Expr, Param
from autosched.ir.program import Program
from cost_model.legality import Rule
from cost_model.parts import Part, independent_parts, legal_rows

NAMES = ("a", "b", "c", "d", "e")
A, B, C, D = (Param(n) for n in "abcd")
RULES = tuple(Rule(str(n), holds) for n, holds in enumerate((A * B <= 8, C <= 2, B >= 2, C + D >= 4)))


def some_rows(n: int) -> np.ndarray:
    return np.random.default_rng(0).integers(1, 9, (n, len(NAMES)))


def holding(rules: tuple[Rule, ...], rows: np.ndarray) -> np.ndarray:
    return Program([r.holds for r in rules], NAMES)(rows) != 0


def test_rules_that_share_a_parameter_are_one_part() -> None:
    assert independent_parts(RULES, NAMES) == (Part((0, 2), (0, 1)), Part((1, 3), (2, 3)))
    joined = (*RULES, Rule("both", A + D <= 9))
    assert independent_parts(joined, NAMES) == (Part((0, 1, 2, 3, 4), (0, 1, 2, 3)),)


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
