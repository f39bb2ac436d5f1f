"""Convolutions on tensor cores: where they are offered, and that what is drawn is right in the simulator."""

from __future__ import annotations

import pytest

from autosched import te
from autosched.schedule import Matricize, replay, steps_to_json
from autosched.target import parse_target
from autosched.te.dag import ComputeDAG
from autosched.te.rewrites.collapse import collapse
from search_spaces.gpu import sketches
from tests.codegen.gpu import TARGETS
from tests.search_spaces.gpu_candidates import best_with_and_without, conv
from tests.search_spaces.test_gpu_matrices import MARK, by_warps, check

SM_80 = TARGETS["cuda"]


@pytest.mark.parametrize(
    "dag",
    [
        conv("c1d", (1, 37, 16, 24, 3, 2, 1), "float16"),
        conv("c2d", (2, 7, 5, 16, 16, 3, 1, 1)),
        conv("c2d", (1, 13, 11, 24, 17, 3, 2, 1)),
        conv("c2d", (1, 9, 9, 3, 16, 7, 2, 3)),
        conv("c2d", (1, 9, 9, 16, 24, 1, 2, 0)),
        conv("c3d", (1, 3, 4, 5, 8, 8, 3, 1, 1)),
        conv("dil", (1, 9, 8, 16, 8, 3, 1, 2, 2), "float16"),
        conv("grp", (1, 6, 6, 32, 32, 3, 1, 1, 1, 2)),
        conv("t2d", (4, 4, 4, 16, 16, 4, 2, 1)),
        conv("cap", (1, 4, 4, 8, 8, 3, 1, 1)),
        conv("cbr", (1, 7, 6, 16, 16, 3, 1, 1)),
        conv("conv2d", (2, 6, 5, 16, 16, 3, 1, 1), layout="NCHW"),
        conv("conv2d", (1, 7, 5, 16, 32, 3, 2, 1, 1, 2), layout="NCHW"),
        conv("c2d", (1, 7, 6, 16, 16, 3, 1, 1), "int8"),
    ],
    ids=lambda dag: "-".join(map(str, (dag.outputs[0].name, *dag.outputs[0].public_shape))),
)
def test_kinds(dag: ComputeDAG) -> None:
    check(dag, 1)


def residual(h: int, w: int, c: int) -> ComputeDAG:
    """bf16(relu(conv(relu(X)) + bias + R)): a prologue in the border's place, an epilogue with an image."""
    X, W = te.placeholder((2, h, w, c), "bfloat16", "X"), te.placeholder((3, 3, c, c), "bfloat16", "W")
    R, bias = te.placeholder((2, h, w, c), "bfloat16", "R"), te.placeholder((c,), "float32", "bias")

    def inside(n: te.Expr, i: te.Expr, j: te.Expr, k: te.Expr) -> te.Expr:
        is_in = te.all(i >= 1, i < h + 1, j >= 1, j < w + 1)
        return te.select(is_in, te.cast(te.max(X[n, i - 1, j - 1, k], 0.0), "bfloat16"), te.const(0, "bfloat16"))

    P = te.compute((2, h + 2, w + 2, c), inside, "P")
    r, q, k = te.reduce_axis(3, "r"), te.reduce_axis(3, "q"), te.reduce_axis(c, "k")

    def at(n: te.Expr, i: te.Expr, j: te.Expr, o: te.Expr) -> te.Expr:
        return te.sum(te.cast(P[n, i + r, j + q, k], "float32") * te.cast(W[r, q, k, o], "float32"), axis=[r, q, k])

    C = te.compute((2, h, w, c), at, "C")

    def finish(n: te.Expr, i: te.Expr, j: te.Expr, o: te.Expr) -> te.Expr:
        return te.cast(te.max(C[n, i, j, o] + bias[o] + te.cast(R[n, i, j, o], "float32"), 0.0), "bfloat16")

    return ComputeDAG(te.compute((2, h, w, c), finish, "D"))


def test_prologue_and_epilogue() -> None:
    check(residual(5, 4, 16), 1)


def test_parts_of_the_reduction() -> None:
    dag = conv("c2d", (1, 3, 3, 64, 16, 3, 1, 1))
    assert any("split-k" in name for name in by_warps(dag))
    check(dag, 1)


def test_channels_become_the_last_dimension() -> None:
    """By kernels of their own, of images and weights; then vectors of them are copied. With channels last nothing is."""
    found = by_warps(conv("conv2d", (1, 8, 8, 16, 16, 3, 1, 1), layout="NCHW"))
    assert any("pad.turned" in name and "W.turned" in name for name in found)
    assert not any("turned" in name for name in by_warps(conv("c2d", (1, 8, 8, 16, 16, 3, 1, 1))))
    found = by_warps(conv("c2d", (1, 8, 8, 16, 16, 3, 1, 1), "int8"))
    assert any("W.turned" in name and "pad.turned" not in name for name in found)


def test_channels_go_on_to_whole_pieces() -> None:
    found = by_warps(conv("c2d", (1, 9, 9, 3, 16, 7, 2, 3)))
    assert any("pad.long" in name and "W.long" not in name for name in found)  # weights are made where they are copied
    assert not any("long" in name for name in by_warps(conv("c2d", (1, 9, 9, 4, 16, 7, 2, 3))))
    found = by_warps(conv("conv2d", (1, 8, 8, 3, 16, 3, 1, 1), layout="NCHW"))
    assert any("pad.turned.long" in name and "W.turned.long" in name for name in found)


def test_where_they_are_offered() -> None:
    """Whatever has the form; depthwise convolutions have no outputs that share an element of the weights."""
    assert by_warps(conv("c2d", (1, 8, 8, 16, 16, 3, 1, 1)))
    assert not by_warps(conv("dep", (1, 8, 8, 16, 3, 1, 1)))
    assert not by_warps(conv("c2d", (1, 8, 8, 16, 16, 3, 1, 1), "float32"))
    assert not by_warps(conv("c2d", (1, 8, 8, 16, 16, 3, 1, 1)), "cuda -arch=sm_75")


def test_steps_are_data() -> None:
    dag = collapse(conv("c2d", (1, 8, 8, 16, 16, 3, 1, 1)))
    found = [s for s in sketches(dag, parse_target("cuda -arch=sm_80")) if MARK in s.name]
    for sketch in found:
        assert any(isinstance(step, Matricize) for step in sketch.state.steps)
        text = steps_to_json(sketch.state, None)
        assert replay(dag, text, [p.name for p in sketch.params]).stages == sketch.state.stages


def test_the_draft_prefers_them_where_there_is_much_to_do() -> None:
    by_warps_s, others_s = best_with_and_without(conv("c2d", (16, 28, 28, 128, 128, 3, 1, 1)), SM_80, MARK)
    assert by_warps_s < others_s / 2
