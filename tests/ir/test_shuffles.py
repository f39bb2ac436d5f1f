"""Shuffles: values that the threads of a warp exchange, in the interpreter, the verifier and the printer."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.ir.expr import Const, binary, cast
from autosched.ir.stmt import Allocate, Barrier, ForKind, Func, If, Scope, Seq, Shuffle, Stmt
from autosched.ir.visit import exprs_of, map_exprs
from tests.ir.nests import F32, buffer, func, load, loop, num, reducer, store
from tests.ir.test_blocks import A, C, a, c, fails, k, kernel, rejected, run, shared, t

ZERO = Const(0.0, F32)
MINE, OTHER = buffer("mine", (1,), scope=Scope.REGISTER), buffer("other", (1,), scope=Scope.REGISTER)


def shuffle(lane, warp=4, target="other", source=None):
    value = load("mine", 0) if source is None else source
    return Shuffle((target,), (num(0),), (value,), lane, warp)


def exchange(*body: Stmt, threads=4) -> Func:
    """mine = A[t]; then the body, between private buffers."""
    inner = Seq((store("mine", (0,), load("A", t)), *body))
    return func(
        [buffer("A", (threads,))],
        [buffer("C", (threads,))],
        kernel(Allocate(MINE, Allocate(OTHER, inner)), threads=threads),
    )


write = store("C", (t,), load("other", 0))


def test_values_come_from_the_lane_that_is_named():
    for lane, expected in ((3 - t, a[::-1]), (num(2), np.full(4, 4)), (binary("bitxor", t, num(1)), a[[1, 0, 3, 2]])):
        (result,) = run(exchange(shuffle(lane), write), a)
        np.testing.assert_array_equal(result, expected)


def test_each_warp_is_for_itself():
    x = np.arange(8, dtype=F32)
    (result,) = run(exchange(shuffle(1 - t % 2, warp=2), write, threads=8), x)
    np.testing.assert_array_equal(result, [1, 0, 3, 2, 5, 4, 7, 6])


def test_x_varies_fastest_whatever_the_order_of_the_loops():
    """Threads in the order (x, y) = (0, 0), (1, 0), (0, 1), (1, 1): a warp of two has both x."""
    at = t * 2 + c
    body = Seq((store("mine", (0,), load("A", at)), shuffle(1 - t, 2, "mine"), store("C", (at,), load("mine", 0))))
    nest = loop(t, 2, loop(c, 2, Allocate(MINE, body), kind=ForKind.THREAD_Y), kind=ForKind.THREAD_X)
    (result,) = run(func([A], [C], nest), a)
    np.testing.assert_array_equal(result, a[[2, 3, 0, 1]])


def test_all_values_are_read_before_any_is_written():
    two = Shuffle(("mine", "other"), (num(0),), (load("other", 0), load("mine", 0)), 3 - t, 4)
    start = store("other", (0,), load("A", t) * 10.0)
    (result,) = run(exchange(start, two, store("C", (t,), load("mine", 0) + load("other", 0))), a)
    np.testing.assert_array_equal(result, 11 * a[::-1])


def test_warps_go_on_by_themselves_and_meet_at_barriers():
    """In a loop: a shuffle, then shared memory that is filled and read."""
    rounds = loop(
        k,
        2,
        shuffle(1 - t % 2, 2),
        shared("s", 8, Barrier(), store("s", (t,), load("other", 0)), Barrier(), store("mine", (0,), load("s", 7 - t))),
    )
    (result,) = run(exchange(rounds, store("C", (t,), load("mine", 0)), threads=8), np.arange(8, dtype=F32))
    np.testing.assert_array_equal(result, np.arange(8))


def test_a_lane_that_is_not_there_is_undefined():
    x = np.arange(6, dtype=F32)
    taken = If((t % 4 < 2) & (t < 4), write, store("C", (t,), ZERO))
    (result,) = run(exchange(shuffle(t % 4 + 2), taken, threads=6), x)  # the second warp has two threads
    np.testing.assert_array_equal(result, [2, 3, 0, 0, 0, 0])
    fails(exchange(shuffle(t % 4 + 2), write, threads=6), r"other\[0\] is read before it is written", x)
    fails(exchange(shuffle(t - 1), write), r"other\[0\] is read before it is written", a)


def test_what_a_thread_has_not_written_cannot_be_had():
    fails(exchange(shuffle(3 - t, source=load("other", 0)), write), r"other\[0\] is read before it is written", a)


def test_shuffles_do_not_order_shared_memory():
    body = shared("s", 4, store("s", (t,), ZERO), shuffle(3 - t), store("C", (t,), load("s", 3 - t)))
    fails(exchange(body), "race: .*with no barrier between", a)


first_only = np.array([1, 0, 0, 0], F32)
FIRST = load("mine", 0) > 0.0
DIVERGENT = {
    "one comes by, the others end": [If(FIRST, shuffle(num(0))), store("C", (t,), ZERO)],
    "different shuffles": [If(FIRST, shuffle(num(0)), shuffle(num(0))), write],
    "different iterations": [loop(k, 2, If(cast(k, F32).equal(load("mine", 0)), shuffle(num(0)))), store("C", (t,), ZERO)],
    "one is at a shuffle, the others at a barrier": [If(FIRST, Seq((shuffle(num(0)), Barrier())), Barrier()), store("C", (t,), ZERO)],
}  # fmt: skip


@pytest.mark.parametrize("body", DIVERGENT.values(), ids=DIVERGENT)
def test_divergence(body):
    """The verifier does not follow the value of a private buffer; the interpreter does."""
    fails(exchange(*body), "warp divergence: the thread b = 0, t = 0 .*, but the thread b = 0, t = 1", first_only)


def test_whole_warps_may_part():
    """Threads 0 and 1 come by, 2 and 3 do not: their warps are others."""
    f = exchange(If(FIRST, shuffle(1 - t % 2, 2), store("other", (0,), ZERO)), write)
    (result,) = run(f, np.array([1, 2, 0, 0], F32))
    np.testing.assert_array_equal(result, [2, 1, 0, 0])


def test_the_message_of_a_divergence():
    body = DIVERGENT["one is at a shuffle, the others at a barrier"]
    fails(exchange(*body), "t = 0 waits at shuffle 0, but the thread b = 0, t = 1 waits at barrier 2$", first_only)


# The verifier, the printer, walks


def test_what_the_verifier_refuses():
    inside = lambda s: kernel(Allocate(MINE, Allocate(OTHER, Seq((store("mine", (0,), ZERO), s)))))  # noqa: E731
    rejected(r"a shuffle depends on the thread t by t < 2", inside(If(t < 2, shuffle(num(0)))))
    rejected("a warp of 3 threads is no power of two", inside(shuffle(num(0), 3)))
    rejected("the lane is float32, not int64", inside(shuffle(ZERO)))
    rejected("C is not private to the thread", inside(shuffle(num(0), target="C")))
    rejected("the buffer gone is neither", inside(shuffle(num(0), target="gone")))
    rejected("other holds float32 but is accessed as int64", inside(shuffle(num(0), source=num(1))))
    rejected("the variable k is not bound", inside(shuffle(k)))
    rejected("2 values are stored to 1 buffers", inside(Shuffle(("other",), (num(0),), (ZERO, ZERO), num(0), 4)))
    rejected("stands inside a parallel loop", loop(k, 4, inside(shuffle(num(0))).body, kind=ForKind.PARALLEL))


def test_text_and_walks():
    s = shuffle(binary("bitxor", t % 32, num(16)), 32)
    assert str(s) == "other[0] = mine[0] of lane t%32 ^ 16  # warps of 32"
    pair = Shuffle(("x", "y"), (num(0),), (ZERO, t), num(0), 8)
    assert str(pair) == "(x[0], y[0]) = (0.0, t) of lane 0  # warps of 8"
    assert exprs_of(s) == (num(0), load("mine", 0), s.lane)
    moved = map_exprs(s, lambda e: num(3) if e is s.lane else e)
    assert moved == Shuffle(("other",), (num(0),), (load("mine", 0),), num(3), 32)


def test_a_sum_in_a_warp():
    add = store("mine", (0,), load("other", 0), reducer("add"))
    steps = [s for d in (2, 1) for s in (shuffle(binary("bitxor", t, num(d))), add)]
    (result,) = run(exchange(*steps, store("C", (t,), load("mine", 0))), a)
    np.testing.assert_array_equal(result, np.full(4, a.sum()))
