"""Nests of blocks and threads: what the interpreter makes of them, every fault it finds, and the verifier's rules."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.ir.expr import Const, Param, Var, cast, const, imin
from autosched.ir.interpreter.blocks import runs_in_blocks
from autosched.ir.interpreter.interpret import InterpretError, interpret
from autosched.ir.stmt import Allocate, Barrier, For, ForKind, If, Prefetch, Scope, Seq, Store
from autosched.ir.verify import IRError, verify
from tests.ir.nests import F32, I64, argmax, buffer, func, load, loop, num, reducer, store

BX, BY, TX, TY = ForKind.BLOCK_X, ForKind.BLOCK_Y, ForKind.THREAD_X, ForKind.THREAD_Y
b, c, t, u, k = (Var(name, I64) for name in "bctuk")
ZERO, ONE = Const(0.0, F32), Const(1.0, F32)
SHARED = Scope.SHARED
A, C = buffer("A", (4,)), buffer("C", (4,))
a = np.array([3, 1, 4, 2], F32)


def kernel(*body, blocks=1, threads=4):
    return loop(b, blocks, loop(t, threads, *body, kind=TX), kind=BX)


def shared(name, n, *body, dtype=F32):
    return Allocate(buffer(name, (n,), dtype, SHARED), Seq(body))


def orders():
    """Orders of blocks and threads: as written, backwards, random."""
    rng = np.random.default_rng(0)
    return [None, lambda n: range(n - 1, -1, -1), lambda n: rng.permutation(n).tolist()]


def run(f, *arrays):
    """The outputs, the same in whatever order blocks and threads run."""
    inputs = {p.name: x for p, x in zip(f.params, arrays, strict=False)}
    results = [interpret(f, inputs, parallel_order=order) for order in orders()]
    for other in results[1:]:
        for x, y in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(x, y)
    return results[0]


def fails(f, text, *arrays):
    inputs = {p.name: x for p, x in zip(f.params, arrays, strict=False)}
    for order in orders():
        with pytest.raises(InterpretError, match=text):
            interpret(f, inputs, parallel_order=order)


# Nests that are right


def test_a_vector_in_blocks_with_a_guarded_tail():
    n, i = 10, b * 4 + t
    f = func(
        [buffer("A", (n,))], [buffer("C", (n,))], kernel(If(i < n, store("C", (i,), load("A", i) + ONE)), blocks=3)
    )
    x = np.arange(n, dtype=F32)
    (result,) = run(f, x)
    np.testing.assert_array_equal(result, x + 1)


def test_threads_exchange_values_through_shared_memory():
    body = shared("s", 4, store("s", (t,), load("A", t)), Barrier(), store("C", (t,), load("s", 3 - t)))
    (result,) = run(func([A], [C], kernel(body)), a)
    np.testing.assert_array_equal(result, a[::-1])


def test_a_tree_of_sums_over_the_threads():
    """Two blocks, each sums its four values; barriers stand in a loop, between private variables that must survive."""
    half = [2, 1]
    own = buffer("own", (1,), scope=Scope.REGISTER)
    steps = []
    for h in half:
        steps += [If(t < h, store("s", (t,), load("s", t) + load("s", t + h))), Barrier()]
    total = If(t < 1, store("C", (b,), load("s", 0) + load("own", 0)))
    body = Allocate(
        own, shared("s", 4, store("own", (0,), ONE), store("s", (t,), load("A", b * 4 + t)), Barrier(), *steps, total)
    )
    f = func([buffer("A", (8,))], [buffer("C", (2,))], kernel(body, blocks=2))
    (result,) = run(f, np.arange(8, dtype=F32))
    np.testing.assert_array_equal(result, [0 + 1 + 2 + 3 + 1, 4 + 5 + 6 + 7 + 1])


def test_private_variables_and_buffers_survive_barriers_in_loops():
    """acc[t] = sum over k of A[k] * t, through shared memory that is filled again in each iteration."""
    acc = buffer("acc", (1,), scope=Scope.LOCAL)
    fill = If(t < 1, store("s", (0,), load("A", k)))
    use = store("acc", (0,), load("s", 0) * cast(t, F32), reducer("add"))
    rounds = loop(k, 4, shared("s", 1, Barrier(), fill, Barrier(), use))
    f = func([A], [C], kernel(Allocate(acc, Seq((store("acc", (0,), ZERO), rounds, store("C", (t,), load("acc", 0)))))))
    (result,) = run(f, a)
    np.testing.assert_array_equal(result, a.sum() * np.arange(4))


def test_a_loop_that_ends_early_in_every_thread_alike_may_have_a_barrier():
    tail = loop(k, imin(2, 3 - b * 2), shared("s", 1, Barrier(), If(t < 1, store("s", (0,), ONE)), Barrier()), bound=2)
    run(func([], [C], kernel(tail, If(b < 1, store("C", (t,), ONE)), blocks=2)))


def test_several_kernels_see_what_the_earlier_ones_wrote():
    temporary = buffer("T", (4,), scope=Scope.GLOBAL)
    first = kernel(store("T", (t,), load("A", t)))
    second = kernel(store("C", (t,), load("T", 3 - t)), threads=4)
    (result,) = run(func([A], [C], Allocate(temporary, Seq((first, second)))), a)
    np.testing.assert_array_equal(result, a[::-1])


def test_names_may_come_again_in_another_kernel():
    i = Var("i", I64)
    one, two = (loop(i, 4, store("C", (i,), load("A", i)), kind=kind) for kind in (BX, TX))
    (result,) = run(func([A], [C], one, two), a)
    np.testing.assert_array_equal(result, a)


def test_tuples_go_through_shared_memory():
    """The greatest value and its place, over two threads."""
    out = [buffer("V", (1,)), buffer("N", (1,), I64)]
    own = Store(("s", "n"), (t,), (load("A", t), t))
    pair = Store(("s", "n"), (t,), (load("s", t + 2), load("n", t + 2, dtype=I64)), argmax())
    last = Store(("s", "n"), (t,), (load("s", t + 1), load("n", t + 1, dtype=I64)), argmax())
    result = Store(("V", "N"), (num(0),), (load("s", 0), load("n", 0, dtype=I64)))
    body = shared("s", 4, own, Barrier(), If(t < 2, pair), Barrier(), If(t < 1, Seq((last, result))))
    f = func([A], out, kernel(Allocate(buffer("n", (4,), I64, SHARED), body)))
    v, n = run(f, a)
    assert (v[0], n[0]) == (4, 2)


def test_stores_are_counted_over_all_threads():
    counts: dict[str, int] = {}
    f = func([A], [C], kernel(If(t < 3, Seq(())), store("C", (t,), load("A", t), stage="C")))
    interpret(f, {"A": a}, counts=counts)
    assert counts == {"C": 4}


def test_prefetches_do_nothing():
    run(func([A], [C], kernel(Prefetch("A", (t + 9,)), store("C", (t,), load("A", t)))), a)


def test_what_runs_in_blocks():
    assert runs_in_blocks(func([], [C], kernel(store("C", (t,), ZERO))))
    assert runs_in_blocks(func([], [C], Seq((loop(k, 4, store("C", (k,), ZERO)), Barrier()))))
    assert not runs_in_blocks(func([], [C], loop(k, 4, store("C", (k,), ZERO), kind=ForKind.PARALLEL)))


def test_one_thread_needs_no_bound_loop():
    body = shared("s", 1, Barrier(), store("s", (0,), ONE), Barrier(), loop(k, 4, store("C", (k,), load("s", 0))))
    (result,) = run(func([], [C], body))
    np.testing.assert_array_equal(result, 1)


# Nests with a fault


def test_an_index_outside_of_global_or_shared_memory():
    fails(func([A], [C], kernel(store("C", (t,), load("A", t + 1)))), r"\[4\] is outside A.* at b = 0, t = 3", a)
    fails(func([A], [C], kernel(store("C", (b * 4 + t,), ZERO), blocks=2)), r"\[\d\] is outside C.* at b = 1, t", a)
    body = shared("s", 3, store("s", (t,), ZERO), Barrier(), store("C", (t,), ZERO))
    fails(func([A], [C], kernel(body)), r"\[3\] is outside s, whose shape is \[3\]", a)


def test_what_was_not_written():
    body = shared("s", 4, If(t < 3, store("s", (t,), ZERO)), Barrier(), store("C", (t,), load("s", t)))
    fails(func([], [C], kernel(body)), r"s\[3\] is read before it is written")
    private = Allocate(buffer("r", (1,), scope=Scope.REGISTER), store("C", (t,), load("r", 0)))
    fails(func([], [C], kernel(private)), r"r\[0\] is read before it is written")
    fails(func([], [C], kernel(store("C", (t,), ZERO), threads=3)), r"C\[3\] is never written")
    fails(func([], [C], kernel(store("C", (t,), ONE, reducer("add")))), r"C\[\d\] is read before it is written")


def test_what_another_block_left_in_shared_memory():
    fill = If(b < 1, store("s", (t,), ZERO))
    body = shared("s", 4, fill, Barrier(), store("C", (b * 4 + t,), load("s", t)))
    f = func([], [buffer("C", (8,))], kernel(body, blocks=2))
    fails(f, r"s\[\d\] is read before it is written")


@pytest.mark.parametrize("use", [load("s", t), None])
def test_what_the_last_entry_left_in_shared_memory(use):
    """An allocation's contents are undefined at entry, for reads and for updates."""
    fill = If(k < 1, store("s", (t,), ONE))
    again = store("s", (t,), ONE, reducer("add")) if use is None else store("C", (t,), use)
    rounds = loop(k, 2, shared("s", 4, Barrier(), fill, Barrier(), again))
    f = func([], [C], kernel(rounds, store("C", (t,), ZERO)))
    fails(f, r"s\[\d\] is read before it is written.* k = 1")


def test_what_a_private_buffer_held_in_the_last_iteration():
    r = buffer("r", (1,), scope=Scope.LOCAL)
    body = Allocate(r, Seq((If(k < 1, store("r", (0,), ONE)), store("C", (t,), load("r", 0)))))
    fails(func([], [C], kernel(loop(k, 2, body))), r"r\[0\] is read before it is written.* k = 1")


RACES = {
    "two threads write": [store("s", (0,), ZERO)],
    "one writes, another reads": [store("s", (t,), ZERO), store("C", (t,), load("s", 3 - t))],
    "one reads, another writes": [
        store("s", (t,), ZERO), Barrier(), store("C", (t,), load("s", 3 - t)), store("s", (t,), ONE)
    ],
    "a neighbour is updated": [
        store("s", (t,), ZERO), Barrier(), If(t < 3, store("s", (t,), load("s", t + 1), reducer("add")))
    ],
    "all update": [If(t < 1, store("s", (0,), ZERO)), Barrier(), store("s", (0,), ONE, reducer("add"))],
}  # fmt: skip


@pytest.mark.parametrize("body", RACES.values(), ids=RACES)
def test_races_in_shared_memory(body):
    f = func([], [C], kernel(shared("s", 4, *body), store("C", (t,), ZERO)))
    race = r"race: a thread (reads|writes) s\[\d\], which another thread of the block uses with no barrier between"
    fails(f, f"{race}|is read before it is written")


def test_a_race_across_an_iteration_of_a_loop():
    """The last reads of one iteration meet the writes of the next."""
    rounds = loop(k, 2, store("s", (t,), ONE), Barrier(), store("C", (t,), load("s", 3 - t)))
    fails(func([], [C], kernel(shared("s", 4, rounds))), "race: .*no barrier between")
    closed = loop(k, 2, store("s", (t,), ONE), Barrier(), store("C", (t,), load("s", 3 - t)), Barrier())
    run(func([], [C], kernel(shared("s", 4, closed))))


def test_a_race_between_copies_of_a_nest_with_one_buffer():
    """The parts of a loop that was cut at its tail share their memory."""
    parts = [shared("s", 4, store("s", (t,), ONE), Barrier(), store("C", (t,), load("s", 3 - t))) for _ in range(2)]
    fails(func([], [C], kernel(*parts)), "race: .*no barrier between")
    run(func([], [C], kernel(parts[0], Barrier(), parts[1])))


def test_a_barrier_is_for_one_block_and_not_for_global_memory():
    temporary = buffer("T", (4,), scope=Scope.GLOBAL)
    exchange = [store("T", (t,), load("A", t)), Barrier(), store("C", (t,), load("T", 3 - t))]
    f = func([A], [C], Allocate(temporary, kernel(*exchange)))
    fails(f, r"race: a thread reads T\[\d\], which another thread of the kernel uses", a)


GLOBAL_RACES = {
    "threads write": kernel(store("C", (0,), ZERO)),
    "blocks write": kernel(store("C", (t,), ZERO), blocks=2),
    "blocks update": Seq((kernel(store("C", (t,), ZERO)), kernel(store("C", (t,), ONE, reducer("add")), blocks=2))),
    "one writes, another reads": Seq((kernel(store("C", (t,), ZERO)), kernel(store("C", (t,), load("C", 3 - t))))),
    "in two dimensions": loop(b, 2, loop(c, 2, loop(t, 2, store("C", (b * 2 + t,), ZERO), kind=TX), kind=BX), kind=BY),
}


@pytest.mark.parametrize("nest", GLOBAL_RACES.values(), ids=GLOBAL_RACES)
def test_races_in_global_memory(nest):
    f = func([], [C], kernel(store("C", (t,), ZERO)), nest)
    fails(f, r"race: a thread (reads|writes) C\[\d\], which another thread of the kernel uses")


def flags(*body):
    """A buffer of each thread whose value the verifier does not follow: 1 in thread 0, else 0."""
    set_flag = store("r", (0,), load("A", t))
    return func([A], [C], kernel(Allocate(buffer("r", (1,), scope=Scope.LOCAL), Seq((set_flag, *body)))))


first_only = np.array([1, 0, 0, 0], F32)
DIVERGENT = {
    "one waits, the others end": [If(load("r", 0) > 0.0, Barrier()), store("C", (t,), ZERO)],
    "different barriers": [If(load("r", 0) > 0.0, Barrier(), Barrier()), store("C", (t,), ZERO)],
    "different iterations": [
        loop(k, 2, If(cast(k, F32).equal(load("r", 0)), Barrier())), store("C", (t,), ZERO)
    ],
    "one comes by more often": [Barrier(), If(load("r", 0) > 0.0, loop(k, 2, Barrier())), store("C", (t,), ZERO)],
}  # fmt: skip


@pytest.mark.parametrize("body", DIVERGENT.values(), ids=DIVERGENT)
def test_divergence(body):
    fails(flags(*body), "barrier divergence: the thread b = 0, t = 0 .*, but the thread b = 0, t = 1", first_only)
    run(flags(*body), np.zeros(4, F32))  # all threads alike: no fault


def test_the_message_of_a_divergence():
    body = DIVERGENT["different iterations"]
    text = r"t = 0 waits at barrier 0 \(k = 1\), but the thread b = 0, t = 1 waits at barrier 0 \(k = 0\)$"
    fails(flags(*body), text, first_only)
    fails(flags(*DIVERGENT["one waits, the others end"]), "waits at barrier 0, but .* has ended$", first_only)


def test_a_loop_with_a_barrier_that_runs_longer_than_its_bound():
    rounds = loop(k, b + 1, Barrier(), bound=1)
    f = func([], [C], kernel(rounds, If(b < 1, store("C", (t,), ZERO)), blocks=2))
    fails(f, "the extent 2 exceeds the bound 1")


# The verifier


def rejected(text, *body, concrete=True):
    f = func([A], [C], loop(k, 4, store("C", (k,), ZERO)), *body)
    with pytest.raises(IRError, match=text):
        verify(f, concrete=concrete)


write = store("C", (t,), ZERO)


def test_bound_loops_are_outermost_and_directly_inside_one_another():
    text = "the loop of {} is not the whole body of a kernel or of a bound loop"
    rejected(text.format("threadIdx.x"), loop(b, 1, loop(k, 1, loop(t, 4, write, kind=TX)), kind=BX))
    rejected(text.format("threadIdx.x"), loop(b, 1, Seq((loop(t, 4, write, kind=TX), Barrier())), kind=BX))
    rejected(text.format("blockIdx.x"), loop(k, 1, kernel(write)))
    rejected(text.format("blockIdx.x"), If(const(True, "bool"), kernel(write)))
    rejected("a loop of blocks stands inside a loop of threads", loop(t, 4, loop(b, 1, write, kind=BX), kind=TX))


def test_each_index_is_bound_once_in_a_kernel():
    rejected("another loop around it is bound to threadIdx.x", loop(u, 1, loop(t, 4, write, kind=TX), kind=TX))
    verify(func([], [C], kernel(write), kernel(write)), concrete=True)


def test_as_many_blocks_and_threads_are_launched_as_the_loops_have():
    text = "4 are launched for threadIdx.x but its loop ends at"
    rejected(text, loop(t, imin(4, num(3)), write, kind=TX, bound=4))
    rejected(text, loop(b, 2, loop(t, 4 - b, write, kind=TX, bound=4), kind=BX))
    p = Param("p")
    rejected("is not a constant", For(t, p, p, TX, write))
    verify(func([], [C], For(t, p, p, TX, write)))


def test_shared_memory_belongs_to_a_block():
    s = buffer("s", (4,), scope=SHARED)
    rejected("shared memory is allocated outside of a bound loop", Allocate(s, kernel(write)))
    rejected("shared memory is allocated outside", loop(b, 1, Allocate(s, loop(t, 4, write, kind=TX)), kind=BX))
    rejected("in shared memory but allocated in a parallel loop", loop(k, 4, Allocate(s, write), kind=ForKind.PARALLEL))
    g = buffer("g", (4,), scope=Scope.GLOBAL)
    rejected("g is shared by all threads but allocated inside", kernel(Allocate(g, write)))
    outside = Allocate(buffer("r", (1,), scope=Scope.LOCAL), kernel(store("r", (0,), ZERO), write))
    rejected("r is private to the thread outside", outside)


def test_barriers_do_not_depend_on_the_thread():
    rejected(r"a barrier depends on the thread t by t < 2", kernel(If(t < 2, Barrier()), write))
    rejected(r"a barrier depends on the thread t by t < 2", kernel(If(t < 2, write, Barrier())))
    rejected(r"a barrier depends on the thread t by A\[t\] > 0", kernel(If(load("A", t) > 0.0, Barrier()), write))
    rejected(r"a barrier depends on the thread t by t", kernel(loop(k, t, Barrier(), bound=4), write))
    rejected("a barrier stands inside a parallel loop", loop(k, 4, Barrier(), kind=ForKind.PARALLEL))
    verify(func([], [C], kernel(If(b < 1, loop(k, 3 - b, Barrier(), bound=3)), write, blocks=2)), concrete=True)


def test_no_parallel_loop_inside():
    parallel = loop(k, 4, store("C", (k,), ZERO), kind=ForKind.PARALLEL)
    rejected("a loop is parallel inside loops of blocks", kernel(parallel))


def test_registers_may_be_indexed_by_any_loop_inside_threads():
    """Which indices are constant is for the C compiler to find out."""
    r = Allocate(buffer("r", (4,), scope=Scope.REGISTER), loop(k, 4, store("r", (k,), ZERO)))
    verify(func([], [C], kernel(r, write)), concrete=True)
    rejected("is in registers but indexed with k", r)
