"""Matrix products by warps (mma.sync), as calls of functions of one PTX instruction each.

    for rows, columns, k: acc[..] += A[..] * B[..]   ->   A's fragments by ldmatrix, B's, then mma.sync for each tile

ldmatrix reads matrices of 8 rows of 16 bytes, each of which a lane names: lane l row l % 8 of matrix l / 8. It gives
each lane what mma.sync wants of an operand whose rows lie along k, and transposed, if elements have 16 bits, of one
whose rows lie across k. Which matrix is which, with lane = 16 right + 8 lower + row and u elements in 16 bytes:

    A, 16 rows by 2 u of k       along k: rows 8 lower + row, k u right       across: k 8 right + row, rows 8 lower
    B, 2 u of k by two tiles     along k: columns 8 right + row, k u lower    across: k 8 lower + row, columns 8 right

Instructions that take u of k have one matrix where these have two side by side. Elements of 32 bits are a register
each, and loaded one by one where they lie across k.

What a warp holds as its left operand lies as results do: a lane has columns 2x and 2x + 1. Of 16 bits that is what the
instruction takes. Of 32 it takes k = x and x + 4; as a sum may have any order, both operands give it 2x and 2x + 1.

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

SHORTEN = """\
static __device__ __forceinline__ unsigned tf32_of_float32(float a)
{
  unsigned b;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(b) : "f"(a));
  return b;
}"""


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
    def is_word_by_word(self) -> bool:
        """Whether it is loaded element by element: across k, where these are what a register holds."""
        return not self.is_along_depth and self.buffer.itemsize == WORD

    @property
    def last(self) -> int:
        """The dimension whose neighbours are adjacent."""
        return len(self.load.indices) - 1 if self.buffer.layout is None else self.buffer.layout.order[-1]

    @property
    def is_held(self) -> bool:
        """Whether the lanes have it as an instruction takes it."""
        return self.buffer.scope is Scope.WARP

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
    def takes_neighbours(self) -> bool:
        """Whether lanes have neighbours along k where the instruction means such that are four apart."""
        return self.left.is_held and self.left.buffer.itemsize == WORD

    @property
    def is_ready(self) -> bool:
        """Whether the lanes have the left operand as the instruction takes it."""
        return self.left.is_held and not self.takes_neighbours

    @property
    def fragment_bytes(self) -> int:
        a, b = (tiles * each for tiles, each in zip(self.tiles, self.held, strict=True))
        registers = b if self.is_ready else a + b
        return WORD * registers * self.row.registers

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
    """Return why the instructions cannot compute the product; "" if they can."""
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
        if not (operand.is_along_depth or operand.is_word_by_word) and operand.grain != TRANSPOSED:
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
    """Emit the lines that load the fragments of both operands and multiply them."""
    (down, across), (in_a, in_b) = product.tiles, product.held
    fragments = Fragments(product, c, text, text.name("a_fragments"), text.name("b_fragments"))
    arrays = ((fragments.a, 0 if product.is_ready else down * in_a), (fragments.b, across * in_b))
    for name, count in (x for x in arrays if x[1]):
        text.line(f"unsigned {name}[{count}];")
    if not product.is_ready:
        fragments.load_left()
    fragments.load_right()
    if not product.row.precision:
        fragments.multiply(fragments.a, fragments.b)
        return
    rest_a, rest_b = (fragments.shorten(*of) for of in ((fragments.a, down * in_a), (fragments.b, across * in_b)))
    if product.row.parts > 1:
        fragments.multiply(rest_a, fragments.b)
        fragments.multiply(fragments.a, rest_b)
    fragments.multiply(fragments.a, fragments.b)


@dataclass(frozen=True)
class Fragments:
    """Lines about the registers that a thread has of the operands, the arrays `a` and `b`."""

    product: WarpProduct
    c: Expressions
    text: Text
    a: str
    b: str

    def load_left(self) -> None:
        product, lane = self.product, self.product.lane
        held, _ = product.held
        with self._unrolled(product.tiles[0], "tile") as tile:
            first: dict[Expr, Expr] = {product.loops[0].var: tile * HALVES}
            if product.takes_neighbours or product.left.is_word_by_word:
                self._load_each(product.left, self.a, tile * held, first, HALVES)
                return
            self._load(product.left, (self.a, tile * held, held), first, (lane.lower, lane.right))

    def load_right(self) -> None:
        product, lane, across = self.product, self.product.lane, self.product.tiles[1]
        _, held = product.held
        columns = product.loops[1].var
        if product.takes_neighbours or product.right.is_word_by_word:
            with self._unrolled(across, "column") as column:
                self._load_each(product.right, self.b, column * held, {columns: column * NEIGHBOURS}, 1)
            return
        if across > 1:
            with self._unrolled(across // 2, "pair") as two:
                first: dict[Expr, Expr] = {columns: two * (2 * NEIGHBOURS)}
                to = (self.b, two * (2 * held), 2 * held)
                is_deep = product.row.deep > 1
                self._load(product.right, to, first, (lane.right if is_deep else lane.lower, lane.lower))
        if across % 2:
            last: dict[Expr, Expr] = {columns: Const((across - 1) * NEIGHBOURS, INDEX)}
            to = (self.b, Const((across - 1) * held, INDEX), held)
            self._load(product.right, to, last, (ZERO, lane.lower))

    def _load(
        self, operand: WarpOperand, to: tuple[str, Expr, int], first: Mapping[Expr, Expr], matrix: tuple[Expr, Expr]
    ) -> None:
        """`to`: array, place and number of registers. `matrix`: its number along the operand's rows or columns, and
        along k."""
        lane, (tile, beside) = self.product.lane, matrix
        beside = beside if self.product.row.deep > 1 else ZERO
        if operand.is_along_depth:
            place = operand.at({**self._start, **first}, tile * DOWN + lane.row, beside * operand.grain)
        else:
            place = operand.at({**self._start, **first}, tile * DOWN, beside * DOWN + lane.row)
        array, at, count = to
        load = _load_helper(count, operand.is_along_depth, self.c)
        self.text.line(f"{load}(&{array}[{self.c.text(at)}], &{self.c.element(operand.load.buffer, place)});")

    def _load_each(self, operand: WarpOperand, array: str, at: Expr, first: Mapping[Expr, Expr], halves: int) -> None:
        """Elements of 32 bits one by one."""
        product = self.product
        for n in range(halves * product.row.deep):
            k = product.x * NEIGHBOURS + n // halves if product.takes_neighbours else product.x + n // halves * ACROSS
            place = operand.at({**self._start, **first}, product.y + n % halves * DOWN, k)
            element = self.c.element(operand.load.buffer, place)
            self.text.line(f"{array}[{self.c.text(at + n)}] = __float_as_uint({element});")

    def shorten(self, array: str, count: int) -> str:
        """Registers with numbers that the instruction takes, and the array of what is left of them, if it is wanted.

        The instruction does not look at the last 13 bits. Where something is left, a NaN is one there, so that the
        first part is rounded without a look at it; what is left may be cut off.
        """
        rest = self.text.name(f"{array}_rest")
        has_rest = self.product.row.parts > 1
        if has_rest:
            self.text.line(f"unsigned {rest}[{count}];")
        with self._unrolled(count, "n") as n:
            at = f"{array}[{self.c.text(n)}]"
            if has_rest:
                self.text.line(f"const float whole = __uint_as_float({at});")
                self.text.line(f"{at} = ({at} + 0x1000) & 0xffffe000;")
                self.text.line(f"{rest}[{self.c.text(n)}] = __float_as_uint(whole - __uint_as_float({at}));")
            else:
                self.text.line(f"{at} = {_short_helper(self.c)}(__uint_as_float({at}));")
        return rest

    def multiply(self, a: str, b: str) -> None:
        product, c = self.product, self.c
        (down, across), (in_a, in_b) = product.tiles, product.held
        rows, columns, _ = (loop.var for loop in product.loops)
        name, halves = _multiply_helper(product.row, c), product.row.rows // DOWN
        with self._unrolled(down, "i") as i, self._unrolled(across, "j") as j:
            places = [
                c.element(
                    product.store.buffers[0], _moved(product.store, {rows: i * HALVES + n, columns: j * NEIGHBOURS})
                )
                for n in range(HALVES)
            ]
            for n in range(0, HALVES, halves):
                results = ", ".join(f"&{place}" for place in places[n : n + halves])
                left = self._held(i) if product.is_ready else f"&{a}[{c.text(i * in_a + n)}]"
                self.text.line(f"{name}({results}, {left}, &{b}[{c.text(j * in_b)}]);")

    def _held(self, tile: Expr) -> str:
        """The registers of a left operand that the warp has made."""
        left = self.product.left
        place = left.at({**self._start, self.product.loops[0].var: tile * HALVES}, ZERO, ZERO)
        return f"(const unsigned*)&{self.c.element(left.load.buffer, place)}"

    @property
    def _start(self) -> dict[Expr, Expr]:
        """The first thread of the warp at the first of k."""
        return {self.product.x: ZERO, self.product.y: ZERO, self.product.loops[2].var: ZERO}

    def _unrolled(self, count: int, name: str) -> AbstractContextManager[Expr]:
        return unrolled(count, name, self.product.store.stage, self.c, self.text)


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


def _short_helper(c: Expressions) -> str:
    c.helpers["tf32_of_float32"] = SHORTEN
    return "tf32_of_float32"
