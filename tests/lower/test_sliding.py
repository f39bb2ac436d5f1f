"""Sliding stages: along a loop they compute only what no earlier iteration computed."""

from __future__ import annotations

import pytest

from autosched import te
from autosched.errors import ScheduleError
from autosched.ir.verify import verify
from autosched.lower import lower
from autosched.lower.pipeline import concretise
from autosched.schedule import ComputeAt, Parallel, Reorder, Slide, Split, Unroll, Vectorize, initial_state
from autosched.te import ComputeDAG
from tests.codegen.running import check_kernel, check_nest


def clamped(i, n):
    return te.min(te.max(i, 0), n - 1)


def chain(h, w, border, depth=3, dtype="float32"):
    """Sums of rows i - 1, i and i + 2, `depth` times in a row."""
    image = te.placeholder((h, w), dtype, name="A")
    for n in range(depth):
        image = te.compute((h, w), lambda i, j, image=image: taps(image, i, j, border), name=f"s{n}")
    return ComputeDAG(image)


def taps(image, i, j, border):
    h, w = image.shape
    if border == "zero":
        return sum(
            te.select(te.all(i + p >= 0, i + p < h), image[i + p, j], te.const(0, image.dtype)) * (p + 3)
            for p in (-1, 0, 2)
        )
    return sum(image[clamped(i + p, h), clamped(j + p, w)] * (p + 3) for p in (-1, 0, 2))


def two_readers(h, w):
    """Two stages that read a third one, which the last stage reads as well, further ahead than they do."""
    a = te.placeholder((h + 4, w), name="A")
    b = te.compute((h + 4, w), lambda i, j: a[i, j] * 2 + 1, name="b")
    c = te.compute((h + 2, w), lambda i, j: b[i, j] + b[i + 2, j], name="c")
    d = te.compute((h + 1, w), lambda i, j: b[i + 1, j] * b[i + 3, j], name="d")
    return ComputeDAG(te.compute((h, w), lambda i, j: c[i + 1, j] - d[i, j] + b[i + 4, j], name="out"))


def halved(h, w):
    """An image of half the rows."""
    a = te.placeholder((2 * h + 3, w), name="A")
    b = te.compute((2 * h + 2, w), lambda i, j: a[i, j] + a[i + 1, j] * 3, name="b")
    return ComputeDAG(te.compute((h, w), lambda i, j: b[2 * i, j] + b[2 * i + 2, j], name="out"))


def strips(dag, steps, rows, lanes=4):
    """The last stage in strips of `steps` times `rows` rows, with all others sliding along them."""
    state = initial_state(dag)
    *producers, last = [s.name for s in state.stages]
    state = state.apply(
        Split(last, "i", (steps, rows)), Split(last, "j", (2, lanes)),
        Reorder(last, ("i.0", "j.0", "i.1", "j.1", "i.2", "j.2")), Parallel(last, ("i.0", "j.0")),
        Unroll(last, "i.2"), Vectorize(last, "j.2"),
    )  # fmt: skip
    for name in reversed(producers):
        state = state.apply(ComputeAt(name, last, "i.1"), Slide(name), Split(name, "j", (lanes,)))
        state = state.apply(Reorder(name, ("j.0", "i", "j.1")), Unroll(name, "i"), Vectorize(name, "j.1"))
    return state


SIZES = [(1, 1), (5, 7), (23, 16)]


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
@pytest.mark.parametrize("make", [
    lambda h, w: chain(h, w, "clamped"), lambda h, w: chain(h, w, "zero"), two_readers, halved,
], ids=["clamped", "zero", "two readers", "halved"])  # fmt: skip
def test_rows_are_right_whatever_the_strip(make, rows):
    for h, w in SIZES:
        dag = make(h, w)
        for steps in (1, 3):
            func = lower(strips(dag, steps, rows))
            verify(func)
            check_nest(concretise(func, {})[0], dag)


def test_a_stage_around_the_strip_has_the_rows_of_the_iterations_before_the_first():
    for border in ("clamped", "zero"):
        dag = chain(23, 16, border)
        state = strips(dag, 4, 2)
        outside = state.apply(ComputeAt("s0", "s2", "j.0"))
        inside = state.apply(ComputeAt("s0", "s2", "i.1"))
        for each in (outside, inside):
            assert not each.stage("s0").slides
            check_nest(concretise(lower(each), {})[0], dag)


@pytest.mark.parametrize("border", ["clamped", "zero"])
def test_compiled_strips_are_right(border):
    dag = chain(37, 41, border, depth=5, dtype="int32")
    check_kernel(dag, strips(dag, 4, 4, 8))


def test_a_stage_computes_each_row_of_a_strip_once_and_keeps_as_many_as_are_read():
    state = strips(chain(64, 32, "clamped", depth=2), 16, 1)
    text = str(lower(state).body)
    assert "alloc s0: float32[4, " in text, "rows i - 1 to i + 2"
    assert "in 0..(min(16, 64 - s1.i.0*16) + 3)" in text, "three iterations before the first compute what that reads"


@pytest.mark.parametrize(("value", "why"), [
    (lambda b, i, j: b[i // 2, j], "row by row"),
    (lambda b, i, j: b[i, j] + b[2 * i, j], "different steps"),
    (lambda b, i, j: b[7 - i, j], "forward"),
    (lambda b, i, j: b[i, j] + b[0, j], "does not move"),
    (lambda b, i, j: b[te.max(i - 3, 0), j], "before it is computed"),
], ids=["doubled", "two steps", "backwards", "one row", "far above"])  # fmt: skip
def test_what_cannot_slide_is_refused_with_a_reason(value, why):
    a = te.placeholder((16, 16), name="A")
    b = te.compute((16, 16), lambda i, j: a[i, j] * 2, name="b")
    dag = ComputeDAG(te.compute((8, 8), lambda i, j: value(b, i, j), name="out"))
    state = initial_state(dag).apply(ComputeAt("b", "out", "i"), Slide("b"))
    with pytest.raises(ScheduleError, match=why):
        lower(state)


def test_a_loop_that_is_not_serial_is_refused():
    dag = chain(16, 16, "zero", depth=2)
    state = initial_state(dag).apply(ComputeAt("s0", "s1", "i"))
    with pytest.raises(ScheduleError, match="serial"):
        state.apply(Parallel("s1", ("i",)), Slide("s0"))
    with pytest.raises(ScheduleError, match="serial"):
        lower(state.apply(Slide("s0"), Parallel("s1", ("i",))))
    with pytest.raises(ScheduleError, match="root"):
        initial_state(dag).apply(Slide("s0"))
