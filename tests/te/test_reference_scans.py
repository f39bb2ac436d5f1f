"""Prefix scans of the reference: recognised by rules of its own, right in any form of the condition."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from autosched import te
from autosched.te.reference.evaluate import evaluate
from autosched.te.reference.scans import find_scan
from autosched.te.rewrites import prefix_scan

N = 7
FORMS: dict[str, Callable] = {
    "k <= i": lambda k, i, x: te.select(k <= i, x, 0),
    "k < i": lambda k, i, x: te.select(k < i, x, 0),
    "k >= i": lambda k, i, x: te.select(k >= i, x, 0),
    "k > i": lambda k, i, x: te.select(k > i, x, 0),
    "i >= k": lambda k, i, x: te.select(i >= k, x, 0),
    "k - i < 1": lambda k, i, x: te.select(k - i < 1, x, 0),
    "i - k > 0": lambda k, i, x: te.select(i - k > 0, x, 0),
    "2k <= i + k": lambda k, i, x: te.select(2 * k <= i + k, x, 0),
    "not k > i": lambda k, i, x: te.select(k > i, 0, x),
    "k <= i and k != 3": lambda k, i, x: te.select((k <= i) & k.not_equal(3), x, 0),
    "k <= i, then k > 1": lambda k, i, x: te.select(k <= i, te.select(k > 1, x, 0), 0),
}
OTHERS: dict[str, Callable] = {  # which are computed point by point
    "k <= i + 1": lambda k, i, x: te.select(k <= i + 1, x, 0),
    "2k <= i": lambda k, i, x: te.select(2 * k <= i, x, 0),
    "k <= i else 1": lambda k, i, x: te.select(k <= i, x, 1),
    "k <= i of i x": lambda k, i, x: te.select(k <= i, x * i.astype("float32"), 0),
    "k <= i and i != 3": lambda k, i, x: te.select((k <= i) & i.not_equal(3), x, 0),
    "k <= i by a product": lambda k, i, x: te.select(k <= i, 1, 0).astype("float32") * x,
}


def scan(form: Callable) -> te.ComputeDAG:
    x, k = te.placeholder((3, N), name="X"), te.reduce_axis(N, name="k")
    return te.ComputeDAG(te.compute((3, N), lambda b, i: te.sum(form(k, i, x[b, k]), axis=k), name="Y"))


def value_of(form: Callable, x: np.ndarray) -> np.ndarray:
    """Point by point, in Python's numbers."""
    dag = scan(form)
    (axes, (k,)) = dag.stages[0].axes, dag.stages[0].reduce_axes
    from autosched.te.reference.blocks import DomainBox
    from autosched.te.reference.error_bounds import Bounded

    y = np.zeros((3, N))
    for b in range(3):
        for i in range(N):
            for j in range(N):
                point = {axes[0].name: (b, b + 1), axes[1].name: (i, i + 1), k.name: (j, j + 1)}
                y[b, i] += DomainBox(point, {"X": Bounded(x)}).eval(dag.stages[0].body[0]).value.item()
    return y


@pytest.mark.parametrize("name", [*FORMS, *OTHERS])
def test_results_are_those_of_each_point(name: str) -> None:
    x = np.random.default_rng(0).integers(-4, 5, (3, N)).astype("float32")
    form = (FORMS | OTHERS)[name]
    (y,) = evaluate(scan(form), {"X": x})
    np.testing.assert_array_equal(y.value, value_of(form, x.astype("float64")))


def test_a_condition_on_data_is_not_turned_around() -> None:
    """NaN is neither above 0 nor at most 0: where it is not above, the value is taken, and that is NaN."""
    x = np.array([[1, np.nan, -2, 3, -4, 5, 6]] * 3, "float32")
    dag = scan(lambda k, i, value: te.select(k <= i, te.select(value > 0, 0, value), 0))
    (y,) = evaluate(dag, {"X": x})
    np.testing.assert_array_equal(y.value[0], [0, *[np.nan] * 6])


def test_conditions_keep_their_order() -> None:
    """k > 0 is what allows to read the element before."""
    x, k = te.placeholder((N,), name="X"), te.reduce_axis(N, name="k")

    def value(i):
        kept = te.select(k > 0, te.select(x[k - 1] > 0, x[k], 0), 0)
        return te.sum(te.select(k <= i, kept, 0), axis=k)

    dag = te.ComputeDAG(te.compute((N,), value, name="Y"))
    found = find_scan(dag.stages[0])
    assert found is not None
    assert str(found.term.cond) == "k > 0"
    data = np.array([1, 2, -3, 4, 5, -6, 7], "float32")
    (y,) = evaluate(dag, {"X": data})
    np.testing.assert_array_equal(y.value, np.cumsum([0, 2, -3, 0, 5, -6, 0]))


def test_what_is_a_scan() -> None:
    assert [name for name, form in FORMS.items() if find_scan(scan(form).stages[0]) is None] == []
    assert [name for name, form in OTHERS.items() if find_scan(scan(form).stages[0]) is not None] == []


def test_a_false_match_of_the_optimiser_does_not_reach_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.arange(3 * N, dtype="float32").reshape(3, N)
    dag = scan(OTHERS["k <= i + 1"])
    (right,) = evaluate(dag, {"X": x})

    def wrong(op: object) -> prefix_scan.ScanPattern:
        return prefix_scan.ScanPattern(0, 1, "le", op.body[0])  # type: ignore[attr-defined]

    monkeypatch.setattr(prefix_scan, "find_prefix_scan", wrong)
    (again,) = evaluate(scan(OTHERS["k <= i + 1"]), {"X": x})
    np.testing.assert_array_equal(again.value, right.value)
