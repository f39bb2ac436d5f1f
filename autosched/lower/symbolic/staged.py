"""Results that go through shared memory: a block's threads write a tile there, which the copy engine brings out.

    barrier; each thread's points to the tile; barrier; the first thread: tile back

The first barrier is for the tile before, if a block has several. What is outside of the result is not brought out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autosched.ir.expr import INDEX, Const, Expr, Var, binary, product
from autosched.ir.linear import ZERO
from autosched.ir.stmt import BLOCKS, Allocate, Barrier, Buffer, If, Layout, Scope, Seq, Stmt, Store, TileCopy
from autosched.ir.visit import substitute
from autosched.lower.symbolic.domains import Domain, part_bound


def staged_buffer(domain: Domain) -> Buffer:
    """What a block's threads have of a stage at the root, in shared memory, in panels."""
    stage, shape = domain.stage, list[Expr]()
    for a in stage.op.axes:
        levels = range(1, len(stage.factors(a.name)) + 1)
        shape.append(product([part_bound(stage, domain.regions[a.name], a.name, n) for n in levels]))
    layout = Layout(tuple(range(len(shape))), panels=True)
    return Buffer(f"{stage.op.buffers[0]}.staged", tuple(shape), stage.op.dtypes[0], Scope.SHARED, layout)


def written_back(domain: Domain, thread: Expr, body: Stmt) -> Stmt:
    """`body`, in which thread number `thread` and the others of a block write the tile, and what brings it out."""
    op, staged = domain.stage.op, staged_buffer(domain)
    blocks = _blocks(domain)
    start: dict[Expr, Expr] = {v: ZERO for x in domain.stage.loops if (v := domain.loop_var(x)) not in blocks}
    origin = tuple(substitute(domain.values[a.var], start) for a in op.axes)
    copy = TileCopy(staged.name, (), op.buffers[0], origin, staged.shape, op.dtypes[0], back=True)
    first = If(binary("lt", thread, Const(1, INDEX)), copy)
    return Allocate(staged, Seq((Barrier(), body, Barrier(), first)))


def staged_store(domain: Domain, store: Stmt) -> Stmt:
    """The store of a point to its place in the tile: where the point is of the first block."""
    assert isinstance(store, Store)
    start: Mapping[Expr, Expr] = dict.fromkeys(_blocks(domain), ZERO)
    indices = tuple(substitute(i, start) for i in store.indices)
    return replace(store, buffers=(staged_buffer(domain).name,), indices=indices)


def _blocks(domain: Domain) -> set[Var]:
    return {domain.loop_var(x) for x in domain.stage.loops if x.kind in BLOCKS}
