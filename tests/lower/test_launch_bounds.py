"""Launch bounds: how many blocks of a kernel a multiprocessor should have registers for."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autosched.codegen.c.kernel import emit
from autosched.errors import ScheduleError
from autosched.ir.closed_forms.program import Program
from autosched.ir.expr import Const, Param
from autosched.ir.stmt import ForKind
from autosched.ir.verify import IRError, verify
from autosched.lower import concretise, lower
from autosched.schedule import LaunchBounds, State, initial_state, replay, steps_to_json
from autosched.target import parse_target
from cost_model.analysis.statements import analyse
from cost_model.gpu.kernels import kernels
from cost_model.gpu.latency import register_room
from cost_model.gpu.legality import gpu_rules
from cost_model.gpu.machine import gpu_machine
from tests.codegen.nvcc import resources
from tests.gpu_schedules import matmul, matmul_state, several, tiled
from tests.helpers import check_nest
from tests.ir.nests import F32, I64, Var, buffer, func, loop, num, store

DAG = matmul(64, 64, 32)
VALUES = {"iv": 1, "it": 16, "is": 4, "jv": 1, "jt": 16, "js": 4, "k1": 4, "k2": 2, "va": 4, "vb": 4}


def bounded(blocks: int | str) -> State:
    return matmul_state(DAG).apply(LaunchBounds("C", blocks))


def test_the_text() -> None:
    for blocks, words in ((3, "(256, 3)"), ("n", "(256, 2)")):
        concrete, simplify = concretise(lower(bounded(blocks)), {**VALUES, "n": 2})
        assert f"__launch_bounds__{words} kernel_0" in emit(concrete, simplify, "cuda").text
        assert "launch_bounds" not in emit(concrete, simplify, "opencl").text
        assert f"{words[6]} blocks resident" in str(concrete.body)
        check_nest(concrete, DAG)
    plain, simplify = concretise(lower(matmul_state(DAG)), {**VALUES, "is": 1, "js": 1})  # few registers
    assert "__launch_bounds__(256) kernel_0" in emit(plain, simplify, "cuda").text


def test_each_kernel_has_its_own() -> None:
    dag = several(13, 12, 7)
    state = initial_state(dag).apply(*tiled("C", "ij", "c"), *tiled("D", "ij", "d"), *tiled("S", "i", "s"))
    names = [f"{tag}{a}{level}" for tag in "cd" for a in "ij" for level in "vts"] + ["siv", "sit", "sis"]
    concrete, simplify = concretise(lower(state.apply(LaunchBounds("D", 5))), dict.fromkeys(names, 2))
    text = emit(concrete, simplify, "cuda").text
    assert re.findall(r"__launch_bounds__\((.*?)\)", text) == ["4", "4, 5", "2"]


def test_what_it_refuses() -> None:
    plain = initial_state(DAG)
    with pytest.raises(ScheduleError, match=r"launch_bounds\(C\): bind the loops of a stage at the root first"):
        plain.apply(LaunchBounds("C", 2))
    with pytest.raises(ScheduleError, match="bind the loops of a stage at the root first"):
        bounded(2).apply(LaunchBounds("C.acc", 2))
    for blocks in (0, -1, True, 1.5):
        with pytest.raises(ScheduleError, match="is not an integer from 1 to"):
            bounded(blocks)  # type: ignore[arg-type]


def test_records() -> None:
    text = steps_to_json(bounded("n"), {**VALUES, "n": 2})
    assert '["LaunchBounds","C",2]' in text
    assert replay(DAG, text).stage("C").resident == 2


def test_the_verifier() -> None:
    t, k, zero = Var("t", I64), Var("k", I64), Const(0.0, F32)
    out = buffer("C", (4,))
    good = loop(t, 4, store("C", (t,), zero), kind=ForKind.THREAD_X)
    verify(func([], [out], replace(good, resident=num(2))), concrete=True)
    serial = loop(k, 4, store("C", (k,), zero))
    inner = loop(k, 1, replace(good, resident=num(2)), kind=ForKind.BLOCK_X)
    for nest in (replace(serial, resident=num(2)), inner):
        with pytest.raises(IRError, match="only a kernel's outermost loop says how many of its blocks are resident"):
            verify(func([], [out], nest), concrete=True)
    with pytest.raises(IRError, match="parameter n is left in a concrete function"):
        verify(func([], [out], replace(good, resident=Param("n"))), concrete=True)


def test_registers_follow() -> None:
    """sm_80 has 65536 registers: 256 threads have 255 of them at most, 128 with two blocks, 64 with four."""
    machine = gpu_machine(parse_target("cuda -arch=sm_80"))
    analysis = analyse(lower(bounded("n")))
    (kernel,) = kernels(analysis)
    names = [*VALUES, "n"]
    rows = np.array([[*VALUES.values(), n] for n in (1, 2, 4, 8, 9)], np.int64)
    room = Program([register_room(kernel, machine)], names)(rows)[0]
    assert room.tolist() == [255, 128, 64, 32, 24]
    rules = gpu_rules(analysis, machine)
    holds = {r.name: Program([r.holds], names)(rows)[0].astype(bool).tolist() for r in rules}
    assert holds["registers"] == [True, True, True, False, False]  # 4 x 4 accumulators and what they are made of
    assert holds["resident blocks"] == [True, True, True, True, False]  # 2048 threads are all that there is room for


def test_nvcc_keeps_to_it(tmp_path: Path) -> None:
    concrete, simplify = concretise(lower(bounded(4)), VALUES)
    said = resources(emit(concrete, simplify, "cuda").text, "sm_80", tmp_path)
    used = int(said.partition("Used ")[2].partition(" registers")[0])
    assert used <= 64
    assert "0 bytes spill stores" in said
