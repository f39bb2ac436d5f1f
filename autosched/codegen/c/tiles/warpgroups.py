"""Matrix products by warpgroups (wgmma), on panels of tiles in shared memory (`ir/instructions/tiles.py`).

    for rows, columns, k: acc[..] += A[..] * B[..]   ->   one wgmma for each tile of 64 rows of a thread's rows

Matrix descriptors of 64 bits locate the operands: the address of the first element, the strides between groups of 8
rows and between panels, and the span of the swizzle. With panels of W bytes a row, in bytes from one to the next:

    contiguous  k of the next instruction       next 64 rows        stride of 8 rows     stride of panels across k
    along k     32 (in a row of a panel)        64 W                8 W                  -
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
WGMMA = """\
static __device__ __forceinline__ void {name}(
  {type}* upper, {type}* lower, unsigned long long a, unsigned long long b{last})
{{
  asm volatile("{{ .reg .pred add; setp.ne.b32 add, %{flag}, 0; "
               "{instruction} "
               "{{{places}}}, %{a}, %{b}, add{signs}{majors}; }}"
               : {results}
               : "l"(a), "l"(b), "r"({adds}));
}}"""


@dataclass(frozen=True)
class GroupOperand:
    """An operand of the product. `load`: without the index of the stage; `tile`: the dimension of its rows (left) or
    columns (right); `depth`: that of k."""

    load: Load
    tile: int
    depth: int
    panels: Panels

    @property
    def is_along_depth(self) -> bool:
        return self.depth == len(self.load.indices) - 1

    @property
    def descriptor_bits(self) -> int:
        """The matrix descriptor but for the address: swizzle and strides."""
        span, across = self.panels.span, UNIT if self.is_along_depth else self.panels.nbytes
        return SWIZZLES[span] << 62 | (8 * span // UNIT) << 32 | (across // UNIT) << 16

    def offset(self, tile: Expr, depth: Expr) -> Expr:
        """Return the offset of an instruction's operand, in units of 16 bytes: `tile` rows or columns, `depth` along
        k."""
        span, size = self.panels.span, self.panels.itemsize
        inside, other = (depth, tile) if self.is_along_depth else (tile, depth)
        panel = inside * size // span * (self.panels.nbytes // UNIT)
        return panel + inside * size % span // UNIT + other * (span // UNIT)


@dataclass(frozen=True)
class GroupProduct:
    """A product of a warpgroup. `lanes`: thread variables along x and y; `warp`: that along z; `group`: the variable of
    the warpgroup's number."""

    intrinsic: MatrixIntrinsic
    loops: ProductLoops
    left: GroupOperand
    right: GroupOperand
    lanes: tuple[Var, Var]
    warp: Var
    group: Var

    @property
    def columns(self) -> int:
        """The columns of one instruction."""
        bound = self.loops.columns.bound
        assert isinstance(bound, Const)
        return int(bound.value) * ACROSS

    @property
    def tiles(self) -> int:
        """The number of tiles of 64 rows."""
        bound = self.loops.rows.bound
        assert isinstance(bound, Const)
        return int(bound.value) // HALVES


def group_product(loops: ProductLoops, threads: tuple[Var, Var, Var], group: Var, c: Expressions) -> GroupProduct:
    """Return the product for instructions of a warpgroup. `threads`: thread variables along x, y and z.

    Raises ScheduleError where the loops, the threads or the layouts of the operands do not suit the instructions.
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


def _operand(load: Load, tile_index: Expr, depth: Var, moving: frozenset[Var], c: Expressions) -> GroupOperand:
    """Return the operand that is indexed by `tile_index` and k from the start of a tile; ScheduleError for another
    one."""
    indices = load.indices[1:]
    tile_dim, depth_dim = (
        next((n for n, i in enumerate(indices) if not free_vars(c.simplify(i - expected)) & moving), -1)
        for expected in (tile_index, depth)
    )
    batch_indices = [i for n, i in enumerate(indices) if n not in (tile_dim, depth_dim)]
    if min(tile_dim, depth_dim) < 0 or any(c.simplify(i) is not ZERO for i in batch_indices):
        raise ScheduleError(f"the indices of {load.buffer} do not match the threads of a warpgroup and k")
    panels = panels_of(c.buffers[load.buffer][0])
    return GroupOperand(Load(load.buffer, indices, load.dtype), tile_dim, depth_dim, panels)


def emit_group_product(
    product: GroupProduct, descriptors: tuple[str, str], c: Expressions, text: Text, adds: str = ""
) -> None:
    """Emit the products of the warpgroup's rows for the k of one instruction. `descriptors`: C expressions of the
    matrix descriptors at the starts of both tiles. `adds`: whether they are added to what is there, where the row is
    promoted."""
    loops, name = product.loops, _multiply_helper(product, c)
    with unrolled(product.tiles, "tile", loops.store.stage, c, text) as tile:
        start: dict[Expr, Expr] = dict.fromkeys((loops.columns.var, loops.depth.var, *product.lanes), ZERO)
        start[product.warp] = product.group * WARPS
        rows = [{**start, loops.rows.var: tile * HALVES + n} for n in range(HALVES)]
        halves = [c.element(loops.store.buffers[0], _indices_at(loops.store.indices, row)) for row in rows]
        start[loops.rows.var] = tile * HALVES
        a, b = (_offset(operand, start, c) for operand in (product.left, product.right))
        text.line(f"{name}(&{halves[0]}, &{halves[1]}, {descriptors[0]}{a}, {descriptors[1]}{b}{adds});")


def _indices_at(indices: tuple[Expr, ...], values: Mapping[Expr, Expr]) -> tuple[Expr, ...]:
    return tuple(substitute(i, values) for i in indices)


def _offset(operand: GroupOperand, start: Mapping[Expr, Expr], c: Expressions) -> str:
    """Return the offset that is added to the descriptor of the tile."""
    tile, depth = (c.simplify(substitute(operand.load.indices[d], start)) for d in (operand.tile, operand.depth))
    offset = c.simplify(operand.offset(tile, depth))
    return "" if offset is ZERO else f" + {c.text(offset, SUM + 1)}"


def _multiply_helper(product: GroupProduct, c: Expressions) -> str:
    """Add the function of the instruction to the helpers; return its name."""
    intrinsic, width = product.intrinsic, product.columns
    across = [int(not p.is_along_depth) for p in (product.left, product.right)]
    types = intrinsic.name.partition(".")[2].replace(".", "_")
    name = f"multiply_tiles_{types}_{width}_{across[0]}{across[1]}"
    count = width // ACROSS * HALVES
    letter, kind = CONSTRAINTS[intrinsic.accumulator], c.type(intrinsic.accumulator)
    results = ", ".join(
        f'"+{letter}"({half}[{n * NEIGHBOURS + m}])'
        for n in range(width // (ACROSS * NEIGHBOURS))
        for half in ("upper", "lower")
        for m in range(NEIGHBOURS)
    )
    c.helpers[name] = WGMMA.format(
        name=name,
        type=kind,
        last=", int adds" * bool(intrinsic.promoted),
        adds="adds" if intrinsic.promoted else 1,
        flag=count + 2,
        a=count,
        b=count + 1,
        instruction=intrinsic.instruction.format(n=width),
        places=", ".join(f"%{n}" for n in range(count)),
        signs=", 1, 1" if intrinsic.accumulator == "float32" else "",
        majors=f", {across[0]}, {across[1]}" if intrinsic.can_lie_across else "",
        results=results,
    )
    return name
