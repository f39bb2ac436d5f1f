"""Mma, matrix multiply-accumulate: a thread's tile of a product, added up by instructions of whole warps.

    C: .. threads: lanes down (y), lanes across (x): unrolled rows, halves, columns, neighbours
      C.acc: k.0 { shared copies of A and B }  k.1  | rows, columns, k.2 |

What is between the bars is one operation of a warp (`ir/instructions/matrices.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Const, Expr, Load
from autosched.ir.instructions.matrices import (
    ACROSS,
    DOWN,
    HALVES,
    MATRICES,
    NEIGHBOURS,
    MatrixIntrinsic,
    matrix_operands,
)
from autosched.ir.linear import ONE, linear
from autosched.ir.stmt import ForKind, Scope
from autosched.ir.visit import free_vars, loads
from autosched.schedule.stage import Stage, StageAxis
from autosched.schedule.state import State, directly_read_by
from autosched.schedule.steps.loops import check
from autosched.schedule.steps.stages import places_in, shape_of_buffer

WORD = 4  # bytes of a register
LANES = (HALVES, DOWN), (ACROSS, NEIGHBOURS)  # how rows and columns are split last


@dataclass(frozen=True)
class ProductAxes:
    """Of a sum of products: `left` moves with `rows`, `right` with `columns`, both with `depth`."""

    left: Load
    right: Load
    rows: StageAxis
    columns: StageAxis
    depth: StageAxis
    end: Expr  # of k in the operands' dimensions of it, closed form

    def depth_dim(self, load: Load) -> int:
        """The operand's dimension along k."""
        return _dim(load, self.depth)

    def is_along_depth(self, load: Load) -> bool:
        return self.depth_dim(load) == len(load.indices) - 1


@dataclass(frozen=True)
class Mma:
    """The reduction `stage`, in registers of a thread, is done by the row `intrinsic` of MATRICES.

    Its innermost loops are over its rows, its columns (the last axis) and as much of k as the row takes, all unrolled.
    The stage that reads it is split so that rows end in the factors 2, 8 and columns in 4, 2; the 8 are threadIdx.y and
    the 4 are threadIdx.x. These run in full, and so does a step of k, where an axis is shorter as well: operands are
    shared copies that are made in the reduction's loops, zero beyond an axis. Refused for anything else.
    """

    stage: str
    intrinsic: str

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where = f"mma({self.stage}, {self.intrinsic})"
        known = [name for name, row in MATRICES.items() if row.warps == 1]
        check(self.intrinsic in known, f"{where}: known are {', '.join(known)}")
        row = MATRICES[self.intrinsic]
        check(matrix_operands(stage.op.body, stage.op.reducer) is not None, f"{where}: it is no sum of products")
        product = product_axes(stage)
        check(product is not None, f"{where}: its operands are not indexed by a row, a column and one reduction axis")
        assert product is not None
        check_product_types(where, stage, product, row)
        check_product_depth(where, state, stage, product, row)
        check_product_loops(where, stage, product, row)
        _check_lanes(where, state, stage, product)
        for load in (product.left, product.right):
            copy = state.producer(load.buffer)
            if copy is not None and copy.scope is Scope.WARP:
                _check_held(where, product, load, copy)
                continue
            is_near = copy is not None and copy.scope is Scope.SHARED and copy.at is not None
            check(is_near, f"{where}: compute a copy of {load.buffer} in its loops with scope 'shared' first")
            assert copy is not None
            assert copy.at is not None
            around = {self.stage, *(at.stage for at in state.chain(stage))}
            is_plain = copy.at.stage in around and (copy.layout is None or not copy.layout.tiles)
            is_filled = is_plain and copy.cooperate is not None
            check(is_filled, f"{where}: {load.buffer} is not filled together in its loops")
            last = len(load.indices) - 1 if copy.layout is None else copy.layout.order[-1]
            is_along = last == product.depth_dim(load)
            check(is_along or row.can_lie_across, f"{where}: pack {load.buffer} with {product.depth.name} last")
        [reader] = directly_read_by(state, stage)
        points = [reader_axis(where, stage, reader, a) for a in (product.rows, product.columns)]
        state = state.with_stage(replace(reader, whole=tuple((name, 2) for name in points)))
        return state.with_stage(replace(stage, matrix=self.intrinsic, whole=((product.depth.name, 1),)))


def _check_held(where: str, product: ProductAxes, load: Load, copy: Stage) -> None:
    """The operand is what lanes have made, each where an instruction wants it: as results of a product lie."""
    check(load is product.left, f"{where}: {load.buffer} is the right operand, which cannot be held by a warp")
    fits = WORD // DTYPES[load.dtype].nbytes in (1, NEIGHBOURS)
    check(fits, f"{where}: {load.buffer} is held by a warp, but neither one nor two of its elements are a register")
    dims = len(load.indices) - 2, len(load.indices) - 1
    is_last = dims[1] == product.depth_dim(load) and load.indices[dims[0]] is product.rows.var
    check(is_last and copy.layout is None, f"{where}: rows and k are not the last dimensions of {load.buffer}")
    for dim, factors, inside, kind in zip(dims, LANES, (0, 1), (ForKind.THREAD_Y, ForKind.THREAD_X), strict=True):
        axis = copy.op.axes[dim].name
        splits = copy.factors(axis)
        bound = [x.parts for x in copy.loops if x.kind is kind]
        is_so = splits[-2:] == factors and bound == [((axis, len(splits) - inside),)]
        check(is_so, f"{where}: the lanes do not have {axis} of {copy.name} in the factors {factors}")


def product_axes(stage: Stage) -> ProductAxes | None:
    """The axes of a sum of products of two operands: k is its only reduction axis, columns are its last axis, rows
    move the other operand alone: the axis along which that is contiguous, or the longest. None where an operand has its
    rows, its columns or k in no dimension or in several, or something else along the last, or where k ends elsewhere
    than the operands do."""
    op, found = stage.op, matrix_operands(stage.op.body, stage.op.reducer)
    if found is None or len(op.reduce_axes) != 1 or not op.axes:
        return None
    depth, columns = op.reduce_axes[0], op.axes[-1]
    right = [x for x in found.loads if _moves(x, columns)]
    left = [x for x in found.loads if not _moves(x, columns)]
    if len(right) != 1 or right[0].buffer == left[0].buffer:
        return None
    own = [a for a in op.axes if _moves(left[0], a) and not _moves(right[0], a)]
    if not own:
        return None
    rows = next((a for a in own if a.var in free_vars(left[0].indices[-1])), max(reversed(own), key=_length))
    for load, axis in ((left[0], rows), (right[0], columns)):
        dims = _dim(load, axis), _dim(load, depth)
        if -1 in dims or dims[0] == dims[1] or len(load.indices) - 1 not in dims or any(map(loads, load.indices)):
            return None
    ends = [limit for form, limit in op.guards if all(load.indices[_dim(load, depth)] is form for load in found.loads)]
    if len(ends) < len(op.guards) or len(ends) > 1:
        return None
    return ProductAxes(left[0], right[0], rows, columns, depth, *ends or [depth.extent])


def _length(axis: StageAxis) -> int:
    return axis.extent.number if isinstance(axis.extent, Const) else 0


def _moves(load: Load, axis: StageAxis) -> bool:
    return any(axis.var in free_vars(i) for i in load.indices)


def _dim(load: Load, axis: StageAxis) -> int:
    """The dimension whose index is the axis, and what else does not move with it; -1 where there is not one."""
    found = [n for n, i in enumerate(load.indices) if axis.var in free_vars(i)]
    return found[0] if len(found) == 1 and linear(load.indices[found[0]]).coefficient(axis.var) is ONE else -1


def ends_with(state: State, product: ProductAxes) -> bool:
    """Whether the operands have no more along k than is added up, so that copies of them are zero beyond that."""
    operands = (product.left, product.right)
    return all(shape_of_buffer(state, x.buffer)[product.depth_dim(x)] is product.end for x in operands)


def check_product_types(where: str, stage: Stage, product: ProductAxes, row: MatrixIntrinsic) -> None:
    operands = matrix_operands(stage.op.body, stage.op.reducer)
    check(operands is not None, f"{where}: it is no sum of products")
    assert operands is not None
    kinds = f"{product.left.dtype} and {product.right.dtype} in {operands.accumulator}"
    how = f" by {operands.precision}" if operands.precision else ""
    check(operands.are_for(row, product.left, product.right), f"{where}: it adds up products of {kinds}{how}")


def check_product_depth(where: str, state: State, stage: Stage, product: ProductAxes, row: MatrixIntrinsic) -> None:
    """A part of k is whole steps: what comes after it is the next part, and not zero."""
    check(ends_with(state, product), f"{where}: its operands have more along {product.depth.name} than it adds up")
    if stage.op.guards:
        extent, steps = product.depth.extent, stage.factors(product.depth.name)
        step = row.k if isinstance(steps[0], str) else row.k * steps[0]
        is_whole = not isinstance(extent, Const) or extent.value % step == 0  # what is open stays to its domain
        check(is_whole, f"{where}: a part of {product.depth.name} is no multiple of {step}")


def check_product_loops(where: str, stage: Stage, product: ProductAxes, row: MatrixIntrinsic) -> None:
    """Its innermost loops are over its rows, its columns and as much of k as the row takes."""
    rows, columns, depth = product.rows.name, product.columns.name, product.depth.name
    splits = (*stage.factors(rows), *stage.factors(columns), *stage.factors(depth)[-1:])
    check(splits == (row.k,), f"{where}: split {depth} by {row.k} last, and neither {rows} nor {columns}")
    level = len(stage.factors(depth))
    inner = (((rows, 0),), ((columns, 0),), ((depth, level),))
    last = stage.loops[-len(inner) :]
    is_whole = tuple(x.parts for x in last) == inner and all(x.kind is ForKind.UNROLL for x in last)
    check(is_whole, f"{where}: unroll {rows}, {columns} and {depth}.{level} innermost, in this order")


def _check_lanes(where: str, state: State, stage: Stage, product: ProductAxes) -> None:
    """The stage is read where the lanes of a warp are."""
    readers = directly_read_by(state, stage)
    is_alone = len(readers) == 1 and stage.at is not None and readers[0].name == stage.at.stage
    check(is_alone and stage.scope is Scope.REGISTER, f"{where}: compute it in registers in its only reader first")
    reader = readers[0]
    lanes = ((product.rows, LANES[0], 0, ForKind.THREAD_Y), (product.columns, LANES[1], 1, ForKind.THREAD_X))
    for axis, factors, inside, kind in lanes:
        own = reader_axis(where, stage, reader, axis)
        splits = reader.factors(own)
        check(splits[-2:] == factors, f"{where}: the last factors of {own} in {reader.name} must be {factors}")
        level = len(splits) - inside
        bound = [x.parts for x in reader.loops if x.kind is kind]
        check(bound == [((own, level),)], f"{where}: bind {own}.{level} of {reader.name} to {kind.value}")


def reader_axis(where: str, stage: Stage, reader: Stage, axis: StageAxis) -> str:
    """The axis of the reader that has the lanes of an axis of the product: its own at that place, or for columns the
    one that the reader reduces, in parts perhaps."""
    found = {x.indices for x in reader.op.loads_from(*stage.op.buffers)}
    check(len(found) == 1, f"{where}: it is read elsewhere")
    [place] = found
    if not reader.is_across_lanes:
        places = places_in(reader, stage)
        check(bool(places), f"{where}: it is read elsewhere")
        return places[stage.op.axes.index(axis)].name
    own = {a.var: a for a in reader.op.all_axes}
    index = place[stage.op.axes.index(axis)]
    moving = [a for v, a in own.items() if linear(index).coefficient(v) is ONE]
    check(len(moving) == 1, f"{where}: it is read elsewhere")
    return moving[0].name
