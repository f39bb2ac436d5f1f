"""Staged stores: results that warpgroups write to tiles in shared memory, from which the copy engine stores them.

    barrier; each thread's points to its warpgroup's tile; barrier; the first thread of each: tile back

The first barrier is for the tile before, if a block has several. What is outside of the result is not brought out. No
warpgroup has to do with another one's tile, so that the barriers are each one's own in code (`c/tiles/pipelines.py`).
"""

from __future__ import annotations

from dataclasses import replace

from autosched.ir.expr import INDEX, Const, Expr, Var, binary, product
from autosched.ir.instructions.tiles import WARPGROUP
from autosched.ir.linear import ZERO
from autosched.ir.stmt import BLOCKS, Allocate, Barrier, Buffer, ForKind, If, Layout, Scope, Seq, Stmt, Store, TileCopy
from autosched.ir.visit import substitute
from autosched.lower.symbolic.domains import part_bound
from autosched.lower.symbolic.regions import Domain
from autosched.schedule.stage import Stage


def staged_buffer(domain: Domain) -> Buffer:
    """Return the shared buffer with the results of a block's warpgroups, in panels, one warpgroup after the other."""
    stage, (split, outer), shape = domain.stage, _group_level(domain.stage), list[Expr]()
    apart = {(split, outer), *(stage.loop(stage.staged_in).parts if stage.staged_in else ())}
    for a in stage.op.axes:
        levels = [n for n in range(1, len(stage.factors(a.name)) + 1) if (a.name, n) not in apart]
        shape.append(product([part_bound(stage, domain.regions[a.name], a.name, n) for n in levels]))
    groups = part_bound(stage, domain.regions[split], split, outer)
    layout = Layout(tuple(range(len(shape) + 1)), panels=True)
    return Buffer(
        f"{stage.op.buffers[0]}.staged", (groups, *shape), stage.op.dtypes[0], Scope.SHARED, layout, has_versions=True
    )


def written_back(domain: Domain, thread: Expr, body: Stmt) -> Stmt:
    """Return `body`, in which the block's threads write tiles, followed by the stores of these tiles."""
    op, staged, (warps, warp) = domain.stage.op, staged_buffer(domain), _warps(domain)
    outside = {*_blocks(domain), warps}
    start: dict[Expr, Expr] = {v: ZERO for x in domain.stage.loops if (v := domain.loop_var(x)) not in outside}
    start[warps] = warps // warp * warp
    origin = tuple(substitute(domain.values[a.var], start) for a in op.axes)
    copy = TileCopy(staged.name, (warps // warp,), op.buffers[0], origin, staged.shape[1:], op.dtypes[0], back=True)
    first = If(binary("lt", thread % WARPGROUP, Const(1, INDEX)), copy)
    return Allocate(staged, Seq((Barrier(), body, Barrier(), first)))


def staged_store(domain: Domain, store: Stmt) -> Stmt:
    """Return the store of a point at its position in the tile, relative to the first block and warpgroup."""
    assert isinstance(store, Store)
    warps, warp = _warps(domain)
    start: dict[Expr, Expr] = dict.fromkeys(_blocks(domain), ZERO)
    start[warps] = warps % warp
    indices = (warps // warp, *(substitute(i, start) for i in store.indices))
    return replace(store, buffers=(staged_buffer(domain).name,), indices=indices)


def _blocks(domain: Domain) -> set[Var]:
    """Return the variables that move a tile: those of block loops, and of the loop whose iterations are staged."""
    stage = domain.stage
    return {domain.loop_var(x) for x in stage.loops if x.kind in BLOCKS or x.name == stage.staged_in}


def _group_level(stage: Stage) -> tuple[str, int]:
    """Return the axis and the level whose iterations are warpgroups."""
    return next(x.parts[0] for x in stage.loops if x.kind is ForKind.THREAD_Z)


def _warps(domain: Domain) -> tuple[Var, Expr]:
    """Return the number of a warp, and the warps of a warpgroup."""
    loop = next(x for x in domain.stage.loops if x.kind is ForKind.THREAD_Z)
    (axis, level) = loop.parts[-1]
    return domain.loop_var(loop), part_bound(domain.stage, domain.regions[axis], axis, level)
