"""Register pressure of a GPU thread, in closed form: its buffers, operands and prefetched values; and the latency of
reading operands."""

from __future__ import annotations

from autosched.ir.closed_forms.arithmetic import ONE, is_one, real
from autosched.ir.expr import INDEX, Binary, Const, Expr, Load, ceildiv, imin, product, select
from autosched.ir.instructions.matrices import MATRICES
from autosched.ir.stmt import THREADS, ForKind, Scope
from cost_model.analysis.access import Access
from cost_model.gpu import machine as g
from cost_model.gpu import matrices
from cost_model.gpu.fills import NONE, OUTSIDE, UNIT
from cost_model.gpu.kernels import PRIVATE, KernelWork, Work, unrolls

MOST_TERMS = 8  # of an expression that registers hold before they are added up


def accumulators(work: Work) -> Expr:
    """32-bit registers of the thread's own buffers around the statement, integer."""
    result = NONE
    for buffer in (b for b in work.statement.alive if b.scope in PRIVATE):
        result = result + product(list(buffer.shape)) * max(1, buffer.itemsize // 4)
    row = MATRICES.get(work.statement.store.matrix)
    if row is not None and row.warps > 1 and row.promoted:  # partial sums of as many elements
        result = result + product(list(work.statement.write.buffer.shape))
    threads = product([x.bound for x in work.statement.loops if x.kind in THREADS])
    for buffer in (b for b in work.statement.alive if b.scope is Scope.WARP):
        result = result + ceildiv(product(list(buffer.shape)) * buffer.itemsize, threads * 4)
    return result


def operands(work: Work) -> Expr:
    """32-bit registers for the operands of one step of the unrolled reduction, or for a fill in flight; integer."""
    row = MATRICES.get(work.statement.store.matrix)
    if work.is_tile or (row is not None and row.warps > 1):
        return NONE  # both operands are read where they lie
    if row is not None:
        return matrices.fragments(work.own, row)
    result = NONE
    for access in work.accesses(*OUTSIDE, Scope.SHARED):
        if access.kind == "write":
            continue
        size = max(1, access.buffer.itemsize // 4)
        if work.fill is not None:
            result = result + imin(work.fill.trips, Const(int(g.LOADS_IN_FLIGHT), INDEX)) * work.fill.vector * size
            continue
        moving = [x.bound for i, x in enumerate(work.own, work.first) if access.moves(i) and _is_held(work, i)]
        result = result + product(moving) * _read_ahead(work, access) * (size * _together(work, access))
    return result


def held(kernel: KernelWork) -> Expr:
    """32-bit registers of what a pipeline's next iteration needs, and of its addresses, while this one is computed;
    integer."""
    result = NONE
    for work in kernel.works:
        if work.fill is not None and work.pipeline is not None:
            size = max(1, work.statement.itemsize // 4)
            registers = work.fill.trips * (work.fill.vector * size + g.HELD_ADDRESSES)
            result = result + select((work.pipeline.stages > 1) & work.is_held, registers, NONE)
    return result


def _together(work: Work, access: Access) -> int:
    """Loads of an access whose values are needed at the same time: of a long expression that is stored, a few."""
    return access.count if work.statement.updates else min(access.count, MOST_TERMS)


def _is_held(work: Work, loop: int) -> bool:
    """Whether what the copies of an unrolled loop read is needed at the same time: not where they are added up, and
    where each is stored to memory only what a vector has."""
    x, statement = work.statement.loops[loop], work.statement
    if statement.updates:
        return unrolls(x) and not x.reduce and statement.write.moves(loop)
    return x.kind is ForKind.VECTORIZE or (unrolls(x) and statement.write.buffer.scope in PRIVATE)


def _read_ahead(work: Work, access: Access) -> Expr:
    """Steps of the unrolled reduction that one wide load covers, because they are neighbours; integer."""
    most_elements = max(1, g.VECTOR_BYTES // access.buffer.itemsize)
    for i, x in enumerate(work.own, work.first):
        if x.reduce and unrolls(x) and is_one(access.stride[i]):
            return imin(x.bound, Const(most_elements, INDEX))
    return UNIT


def operand_waits(work: Work) -> Expr:
    """Slots of a multiply-add, real: more than one where many operands are in the same bank of registers."""
    store = work.statement.store
    value = store.values[0]
    is_product = isinstance(value, Binary) and value.op == "mul" and value.dtype == "float32"
    if not (work.statement.updates and is_product and all(isinstance(x, Load) for x in value.children)):
        return ONE
    read = (a for a in work.statement.accesses if a.kind == "read")
    return ONE if all(is_one(_read_ahead(work, a)) for a in read) else real(g.ALONG_SLOTS)
