"""Access analysis of one statement and one buffer: strides and footprints, as closed forms.

A statement stands in loops 0 .. m-1, outermost first. At depth d the loops d .. m-1 run freely and the others
stand still. Then an index  sum_v c_v * v + const  covers

    width(d) = sum over moving loops v of |c_v| * (bound_v - 1)      count(d) = min(shape, width(d) + 1)

positions, and no more than the moving loops have iterations (a stride leaves gaps). `floordiv(e, f)` has the
width of e divided by f, `mod(e, f)` at most f - 1: exact when tiles are aligned, which splits and packed layouts
are. A variable that does not run inside the buffer's `Allocate` moves the buffer as a whole, hence nothing.
The elements touched are the product of the counts; the lines follow from the flat span of the innermost dimensions.

A cache finds a line's set by the low bits of its address. Rows whose distance is a multiple of a large power of two
share a few sets: with n lines of which each used set holds n / used, the rest of the cache is of no use to them, as
little as if they were  SETS * (n / used - spare)  lines (`resident`). Only address bits within a page count: those
above are as good as random in all but the first level, whose sets they do not choose. Lines that are asked for together
and are more than a set has ways wait for each other (`has_set_conflicts`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from autosched.ir.closed_forms.arithmetic import (
    absolute,
    add,
    divide,
    is_one,
    is_zero,
    maximum,
    minimum,
    multiply,
    real,
    subtract,
)
from autosched.ir.expr import INDEX, Binary, Cast, Const, Expr, Param, Select, Var, cast, ceildiv, imax, imin, product
from autosched.ir.linear import combined, linear
from autosched.ir.stmt import Buffer, Scope
from autosched.ir.visit import free_vars, is_closed, is_data, is_number, subexpressions, substitute
from autosched.target import LINE_BYTES
from autosched.target.microarchitecture import GENERIC
from cost_model.analysis.measured_widths import index_slopes, positions

ZERO: Expr = Const(0, INDEX)
ONE: Expr = Const(1, INDEX)
# An index that depends on data or is no linear form: any element may be touched, each on another line.
UNKNOWN_WIDTH = Const(1 << 40, INDEX)
UNKNOWN_STRIDE = Const(64, INDEX)

KNOWN = 1 << 11  # accesses, and transfers of them, that are remembered; a workload has dozens
CROWDED = 512  # bytes; rows at distances that share no larger power of two spread well enough

NEAR = 16  # rows, or elements, of a dimension that are as good as touched together; its borders are far apart

Widths = tuple[Expr, ...]  # by depth, 0 .. m


@dataclass(frozen=True)
class Geometry:
    """Caches as accesses meet in their sets; ways, pages and spare lines are as in `Microarchitecture`."""

    line_bytes: int = LINE_BYTES
    larger: float = 8.0  # lines of the second level cache over those of the first; 1 where nobody asks about that one
    l1_ways: int = GENERIC.l1_ways
    page_bytes: int = GENERIC.page_bytes
    conflict_spare: float = GENERIC.conflict_spare
    counts_pages: bool = False  # that a statement touches together

    @property
    def sets(self) -> int:
        """Of a first level cache: places of lines in a page."""
        return self.page_bytes // self.line_bytes


@dataclass(frozen=True)
class Free:
    """A loop as an access sees it: its variable and its largest trip count."""

    var: Var
    bound: Expr


@dataclass(frozen=True, eq=False)
class Access:
    """One buffer in one statement. Depth-indexed tuples have m + 1 entries, loop-indexed ones m; what nobody asks for
    is not worked out."""

    buffer: Buffer
    kind: str  # read, write, update (read and written in place)
    count: int  # loads (and stores) of the statement's text that this stands for
    index: tuple[Expr, ...]  # of the first of them, in storage order
    shape: tuple[Expr, ...]  # likewise
    slack: tuple[int, ...]  # extra width of each stored dimension because of the others
    columns: int  # different constants of theirs in the dimension stored last
    view: Moving
    geometry: Geometry
    non_temporal: bool = False  # written around the caches

    def moves(self, loop: int) -> bool:
        return not is_zero(self.stride[loop])

    @property
    def line_bytes(self) -> int:
        return self.geometry.line_bytes

    @property
    def in_registers(self) -> bool:
        return self.buffer.scope is Scope.REGISTER

    @cached_property
    def stride(self) -> tuple[Expr, ...]:
        """Elements that one step of each loop moves the address; constant 0: not at all."""
        stride = [ZERO] * self.view.depth
        for place, step in zip(self.index, self._strides, strict=True):
            for loop in self.view.moving(place):
                stride[loop] = stride[loop] + self.view.step(place, loop) * step
        return tuple(stride)

    @cached_property
    def elements(self) -> Widths:
        """Distinct elements touched."""
        elements = [product([c[d] for c in self._counts]) for d in range(self.view.depth + 1)]
        moving = [self.view.moving(i) for i in self.index]
        together = tuple(sorted({v for m in moving for v in m}))
        if len(together) < sum(map(len, moving)) and not any(self.slack):  # a loop walks two dimensions at once
            elements = [imin(e, self.view.iterations(together, d)) for d, e in enumerate(elements)]
        return tuple(elements)

    @cached_property
    def lines(self) -> Widths:
        """Distinct cache lines touched, real."""
        spans, itemsize = [self.view.widths(i) for i in self.index[-2:]], self.buffer.itemsize
        return tuple(
            _lines([c[d] for c in self._counts], [s[d] for s in spans], self.shape, itemsize, self.line_bytes)
            for d in range(self.view.depth + 1)
        )

    @cached_property
    def moved_lines(self) -> Widths:
        """Distinct cache lines that are moved for it, real: as `lines`, without those between positions that are far
        apart, which stay in a cache until the last position has passed."""
        if all(extra < self.count for extra in self.slack):
            return self.lines
        alone = replace(self, slack=(0,) * len(self.slack)).lines
        return tuple(minimum(n, multiply(one, float(self.count))) for n, one in zip(self.lines, alone, strict=True))

    @cached_property
    def resident(self) -> Widths:
        """Lines of a first level cache that they take up, more where they crowd in a few sets, real."""
        return self._with_conflicts(self.geometry.conflict_spare)

    @cached_property
    def settled(self) -> Widths:
        """The same of a second level cache: it has more sets, so more lines of a place in a page are free."""
        return self._with_conflicts(self.geometry.conflict_spare * self.geometry.larger)

    def _with_conflicts(self, free: float) -> Widths:
        steps = _steps(self.shape, self.buffer.itemsize, self.line_bytes)
        counts = self._counts
        return tuple(_resident(n, [c[d] for c in counts], steps, self.geometry, free) for d, n in enumerate(self.lines))

    @cached_property
    def extents(self) -> tuple[tuple[Widths, Widths, Expr], ...]:
        """Of each stored dimension: positions, width, elements of a step."""
        return tuple(zip(self._counts, map(self.view.widths, self.index), self._strides, strict=True))

    @cached_property
    def _counts(self) -> tuple[Widths, ...]:
        """Positions of each stored dimension."""
        return tuple(self.view.counts(i, s, k) for i, s, k in zip(self.index, self.shape, self.slack, strict=True))

    @cached_property
    def _strides(self) -> tuple[Expr, ...]:
        """Elements of a step along each stored dimension."""
        return tuple(product(self.shape[i + 1 :]) for i in range(len(self.shape)))

    @cached_property
    def pages(self) -> Widths:
        """Distinct pages touched, real."""
        at = ([(counts[d], widths[d], step) for counts, widths, step in self.extents] for d in range(len(self.lines)))
        return tuple(_pages(extents, self.buffer.itemsize, self.geometry.page_bytes) for extents in at)

    def with_beside(self, depth: int, beside: float) -> Expr:
        """What is fetched for each byte touched at a depth, real: more than one where that is pieces of long rows, and
        `beside` bytes come with each."""
        if len(self.extents) < 2 or not beside:
            return real(1)
        piece, row = self.extents[-1][0][depth], self.extents[-2][2]
        return maximum(1.0, minimum(divide(row, piece), add(1.0, divide(beside / self.buffer.itemsize, piece))))

    def has_set_conflicts(self, depth: int, ways: float | None = None) -> Expr:
        """Whether the lines touched at a depth are more than so many in each of the sets that they share, bool; the
        ways of the first level cache where nobody says how many."""
        held = self.geometry.l1_ways if ways is None else ways
        taken = (held - self.geometry.conflict_spare) * self.geometry.sets
        return self.resident[depth] > maximum(taken, self.lines[depth])

    @property
    def traffic_factor(self) -> int:
        """Transfers of a line: a written one is fetched and written back, unless it goes around the caches."""
        return 1 if self.kind == "read" or self.non_temporal else 2


@dataclass(frozen=True)
class Moving:
    """The loops that move a buffer, with their places; what was asked about an index is remembered."""

    free: tuple[Free, ...]
    inside: frozenset[Var]  # variables running inside the buffer's allocation
    _widths: dict[Expr, Widths] = field(default_factory=dict, compare=False)
    _steps: dict[tuple[Expr, int], Expr] = field(default_factory=dict, compare=False)
    _moving: dict[Expr, tuple[int, ...]] = field(default_factory=dict, compare=False)

    @property
    def depth(self) -> int:
        return len(self.free)

    def moving(self, expr: Expr) -> tuple[int, ...]:
        found = self._moving.get(expr)
        if found is None:
            names = free_vars(expr) & self.inside
            found = self._moving[expr] = tuple(i for i, loop in enumerate(self.free) if loop.var in names)
        return found

    def nothing(self) -> Widths:
        return (ZERO,) * (self.depth + 1)

    def widths(self, expr: Expr) -> Widths:
        """Largest minus smallest value of `expr` at each depth."""
        found = self._widths.get(expr)
        if found is None:
            found = self._widths[expr] = self._sum_of_widths(expr)
        return found

    def _sum_of_widths(self, expr: Expr) -> Widths:
        """Added up from the inside, so that depths share sums."""
        terms = [(atom, c, self.moving(atom)) for atom, c in linear(expr).terms]
        terms.sort(key=lambda t: -max(t[2], default=-1))
        result = self.nothing()
        for atom, coefficient, moving in terms:
            if moving:
                part, size = self._atom_widths(atom, moving), absolute(coefficient)
                result = tuple(w + p * size for w, p in zip(result, part, strict=True))
        return result

    def _atom_widths(self, atom: Expr, moving: tuple[int, ...]) -> Widths:
        if is_data(atom):
            of_positions = {p: self.widths(p) for p in positions(atom)}
            found = index_slopes(atom, {p: widths[0] for p, widths in of_positions.items()})
            if found is not None:
                return tuple(
                    found.width([w[d] for w in of_positions.values()]) if d <= max(moving) else ZERO
                    for d in range(self.depth + 1)
                )
        match atom:
            case Var():
                place = moving[0]
                width = self.free[place].bound - 1
                return tuple(width if d <= place else ZERO for d in range(self.depth + 1))
            case Binary(op="floordiv" | "ceildiv", a=a, b=b) if is_closed(b):
                return tuple(w // cast(b, INDEX) for w in self.widths(a))
            case Binary(op="mod", a=a, b=b) if is_closed(b):
                return tuple(imin(w, cast(b, INDEX) - 1) for w in self.widths(a))
            case Binary(op="min" | "max", a=a, b=b) | Select(a=a, b=b):
                return tuple(imax(x, y) for x, y in zip(self.widths(a), self.widths(b), strict=True))
            case Cast(a=a):
                return self.widths(a)
        return tuple(UNKNOWN_WIDTH if d <= max(moving) else ZERO for d in range(self.depth + 1))

    def step(self, expr: Expr, loop: int) -> Expr:
        """How far one step of a loop moves `expr` (a step that crosses no tile border, for floordiv and mod)."""
        found = self._steps.get((expr, loop))
        if found is None:
            found = self._steps[expr, loop] = self._sum_of_steps(expr, loop)
        return found

    def _sum_of_steps(self, expr: Expr, loop: int) -> Expr:
        var, result = self.free[loop].var, ZERO
        for atom, coefficient in linear(expr).terms:
            if var in free_vars(atom) & self.inside:
                result = result + self._atom_step(atom, loop) * coefficient
        return result

    def _atom_step(self, atom: Expr, loop: int) -> Expr:
        match atom:
            case Var():
                return ONE
            case Binary(op="floordiv" | "ceildiv", a=a, b=b) if is_closed(b):
                return self.step(a, loop) // cast(b, INDEX)
            case Binary(op="mod", a=a, b=b) if is_closed(b):
                return self.step(a, loop) % cast(b, INDEX)
            case Binary(op="min" | "max", a=a, b=b) | Select(a=a, b=b):
                left = self.step(a, loop)
                return self.step(b, loop) if is_zero(left) else left
            case Cast(a=a):
                return self.step(a, loop)
        return UNKNOWN_STRIDE

    def counts(self, index: Expr, shape: Expr, slack: int) -> Widths:
        """Positions of one dimension that are touched at each depth."""
        widths = [w + slack if not is_zero(w) else Const(slack, INDEX) for w in self.widths(index)]
        result = [imin(shape, w + 1) if not is_zero(w) else ONE for w in widths]
        moving = self.moving(index)
        if not slack and not self._contiguous(index, moving):
            result = [imin(c, self.iterations(moving, d)) for d, c in enumerate(result)]
        return tuple(result)

    def iterations(self, moving: tuple[int, ...], depth: int) -> Expr:
        return product([self.free[i].bound for i in reversed(moving) if i >= depth])

    def _contiguous(self, index: Expr, moving: tuple[int, ...]) -> bool:
        """Whether positions surely have no gaps: the innermost moving loop steps by one, none by a constant."""
        steps = [self.step(index, i) for i in moving]
        return not steps or (is_one(steps[-1]) and all(is_one(s) or not isinstance(s, Const) for s in steps))


def stored(buffer: Buffer, indices: Sequence[Expr]) -> tuple[list[Expr], list[Expr]]:
    """(indices, shape) in the order of storage, outermost first, tiles of a packed layout last."""
    if buffer.layout is None:
        return list(indices), list(buffer.shape)
    tiles = buffer.layout.tiles
    place: list[Expr] = []
    shape: list[Expr] = []
    for dim in buffer.layout.order:
        inner = product([f for d, f in tiles if d == dim])
        place.append(indices[dim] // inner)
        shape.append(ceildiv(buffer.shape[dim], inner))
    for i, (dim, size) in enumerate(tiles):
        inner = product([f for d, f in tiles[i + 1 :] if d == dim])
        place.append((indices[dim] // inner) % size)
        shape.append(size)
    if buffer.layout.pad is not None:
        shape[-1] = shape[-1] + buffer.layout.pad
    return place, shape


@lru_cache(maxsize=KNOWN)  # sketches differ in a stage or two: four accesses of five are those of another sketch
def make_access(
    buffer: Buffer, kind: str, positions: tuple[tuple[Expr, ...], ...], view: Moving, geometry: Geometry
) -> Access:
    """The access of a statement in the loops of `view` to `positions`, index tuples that differ in constants only."""
    index, shape = stored(buffer, positions[0])
    return Access(
        buffer, kind, len(positions), tuple(index), tuple(shape), *_offsets(buffer, positions), view, geometry
    )  # fmt: skip


def transferred(
    footprint: tuple[Expr, ...], runs: tuple[Expr, ...], working_set: tuple[Expr, ...], capacity: float
) -> Expr:
    """What an access moves into a cache that does not hold all, by its footprint and all accesses' at each depth.

    With d the outermost depth whose working set fits, successive iterations of loop d - 1 find what they share with
    the one before, so that loop's footprint is transferred once for each of its runs. Written as
    min over d of max(moved(d), excess(d))  with an excess that is negative where the working set fits and enormous
    where it does not.
    """
    depth = len(runs) - 1
    if depth == 0:
        return real(0)
    result = multiply(footprint[depth - 1], runs[depth - 1])  # one iteration: always fits
    for d in range(depth - 1, 0, -1):
        moved = multiply(footprint[d - 1], runs[d - 1])
        result = minimum(result, maximum(moved, excess(working_set[d], capacity)))
    return result


def excess(working_set: Expr, capacity: float) -> Expr:
    """Not positive where a working set fits into `capacity`, else larger than any traffic."""
    return subtract(multiply(working_set, 1e14), capacity * 1e14)


def width(expr: Expr, loops: Sequence[Free]) -> Expr:
    """Largest minus smallest value of `expr` while all `loops` run."""
    return Moving(tuple(loops), frozenset(loop.var for loop in loops)).widths(expr)[0]


def _offsets(buffer: Buffer, positions: Sequence[tuple[Expr, ...]]) -> tuple[tuple[int, ...], int]:
    """Extra width of each stored dimension because several positions at constant distances are touched, and how many
    there are along the last one."""
    places = [stored(buffer, p)[0] for p in positions]
    slack, columns = list[int](), 1
    for dim in zip(*places, strict=True):
        constants = [linear(row_number(i) if buffer.layout is None else i).constant for i in dim]
        distances = [combined(c - constants[0]) for c in constants]
        offsets = {int(d.value) for d in distances if isinstance(d, Const)}
        slack.append(max(offsets) - min(offsets))
        columns = len(offsets)
    return tuple(slack), columns


def row_number(index: Expr) -> Expr:
    """The number of a row in a folded buffer, which has it at this number modulo its rows; other indices unchanged."""
    return index.a if isinstance(index, Binary) and index.op == "mod" and is_closed(index.b) else index


def _lines(counts: list[Expr], widths: list[Expr], shape: Sequence[Expr], itemsize: int, line_bytes: int) -> Expr:
    """Cache lines of a region: rows times the lines of a row, where short rows that lie close share lines.

    A row of `s` bytes is max(1, s / line) lines: alignment is not known, and rows of packed panels are aligned.
    """
    per_line = itemsize / line_bytes
    if not shape:
        return real(1)
    row = minimum(counts[-1], maximum(1.0, multiply(imin(shape[-1], widths[-1] + 1), per_line)))
    if len(shape) == 1:
        return row
    last = shape[-1]
    lines = multiply(counts[-2], row)
    if not isinstance(last, Const) or int(last.value) * itemsize < line_bytes:
        lines = minimum(lines, maximum(1.0, multiply(widths[-2] * last + widths[-1] + 1, per_line)))
    return multiply(lines, product(counts[:-2]))


def _pages(extents: Sequence[tuple[Expr, Expr, Expr]], itemsize: int, page_bytes: int) -> Expr:
    """Pages of a region: of each dimension all that its rows have, or those between the first and the last byte."""
    pages: Expr = real(1)
    span: Expr = ZERO
    for count, width, step in reversed(extents):
        if count is not ONE:
            span = span + width * step
            pages = minimum(multiply(pages, count), add(1.0, multiply(span, itemsize / page_bytes)))
    return pages


def _steps(shape: Sequence[Expr], itemsize: int, line_bytes: int) -> list[int] | None:
    """Bytes, or what divides them, that a step along each dimension moves; None where that says too little: the dense
    tiles of a packed copy."""
    steps = []
    sizes = [_fixed(e) for e in shape]
    for n in range(len(shape)):
        inner = sizes[n + 1 :]
        known = math.prod(int(e.value) for e in inner if isinstance(e, Const)) * itemsize
        if known < line_bytes and not all(isinstance(e, Const) for e in inner):
            return None
        steps.append(known)
    return steps


def _fixed(size: Expr) -> Expr:
    """A dimension that a copy has whole, whatever the tiles are: its extent; else as it is."""
    params = {e for e in subexpressions(size) if isinstance(e, Param)}
    found = {substitute(size, {p: Const(v, INDEX) for p in params}) for v in (1, 3, 8)} if params else {size}
    return found.pop() if len(found) == 1 else size


def _resident(lines: Expr, counts: list[Expr], steps: list[int] | None, geometry: Geometry, spare: float) -> Expr:
    """`lines` and what they make useless, `spare` lines at the same place of pages being free."""
    if steps is None:
        return lines
    line_bytes, page_bytes, sets = geometry.line_bytes, geometry.page_bytes, geometry.sets
    if not any(math.gcd(s, page_bytes) >= CROWDED and c is not ONE for s, c in zip(steps, counts, strict=True)):
        return lines
    near: Expr = real(1)  # sets that a dense piece covers
    rows: Expr = real(1)  # places in a page where such pieces begin
    apart = page_bytes
    for step, count in reversed(list(zip(steps, counts, strict=True))):
        if count is not ONE and step < line_bytes:
            near = maximum(1.0, multiply(multiply(count, step / line_bytes), near))
        elif count is not ONE:
            apart = math.gcd(step, apart)
            rows = minimum(
                multiply(minimum(count, page_bytes // math.gcd(step, page_bytes)), rows), page_bytes // apart
            )
    used = multiply(near, rows)
    return maximum(lines, multiply(subtract(divide(lines, minimum(sets, used)), spare), sets))


def same_but_constants(a: tuple[Expr, ...], b: tuple[Expr, ...]) -> bool:
    """Whether two index tuples differ by integers only, and in dimensions that no loop moves along by few."""
    return all(_folding(x) is _folding(y) and _near(row_number(x), row_number(y)) for x, y in zip(a, b, strict=True))


def _folding(index: Expr) -> Expr | None:
    return None if row_number(index) is index else index.children[1]


def _near(x: Expr, y: Expr) -> bool:
    if linear(x).terms != linear(y).terms:
        return False
    distance, moves = combined(linear(x).constant - linear(y).constant), bool(linear(x).terms)
    if not isinstance(distance, Const):
        return False
    is_fixed = is_number(distance) and is_number(linear(x).constant)
    return moves or not is_fixed or abs(distance.number) < NEAR
