"""Load and store instructions of a block, as the code generator emits them for each access.

Whole vectors where the vector loop steps by one, a broadcast where it stands still, shuffles of whole vectors where
lanes are a few elements apart or a tile is transposed, else one lane at a time. What neighbouring outputs of a window
share is loaded once where everything else that the window needs fits into registers. The rules are those of the plan
of register tiles (`lower/register_tiles/rules.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autosched.ir.closed_forms.arithmetic import (
    ONE,
    ZERO,
    add,
    ceil,
    divide,
    is_one,
    is_zero,
    maximum,
    maximum_of,
    minimum,
    multiply,
    product_of,
    real,
    subtract,
    sum_of,
    where,
)
from autosched.ir.expr import Const, Expr, Select, ceildiv, product
from autosched.ir.stmt import ForKind
from autosched.ir.visit import free_vars, is_data, is_gathered, loads, subexpressions
from autosched.lower.neighbours import neighbours
from autosched.lower.register_tiles.rules import fits, is_across, slides, transposed_block
from autosched.target import LONGEST_STEP
from cost_model.analysis.access import Access
from cost_model.analysis.border_tiles import has_clipped_remainder
from cost_model.analysis.statements import Statement
from cost_model.analysis.trips import AnalysedLoop
from cost_model.cpu.instructions import ACROSS
from cost_model.cpu.machine import Machine


def vectors_of(loop: AnalysedLoop, lanes: int) -> tuple[Expr, Expr, Expr]:
    """Vectors of a vectorised loop, real: in the mean over its runs, in a full run and in the last one."""
    full = real(ceildiv(loop.bound, lanes))
    if is_zero(loop.share):
        return full, full, full
    last = ceil(multiply(loop.last, 1.0 / lanes))
    return add(full, multiply(loop.share, subtract(last, full))), full, last


def is_vectorised(loops: Sequence[AnalysedLoop]) -> bool:
    return any(x.kind is ForKind.VECTORIZE for x in loops)


def moves_whole_vectors(statement: Statement, access: Access) -> bool:
    """Whether the access moves whole vectors; else one element at a time, which may be spread over the lanes."""
    v = statement.vector_loop
    stride = ZERO if v is None else access.stride[v]
    if isinstance(stride, Const) and not is_one(stride):
        return _is_strided(access, stride)
    return not is_zero(stride)


def gathers_lanes(statement: Statement, access: Access) -> bool:
    """Whether each lane has an index of its own, that is computed."""
    v = statement.vector_loop
    return v is not None and any(is_data(i) and v in access.view.moving(i) for i in access.index)


def _loads_of_an_element(statement: Statement) -> float:
    """Loads for each gathered element, where some are loaded with their neighbours (`codegen/llvm/gather.py`)."""
    values = statement.store.values
    gathered = {x for value in values for x in loads(value) if is_gathered(x)}
    return 1.0 - len(neighbours(values)) / 2 / max(len(gathered), 1)


def gathered_quotients(statement: Statement, access: Access) -> Expr:
    """1.0 where lanes are gathered because they share elements, in places that only run time tells; else 0.0."""
    v = statement.vector_loop
    if v is None:
        return ZERO
    loops = statement.loops
    return maximum_of(has_clipped_remainder(index, loops, loops[v].var) for index in access.index)


def _is_strided(access: Access, stride: Expr) -> bool:
    """Whether lanes that are apart are picked from whole vectors (`codegen/llvm/strided.py`)."""
    return access.kind == "read" and isinstance(stride, Const) and 1 < stride.value <= LONGEST_STEP


def tested_reads(statement: Statement, counts: Mapping[Access, Expr], chunks: Expr) -> Expr:
    """Reads whose conditions are tested and address chosen: the vectors of one together, where no lane matters."""
    selects = {e for v in statement.store.values for e in subexpressions(v) if isinstance(e, Select)}
    guarded = {load.buffer for select in selects for load in loads(select)}
    v = statement.vector_loop
    together = v is not None and all(statement.loops[v].var not in free_vars(s.cond) for s in selects)
    tested = [a for a in counts if a.buffer.name in guarded]
    return sum_of(
        divide(counts[a], chunks) if together and moves_whole_vectors(statement, a) else counts[a] for a in tested
    )


def window_loads(
    statement: Statement, reads: Sequence[Access], registers: Expr, chunks: Expr, machine: Machine
) -> tuple[Expr, dict[Access, Expr]]:
    """Registers for operands, and the loads of each access.

    A window's outputs share elements of an access that moves along outputs and along the reduction. Where all other
    operands of a vector, or of all vectors if lanes share these elements, fit beside the accumulators, each element is
    loaded once; else each time it is used, and those that several steps use take registers.
    """
    lanes = machine.lanes(statement.itemsize) if is_vectorised(statement.loops[statement.block_depth :]) else 1
    counts = {a: transfers(statement, a, lanes) for a in reads}
    if not statement.accumulators:
        return ZERO, counts
    rows = divide(registers, chunks)
    unrolled = [i for i in range(statement.block_depth, statement.depth) if statement.loops[i].kind is ForKind.UNROLL]
    sets = maximum_of([ONE, *(_sets(statement, a, unrolled) for a in reads if moves_whole_vectors(statement, a))])
    vectors = multiply(chunks, sets)
    row, mask = add(vectors, 1.0), _masks(statement, lanes, machine)
    usual = where(fits(registers, row, machine.registers), row, add(minimum(vectors, divide(rows, sets)), 1.0))
    usual = add(usual, mask)
    write = statement.write
    sliding = [a for a in reads if slides(write.moves(i) for i in unrolled if a.moves(i))]
    shared = {a: transfers(statement, a, lanes, distinct=False) for a in sliding}
    if not shared:
        return usual, counts
    in_turn = all(moves_whole_vectors(statement, a) for a in shared)
    others = (
        divide(counts[a], chunks) if in_turn and moves_whole_vectors(statement, a) else counts[a]
        for a in reads
        if a not in shared
    )
    operands = sum_of([*others, mask, 1.0])
    held = fits(registers, operands, machine.registers)
    overlap = sum_of(shared.values()) > multiply(sum_of(counts[a] for a in shared), 1.001)
    found = {a: where(held, counts[a], shared[a]) if a in shared else counts[a] for a in reads}
    steps = divide(product_of(statement.loops[i].trips for i in unrolled), rows)
    carried = sum_of(_carried(counts[a], shared[a], steps) for a in shared)
    # With 512 bits a multiply-add spreads an element that it reads from memory; else the element takes a register.
    spread = carried if machine.target.masks_are_vectors and not in_turn else ZERO
    return where(overlap, where(held, add(operands, spread), add(usual, carried)), usual), found


def _sets(statement: Statement, access: Access, unrolled: Sequence[int]) -> Expr:
    """Rows of vectors of an operand that are used again by a later output: those of unrolled loops inside one along
    which the operand stands still."""
    outputs = [i for i in unrolled if statement.write.moves(i)]
    still = next((n for n, i in enumerate(outputs) if not access.moves(i)), len(outputs))
    return product_of(statement.loops[i].trips for i in outputs[still:] if access.moves(i))


def _masks(statement: Statement, lanes: int, machine: Machine) -> Expr:
    """Registers that hold the mask of a row's last vector, which not all lanes of a register tile are in."""
    inner = statement.loops[statement.block_depth :]
    bounds = [x.bound for x in inner if x.kind is ForKind.VECTORIZE]
    if not machine.target.masks_are_vectors or lanes == 1:
        return ZERO
    return maximum_of([ZERO, *(where(real(bound % lanes) > 0.0, 1.0, 0.0) for bound in bounds)])


def _carried(distinct: Expr, used: Expr, steps: Expr) -> Expr:
    """Elements of a window that are in registers from one unrolled step of its reduction to the next one.

    LLVM loads each of the `distinct` elements once, whichever order the code has, so that those of one step that the
    next one uses again take registers beside the accumulators. `used`: elements of all `steps`, counted in each.
    """
    first = divide(used, steps)
    fresh = divide(maximum(subtract(distinct, first), 0.0), maximum(subtract(steps, 1.0), 1.0))
    return maximum(subtract(first, fresh), 0.0)


def transfers(statement: Statement, access: Access, lanes: int, distinct: bool = True) -> Expr:
    """Load (or store) instructions of the access in one block: one for each address if `distinct`, or one a copy. Lanes
    that gather load each their own element, or two neighbours."""
    distinct = distinct and not gathers_lanes(statement, access)
    result: Expr = real(access.count)
    different = _different(access, statement.block_depth)
    for i in range(statement.block_depth, statement.depth):
        loop, stride = statement.loops[i], access.stride[i]
        if is_zero(stride):
            continue
        if loop.kind is not ForKind.VECTORIZE:
            result = multiply(result, loop.trips)
        else:
            whole = vectors_of(loop, lanes)[0]
            result = multiply(result, whole if is_one(stride) else _strided(access, loop, stride, whole))
            different = multiply(different, divide(whole, loop.trips)) if is_one(stride) else different
    found = minimum(result, different) if distinct else result
    if gathers_lanes(statement, access):
        found = multiply(found, _loads_of_an_element(statement))
    return multiply(multiply(found, _transposed(statement, access, lanes)), _on_two_lines(access, lanes))


def _different(access: Access, depth: int) -> Expr:
    """Places that the access touches at a depth, real: neighbours in a row are read as vectors of their own."""
    touched = real(access.elements[depth])
    if access.columns == 1:
        return touched
    row = real(access.extents[-1][0][depth])
    return multiply(touched, divide(multiply(subtract(row, float(access.slack[-1])), float(access.columns)), row))


def _on_two_lines(access: Access, lanes: int) -> float:
    """Turns of an instruction: two for a vector on two lines, which is assumed for every core. Of neighbours in a row,
    one at most begins at a line."""
    across = min(1.0, lanes * access.buffer.itemsize / access.line_bytes) if lanes > 1 else 0.0
    return 1.0 + across * (access.columns - 1) / access.columns


def _transposed(statement: Statement, access: Access, lanes: int) -> Expr:
    """What is contiguous along unrolled loops and not along its lanes is transposed by shuffles: as many lanes as fill
    128 bits; lanes that are fewer are read one by one."""
    inner, block = statement.loops[statement.block_depth :], transposed_block(access.buffer.itemsize)
    if lanes < block or not is_transposed(statement, access):
        return ONE
    rows = product_of(x.trips for x in inner if x.kind is ForKind.UNROLL)
    row = product([x.bound for x in inner if x.kind is ForKind.VECTORIZE])
    pieces = divide(real(row // block * block), real(row))
    return where(rows >= float(block), subtract(1.0, multiply(pieces, 1.0 - ACROSS / block)), 1.0)


def is_transposed(statement: Statement, access: Access) -> bool:
    """Whether the access is contiguous along unrolled loops and not along its lanes."""
    store, inner = statement.store, range(statement.block_depth, statement.depth)
    is_update = store.reducer is not None
    if access.kind != "read" or not (statement.accumulators if is_update else len(store.values) == 1):
        return False
    lanes = [access.stride[i] for i in inner if statement.loops[i].kind is ForKind.VECTORIZE]
    rows = [access.stride[i] for i in inner if statement.loops[i].kind is ForKind.UNROLL]
    numbers = [int(s.value) if isinstance(s, Const) else None for s in lanes]
    return bool(lanes) and all(is_across(n, is_update) for n in numbers) and any(map(is_one, rows))


def _strided(access: Access, loop: AnalysedLoop, stride: Expr, whole: Expr) -> Expr:
    """Vectors for steps of one (or none, where a symbolic step says so), single lanes for longer ones. Of a few
    elements: as many vectors, most of them on two lines, and the shuffles."""
    if not isinstance(stride, Const):
        return where(real(stride) > 1.0, loop.trips, whole)
    return multiply(whole, 2.0 * float(stride.value)) if _is_strided(access, stride) else loop.trips
