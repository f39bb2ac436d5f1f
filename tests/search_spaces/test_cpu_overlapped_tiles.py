"""Overlapped tiles: producers of a stage are computed for each of its tiles, with halos."""

from __future__ import annotations

import numpy as np
import pytest

from autosched import te
from autosched.ir.closed_forms.program import Program
from autosched.ir.expr import Const
from autosched.lower.symbolic.domains import infer_domains
from autosched.target import parse_target
from autosched.te import ComputeDAG
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from search_spaces.cpu import sketches
from search_spaces.space import sample
from tests.codegen.running import check_candidate

HASWELL = parse_target("llvm -mcpu=haswell")


def clamped(i, n):
    return te.min(te.max(i, 0), n - 1)


def stencils(h, w, dtype="float32", border=True, depth=3):
    """Sums of five neighbours, `depth` times in a row."""
    image = te.placeholder((h, w) if border else (h + 2 * depth, w + 2 * depth), dtype, name="A")
    for n in range(depth):
        rows, columns = image.shape

        def value(i, j, image=image, rows=rows, columns=columns):
            if not border:
                return image[i, j + 1] + image[i + 1, j] * 3 + image[i + 2, j + 1] * 5 + image[i + 1, j + 2]
            at = lambda p, q: image[clamped(i + p, rows), clamped(j + q, columns)]  # noqa: E731
            return at(-1, 0) + at(0, -1) * 3 + at(1, 0) * 5 + at(0, 2) * 7

        image = te.compute((h, w) if border else (rows - 2, columns - 2), value, name=f"s{n}")
    return collapse(ComputeDAG(image))


def colours(h, w):
    """Three colours that share a quotient of the image and its blurred copy."""
    image = te.placeholder((3, h, w), name="A")
    grey = te.compute((h, w), lambda i, j: image[0, i, j] + image[1, i, j] * 2 + image[2, i, j], name="grey")
    blurred = te.compute((h, w), lambda i, j: grey[i, clamped(j - 1, w)] + grey[i, clamped(j + 1, w)], name="blurred")
    ratio = te.compute((h, w), lambda i, j: blurred[i, j] / (te.abs(grey[i, j]) + 1), name="ratio")
    return collapse(ComputeDAG(te.compute((3, h, w), lambda c, i, j: ratio[i, j] * image[c, i, j], name="out")))


def curved(h, w):
    """Three colours of a blurred image, each of which is sharpened."""
    image, weights = te.placeholder((h, w + 2), name="A"), te.placeholder((3,), name="W")
    grey = te.compute((h, w), lambda i, j: te.sqrt(te.abs(image[i, j] + image[i, j + 2]) + 1), name="grey")
    colour = te.compute((3, h, w), lambda c, i, j: te.sqrt(grey[i, j] * te.abs(weights[c]) + 1), name="colour")
    sharp = lambda c, i, j: colour[c, i, j] * 2 - colour[c, clamped(i + 1, h), j]  # noqa: E731
    return collapse(ComputeDAG(te.compute((3, h, w), sharp, name="out")))


def interleaved(h, w):
    """As `colours`, with the colours of a point beside each other, in bytes."""
    image = te.placeholder((h, w + 2), "int32", name="A")
    weights = te.placeholder((3,), name="W")
    grey = te.compute(
        (h, w),
        lambda i, j: te.select(te.equal(j % 2, 0), image[i, j + 1], (image[i, j] + image[i, j + 2]) // 2) * 0.25,
        name="grey",
    )
    byte = lambda x: te.cast(te.min(te.max(te.floor(x), 0.0), 255.0), "uint8")  # noqa: E731
    return collapse(ComputeDAG(te.compute((h, w, 3), lambda i, j, c: byte(grey[i, j] * weights[c]), name="out")))


def weighted_mean(h, w, dtype="float32"):
    """Means of shifted images, for three colours, with weights from a stencil: both sums read the weights."""
    image, shift = te.placeholder((3, h + 4, w + 4), dtype, name="A"), te.placeholder((3,), dtype, name="S")
    d, e, f = (te.reduce_axis(n, name=name) for n, name in ((3, "d"), (5, "e"), (5, "f")))
    apart = lambda k, i, j: image[0, i + 1, j + k] - image[1, i, j + 2] * shift[k % 3]  # noqa: E731
    rough = te.compute((5, h + 2, w), lambda k, i, j: apart(k, i, j) * apart(k, i, j), name="rough")
    weight = te.compute((5, h, w), lambda k, i, j: 4 / (1 + te.abs(rough[k, i, j] + rough[k, i + 2, j])), name="weight")
    mean = te.compute((3, h, w), lambda c, i, j: te.sum(weight[e, i, j] * image[c, i, j + e], axis=e), name="mean")
    total = te.compute((h, w), lambda i, j: te.sum(weight[f, i, j], axis=f), name="total")
    most = te.compute((h, w), lambda i, j: te.max(image[d, i, j], axis=d), name="most")
    out = te.compute((3, h, w), lambda c, i, j: mean[c, i, j] / total[i, j] + most[i, j], name="out")
    return collapse(ComputeDAG(out))


def tiled(dag, kind="tiles"):
    """The sketches in which all other stages are computed in tiles of the last one, or in strips."""
    found = [s for s in sketches(dag, HASWELL, 2) if f":{kind}" in s.name]
    return [s for s in found if all(x.at is not None for x in s.state.stages if not s.state.is_output(x))]


def row_of(sketch, rng):
    (values,) = sample(sketch, 1, rng)
    return {p.name: int(v) for p, v in zip(sketch.params, values, strict=True)}


@pytest.mark.parametrize("border", [True, False])
def test_a_tile_has_the_halo_of_its_producers_and_no_more(border):
    for sketch in tiled(stencils(200, 300, border=border)):
        first = infer_domains(sketch.state)["s0"]
        sizes = {p.name: {"s2.i.t": 4, "s2.i.r": 2}.get(p.name, 4) for p in sketch.params}
        rows = first.regions["i"].extent
        assert not isinstance(rows, Const), "the region is the whole axis"
        (number,) = Program([rows], tuple(sizes))(np.array([list(sizes.values())], np.int64))[0].tolist()
        assert number == 8 + 2 * 2, "two stencils of one row above and below"


@pytest.mark.parametrize(
    "dag",
    [
        stencils(131, 67), stencils(67, 131, border=False), stencils(97, 80, "int32"), stencils(41, 128, "float64", depth=5),
        stencils(4099, 3), stencils(3, 4099), stencils(1, 8000), colours(67, 101),
        curved(67, 101), interleaved(67, 101),
    ],
    ids=["clamped", "valid", "int32", "deep", "narrow", "flat", "one row", "colours", "curved", "interleaved"],
)  # fmt: skip
def test_candidates_are_right(dag):
    rng = np.random.default_rng(1)
    found = [s for s in sketches(dag, parse_target("cpu"), 2) if ":tiles" in s.name or ":strips" in s.name]
    assert found
    for sketch in found[:: max(1, len(found) // 5)]:
        check_candidate(dag, sketch, row_of(sketch, rng), make_inputs(dag, 0, "normal"))


@pytest.mark.parametrize(
    "dag",
    [weighted_mean(67, 101), weighted_mean(3, 1999), weighted_mean(1999, 3), weighted_mean(67, 101, "float64")],
    ids=["odd", "flat", "narrow", "float64"],
)
def test_reductions_in_tiles_are_right(dag):
    rng = np.random.default_rng(2)
    found = [s for s in sketches(dag, parse_target("cpu"), 2) if "mean@out" in s.name]
    assert any("total@out" in s.name and "weight@out" in s.name and "most@out" in s.name for s in found)
    for sketch in found[:: max(1, len(found) // 3)]:
        check_candidate(dag, sketch, row_of(sketch, rng), make_inputs(dag, 0, "normal"))


def test_weights_that_two_sums_read_are_not_stored_as_a_whole():
    (sketch, *_) = tiled(weighted_mean(200, 300))
    rows = infer_domains(sketch.state)["weight"].regions["i"].extent
    assert sketch.state.stage("weight").at == sketch.state.stage("mean").at == sketch.state.stage("total").at
    assert not (isinstance(rows, Const) and rows.value == 200), "the region is the whole axis"
    out = sketch.state.stage("out")
    assert out.position("c") > out.position(sketch.state.stage("weight").at.loop)


def test_what_a_colour_does_not_change_is_outside_of_its_loop():
    for dag, name in ((colours(200, 300), "ratio"), (curved(200, 300), "grey")):
        (sketch, *_) = tiled(dag)
        out, shared = sketch.state.stage("out"), sketch.state.stage(name)
        assert shared.at is not None
        assert out.position("c") > out.position(shared.at.loop)


def test_chunks_of_bytes_are_no_longer_than_their_floats_allow():
    """Twelve vectors of floats, and not 48, for whole periods of three colours and two columns."""
    dag = interleaved(200, 320)
    longest = [max(p.domain) for s in sketches(dag, HASWELL, 2) for p in s.params if p.name == "out.j_c.r"]
    assert longest
    assert max(longest) <= 96


def test_small_pipelines_have_no_tiles():
    assert not any(":tiles" in s.name for s in sketches(stencils(30, 40), HASWELL, 2))
