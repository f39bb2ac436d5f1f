"""Zigzag order of a tile's multiply-adds for register reuse: two columns at a time, to and fro over rows.

    for i: for j: acc[i, j] += a[i] * b[j]   ->   rows down columns 0 and 1, up columns 2 and 3, down 4 and 5, ...

A multiprocessor's part reads one even and one odd register in a cycle, and a multiply-add has three operands. An
operand is kept for the next instruction where that has it in the same place: here a[i] for two of them, and from one
pair of columns to the next. In tiles that are not higher than wide, every second row begins with the second column,
which keeps b[j] as well: by SASS there are fewer waits in these, more in others. The compiler numbers registers so that
they do not meet, as far as vectors leave it the choice: operands are loaded and results stored as neighbours. Results
are therefore let go of before they are stored: adding -0 changes no number, and gives it another register, outside of
all loops. Without all this a float32 product of 4096^3 on an H200 waits for operands in a third of all cycles.

Operands that are vectors along the reduction are all in one bank in each of its steps, in whatever order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from autosched.codegen.c.bounds import Registers, is_unrolled
from autosched.codegen.c.expressions import Expressions
from autosched.codegen.c.names import Text
from autosched.ir.expr import Binary, Const, Expr, Load
from autosched.ir.simplify import Affine
from autosched.ir.stmt import For, Store
from autosched.ir.visit import free_vars

LEAST = 4  # rows and columns of a tile


@dataclass(frozen=True)
class ProductTile:
    """`store` adds a[row] * b[column] in float32, in unrolled loops over `rows` and `columns`."""

    rows: For
    columns: For
    store: Store
    a: Load
    b: Load


def product_tile(rows: For) -> ProductTile | None:
    """Return the tile whose rows are the loop's iterations; None if there is none."""
    columns = rows.body
    if not (isinstance(columns, For) and isinstance(columns.body, Store) and _adds(columns.body)):
        return None
    if not all(is_unrolled(x) and not x.reduce and _extent(x) >= LEAST for x in (rows, columns)):
        return None
    store = columns.body
    a, b = ([x for x in store.values[0].children if loop.var in free_vars(x)] for loop in (rows, columns))
    if len(a) != 1 or len(b) != 1 or a == b:
        return None
    assert isinstance(a[0], Load)
    assert isinstance(b[0], Load)
    return ProductTile(rows, columns, store, a[0], b[0])


def _adds(store: Store) -> bool:
    """Whether it adds a product of two loads in float32."""
    value = store.values[0]
    is_product = isinstance(value, Binary) and value.op == "mul" and value.dtype == "float32"
    is_added = store.reducer is not None and store.reducer.is_sum and not (store.atomic or store.matrix)
    return len(store.values) == 1 and is_added and is_product and all(isinstance(x, Load) for x in value.children)


def emit_tile(rows: For, c: Expressions, text: Text, registers: Registers, emit: Callable[[Store], None]) -> bool:
    """Whether the loop is the rows of a tile and is written in that order, which takes an even number of columns.

    `emit` writes the statement.
    """
    tile = product_tile(rows)
    if tile is None:
        return False
    registers.summed.update(tile.store.buffers)
    steps = [x.var for x in registers.unrolled if x.reduce]
    if _extent(tile.columns) % 2 or any((v, 1) in _place(x, c).terms for v in steps for x in (tile.a, tile.b)):
        return False
    _emit_zigzag(tile, c, text, registers, emit)
    return True


def _place(load: Load, c: Expressions) -> Affine:
    """Of the element in memory."""
    return c.simplify.affine(c.flat(c.buffers[load.buffer][0], load.indices))


def _emit_zigzag(
    tile: ProductTile, c: Expressions, text: Text, registers: Registers, emit: Callable[[Store], None]
) -> None:
    row, column = (text.name(x.var.name) for x in (tile.rows, tile.columns))
    pair, step = text.name("pair"), text.name("step")
    c.variables.update({tile.rows.var: row, tile.columns.var: column})
    last, kind = _extent(tile.rows) - 1, c.index_type
    turn = f"{step} % 2"
    if _extent(tile.columns) > last:
        turn = f"({step} / 2 % 2 ? 1 - {turn} : {turn})"
    text.line(c.dialect.unroll)
    with text.block(_loop(kind, pair, _extent(tile.columns) // 2)):
        text.line(c.dialect.unroll)
        with text.block(_loop(kind, step, 2 * (last + 1))):
            text.line(f"const {kind} {row} = {pair} % 2 ? {last} - {step} / 2 : {step} / 2;")
            text.line(f"const {kind} {column} = {pair} * 2 + {turn};")
            with registers.within(tile.rows), registers.within(tile.columns):
                emit(replace(tile.store, values=(Binary("mul", tile.b, tile.a),)))


def let_go(values: Sequence[Expr], texts: Sequence[str], summed: set[str], word: str) -> list[str]:
    """The `texts` of `values`, those of `summed` buffers by the `word` for a number in a register of its own."""
    if len(values) != len(texts):  # words of several
        return list(texts)
    pairs = zip(values, texts, strict=True)
    return [word.format(value=t) if isinstance(v, Load) and v.buffer in summed else t for v, t in pairs]


def _loop(kind: str, name: str, extent: int) -> str:
    return f"for ({kind} {name} = 0; {name} < {extent}; ++{name})"


def _extent(loop: For) -> int:
    return int(loop.extent.value) if isinstance(loop.extent, Const) else 0
