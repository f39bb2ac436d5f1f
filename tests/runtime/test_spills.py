"""Vectors on the stack are counted in objects as they are in LLVM's text of the same code."""

from __future__ import annotations

import re

import pytest

from autosched.runtime import jit
from autosched.runtime.jit import compile_object, emit_assembly
from autosched.runtime.spills import stack_accesses
from autosched.schedule import initial_state
from autosched.target import host_arch, parse_target
from tests.codegen.running import build
from tests.schedule.graphs import matmul, register_tile

pytestmark = pytest.mark.skipif(host_arch() != "x86_64", reason="reads x86 code")

REGISTERS = {"nehalem": "xmm", "haswell": "ymm", "skylake-avx512": "zmm"}


@pytest.mark.parametrize("mcpu", REGISTERS)
@pytest.mark.parametrize("m", [3, 9, 20])
def test_instructions_on_the_stack_are_counted(mcpu, m):
    target = parse_target(f"llvm -mcpu={mcpu}")
    state = initial_state(matmul(2 * m, 5 * target.vector_bytes, 17)).apply(*register_tile(m, target.vector_bytes, 1))
    ir = build(state, target, 1).ir
    on_stack = re.compile(rf"%{REGISTERS[mcpu]}\d+.*\(%rsp\)|\(%rsp\).*%{REGISTERS[mcpu]}\d+")
    lines = [
        x for x in emit_assembly(ir, target).splitlines() if on_stack.search(x) and "\tv" * (mcpu != "nehalem") in x
    ]
    assert stack_accesses(compile_object(ir, target), target) == len(lines)
    assert lines or m < 20


@pytest.mark.parametrize("counts", [(0,), (5, 3), (5, 7)])
def test_of_two_schedules_the_one_with_less_on_the_stack_is_taken(counts, monkeypatch):
    target, made = parse_target("llvm -mcpu=haswell"), iter(counts)
    ir = build(initial_state(matmul(8, 32, 17)).apply(*register_tile(4, 16, 2)), target, 1).ir
    plain, in_order = (jit._object(ir, target, 3, options) for options in ((), jit.IN_ORDER))
    monkeypatch.setattr(jit, "stack_accesses", lambda code, target: next(made))
    found = compile_object(ir, target)
    assert plain != in_order
    assert found == (in_order if counts == (5, 3) else plain)
    assert next(made, None) is None, "each is counted once"
    assert jit._object(ir, target, 3, ()) == plain, "options are as they were"
