"""Reduction chains: what is matched as one, what its parts are, and what breaks it."""

from __future__ import annotations

import math

import pytest

from autosched import te
from autosched.schedule import initial_state
from autosched.te import ComputeDAG, Tensor
from autosched.te.rewrites.collapse import collapse
from search_spaces.gpu import sketches
from search_spaces.partial_sketch import PartialSketch
from search_spaces.reduction_chain import ReductionChain, match_reduction_chain
from tests.bottlenecks import Sizes as Bottleneck
from tests.bottlenecks import bottleneck, perceptron
from tests.codegen.gpu import TARGETS
from tests.weighted_sums import Sizes, weighted


def match(dag: ComputeDAG, last: str) -> ReductionChain | None:
    sketch = PartialSketch(initial_state(dag))
    return match_reduction_chain(sketch, sketch.state.stage(last))


def names(chain: ReductionChain | None) -> tuple[str, tuple[str, ...]]:
    """The only source, and the stages that are inlined between."""
    assert chain is not None
    assert chain.softmax is None
    assert chain.only_source is not None
    return chain.only_source.name, chain.maps


def product(rows: int = 8, columns: int = 6, name: str = "C") -> Tensor:
    a, b = (te.placeholder((n, 5), name=f"{x}{name}") for n, x in ((rows, "A"), (columns, "B")))
    k = te.reduce_axis(5, name="k")
    return te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[j, k], axis=k), name=name)


def of_rows(x: Tensor, name: str = "R") -> Tensor:
    j = te.reduce_axis(x.shape[-1], name="j")
    return te.compute(x.shape[:-1], lambda i: te.max(x[i, j], axis=j), name=name)


def exponentials(x: Tensor, name: str = "E") -> Tensor:
    return te.compute(x.shape, lambda i, j: te.exp(x[i, j]), name=name)


def test_two_products_with_an_activation_between() -> None:
    chain = match(perceptron(7, 5, 19), "Y")
    assert names(chain) == ("H", ("A",))
    assert chain is not None
    assert chain.operand.name == "Y"
    [read] = chain.reads(chain.sources[0])
    assert read.indices == (chain.last.op.axes[0].var, chain.last.op.reduce_axes[0].var)
    assert match(perceptron(7, 5, 19), "H") is None  # it reads no reduction
    assert match(perceptron(7, 5, 19), "A") is None  # and this is none


def test_windows_are_read_through_a_padding() -> None:
    dag = bottleneck(Bottleneck(2, 5, 6, 3, 19))
    assert names(match(dag, "D")) == ("E", ("P", "EA"))
    chain = match(dag, "Y")
    assert names(chain) == ("D", ("DA",))
    assert chain is not None
    assert chain.writer is not None
    assert chain.writer.name == "Z"


def test_the_rows_of_a_product() -> None:
    c = product()
    assert names(match(ComputeDAG(of_rows(c)), "R")) == ("C", ())
    assert names(match(ComputeDAG(of_rows(exponentials(c))), "R")) == ("C", ("E",))


def test_maps_come_in_the_order_of_reads() -> None:
    c, j = product(), te.reduce_axis(6, name="j")
    e, t = exponentials(c), te.compute(c.shape, lambda i, j: te.tanh(c[i, j]), name="T")
    r = te.compute((8,), lambda i: te.sum(t[i, j] * e[i, j], axis=j), name="R")
    assert names(match(ComputeDAG(r), "R")) == ("C", ("T", "E"))


@pytest.mark.parametrize("masked", ["", "added", "kept", "causal"])
def test_a_softmax_keeps_the_maximum_and_the_sum_of_each_row(masked: str) -> None:
    chain = match(weighted(Sizes(5, 7, 3, 4, 2), "float16", masked), "Y")
    assert chain is not None
    assert chain.softmax is not None
    assert chain.only_source is not None
    assert (chain.only_source.name, chain.operand.name) == ("P", "W")
    assert (chain.softmax.peak.name, chain.softmax.total.name) == ("top", "all")
    assert chain.between == {"W", "E", "X", "top", "all"}
    assert chain.writer is not None
    assert chain.writer.name == "Z"
    points = tuple(a.var for a in chain.operand.op.axes)
    assert [x.indices for x in chain.reads(chain.only_source)] == [points]


def test_a_writer_may_permute() -> None:
    chain = match(weighted(Sizes(5, 7, 3, 4, 2, "", (1, 0, 2))), "Y")
    assert chain is not None
    assert chain.writer is not None
    assert chain.writer.name == "Z"


def test_results_that_others_read_are_of_no_chain() -> None:
    """An output, by itself or as a map; another reader; a reader of a softmax's rows."""
    c = product()
    assert match(ComputeDAG([of_rows(c), c]), "R") is None
    e = exponentials(c)
    assert match(ComputeDAG([of_rows(e), e]), "R") is None
    assert match(ComputeDAG([of_rows(e), te.compute(c.shape, lambda i, j: c[i, j] + 1.0, name="more")]), "R") is None
    assert match(ComputeDAG([of_rows(e), of_rows(e, "R2")]), "R") is None


def attention(output: str = "") -> ComputeDAG:
    """softmax(C) V, with the tensor `output` as a second output, or with a reader of the rows' sums for "logarithm".

    A writer reads the maxima of the rows as well, for those of which a mask would keep nothing."""
    c, v = product(), te.placeholder((6, 4), name="V")
    top, k, m = of_rows(c, "top"), te.reduce_axis(6, name="k"), te.reduce_axis(6, name="m")
    e = te.compute(c.shape, lambda i, j: te.exp(c[i, j] - top[i]), name="E")
    total = te.compute((8,), lambda i: te.sum(e[i, k], axis=k), name="all")
    w = te.compute(c.shape, lambda i, j: e[i, j] / total[i], name="W")
    y = te.compute((8, 4), lambda i, j: te.sum(w[i, m] * v[m, j], axis=m), name="Y")
    z = te.compute((8, 4), lambda i, j: te.select(te.equal(top[i], -math.inf), 0.0, y[i, j]), name="Z")
    logarithm = te.compute((8,), lambda i: te.log(total[i]), name="logarithm")
    return ComputeDAG([z, *(t for t in (c, e, top, total, w, logarithm) if t.name == output)])


@pytest.mark.parametrize("output", ["", "C", "E", "top", "all", "W", "logarithm"])
def test_what_a_softmax_keeps_is_for_the_chain_alone(output: str) -> None:
    chain = match(attention(output), "Y")
    assert (chain is not None and chain.softmax is not None) == (not output)


@pytest.mark.parametrize("output", ["", "C", "E", "all", "logarithm"])
def test_gpus_store_what_others_read(output: str) -> None:
    found = [s.name for s in sketches(collapse(attention(output)), TARGETS["opencl"])]
    assert found
    assert any(":online" in name for name in found) == (not output)


def test_other_reductions_are_stored() -> None:
    """Another reduction may be read beside, if its results are no operand along the axis that is reduced."""
    c, j = product(), te.reduce_axis(6, name="j")
    rows = of_rows(te.placeholder((8, 4), name="X"), "S")
    t = te.compute((8,), lambda i: te.tanh(rows[i]), name="T")
    r = te.compute((8,), lambda i: te.sum(c[i, j] * t[i], axis=j), name="R")
    chain = match(ComputeDAG(r), "R")
    assert chain is not None
    assert [s.name for s in chain.sources] == ["C"]
    assert chain.maps == ()
    assert not chain.is_alone
    assert chain.only_source is None


def test_two_products_are_two_sources() -> None:
    c, d, j = product(), product(name="D"), te.reduce_axis(6, name="j")
    chain = match(ComputeDAG(te.compute((8,), lambda i: te.sum(c[i, j] * d[i, j], axis=j), name="R")), "R")
    assert chain is not None
    assert [s.name for s in chain.sources] == ["C", "D"]
    assert chain.only_source is None


def test_a_statistic_of_the_same_rows_needs_them_all() -> None:
    """The exponentials' sum reads the product and its maximum, which is complete before: the product is stored."""
    c, j = product(), te.reduce_axis(6, name="j")
    top = of_rows(c, "top")
    chain = match(ComputeDAG(te.compute((8,), lambda i: te.sum(te.exp(c[i, j] - top[i]), axis=j), name="R")), "R")
    assert chain is not None
    assert [s.name for s in chain.sources] == ["top"]
    assert not chain.is_alone


def test_maps_that_read_many_places_of_one_another_are_no_chain() -> None:
    """A pyramid's stages multiply each other's reads: to inline all of them takes minutes."""

    def smoothed(x: Tensor, name: str) -> Tensor:
        n, m = x.shape
        reads = [(p, q) for p in range(4) for q in range(4)]
        return te.compute((n - 3, m - 3), lambda i, j: sum((x[i + p, j + q] for p, q in reads[1:]), x[i, j]), name=name)

    image = smoothed(product(30, 30), "S0")
    assert names(match(ComputeDAG(of_rows(image)), "R")) == ("C", ("S0",))
    for n in range(1, 6):
        image = smoothed(image, f"S{n}")
    assert match(ComputeDAG(of_rows(image)), "R") is None
