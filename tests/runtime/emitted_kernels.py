"""Emitted CUDA C of schedules that use what a GPU has, small enough to be executed again and again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from autosched.codegen.c.kernel import emit
from autosched.codegen.c.source import GpuSource
from autosched.ir.stmt import Func
from autosched.lower import concretise, lower
from autosched.schedule import Pipeline, ShareTiles, State
from autosched.te import ComputeDAG
from tests.gpu_schedules import atomic_team_state, matmul, matmul_state, one_reduction
from tests.matrix_products import group_state, matrix_state, product


@dataclass(frozen=True)
class Emitted:
    """A workload, the nest of a schedule, and its source."""

    dag: ComputeDAG
    func: Func
    source: GpuSource


def _emitted(dag: ComputeDAG, state: State, values: Mapping[str, int] | None = None) -> Emitted:
    func, simplify = concretise(lower(state), values or {})
    return Emitted(dag, func, emit(func, simplify, "cuda"))


@cache
def emitted_kernel(name: str) -> Emitted:
    """`copies`: a product without matrix instructions, whose tiles threads copy ahead. `rows`: sums by warps that are added
    up atomically. `parts`: products of parts of k by warps, and a kernel that adds them up. The others are by warpgroups: `ring`,
    whose results go through shared memory; `promoted` of 8-bit floats; `copied`, whose tiles threads copy; `cluster`, of
    two blocks."""
    match name:
        case "copies":
            dag = matmul(13, 24, 29)
            values = {"iv": 2, "it": 2, "is": 2, "jv": 1, "jt": 4, "js": 4, "k1": 2, "k2": 2, "va": 1, "vb": 4}
            return _emitted(dag, matmul_state(dag).apply(Pipeline("C.acc", "k.0", 3)), values)
        case "rows":
            dag = one_reduction("sum", 3, 100)
            return _emitted(dag, atomic_team_state(dag, 40, 32))
        case "parts":
            dag = product(33, 24, 80)
            return _emitted(dag, matrix_state(dag, stages=2, part=64))
        case "ring":
            dag = product(72, 40, 72)
            return _emitted(dag, group_state(dag, columns=4, stages=2, staged=True))
        case "promoted":
            dag = product(64, 16, 272, "nt", "float8_e4m3fn")
            return _emitted(dag, group_state(dag, steps=2, stages=3))
        case "copied":
            dag = product(67, 64, 38, "nn")
            return _emitted(dag, group_state(dag, columns=8, stages=3))
    dag = product(128, 64, 72)
    state = group_state(dag, columns=8, steps=4, multiprocessors=5).apply(ShareTiles("C", 2, 1))
    return _emitted(dag, state)
