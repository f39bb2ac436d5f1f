"""Rules on the registers of a tile, for the numbers of a concrete tile and for closed forms of a symbolic one.

The plan of a tile (`plan.py`) and the cost model (`cost_model/cpu/`) ask the same functions, each with its own counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import overload

from autosched.ir.expr import Expr
from autosched.target import LONGEST_STEP, PIECE_BYTES, Target

INPUT_REGISTERS = 1  # for the element of a window's input that is used, and not needed again
# Registers that rolling accumulators leave free where the window comes apart as well: with 30 of 32 taken LLVM spills a
# tenth of the steps. Depthwise 5x5 with channels first took 1.1 to 1.2 times as long as column by column on Emerald
# Rapids.
SPARE = 4
LEAST_SCANNED = 4  # elements of a prefix scan in vectors; fewer are added under masks as soon


@overload
def fits(accumulators: int, operands: int, registers: int) -> bool: ...
@overload
def fits(accumulators: Expr, operands: Expr, registers: int) -> Expr: ...
def fits(accumulators: Expr | int, operands: Expr | int, registers: int) -> Expr | bool:
    """Return whether accumulators have registers beside the operands that are held with them."""
    return accumulators + operands <= registers


def slides(is_output: Iterable[bool]) -> bool:
    """Return whether the copies of a tile may share elements of an operand, which moves along loops of the outputs and
    along loops of the reduction. `is_output`: for each unrolled loop along which it moves, whether it is the outputs'.
    """
    return {*is_output} == {True, False}


def reads_lines_in_parts(target: Target) -> bool:
    """Return whether a vector is a part of a cache line, so that a tile reads each line once for each vector.

    Such lines are fetched each time where they have set conflicts, so that accumulators do not roll there.
    """
    return target.vector_bytes < target.line_bytes


def transposed_block(itemsize: int) -> int:
    """Return the elements of the 128 bits that shuffles transpose: the rows and the lanes that are needed."""
    return PIECE_BYTES // itemsize


def is_across(stride: int | None, is_update: bool) -> bool:
    """Return whether what lanes read `stride` elements apart is read from transposed rows; None: any distance.

    What an update reads a few elements apart is picked from whole vectors instead.
    """
    if stride is None:
        return not is_update
    return not 0 <= stride <= (LONGEST_STEP if is_update else 1)
