"""Software prefetch of the lines that a tile will read or write, while the tile before it is computed.

A stage that is computed inside a loop reads a box of an input there. The box of a later iteration of that loop (after
the last one: of the first, in the next iteration of the enclosing loops) is prefetched in shares by the iterations of
the inner loops, the reader's own possibly among them: each prefetches lines of one row of the box, or several whole
rows. So the addresses of lines are computed once a row: registers are scarce there. Where the loop reads the same box
in all iterations (a panel, tile after tile), the next box is that of a later iteration of the enclosing loop, and all
inner iterations share its lines. Addresses beyond the input's end are clamped: a prefetch cannot fault.

The box of an output, or of a private buffer, that the stage around a later tile writes is prefetched for writing in the
same way; rows that do not begin at a line boundary end on one more line. So is the box of an input that this stage
reads, such as that of a residual connection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from autosched.ir.dtype import DTYPES
from autosched.ir.expr import INDEX, Const, Expr, Var, ceildiv, imax, imin, product
from autosched.ir.instructions.dots import dots_of
from autosched.ir.linear import ONE, ZERO, Interval, interval
from autosched.ir.size import value_of
from autosched.ir.stmt import For, ForKind, Layout, Prefetch, Scope, Seq, Stmt
from autosched.ir.symbolic import is_known
from autosched.ir.visit import free_vars, substitute
from autosched.lower.symbolic.regions import Domain
from autosched.schedule.stage import Loop, Stage
from autosched.schedule.state import State
from autosched.schedule.steps.stages import shape_of_buffer
from autosched.target import LINE_BYTES

MOST = 8  # lines that one iteration prefetches at most: more outstanding misses would stall
MOST_OF_TILES = 16  # the same where it multiplies tiles: a few hundred instructions' work, which reads as many lines


def fetches(state: State, domains: Mapping[str, Domain], stage: Stage, loop: Loop) -> list[Stmt]:
    """Return the prefetches of each iteration of `loop` of `stage`; () for hints that later steps have invalidated."""
    prefetches: list[Stmt] = []
    for number, hint in enumerate(h for h in stage.ahead if h.loop == loop.name):
        reader = next((s for s in state.stages if s.name == hint.reader), None)
        if reader is None:
            continue
        inner = state.loops_between(reader, stage, loop)
        if inner is None or any(x.kind is not ForKind.SERIAL for _, x in inner):
            continue
        counters = [c for host, x in inner for c in _numbered(domains[host.name], [x])]
        name = f"{stage.name}.{loop.name}.ahead{number}"
        most = MOST_OF_TILES if any(dot.row.tile is not None for dot in dots_of(stage.op.body)) else MOST
        tile = _Tile(_around(state, domains, reader), counters, name, most)
        producer = state.producer(hint.buffer)
        if reader.at is not None and hint.buffer in state.stage(reader.at.stage).op.buffers:
            boxes = _written(state, domains, reader, hint.buffer)
        elif producer is not None and producer.at is not None:  # computed somewhere inside since
            continue
        elif hint.buffer in reader.op.reads:
            boxes = _read(state, domains[reader.name], hint.buffer)
        else:
            boxes = _read_around(state, domains, reader, hint.buffer)
        prefetches += [tile.fetch(box, hint.distance, hint.level) for box in boxes]
    return prefetches


class Box(NamedTuple):
    """A box of a buffer, an interval for each dimension; its rows are `shifted` if they may begin inside a line."""

    buffer: str
    dtype: str
    sides: Sequence[Interval]
    writes: bool = False
    shifted: bool = False
    layout: Layout | None = None

    def stored(self) -> tuple[list[Interval], Callable[[list[Expr]], list[Expr]]]:
        """Return its sides in storage order, whole ones of panels; and a function from offsets in them to indices."""
        if self.layout is None or not self.sides:
            return list(self.sides) or [Interval(ZERO, ONE)], lambda place: place[: len(self.sides)]
        tiles, order = dict(self.layout.tiles), self.layout.order
        sides = [self.sides[d] for d in order]
        panels = [
            Interval(x.lo // tiles[d], ceildiv(x.extent, tiles[d])) if d in tiles else x
            for d, x in zip(order, sides, strict=True)
        ]

        def indices(place: list[Expr]) -> list[Expr]:
            outer, inner = dict(zip(order, place, strict=False)), dict(zip(tiles, place[len(order) :], strict=True))
            return [outer[d] * tiles[d] + inner[d] if d in tiles else outer[d] for d in range(len(order))]

        return [*panels, *(Interval(ZERO, f) for f in tiles.values())], indices


def layout_of(state: State, buffer: str) -> Layout | None:
    """Return the layout of a buffer that is complete before it is read; None for one that is computed inside."""
    producer = state.producer(buffer)
    return None if producer is None or producer.at is not None else producer.layout


def _read(state: State, domain: Domain, buffer: str) -> list[Box]:
    """Return the box of the buffer that each load of the stage reads."""
    regions = {a.var: domain.regions[a.name] for a in domain.stage.op.all_axes}
    moved: dict[Expr, Expr] = {var: region.value(var) for var, region in regions.items()}
    ranging = {var: region.extent for var, region in regions.items()}
    same = domain.stage.op.loads_from(buffer)
    sides = [[interval(substitute(i, moved), ranging) for i in x.indices] for x in same]
    return [Box(buffer, x.dtype, s, layout=layout_of(state, buffer)) for x, s in zip(same, sides, strict=True)]


def _written(state: State, domains: Mapping[str, Domain], tile: Stage, buffer: str) -> list[Box]:
    """Return the box of the buffer that the stage around the tile writes; [] for non-temporal stores and registers."""
    assert tile.at is not None
    host = state.stage(tile.at.stage)
    if buffer not in host.op.buffers or host.non_temporal or not host.op.axes:
        return []
    domain, dtype = domains[host.name], host.op.dtypes[host.op.buffers.index(buffer)]
    if host.scope in (Scope.REGISTER, Scope.SHARED) or domain.places:
        return []
    inside = host.loops[host.position(tile.at.loop) + 1 :]
    ranging = {domain.loop_var(x): domain.bounds[x.name] for x in inside}
    places = [(domain.regions[a.name], domain.values[a.var]) for a in host.op.axes]
    sides = [interval(place if host.at is None else region.local(place), ranging) for region, place in places]
    return [Box(buffer, dtype, sides, writes=True, shifted=_is_shifted(host.op.axes[-1].extent, dtype))]


def _is_shifted(row: Expr, dtype: str) -> bool:
    """Whether some rows do not begin at a line boundary."""
    return not isinstance(row, Const) or not is_known("eq", row.number * DTYPES[dtype].nbytes % LINE_BYTES, 0)


def _read_around(state: State, domains: Mapping[str, Domain], tile: Stage, buffer: str) -> list[Box]:
    """Return the box of an input that each load of the stage around the tile reads."""
    assert tile.at is not None
    host = state.stage(tile.at.stage)
    domain = domains[host.name]
    ranging = {domain.loop_var(x): domain.bounds[x.name] for x in host.loops[host.position(tile.at.loop) + 1 :]}
    values: dict[Expr, Expr] = dict(domain.values)
    same = host.op.loads_from(buffer)
    sides = [[interval(substitute(i, values), ranging) for i in x.indices] for x in same]
    row = shape_of_buffer(state, buffer)[-1]
    return [Box(buffer, x.dtype, s, shifted=_is_shifted(row, x.dtype)) for x, s in zip(same, sides, strict=True)]


class CountedLoop(NamedTuple):
    """A loop: its variable, its bound, and whether its iterations run one after another."""

    var: Var
    bound: Expr
    serial: bool


def _numbered(domain: Domain, loops: Sequence[Loop]) -> list[CountedLoop]:
    return [CountedLoop(domain.loop_var(x), domain.bounds[x.name], x.kind is ForKind.SERIAL) for x in loops]


def _around(state: State, domains: Mapping[str, Domain], stage: Stage) -> list[CountedLoop]:
    """Return all loops that the stage is computed in, outermost first."""
    loops: list[CountedLoop] = []
    for at in state.chain(stage):
        host = state.stage(at.stage)
        loops = _numbered(domains[host.name], host.loops[: host.position(at.loop) + 1]) + loops
    return loops


def _number(loops: Sequence[CountedLoop]) -> tuple[Expr, Expr]:
    """Return the number of this iteration, and the number of iterations."""
    turn: Expr = ZERO
    turns: Expr = ONE
    for var, bound, _ in loops:
        turn, turns = turn * bound + var, turns * bound
    return turn, turns


@dataclass(frozen=True)
class _Tile:
    """A stage computed in loops `outer`; the iterations of `inner`, inside these, prefetch `most` lines or fewer."""

    outer: list[CountedLoop]
    inner: list[CountedLoop]
    name: str
    most: int

    def fetch(self, box: Box, distance: int, level: int) -> Stmt:
        """Prefetch the box of `distance` tiles later into the cache of `level`."""
        again = self._again(box.sides)
        later = _later(self.outer[: len(self.outer) - again], distance)
        sides = [Interval(substitute(b.lo, later), b.extent) for b in box.sides]
        turns = _number([*self.outer[len(self.outer) - again :], *self.inner])
        return fetch_box(box._replace(sides=sides), self.name, level, turns, self.most)

    def _again(self, boxes: Sequence[Interval]) -> int:
        """Return how many of the innermost enclosing loops read the same box in each iteration, and so share its lines;
        0 if lines are prefetched tile by tile."""
        if not self.inner:
            return 0
        moving = {v for b in boxes for e in (b.lo, b.extent) for v in free_vars(e)}
        still = takewhile(lambda x: x.serial and x.var not in moving, reversed(self.outer[1:]))
        return len(list(still))


def _later(loops: Sequence[CountedLoop], distance: int) -> dict[Expr, Expr]:
    """Return the loops' variables `distance` tiles later, with carries into the outer loops."""
    rest = _number(loops)[0] + distance
    variables: dict[Expr, Expr] = {}
    for n, (var, bound, _) in reversed(list(enumerate(loops))):
        variables[var] = rest % bound if n else rest
        rest = rest // bound
    return variables


def fetch_box(box: Box, name: str, level: int, turns: tuple[Expr, Expr] = (ZERO, ONE), most: int = MOST) -> Stmt:
    """Prefetch share `turns[0]` of `turns[1]` of the box's lines: equally many lines of equally many rows, at most
    `most` lines."""
    per_line = max(1, LINE_BYTES // DTYPES[box.dtype].nbytes)
    sides, indices_of = box.stored()
    *above, last = sides
    rows, lines = product([b.extent for b in above]), ceildiv(last.extent + (per_line - 1) * box.shifted, per_line)
    due = _current(imin(ceildiv(lines, imax(turns[1] // rows, ONE)), most))  # lines of a row
    turns_of_row = _current(ceildiv(lines, due))
    rows_due = _current(imin(ceildiv(rows, turns[1]), imax(most // due, ONE)))
    row_var, var = Var(f"{name}.row"), Var(name)
    # Surplus turns prefetch the first rows again. With the last line in each of them instead, tiles of 3x3 convolutions
    # of 512 channels took 1.5 times as long on Sapphire Rapids.
    rest: Expr = (turns[0] // turns_of_row * rows_due + row_var) % rows
    place = imin(turns[0] % turns_of_row * due + var, lines - 1) * per_line
    where: list[Expr] = [last.lo + (imin(place, last.extent - 1) if box.shifted else place)]
    for side in reversed(above):
        where.insert(0, side.lo + rest % side.extent)
        rest = rest // side.extent
    hint = Prefetch(box.buffer, tuple(indices_of(where)), level, box.writes)
    of_row = For(var, due, due, ForKind.UNROLL, hint)
    return For(row_var, rows_due, rows_due, ForKind.UNROLL, of_row)


def _current(count: Expr) -> Expr:
    """Return a count of prefetches, for a size its value: more or fewer of them for other sizes are as right."""
    return Const(value_of(count.number), INDEX) if isinstance(count, Const) else count


def with_fetches(found: list[Stmt], body: Stmt) -> Stmt:
    return Seq((*found, body)) if found else body
