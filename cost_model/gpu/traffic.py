"""Memory traffic between the multiprocessors, L2 and DRAM in bytes, as closed forms.

Bytes from L2 are the distinct sectors that the block touches, again for each iteration of a loop whose working set
L1 does not keep (what shared arrays leave of it). Bytes from DRAM: the blocks of one wave run side by side and share
what they read, so a wave costs its footprint and an access

    min(bytes from L2, max(unique bytes, waves * footprint of a wave))

or just the unique bytes where everything fits into L2. Where several statements of a kernel touch the same buffer, the
later ones find it in L1 if what the block touches of it fits there, in L2 if what the blocks of a wave touch does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autosched.ir.closed_forms.arithmetic import (
    ONE,
    divide,
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
from autosched.ir.expr import Expr
from autosched.ir.raster import side_by_side
from autosched.ir.stmt import BLOCKS
from autosched.target import GpuFacts
from cost_model.analysis.access import Access
from cost_model.gpu import machine as g
from cost_model.gpu.kernels import KernelWork, Work, unrolls


@dataclass(frozen=True, eq=False)
class Traffic:
    """Of one access of a statement, bytes of all blocks, real. `block`: what one touches, `wave`: what the blocks that
    run side by side do; `once`: what is moved if each byte is moved once."""

    buffer: str
    block: Expr
    l2: Expr
    dram: Expr
    wave: Expr
    unique: Expr
    once: Expr


def traffic_of(kernel: KernelWork, work: Work, access: Access, resident: Expr, facts: GpuFacts) -> Traffic:
    """Of a statement that threads execute; `resident`: blocks that a multiprocessor keeps."""
    l2 = multiply(_from_l2(work, access, l1_room(kernel, resident, facts)), ways(access))
    return tile_traffic(kernel, work, access, l2, resident, facts)


def tile_traffic(kernel: KernelWork, work: Work, access: Access, l2: Expr, resident: Expr, facts: GpuFacts) -> Traffic:
    """Return the traffic of an access, given its bytes from L2, `l2`."""
    waves, wave = _waves(kernel, work, access, multiply(resident, float(facts.multiprocessors)))
    unique = _unique(access)
    dram = multiply(maximum(unique, multiply(waves, wave)), ways(access))
    block = multiply(access.lines[work.first], float(access.line_bytes))
    return Traffic(access.buffer.name, block, l2, minimum(l2, dram), wave, unique, _once(work, access))


def l2_bytes(moved: Sequence[Traffic], room: Expr) -> Expr:
    """Of a kernel whose blocks have `room` bytes of L1 each."""
    buffers = _by_buffer(moved)
    is_kept = sum_of(maximum_of([t.block for t in group]) for group in buffers if len(group) > 1) <= room
    return sum_of(_again([t.l2 for t in group], is_kept) for group in buffers)


def _by_buffer(moved: Sequence[Traffic]) -> list[list[Traffic]]:
    return [[t for t in moved if t.buffer == name] for name in dict.fromkeys(t.buffer for t in moved)]


def _again(each: Sequence[Expr], is_kept: Expr) -> Expr:
    """Traffic of several statements on one buffer: the later ones move nothing, if its lines stay in the cache."""
    return each[0] if len(each) == 1 else where(is_kept, maximum_of(each), sum_of(each))


def dram_bytes(moved: Sequence[Traffic], cache_bytes: int) -> Expr:
    """Of a kernel."""
    room, buffers = real(g.L2_CAPACITY_SHARE * cache_bytes), _by_buffer(moved)
    fits = sum_of(maximum_of([t.unique for t in group]) for group in buffers) <= room
    is_kept = sum_of(maximum_of([t.wave for t in group]) for group in buffers if len(group) > 1) <= room
    once = sum_of(maximum_of([t.once for t in group]) for group in buffers)
    again = sum_of(_again([t.dram for t in group], is_kept) for group in buffers)
    return where(fits, minimum(once, sum_of(t.l2 for t in moved)), again)


def ways(access: Access) -> float:
    """Transfers of an access: an update reads and writes."""
    return 2.0 if access.kind == "update" else 1.0


def l1_room(kernel: KernelWork, resident: Expr, facts: GpuFacts) -> Expr:
    """Bytes of L1 for each resident block: the unified memory without its shared arrays."""
    whole = facts.shared_per_multiprocessor
    left = subtract(float(whole), multiply(resident, kernel.shared + g.SHARED_RESERVED))
    return divide(maximum(float(8 << 10), left), resident)


def _from_l2(work: Work, access: Access, room: Expr) -> Expr:
    """Bytes that the access fetches from L2 (or writes to it), all blocks; see `analysis.traffic`, whose rule it is."""
    statement = work.statement
    together = work.fill is not None and bool(work.own) and unrolls(work.own[-1])  # the lanes of a vector
    last = work.last - together
    moved = [
        multiply(multiply(access.lines[d], float(access.line_bytes)), statement.iterations(d))
        for d in range(work.first, last + 1)
    ]
    result = moved[-1]
    for depth in range(last - 1, work.first - 1, -1):
        too_much = multiply(subtract(statement.working_set[depth], room), 1e14)
        result = minimum(result, maximum(moved[depth - work.first], too_much))
    return multiply(result, statement.weight)


def _unique(access: Access) -> Expr:
    """Bytes that the whole kernel touches."""
    return multiply(access.lines[0], float(access.line_bytes))


def _once(work: Work, access: Access) -> Expr:
    """Bytes moved if each is moved once."""
    share = ONE if work.is_tile else minimum(1.0, work.statement.weight)
    return multiply(multiply(_unique(access), ways(access)), share)


def _waves(kernel: KernelWork, work: Work, access: Access, concurrent: Expr) -> tuple[Expr, Expr]:
    """Return (waves of blocks, bytes that one of them accesses); waves share no cached data."""
    across, down, deep = kernel.grid
    plane = side_by_side(maximum(1.0, concurrent), real(across), real(down), kernel.raster)
    layers = minimum(maximum(1.0, divide(concurrent, across * down)), deep)
    together = dict(zip(BLOCKS, (*plane, layers), strict=True))
    waves = maximum(1.0, divide(kernel.blocks, product_of(together.values())))
    footprint = multiply(access.lines[work.first], float(access.line_bytes))
    for i in range(work.first):
        if access.moves(i):
            footprint = multiply(footprint, together[work.statement.loops[i].kind])
    return waves, minimum(footprint, _unique(access))
