"""Matrix products long enough for packed operands and blocks of the reduction: every sketch is exact, at ragged sizes."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from autosched import te
from autosched.target import parse_target
from autosched.te import ComputeDAG
from autosched.te.operators.attention import scaled_dot_product
from autosched.te.operators.registry import build
from autosched.te.rewrites.collapse import collapse
from search_spaces import space
from search_spaces.cpu import sketches
from search_spaces.space import Sketch
from tests.helpers import exact

WIDE, NARROW = parse_target("llvm -mcpu=skylake-avx512"), parse_target("llvm -mcpu=haswell")


def product(M: int, N: int, K: int, dtype: str = "float32") -> ComputeDAG:
    return collapse(build("matmul", settings={"M": M, "N": N, "K": K}, dtype=dtype)[0])


def check(sketch: Sketch, dag: ComputeDAG, values: np.ndarray) -> None:
    row = {p.name: int(v) for p, v in zip(sketch.params, values, strict=True)}
    exact(dag, sketch.state, row)


@pytest.mark.parametrize(("target", "M", "N", "K"), [(WIDE, 7, 21, 67), (NARROW, 5, 11, 259), (WIDE, 2, 37, 261)])
def test_every_sketch_is_exact(target, M, N, K):
    dag = product(M, N, K)
    rng = np.random.default_rng(2)
    found = sketches(dag, target, 2)
    packed = [s for s in found if "A@task" in s.name or s.name.endswith("blocked")]
    assert len(packed) == (0 if K < 256 else 2)
    assert any(s.name.endswith("thin") for s in found) == (K >= 256)
    for sketch in found:
        for values in space.sample(sketch, 3 if sketch in packed or sketch.name.endswith("thin") else 1, rng):
            check(sketch, dag, values)


@pytest.mark.parametrize(
    ("size", "channels", "is_skinny"), [(7, 64, True), (8, 64, True), (9, 64, False), (7, 63, False)]
)
def test_the_weights_of_a_small_image_stream_in_by_blocks_of_channels(size, channels, is_skinny):
    """Its few points leave a copy nothing to be won back; the taps of the window make the reduction long."""
    dag, _ = build("c2d", (1, size, size, channels, 19, 3, 1, 1))
    found = [s for s in sketches(collapse(dag), NARROW, 1) if "thin" in s.name]
    assert bool(found) == is_skinny
    for sketch in found[:1]:
        check(sketch, collapse(dag), space.sample(sketch, 1, np.random.default_rng(4))[0])


@pytest.mark.parametrize("rows", [2, 13])
def test_weights_that_several_rows_use_are_in_panels_and_not_streamed(rows):
    dag = product(rows, 53, 300, "float32")
    assert any("thin" in s.name for s in sketches(dag, NARROW, 1))
    found = [s.name for s in sketches(dag.with_weights(["B"]), NARROW, 1)]
    assert found
    assert not any("thin" in name for name in found)


@pytest.mark.parametrize(
    ("case", "outside"),
    [
        (("c2d", (1, 4, 4, 64, 19, 3, 1, 1)), ["kh", "kw", "ci.o"]),
        (("t2d", (1, 4, 5, 64, 19, 4, 2, 1)), ["th", "tw", "ci.o"]),
        (("matmul", (16, 37, 261)), ["k.o"]),
        (("matmul", (15, 37, 261)), None),
    ],
)
def test_few_rows_read_panels_of_the_block_and_ask_for_the_next_one(case, outside):
    """Made for each tile of columns, next to the tiles that read one panel, with one tap of a window after the other
    outside; a copy for 15 rows would not pay."""
    dag = collapse(build(*case)[0])
    found = [s for s in sketches(dag, replace(NARROW, l2_bytes=1 << 10), 1) if re.search(r"thin-\w+@panel", s.name)]
    assert bool(found) == (outside is not None)
    rng = np.random.default_rng(5)
    for sketch in found[:1]:
        (copy,) = [s for s in sketch.state.stages if s.name.endswith(".pack")]
        consumer = sketch.state.stage(copy.at.stage)
        *blocks, columns = consumer.loops[: consumer.position(copy.at.loop) + 1]
        assert [x.name for x in blocks] == outside
        assert not columns.reduce
        (hint,) = [h for stage in sketch.state.stages for h in stage.ahead]
        steps = outside[-1].replace(".o", ".i.0")
        assert (hint.reader, hint.buffer, hint.loop) == (copy.name, copy.name.removesuffix(".pack"), steps)
        (values,) = space.sample(sketch, 1, rng)
        check(sketch, dag, values)


@pytest.mark.parametrize(
    ("shape", "kind"), [((1, 5, 4, 16, 38, 3, 1, 1, 1, 2), "panel"), ((1, 4, 4, 128, 38, 3, 1, 1, 1, 2), "thin")]
)
def test_the_weights_of_a_group_have_panels(shape, kind):
    """W[.., g * 19 + c] is copied along c, from wherever the tile of groups begins; groups of 19 divide no vector."""
    dag = collapse(build("grp", shape)[0])
    found = [s for s in sketches(dag, NARROW, 1) if s.name.startswith(f"conv:v3-{kind}-W@panel")]
    assert found
    (groups,) = {p.name for s in found for p in s.params if p.name.endswith(".g.r")}
    for together in (1, 2):
        for values in space.sample(found[0], 1, np.random.default_rng(together)):
            values[[p.name for p in found[0].params].index(groups)] = together
            check(found[0], dag, values)


def test_tiles_that_read_one_panel_follow_each_other():
    """The phases of a transposed convolution have weights of their own: they change before the pixels do."""
    dag = collapse(build("t2d", (1, 4, 5, 64, 19, 4, 2, 1))[0])
    (skinny,) = [s for s in sketches(dag, NARROW, 1) if s.name.endswith("thin/pad@inline")]
    loops = [x.name for x in skinny.state.stage("phases.acc").loops if x.name.endswith(".0")]
    assert loops == ["co.0", "rh.0", "rw.0", "qh.0", "qw.0"]


@pytest.mark.parametrize(("target", "dtype"), [(WIDE, "float32"), (NARROW, "float64")])
def test_large_operands_are_asked_for_while_tiles_are_computed(target, dtype):
    """Each tile asks for the rows of the next, for what it reads some steps later where that lies across, and for the
    source of the next panel; where the reduction is short, for its place in the output; not for what a cache holds."""
    dag = product(5, 37, 67, dtype)
    small = replace(target, l2_bytes=1 << 10)
    rng = np.random.default_rng(3)
    hints = set()
    for sketch in sketches(dag, small, 2):
        found = {(h.reader, h.buffer) for stage in sketch.state.stages for h in stage.ahead}
        found |= {(stage.name, h.buffer) for stage in sketch.state.stages for h in stage.prefetches}
        hints |= found
        for values in space.sample(sketch, 1 if found else 0, rng):
            check(sketch, dag, values)
    assert {("matmul.acc", "A"), ("matmul.acc", "B"), ("B.pack", "B"), ("matmul.acc", "matmul")} <= hints
    long = sketches(product(5, 37, 257, dtype), small, 2)
    assert not any(h.buffer == "matmul" for s in long for stage in s.state.stages for h in stage.ahead)
    assert not any(stage.ahead or stage.prefetches for s in sketches(dag, target, 2) for stage in s.state.stages)


@pytest.mark.parametrize(("l2_bytes", "ahead"), [(128 << 10, True), (64 << 10, False)])
def test_the_next_panel_of_weights_is_asked_for(l2_bytes, ahead):
    """By all tiles of rows; where the second level cache does not hold two panels of 300 x 48 floats: a row of this one,
    some steps ahead. By tiles of blocks too."""
    dag = product(5, 67, 300, "float32").with_weights(["B"])
    rng = np.random.default_rng(l2_bytes)
    asked = set()
    for sketch in sketches(dag, replace(WIDE, l2_bytes=l2_bytes), 1):
        for stage in sketch.state.stages:
            asked |= {(stage.name, h.buffer, "ahead") for h in stage.ahead if h.buffer == "B.pack"}
            asked |= {(stage.name, h.buffer, "row") for h in stage.prefetches if h.buffer == "B.pack"}
        for values in space.sample(sketch, 1, rng):
            check(sketch, dag, values)
    way = "ahead" if ahead else "row"
    assert asked == {("matmul.acc", "B.pack", way), ("matmul.acc.rf", "B.pack", "ahead")}


@pytest.mark.parametrize(("rows", "asked"), [(5, True), (600, False)])
def test_panels_of_weights_that_few_rows_use_are_asked_for_whatever_their_size(rows, asked):
    dag = product(rows, 67, 300, "float32").with_weights(["B"])
    target = replace(WIDE, l1_bytes=32 << 10)
    names = {h.buffer for s in sketches(dag, target, 1) for stage in s.state.stages for h in stage.ahead}
    assert ("B.pack" in names) == asked
    near = replace(WIDE, l1_bytes=1 << 20, l2_bytes=2 << 20)  # which all operands fit into
    assert not any(stage.ahead for s in sketches(dag, near, 1) for stage in s.state.stages)


def test_of_panels_that_many_rows_use_the_next_rows_are_asked_for():
    dag = product(600, 67, 300, "float32").with_weights(["B"])
    found = sketches(dag, replace(WIDE, l2_bytes=128 << 10), 1)
    ways = {
        type(h).__name__ for s in found for x in s.state.stages for h in (*x.ahead, *x.prefetches) if "pack" in h.buffer
    }
    assert ways == {"PrefetchHint"}


def test_one_row_asks_for_its_weights_some_steps_ahead():
    """Panels that are read once, where they are more than the first cache holds."""

    def asked(depth):
        x, w, k = (
            te.placeholder((1, depth), name="X"),
            te.placeholder((96, depth), name="W"),
            te.reduce_axis(depth, "k"),
        )
        y = te.compute((1, 96), lambda i, j: te.sum(x[i, k] * w[j, k], axis=k), name="Y")
        found = sketches(collapse(ComputeDAG(y, weights=["W"])), parse_target("llvm -mcpu=sapphirerapids"), 1)
        return {(type(h).__name__, h.buffer) for s in found for x in s.state.stages for h in (*x.ahead, *x.prefetches)}

    assert {buffer for _, buffer in asked(640)} == {"W.pack"}
    assert asked(64) == set()


def test_each_step_of_one_row_asks_for_all_that_it_reads():
    """Of weights in groups, words in the steps of a group, which are written out, and scales in those between groups;
    the steps between groups are not written out, as outputs share nothing there."""
    groups, words = 72, 2
    x, w = te.placeholder((1, groups * words), name="X"), te.placeholder((192, groups * words), name="W")
    scales = te.placeholder((192, groups), name="S")
    g, k = te.reduce_axis(groups, "g"), te.reduce_axis(words, "k")
    y = te.compute(
        (1, 192), lambda i, j: te.sum(x[i, g * words + k] * w[j, g * words + k] * scales[j, g], axis=[g, k]), name="Y"
    )
    found = sketches(collapse(ComputeDAG(y, weights=["W", "S"])), parse_target("llvm -mcpu=sapphirerapids"), 1)
    hints = {(h.buffer, h.loop, h.distance) for s in found for x in s.state.stages for h in x.prefetches}
    assert hints == {("W.pack", "k.1", 32), ("S.pack", "g", 16)}


def test_steps_that_unpack_words_ask_for_few_lines():
    """Each takes as long as several others: into the first level cache, not as far ahead."""
    words = 144
    x, w = te.placeholder((1, 2 * words), name="X"), te.placeholder((192, words), "int32", name="W")
    k = te.reduce_axis(words, "k")
    half = lambda j, n: te.cast((w[j, k] >> 16 * n) & 0xFFFF, "float32")  # noqa: E731
    y = te.compute(
        (1, 192), lambda i, j: te.sum(x[i, 2 * k] * half(j, 0) + x[i, 2 * k + 1] * half(j, 1), axis=k), name="Y"
    )
    found = sketches(collapse(ComputeDAG(y, weights=["W"])), parse_target("llvm -mcpu=sapphirerapids"), 1)
    hints = {(h.buffer, h.distance, h.level) for s in found for x in s.state.stages for h in x.prefetches}
    assert hints == {("W.pack", 8, 1)}


def test_what_is_added_to_short_sums_is_asked_for():
    """A residual, but no bias."""
    a, b = te.placeholder((5, 37), name="A"), te.placeholder((37, 67), name="B")
    x, bias = te.placeholder((5, 67), name="X"), te.placeholder((67,), name="bias")
    k = te.reduce_axis(37, "k")
    c = te.compute((5, 67), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="C")
    dag = ComputeDAG(te.compute((5, 67), lambda i, j: c[i, j] + x[i, j] + bias[j], name="D"))
    rng = np.random.default_rng(2)
    names = set()
    for sketch in sketches(dag, replace(WIDE, l2_bytes=256), 1):
        names |= {h.buffer for stage in sketch.state.stages for h in stage.ahead}
        for values in space.sample(sketch, 1, rng):
            check(sketch, dag, values)
    assert "X" in names
    assert "bias" not in names


@pytest.mark.parametrize("columns", [67, 64])
def test_the_next_place_in_sums_of_blocks_is_asked_for(columns):
    """Where the second level cache holds the sums it is not."""
    dag = product(5, columns, 300, "float32")
    asked = {}
    for l2_bytes in (1 << 10, WIDE.l2_bytes):
        (blocked,) = [s for s in sketches(dag, replace(WIDE, l2_bytes=l2_bytes), 1) if s.name.endswith("-blocked")]
        asked[l2_bytes] = {h.buffer for h in blocked.state.stage("matmul.acc.rf").ahead}
        for values in space.sample(blocked, 2, np.random.default_rng(columns)):
            check(blocked, dag, values)
    assert "matmul.acc" in asked[1 << 10]
    assert not asked[WIDE.l2_bytes]


def test_the_weights_of_a_convolution_are_asked_for():
    """Panels made before or for each tile, and weights as they are; the next place in the output; of the image, whose
    windows overlap, nothing."""
    dag = collapse(build("conv2d", settings={"H": 3, "W": 4, "CI": 7, "CO": 17})[0])
    rng = np.random.default_rng(3)
    hints = set()
    for sketch in sketches(dag, replace(WIDE, l2_bytes=1 << 10), 2):
        stages = sketch.state.stages
        found = {(h.reader, h.buffer) for stage in stages for h in stage.ahead}
        found |= {(stage.name, h.buffer) for stage in stages for h in stage.prefetches}
        hints |= found
        for values in space.sample(sketch, 1 if found else 0, rng):
            check(sketch, dag, values)
    assert hints == {("conv.acc", "W"), ("conv.acc", "W.pack"), ("W.pack", "W"), ("conv.acc", "conv")}


def test_what_is_read_once_is_not_asked_for():
    """Each pixel of a depthwise convolution's image belongs to the window of one tile; the weights to all of them. The
    output is asked for to be written."""
    dag = collapse(build("dep", (1, 14, 14, 32, 3, 2, 1))[0])
    stages = [stage for s in sketches(dag, replace(WIDE, l2_bytes=1 << 10), 1) for stage in s.state.stages]
    assert {h.buffer for stage in stages for h in (*stage.ahead, *stage.prefetches)} == {"W", "W.pack", "depthwise"}


def test_operands_that_lie_across_are_copied_by_every_sketch():
    """Q K^T of heads that lie side by side: panels of K are transposed, a few of the eleven elements at a time."""
    dag = collapse(build("tbg", settings={"N": 1, "seq": 9, "heads": 2, "dim": 11})[0])
    rng = np.random.default_rng(1)
    found = sketches(dag, WIDE, 2)
    assert found
    for sketch in found:
        for values in space.sample(sketch, 2, rng):
            check(sketch, dag, values)


def test_a_long_axis_to_vectorise_leaves_nothing_to_the_others():
    assert all(":v1" in s.name for s in sketches(product(96, 64, 32), WIDE, 1))
    assert any(":v0" in s.name for s in sketches(product(96, 8, 32), WIDE, 1))


def test_tiles_of_rows_hold_what_a_register_tile_reads_together():
    """Rows and steps of the reduction that divide nothing; the copy is [i / r][k / u][i % r][k % u]."""
    dag = product(9, 16, 261)
    sketch = next(s for s in sketches(dag, WIDE, 1) if "A@task" in s.name)
    rng = np.random.default_rng(0)
    (values,) = space.sample(sketch, 1, rng)
    chosen = {"r": 4, "u": 8}
    for n, p in enumerate(sketch.params):
        level = p.name.rpartition(".")[2]
        if level in chosen and p.kind != "vector":
            values[n] = chosen[level]
    check(sketch, dag, values)
    layout = sketch.state.stage("A.pack").layout
    assert layout is not None
    assert layout.order == (0, 1)
    assert [d for d, _ in layout.tiles] == [0, 1]


@pytest.mark.parametrize(
    ("target", "size", "has_rows"),
    [(NARROW, 2, False), (NARROW, 3, True), (NARROW, 7, True), (WIDE, 4, False), (WIDE, 5, True), (NARROW, 100, False)],
)
def test_products_of_small_matrices_are_vectorised_along_their_rows_as_well(target, size, has_rows):
    """Across the batch, a vector of products at a time, everything is transposed: 3 times as long for 7 x 7 x 7. Where
    the reduction is long that is no matter."""
    dag = collapse(build("batch_matmul", (64, size, min(size, 7), size))[0])
    found = [s for s in sketches(dag, target, 1) if ":v2" in s.name]
    assert bool(found) == has_rows
    for sketch in found[:3]:
        check(sketch, dag, space.sample(sketch, 1, np.random.default_rng(5))[0])


def test_an_input_that_few_outputs_use_is_asked_for():
    """A cache of keys and one of values, of which each head serves two queries; not what many rows share."""

    def asked(rows):
        q, k, v = (
            te.placeholder(s, name=n)
            for n, s in (("Q", (1, 2, rows, 64)), ("K", (1, 1, 320, 64)), ("V", (1, 1, 320, 64)))
        )
        dag = collapse(ComputeDAG(scaled_dot_product(q, k, v, (1, 2), 0.125)))
        found = sketches(dag, parse_target("llvm -mcpu=sapphirerapids"), 1)
        return {h.buffer for s in found for x in s.state.stages for h in (*x.ahead, *x.prefetches)}

    assert asked(1) >= {"K", "V"}
    assert not asked(16) & {"K", "V"}
