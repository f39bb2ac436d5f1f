"""Floats that are rounded to bytes, several vectors at a time."""

from __future__ import annotations

import numpy as np
import pytest

from autosched import te
from autosched.ir.stmt import Store, walk
from autosched.lower import concretise, lower
from autosched.lower.register_tiles.plan import tiles_text
from autosched.lower.register_tiles.vectors import rounded_byte
from autosched.runtime.jit import emit_assembly
from autosched.schedule import State, Vectorize, initial_state
from autosched.target import parse_target
from autosched.te import ComputeDAG
from autosched.te.reference.evaluate import evaluate
from tests.codegen.running import build, compare, run, targets

ROWS = 3
RANGES = {"uint8": (0, 255), "int8": (-128, 127)}


def quantised(columns: int, dtype: str, has_zero: bool, high: int | None = None) -> ComputeDAG:
    low, most = RANGES[dtype]
    x, z = te.placeholder((ROWS, columns), "float32", "X"), te.placeholder((1,), dtype, "Z")

    def at(i, j):
        value = te.round(x[i, j] * 2.0)
        value = value + z[0].astype("float32") if has_zero else value
        return te.max(te.min(value, float(most if high is None else high)), float(low)).astype(dtype)

    return ComputeDAG(te.compute((ROWS, columns), at, name="Q"))


def vectors(dag: ComputeDAG) -> State:
    return initial_state(dag).apply(Vectorize("Q", "j"))


def data(columns: int, dtype: str, zero: int) -> dict[str, np.ndarray]:
    ends = [
        0.25,
        -0.25,
        0.75,
        63.75,
        64.0,
        127.25,
        127.5,
        127.75,
        1e9,
        -1e9,
        3e38,
        -3e38,
        1.1e9,
        -1.1e9,
        16383.75,
        -0.0,
    ]
    x = np.random.default_rng(columns).uniform(-160, 160, (ROWS, columns)).astype("float32")
    x.reshape(-1)[: len(ends)] = ends
    x[-1, -len(ends) :] = ends[::-1][-columns:]
    return {"X": x, "Z": np.array([zero], dtype)}


@pytest.mark.parametrize("columns", [16, 32, 37, 48, 64, 100, 131])
@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 0), ("uint8", 255), ("int8", -128), ("int8", 101)])
def test_bytes_are_those_of_the_reference(columns: int, dtype: str, zero: int) -> None:
    for has_zero in (False, True):
        dag = quantised(columns, dtype, has_zero)
        inputs = {t.name: array for t, array in ((t, data(columns, dtype, zero)[t.name]) for t in dag.inputs)}
        expected = evaluate(dag, inputs)
        for target in targets():
            outputs = run(build(vectors(dag), target, 1), dag, inputs, target)
            compare(dag, expected, outputs, f"{dtype} {has_zero} {target.mcpu}")


@pytest.mark.parametrize(("cpu", "columns", "words", "bytes_"), [("sapphirerapids", 64, 2, 1), ("haswell", 32, 2, 1)])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_four_vectors_are_packed_together(cpu: str, columns: int, words: int, bytes_: int, dtype: str) -> None:
    target = parse_target(f"llvm -mcpu={cpu}")
    text = emit_assembly(build(vectors(quantised(columns, dtype, True)), target, 1).ir, target)
    last = "vpackuswb" if dtype == "uint8" else "vpacksswb"
    assert (text.count("vpackssdw"), text.count(last)) == (words, bytes_)
    assert text.count("vcvtps2dq") == 4
    assert "vmaxps" not in text
    assert "vpmovdb" not in text


def test_other_processors_do_it_one_by_one() -> None:
    text = build(vectors(quantised(64, "uint8", True)), parse_target("llvm -mcpu=nehalem"), 1).ir
    assert "pack" not in text


def test_what_is_clipped_elsewhere_is_not_packed() -> None:
    for high in (None, 200):
        func, _ = concretise(lower(vectors(quantised(64, "uint8", True, high))), {})
        stores = [store for store in walk(func.body) if isinstance(store, Store)]
        assert any(rounded_byte(store) is not None for store in stores) == (high is None)


@pytest.mark.parametrize(("n", "want"), [(1, ""), (2, "2"), (3, "2"), (4, "4"), (7, "4"), (17, "")])
def test_the_plan_packs_two_or_four_vectors_at_a_time(n: int, want: str) -> None:
    """A single vector gains nothing, and more than 16 are a loop."""
    target = parse_target("llvm -mcpu=znver4")
    text = tiles_text(*concretise(lower(vectors(quantised(16 * n, "uint8", True))), {}), target)
    assert text == (f"Q [Q.j={16 * n}]: {n} vectors of 16 lanes, {want} at a time packed to bytes" if want else "none")
