"""Reductions along the columns of a product where the product is: where that is offered, and that it is right."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from autosched import te
from autosched.codegen import build_source
from autosched.ir.interpreter.interpret import interpret
from autosched.lower import lower
from autosched.lower.pipeline import concretise
from autosched.schedule import replay, steps_to_json
from autosched.target import Target, parse_target
from autosched.te.reference.evaluate import evaluate, within
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from autosched.te.rewrites.precision import with_precision
from search_spaces.gpu import sketches
from tests.codegen.gpu import TARGETS
from tests.codegen.nvcc import resources
from tests.search_spaces.gpu_candidates import Drawn, best_with_and_without, check_candidates, draw

MARK = ":lanes"
SM_80 = TARGETS["cuda"]
SM_90 = parse_target("cuda -arch=sm_90")
SPILLED = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


@dataclass(frozen=True)
class Product:
    """A (batch, m, k) times B (batch, k, n), no batch with 0. `stored`: it is an output as well."""

    m: int
    n: int
    k: int
    dtype: str = "float16"
    batch: int = 0
    stored: bool = False


def squares(product: Product) -> te.ComputeDAG:
    """Sums of squares of the rows, rounded before."""
    C, lead = multiplied(product)
    H = te.compute(C.shape, lambda *at: te.cast(C[at], product.dtype), name="H")
    j = te.reduce_axis(product.n, "j")

    def body(*at: te.Expr) -> te.Expr:
        value = te.cast(H[(*at, j)], "float32")
        return te.sum(value * value, axis=j)

    R = te.compute(lead, body, name="R")
    return te.ComputeDAG([H, R] if product.stored else [R])


def largest(product: Product) -> te.ComputeDAG:
    """The largest of each row, after a bias, a residual and an activation."""
    C, lead = multiplied(product)
    bias, more = te.placeholder((product.n,), "float32", name="bias"), te.placeholder(C.shape, "float32", name="more")
    E = te.compute(C.shape, lambda *at: te.tanh(C[at] + bias[at[-1]]) * more[at], name="E")
    j = te.reduce_axis(product.n, "j")
    return te.ComputeDAG([te.compute(lead, lambda *at: te.max(E[(*at, j)], axis=j), name="R")])


def means(product: Product) -> te.ComputeDAG:
    """One by the root of the mean of the squares."""
    [R] = squares(product).outputs
    return te.ComputeDAG([te.compute(R.shape, lambda *at: te.rsqrt(R[at] / float(product.n) + 1e-3), name="S")])


def multiplied(product: Product) -> tuple[te.Tensor, tuple[int, ...]]:
    lead = (product.batch,) * bool(product.batch)
    A = te.placeholder((*lead, product.m, product.k), product.dtype, name="A")
    B = te.placeholder((*lead, product.k, product.n), product.dtype, name="B")
    k = te.reduce_axis(product.k, "k")

    def body(*at: te.Expr) -> te.Expr:
        *outer, i, j = at
        a, b = A[(*outer, i, k)], B[(*outer, k, j)]
        return te.sum(te.cast(a, "float32") * te.cast(b, "float32"), axis=k)

    return te.compute((*lead, product.m, product.n), body, name="C"), (*lead, product.m)


def in_lanes(dag: te.ComputeDAG, target: Target = SM_80) -> list[str]:
    return [s.name for s in sketches(collapse(dag), target) if MARK in s.name]


def drawn(dag: te.ComputeDAG, target: Target = SM_80, mark: str = "") -> tuple[Drawn, ...]:
    """By `mark` what is in the names of sketches beside MARK."""
    found = [d for d in draw(collapse(dag), target, 2000 if mark else 300, mark=MARK) if mark in d.sketch.name]
    assert found
    return tuple(found)


def check(dag: te.ComputeDAG, target: Target = SM_80, runs: int = 1, mark: str = "") -> None:
    check_candidates(dag, drawn(dag, target, mark), target, runs)


@pytest.mark.parametrize("target", [SM_80, SM_90], ids=["sm_80", "sm_90"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("make", [squares, largest])
def test_odd_sizes(make: Callable[[Product], te.ComputeDAG], dtype: str, target: Target) -> None:
    check(make(Product(37, 53, 23, dtype)), target)


@pytest.mark.parametrize("shape", [(2, 19, 16), (19, 2, 16), (17, 8, 9), (5, 131, 40), (64, 64, 32)])
def test_few_rows_and_few_columns(shape: tuple[int, int, int]) -> None:
    check(squares(Product(*shape)))
    check(largest(Product(*shape)))


def test_batches_and_several_candidates() -> None:
    check(squares(Product(21, 43, 24, batch=3)), runs=3)
    check(largest(Product(21, 43, 24, batch=2)))
    check(squares(Product(21, 43, 24, batch=1)))


@pytest.mark.parametrize("shape", [(131, 64, 48), (64, 136, 40), (200, 256, 24), (70, 40, 23)])
@pytest.mark.parametrize("make", [squares, largest])
def test_by_warpgroups(make: Callable[[Product], te.ComputeDAG], shape: tuple[int, int, int]) -> None:
    check(make(Product(*shape)), SM_90, mark="wgmma")


def test_by_warpgroups_in_batches() -> None:
    check(largest(Product(70, 64, 32, "bfloat16", batch=3)), SM_90, runs=2, mark="wgmma")


def test_a_reader_of_the_results() -> None:
    check(means(Product(19, 40, 16)))


def test_products_of_float32_that_may_be_short() -> None:
    check(with_precision(largest(Product(18, 37, 19, "float32")), "tf32"))


def test_interpreted() -> None:
    dag = collapse(largest(Product(17, 35, 16)))
    inputs = make_inputs(dag, 0, "normal")
    (reference,) = evaluate(dag, inputs)
    for one in drawn(dag):
        values = next(one.candidates(1))
        (got,) = interpret(concretise(one.func, values)[0], inputs)
        assert within(reference, got).all()


def test_the_product_is_not_stored() -> None:
    dag = squares(Product(40, 96, 32))
    for one in drawn(dag):
        values = next(one.candidates(1))
        source = build_source(one.func, values, SM_80)
        assert "__shfl_xor_sync" in source.text
        assert sum(nbytes for _, nbytes in source.workspace) <= 40 * 96 // 8 * 4
        assert len(source.launches) == (2 if "parts" in one.sketch.name else 1)


def test_records_find_the_schedule_again() -> None:
    dag = collapse(squares(Product(33, 40, 16)))
    for one in drawn(dag):
        values = next(one.candidates(1))
        text = steps_to_json(one.sketch.state, values)
        again = replay(dag, text)
        assert steps_to_json(again, {}) == text
        assert lower(again) is not None


def test_where_it_is_offered() -> None:
    def few(product: Product, target: Target = SM_80) -> list[str]:
        return in_lanes(squares(product), target)

    few_columns, many = ["C:mma.float16/R:lanes"], ["C:mma.float16/R.rf:lanes-of-parts"]
    assert few(Product(64, 8, 64)) == few_columns
    assert few(Product(64, 64, 64)) == few_columns + many
    assert few(Product(64, 512, 64)) == many
    assert few(Product(64, 64, 64), SM_90) == [
        "C:wgmma.float16/R:lanes", "C:wgmma.float16/R.rf:lanes-of-parts", *few_columns, *many,
    ]  # fmt: skip
    assert few(Product(64, 24, 64), SM_90)[0] == "C:wgmma.float16/R.rf:lanes-of-parts"
    assert any("wgmma.float16-copied/R:lanes" in name for name in few(Product(64, 64, 23), SM_90))
    assert not few(Product(64, 64, 64, stored=True))
    assert not few(Product(64, 1, 64))
    assert not few(Product(1, 64, 64))
    assert not few(Product(64, 64, 64), TARGETS["opencl"])
    assert not few(Product(64, 64, 64, "float32"))
    assert not few(Product(64, 64, 64, "bfloat16"), parse_target("cuda -arch=sm_75"))


def test_columns_reduced_along_rows_are_another_kernel() -> None:
    C, _ = multiplied(Product(64, 64, 64))
    i = te.reduce_axis(64, "i")
    assert not in_lanes(te.ComputeDAG([te.compute((64,), lambda j: te.sum(C[i, j], axis=i), name="R")]))


@pytest.mark.parametrize("shape", [(65536, 128, 64), (16384, 512, 64)])
def test_the_model_prefers_it_where_products_are_large(shape: tuple[int, int, int]) -> None:
    in_lanes_s, others_s = best_with_and_without(squares(Product(*shape)), SM_80, MARK, 200)
    assert in_lanes_s < others_s


@pytest.mark.parametrize(("target", "arch"), [(SM_80, "sm_80"), (SM_90, "sm_90a")])
def test_nothing_is_spilled(target: Target, arch: str, tmp_path: Path) -> None:
    for one in drawn(squares(Product(512, 64, 64)), target):
        for values in one.candidates(1):
            said = resources(build_source(one.func, values, target).text, arch, tmp_path)
            assert not any(int(a) or int(b) for a, b in SPILLED.findall(said)), f"{values}\n{said}"
