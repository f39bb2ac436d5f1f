"""Sketches with Winograd's stages: which there are, how the transforms are computed, and that all are right."""

from __future__ import annotations

import numpy as np
import pytest

from autosched import te
from autosched.ir.interpreter.interpret import interpret
from autosched.lower import concretise, lower
from autosched.schedule import largest_tile
from autosched.target import parse_target
from autosched.te import ComputeDAG
from autosched.te.operators.registry import build
from autosched.te.reference.evaluate import evaluate, within
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from search_spaces import cpu, space
from search_spaces.space import Sketch

TARGET = parse_target("llvm -mcpu=haswell")


def conv(name: str = "c2d", *shape: int) -> ComputeDAG:
    return collapse(build(name, shape or (2, 5, 6, 9, 10, 3, 1, 1))[0].with_winograd())


def tile(sketch: Sketch) -> int:
    return largest_tile(sketch.state.steps)


def two_in_a_row() -> ComputeDAG:
    """A convolution of a convolution, both of them by tiles."""
    x, w = te.placeholder((6, 6, 8), name="x"), te.placeholder((3, 3, 8, 8), name="w")
    image = x
    for name in ("first", "second"):
        kh, kw, c = te.reduce_axis(3, "kh"), te.reduce_axis(3, "kw"), te.reduce_axis(8, "c")
        rows, columns, _ = (extent - 2 for extent in image.shape)

        def body(i, j, o, image=image, kh=kh, kw=kw, c=c):  # type: ignore[no-untyped-def]
            return te.sum(image[i + kh, j + kw, c] * w[kh, kw, c, o], axis=[kh, kw, c])

        image = te.compute((rows, columns, 8), body, name=name)
    return ComputeDAG(image, winograd=True)


@pytest.mark.parametrize(
    "dag", [conv(), conv("cbr", 1, 4, 4, 8, 8, 3, 1, 1), two_in_a_row()], ids=["c2d", "cbr", "two"]
)
def test_sketches_compute_the_convolution(dag: ComputeDAG) -> None:
    found = [s for s in cpu.sketches(dag, TARGET, 2) if tile(s)]
    assert {tile(s) for s in found} == {2, 4}
    inputs, rng = make_inputs(dag, 0, "normal"), np.random.default_rng(0)
    for sketch in found[:: max(1, len(found) // 6)]:
        (row,) = space.sample(sketch, 1, rng)
        func, _ = concretise(lower(sketch.state), {p.name: int(v) for p, v in zip(sketch.params, row, strict=True)})
        (got,) = interpret(func, inputs)
        (reference,) = evaluate(dag, inputs, tile(sketch))
        assert within(reference, got.reshape(reference.value.shape)).all(), sketch.name


def test_one_dimension_of_a_transform_is_computed_inside_the_other() -> None:
    for sketch in cpu.sketches(conv(), TARGET, 2):
        places = {s.name: s.at.stage for s in sketch.state.stages if s.at is not None}
        pairs = {"conv.data_rows": "conv.data", "conv.kernel_rows": "conv.kernel", "conv.tile_rows": "conv.tiles"}
        assert not tile(sketch) or pairs.items() <= places.items()


def test_constant_weights_are_transformed_ahead() -> None:
    for sketch in cpu.sketches(conv().with_weights(["W"]), TARGET, 2):
        if tile(sketch):
            nest = lower(sketch.state)
            assert all("kernel" in b.name for b in nest.prepared)


def test_without_channels_to_vectorise_there_is_a_sketch_all_the_same() -> None:
    dag = conv("c2d", 1, 5, 5, 2, 1, 3, 1, 1)
    assert {tile(s) for s in cpu.sketches(dag, TARGET, 1)} == {0, 2, 4}


@pytest.mark.parametrize(("channels", "asked"), [(512, {1, 2}), (8, set())])
def test_transformed_weights_that_are_large_are_asked_for_ahead_of_time(channels: int, asked: set[int]) -> None:
    dag = build("c2d", (1, 8, 8, channels, channels, 3, 1, 1))[0].with_winograd().with_weights(["W"])
    levels = set()
    for sketch in cpu.sketches(collapse(dag), TARGET, 1):
        for stage in sketch.state.stages if tile(sketch) else ():
            levels |= {h.level for h in (*stage.ahead, *stage.prefetches) if h.buffer.startswith("conv.kernel")}
    assert levels <= asked
    assert bool(levels) == bool(asked)
