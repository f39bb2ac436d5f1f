"""Multi-level tiling with a register tile, fused with the consumer (Ansor's R3, R4, R5 in one rule).

    parallel a.0 for every axis
      a.1 for every axis, vectorised axis first or last           <- packed panels are made here
        accumulators in registers:  reduction loops, last one unrolled
          a.2 unrolled, v.2 in vectors
        the host stage (the fused consumer, or the copy out) writes the tile

Alternatives: which axis is vectorised, the order of the middle level, which operands are packed and where.
"""

from __future__ import annotations

from dataclasses import dataclass

from autosched.ir.expr import DTYPES
from autosched.ir.stmt import Scope
from autosched.schedule import (
    CacheRead,
    CacheWrite,
    ComputeAt,
    Pack,
    Parallel,
    Reorder,
    Split,
    Stage,
    Step,
    Unroll,
    Vectorize,
)
from autosched.schedule.stage import StageAxis
from search_spaces.cpu.domains import register_tile, tile_count, unroll, vector_width
from search_spaces.cpu.draft import Context, Draft
from search_spaces.cpu.facts import (
    Read,
    extent,
    fused_consumer,
    has_reuse,
    lane_reduction,
    packable,
    reads_of,
    vector_axes,
)
from search_spaces.space import Param

MAX_VECTOR_AXES = 2
SMALL_AXIS = 4  # axes up to this extent have no middle level


@dataclass(frozen=True)
class Plan:
    """One alternative: `v` is the vectorised axis, `packs` maps a tensor to where its packed copy is made."""

    v: int
    panel_first: bool
    packs: tuple[tuple[str, str], ...] = ()  # place: "panel", "task" or "root"

    @property
    def note(self) -> str:
        order = "panel" if self.panel_first else "rows"
        return "-".join([f"v{self.v}", order, *(f"{t}@{p}" for t, p in self.packs)])


@dataclass(frozen=True)
class MultiLevelTiling:
    """Reductions with an axis to vectorise over; the only rule for those with data reuse."""

    name: str = "tile"

    def applies(self, draft: Draft, stage: Stage, context: Context) -> bool:
        if stage.op.reducer is None:
            return False
        rows = reads_of(draft.state, stage)
        if not stage.op.axes or not vector_axes(stage, rows):
            return False
        return has_reuse(stage, rows) or lane_reduction(stage, rows) is None

    def apply(self, draft: Draft, stage: Stage, context: Context) -> list[Draft]:
        rows = reads_of(draft.state, stage)
        axes = vector_axes(stage, rows)[:MAX_VECTOR_AXES]
        plans = [p for axis in axes for p in _plans(stage, rows, axis)]
        return [_Tiling(context, p).apply(draft, stage) for p in plans]


def _plans(stage: Stage, rows: tuple[Read, ...], axis: StageAxis) -> list[Plan]:
    v = stage.op.axes.index(axis)
    must = [r.load.buffer for r in rows if not r.is_unit(axis.name)]
    panels = [r.load.buffer for r in rows if r.moves(axis.name) and packable(r, stage, axis)]
    rows_too = [r.load.buffer for r in rows if not r.moves(axis.name) and _row_axis(r, stage) is not None]
    plans = []
    if not must:
        plans += [Plan(v, True), Plan(v, False)]
    if panels:
        names = tuple(dict.fromkeys((*must, *panels)))
        plans.append(Plan(v, True, tuple((t, "panel") for t in names)))
        plans.append(Plan(v, True, tuple((t, "root") for t in names)))
        plans.append(Plan(v, False, tuple((t, "root") for t in names)))
        if rows_too and len(stage.op.reduce_axes) == 1:
            plans.append(Plan(v, True, (*((t, "panel") for t in names), *((t, "task") for t in rows_too[:1]))))
    return plans


def _row_axis(read: Read, stage: Stage) -> StageAxis | None:
    """The axis whose register tile a row operand can be packed by."""
    moving = [a for a in stage.op.axes if read.moves(a.name)]
    plain = [a for a in moving if read.dim_of(a.var) is not None]
    return plain[-1] if plain and len(moving) == len(plain) else None


@dataclass(frozen=True)
class _Tiling:
    context: Context
    plan: Plan

    def apply(self, draft: Draft, stage: Stage) -> Draft:
        rows = reads_of(draft.state, stage)
        host = fused_consumer(draft.state, stage)
        if host is not None and (host.name in draft.done or host.at is not None):
            host = None
        name = stage.name if host is None else host.name
        acc = f"{stage.name}.acc" if host is None else stage.name
        if host is None:
            draft = draft.apply(CacheWrite(stage.name))
        host = draft.state.stage(name)
        draft = self._tile_host(draft, host)
        prefix = [x.name for x in draft.state.stage(name).loops]
        inner = len(host.op.axes)
        attach = prefix[len(prefix) - inner - 1]
        draft = draft.apply(ComputeAt(acc, name, attach, Scope.REGISTER.value))
        draft = self._tile_accumulator(draft, draft.state.stage(acc), host)
        done = [name, acc]
        for tensor, place in self.plan.packs:
            draft = self._pack(draft, stage, rows, tensor, place, name, acc)
            done.append(f"{tensor}.pack")
        first_middle = next((x for x in prefix if x.endswith(".1")), prefix[0])
        outer = prefix[max(0, prefix.index(first_middle) - 1)]
        return draft.finish(*done, note=f"{stage.name}:{self.plan.note}").with_row_loop(name, outer)

    def _factors(self, host: Stage, n: int) -> tuple[str, ...]:
        """Names of the inner factors of host axis `n`: middle (if any) and register tile."""
        axis = host.op.axes[n]
        tile = f"{host.name}.{axis.name}.r"
        return (tile,) if extent(axis) <= SMALL_AXIS else (f"{host.name}.{axis.name}.m", tile)

    def _tile_host(self, draft: Draft, host: Stage) -> Draft:
        params: list[Param] = []
        steps: list[Step] = []
        lanes = self.context.lanes(_itemsize(host))
        for n, axis in enumerate(host.op.axes):
            names, size, group = self._factors(host, n), extent(axis), f"{host.name}.{axis.name}"
            steps.append(Split(host.name, axis.name, names))
            if len(names) == 2:
                params.append(tile_count(names[0], size, group))
            if n == self.plan.v:
                params.append(vector_width(names[-1], size, lanes, group))
            else:
                params.append(register_tile(names[-1], size, group))
        others = [a.name for n, a in enumerate(host.op.axes) if n != self.plan.v]
        v = host.op.axes[self.plan.v].name
        levels = {a.name: len(self._factors(host, n)) for n, a in enumerate(host.op.axes)}
        middle_order = [v, *others] if self.plan.panel_first else [*others, v]
        outer = [f"{a.name}.0" for a in host.op.axes]
        middle = [f"{a}.1" for a in middle_order if levels[a] == 2]
        inner = [f"{a}.{levels[a]}" for a in (*others, v)]
        steps.append(Reorder(host.name, (*outer, *middle, *inner)))
        if host.at is None:
            steps.append(Parallel(host.name, tuple(outer)))
        steps += [Unroll(host.name, x) for x in inner[:-1]]
        steps.append(Vectorize(host.name, inner[-1]))
        return draft.with_params(params).apply(*steps)

    def _tile_accumulator(self, draft: Draft, acc: Stage, host: Stage) -> Draft:
        v = acc.op.axes[self.plan.v].name
        others = [a.name for n, a in enumerate(acc.op.axes) if n != self.plan.v]
        reduced = [a.name for a in acc.op.reduce_axes]
        steps: list[Step] = []
        last = acc.op.reduce_axes[-1]
        unrolled = []
        if extent(last) > 1:
            factor = f"{acc.name}.{last.name}.u"
            draft = draft.with_params([unroll(factor, extent(last))])
            steps.append(Split(acc.name, last.name, (factor,)))
            reduced[-1:] = [f"{last.name}.0", f"{last.name}.1"]
            unrolled = [f"{last.name}.1"]
        steps.append(Reorder(acc.name, (*reduced, *others, v)))
        steps += [Unroll(acc.name, x) for x in (*unrolled, *others)]
        steps.append(Vectorize(acc.name, v))
        if self.plan.v != len(acc.op.axes) - 1:
            order = [n for n in range(len(acc.op.axes)) if n != self.plan.v]
            steps.append(Pack(acc.name, (*order, self.plan.v)))
        return draft.apply(*steps)

    def _pack(
        self, draft: Draft, stage: Stage, rows: tuple[Read, ...], tensor: str, place: str, host: str, acc: str
    ) -> Draft:
        """A copy of `tensor` in panels as wide as the register tile, the reduction running inside each panel."""
        read = next(r for r in rows if r.load.buffer == tensor)
        axis = stage.op.axes[self.plan.v]
        if not read.moves(axis.name):
            row = _row_axis(read, stage)
            assert row is not None
            axis = row
        dim = read.dim_of(axis.var)
        assert dim is not None
        host_stage = draft.state.stage(host)
        number = stage.op.axes.index(axis)
        width = self._factors(host_stage, number)[-1]
        draft = draft.apply(CacheRead(tensor, acc, "pack"))
        pack = f"{tensor}.pack"
        rank = len(draft.state.stage(pack).op.axes)
        others = [n for n in range(rank) if n != dim]
        steps: list[Step] = [
            Pack(pack, (dim, *others), ((dim, width),)),
            Split(pack, f"d{dim}", (width,)),
            Reorder(pack, (f"d{dim}.0", *(f"d{n}" for n in others), f"d{dim}.1")),
            Vectorize(pack, f"d{dim}.1"),
        ]
        if place == "root":
            steps.append(Parallel(pack, (f"d{dim}.0", *(f"d{n}" for n in others[:-1]))))
        else:
            steps.insert(0, ComputeAt(pack, host, self._place(host_stage, place)))
        return draft.apply(*steps)

    def _place(self, host: Stage, place: str) -> str:
        """The loop that a packed copy is made in: each panel of the middle level, or once for each task."""
        v = host.op.axes[self.plan.v].name
        names = [x.name for x in host.loops]
        panel = f"{v}.1"
        if place == "panel" and len(self._factors(host, self.plan.v)) == 2:
            return panel
        return [x for x in names if x.endswith(".0")][-1]


def _itemsize(stage: Stage) -> int:
    return max(DTYPES[d][1] for d in stage.op.dtypes)
