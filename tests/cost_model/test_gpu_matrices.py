"""What a product of matrices on tensor cores takes, by closed forms against numbers counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.ir.closed_forms.program import Program
from autosched.ir.expr import Expr
from autosched.ir.instructions.matrices import MATRICES
from autosched.ir.stmt import Scope
from autosched.lower import lower
from autosched.target import parse_target
from cost_model.analysis.access import Geometry
from cost_model.analysis.statements import analyse
from cost_model.gpu.kernels import KernelWork, Work, is_product, kernels, transfers, wavefronts
from cost_model.gpu.latency import kernel_cost
from cost_model.gpu.machine import SECTOR, gpu_machine
from cost_model.gpu.matrices import conversions
from cost_model.gpu.registers import operands
from tests.matrix_products import ORDERS, matrix_state, product

MACHINE = gpu_machine(parse_target("cuda -arch=sm_80"))


def value(expr: Expr) -> float:
    return float(Program([expr], ())(np.zeros((1, 0), np.int64))[0, 0])


def product_of(order: str, pad: int, dtype: str = "float16") -> tuple[KernelWork, Work]:
    """256 by 128 in blocks of two by two warps, each with four tiles of 16 by eight of 8; k is 64."""
    state = matrix_state(product(256, 128, 64, order, dtype), (2, 2), (4, 8), pad=pad)
    (kernel,) = kernels(analyse(lower(state), Geometry(SECTOR)))
    (work,) = (w for w in kernel.works if is_product(w))
    return kernel, work


@pytest.mark.parametrize("order", ORDERS)
def test_loads_and_their_wavefronts(order: str) -> None:
    """Four steps of 16; A by one load for each tile of 16 rows, B by one for two of 8 columns."""
    for pad, again in ((8, 1), (0, {"n": (4, 8), "t": (8, 4)})):
        kernel, work = product_of(order, pad)
        a, b = work.accesses(Scope.SHARED)
        assert [value(transfers(work, x)) for x in (a, b)] == [16, 16]
        times = [again] * 2 if isinstance(again, int) else [again[order[0]][0], again[order[1]][1]]
        assert [value(wavefronts(kernel, work, x, 32)) for x in (a, b)] == [4 * n for n in times]


@pytest.mark.parametrize("order", ORDERS)
def test_words_across_k(order: str) -> None:
    """Eight steps of 8; elements of 32 bits that lie across k are loaded one by one, from different banks at a distance
    of 8 more than their number."""
    for pad, cycles in ((8, 1), (4, 2), (0, 4)):
        kernel, work = product_of(order, pad, "tf32")
        for access, is_along, tiles in zip(
            work.accesses(Scope.SHARED), (order[0] == "n", order[1] == "t"), (4, 4), strict=True
        ):
            assert value(transfers(work, access)) == 8 * tiles * (1 if is_along else 4)
            if not is_along:
                assert value(wavefronts(kernel, work, access, 32)) == cycles


def test_converted_operands() -> None:
    """Of a step of 8: four registers for each of 4 tiles of A, two for each of 8 of B, in one part or in two."""
    for precision, each, products in (("tf32", 2, 1), ("3xtf32", 3, 3)):
        _, work = product_of("nn", 8, precision)
        assert value(operands(work)) == (4 * 4 + 8 * 2) * (1 if precision == "tf32" else 2)
        row = MATRICES[f"mma.{precision}"]
        assert row.times == products
        assert value(conversions(work.own, work.executions, row)) == 8 * (4 * 4 + 8 * 2) * each


def test_registers_and_instructions() -> None:
    _, work = product_of("nn", 8)
    assert value(operands(work)) == 4 * 4 + 8 * 2
    assert value(work.copies) == 2 * 4 * 8  # two steps of k are written out


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_cycles_of_tensor_cores(dtype: str) -> None:
    kernel, work = product_of("nt", 16, dtype)
    (cost,) = (c for c in kernel_cost(kernel, MACHINE).costs if c.work is work)
    assert value(cost.arithmetic) == pytest.approx(128 * 128 * 64 / MATRICES[f"mma.{dtype}"].rate("sm_80"))
