"""argmax and argmin: places of 32 bits, in order; every candidate finds the first of the best."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autosched import te
from autosched.errors import ScheduleError
from autosched.ir.interpreter.interpret import interpret
from autosched.lower import concretise, lower
from autosched.lower.symbolic.ordered import in_order
from autosched.schedule import NarrowPlaces, Reorder, Split, Step, Vectorize, initial_state, replay, steps_to_json
from autosched.te import ComputeDAG
from autosched.te.reference.evaluate import evaluate
from autosched.te.rewrites.collapse import collapse
from autosched.te.rewrites.first_best import first_best
from search_spaces.cpu import sketches
from search_spaces.space import sample
from tests.codegen.running import build as kernel_of
from tests.codegen.running import run, targets
from tests.schedule.graphs import argmax as own_argmax
from tests.schedule.graphs import matmul

TYPES = ("float32", "float64", "float16", "int8", "uint8", "int32", "int64")


def places(shape: tuple[int, ...], axis: int, dtype: str = "float32", least: bool = False, both: bool = True) -> Any:
    x, k = te.placeholder(shape, dtype, name="X"), te.reduce_axis(shape[axis], "k")
    find = te.argmin if least else te.argmax

    def at(*i: Any) -> Any:
        return find(x[(*i[:axis], k, *i[axis:])], axis=k)

    place, value = te.compute(shape[:axis] + shape[axis + 1 :], at, name="Y")
    return collapse(ComputeDAG((place, value) if both else place))


def data(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Few different values, so that most rows have ties; some rows of the least and of the greatest value alone."""
    x = rng.integers(0, 3, shape).astype(dtype)
    info: Any = np.finfo(dtype) if x.dtype.kind == "f" else np.iinfo(dtype)
    ends = (-np.inf, np.inf) if x.dtype.kind == "f" else (info.min, info.max)
    for end in ends:
        x[rng.integers(0, 4, shape[:1]) == 0] = end
    return x


def check(dag: ComputeDAG, shape: tuple[int, ...], axis: int, dtype: str, least: bool, threads: int, rows: int) -> None:
    x = data(shape, dtype, np.random.default_rng(len(shape) + axis))
    best = x.argmin(axis) if least else x.argmax(axis)
    for target in targets():
        for sketch in sketches(dag, target, threads):
            for values in sample(sketch, rows, np.random.default_rng(1)):
                row = {p.name: int(v) for p, v in zip(sketch.params, values, strict=True)}
                got = run(
                    kernel_of(sketch.state, target, threads, row), dag, {"X": x.reshape(dag.inputs[0].shape)}, target
                )
                assert np.array_equal(got[0].reshape(best.shape), best), (sketch.name, row)
                for value in got[1:]:
                    expected = np.take_along_axis(x, np.expand_dims(best, axis), axis).squeeze(axis)
                    assert np.array_equal(value.reshape(best.shape).astype(dtype), expected), (sketch.name, row)


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_along_every_axis(dtype: str) -> None:
    for axis in range(3):  # the least and the greatest in turn: each type has both, and so has each axis
        least = (axis + TYPES.index(dtype)) % 2 == 0
        check(places((5, 37, 19), axis, dtype, least), (5, 37, 19), axis, dtype, least, 1, 2)


@pytest.mark.parametrize("n", [2, 3, 7, 15, 16, 17, 31, 33, 63, 65, 129, 1031])
def test_rows_of_every_length(n: int) -> None:
    for m, threads in ((1, 1 + n % 2), (13, 1), (33, 2)):
        check(places((m, n), 1, both=n % 2 == 0), (m, n), 1, "float32", False, threads, 2)
    check(places((n, 21), 0, least=True), (n, 21), 0, "float32", True, 1, 2)


def test_places_are_of_32_bits_where_they_fit_and_read_in_order() -> None:
    state = initial_state(places((4, 100), 1)).apply(NarrowPlaces("Y"))
    inner = state.stage("Y.acc")
    assert inner.op.dtypes == ("int32", "float32")
    assert in_order(inner) is not None
    backwards = (Split("Y.acc", "k", (4,)), Reorder("Y.acc", ("i0", "k.1", "k.0")))
    assert in_order(state.apply(*backwards).stage("Y.acc")) is None
    assert in_order(state.apply(Vectorize("Y.acc", "k")).stage("Y.acc")) is None
    assert steps_to_json(replay(places((4, 100), 1), steps_to_json(state, {})), {}) == steps_to_json(state, {})


@pytest.mark.parametrize(
    "steps",
    [(), (NarrowPlaces("R"),), (NarrowPlaces("R"), Split("R.acc", "k", (3,)), Reorder("R.acc", ("i", "k.1", "k.0")))],
)
def test_a_users_own_reducer_with_the_value_first(steps: tuple[Step, ...]) -> None:
    dag = own_argmax(5, 14)
    x = data((5, 14), "float32", np.random.default_rng(0))
    x[np.isinf(x)] = 7.0
    func, _ = concretise(lower(initial_state(dag).apply(*steps)), {})
    value, place = interpret(func, {"X": x})
    assert np.array_equal(place, x.argmax(1))
    assert np.array_equal(value, x.max(1))


def test_places_that_are_data_or_too_large_stay_as_they_are() -> None:
    x, p = te.placeholder((4, 6), name="X"), te.placeholder((6,), "int64", name="P")
    k = te.reduce_axis(6, "k")

    def dag(place: Any) -> ComputeDAG:
        return ComputeDAG(te.compute((4,), lambda i: te.argmax((place, x[i, k]), axis=k), name="Y"))

    for place in (p[k], k * (1 << 30), k - (1 << 31)):
        with pytest.raises(ScheduleError, match="no reduction to the first of the best"):
            initial_state(dag(place)).apply(NarrowPlaces("Y"))
    for place in (k * 1000 + 7, k * k):
        initial_state(dag(place)).apply(NarrowPlaces("Y"))
    with pytest.raises(ScheduleError, match="no reduction to the first of the best"):
        initial_state(matmul(3, 4, 5)).apply(NarrowPlaces("C"))


def special(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """NaN in some rows, once or often, among infinities and zeros of both signs."""
    x = rng.choice([np.inf, -np.inf, 0.0, -0.0, 1.0, -2.0], shape).astype(dtype)
    x[rng.random(shape) < rng.choice([0.0, 0.02, 0.3], (*shape[:-1], 1))] = np.nan
    x[-1] = np.nan
    x[-2] = rng.choice([0.0, -0.0], x[-2].shape)
    return x


@pytest.mark.parametrize(("shape", "axis"), [((40, 77), 1), ((77, 21), 0), ((9, 8), 1), ((6, 300), 1)])
@pytest.mark.parametrize("least", [False, True])
def test_the_first_nan_is_the_best_and_the_value_is_that_of_the_place(
    shape: tuple[int, int], axis: int, least: bool
) -> None:
    for dtype, threads in (("float32", 1), ("float64", 1), ("float16", 1), ("float32", 2)):
        dag, x = places(shape, axis, dtype, least), special(shape, dtype, np.random.default_rng(0))
        place = x.argmin(axis) if least else x.argmax(axis)
        value = np.take_along_axis(x, np.expand_dims(place, axis), axis).squeeze(axis)
        for target in targets():
            for sketch in sketches(dag, target, threads):
                for values in sample(sketch, 2, np.random.default_rng(1)):
                    row = {p.name: int(v) for p, v in zip(sketch.params, values, strict=True)}
                    got = run(kernel_of(sketch.state, target, threads, row), dag, {"X": x}, target)
                    assert np.array_equal(got[0].reshape(place.shape), place), (sketch.name, row)
                    found = got[1].reshape(place.shape).astype(dtype)
                    assert np.array_equal(found, value, equal_nan=True), (sketch.name, row)
                    number = ~np.isnan(value)
                    assert np.array_equal(np.signbit(found[number]), np.signbit(value[number])), (sketch.name, row)


def test_the_interpreter_and_the_reference_find_the_first_nan() -> None:
    x = special((30, 13), "float32", np.random.default_rng(0))
    for least in (False, True):
        dag, place = places((30, 13), 1, "float32", least), x.argmin(1) if least else x.argmax(1)
        found = interpret(concretise(lower(initial_state(dag)), {})[0], {"X": x})
        expected = evaluate(dag, {"X": x})
        assert np.array_equal(found[0], place)
        assert np.array_equal(expected[0].value, place)
        assert not expected[0].bound.any()
        for value in (found[1], expected[1].value):
            assert np.array_equal(value, x[np.arange(30), place], equal_nan=True)


def test_only_the_first_of_the_best_is_known_as_such() -> None:
    def last(a: Any, b: Any) -> Any:
        first = (a[1] > b[1]) | (a[1].equal(b[1]) & (a[0] > b[0]))
        return te.select(first, a[0], b[0]), te.select(first, a[1], b[1])

    x, k = te.placeholder((4, 6), name="X"), te.reduce_axis(6, "k")
    find = te.reducer(last, lambda i, v: (te.const(-1, i), te.const(-1e30, v)), name="last")
    dag = ComputeDAG(te.compute((4,), lambda i: find((k, x[i, k]), axis=k), name="Y"))
    (stage,) = initial_state(dag).stages
    assert stage.op.reducer is not None
    assert first_best(stage.op.reducer) is None
    assert in_order(stage) is None
