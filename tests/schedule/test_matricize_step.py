"""The step Matricize: what it makes of sums over windows, and what it refuses."""

from __future__ import annotations

import pytest

from autosched import te
from autosched.errors import ScheduleError
from autosched.schedule import CacheRead, ComputeInline, Matricize, Split, State, initial_state, windows
from autosched.te import ComputeDAG
from autosched.te.operators.registry import build
from autosched.te.rewrites.collapse import collapse
from tests.helpers import exact

CASES: tuple[tuple[str, tuple[int, ...], dict[str, str | int]], ...] = (
    ("c1d", (2, 9, 3, 4, 3, 2, 1), {}),
    ("c2d", (2, 5, 4, 3, 4, 3, 1, 1), {}),
    ("c2d", (1, 7, 7, 4, 5, 1, 2, 0), {}),
    ("c3d", (1, 3, 4, 3, 2, 3, 3, 1, 1), {}),
    ("dil", (1, 7, 6, 3, 4, 3, 1, 2, 2), {}),
    ("grp", (1, 4, 5, 6, 4, 3, 1, 1, 1, 2), {}),
    ("t2d", (2, 3, 3, 4, 5, 4, 2, 1), {}),
    ("cap", (1, 3, 3, 2, 3, 3, 2, 1), {}),
    ("cbr", (1, 4, 5, 3, 4, 3, 1, 1), {}),
    ("conv2d", (2, 5, 4, 3, 4, 3, 1, 1), {"layout": "NCHW"}),
)


def halves(name: str, shape: tuple[int, ...], settings: dict[str, str | int] | None = None) -> ComputeDAG:
    return collapse(build(name, shape, settings, dtype="bfloat16")[0])


def in_matrices(dag: ComputeDAG) -> State:
    """Every sum over windows as a product of matrices, with the stage that reads it alone."""
    state = initial_state(dag)
    for stage in state.stages:
        if windows(stage.op) is not None:
            readers = state.consumers(stage)
            state = state.apply(Matricize(stage.name, readers[0].name if len(readers) == 1 else ""))
    return state


@pytest.mark.parametrize(("name", "shape", "settings"), CASES)
def test_values_stay(name: str, shape: tuple[int, ...], settings: dict[str, str | int]) -> None:
    dag = halves(name, shape, settings)
    state = in_matrices(dag)
    (product,) = [s for s in state.stages if s.op.reducer is not None]
    assert len(product.op.reduce_axes) == 1
    exact(dag, state)
    exact(dag, state.apply(ComputeInline(f"{product.name}.left"), ComputeInline(f"{product.name}.right")))


def test_the_axes_of_a_convolution() -> None:
    state = in_matrices(halves("c2d", (2, 5, 4, 3, 4, 3, 1, 1)))
    product, left, right = (state.stage(n).op for n in ("conv", "conv.left", "conv.right"))
    assert [a.name for a in product.all_axes] == ["n_oh_ow", "co", "kh_kw_ci"]
    assert [a.name for a in left.axes] == ["n_oh_ow", "kh_kw_ci"]
    assert [a.name for a in right.axes] == ["kh_kw_ci", "co"]
    reader = state.stage("conv_bfloat16").op
    assert [load.indices for load in reader.loads] == [tuple(a.var for a in reader.axes)]


def test_k_ends_with_what_an_operand_is_contiguous_along() -> None:
    X, W = te.placeholder((8, 9, 4), "float16", "X"), te.placeholder((4, 3, 5), "float16", "W")
    c, r = te.reduce_axis(4, "c"), te.reduce_axis(3, "r")

    def at(n: te.Expr, i: te.Expr, o: te.Expr) -> te.Expr:
        return te.sum(te.cast(X[n, i + r, c], "float32") * te.cast(W[c, r, o], "float32"), axis=[c, r])

    dag = ComputeDAG(te.compute((8, 7, 5), at, "C"))
    state = initial_state(dag).apply(Matricize("C"))
    assert state.stage("C").op.reduce_axes[0].name == "r_c"
    exact(dag, state)


def test_readers_find_the_elements() -> None:
    """Two readers, one of them at other places: neither has its axes changed."""
    X, W = te.placeholder((6, 3), "float16", "X"), te.placeholder((2, 3, 4), "float16", "W")
    r, c = te.reduce_axis(2, "r"), te.reduce_axis(3, "c")
    C = te.compute(
        (2, 2, 4),
        lambda i, j, o: te.sum(te.cast(X[2 * i + j + r, c], "float32") * te.cast(W[r, c, o], "float32"), axis=[r, c]),
        "C",
    )
    plain = te.compute((2, 2, 4), lambda i, j, o: C[i, j, o] + 1.0, "P")
    turned = te.compute((4, 2, 2), lambda o, j, i: C[i, 1 - j, o], "T")
    dag = ComputeDAG([plain, turned])
    exact(dag, initial_state(dag).apply(Matricize("C")))
    with pytest.raises(ScheduleError, match="T is not elementwise over the same axes"):
        initial_state(dag).apply(Matricize("C", "T"))


@pytest.mark.parametrize(
    ("name", "shape"),
    [("dep", (1, 5, 5, 4, 3, 1, 1)), ("gmm", (2, 4, 5, 6)), ("sfm", (4, 8)), ("max_pool2d", (1, 4, 4, 3, 2, 2, 0))],
)
def test_what_has_no_windows(name: str, shape: tuple[int, ...]) -> None:
    dag = collapse(build(name, shape)[0])
    assert all(windows(s.op) is None for s in initial_state(dag).stages)


def test_refusals() -> None:
    dag = halves("c2d", (1, 4, 4, 3, 4, 3, 1, 1))
    state = initial_state(dag)
    with pytest.raises(ScheduleError, match="no sum of products over several axes"):
        state.apply(Matricize("pad"))
    with pytest.raises(ScheduleError, match="before any other change of its loops"):
        state.apply(Split("conv", "co", (2,)), Matricize("conv"))
    with pytest.raises(ScheduleError, match="pad is not elementwise over the same axes"):
        state.apply(Matricize("conv", "pad"))


def test_a_copy_with_its_dimensions_in_another_order() -> None:
    A = te.placeholder((3, 4, 5), name="A")
    k = te.reduce_axis(4, name="k")
    dag = ComputeDAG(te.compute((5, 3), lambda i, j: te.sum(A[j, k, i], axis=k), name="C"))
    state = initial_state(dag).apply(CacheRead("A", "C", "turned", (2, 0, 1)))
    assert [str(a.extent) for a in state.stage("A.turned").op.axes] == ["5", "3", "4"]
    exact(dag, state)
    with pytest.raises(ScheduleError, match=r"\(0, 0, 1\) is not an order of 3 dimensions"):
        initial_state(dag).apply(CacheRead("A", "C", "turned", (0, 0, 1)))
