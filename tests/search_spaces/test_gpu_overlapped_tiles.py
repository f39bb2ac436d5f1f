"""Overlapped tiles on GPUs: producers of a stage are computed in shared memory for each tile of a block, with halos."""

from __future__ import annotations

import numpy as np
import pytest

from autosched import te
from autosched.codegen import build_source
from autosched.ir.closed_forms.arithmetic import sum_of
from autosched.ir.closed_forms.program import Program
from autosched.ir.stmt import Barrier, For, ForKind, Scope, walk
from autosched.lower import lower
from autosched.lower.symbolic.domains import infer_domains
from autosched.target import parse_target
from autosched.te import ComputeDAG
from autosched.te.rewrites.collapse import collapse
from cost_model.analysis.statements import analyse
from cost_model.gpu.latency import gpu_analytic_latency
from cost_model.gpu.machine import gpu_machine
from cost_model.gpu.traffic import dram_bytes
from search_spaces.gpu import sketches
from search_spaces.space import Sketch
from tests.codegen.gpu import TARGETS, dialects
from tests.helpers import exact
from tests.search_spaces.gpu_candidates import best_with_and_without, check_candidates, draw, drawn_of
from tests.search_spaces.test_cpu_overlapped_tiles import clamped, colours, interleaved, stencils

AMPERE = parse_target("cuda -arch=sm_80")
MARK = ":tiles"
SAMPLED = 200


def other_names(h: int, w: int) -> ComputeDAG:
    """Three stencils whose axes have names of their own."""
    image = te.placeholder((h, w), name="A")
    first = te.compute((h, w), lambda y, x: image[y, clamped(x - 2, w)] + image[y, x], name="first")
    second = te.compute((h, w), lambda p, q: first[clamped(p - 3, h), q] * 2 + first[p, q] + 1, name="second")
    return collapse(
        ComputeDAG(te.compute((h, w), lambda i, j: second[i, j] - second[i, clamped(j + 1, w)], name="out"))
    )


def one_sided(h: int, w: int) -> ComputeDAG:
    """What is read lies outside of the tile that reads it, clamped, and between inside of a longer image."""
    image = te.placeholder((h + 4, w), name="A")
    first = te.compute((h + 4, w), lambda i, j: image[i, j] + image[clamped(i - 1, h + 4), j], name="first")
    second = te.compute((h, w), lambda i, j: first[i + 4, j] + first[i + 2, clamped(j - 5, w)], name="second")
    third = te.compute((h, w), lambda i, j: second[clamped(i - 5, h), j] - second[clamped(i - 6, h), j], name="third")
    return collapse(
        ComputeDAG(te.compute((h, w), lambda i, j: third[i, clamped(j + 7, w)] + third[i, clamped(j + 5, w)]))
    )


def enlarged(h: int, w: int) -> ComputeDAG:
    """A stencil of half an image, clamped to it by a reader that is longer, and one at twice the resolution."""
    image = te.placeholder((h // 2, w // 2), name="A")
    small = te.compute((h // 2, w // 2), lambda i, j: image[i, clamped(j - 1, w // 2)] + image[i, j], name="small")
    up = te.compute(
        (h, w), lambda i, j: small[i // 2, j // 2] + small[clamped(i, h // 2), clamped(j, w // 2)], name="up"
    )
    return collapse(ComputeDAG(te.compute((h, w), lambda i, j: up[i, j] + up[clamped(i - 1, h), j], name="out")))


def shorter(h: int, w: int) -> ComputeDAG:
    """A thread's register reads a shorter image, clamped below alone: beyond the axis it reads beyond that image."""
    image, colour = te.placeholder((h, w), name="A"), te.placeholder((3, h + 5, w), name="B")
    root = te.compute((h, w), lambda i, j: te.sqrt(te.abs(image[i, j])), name="root")
    value = lambda i, j: root[te.max(i - 5, 0), j] / (root[te.max(i - 6, 0), j] + 1)  # noqa: E731
    ratio = te.compute((h + 5, w), value, name="ratio")
    return collapse(ComputeDAG(te.compute((3, h + 5, w), lambda c, i, j: ratio[i, j] * colour[c, i, j], name="out")))


def incomparable(h: int, w: int) -> ComputeDAG:
    """A thread's register reads an image at places that move apart: each block has all of it."""
    image, colour = te.placeholder((h, w), name="A"), te.placeholder((3, h, w), name="B")
    root = te.compute((h, w), lambda i, j: te.sqrt(te.abs(image[i, j])), name="root")
    ratio = te.compute((h, w), lambda i, j: root[i, j] / (root[i // 2, j] + root[i, w - 1 - j] + 1), name="ratio")
    return collapse(ComputeDAG(te.compute((3, h, w), lambda c, i, j: ratio[i, j] * colour[c, i, j], name="out")))


def zeros_around(d: int, h: int, w: int) -> ComputeDAG:
    """Volumes with zeros around them."""

    def padded(image, k, i, j):
        inside = te.all(k >= 0, k < d, i >= 0, i < h, j >= 0, j < w)
        return te.select(inside, image[k, i, j], 0.0)

    volume = te.placeholder((d, h, w), name="A")
    blurred = te.compute(
        (d, h, w), lambda k, i, j: padded(volume, k - 1, i, j) / (padded(volume, k, i + 1, j) * 2 + 9), name="blurred"
    )
    value = lambda k, i, j: padded(blurred, k, i - 1, j) - padded(blurred, k + 1, i, j - 1) * 3  # noqa: E731
    return collapse(ComputeDAG(te.compute((d, h, w), value, name="out")))


def windows(h: int, w: int) -> ComputeDAG:
    """Sums of three neighbours as reductions, along rows and along columns."""
    image = te.placeholder((h, w + 2), name="A")
    k, m = te.reduce_axis(3, name="k"), te.reduce_axis(3, name="m")
    rows = te.compute((h, w), lambda i, j: te.sum(image[i, j + k] * 0.5, axis=k), name="rows")
    sums = te.compute((h, w), lambda i, j: te.sum(rows[clamped(i + m - 1, h), j], axis=m), name="sums")
    return collapse(ComputeDAG(te.compute((h, w), lambda i, j: sums[i, j] * sums[i, j] + rows[i, j], name="out")))


def weighted(h: int, w: int) -> ComputeDAG:
    """A stencil of a brightness, which is a sum over colours with weights; the largest of four neighbours as another."""
    image, weights = te.placeholder((3, h, w), name="A"), te.placeholder((3,), name="W")
    c, k, m = te.reduce_axis(3, name="c"), te.reduce_axis(2, name="k"), te.reduce_axis(2, name="m")
    grey = te.compute((h, w), lambda i, j: te.sum(image[c, i, j] * weights[c], axis=c), name="grey")
    edge = te.compute((h, w), lambda i, j: grey[i, clamped(j - 1, w)] - grey[i, clamped(j + 1, w)], name="edge")
    top = te.compute((h - 1, w - 1), lambda i, j: te.max(edge[i + k, j + m], axis=[k, m]), name="top")
    return collapse(ComputeDAG(te.compute((h - 1, w - 2), lambda i, j: top[i, j] + top[i, j + 1], name="out")))


CASES = {
    "clamped": stencils(37, 53),
    "valid": stencils(31, 29, border=False),
    "int32": stencils(29, 40, "int32"),
    "deep": stencils(23, 31, "float64", depth=5),
    "one row": stencils(1, 131),
    "one column": stencils(131, 1),
    "colours": colours(17, 29),
    "interleaved": interleaved(17, 22),
    "other names": other_names(19, 23),
    "one-sided": one_sided(13, 17),
    "enlarged": enlarged(22, 26),
    "shorter": shorter(3, 19),
    "incomparable": incomparable(5, 11),
    "zeros around": zeros_around(5, 7, 11),
    "windows": windows(19, 31),
    "weighted": weighted(17, 23),
}


def tiled(dag: ComputeDAG) -> Sketch:
    """The sketch in which all other stages are computed in tiles of the output."""
    found = [s for s in sketches(dag, AMPERE) if all(x.at is not None or s.state.is_output(x) for x in s.state.stages)]
    return next(s for s in found if MARK in s.name)


@dialects
@pytest.mark.parametrize("dag", CASES.values(), ids=CASES)
def test_candidates_are_right(dag: ComputeDAG, dialect: str) -> None:
    found = list(draw(dag, TARGETS[dialect], SAMPLED, mark=MARK))
    assert found
    check_candidates(dag, found[:: max(1, len(found) // 3)], TARGETS[dialect], 2)


@pytest.mark.parametrize(
    "dag", [CASES[n] for n in ("one row", "one-sided", "other names", "shorter", "incomparable", "zeros around")]
)
def test_nests_are_exact_and_free_of_races(dag: ComputeDAG) -> None:
    """As the interpreter plays blocks and barriers, with tiles of one point and of several."""
    sketch = tiled(dag)
    for size in (1, 2):
        exact(dag, sketch.state, {p.name: min(size, max(p.domain)) for p in sketch.params})


def test_images_without_points_have_no_kernel() -> None:
    (sketch,) = sketches(stencils(0, 53), AMPERE)
    assert not sketch.state.stages


@pytest.mark.parametrize("border", [True, False])
def test_a_tile_has_the_halo_of_its_producers_and_no_more(border: bool) -> None:
    sketch = tiled(stencils(200, 300, border=border))
    regions = infer_domains(sketch.state)["s0"].regions
    values = {p.name: {"s2.i.t": 8, "s2.i.s": 2, "s2.j.t": 32}.get(p.name, 1) for p in sketch.params}
    program = Program([regions["i"].extent, regions["j"].extent], tuple(values))
    sizes = program(np.array([list(values.values())], np.int64))[:, 0].tolist()
    right = 2 if border else 1  # columns beside a point
    assert sizes == [16 + 2 * 2, 32 + 2 * (right + 1)]


def test_what_a_thread_alone_reads_is_in_its_registers() -> None:
    scopes = {s.name: s.scope for s in tiled(colours(200, 300)).state.stages if s.at is not None}
    assert scopes == {"ratio": Scope.REGISTER, "grey": Scope.SHARED}


def test_threads_meet_once_for_each_stage() -> None:
    """Outside of loops nobody reads what is overwritten."""
    nest = lower(tiled(stencils(200, 300)).state)
    assert sum(isinstance(s, Barrier) for s in walk(nest.body)) == 2
    assert not any(
        s.kind is ForKind.SERIAL and any(isinstance(x, Barrier) for x in walk(s.body))
        for s in walk(nest.body)
        if isinstance(s, For)
    )


def test_stages_that_shared_memory_has_no_room_for_get_kernels() -> None:
    """Of twelve stencils of doubles; what remains is tiled as well, and every sketch has legal rows."""
    dag, small = stencils(200, 300, "float64", border=False, depth=12), parse_target("opencl")
    counts = [sum(s.at is not None for s in x.sketch.state.stages) for x in draw(dag, small, SAMPLED, mark=MARK)]
    assert counts
    for one in draw(dag, small, SAMPLED, mark=MARK):
        assert len(one.legal), f"{one.sketch.name}: {one.broken}"
    wide = drawn_of(tiled(stencils(200, 300)), AMPERE)
    assert "shared bytes" in {rule for row in wide.rows for rule in wide.model.broken_rules(0, row)}


def test_vectors_of_what_is_computed_in_the_block_are_in_one_row() -> None:
    """Of tiles whose rows are 64 points and two of a halo, four points are no neighbours in another buffer."""
    drawn = drawn_of(tiled(stencils(200, 300, border=False)), AMPERE)
    sizes = {"s2.i.t": 8, "s2.i.s": 2, "s2.j.t": 32, "s2.j.v": 2}
    for width, is_legal in ((1, True), (2, True), (4, False)):
        row = np.array([[{**sizes, "s2.w": width}[p.name] for p in drawn.sketch.params]], np.int64)
        assert bool(drawn.model.legal(0, row)[0]) is is_legal
    source = build_source(drawn.func, {**sizes, "s2.w": 2}, AMPERE)
    assert "*(float2*)(&s1[" in source.text


def moved(sketch: Sketch) -> float:
    """The bytes of global memory that the best of some candidates moves, as predicted."""
    drawn, machine = drawn_of(sketch, AMPERE, SAMPLED), gpu_machine(AMPERE)
    best = drawn.legal[drawn.model.analytic_latency(0, drawn.legal).argmin()]
    cost = gpu_analytic_latency(analyse(drawn.func), machine)
    each = [dram_bytes([t for c in k.costs for t in c.traffic], machine.facts.l2_bytes) for k in cost.kernels]
    return float(Program([sum_of(each)], [p.name for p in sketch.params])(best[None])[0, 0])


@pytest.mark.parametrize("border", [True, False])
def test_tiles_move_the_input_and_the_output_alone(border: bool) -> None:
    """Halos come to less than a quarter, and borders to nothing."""
    dag = stencils(1536, 2560, border=border)
    bytes_of_images = 2 * 1536 * 2560 * 4
    assert bytes_of_images * 0.99 < moved(tiled(dag)) < bytes_of_images * 1.25
    best, other = best_with_and_without(dag, AMPERE, MARK, SAMPLED)
    assert best < other
