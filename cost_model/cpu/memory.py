"""Bytes that a statement moves into each cache, and the cycles of that.

Data come as fast as a cache or memory sends them, but for what begins anew with each piece of contiguous bytes: the
first lines of a piece come one after another, until the processor has seen which ones follow and fetches ahead.
What the function touches may stay in the last cache from one call to the next: all of it up to some size, and of more
a part.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from autosched.ir.closed_forms.arithmetic import (
    ONE,
    ZERO,
    add,
    divide,
    is_zero,
    maximum,
    minimum,
    multiply,
    product_of,
    real,
    subtract,
    sum_of,
    where,
)  # fmt: skip
from autosched.ir.expr import Expr
from cost_model.analysis.access import Access
from cost_model.analysis.statements import Statement
from cost_model.analysis.traffic import pages_fetched, traffic, unless_all_fits
from cost_model.cpu.machine import Machine
from cost_model.cpu.transfers import is_transposed, moves_whole_vectors

UNFORESEEN = 2.0  # times as long as bytes that are fetched ahead
FEW = 8.0  # lines that blocks touch for each one that is moved, where most of them are in a cache already
PIECES_OF_LINES, ROWS_COLLECTED = 2.5, 2.0  # measured on Zen 3: 32 bytes of each of four rows, of three
NEARLY_ALL = 0.9  # of a row: fetching ahead goes on over what is left out


@dataclass(frozen=True, eq=False)
class Moved:
    """Bytes into the three caches and the cycles of that, and cycles of entering pages that the second one fetches."""

    bytes: tuple[Expr, ...]
    cycles: tuple[Expr, ...]
    visits: Expr


def moved(statement: Statement, beyond: bool, share: Expr, machine: Machine) -> Moved:
    """Bytes moved into each cache: of buffers that are outside of it at the start of a call, or of the others."""
    uarch, caches = machine.uarch, machine.cache_bytes

    def of(level: int) -> list[Access]:
        accesses = (a for a in statement.accesses if level == 0 or not _is_own(statement, a))
        return [a for a in accesses if (level < machine.comes_from(a.buffer)) == beyond]

    into = tuple(sum_of(traffic(statement, a, caches, n) for a in of(n)) for n in range(3))
    from_l3, from_dram = (
        sum_of(multiply(_fetched_ahead(statement, a, n, machine), 1.0 / rate) for a in of(n))
        for n, rate in ((1, uarch.l3_bandwidth), (2, uarch.dram_bandwidth))
    )
    l3_starts, dram_starts = (
        sum_of(multiply(_starts(statement, a, n, machine), cycles) for a in of(n) if cycles)
        for n, cycles in ((1, uarch.l3_start), (2, uarch.dram_start))
    )
    dram_share = maximum(share, uarch.dram_bandwidth / max(uarch.dram_shared, uarch.dram_bandwidth))
    fetched = sum_of(_fetched(statement, a, machine) for a in of(0))
    slower = _scattered(statement, machine)
    cycles = (
        multiply(multiply(fetched, 1.0 / uarch.l2_bandwidth), share),
        multiply(multiply(add(from_l3, l3_starts), slower), share),
        multiply(add(multiply(from_dram, dram_share), multiply(dram_starts, share)), slower),
    )
    visits = sum_of(pages_fetched(statement, a, caches, 1) for a in of(1) if uarch.prefetch_restart)
    return Moved(into, cycles, multiply(visits, uarch.prefetch_restart))


def _is_own(statement: Statement, access: Access) -> bool:
    """Whether a recurrence reads by it what it has written a position before, and has in a cache."""
    return access.kind == "read" and access.buffer.name in statement.store.buffers


def _fetched(statement: Statement, access: Access, machine: Machine) -> Expr:
    """Bytes into the first level, more of them where vectors of one block lie in lines that crowd in a few sets; no
    line twice where a window passes by, or where pieces of lines are transposed in registers."""
    moved, block = _in_turn(traffic(statement, access, machine.cache_bytes, 0), access, machine), statement.block_depth
    rolling = statement.rolling if access.kind == "read" and not access.in_registers else None
    if rolling is not None or is_transposed(statement, access):
        once = minimum(moved, multiply(multiply(access.lines[block], access.line_bytes), statement.iterations(block)))
        moved = once if rolling is None else where(rolling.fits_rolling(machine.target), once, moved)
    if access.resident[block] is access.lines[block] or not moves_whole_vectors(statement, access):
        return moved
    return multiply(moved, where(access.has_set_conflicts(block), machine.uarch.conflict_fetch, 1.0))


def _in_turn(moved: Expr, access: Access, machine: Machine) -> Expr:
    """Bytes between two caches, without those written back beside those that are fetched."""
    return moved if access.traffic_factor == 1 else multiply(moved, (1.0 + machine.uarch.write_back) / 2.0)


def _fetched_ahead(statement: Statement, access: Access, level: int, machine: Machine) -> Expr:
    """Bytes into a cache beyond the first level, with what is fetched beside the pieces of rows that tile after tile
    reads."""
    moved, uarch = traffic(statement, access, machine.cache_bytes, level), machine.uarch
    fetched = multiply(moved, access.with_beside(statement.sweep, uarch.adjacent_line_bytes))
    if level > 1:
        return multiply(fetched, _in_pieces_of_lines(statement, access)) if access.non_temporal else fetched
    return multiply(_in_turn(fetched, access, machine), _overrun(statement, access, machine))


def _in_pieces_of_lines(statement: Statement, access: Access) -> Expr:
    """Times as long, real, as whole lines that go around the caches: a block stores a piece of a line in each of more
    rows than the processor collects lines of beside what it reads."""
    block = statement.block_depth
    if not access.extents:
        return ONE
    piece = multiply(real(access.extents[-1][0][block]), float(access.buffer.itemsize))
    slower = where(piece < float(access.line_bytes), PIECES_OF_LINES, 1.0)
    return where(_rows(access, block) > ROWS_COLLECTED, slower, 1.0)


def _rows(access: Access, depth: int) -> Expr:
    return product_of(counts[depth] for counts, _, _ in access.extents[:-1])


def _overrun(statement: Statement, access: Access, machine: Machine) -> Expr:
    """Bytes fetched into L2 for each one that is read from L3: fetching ahead goes on beyond the end of each piece of a
    row, in vain where L2 does not hold a column of pieces until the next one is read."""
    share, along = machine.uarch.overrun_share, access.view.moving(access.index[-1]) if access.index else ()
    if not share or not along:
        return ONE
    column = multiply(statement.settled_set[along[0] + 1], 1.0 + share)
    beyond = minimum(access.with_beside(statement.sweep, machine.uarch.overrun_bytes), 1.0 + share)
    return where(column > machine.cache_bytes[1], beyond, 1.0)


def _scattered(statement: Statement, machine: Machine) -> Expr:
    """Times as long from beyond L2, real, where a block goes on in more rows than the processor fetches ahead for."""
    if not machine.uarch.streams:
        return ONE
    rows = sum_of(_rows_from_far(statement, a, machine) for a in statement.accesses if not a.in_registers)
    return where(rows > machine.uarch.streams, UNFORESEEN, 1.0)


def _rows_from_far(statement: Statement, access: Access, machine: Machine) -> Expr:
    """Rows of which a block touches a part, real, if one of several comes from beyond L2."""
    if not access.extents:
        return ZERO
    block = statement.block_depth
    rows = _rows(access, block)
    fetched = multiply(traffic(statement, access, machine.cache_bytes, 1), 1.0 / access.traffic_factor)
    touched = multiply(multiply(access.lines[block], float(access.line_bytes)), statement.iterations(block))
    return where(multiply(fetched, FEW) > multiply(touched, statement.weight), rows, 0.0)


def _starts(statement: Statement, access: Access, level: int, machine: Machine) -> Expr:
    """Times that fetching into a cache beyond the first level begins anew, real: one for each piece of contiguous
    bytes, and of one that is shorter than `start_bytes` its share of that."""
    fetched = multiply(traffic(statement, access, machine.cache_bytes, level), 1.0 / access.traffic_factor)
    if is_zero(fetched):
        return ZERO
    piece = multiply(_contiguous(statement, access), float(access.buffer.itemsize))
    return divide(fetched, maximum(piece, machine.uarch.start_bytes))


def _contiguous(statement: Statement, access: Access) -> Expr:
    """Elements that are touched one after another, before a loop outside of the block goes on elsewhere."""
    last, block = len(access.extents) - 1, statement.block_depth
    found = _run(access, 0)
    for depth in range(1, block + 1):
        loop = statement.loops[depth - 1]
        along = [k for k, index in enumerate(access.index) if depth - 1 in access.view.moving(index)]
        if not along or along[0] == last or (loop.reduce and _is_window(statement, access, along[0])):
            continue
        found = where(_has_rows(access, along[0], depth), found, _run(access, depth))
    return found


def _run(access: Access, depth: int) -> Expr:
    """Contiguous elements of what is touched at a depth, real: whole rows follow one another."""
    found, row = real(1), real(1)
    for place in reversed(range(len(access.extents))):
        elements = multiply(real(access.extents[place][0][depth]), row)
        found = where(_has_rows(access, place, depth), elements, found)
        row = multiply(row, real(access.shape[place]))
    return found


def _has_rows(access: Access, place: int, depth: int) -> Expr:
    """Whether what is touched at a depth has all, or nearly all, of each stored dimension inside the one at `place`."""
    inside = range(place + 1, len(access.extents))
    parts = [divide(real(access.extents[k][0][depth]), real(access.shape[k])) for k in inside]
    return reduce(minimum, parts, real(1)) > NEARLY_ALL


def _is_window(statement: Statement, access: Access, place: int) -> bool:
    """Whether a reduction along a stored dimension is a window that another loop moves."""
    moving = access.view.moving(access.index[place])
    return any(not statement.loops[n].reduce for n in moving)


def where_not_held(statement: Statement, moved: Expr, level: int, machine: Machine) -> Expr:
    """What is moved into the `level`th cache in a call that follows others: nothing where it holds all that the
    function touches; of the last one, in a row that tells, a share that grows with that."""
    l3, uarch = float(machine.target.l3_bytes), machine.uarch
    if level < 2 or not uarch.l3_leaves or moved is ZERO:
        return unless_all_fits(statement, moved, machine.cache_bytes, level)
    stays, leaves = uarch.l3_stays * l3, uarch.l3_leaves * l3
    beyond = subtract(multiply(statement.sets(level)[0], 1.0 / (leaves - stays)), stays / (leaves - stays))
    return multiply(moved, minimum(1.0, maximum(0.0, beyond)))
