"""Zigzag order of a tile's multiply-adds for register reuse: two columns at a time, to and fro over rows.

    for i: for j: acc[i, j] += a[i] * b[j]   ->   rows down columns 0 and 1, up columns 2 and 3, down 4 and 5, ...

A partition of a multiprocessor reads one even and one odd register in a cycle, and a multiply-add has three operands.
The operand reuse cache keeps an operand for the next instruction if that has it in the same position: a[i] for both
columns of a pair, and from one pair of columns to the next. In tiles that are not higher than wide, every second row
begins with the second column, which reuses b[j] too; in SASS these tiles have fewer stalls that way, higher ones more.
The compiler numbers registers so that their banks do not conflict, but the elements of a vector need consecutive
registers: operands when they are loaded, results when they are stored. Results are therefore copied to registers of
their own before they are stored, outside of all loops, by adding -0, which changes no number. Without both, a float32
product of 4096^3 on an H200 waits for operands in a third of all cycles.

Operands that are vectors along the reduction are in one bank in each of its steps, in every order of the tile.
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

MIN_EXTENT = 4  # of a tile's rows and columns


@dataclass(frozen=True)
class ProductTile:
    """A thread's tile of a product: `store` adds a[row] * b[column] in float32, in unrolled loops `rows` and
    `columns`."""

    rows: For
    columns: For
    store: Store
    a: Load
    b: Load


def product_tile(rows: For) -> ProductTile | None:
    """Return the tile whose rows are the iterations of the loop; None if the loop is not that of a tile."""
    columns = rows.body
    if not (isinstance(columns, For) and isinstance(columns.body, Store) and _is_product_sum(columns.body)):
        return None
    if not all(is_unrolled(x) and not x.reduce and _extent(x) >= MIN_EXTENT for x in (rows, columns)):
        return None
    store = columns.body
    a, b = ([x for x in store.values[0].children if loop.var in free_vars(x)] for loop in (rows, columns))
    if len(a) != 1 or len(b) != 1 or a == b:
        return None
    assert isinstance(a[0], Load)
    assert isinstance(b[0], Load)
    return ProductTile(rows, columns, store, a[0], b[0])


def _is_product_sum(store: Store) -> bool:
    """Whether the store adds a product of two loads in float32."""
    value = store.values[0]
    is_product = isinstance(value, Binary) and value.op == "mul" and value.dtype == "float32"
    is_added = store.reducer is not None and store.reducer.is_sum and not (store.atomic or store.matrix)
    return len(store.values) == 1 and is_added and is_product and all(isinstance(x, Load) for x in value.children)


def emit_tile(rows: For, c: Expressions, text: Text, registers: Registers, emit: Callable[[Store], None]) -> bool:
    """Emit the tile whose rows the loop is, in zigzag order; return False, with nothing emitted, if that is not
    possible: for other loops, an odd number of columns, or operands that are vectors along the reduction.

    `emit` writes the statement.
    """
    tile = product_tile(rows)
    if tile is None:
        return False
    registers.summed.update(tile.store.buffers)
    steps = [x.var for x in registers.unrolled if x.reduce]
    if _extent(tile.columns) % 2 or any((v, 1) in _flat_index(x, c).terms for v in steps for x in (tile.a, tile.b)):
        return False
    _emit_zigzag(tile, c, text, registers, emit)
    return True


def _flat_index(load: Load, c: Expressions) -> Affine:
    """Return the affine form of the element's index in memory."""
    return c.simplify.affine(c.flat(c.buffers[load.buffer][0], load.indices))


def _emit_zigzag(
    tile: ProductTile, c: Expressions, text: Text, registers: Registers, emit: Callable[[Store], None]
) -> None:
    row, column = (text.name(x.var.name) for x in (tile.rows, tile.columns))
    pair, step = text.name("pair"), text.name("step")
    c.variables.update({tile.rows.var: row, tile.columns.var: column})
    last, index_type = _extent(tile.rows) - 1, c.index_type
    column_of_pair = f"{step} % 2"
    if _extent(tile.columns) > last:
        column_of_pair = f"({step} / 2 % 2 ? 1 - {column_of_pair} : {column_of_pair})"
    text.line(c.dialect.unroll)
    with text.block(_loop(index_type, pair, _extent(tile.columns) // 2)):
        text.line(c.dialect.unroll)
        with text.block(_loop(index_type, step, 2 * (last + 1))):
            text.line(f"const {index_type} {row} = {pair} % 2 ? {last} - {step} / 2 : {step} / 2;")
            text.line(f"const {index_type} {column} = {pair} * 2 + {column_of_pair};")
            with registers.within(tile.rows), registers.within(tile.columns):
                emit(replace(tile.store, values=(Binary("mul", tile.b, tile.a),)))


def copy_sums_to_own_registers(
    values: Sequence[Expr], texts: Sequence[str], summed: set[str], own_register: str
) -> list[str]:
    """Return the `texts` of `values`; those that load `summed` buffers are put into `own_register`, a format string
    that copies a value to another register."""
    if len(values) != len(texts):  # packed words of several values
        return list(texts)
    pairs = zip(values, texts, strict=True)
    return [own_register.format(value=t) if isinstance(v, Load) and v.buffer in summed else t for v, t in pairs]


def _loop(index_type: str, name: str, extent: int) -> str:
    return f"for ({index_type} {name} = 0; {name} < {extent}; ++{name})"


def _extent(loop: For) -> int:
    return int(loop.extent.value) if isinstance(loop.extent, Const) else 0
