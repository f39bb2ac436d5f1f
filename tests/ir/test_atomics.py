"""Atomic updates: what the interpreter lets meet, what the verifier refuses, how they read."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.ir.expr import Const
from autosched.ir.instructions.atomics import atomic_operation
from autosched.ir.stmt import Reducer, Seq, Store
from tests.ir.nests import F32, I64, argmax, buffer, func, load, num, reducer
from tests.ir.test_blocks import A, C, a, b, fails, kernel, rejected, run, shared, store, t

ZERO = Const(0.0, F32)
start = kernel(store("C", (t,), ZERO))


def update(index, value, combine: Reducer | None = None, target="C"):
    return Store((target,), (index,), (value,), combine or reducer("add"), atomic=True)


def test_blocks_and_threads_update_one_element():
    nest = kernel(update(num(0), load("A", t)), update(num(1), Const(1.0, F32)), blocks=3)
    (result,) = run(func([A], [C], start, nest), a)
    np.testing.assert_array_equal(result, [3 * a.sum(), 12, 0, 0])


def test_integers_have_least_and_greatest():
    out = buffer("C", (2,), I64)
    for op, expected in (("min", -8), ("max", 5)):
        first = kernel(store("C", (t,), num(0)), threads=2)
        values = kernel(update(num(1), t * 4 - 8 + b, reducer(op, I64)), blocks=2)
        (result,) = run(func([], [out], first, values))
        assert result.tolist() == [0, expected]


MIXED = {
    "another reads": kernel(update(num(0), ZERO), store("C", (t,), load("C", 0))),
    "a thread of another block reads": kernel(update(num(0), ZERO), store("C", (3,), load("C", 0)), blocks=2),
    "another writes": kernel(update(num(0), ZERO), store("C", (t,), ZERO)),
    "another updates as an ordinary store": kernel(update(num(0), ZERO), store("C", (0,), ZERO, reducer("add"))),
    "own update, then another thread's, then own read": kernel(update(num(0), ZERO), store("C", (t,), load("C", t))),
}


@pytest.mark.parametrize("nest", MIXED.values(), ids=MIXED)
def test_what_else_meets_them_is_a_race(nest):
    fails(
        func([], [C], start, nest), r"race: a thread (reads|writes|updates) C\[\d\], which another thread of the kernel"
    )


def test_own_elements_may_be_read_and_written():
    nest = kernel(update(t, load("A", t)), store("C", (t,), load("C", t) + 1.0))
    (result,) = run(func([A], [C], start, nest), a)
    np.testing.assert_array_equal(result, a + 1)


def test_what_was_not_written_cannot_be_updated():
    fails(func([], [C], kernel(update(t, ZERO))), r"C\[\d\] is read before it is written")


def test_which_operations_there_are():
    for op, dtype, expected in (
        ("add", F32, "add"), ("add", "int64", "add"), ("max", "int32", "max"), ("max", F32, None), ("mul", F32, None),
        ("add", "int8", None), ("min", "uint8", None),
    ):  # fmt: skip
        assert atomic_operation(reducer(op, dtype)) == expected
    assert atomic_operation(argmax()) is None
    assert atomic_operation(None) is None


def test_what_the_verifier_refuses():
    rejected("there is no such atomic update", kernel(update(t, ZERO, reducer("max"))))
    rejected("there is no such atomic update", kernel(Store(("C",), (t,), (ZERO,), None, atomic=True)))
    rejected("outside of loops of blocks and threads", update(num(0), ZERO))
    rejected("s is updated atomically but is not in global memory", kernel(shared("s", 4, update(t, ZERO, target="s"))))


def test_text():
    assert str(update(t, ZERO)) == "C[t] += 0.0  # atomic"
    staged = Store(("C",), (t,), (ZERO,), reducer("add"), "C.rf", atomic=True)
    assert str(Seq((staged,))) == "C[t] += 0.0  # C.rf, atomic"
