"""Kernels whose blocks share tiles, with a fault planted in their text, each of which the simulator or the result must
show."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from autosched.codegen.c.source import GpuSource
from autosched.ir.stmt import Func
from autosched.runtime.simulator.build import find_compiler
from autosched.te import ComputeDAG
from autosched.te.reference.evaluate import evaluate, within
from autosched.te.reference.inputs import make_inputs
from tests.codegen import cuda
from tests.codegen.test_shared_tiles import shared
from tests.matrix_products import product
from tests.runtime.test_planted_faults import Fault, planted

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="g++ is not installed (on Debian: g++)")

CLUSTERS: dict[str, Fault] = {
    "only one block is told that a place is empty": Fault(r"threadIdx\.x < 2 &&", "threadIdx.x < 1 &&", "deadlock"),
    "a block tells itself twice": Fault(r"in_block\(threadIdx\.x", "in_block(rank", "race"),
    "half a tile goes to one block": Fault(r", 0x3\)", ", 0x1)", "deadlock"),
    "half a tile goes to its own block": Fault(r", 0x3\)", ", 1 << rank)", "deadlock"),
    "both halves go to one place": Fault(r"rank \* 2048", "0", "race"),
    "both halves come from one place": Fault(r"\+ rank \* 32", ""),
    "the other block's warpgroups do not count": Fault(r"\[n \* 2 \+ 1\], 2\)", "[n * 2 + 1], 1)", "race"),
    "less is announced than comes": Fault(r"expect_bytes\(([^,]*), 16384", r"expect_bytes(\1, 12288", "protocol"),
    "barriers are used before both blocks have them": Fault(
        r"arrive_at_cluster\(\);\n  wait_for_cluster\(\);\n  const", "__syncthreads();\n  const", "race"
    ),
    "a block ends before the other one needs it no more": Fault(
        r"arrive_at_cluster\(\);\n  wait_for_cluster\(\);\n}", "}", "race"
    ),
}


TURNS: dict[str, Fault] = {
    "nobody waits for a turn": Fault(r"take_turn\(4 \+ turn\);", "", "deadlock"),
    "nobody lets the first one begin": Fault(r"give_turn\(4\);", "", "deadlock"),
    "a turn is not passed on": Fault(r"give_turn\(5 - turn\);", "", "deadlock"),
    "a turn is kept": Fault(r"5 - turn", "4 + turn", "deadlock"),
    "the other one's places are not passed over": Fault(r"place \+= 5;\n(.*\n.*\n    )}", r"\1}", "race"),
    "both begin at the first place": Fault(r"place \+= 5;", "", ""),
    "parity is not that of the place": Fault(r"parity \^= place / 2 & 1;", "parity ^= 1;", "deadlock"),
    "both store from one place": Fault(r"C_staged\[turn\]", "C_staged[0]", "race"),
    "a turn leaves tiles out": Fault(r"tile \+= 4\) {\n      const int C_i_0 = (.*);\n      __", r"tile += 8) {\n      const int C_i_0 = \1;\n      __"),
}  # fmt: skip


@cache
def in_turn() -> tuple[ComputeDAG, Func, GpuSource]:
    dag = product(640, 64, 296)
    return dag, *shared(dag, (1, 1, 2), staged=1, multiprocessors=2)


@pytest.mark.parametrize("name", TURNS)
def test_faults_of_turns(name: str) -> None:
    dag, func, source = in_turn()
    fault = TURNS[name]
    kinds, right = outcome(dag, func, replace(source, text=planted(source.text, fault)))
    assert fault.mistake in kinds if fault.mistake else not right, (kinds, right)


@cache
def clustered() -> tuple[ComputeDAG, Func, GpuSource]:
    dag = product(256, 64, 200)
    return dag, *shared(dag, (2, 1))


def outcome(dag: ComputeDAG, func: Func, source: GpuSource) -> tuple[list[str], bool]:
    """(kinds of mistakes, whether the result is right)"""
    inputs = make_inputs(dag, 0, "normal")
    outputs, ran = cuda.once(source, func, inputs, cuda.CHECKED)
    right = (
        within(r, outputs[t.name].reshape(r.value.shape)).all()
        for t, r in zip(dag.outputs, evaluate(dag, inputs), strict=True)
    )
    return [mistake.kind for mistake in ran.mistakes], all(right)


@pytest.mark.parametrize("name", CLUSTERS)
def test_faults_of_clusters(name: str) -> None:
    dag, func, source = clustered()
    fault = CLUSTERS[name]
    kinds, right = outcome(dag, func, replace(source, text=planted(source.text, fault)))
    assert fault.mistake in kinds if fault.mistake else not right, (kinds, right)
