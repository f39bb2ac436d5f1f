"""Operands of a tile that are read one step ahead of the multiply-adds, from one iteration of a loop to the next.

    for k1: unrolled k2: read a, b of k2;        read a, b of the first step
                         add their products  ->  for k1: unrolled k2: read a, b of the next step in the other half of
                                                                      two; add products of this half

Within what is unrolled the compiler does so by itself; at the head of the loop it waits for shared memory. After the
last iteration the first step is read once more, for nothing, so that no place beyond the buffers is read. What is read
in the last step is kept in registers: the compiler would choose between addresses, and read in the next iteration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from autosched.codegen.c.bounds import Registers, is_unrolled
from autosched.codegen.c.expressions import Expressions
from autosched.codegen.c.names import Text
from autosched.codegen.c.rings import KEEP
from autosched.codegen.c.zigzag import ProductTile, emit_zigzag, extent, is_zigzag, product_tile
from autosched.ir.expr import INDEX, Const, Expr, Load
from autosched.ir.stmt import Buffer, For, ForKind, Scope, Store

HALVES = 2


@dataclass(frozen=True)
class AheadLoop:
    """`loop` over unrolled `steps` of a reduction, each a `tile`. `halves`: two steps' operands, a and b."""

    loop: For
    steps: For
    tile: ProductTile
    halves: tuple[Buffer, Buffer]


def ahead_loop(loop: For, c: Expressions) -> AheadLoop | None:
    """The loop if its tile's operands are in shared memory and it has an even number of steps; else None."""
    steps = loop.body
    if loop.kind is not ForKind.SERIAL or not loop.reduce or extent(loop) < HALVES:
        return None
    if not (isinstance(steps, For) and is_unrolled(steps) and steps.reduce and isinstance(steps.body, For)):
        return None
    tile = product_tile(steps.body)
    if tile is None or extent(steps) < HALVES or extent(steps) % HALVES or not is_zigzag(tile, (steps,), c):
        return None
    if any(c.buffers[x.buffer][0].scope is not Scope.SHARED for x in (tile.a, tile.b)):
        return None
    a, b = (
        Buffer(f"{x.buffer}.ahead", (Const(HALVES, INDEX), Const(extent(axis), INDEX)), x.dtype, Scope.LOCAL)
        for x, axis in ((tile.a, tile.rows), (tile.b, tile.columns))
    )
    return AheadLoop(loop, steps, tile, (a, b))


def emit_ahead(loop: For, c: Expressions, text: Text, registers: Registers, emit: Callable[[Store], None]) -> bool:
    """Whether the loop is such a one, and written so; `emit` writes a statement."""
    found = ahead_loop(loop, c)
    if found is None:
        return False
    registers.summed.update(found.tile.store.buffers)
    for buffer in found.halves:
        name = text.name(buffer.name)
        c.buffers[buffer.name] = (buffer, name)
        text.line(f"{c.dialect.private}{c.type(buffer.dtype)} {name}[{HALVES * extent_of(buffer)}];")
    kind, outer, inner = c.index_type, text.name(loop.var.name), text.name(found.steps.var.name)
    last, n = extent(loop) - 1, extent(found.steps)
    c.variables.update({loop.var: "0", found.steps.var: "0"})
    _read(found, c, text, emit)
    text.line(c.dialect.unroll_by.format(times=1))
    with text.block(f"for ({kind} {outer} = 0; {outer} <= {last}; ++{outer})"):
        text.line(c.dialect.unroll)
        with text.block(f"for ({kind} {inner} = 0; {inner} < {n}; ++{inner})"):
            next_outer, next_inner = text.name("next"), text.name("next_step")
            wrapped = f"{outer} < {last} ? {outer} + 1 : 0"
            text.line(f"const {kind} {next_outer} = {inner} < {n - 1} ? {outer} : {wrapped};")
            text.line(f"const {kind} {next_inner} = ({inner} + 1) % {n};")
            c.variables.update({loop.var: next_outer, found.steps.var: next_inner})
            _read(found, c, text, emit)
            with text.block(f"if ({inner} == {n - 1})"):
                _keep(found, c, text)
            c.variables.update({loop.var: outer, found.steps.var: inner})
            with registers.within(found.steps):
                emit_zigzag(_from_halves(found), c, text, registers, emit)
    return True


def extent_of(buffer: Buffer) -> int:
    """Of one of the two halves."""
    size = buffer.shape[1]
    assert isinstance(size, Const)
    return int(size.value)


def _operands(found: AheadLoop) -> tuple[tuple[Load, For, Buffer], ...]:
    tile, (a, b) = found.tile, found.halves
    return ((tile.a, tile.rows, a), (tile.b, tile.columns, b))


def _half(found: AheadLoop, axis: For) -> tuple[Expr, Expr]:
    return (found.steps.var % HALVES, axis.var)


def _read(found: AheadLoop, c: Expressions, text: Text, emit: Callable[[Store], None]) -> None:
    """The operands of the step that the loops' variables say."""
    for load, axis, buffer in _operands(found):
        name = c.variables[axis.var] = text.name(axis.var.name)
        text.line(c.dialect.unroll)
        with text.block(f"for ({c.index_type} {name} = 0; {name} < {extent(axis)}; ++{name})"):
            emit(Store((buffer.name,), _half(found, axis), (load,)))


def _keep(found: AheadLoop, c: Expressions, text: Text) -> None:
    c.helpers["keep_float"] = KEEP.format(kind="float", letter="f")
    for _, axis, buffer in _operands(found):
        number = text.name("n")
        text.line(c.dialect.unroll)
        with text.block(f"for (int {number} = 0; {number} < {extent(axis)}; ++{number})"):
            text.line(f"keep_float({c.buffers[buffer.name][1]}[{number}]);")


def _from_halves(found: AheadLoop) -> ProductTile:
    a, b = (Load(buffer.name, _half(found, axis), load.dtype) for load, axis, buffer in _operands(found))
    return replace(found.tile, a=a, b=b)
