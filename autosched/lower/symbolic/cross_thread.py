"""Cross-thread reductions of values in the registers of a block's threads; each of these threads holds the result.

    warp = 0      a tree in shared memory: half of the threads combine with the other half, 10 times
    warp = 32     threads of a warp exchange their values (5 shuffles), one of each warp writes what it has to shared
                  memory, and every thread combines those; no shared memory and no barrier where a team is one warp

A team are the threads that share a point; a block is one team, or several beside one another. Counts of threads need
not be whole warps. Where they are (or a power of two in one warp), lane i exchanges with lane i ^ d, so that every
lane ends with the result, the same to the last bit since reducers are commutative. Elsewhere lane i takes from i + d
if that exists, and the first lane ends with the result; several such teams, whose members share warps with those of
others, are combined by trees.
"""

from __future__ import annotations

from dataclasses import dataclass

from autosched.ir.expr import INDEX, Const, Expr, Load, Var, binary, ceildiv, select
from autosched.ir.linear import ZERO
from autosched.ir.stmt import Allocate, Barrier, Buffer, For, ForKind, If, Reducer, Scope, Seq, Shuffle, Stmt, Store

MAX_HALVINGS = 10  # a block has at most 1024 threads
ONE = Const(1, INDEX)


@dataclass(frozen=True)
class ThreadTeam:
    """`members` threads, of which this is number `member`; team `number` of `teams` in the block.

    `adjacent`: the threads of a team are neighbours.
    """

    members: Expr
    member: Expr
    teams: Expr
    number: Expr
    adjacent: bool

    @property
    def place(self) -> Expr:
        """A number for each thread of the block, team by team: its own number where teams are adjacent."""
        return self.member + self.number * self.members

    @property
    def is_alone(self) -> bool:
        return self.teams is ONE


@dataclass(frozen=True)
class CrossThreadReduction:
    """A cross-thread reduction of the private one-element buffers `own`; `again`: it runs several times in a kernel."""

    stage: str
    reducer: Reducer
    own: tuple[Buffer, ...]
    team: ThreadTeam
    again: bool

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(b.name for b in self.own)

    @property
    def values(self) -> tuple[Expr, ...]:
        return _loads(self.own, ZERO)

    def start(self) -> Stmt:
        return Store(self.names, (ZERO,), self.reducer.identity, None, f"{self.stage}.init")

    def combine(self, values: tuple[Expr, ...]) -> Stmt:
        return Store(self.names, (ZERO,), values, self.reducer, self.stage)

    def shared(self, tag: str, count: Expr) -> tuple[Buffer, ...]:
        """Return shared buffers for `count` values."""
        return tuple(Buffer(f"{b.name}.{tag}", (count,), b.dtype, Scope.SHARED) for b in self.own)

    def before(self) -> list[Stmt]:
        """Return the barrier before shared memory of an earlier reduction is overwritten, if there is one."""
        return [Barrier()] if self.again else []


def across_threads(crossing: CrossThreadReduction, warp: int) -> Stmt:
    team, size = crossing.team, Const(warp, INDEX)
    if not warp or not team.adjacent:
        return _by_tree(crossing, team.members * team.teams)
    if team.is_alone:
        return _by_shuffles(crossing, warp)
    whole = _whole(team, size)
    return If(whole, _by_shuffles(crossing, warp), _by_tree(crossing, select(whole, ONE, team.members * team.teams)))


def _whole(team: ThreadTeam, size: Const) -> Expr:
    """Whether teams are whole warps, or warps are whole teams."""
    return binary("eq", team.members % size, ZERO) | binary("eq", size % team.members, ZERO)


def _by_tree(x: CrossThreadReduction, room: Expr) -> Stmt:
    parts, team = x.shared("all", room), x.team
    names, place = tuple(b.name for b in parts), team.place
    tree: list[Stmt] = []
    for step in range(MAX_HALVINGS):
        count, half = ceildiv(team.members, 1 << step), ceildiv(team.members, 2 << step)
        pair = Store(names, (place,), _loads(parts, place + half), x.reducer, x.stage)
        near = If(binary("lt", team.member, half) & binary("lt", team.member + half, count), pair)
        tree.append(If(binary("gt", count, 1), Seq((near, Barrier()))))
    write = Store(names, (place,), x.values, None, x.stage)
    result = Store(x.names, (ZERO,), _loads(parts, place - team.member), None, x.stage)
    return _allocated(parts, Seq((*x.before(), write, Barrier(), *tree, result)))


def _by_shuffles(x: CrossThreadReduction, warp: int) -> Stmt:
    size, team = Const(warp, INDEX), x.team
    lane, warps, whole = team.place % size, ceildiv(team.members, size), _whole(team, size)
    others = tuple(Buffer(f"{b.name}.other", b.shape, b.dtype, b.scope) for b in x.own)
    steps: list[Stmt] = []
    distance = warp // 2
    while distance:
        source = select(whole, binary("bitxor", lane, Const(distance, INDEX)), lane + distance)
        exchange = Shuffle(tuple(b.name for b in others), (ZERO,), x.values, source, warp)
        exists = binary("lt", lane + distance, size) & binary("lt", team.member + distance, team.members)
        step = Seq((exchange, If(whole | exists, x.combine(_loads(others, ZERO)))))
        steps.append(If(binary("gt", team.members, Const(distance, INDEX)), step))
        distance //= 2
    partial = binary("ne", team.members % size, ZERO) & binary("ne", size % team.members, ZERO)
    spread = If(partial, Shuffle(x.names, (ZERO,), x.values, ZERO, warp))
    end = If(binary("gt", warps, ONE), _between_warps(x, size), spread)
    return _allocated(others, Seq((*steps, end)))


def _between_warps(x: CrossThreadReduction, size: Const) -> Stmt:
    """Combine the values in the first lanes of each team's warps."""
    team = x.team
    warps = ceildiv(team.members, size)
    # one element where a team is one warp: nothing is allocated then, and the closed form should not count it
    many = select(binary("gt", warps, ONE), ceildiv(team.members * team.teams, size), ONE)
    parts, each = x.shared("parts", many), Var(f"{x.stage}.warp")
    first = binary("lt", team.place % size, ONE)
    write = If(first, Store(tuple(b.name for b in parts), (team.place // size,), x.values, None, x.stage))
    start = (team.number * team.members) // size
    rounds = For(each, warps, warps, ForKind.UNROLL, x.combine(_loads(parts, start + each)))
    return _allocated(parts, Seq((*x.before(), write, Barrier(), x.start(), rounds)))


def _allocated(buffers: tuple[Buffer, ...], body: Stmt) -> Stmt:
    for buffer in buffers:
        body = Allocate(buffer, body)
    return body


def _loads(buffers: tuple[Buffer, ...], index: Expr) -> tuple[Expr, ...]:
    return tuple(Load(b.name, (index,), b.dtype) for b in buffers)
