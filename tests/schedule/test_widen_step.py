"""The steps Widen, Factor and Once, and where the CPU's space takes them: what many points read is made once."""

from __future__ import annotations

import numpy as np
import pytest

from autosched import te
from autosched.errors import ScheduleError
from autosched.ir.expr import Binary, Call, Cast
from autosched.ir.stmt import Store, walk
from autosched.ir.visit import subexpressions
from autosched.lower import lower
from autosched.schedule import Factor, Once, Split, Stage, Widen, initial_state, replay, steps_to_json
from autosched.target import parse_target
from autosched.te import ComputeDAG
from autosched.te.operators import registry
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from search_spaces import cpu
from tests.codegen.running import check_candidate
from tests.helpers import exact, little_rows

HASWELL, ZEN4 = (parse_target(f"llvm -mcpu={name}") for name in ("haswell", "znver4"))


def product(M: int, N: int, K: int, a: str, b: str, to: str = "float32") -> ComputeDAG:
    A, B, k = te.placeholder((M, K), a, "A"), te.placeholder((K, N), b, "B"), te.reduce_axis(K, "k")
    return collapse(
        ComputeDAG(te.compute((M, N), lambda i, j: te.sum(te.cast(A[i, k], to) * te.cast(B[k, j], to), axis=k), "C"))
    )


def widened(dag: ComputeDAG, target) -> set[tuple[str, ...]]:
    """The buffers that each sketch converts."""
    return {tuple(x.buffer for x in s.state.steps if isinstance(x, Widen)) for s in cpu.sketches(dag, target, 2)}


@pytest.mark.parametrize(
    "dag",
    [
        product(33, 35, 7, "float16", "float16"),
        product(40, 33, 5, "bfloat16", "float32"),
        product(5, 49, 9, "bfloat16", "float16"),
        product(33, 32, 6, "int8", "uint8", "float32"),
        product(32, 33, 4, "float32", "float16", "float64"),
        collapse(registry.build("conv2d", (1, 4, 5, 3, 33, 3, 1, 1), dtype="float16")[0]),
        collapse(registry.build("conv2d", (1, 5, 7, 8, 33, 3, 2, 1), dtype="bfloat16")[0]),
    ],
)
def test_converted_operands_compute_the_reference(dag: ComputeDAG) -> None:
    inputs, rng = make_inputs(dag, 1, "normal"), np.random.default_rng(0)
    found = [s for s in cpu.sketches(dag, HASWELL, 2) if any(isinstance(x, Widen) for x in s.state.steps)]
    assert found
    for sketch in found[::3]:
        (row,) = little_rows(sketch, 1, rng, 128)
        check_candidate(dag, sketch, row, inputs)


def test_operands_are_converted_where_many_points_read_them() -> None:
    halves = ("float16", "float16")
    assert widened(product(64, 64, 16, *halves), HASWELL) == {("A", "B")}
    assert widened(product(8, 64, 16, *halves), HASWELL) == {("A",)}, "8 rows read B"
    assert widened(product(8, 8, 16, *halves), HASWELL) == {()}
    assert widened(product(64, 64, 16, "float32", "int8"), HASWELL) == {("B",)}
    assert widened(product(64, 64, 16, "bfloat16", "bfloat16"), HASWELL) == {("A", "B")}
    assert widened(product(64, 64, 16, "bfloat16", "bfloat16"), ZEN4) == {()}, "it has an instruction"
    assert widened(product(64, 64, 16, "int8", "int8", "int32"), HASWELL) == {()}, "it has an instruction"


def test_each_reader_has_a_copy_of_its_own() -> None:
    A, k, j = te.placeholder((33, 6), "float16", "A"), te.reduce_axis(6, "k"), te.reduce_axis(33, "j")
    scores = te.compute((40, 33), lambda i, j: te.sum(te.cast(A[j, k], "float32") * i, axis=k), "S")
    dag = collapse(
        ComputeDAG(te.compute((40, 6), lambda i, d: te.sum(scores[i, j] * te.cast(A[j, d], "float32"), axis=j), "T"))
    )
    found = cpu.sketches(dag, HASWELL, 2)
    for sketch in found:
        assert {x.tag for x in sketch.state.steps if isinstance(x, Widen)} == {"wide", "T.wide"}
    for sketch in found[::4]:
        row = {p.name: int(p.domain[0]) for p in sketch.params}
        exact(dag, replay(dag, steps_to_json(sketch.state, row)))


def test_products_convert_nothing() -> None:
    for sketch in cpu.sketches(product(64, 64, 16, "float16", "bfloat16"), HASWELL, 2):
        stores = [s for s in walk(lower(sketch.state).body) if isinstance(s, Store) and s.reducer is not None]
        assert stores
        assert not [e for s in stores for v in s.values for e in subexpressions(v) if isinstance(e, Cast)]


def test_refusals() -> None:
    A, k = te.placeholder((4, 6), "int8", "A"), te.reduce_axis(6, "k")
    whole, real = te.cast(A[0, k], "int32"), te.cast(A[1, k], "float32")
    dag = ComputeDAG([te.compute((4,), lambda i: te.sum(te.cast(whole * whole, "float32") * real, axis=k), "S")])
    with pytest.raises(ScheduleError, match="A is not converted to one wider type in all places"):
        initial_state(dag).apply(Widen("S", "A"))
    state = initial_state(product(4, 5, 6, "float16", "float32"))
    with pytest.raises(ScheduleError, match="B is not converted"):
        state.apply(Widen("C", "B"))
    with pytest.raises(ScheduleError, match=r"A\.wide exists already|A is not converted"):
        state.apply(Widen("C", "A"), Widen("C", "A"))
    with pytest.raises(ScheduleError, match="before any other change"):
        state.apply(Split("C", "i", (2,)), Widen("C", "A"))


def packed_product(M: int, N: int, K: int, table: bool = False, group: int = 4) -> ComputeDAG:
    """Weights of 4 bits, two in a byte, which count or are looked up, with a scale for each group and row."""
    X, W, T = (
        te.placeholder((M, K), name="X"),
        te.placeholder((N, K // 2), "uint8", "W"),
        te.placeholder((16,), name="T"),
    )
    S, R, k = te.placeholder((N, K // group), name="S"), te.placeholder((M,), name="R"), te.reduce_axis(K, "k")

    def weight(n, k):
        bits = te.cast(W[n, k // 2], "int32") >> te.cast(k % 2 * 4, "int32") & 15
        return T[bits] if table else te.cast(bits, "float32") - 7.5

    product = te.compute(
        (M, N), lambda m, n: te.sum(R[m] * X[m, k] * weight(n, k) * S[n, k // group] * 0.5, axis=k), name="C"
    )
    return collapse(ComputeDAG(product))


def test_computed_operands_compute_the_reference() -> None:
    dag = packed_product(35, 33, 24, table=True)
    inputs, rng = make_inputs(dag, 1, "normal"), np.random.default_rng(0)
    for sketch in cpu.sketches(dag, HASWELL, 2)[::3]:
        assert {x.axes for x in sketch.state.steps if isinstance(x, Factor)} == {("m", "k"), ("n", "k")}
        row = {p.name: int(rng.choice(p.domain)) for p in sketch.params}
        check_candidate(dag, sketch, row, inputs)
    exact(dag, replay(dag, steps_to_json(sketch.state, row)))


def test_operands_are_computed_once_where_many_points_use_them() -> None:
    def computed(dag: ComputeDAG) -> set[tuple[str, tuple[str, ...]]]:
        sketch = cpu.sketches(dag, HASWELL, 2)[0]
        return {(x.buffer, x.axes) for x in sketch.state.steps if isinstance(x, Factor)}

    assert computed(packed_product(31, 33, 24)) == {("X", ("m", "k"))}, "31 rows use W"
    assert computed(packed_product(33, 31, 24)) == {("W", ("n", "k"))}
    X, V = te.placeholder((40, 64), name="X"), te.placeholder((64, 40), name="V")
    k, w = te.reduce_axis(64, "k"), te.reduce_axis(25, "w")
    plain = te.compute((40, 40), lambda i, j: te.sum(X[i, k] * V[k, j] * 0.5, axis=k), "C")
    window = te.compute((40, 40), lambda i, j: te.sum(te.exp(X[i, j + w]) * V[w, 0], axis=w), "C")
    rows = te.compute((40, 40), lambda i, j: te.sum(te.exp(X[i, k]) * V[k, j], axis=k), "C")
    columns = te.compute((40, 40), lambda i, j: te.sum(X[i, k] * te.exp(V[k, j]), axis=k), "C")
    both = te.compute((40, 40), lambda i, j: te.sum(te.exp(V[k, i]) * te.exp(V[k, j]), axis=k), "C")
    spread = te.compute((40, 40), lambda i, j: te.sum(te.exp(V[k, i]) * V[k, 0], axis=k), "C")
    found = [computed(collapse(ComputeDAG(c))) for c in (plain, window, rows, columns, both, spread)]
    of_both = {("V", ("k", "i")), ("V", ("k", "j"))}
    assert found == [set(), set(), {("X", ("i", "k"))}, {("V", ("k", "j"))}, of_both, set()]


def test_no_factor() -> None:
    state = initial_state(packed_product(4, 5, 8))
    with pytest.raises(ScheduleError, match="no product of these and of others"):
        state.apply(Factor("C", "X", ("m", "n", "k")))
    with pytest.raises(ScheduleError, match="no product of these and of others"):
        state.apply(Factor("C", "X", ("m", "k")), Factor("C", "X", ("m",), "again"))
    with pytest.raises(ScheduleError, match="exists already"):
        state.apply(Factor("C", "X", ("m", "k")), Factor("C", "X", ("n", "k")))


def normalised(M: int, N: int, over: str = "j") -> te.Tensor:
    """X less a mean, divided by a root, times what is made of an exponential, of the columns or of the rows."""
    X, mean, var, gate = te.placeholder((M, N), name="X"), *(te.placeholder((M + N,), name=n) for n in ("m", "v", "g"))

    def value(i: te.Expr, j: te.Expr) -> te.Expr:
        c = {"i": i, "j": j, "ij": i + j}[over]
        return (X[i, j] - mean[c]) / te.sqrt(te.abs(var[c]) + 1e-5) * te.sigmoid(gate[c] * 2.0)

    return te.compute((M, N), value, "Y")


def arithmetic(stage: Stage) -> list[Binary | Call]:
    return [e for e in subexpressions(stage.op.body[0]) if isinstance(e, Binary | Call)]


@pytest.mark.parametrize("target", [HASWELL, ZEN4], ids=["haswell", "znver4"])
def test_what_all_rows_make_of_a_column_is_made_once(target) -> None:
    dag = collapse(ComputeDAG(normalised(37, 45)))
    inputs, rng = make_inputs(dag, 1, "normal"), np.random.default_rng(0)
    for sketch in cpu.sketches(dag, target, 2):
        assert [x for x in sketch.state.steps if isinstance(x, Once)] == [Once("Y", ("j",)), Once("Y", ("j",), "once1")]
        assert not any(isinstance(e, Call) or e.op == "div" for e in arithmetic(sketch.state.stage("Y")))
        (row,) = little_rows(sketch, 1, rng, 128)
        check_candidate(dag, sketch, row, inputs)


def test_what_is_not_made_once() -> None:
    X, V = te.placeholder((40, 40), name="X"), te.placeholder((40,), name="V")
    cheap = te.compute((40, 40), lambda i, j: X[i, j] * (V[j] * 2.0 + 1.0), "Y")
    k = te.reduce_axis(40, "k")
    total = te.compute((40,), lambda j: te.sum(te.abs(X[k, j]), axis=k), "total")
    sums = te.compute((40, 40), lambda i, j: X[i, j] / total[j], "Y")
    chosen = te.compute((40, 40), lambda i, j: te.select(j > 0, te.exp(V[te.maximum(j - 1, 0)]), X[i, j]), "Y")
    for other in (normalised(40, 40, "i"), normalised(15, 40), normalised(40, 40, "ij"), cheap, sums, chosen):
        assert not any(
            isinstance(x, Once) for s in cpu.sketches(collapse(ComputeDAG(other)), HASWELL, 1) for x in s.state.steps
        )
    with pytest.raises(ScheduleError, match="no part of it is over these axes alone"):
        initial_state(ComputeDAG(cheap)).apply(Once("Y", ("j",)))


X, V = te.placeholder((33, 35), name="X"), te.placeholder((35,), name="V")


@pytest.mark.parametrize(
    ("value", "divisions"),
    [
        (lambda i, j: X[i, j] / V[j] - V[i], (1, 0)),
        (lambda i, j: X[i, j] / te.exp(V[j]) + te.exp(V[j]), (0, 1)),
        (lambda i, j: te.floor(X[i, j] / te.exp(V[j])), (0, 1)),  # 49 * (1 / 49) is less than 1
        (lambda i, j: te.floor(X[i, j] / V[j]), (0, 1)),
        (lambda i, j: te.select(X[i, j] / V[j] < 1.0, X[i, j], V[j]), (0, 1)),
    ],
)
def test_divisors_are_reciprocals_where_that_is_enough(value, divisions) -> None:
    dag = collapse(ComputeDAG(te.compute((33, 35), value, "Y")))
    sketch = cpu.sketches(dag, HASWELL, 1)[0]
    (row,) = little_rows(sketch, 1, np.random.default_rng(0), 128)
    stages = ([s for s in sketch.state.stages if (s.name == "Y") is is_user] for is_user in (False, True))
    assert (
        tuple(sum(e.op == "div" for s in some for e in arithmetic(s) if isinstance(e, Binary)) for some in stages)
        == divisions
    )
    check_candidate(dag, sketch, row, make_inputs(dag, 1, "normal"))
