"""Step Lengthen: pad the reduction of a sum of products with zeros, so that the rows of its operands have another
length.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autosched.ir.expr import INDEX, Const, Expr, Load, Select, binary, const
from autosched.ir.instructions.dots import factors
from autosched.ir.visit import free_vars, substitute
from autosched.schedule.limits import MAX_FACTOR
from autosched.schedule.stage import StageOp, default_stage
from autosched.schedule.state import State
from autosched.schedule.steps.loops import check
from autosched.schedule.steps.stages import check_untouched, dimensions, insert, shape_of_buffer


@dataclass(frozen=True)
class Lengthen:
    """The reduction axis `axis` of `stage` has `extent` steps, more than before; refused for all but sums of products
    of two elements that the axis alone indexes in one dimension each, all of it."""

    stage: str
    axis: str
    extent: int

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where = f"lengthen({self.stage}, {self.axis})"
        check_untouched(where, state, stage)
        op, axis = stage.op, stage.op.axis(self.axis)
        pair = factors(op.body[0], op.body[0].dtype) if len(op.body) == 1 else None
        is_sum = pair is not None and op.reducer is not None and op.reducer.is_sum and axis.reduce and not op.guards
        check(is_sum, f"{where}: it is no sum of products over that axis")
        assert pair is not None
        assert isinstance(axis.extent, Const)
        is_more = axis.extent.number < self.extent <= MAX_FACTOR
        check(is_more, f"{where}: the extent must be above {axis.extent}, at most {MAX_FACTOR}; got {self.extent}")
        table: dict[Expr, Expr] = {}
        for load in pair:
            shape, dims = shape_of_buffer(state, load.buffer), [axis.var in free_vars(i) for i in load.indices]
            dim, name = dims.index(True) if True in dims else -1, f"{load.buffer}.long"
            is_alone = dims.count(True) == 1 and load.indices[dim] is axis.var and shape[dim] is axis.extent
            check(is_alone, f"{where}: the axis is not alone in a dimension of {load.buffer}, or not all of it")
            check(not state.taken(name), f"{where}: {name} exists already")
            axes = dimensions(Const(self.extent, INDEX) if d == dim else e for d, e in enumerate(shape))
            element = Load(load.buffer, tuple(a.var for a in axes), load.dtype)
            value = Select(binary("lt", axes[dim].var, axis.extent), element, const(0, load.dtype))
            copy = StageOp(name, axes, (), (value,), None, (name,), (load.dtype,))
            state = insert(state, default_stage(copy), self.stage)
            table[load] = Load(name, load.indices, load.dtype)
        longer = replace(axis, extent=Const(self.extent, INDEX))
        reduced = tuple(longer if a is axis else a for a in op.reduce_axes)
        made = replace(op, reduce_axes=reduced, body=tuple(substitute(v, table) for v in op.body))
        return state.with_stage(default_stage(made, stage.scope))
