"""What four bits decide is a table in a register where one instruction does that, with the result that it had."""

from __future__ import annotations

import numpy as np
import pytest

from autosched import te
from autosched.runtime.jit import emit_assembly
from autosched.schedule import Split, Vectorize, initial_state
from autosched.target import host_arch, parse_target
from autosched.te import ComputeDAG
from tests.codegen.running import build, check_kernel

SERVER = parse_target("llvm -mcpu=skylake-avx512")
WORDS = te.placeholder((53,), "int32", "W")


def scaled(i):
    return (te.cast(WORDS[i] >> 8 & 15, "float32") - 8.0) * 0.3 + 1.0


def of_five_bits(i):
    return te.cast(WORDS[i] & 31, "float32") - 8.0


def of_a_sum(i):
    """Bits of what is computed; the place is not data alone."""
    return 0.1 - te.cast(WORDS[i] + i.astype("int32") & 15, "float32")


def scheduled(value, length=53):
    dag = ComputeDAG(te.compute((length,), value, name="C"))
    return dag, initial_state(dag).apply(Split("C", "i", (16,)), Vectorize("C", "i.1"))


@pytest.mark.parametrize("value", [scaled, of_five_bits, of_a_sum])
def test_the_result_is_the_reference(value):
    words = np.random.default_rng(3).integers(-(2**31), 2**31, 53).astype("int32")
    check_kernel(*scheduled(value), {"W": words}, threads=(1,))


@pytest.mark.skipif(host_arch() != "x86_64", reason="reads x86 assembly")
@pytest.mark.parametrize(("value", "in_table"), [(scaled, True), (of_five_bits, False), (of_a_sum, True)])
def test_four_bits_are_an_instruction(value, in_table):
    assembly = emit_assembly(build(scheduled(value, 48)[1], SERVER, 1).ir, SERVER)
    assert ("vperm" in assembly) is in_table
    assert ("vcvtdq2ps" in assembly) is not in_table
