"""Matrix products by warpgroups (wgmma), on panels of tiles in shared memory (`ir/instructions/tiles.py`).

    for rows, columns, k: acc[..] += A[..] * B[..]   ->   one wgmma for each tile of 64 rows of a thread's rows

The instruction is told where its operands are by descriptors of 64 bits: the address of the first element, distances,
and the span of a panel's rows. With panels of W bytes a row, 8 rows of which are a pattern:

    operand     the k of the next instruction   the next 64 rows    distance of 8 rows   of the next panel across k
    along k     32 bytes in a row of a panel    64 W                8 W                  -
    across k    16 W                            their panels        8 W                  a panel

Sources: PTX ISA, "Asynchronous Warpgroup Level Matrix Operations", "Matrix Descriptor Format".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autosched.codegen.c.expressions import SUM, Expressions
from autosched.codegen.c.names import Text
from autosched.codegen.c.tiles.warp_matrices import CONSTRAINTS, ProductLoops, unrolled
from autosched.errors import ScheduleError
from autosched.ir.expr import INDEX, Const, Expr, Load, Var
from autosched.ir.instructions.matrices import ACROSS, DOWN, HALVES, MATRICES, MOST_COLUMNS, NEIGHBOURS, MatrixIntrinsic
from autosched.ir.instructions.tiles import SPANS, WARPS, Panels, panels_of
from autosched.ir.visit import free_vars, substitute

UNIT = 16  # bytes that descriptors count
SWIZZLES = {span: n + 1 for n, span in enumerate(SPANS)}
ZERO = Const(0, INDEX)

DESCRIPTOR = """\
static __device__ __forceinline__ unsigned long long matrix_descriptor(const void* tile, unsigned long long form)
{
  return form | ((unsigned)__cvta_generic_to_shared(tile) & 0x3ffff) >> 4;
}"""
MULTIPLY = """\
static __device__ __forceinline__ void {name}({type}* upper, {type}* lower, unsigned long long a, unsigned long long b)
{{
  asm volatile("{{ .reg .pred add; setp.ne.b32 add, %{flag}, 0; "
               "{instruction} "
               "{{{places}}}, %{a}, %{b}, add{signs}{majors}; }}"
               : {results}
               : "l"(a), "l"(b), "r"(1));
}}"""


@dataclass(frozen=True)
class GroupOperand:
    """`load` without the place; `tile` and `depth` are the dimensions of its rows or columns, and of k."""

    load: Load
    tile: int
    depth: int
    panels: Panels

    @property
    def is_along_depth(self) -> bool:
        return self.depth == len(self.load.indices) - 1

    @property
    def form(self) -> int:
        """A descriptor without its address."""
        span, across = self.panels.span, UNIT if self.is_along_depth else self.panels.nbytes
        return SWIZZLES[span] << 62 | (8 * span // UNIT) << 32 | (across // UNIT) << 16

    def offset(self, tile: Expr, depth: Expr) -> Expr:
        """Units from the beginning to where an instruction begins, `tile` rows or columns and `depth` of k further."""
        span, size = self.panels.span, self.panels.itemsize
        inside, other = (depth, tile) if self.is_along_depth else (tile, depth)
        panel = inside * size // span * (self.panels.nbytes // UNIT)
        return panel + inside * size % span // UNIT + other * (span // UNIT)


@dataclass(frozen=True)
class GroupProduct:
    """`lanes`: the variables of threads along x and y; `warp`: that along z, `group`: of the warpgroup's number."""

    row: MatrixIntrinsic
    loops: ProductLoops
    left: GroupOperand
    right: GroupOperand
    lanes: tuple[Var, Var]
    warp: Var
    group: Var

    @property
    def columns(self) -> int:
        """Of an instruction."""
        bound = self.loops.columns.bound
        assert isinstance(bound, Const)
        return int(bound.value) * ACROSS

    @property
    def tiles(self) -> int:
        """Of 64 rows."""
        bound = self.loops.rows.bound
        assert isinstance(bound, Const)
        return int(bound.value) // HALVES


def group_product(loops: ProductLoops, threads: tuple[Var, Var, Var], group: Var, c: Expressions) -> GroupProduct:
    """The product as a warpgroup does it. `threads`: variables along x, y and z.

    Raises ScheduleError where the loops, the threads or the operands do not lie as the instructions want it.
    """
    x, y, z = threads
    rows, columns, depth = loops.rows.var, loops.columns.var, loops.depth.var
    row = rows // HALVES * (WARPS * HALVES * DOWN) + rows % HALVES * DOWN + z % WARPS * (HALVES * DOWN) + y
    column = columns // NEIGHBOURS * (ACROSS * NEIGHBOURS) + columns % NEIGHBOURS + x * NEIGHBOURS
    moving = frozenset({rows, columns, depth, x, y})
    left = _operand(loops.left, row, depth, moving, c)
    right = _operand(loops.right, column, depth, moving | {z}, c)
    product = GroupProduct(MATRICES[loops.store.matrix], loops, left, right, (x, y), z, group)
    result, _ = c.buffers[loops.store.buffers[0]]
    if product.columns > MOST_COLUMNS or result.layout is not None or loops.store.indices[-1] is not columns:
        raise ScheduleError(f"the product {loops.store.stage} has no columns, or too many, for a warpgroup")
    return product


def _operand(load: Load, place: Expr, depth: Var, moving: frozenset[Var], c: Expressions) -> GroupOperand:
    """The operand, each of whose elements has `place` and k as indices, from where a tile begins."""
    indices = load.indices[1:]
    tile, along = (
        next((n for n, i in enumerate(indices) if not free_vars(c.simplify(i - of)) & moving), -1)
        for of in (place, depth)
    )
    others = [i for n, i in enumerate(indices) if n not in (tile, along)]
    if min(tile, along) < 0 or any(c.simplify(i) is not ZERO for i in others):
        raise ScheduleError(f"the elements of {load.buffer} do not lie as the threads of a warpgroup and k do")
    panels = panels_of(c.buffers[load.buffer][0])
    return GroupOperand(Load(load.buffer, indices, load.dtype), tile, along, panels)


def emit_group_product(product: GroupProduct, tiles: tuple[str, str], c: Expressions, text: Text) -> None:
    """The lines that multiply rows of the thread's warpgroup, for one instruction's depth; `tiles`: descriptors of
    where the operands' tiles begin."""
    loops, name = product.loops, _multiply_helper(product, c)
    with unrolled(product.tiles, "tile", loops.store.stage, c, text) as tile:
        first: dict[Expr, Expr] = dict.fromkeys((loops.columns.var, loops.depth.var, *product.lanes), ZERO)
        first[product.warp] = product.group * WARPS
        rows = [{**first, loops.rows.var: tile * HALVES + n} for n in range(HALVES)]
        halves = [c.element(loops.store.buffers[0], _moved(loops.store.indices, row)) for row in rows]
        first[loops.rows.var] = tile * HALVES
        a, b = (_offset(operand, first, c) for operand in (product.left, product.right))
        text.line(f"{name}(&{halves[0]}, &{halves[1]}, {tiles[0]}{a}, {tiles[1]}{b});")


def _moved(indices: tuple[Expr, ...], values: Mapping[Expr, Expr]) -> tuple[Expr, ...]:
    return tuple(substitute(i, values) for i in indices)


def _offset(operand: GroupOperand, first: Mapping[Expr, Expr], c: Expressions) -> str:
    """Return the offset that is added to the descriptor of the tile."""
    tile, depth = (c.simplify(substitute(operand.load.indices[d], first)) for d in (operand.tile, operand.depth))
    offset = c.simplify(operand.offset(tile, depth))
    return "" if offset is ZERO else f" + {c.text(offset, SUM + 1)}"


def _multiply_helper(product: GroupProduct, c: Expressions) -> str:
    """The name of the instruction's function, in use from now on."""
    row, width = product.row, product.columns
    across = [int(not p.is_along_depth) for p in (product.left, product.right)]
    types = row.name.partition(".")[2].replace(".", "_")
    name = f"multiply_tiles_{types}_{width}_{across[0]}{across[1]}"
    count = width // ACROSS * HALVES
    letter, kind = CONSTRAINTS[row.accumulator], c.type(row.accumulator)
    results = ", ".join(
        f'"+{letter}"({half}[{n * NEIGHBOURS + m}])'
        for n in range(width // (ACROSS * NEIGHBOURS))
        for half in ("upper", "lower")
        for m in range(NEIGHBOURS)
    )
    c.helpers[name] = MULTIPLY.format(
        name=name,
        type=kind,
        flag=count + 2,
        a=count,
        b=count + 1,
        instruction=row.instruction.format(n=width),
        places=", ".join(f"%{n}" for n in range(count)),
        signs=", 1, 1" if row.accumulator == "float32" else "",
        majors=f", {across[0]}, {across[1]}" if row.can_lie_across else "",
        results=results,
    )
    return name
