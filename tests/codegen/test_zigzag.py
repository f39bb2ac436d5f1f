"""The order of a tile's multiply-adds on a GPU, and results that leave their registers before they are stored."""

from __future__ import annotations

import pytest

from autosched.codegen.c.kernel import emit
from autosched.codegen.c.tiles.zigzag import copy_sums_to_own_registers
from autosched.ir.expr import INDEX, Const, Load, const
from autosched.lower import concretise, lower
from autosched.target import parse_target
from autosched.te.operators.registry import build
from autosched.te.reference.evaluate import evaluate, within
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from search_spaces.gpu import sketches
from tests.codegen.gpu import run

ALONG, ACROSS = "matmul:X@shared-Y@shared", "matmul:X@shared.T-Y@shared"
CUDA = parse_target("cuda -arch=sm_80")


def made(name, shape=(1, 37, 64, 24), dialect="cuda", **values):
    """The concrete function and its source; what is not given is the smallest."""
    dag = build("gmm", shape, {}, None, "float32")[0]
    sketch = {s.name: s for s in sketches(collapse(dag), CUDA)}[name]
    given = {"i.v": 2, "i.t": 4, "i.s": 4, "j.v": 2, "j.t": 8, "j.s": 4, "acc.k.c": 2, "acc.k.u": 4} | values
    row = {p.name: p.domain[0] for p in sketch.params} | {f"matmul.{n}": v for n, v in given.items()}
    concrete, simplify = concretise(lower(sketch.state), row)
    return dag, concrete, emit(concrete, simplify, dialect)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        (ACROSS, {}), (ACROSS, {"i.s": 2, "j.s": 2}), (ACROSS, {"i.s": 5, "i.v": 1, "j.s": 6}), (ALONG, {}),
    ],
)  # fmt: skip
def test_products_are_right_in_that_order(name, values):
    dag, concrete, source = made(name, **values)
    assert ("pair % 2 ?" in source.text) == (name == ACROSS)
    assert "__fadd_rn" in source.text
    inputs = make_inputs(dag, 0, "normal")
    seen = run(source, concrete, inputs)["matmul"]
    (reference,) = evaluate(dag, inputs)
    assert within(reference, seen.reshape(reference.value.shape)).all()


def test_every_second_row_of_a_wide_tile_begins_with_the_second_column():
    assert "step / 2 % 2 ? 1 - step % 2" in made(ACROSS)[2].text
    assert "1 - step % 2" not in made(ACROSS, **{"j.v": 1})[2].text


def test_the_operand_of_the_column_comes_first():
    line = next(x for x in made(ACROSS)[2].text.splitlines() if "+=" in x)
    assert line.index("Y_shared") < line.index("X_shared")


@pytest.mark.parametrize("values", [{"i.v": 1, "i.s": 3}, {"j.v": 1, "j.s": 5}, {"j.v": 1, "j.s": 2}])
def test_small_and_odd_tiles_stay_as_they_are(values):
    assert "pair" not in made(ACROSS, **values)[2].text


def test_only_the_dialect_with_a_word_for_it_lets_go():
    text = made(ACROSS, dialect="opencl")[2].text
    assert "pair" not in text
    assert "fadd" not in text
    values = (
        Load("acc", (Const(0, INDEX),), "float32"),
        Load("x", (Const(0, INDEX),), "float32"),
        const(1.0, "float32"),
    )
    assert copy_sums_to_own_registers(values, ["a", "x", "1"], {"acc"}, "f({value})") == ["f(a)", "x", "1"]
    assert copy_sums_to_own_registers(values, ["words"], {"acc"}, "f({value})") == ["words"]
