"""Products of matrices by whole warps, as calls of functions of one PTX instruction each.

    for rows, columns, k: acc[..] += A[..] * B[..]   ->   A's fragments by ldmatrix, B's, then mma.sync for each tile

ldmatrix reads matrices of 8 rows of 16 bytes, each of which a lane names: lane l row l % 8 of matrix l / 8. It gives
each lane what mma.sync wants of an operand whose rows lie along k, and transposed, if elements have 16 bits, of one
whose rows lie across k. Which matrix is which, with lane = 16 right + 8 lower + row and u elements in 16 bytes:

    A, 16 rows by 2 u of k       along k: rows 8 lower + row, k u right       across: k 8 right + row, rows 8 lower
    B, 2 u of k by two tiles     along k: columns 8 right + row, k u lower    across: k 8 lower + row, columns 8 right

Instructions that take u of k have one matrix where these have two side by side.

Sources: PTX ISA, "ldmatrix" and "Matrix Fragments for mma.m16n8k16".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from autosched.codegen.c.expressions import Expressions
from autosched.codegen.c.names import Text
from autosched.errors import ScheduleError
from autosched.ir.dots import factors
from autosched.ir.expr import INDEX, Const, Expr, Load, Var
from autosched.ir.matrices import ACROSS, DOWN, HALVES, LINE, MATRICES, NEIGHBOURS, MatrixIntrinsic
from autosched.ir.simplify import Simplifier
from autosched.ir.stmt import Buffer, For, ForKind, Stmt, Store
from autosched.ir.storage import stored_shape
from autosched.ir.visit import free_vars, substitute

TRANSPOSED = 8  # elements in a row, where matrices can be transposed
CONSTRAINTS = {"float32": "f", "int32": "r"}  # of a register in inline PTX
ZERO = Const(0, INDEX)

LOAD = """\
static __device__ __forceinline__ void load_{form}_{count}(unsigned* to, const void* row)
{{
  asm volatile("ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{places}}}, [%{count}];"
               : {outputs} : "r"((unsigned)__cvta_generic_to_shared(row)) : "memory");
}}"""
MULTIPLY = """\
static __device__ __forceinline__ void {name}({parameters}, const unsigned* a, const unsigned* b)
{{
  asm volatile("{instruction} {{{d}}}, {{{a}}}, {{{b}}}, {{{d}}};"
               : {results} : {operands});
}}"""


@dataclass(frozen=True)
class WarpOperand:
    """Elements that a loop's tile reads: `tile` and `depth` are the dimensions of its rows or columns, and of k."""

    load: Load
    tile: int
    depth: int
    buffer: Buffer

    @property
    def is_along_depth(self) -> bool:
        return self.depth == self.last

    @property
    def last(self) -> int:
        """The dimension whose neighbours are adjacent."""
        return len(self.load.indices) - 1 if self.buffer.layout is None else self.buffer.layout.order[-1]

    @property
    def grain(self) -> int:
        """Elements in a row of a matrix."""
        return LINE // self.buffer.itemsize

    def at(self, values: Mapping[Expr, Expr], tile: Expr, depth: Expr) -> tuple[Expr, ...]:
        """The element that is so far from the first one of a tile."""
        found = [substitute(i, values) for i in self.load.indices]
        found[self.tile] = found[self.tile] + tile
        found[self.depth] = found[self.depth] + depth
        return tuple(found)


@dataclass(frozen=True)
class WarpProduct:
    """Loops over a thread's rows, its columns and k around one update; `x` and `y` are the lanes' variables."""

    row: MatrixIntrinsic
    loops: tuple[For, For, For]
    store: Store
    left: WarpOperand
    right: WarpOperand
    x: Var
    y: Var

    @property
    def tiles(self) -> tuple[int, int]:
        """Of 16 rows, and of 8 columns."""
        rows, columns = (loop.bound for loop in self.loops[:2])
        assert isinstance(rows, Const)
        assert isinstance(columns, Const)
        return int(rows.value) // HALVES, int(columns.value) // NEIGHBOURS

    @property
    def held(self) -> tuple[int, int]:
        """32-bit registers of a thread for A's rows of one tile, and of B's columns."""
        return self.row.deep * HALVES, self.row.deep

    @property
    def fragment_bytes(self) -> int:
        return 4 * sum(tiles * each for tiles, each in zip(self.tiles, self.held, strict=True))


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
    """What the loop is the outermost of, if it is a product of matrices; ScheduleError for one with other loops."""
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
    left, right = pair if _moves(pair[0], loops[0].var) else pair[::-1]
    return ProductLoops(loops[0], loops[1], loops[2], body, left, right)


def warp_product(loop: For, lanes: tuple[Var | None, Var | None], c: Expressions) -> WarpProduct | None:
    """The product that the loop is the outermost of, if it is one. `lanes`: variables of threads along x and y.

    Raises ScheduleError where the loops, the lanes or the operands do not lie as the instructions want it.
    """
    found, (x, y) = product_loops(loop), lanes
    if found is None:
        return None
    rows, columns, depth, store = found.rows, found.columns, found.depth, found.store
    where = f"the product {store.stage} by {store.matrix}"
    if x is None or y is None:
        raise ScheduleError(f"{where} has no lanes")
    operands = _operand(found.left, rows.var, depth.var, c), _operand(found.right, columns.var, depth.var, c)
    product = WarpProduct(MATRICES[store.matrix], (rows, columns, depth), store, *operands, x, y)
    problem = _problem(product, c)
    if problem:
        raise ScheduleError(f"{where} cannot be done by warps: {problem}")
    return product


def _moves(load: Load, var: Var) -> bool:
    return any(var in free_vars(i) for i in load.indices)


def _operand(load: Load, tile: Var, depth: Var, c: Expressions) -> WarpOperand:
    dims = [next((n for n, i in enumerate(load.indices) if v in free_vars(i)), -1) for v in (tile, depth)]
    return WarpOperand(load, dims[0], dims[1], c.buffers[load.buffer][0])


def _problem(product: WarpProduct, c: Expressions) -> str:
    """What is not as the instructions want it; empty where all is well."""
    rows, columns, depth = product.loops
    ranges = c.simplify.ranges
    extents = [ranges.get(v, (0, -1))[1] + 1 for v in (product.x, product.y)]
    if extents != [ACROSS, DOWN] or depth.bound is not Const(product.row.k, INDEX):
        return f"the lanes are {extents[0]} by {extents[1]}, the step is {depth.bound}"
    if any(s.extent is not s.bound or not isinstance(s.bound, Const) or int(s.bound.value) % 2 for s in product.loops):
        return "a loop has no constant, even extent"
    row = rows.var // HALVES * product.row.m + rows.var % HALVES * DOWN + product.y
    column = columns.var // NEIGHBOURS * product.row.n + columns.var % NEIGHBOURS + product.x * NEIGHBOURS
    for operand, place in ((product.left, row), (product.right, column)):
        buffer = operand.buffer
        if not _is_placed(operand, place, product, c.simplify):
            return f"the elements of {operand.load.buffer} do not lie as the lanes and loops do"
        pitch = stored_shape(buffer)[-1][1] * buffer.itemsize
        if pitch % LINE or (buffer.layout is not None and buffer.layout.tiles):
            return f"rows of {operand.load.buffer} are {pitch} bytes, or stored in tiles"
        if not operand.is_along_depth and operand.grain != TRANSPOSED:
            return f"{operand.load.buffer} lies across k"
    result, _ = c.buffers[product.store.buffers[0]]
    is_plain = result.layout is None and product.store.indices[-1] is columns.var
    return "" if is_plain else f"{result.name} is not stored along the columns"


def _is_placed(operand: WarpOperand, place: Expr, product: WarpProduct, simplify: Simplifier) -> bool:
    """Whether an element's index is `place` and k from where rows of matrices begin, multiples of whole
    rows, in two dimensions of which one is the last as stored, and nothing of these elsewhere."""
    rows, columns, depth = (loop.var for loop in product.loops)
    moving = {rows, columns, depth, product.x, product.y}
    wanted = {operand.tile: place, operand.depth: depth}
    if len(wanted) < 2 or operand.last not in wanted or min(wanted) < 0:
        return False
    for n, index in enumerate(operand.load.indices):
        rest = simplify(index - wanted.get(n, ZERO))
        if free_vars(rest) & moving:
            return False
        if n == operand.last and not _is_multiple(rest, operand.grain, simplify):
            return False
    return True


def _is_multiple(index: Expr, of: int, simplify: Simplifier) -> bool:
    form = simplify.affine(index)
    return form.constant % of == 0 and all(n % of == 0 for _, n in form.terms)


def emit_product(product: WarpProduct, c: Expressions, text: Text) -> None:
    """The lines that load the fragments of both operands and multiply them."""
    down, across = product.tiles
    in_a, in_b = product.held
    a, b = text.name("a_fragments"), text.name("b_fragments")
    text.line(f"unsigned {a}[{down * in_a}];")
    text.line(f"unsigned {b}[{across * in_b}];")
    lanes = Lane(product.x, product.y)
    rows, columns, depth = (loop.var for loop in product.loops)
    start: dict[Expr, Expr] = {product.x: ZERO, product.y: ZERO, depth: ZERO}

    def load(operand: WarpOperand, count: int, to: str, first: Mapping[Expr, Expr], tile: Expr, beside: Expr) -> None:
        """`tile`, `beside`: the matrix's number along the operand's rows or columns, and along k."""
        if operand.is_along_depth:
            place = operand.at({**start, **first}, tile * DOWN + lanes.row, beside * operand.grain)
        else:
            place = operand.at({**start, **first}, tile * DOWN, beside * DOWN + lanes.row)
        name = _load_helper(count, operand.is_along_depth, c)
        text.line(f"{name}({to}, &{c.element(operand.load.buffer, place)});")

    is_deep = product.row.deep > 1
    with unrolled(down, "tile", product.store.stage, c, text) as tile:
        to = f"&{a}[{c.text(tile * in_a)}]"
        load(product.left, in_a, to, {rows: tile * HALVES}, lanes.lower, lanes.right if is_deep else ZERO)
    if across > 1:
        with unrolled(across // 2, "pair", product.store.stage, c, text) as two:
            first: dict[Expr, Expr] = {columns: two * (2 * NEIGHBOURS)}
            to = f"&{b}[{c.text(two * (2 * in_b))}]"
            tile, beside = (lanes.right, lanes.lower) if is_deep else (lanes.lower, ZERO)
            load(product.right, 2 * in_b, to, first, tile, beside)
    if across % 2:
        last: dict[Expr, Expr] = {columns: Const((across - 1) * NEIGHBOURS, INDEX)}
        load(product.right, in_b, f"&{b}[{(across - 1) * in_b}]", last, ZERO, lanes.lower if is_deep else ZERO)
    multiply, halves = _multiply_helper(product.row, c), product.row.rows // DOWN
    stage = product.store.stage
    with unrolled(down, "i", stage, c, text) as i, unrolled(across, "j", stage, c, text) as j:
        places = [
            c.element(product.store.buffers[0], _moved(product.store, {rows: i * HALVES + n, columns: j * NEIGHBOURS}))
            for n in range(HALVES)
        ]
        for n in range(0, HALVES, halves):
            results = ", ".join(f"&{place}" for place in places[n : n + halves])
            text.line(f"{multiply}({results}, &{a}[{c.text(i * in_a + n)}], &{b}[{c.text(j * in_b)}]);")


@dataclass(frozen=True)
class Lane:
    """The digits of a thread's number in its warp: 16 right + 8 lower + row."""

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


def _moved(store: Store, values: Mapping[Expr, Expr]) -> tuple[Expr, ...]:
    return tuple(substitute(i, values) for i in store.indices)


@contextmanager
def unrolled(count: int, name: str, stage: str, c: Expressions, text: Text) -> Iterator[Expr]:
    """The lines that follow, `count` times; the number of the time."""
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
    """The name of a function that loads matrices, in use from now on."""
    form, trans = ("rows", "") if is_along_depth else ("columns", ".trans")
    places = ", ".join(f"%{n}" for n in range(count))
    outputs = ", ".join(f'"=r"(to[{n}])' for n in range(count))
    name = f"load_{form}_{count}"
    c.helpers[name] = LOAD.format(form=form, count=count, trans=trans, places=places, outputs=outputs)
    return name


def _multiply_helper(row: MatrixIntrinsic, c: Expressions) -> str:
    """The name of a function of one instruction, in use from now on: results of each of its halves of rows, A, B."""
    name = f"multiply_matrices_{row.name.partition('.')[2].replace('.', '_')}"
    kind, letter, halves = c.type(row.accumulator), CONSTRAINTS[row.accumulator], row.rows // DOWN
    results = [f"d{n}[{m}]" for n in range(halves) for m in range(NEIGHBOURS)]
    operands = [f"a[{n}]" for n in range(halves * row.deep)], [f"b[{n}]" for n in range(row.deep)]
    numbers = iter(range(len(results) + sum(map(len, operands))))
    d, a, b = (", ".join(f"%{next(numbers)}" for _ in group) for group in (results, *operands))
    c.helpers[name] = MULTIPLY.format(
        name=name,
        parameters=", ".join(f"{kind}* d{n}" for n in range(halves)),
        instruction=row.instruction,
        d=d,
        a=a,
        b=b,
        results=", ".join(f'"+{letter}"({x})' for x in results),
        operands=", ".join(f'"r"({x})' for x in [*operands[0], *operands[1]]),
    )
    return name
