"""Promotion of sums that warpgroups keep less precisely than float32 (`MatrixIntrinsic.promoted`): partial sums of some
terms in registers of their own, which are then added to the results.

    for k.0: for k.1: acc += A B     ->     for k.0: for k.1: part = (first of a part ? 0 : part) + A B
                                                     last of a part or of all: wait; acc += part

A part is as many whole stages of the pipeline as have no more terms than the row says; no stage may have more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from autosched.codegen.c.expressions import Expressions
from autosched.codegen.c.names import Text
from autosched.codegen.c.tiles.copy_engine import KEEP
from autosched.codegen.c.tiles.pipeline_nests import TilePipeline
from autosched.codegen.c.tiles.warp_matrices import CONSTRAINTS
from autosched.errors import ScheduleError
from autosched.ir.expr import Const
from autosched.ir.instructions.matrices import MATRICES
from autosched.ir.stmt import Buffer, For, Store, walk
from autosched.ir.storage import element_count


@dataclass(frozen=True)
class Promotion:
    """`partial_sums`: names in C by result. `stages`: of a part. `step`: the loop over the instructions of a stage,
    None where a stage has one."""

    pipeline: TilePipeline
    partial_sums: Mapping[str, str]
    stages: int
    step: For | None

    @contextmanager
    def by_parts(self, c: Expressions) -> Iterator[str]:
        """Let the results be the partial sums; give the last argument of a product: whether it is added to these, which
        it else begins."""
        stage = c.variables[self.pipeline.loop.var]
        conditions = [f"{stage} % {self.stages} > 0"] if self.stages > 1 else []
        conditions += [f"{c.variables[self.step.var]} > 0"] if self.step is not None else []
        results = {name: c.buffers[name] for name in self.partial_sums}
        c.buffers.update({name: (results[name][0], partial) for name, partial in self.partial_sums.items()})
        yield f", {' || '.join(conditions) or '0'}"
        c.buffers.update(results)

    def is_due(self, number: str) -> str:
        """Return whether partial sums are added to the results after the stage `number`, as a C expression."""
        if self.stages == 1:
            return "true"
        extent = self.pipeline.loop.extent
        assert isinstance(extent, Const)
        return f"({number} + 1) % {self.stages} == 0 || {number} == {int(extent.value) - 1}"

    def emit(self, c: Expressions, text: Text) -> None:
        """Emit the addition of partial sums to the results, after the wait for their products."""
        for result, partial in self.partial_sums.items():
            buffer, array = c.buffers[result]
            keep(buffer, partial, c, text)
            number = text.name("n")
            text.line(c.dialect.unroll)
            with text.block(f"for (int {number} = 0; {number} < {element_count(buffer)}; ++{number})"):
                text.line(f"{array}[{number}] += {partial}[{number}];")


def keep(buffer: Buffer, array: str, c: Expressions, text: Text) -> None:
    """Emit a compiler barrier that keeps uses of an array of results after the wait for their products."""
    kind = c.type(buffer.dtype)
    c.helpers[f"keep_{kind}"] = KEEP.format(kind=kind, letter=CONSTRAINTS[buffer.dtype])
    number = text.name("n")
    text.line(c.dialect.unroll)
    with text.block(f"for (int {number} = 0; {number} < {element_count(buffer)}; ++{number})"):
        text.line(f"keep_{kind}({array}[{number}]);")


def promotion_of(pipeline: TilePipeline, c: Expressions, text: Text) -> Promotion | None:
    """Return the promotion of the pipeline's results, whose partial sums are declared; None where none is. Raises
    ScheduleError for a stage with more terms than a part may have."""
    inside = [s for stmt in pipeline.compute for s in walk(stmt)]
    stores = [s for s in inside if isinstance(s, Store) and s.matrix and MATRICES[s.matrix].promoted]
    if not stores:
        return None
    row, step = MATRICES[stores[0].matrix], _steps(pipeline)
    steps = 1 if step is None else int(step.extent.value)  # type: ignore[attr-defined]
    if steps * row.k > row.promoted:
        raise ScheduleError(
            f"a stage of {steps * row.k} terms of {stores[0].stage} is more than the {row.promoted} after which "
            f"{row.name} is added to float32"
        )
    partial_sums = dict[str, str]()
    for store in stores:
        result = store.buffers[0]
        buffer, name = c.buffers[result]
        partial_sums[result] = text.name(f"{name}_part")
        text.line(f"{c.dialect.private}{c.type(buffer.dtype)} {partial_sums[result]}[{element_count(buffer)}] = {{}};")
    return Promotion(pipeline, partial_sums, max(1, row.promoted // (steps * row.k)), step)


def _steps(pipeline: TilePipeline) -> For | None:
    """Return the outermost loop of the products if it is over the instructions of a stage."""
    (stmt,) = pipeline.compute
    if not isinstance(stmt, For):
        return None
    (store,) = [s for s in walk(stmt) if isinstance(s, Store)]
    loops = [s for s in walk(stmt) if isinstance(s, For)]
    return stmt if len(loops) == 4 and store.matrix else None
