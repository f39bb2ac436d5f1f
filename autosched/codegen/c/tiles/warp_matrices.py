"""Matrix products by warps (mma.sync), as calls of functions of one PTX instruction each.

    for rows, columns, k: acc[..] += A[..] * B[..]   ->   A's fragments by ldmatrix, B's, then mma.sync for each tile

ldmatrix reads matrices of 8 rows of 16 bytes. Lane l holds the address of row l % 8 of matrix l / 8. The instruction
loads the fragments of mma.sync from an operand that is contiguous along k. Its transposed form, for elements of 16 bits
only, loads them from an operand that is contiguous across k. The address of each lane, with lane = 16 right + 8 lower +
row and u elements in 16 bytes:

    A, 16 rows by 2 u of k       along k: rows 8 lower + row, k u right       across: k 8 right + row, rows 8 lower
    B, 2 u of k by two tiles     along k: columns 8 right + row, k u lower    across: k 8 lower + row, columns 8 right

Instructions whose k is u have one matrix where these have two side by side. An element of 32 bits fills a register;
operands of such elements that are contiguous across k are loaded element by element.

A left operand in the registers of the warp has the layout of a result: a lane has columns 2x and 2x + 1. For 16 bits
this is the fragment of the instruction. For 32 bits the fragment is k = x and x + 4. The order of a sum is free, so
both operands are given 2x and 2x + 1 in its stead.

Sources: PTX ISA, "ldmatrix" and "Matrix Fragments for mma.m16n8k16".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from autosched.codegen.c.expressions import Expressions
from autosched.codegen.c.names import Text
from autosched.errors import ScheduleError
from autosched.ir.expr import INDEX, Const, Expr, Load, Var
from autosched.ir.instructions.dots import factors
from autosched.ir.instructions.matrices import ACROSS, DOWN, HALVES, LINE, MATRICES, NEIGHBOURS, MatrixIntrinsic
from autosched.ir.simplify import Simplifier
from autosched.ir.stmt import Buffer, For, ForKind, Scope, Stmt, Store
from autosched.ir.storage import stored_shape
from autosched.ir.visit import free_vars, substitute

WORD = 4  # bytes of a register
TRANSPOSED = 8  # elements in a row, where matrices can be transposed
CONSTRAINTS = {"float32": "f", "int32": "r"}  # of a register in inline PTX
ZERO = Const(0, INDEX)

LDMATRIX = """\
static __device__ __forceinline__ void load_{form}_{count}(unsigned* to, const void* row)
{{
  asm volatile("ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{places}}}, [%{count}];"
               : {outputs} : "r"((unsigned)__cvta_generic_to_shared(row)) : "memory");
}}"""
MMA = """\
static __device__ __forceinline__ void {name}({parameters}, const unsigned* a, const unsigned* b)
{{
  asm volatile("{instruction} {{{d}}}, {{{a}}}, {{{b}}}, {{{d}}};"
               : {results} : {operands});
}}"""

# Added to registers of float32 each time. A warp of sm_90 multiplies numbers of 16 bits, whose sums are as precise.
PROMOTED_MMA = """\
static __device__ __forceinline__ void {name}({parameters}, const unsigned* a, const unsigned* b)
{{
#if __CUDA_ARCH__ == 900
  asm volatile("{instruction} {{{d}}}, {{{a}}}, {{{b}}}, {{{d}}};" : {results} : {operands});
#else
  float part[{count}] = {{}};
  asm volatile("{instruction} {{{d}}}, {{{a}}}, {{{b}}}, {{{d}}};" : {parts} : {operands});
  {additions}
#endif
}}"""

ROUND_TO_TF32 = """\
static __device__ __forceinline__ unsigned tf32_of_float32(float a)
{
  unsigned b;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(b) : "f"(a));
  return b;
}"""


@dataclass(frozen=True)
class WarpOperand:
    """An operand of the product. `tile`: the dimension of its rows (left) or columns (right); `depth`: that of k."""

    load: Load
    tile: int
    depth: int
    buffer: Buffer

    @property
    def is_along_depth(self) -> bool:
        return self.depth == self.contiguous_dim

    @property
    def is_loaded_by_element(self) -> bool:
        """Whether each element is loaded into its own register: elements of 32 bits, contiguous across k."""
        return not self.is_along_depth and self.buffer.itemsize == WORD

    @property
    def contiguous_dim(self) -> int:
        """The dimension along which elements are adjacent in memory."""
        return len(self.load.indices) - 1 if self.buffer.layout is None else self.buffer.layout.order[-1]

    @property
    def is_fragment(self) -> bool:
        """Whether the operand is in the registers of the warp already, with the layout of a result."""
        return self.buffer.scope is Scope.WARP

    @property
    def row_elements(self) -> int:
        """Elements in a row of 16 bytes of a matrix that ldmatrix reads."""
        return LINE // self.buffer.itemsize

    def element_at(self, values: Mapping[Expr, Expr], tile: Expr, depth: Expr) -> tuple[Expr, ...]:
        """Return the indices of the element at offset (`tile`, `depth`) from the one at `values`."""
        indices = [substitute(i, values) for i in self.load.indices]
        indices[self.tile] = indices[self.tile] + tile
        indices[self.depth] = indices[self.depth] + depth
        return tuple(indices)


@dataclass(frozen=True)
class WarpProduct:
    """Loops over a thread's rows, its columns and k around one update; `x` and `y` are the lanes' variables."""

    intrinsic: MatrixIntrinsic
    loops: tuple[For, For, For]
    store: Store
    left: WarpOperand
    right: WarpOperand
    x: Var
    y: Var

    @property
    def tiles(self) -> tuple[int, int]:
        """The number of tiles of 16 rows, and of tiles of 8 columns."""
        rows, columns = (loop.bound for loop in self.loops[:2])
        assert isinstance(rows, Const)
        assert isinstance(columns, Const)
        return int(rows.value) // HALVES, int(columns.value) // NEIGHBOURS

    @property
    def fragment_registers(self) -> tuple[int, int]:
        """32-bit registers of a thread for the fragment of A of a row tile, and of B of a column tile."""
        return self.intrinsic.deep * HALVES, self.intrinsic.deep

    @property
    def has_adjacent_k(self) -> bool:
        """Whether a lane has elements k = 2x and 2x + 1 where the instruction expects x and x + 4."""
        return self.left.is_fragment and self.left.buffer.itemsize == WORD

    @property
    def is_left_in_registers(self) -> bool:
        """Whether the left operand needs no load: its registers are the fragment of the instruction."""
        return self.left.is_fragment and not self.has_adjacent_k

    @property
    def fragment_bytes(self) -> int:
        a, b = (tiles * each for tiles, each in zip(self.tiles, self.fragment_registers, strict=True))
        registers = b if self.is_left_in_registers else a + b
        return WORD * registers * self.intrinsic.registers

    @property
    def lane(self) -> Lane:
        return Lane(self.x, self.y)


@dataclass(frozen=True)
class ProductLoops:
    """Unrolled loops over a thread's rows, its columns and k around one update; `left` moves with the rows."""

    rows: For
    columns: For
    depth: For
    store: Store
    left: Load
    right: Load


def product_loops(loop: For) -> ProductLoops | None:
    """Return the loops of a matrix product whose outermost loop this is, else None; ScheduleError for other loops."""
    loops: list[For] = []
    body: Stmt = loop
    while isinstance(body, For):
        loops.append(body)
        body = body.body
    if not (isinstance(body, Store) and body.matrix) or len(loops) != 3:
        return None
    pair = factors(body.values[0], body.values[0].dtype)
    if pair is None or any(s.kind is not ForKind.UNROLL for s in loops):
        raise ScheduleError(f"the product {body.stage} by {body.matrix} has no two operands or loops not unrolled")
    left, right = pair if _depends_on(pair[0], loops[0].var) else pair[::-1]
    return ProductLoops(loops[0], loops[1], loops[2], body, left, right)


def warp_product(loop: For, lanes: tuple[Var | None, Var | None], c: Expressions) -> WarpProduct | None:
    """Return the product whose outermost loop this is, None if it is none. `lanes`: thread variables along x and y.

    Raises ScheduleError where the loops, the lanes or the layouts of the operands do not suit the instructions.
    """
    nest, (x, y) = product_loops(loop), lanes
    if nest is None:
        return None
    rows, columns, depth, store = nest.rows, nest.columns, nest.depth, nest.store
    where = f"the product {store.stage} by {store.matrix}"
    if x is None or y is None:
        raise ScheduleError(f"{where} has no lanes")
    operands = _operand(nest.left, rows.var, depth.var, c), _operand(nest.right, columns.var, depth.var, c)
    product = WarpProduct(MATRICES[store.matrix], (rows, columns, depth), store, *operands, x, y)
    problem = _rejection_reason(product, c)
    if problem:
        raise ScheduleError(f"{where} cannot be done by warps: {problem}")
    return product


def _depends_on(load: Load, var: Var) -> bool:
    return any(var in free_vars(i) for i in load.indices)


def _operand(load: Load, tile: Var, depth: Var, c: Expressions) -> WarpOperand:
    dims = [next((n for n, i in enumerate(load.indices) if v in free_vars(i)), -1) for v in (tile, depth)]
    return WarpOperand(load, dims[0], dims[1], c.buffers[load.buffer][0])


def _rejection_reason(product: WarpProduct, c: Expressions) -> str:
    """Return why the instructions cannot compute the product; "" if they can."""
    rows, columns, depth = product.loops
    ranges = c.simplify.ranges
    extents = [ranges.get(v, (0, -1))[1] + 1 for v in (product.x, product.y)]
    if extents != [ACROSS, DOWN] or depth.bound is not Const(product.intrinsic.k, INDEX):
        return f"the lanes are {extents[0]} by {extents[1]}, the step is {depth.bound}"
    if any(s.extent is not s.bound or not isinstance(s.bound, Const) or int(s.bound.value) % 2 for s in product.loops):
        return "a loop has no constant, even extent"
    row = rows.var // HALVES * product.intrinsic.m + rows.var % HALVES * DOWN + product.y
    column = columns.var // NEIGHBOURS * product.intrinsic.n + columns.var % NEIGHBOURS + product.x * NEIGHBOURS
    for operand, place in ((product.left, row), (product.right, column)):
        buffer = operand.buffer
        if not _matches_layout(operand, place, product, c.simplify):
            return f"the indices of {operand.load.buffer} do not match the lanes and loops"
        pitch = stored_shape(buffer)[-1][1] * buffer.itemsize
        if pitch % LINE or (buffer.layout is not None and buffer.layout.tiles):
            return f"rows of {operand.load.buffer} are {pitch} bytes, or stored in tiles"
        if not (operand.is_along_depth or operand.is_loaded_by_element) and operand.row_elements != TRANSPOSED:
            return f"{operand.load.buffer} is contiguous across k"
    result, _ = c.buffers[product.store.buffers[0]]
    is_plain = result.layout is None and product.store.indices[-1] is columns.var
    return "" if is_plain else f"the columns of {result.name} are not contiguous"


def _matches_layout(operand: WarpOperand, tile_index: Expr, product: WarpProduct, simplify: Simplifier) -> bool:
    """Whether the operand is indexed by `tile_index` in one dimension and by k in another, one of them contiguous, and
    by none of the product's variables in the others. Offsets along the contiguous dimension must be whole rows of 16
    bytes."""
    rows, columns, depth = (loop.var for loop in product.loops)
    moving = {rows, columns, depth, product.x, product.y}
    expected = {operand.tile: tile_index, operand.depth: depth}
    if len(expected) < 2 or operand.contiguous_dim not in expected or min(expected) < 0:
        return False
    for n, index in enumerate(operand.load.indices):
        rest = simplify(index - expected.get(n, ZERO))
        if free_vars(rest) & moving:
            return False
        if n == operand.contiguous_dim and not _is_multiple(rest, operand.row_elements, simplify):
            return False
    return True


def _is_multiple(index: Expr, of: int, simplify: Simplifier) -> bool:
    affine = simplify.affine(index)
    return affine.constant % of == 0 and all(n % of == 0 for _, n in affine.terms)


def emit_product(product: WarpProduct, c: Expressions, text: Text) -> None:
    """Emit the lines that load the fragments of both operands and multiply them."""
    (row_tiles, column_tiles), (a_registers, b_registers) = product.tiles, product.fragment_registers
    fragments = Fragments(product, c, text, text.name("a_fragments"), text.name("b_fragments"))
    arrays = (
        (fragments.a, 0 if product.is_left_in_registers else row_tiles * a_registers),
        (fragments.b, column_tiles * b_registers),
    )
    for name, count in (x for x in arrays if x[1]):
        text.line(f"unsigned {name}[{count}];")
    if not product.is_left_in_registers:
        fragments.load_left()
    fragments.load_right()
    if not product.intrinsic.precision:
        fragments.multiply(fragments.a, fragments.b)
        return
    rest_a, rest_b = (
        fragments.round_to_precision(*of)
        for of in ((fragments.a, row_tiles * a_registers), (fragments.b, column_tiles * b_registers))
    )
    if product.intrinsic.parts > 1:
        fragments.multiply(rest_a, fragments.b)
        fragments.multiply(fragments.a, rest_b)
    fragments.multiply(fragments.a, fragments.b)


@dataclass(frozen=True)
class Fragments:
    """Emits the loads and multiplications of fragments in a thread's arrays of registers `a` and `b`."""

    product: WarpProduct
    c: Expressions
    text: Text
    a: str
    b: str

    def load_left(self) -> None:
        product, lane = self.product, self.product.lane
        n_registers, _ = product.fragment_registers
        with self._unrolled(product.tiles[0], "tile") as tile:
            tile_start: dict[Expr, Expr] = {product.loops[0].var: tile * HALVES}
            if product.has_adjacent_k or product.left.is_loaded_by_element:
                self._load_elements(product.left, self.a, tile * n_registers, tile_start, HALVES)
                return
            self._load(product.left, (self.a, tile * n_registers, n_registers), tile_start, (lane.lower, lane.right))

    def load_right(self) -> None:
        product, lane, column_tiles = self.product, self.product.lane, self.product.tiles[1]
        _, n_registers = product.fragment_registers
        columns = product.loops[1].var
        if product.has_adjacent_k or product.right.is_loaded_by_element:
            with self._unrolled(column_tiles, "column") as column:
                self._load_elements(product.right, self.b, column * n_registers, {columns: column * NEIGHBOURS}, 1)
            return
        if column_tiles > 1:
            with self._unrolled(column_tiles // 2, "pair") as column_pair:
                tile_start: dict[Expr, Expr] = {columns: column_pair * (2 * NEIGHBOURS)}
                registers = (self.b, column_pair * (2 * n_registers), 2 * n_registers)
                is_deep = product.intrinsic.deep > 1
                self._load(product.right, registers, tile_start, (lane.right if is_deep else lane.lower, lane.lower))
        if column_tiles % 2:
            last_start: dict[Expr, Expr] = {columns: Const((column_tiles - 1) * NEIGHBOURS, INDEX)}
            registers = (self.b, Const((column_tiles - 1) * n_registers, INDEX), n_registers)
            self._load(product.right, registers, last_start, (ZERO, lane.lower))

    def _load(
        self,
        operand: WarpOperand,
        registers: tuple[str, Expr, int],
        tile_start: Mapping[Expr, Expr],
        matrix: tuple[Expr, Expr],
    ) -> None:
        """Load fragments by ldmatrix. `registers`: array, first register, their number. `matrix`: the index of a lane's
        matrix along the operand's rows or columns, and along k."""
        lane, (matrix_along_tile, matrix_along_k) = self.product.lane, matrix
        matrix_along_k = matrix_along_k if self.product.intrinsic.deep > 1 else ZERO
        if operand.is_along_depth:
            element = operand.element_at(
                {**self._warp_origin, **tile_start},
                matrix_along_tile * DOWN + lane.row,
                matrix_along_k * operand.row_elements,
            )
        else:
            element = operand.element_at(
                {**self._warp_origin, **tile_start}, matrix_along_tile * DOWN, matrix_along_k * DOWN + lane.row
            )
        array, start, count = registers
        load = _load_helper(count, operand.is_along_depth, self.c)
        self.text.line(f"{load}(&{array}[{self.c.text(start)}], &{self.c.element(operand.load.buffer, element)});")

    def _load_elements(
        self, operand: WarpOperand, array: str, start: Expr, tile_start: Mapping[Expr, Expr], halves: int
    ) -> None:
        """Load a fragment of 32-bit elements, one load for each of them."""
        product = self.product
        for n in range(halves * product.intrinsic.deep):
            k = product.x * NEIGHBOURS + n // halves if product.has_adjacent_k else product.x + n // halves * ACROSS
            indices = operand.element_at({**self._warp_origin, **tile_start}, product.y + n % halves * DOWN, k)
            element = self.c.element(operand.load.buffer, indices)
            self.text.line(f"{array}[{self.c.text(start + n)}] = __float_as_uint({element});")

    def round_to_precision(self, array: str, count: int) -> str:
        """Round registers to tf32; return the array of the rounding errors, which split products (3xTF32) need.

        The instruction ignores the last 13 bits. For split products the rounding need not treat NaN: the error is NaN
        then, and so is the sum. The errors themselves may be truncated.
        """
        rest = self.text.name(f"{array}_rest")
        has_rest = self.product.intrinsic.parts > 1
        if has_rest:
            self.text.line(f"unsigned {rest}[{count}];")
        with self._unrolled(count, "n") as n:
            at = f"{array}[{self.c.text(n)}]"
            if has_rest:
                self.text.line(f"const float whole = __uint_as_float({at});")
                self.text.line(f"{at} = ({at} + 0x1000) & 0xffffe000;")
                self.text.line(f"{rest}[{self.c.text(n)}] = __float_as_uint(whole - __uint_as_float({at}));")
            else:
                self.text.line(f"{at} = {_tf32_helper(self.c)}(__uint_as_float({at}));")
        return rest

    def multiply(self, a: str, b: str) -> None:
        product, c = self.product, self.c
        (row_tiles, column_tiles), (a_registers, b_registers) = product.tiles, product.fragment_registers
        rows, columns, _ = (loop.var for loop in product.loops)
        name, halves = _multiply_helper(product.intrinsic, c), product.intrinsic.rows // DOWN
        with self._unrolled(row_tiles, "i") as i, self._unrolled(column_tiles, "j") as j:
            accumulators = [
                c.element(
                    product.store.buffers[0],
                    _indices_at(product.store, {rows: i * HALVES + n, columns: j * NEIGHBOURS}),
                )
                for n in range(HALVES)
            ]
            for n in range(0, HALVES, halves):
                results = ", ".join(f"&{place}" for place in accumulators[n : n + halves])
                left = self._left_pointer(i) if product.is_left_in_registers else f"&{a}[{c.text(i * a_registers + n)}]"
                self.text.line(f"{name}({results}, {left}, &{b}[{c.text(j * b_registers)}]);")

    def _left_pointer(self, tile: Expr) -> str:
        """Return a pointer to the fragment of a left operand that is in registers."""
        left = self.product.left
        indices = left.element_at({**self._warp_origin, self.product.loops[0].var: tile * HALVES}, ZERO, ZERO)
        return f"(const unsigned*)&{self.c.element(left.load.buffer, indices)}"

    @property
    def _warp_origin(self) -> dict[Expr, Expr]:
        """Values of the variables for the first thread of the warp and k = 0."""
        return {self.product.x: ZERO, self.product.y: ZERO, self.product.loops[2].var: ZERO}

    def _unrolled(self, count: int, name: str) -> AbstractContextManager[Expr]:
        return unrolled(count, name, self.product.store.stage, self.c, self.text)


@dataclass(frozen=True)
class Lane:
    """The digits of a lane's number, 16 right + 8 lower + row: a matrix of ldmatrix and a row of it."""

    x: Var
    y: Var

    @property
    def row(self) -> Expr:
        return self.y % 2 * ACROSS + self.x

    @property
    def lower(self) -> Expr:
        return self.y // 2 % 2

    @property
    def right(self) -> Expr:
        return self.y // 4


def _indices_at(store: Store, values: Mapping[Expr, Expr]) -> tuple[Expr, ...]:
    return tuple(substitute(i, values) for i in store.indices)


@contextmanager
def unrolled(count: int, name: str, stage: str, c: Expressions, text: Text) -> Iterator[Expr]:
    """Put the lines emitted inside into a loop, unrolled `count` times; yield the loop's variable."""
    if count == 1:
        yield ZERO
        return
    var = Var(f"{stage}.{name}", INDEX)
    c.simplify.ranges[var] = (0, count - 1)
    number = c.variables[var] = text.name(name)
    text.line(c.dialect.unroll)
    with text.block(f"for (int {number} = 0; {number} < {count}; ++{number})"):
        yield var


def _load_helper(count: int, is_along_depth: bool, c: Expressions) -> str:
    """Return the name of the function that loads `count` matrices by ldmatrix, and add it to the helpers."""
    order, trans = ("rows", "") if is_along_depth else ("columns", ".trans")
    registers = ", ".join(f"%{n}" for n in range(count))
    outputs = ", ".join(f'"=r"(to[{n}])' for n in range(count))
    name = f"load_{order}_{count}"
    c.helpers[name] = LDMATRIX.format(form=order, count=count, trans=trans, places=registers, outputs=outputs)
    return name


def _multiply_helper(intrinsic: MatrixIntrinsic, c: Expressions) -> str:
    """Add the function of one mma.sync to the helpers; return its name. Parameters: results of 8 rows each, A, B."""
    name = f"multiply_matrices_{intrinsic.name.partition('.')[2].replace('.', '_')}"
    kind, letter, halves = c.type(intrinsic.accumulator), CONSTRAINTS[intrinsic.accumulator], intrinsic.rows // DOWN
    results = [f"d{n}[{m}]" for n in range(halves) for m in range(NEIGHBOURS)]
    operands = [f"a[{n}]" for n in range(halves * intrinsic.deep)], [f"b[{n}]" for n in range(intrinsic.deep)]
    numbers = iter(range(len(results) + sum(map(len, operands))))
    d, a, b = (", ".join(f"%{next(numbers)}" for _ in group) for group in (results, *operands))
    c.helpers[name] = (PROMOTED_MMA if intrinsic.promoted else MMA).format(
        name=name,
        count=len(results),
        parts=", ".join(f'"+{letter}"(part[{n}])' for n in range(len(results))),
        additions=" ".join(f"{x} += part[{n}];" for n, x in enumerate(results)),
        parameters=", ".join(f"{kind}* d{n}" for n in range(halves)),
        instruction=intrinsic.instruction,
        d=d,
        a=a,
        b=b,
        results=", ".join(f'"+{letter}"({x})' for x in results),
        operands=", ".join(f'"r"({x})' for x in [*operands[0], *operands[1]]),
    )
    return name


def _tf32_helper(c: Expressions) -> str:
    c.helpers["tf32_of_float32"] = ROUND_TO_TF32
    return "tf32_of_float32"
