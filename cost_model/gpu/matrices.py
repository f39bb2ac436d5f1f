"""Shared-memory requests of matrix products by warps, as closed forms (see `c/tiles/warp_matrices.py`).

The last three of a thread's loops are over its rows (two of each tile of 16), its columns (two of each tile of 8) and
the k of an instruction. One ldmatrix loads A for 16 rows, another one B for 16 columns. It reads two or four matrices
of 8 rows of 16 bytes each, which are a wavefront where all 8 lie in different banks: where their distance is an odd
number of 16 bytes; gcd(distance, 8) of them otherwise. Elements of 32 bits that lie across k are loaded one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

from autosched.ir.closed_forms.arithmetic import ONE, ZERO, add, divide, is_one, maximum, multiply, real, where
from autosched.ir.expr import INDEX, Const, Expr, binary, product
from autosched.ir.instructions.matrices import ACROSS, HALVES, MATRICES, NEIGHBOURS, MatrixIntrinsic
from autosched.ir.stmt import ForKind, Scope
from cost_model.analysis.access import Access, stored
from cost_model.analysis.statements import Statement
from cost_model.analysis.trips import AnalysedLoop
from cost_model.gpu import machine as g
from cost_model.gpu.machine import GpuMachine

NONE: Expr = Const(0, INDEX)
LOADED = 2  # matrices by one ldmatrix, side by side where an instruction takes more of k
ROWS = 8  # of such a matrix


def loads_of(statement: Statement, access: Access, own: Sequence[AnalysedLoop], first: int) -> Expr:
    """Instructions that load the operand for each update of a thread, real; `first`: the place of `own` among all
    loops. A warpgroup's product reads it itself."""
    row = MATRICES[statement.store.matrix]
    if row.warps > 1:
        return issued(statement, own)
    rows, columns, depth = own[-3:]
    is_left = access.moves(first + len(own) - 3)
    shared = multiply(columns.trips, float(HALVES)) if is_left else multiply(rows.trips, float(2 * NEIGHBOURS))
    times = LOADED * row.deep if _is_word_by_word(statement, access, first + len(own)) else 1
    return divide(float(times), multiply(shared, depth.trips))


def _is_word_by_word(statement: Statement, access: Access, last: int) -> bool:
    """Whether elements are loaded one by one: of 32 bits, across k, the loop before `last`, or beside what a warp
    holds."""
    return access.buffer.itemsize == g.BANK_BYTES and (
        _takes_neighbours(statement) or not is_one(access.stride[last - 1])
    )


def _takes_neighbours(statement: Statement) -> bool:
    """Whether lanes take neighbours along k, as a warp holds them."""
    return any(a.buffer.scope is Scope.WARP for a in statement.accesses)


def issued(statement: Statement, own: Sequence[AnalysedLoop]) -> Expr:
    """Instructions for each update of a thread, real; a warpgroup's has all columns."""
    row = MATRICES[statement.store.matrix]
    if row.warps == 1:
        return real(row.times / row.updates)
    return divide(NEIGHBOURS / row.updates, own[-2].trips)


def load_cycles(statement: Statement, access: Access, own: Sequence[AnalysedLoop], first: int) -> Expr:
    """Wavefronts of one of them, real; a warp's share of what a warpgroup reads, whose tiles lie in all banks. Word by
    word, four rows of eight neighbours are read."""
    row = MATRICES[statement.store.matrix]
    if row.warps > 1:
        each = row.k * access.buffer.itemsize / g.WAVEFRONT
        if access.moves(first + len(own) - 3):
            return real(row.m * each / row.warps)
        # all warpgroups multiply by the same columns, which are read once for them
        warps = product([x.bound for x in statement.loops if x.kind is ForKind.THREAD_Z])
        return divide(multiply(own[-2].trips, row.n // NEIGHBOURS * each), warps)
    _, shape = stored(access.buffer, (NONE,) * len(access.buffer.shape))
    if _is_word_by_word(statement, access, first + len(own)):
        apart = shape[-1] * (NEIGHBOURS if _takes_neighbours(statement) else 1) % g.BANKS
        other = where(binary("eq", apart % ROWS, NONE), where(binary("eq", apart % 16, NONE), 2.0, 1.0), 2.0)
        return where(binary("eq", apart, NONE), float(ACROSS), other)
    distance = shape[-1] * access.buffer.itemsize // g.VECTOR_BYTES
    again: Expr = ONE
    for power in (2, 4, ROWS):
        again = where(binary("eq", distance % power, NONE), float(power), again)
    return multiply(again, float(LOADED * row.deep))


def conversions(own: Sequence[AnalysedLoop], updates: Expr, row: MatrixIntrinsic) -> Expr:
    """Slots of a thread for operands that become numbers of an instruction's type, real: converted, or in two parts by
    two operations on integers and a subtraction."""
    if not row.precision or row.warps > 1:
        return ZERO
    rows, columns, depth = own[-3:]
    each = g.SLOTS["float_other"] + (row.parts - 1) * g.SLOTS["float_addsub"]
    words = add(multiply(rows.trips, float(row.deep)), multiply(columns.trips, row.deep / NEIGHBOURS))
    steps = divide(updates, multiply(multiply(rows.trips, columns.trips), depth.trips))
    return multiply(multiply(steps, words), each)


def fragments(own: Sequence[AnalysedLoop], row: MatrixIntrinsic) -> Expr:
    """32-bit registers of both operands for one step, integer."""
    rows, columns, _ = own[-3:]
    return (rows.bound * row.deep + columns.bound * row.deep // NEIGHBOURS) * row.registers


def tensor_cycles(updates: Expr, threads: Expr, rate: Expr) -> Expr:
    """Cycles in which a multiprocessor does so many updates of each thread, real; `rate`: updates in a cycle."""
    return divide(multiply(updates, threads), rate)


def product_chains(
    statement: Statement, own: Sequence[AnalysedLoop], updates: Expr, machine: GpuMachine
) -> tuple[Expr, Expr]:
    """(independent instructions of a thread, cycles of a warp alone), real: one after the other, or one partition's
    share of the tensor cores; a warpgroup has all four, and its instructions follow one another without a gap."""
    row = MATRICES[statement.store.matrix]
    rows, columns, _ = own[-3:]
    tiles = multiply(multiply(rows.trips, columns.trips), 1.0 / (HALVES * NEIGHBOURS))
    dependent = multiply(divide(multiply(updates, 1.0 / row.updates), tiles), machine.constants.matrix_latency)
    threads = float(row.m * row.n * row.k // row.updates)
    alone = divide(multiply(updates, threads * g.SCHEDULERS / row.warps), machine.matrix_rate(row))
    return (tiles, maximum(dependent, alone)) if row.warps == 1 else (tiles, alone)
