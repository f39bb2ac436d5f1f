"""Every failure that the fuzzer has found, in its smallest form.

Sketch names and parameters change with the search space, so a case that no longer has its sketch, or not all values,
is tried with the nearest there is, and with rows of the other sketches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autosched import te
from autosched.ir.expr import Expr
from tests.fuzz.candidate import Candidate
from tests.fuzz.runner import Failure, failures_of

ROWS = 6


@dataclass(frozen=True)
class Case:
    dag: te.ComputeDAG
    target: str = "cpu"
    threads: int = 1
    sketch: str = ""
    values: tuple[tuple[str, int], ...] = ()


def scalar_input() -> Case:
    """The reference read an input of rank 0 as one of rank 1."""
    A = te.placeholder((), "int8", "A")
    return Case(te.ComputeDAG([te.compute((), lambda: A[()], "T")]))


def two_reads_of_one_operand() -> Case:
    """A packed copy was made for the first read of a tensor, which may not be the one that moves with the lanes."""
    A = te.placeholder((2, 2), "int64", "A")
    k = te.reduce_axis(2, "k")
    T = te.compute((2, 2), lambda i, j: te.sum(te.minimum(A[k, i], (A[k, j] & 6)), axis=k), "T")
    return Case(te.ComputeDAG([T]))


def two_packed_copies() -> Case:
    """Two reductions packed the same tensor, under one name."""
    A = te.placeholder((1, 2, 2), "int32", "A")
    B = te.placeholder((2, 2), "int32", "B")
    C = te.placeholder((2, 2), "int32", "C")
    k = te.reduce_axis(2, "k")
    T = te.compute((1, 2, 2), lambda a, i, j: te.sum(A[a, i, k] * B[k, j], axis=k), "T")
    U = te.compute((1, 2, 2), lambda a, i, j: te.sum(A[a, i, k] * C[j, k], axis=k), "U")
    return Case(te.ComputeDAG([T, U]), "llvm -mcpu=haswell")


def gathers_of_two_vectors() -> Case:
    """The second vector of a loop reused what the first had gathered, when the index was not linear in the lane."""
    A = te.placeholder((1, 33), "int8", "A")
    T = te.compute((1, 34), lambda i, j: A[i, j % 33], "T")
    return Case(te.ComputeDAG([T]), "llvm -mcpu=nehalem", 1, "default", (("T.j.r", 32),))


def vectors_of_two_lengths() -> Case:
    """The same for a shorter last vector: its code did not even have the right types."""
    A = te.placeholder((5,), "float32", "A")
    T = te.compute((6,), lambda i: A[i % 5], "T")
    return Case(te.ComputeDAG([T]), "llvm -mcpu=nehalem", 1, "default", (("T.i.r", 8),))


def integer_data_without_loads() -> Case:
    """int64 operations on constants and axes went the way of indices, which knows no bits and no selects."""
    A = te.placeholder((2,), "int64", "A")

    def body(i: Expr) -> Expr:
        guarded = te.select(te.all(i - 2 >= 0, i - 2 < 2), A[i - 2], 1)
        return ((guarded // 2) * (A[i] - te.maximum(te.const(3), i))) ^ (te.select(i < 1, i, 7) ^ 5)

    return Case(te.ComputeDAG([te.compute((2,), body, "T")]), "llvm -mcpu=haswell")


def comparison_of_unsure_bools() -> Case:
    """The reference subtracted bools, which come from a comparison of inexact numbers, to see how near they are."""
    A = te.placeholder((5,), "float32", "A")
    B = te.placeholder((5,), "bool", "B")
    T = te.compute((5,), lambda i: te.equal(te.exp(A[i]) > te.const(1.0, "float32"), B[i]), "T")
    return Case(te.ComputeDAG([T]))


def panels_of_one_dimension() -> Case:
    """A packed operand of rank 1 has no dimension beside that of its panels."""
    A = te.placeholder((2,), "int8", "A")
    k = te.reduce_axis(2, "k")

    def combine(x: Expr, y: Expr) -> Expr:
        return x ^ y

    xor = te.reducer(combine, te.const(0, "int32"), "xor")
    return Case(te.ComputeDAG([te.compute((2, 2), lambda i, j: xor(te.cast(A[j], "int32"), axis=k), "T")]))


def a_branch_under_a_mask() -> Case:
    """What stands still is gathered under a condition; the branch without a load stayed one number."""
    A = te.placeholder((2, 7), "float32", "A")

    def body(i: Expr, j: Expr) -> Expr:
        first = te.select(i < 1, A[i, 0] * A[i + 1, 2], te.const(0.0, "float32"))
        return te.select((j >= 2) & (j < 7), first + A[i, j - 2], te.const(0.0, "float32"))

    T = te.compute((2, 3), body, "T")
    return Case(te.ComputeDAG([T]), "llvm -mcpu=nehalem", 1, "default", (("T.j.r", 4),))


def a_window_of_which_nothing_is_left() -> Case:
    """Each point of a written out window was left out by one of two conditions."""
    A, B = te.placeholder((7, 20), "float32", "A"), te.placeholder((7, 20), "float32", "B")
    u, v = te.reduce_axis(3, "u"), te.reduce_axis(3, "v")

    def product(i: Expr, j: Expr) -> Expr:
        return te.select(u >= 1, A[i + u, j + v], 0.0) * te.select(u < 1, B[i + u, j + v], 0.0)

    T = te.compute((5, 18), lambda i, j: te.sum(product(i, j), axis=(u, v)), "T")
    values = {"T.i.m": 1, "T.i.r": 5, "T.j.m": 1, "T.j.r": 16, "T.acc.u.u": 2, "T.acc.v.u": 3}
    return Case(te.ComputeDAG([T]), "llvm -mcpu=haswell", 1, "T:v1-rows", tuple(values.items()))


def a_border_around_a_gather() -> Case:
    """Lanes inside of a border were loaded at an index that is data without the variable for it."""
    A = te.placeholder((3, 2), "float32", "A")
    one = te.cast(te.minimum(te.const(1, "int8"), te.const(2, "int8")), "int64")
    T = te.compute((3, 3), lambda i, j: te.select(j - 2 >= 0, A[i, one], te.const(0.0, "float32")), "T")
    return Case(te.ComputeDAG([T]), "cpu", 1, "default", (("T.j.r", 16), ("T.i.m", 2)))


CASES: tuple[Callable[[], Case], ...] = (
    scalar_input,
    two_reads_of_one_operand,
    two_packed_copies,
    gathers_of_two_vectors,
    vectors_of_two_lengths,
    integer_data_without_loads,
    comparison_of_unsure_bools,
    panels_of_one_dimension,
    a_branch_under_a_mask,
    a_window_of_which_nothing_is_left,
    a_border_around_a_gather,
)


# For GPUs


def bools_of_vectors() -> Case:
    """A loop over vectors of numbers stored bools, for which there is no vector type."""
    A = te.placeholder((4,), "int32", "A")
    T = te.compute((4,), lambda i: A[i] > te.const(1, "int32"), "T")
    return Case(te.ComputeDAG([T]), "opencl", 1, "default", (("T.i.t", 1), ("T.i.w", 4)))


def parts_that_end_beyond_the_reduction() -> Case:
    """Eight parts of 33 elements for 257: only the first part of a thread's tile ended where the reduction does."""
    A = te.placeholder((257, 3), "float32", "A")
    k = te.reduce_axis(257, "k")
    T = te.compute((3,), lambda i: te.max(A[k, i] * -1.0 - 40.0, axis=k), "T")
    return Case(te.ComputeDAG([T]), "opencl", 1, "T:split-point", (("T.rf.k.o.s", 8), ("T.rf.i.t", 4)))


GPU_CASES: tuple[Callable[[], Case], ...] = (bools_of_vectors, parts_that_end_beyond_the_reduction)


def failures(case: Case) -> list[Failure]:
    candidate = Candidate(case.target, case.threads, case.sketch, case.values)
    return list(failures_of(case.dag, candidate, ROWS))
