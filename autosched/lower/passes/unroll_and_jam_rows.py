"""Unroll-and-jam, as software pipelining over rows: the passes over one row are interleaved with those over the next.

    for r: peak[r] = max of row r               peak of row 0
    for r: power of row r, their sum     ->     peak of row 1, power of row 0
    for r: divide row r by its sum              for r in 2..: for j: peak of row r | power of r - 1 | divide r - 2
                                                power of the last row, divide the one before it
                                                divide the last row

One pass waits for memory, one for the multipliers, one for the stores: together they take as long as the slowest of
them. This is legal for loops over the same rows if iteration r of each accesses only row r of the buffers that any of
them writes: rows are then independent. The vectors of a row are one loop in each pass; these loops are fused, with as
many vectors of each pass an iteration as its length requires. A loop that computes one value of each row, such as the
mean of a sum, is no pass: it becomes the beginning of the next pass, row by row. Passes over short rows are two rows
apart instead of one: power of row 0 runs with the peak of row 2, so that combining the lanes of row 0 has a whole step.
Where the number of rows depends on sizes (`ir.size`), passes over a full tile of rows are interleaved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

from autosched.ir.expr import INDEX, Binary, Const, Expr, Var, binary
from autosched.ir.simplify import Simplifier
from autosched.ir.size import has_size, is_same, is_sized
from autosched.ir.stmt import Allocate, Buffer, For, ForKind, If, Seq, Stmt, Store, changed, walk
from autosched.ir.visit import is_number, map_exprs
from autosched.lower.passes.fuse_passes import Accesses, accesses, block_of
from autosched.lower.passes.instantiate import simplify_stmt

MIN_STEPS = 2  # of the common loop; with fewer there is nothing to interleave
PASSES = 3  # that are interleaved; each adds its registers
LAG = 2  # rows between passes over short rows
SHORT_ROW = 32  # steps of the first pass; longer rows hide the latency by themselves, and more of them fill the cache


def unroll_and_jam_rows(stmt: Stmt, simplify: Simplifier) -> Stmt:
    """`stmt`, concrete and in canonical form, with passes over rows interleaved."""
    match stmt:
        case For(body=body):
            return changed(stmt, body=unroll_and_jam_rows(body, simplify))
        case If(cond=cond, then=then, otherwise=other):
            rest = None if other is None else unroll_and_jam_rows(other, simplify)
            return If(cond, unroll_and_jam_rows(then, simplify), rest)
        case Seq() | Allocate():
            buffers, stmts = _flat(stmt)
            if (interleaved := _interleaved_full_tile(stmt, stmts, simplify)) is not None:
                return interleaved
            stmts = _with_values(stmts, simplify)
            passes = next((n for n in range(len(stmts)) if _run(stmts[n:], simplify) > 1), None)
            if passes is None or any(isinstance(s, For) and s.kind is ForKind.PARALLEL for s in stmts):
                return _inside(stmt, simplify)  # a local buffer around a parallel loop would make it serial
            last = passes + _run(stmts[passes:], simplify)
            loops = [s for s in stmts[passes:last] if isinstance(s, For)]
            return _around(buffers, [*stmts[:passes], *_skewed(loops, simplify), *stmts[last:]])
    return stmt


def _interleaved_full_tile(stmt: Stmt, stmts: Sequence[Stmt], simplify: Simplifier) -> Stmt | None:
    """Return passes over a number of rows that depends on sizes, with those over a full tile of rows interleaved.

    None if these cannot be interleaved either.
    """
    extents = (s.extent for s in stmts if isinstance(s, For) and is_sized(s.extent))
    extent = next((e for e in extents if isinstance(e, Binary) and e.op == "min" and is_number(e.a)), None)
    if extent is None:
        return None
    tile = simplify_stmt(map_exprs(stmt, lambda e: extent.a if e is extent else e), simplify)
    assert tile is not None
    interleaved = unroll_and_jam_rows(tile, simplify)
    return None if interleaved == tile else If(simplify(binary("ge", extent.b, extent.a)), interleaved, stmt)


def _inside(stmt: Seq | Allocate, simplify: Simplifier) -> Stmt:
    if isinstance(stmt, Allocate):
        return changed(stmt, body=unroll_and_jam_rows(stmt.body, simplify))
    return Seq(tuple(unroll_and_jam_rows(s, simplify) for s in stmt.stmts))


def _flat(stmt: Stmt) -> tuple[list[Buffer], list[Stmt]]:
    """Return consecutive statements, and the buffers that are allocated around some of them."""
    match stmt:
        case Allocate(buffer=buffer, body=body):
            buffers, stmts = _flat(body)
            return [buffer, *buffers], stmts
        case Seq(stmts=parts):
            pairs = [_flat(s) for s in parts]
            return [b for buffers, _ in pairs for b in buffers], [s for _, stmts in pairs for s in stmts]
    return [], [stmt]


def _with_values(stmts: Sequence[Stmt], simplify: Simplifier) -> list[Stmt]:
    """Return the statements with each loop that only stores values of rows moved to the beginning of the next pass over
    the same rows."""
    result: list[Stmt] = []
    for stmt in reversed(stmts):
        after = result[0] if result else None
        if _is_of_values(stmt) and isinstance(after, For) and _is_pass(after) and stmt.extent is after.extent:
            value = simplify_stmt(stmt.body, simplify, {stmt.var: after.var})
            if value is not None and _by_row(stmt, after, simplify):
                result[0] = changed(after, body=Seq((value, *_flat_body(after.body))))
                continue
        result.insert(0, stmt)
    return result


def _is_of_values(stmt: Stmt) -> TypeGuard[For]:
    """Whether the statement is a loop over rows that stores one value of each."""
    if not isinstance(stmt, For) or stmt.kind is not ForKind.SERIAL or stmt.reduce or stmt.overlap is not None:
        return False
    return isinstance(stmt.body, Store) and stmt.body.reducer is None


def _around(buffers: Sequence[Buffer], stmts: Sequence[Stmt]) -> Stmt:
    result: Stmt = stmts[0] if len(stmts) == 1 else Seq(tuple(stmts))
    for buffer in reversed(buffers):
        result = Allocate(buffer, result)
    return result


def _run(stmts: Sequence[Stmt], simplify: Simplifier) -> int:
    """Return how many of the first statements are passes over the same rows that may be interleaved."""
    loops: list[For] = []
    for stmt in stmts[:PASSES]:
        if not isinstance(stmt, For) or not _is_pass(stmt) or (loops and stmt.extent is not loops[0].extent):
            break
        if loops and not (_has_known_ratio(loops[0], stmt) and all(_by_row(loop, stmt, simplify) for loop in loops)):
            break
        loops.append(stmt)
    return min(len(loops), _length(loops[0])) if loops else 0


def _has_known_ratio(first: For, second: For) -> bool:
    """Whether the vectors of a row are numbers in both passes, or a size of one form: interleaving others would need
    their ratio, and the code would be right for few sizes."""
    a, b = _n_vectors(first), _n_vectors(second)
    return not has_size((a, b)) or (is_same(a, b) and a >= MIN_STEPS)


def _n_vectors(loop: For) -> int:
    stmts = _flat(loop.body)[1]
    at = _vectors(stmts)
    assert at is not None
    vectors = stmts[at]
    assert isinstance(vectors, For)
    return _length(vectors)


def _is_pass(loop: For) -> bool:
    """Whether the loop is over rows and its body has one loop over vectors."""
    plain = loop.kind is ForKind.SERIAL and not loop.reduce and loop.overlap is None
    return plain and isinstance(loop.extent, Const) and _vectors(_flat(loop.body)[1]) is not None


def _vectors(stmts: Sequence[Stmt]) -> int | None:
    """Return the position of the serial loop over the vectors of a row; None if there is none, or of too few steps.

    Whether a size is of too few decides `_has_known_ratio`, where there are passes to interleave.
    """
    positions = [n for n, s in enumerate(stmts) if isinstance(s, For) and s.kind is ForKind.SERIAL]
    if len(positions) != 1:
        return None
    loop = stmts[positions[0]]
    assert isinstance(loop, For)
    steps = _length(loop) if isinstance(loop.extent, Const) and loop.overlap is None else 0
    inner = [s for s in walk(loop.body) if isinstance(s, For | If | Allocate)]
    short = all(isinstance(s, For) and s.kind is ForKind.VECTORIZE for s in inner)
    return positions[0] if short and (has_size((steps,)) or steps >= MIN_STEPS) else None


def _by_row(first: For, second: For, simplify: Simplifier) -> bool:
    """Whether row r of one loop depends only on row r of the other."""
    mine, other = accesses(first), accesses(second)
    if mine is None or other is None:
        return False
    return all(_same_rows(first, mine, second, other, name, simplify) for name in _shared(mine, other))


def _shared(mine: Accesses, other: Accesses) -> set[str]:
    """Return the buffers that both access, and one of them writes."""
    touched = (mine.reads.keys() | mine.writes.keys()) & (other.reads.keys() | other.writes.keys())
    return touched & (mine.writes.keys() | other.writes.keys())


def _same_rows(first: For, mine: Accesses, second: For, other: Accesses, name: str, simplify: Simplifier) -> bool:
    a = [*mine.reads.get(name, ()), *mine.writes.get(name, ())]
    b = [*other.reads.get(name, ()), *other.writes.get(name, ())]
    for d in range(len(a[0])):
        rows = {block_of(first, x[d], simplify) for x in a} | {block_of(second, x[d], simplify) for x in b}
        if None not in rows and len(rows) == 1:
            return True
    return False


@dataclass(frozen=True)
class _Visit:
    """One pass over one row: its buffers, the statements before the vectors, the loop over these, the ones after."""

    buffers: list[Buffer]
    before: list[Stmt]
    vectors: For
    after: list[Stmt]


def _skewed(loops: Sequence[For], simplify: Simplifier) -> list[Stmt]:
    """Step s does row s of the first loop, row s - lag of the second one, ..."""
    rows, lag = _length(loops[0]), _lag(loops, simplify)
    last = lag * (len(loops) - 1)  # the first step in which every loop has a row
    var, steady = Var(f"{loops[0].var.name}.s"), Const(rows - last, INDEX)
    simplify.ranges[var] = (0, max(rows - last - 1, simplify.ranges.get(var, (0, 0))[1]))

    def step(s: int) -> Stmt:
        """At the beginning and the end not every loop has a row."""
        has_row = [(loop, s - lag * n) for n, loop in enumerate(loops) if 0 <= s - lag * n < rows]
        return _beside([_visit(loop, Const(row, INDEX), simplify) for loop, row in has_row], simplify)

    visits = [_visit(loop, var + (last - lag * n), simplify) for n, loop in enumerate(loops)]
    all_of_them = changed(loops[0], var=var, extent=steady, bound=steady, body=_beside(visits, simplify))
    middle = simplify_stmt(all_of_them, simplify)
    assert middle is not None
    return [*(step(s) for s in range(last)), middle, *(step(s) for s in range(rows, rows + last))]


def _lag(loops: Sequence[For], simplify: Simplifier) -> int:
    """Rows between one pass and the next one: one, or two where a row is short and rows are many.

    What a pass knows at the end of a row, from a chain of operations across the lanes, is then needed a step later.
    """
    first = _visit(loops[0], Const(0, INDEX), simplify)
    many = _length(loops[0]) >= 2 * LAG * (len(loops) - 1)
    return LAG if many and _length(first.vectors) <= SHORT_ROW else 1


def _length(loop: For) -> int:
    assert isinstance(loop.extent, Const)
    return loop.extent.number


def _visit(loop: For, row: Expr, simplify: Simplifier) -> _Visit:
    body = simplify_stmt(loop.body, simplify, {loop.var: row})
    assert body is not None
    buffers, stmts = _flat(body)
    at = _vectors(stmts)
    assert at is not None
    vectors = stmts[at]
    assert isinstance(vectors, For)
    return _Visit(buffers, stmts[:at], vectors, stmts[at + 1 :])


def _beside(visits: Sequence[_Visit], simplify: Simplifier) -> Stmt:
    """The visits, vectors beside vectors: in each step of the common loop as many of each as fit."""
    lengths = [_length(v.vectors) for v in visits]
    steps = Const(min(lengths), INDEX)
    common = visits[lengths.index(min(lengths))].vectors
    parts: list[Stmt] = []
    rest: list[Stmt] = []
    for visit, length in zip(visits, lengths, strict=True):
        each, left = divmod(length, min(lengths))
        parts += _some(visit.vectors, common.var * each, each, simplify)
        if left:
            rest += _some(visit.vectors, Const(length - left, INDEX), left, simplify)
    reduce = any(v.vectors.reduce for v in visits)
    loop = changed(common, extent=steps, bound=steps, body=Seq(tuple(parts)), reduce=reduce)
    before, after = [s for v in visits for s in v.before], [s for v in visits for s in v.after]
    return _around([b for v in visits for b in v.buffers], [*before, loop, *rest, *after])


def _some(loop: For, first: Expr, count: int, simplify: Simplifier) -> list[Stmt]:
    """`count` iterations of the loop, from number `first` on."""
    if count == 1:
        return _flat_body(simplify_stmt(loop.body, simplify, {loop.var: first}))
    number = Var(f"{loop.var.name}.n")
    simplify.ranges[number] = (0, max(count - 1, simplify.ranges.get(number, (0, 0))[1]))
    body = simplify_stmt(loop.body, simplify, {loop.var: first + number})
    times = Const(count, INDEX)
    return [] if body is None else [changed(loop, var=number, extent=times, bound=times, body=body)]


def _flat_body(stmt: Stmt | None) -> list[Stmt]:
    return [] if stmt is None else list(stmt.stmts) if isinstance(stmt, Seq) else [stmt]
