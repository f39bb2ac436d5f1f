"""Random schedules: steps drawn without regard to whether they fit; those that are refused are left out."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

from autosched.errors import ScheduleError
from autosched.lower.symbolic.domains import infer_domains
from autosched.schedule import (
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    FetchAhead,
    Fuse,
    Pack,
    Parallel,
    Partition,
    Prefetch,
    Reindex,
    Reorder,
    Rfactor,
    Slide,
    Split,
    Stage,
    State,
    Step,
    Unroll,
    Vectorize,
    WriteOut,
    initial_state,
)
from autosched.te import ComputeDAG
from tests.schedule.graphs import GRAPHS

FACTORS = (1, 2, 3, 4, 5, 8, 16)
Draw = Callable[[random.Random, State, Stage], Step]


def random_schedule(
    seed: int, registers: bool = False, parts: bool = False, graphs: Mapping[str, Callable[[], ComputeDAG]] = GRAPHS
) -> tuple[ComputeDAG, State]:
    """A graph and a schedule of up to 20 steps; with `registers`, buffers may be in registers although their indices
    are not constant, which the verifier forbids and code generation bears. With `parts` results are often in two."""
    rng = random.Random(seed)
    dag = graphs[rng.choice(list(graphs))]()
    state = initial_state(dag)
    for _ in range(rng.choice((4, 8, 14, 20))):
        stage = rng.choice(state.stages)
        draws = DRAWS | {_partition: 12} if parts else DRAWS
        draw = rng.choices(list(draws), list(draws.values()))[0]
        try:
            step = draw(rng, state, stage)
            if registers and isinstance(step, ComputeAt) and rng.random() < 0.5:
                step = replace(step, scope="register")
            changed = state.apply(step)
            infer_domains(changed)  # refuses stages that cannot slide
            state = changed
        except ScheduleError:
            continue
    return dag, state


def _name(rng: random.Random, names: list[str]) -> str:
    return rng.choice(names) if names else "none"


def _loops(stage: Stage) -> list[str]:
    return [loop.name for loop in stage.loops]


def _split(rng: random.Random, state: State, stage: Stage) -> Step:
    count = rng.choice((1, 1, 2, 2, 3))
    axis = _name(rng, [a.name for a in stage.op.all_axes])
    return Split(stage.name, axis, tuple(rng.choice(FACTORS) for _ in range(count)))


def _reorder(rng: random.Random, state: State, stage: Stage) -> Step:
    loops = _loops(stage)
    return Reorder(stage.name, tuple(rng.sample(loops, len(loops))))


def _fuse(rng: random.Random, state: State, stage: Stage) -> Step:
    first = rng.randrange(len(stage.loops) + 1)
    return Fuse(stage.name, tuple(_loops(stage)[first : first + rng.choice((2, 3))]) or ("none",))


def _parallel(rng: random.Random, state: State, stage: Stage) -> Step:
    return Parallel(stage.name, tuple(_loops(stage)[: rng.choice((1, 2, 3))]))


def _vectorize(rng: random.Random, state: State, stage: Stage) -> Step:
    return Vectorize(stage.name, _name(rng, _loops(stage)[-1:]))


def _unroll(rng: random.Random, state: State, stage: Stage) -> Step:
    return Unroll(stage.name, _name(rng, _loops(stage)))


def _prefetch(rng: random.Random, state: State, stage: Stage) -> Step:
    buffer, loop = _name(rng, sorted(stage.op.reads)), _name(rng, _loops(stage))
    return Prefetch(stage.name, buffer, loop, rng.choice((1, 7)), rng.choice((1, 2)))


def _fetch_ahead(rng: random.Random, state: State, stage: Stage) -> Step:
    hosts = [stage.name, *([] if stage.at is None else [stage.at.stage, rng.choice(state.stages).name])]
    host = rng.choice(hosts)
    loop = _name(rng, _loops(state.stage(host)))
    written = () if stage.at is None else state.stage(stage.at.stage).op.buffers
    return FetchAhead(host, loop, stage.name, _name(rng, sorted({*stage.op.reads, *written})), rng.choice((1, 7)))


def _compute_at(rng: random.Random, state: State, stage: Stage) -> Step:
    consumer = rng.choice(state.stages)
    return ComputeAt(stage.name, consumer.name, _name(rng, _loops(consumer)))


def _inline(rng: random.Random, state: State, stage: Stage) -> Step:
    return ComputeInline(stage.name)


def _cache_read(rng: random.Random, state: State, stage: Stage) -> Step:
    return CacheRead(_name(rng, sorted(stage.op.reads)), stage.name, rng.choice(("cache", "copy")))


def _reindex(rng: random.Random, state: State, stage: Stage) -> Step:
    return Reindex(_name(rng, sorted(stage.op.reads)), stage.name, rng.choice(("cache", "copy")))


def _cache_write(rng: random.Random, state: State, stage: Stage) -> Step:
    return CacheWrite(stage.name)


def _pack(rng: random.Random, state: State, stage: Stage) -> Step:
    rank = len(stage.op.axes)
    tiled = rng.sample(range(rank), rng.randint(0, min(rank, 2)))
    return Pack(stage.name, tuple(rng.sample(range(rank), rank)), tuple((d, rng.choice(FACTORS)) for d in tiled))


def _rfactor(rng: random.Random, state: State, stage: Stage) -> Step:
    axis = _name(rng, [a.name for a in stage.op.reduce_axes])
    whole = tuple(a.name for a in stage.op.reduce_axes if a.name != axis and rng.random() < 0.3)
    return Rfactor(stage.name, axis, rng.choice(FACTORS), rng.choice(("inner", "outer")), whole)


def _partition(rng: random.Random, state: State, stage: Stage) -> Step:
    makers = [maker.name for b in sorted(stage.op.reads) if (maker := state.producer(b)) is not None]
    axis = _name(rng, [a.name for a in stage.op.axes])
    return Partition(stage.name, _name(rng, makers), axis, rng.choice(FACTORS))


def _write_out(rng: random.Random, state: State, stage: Stage) -> Step:
    return WriteOut(stage.name)


def _slide(rng: random.Random, state: State, stage: Stage) -> Step:
    return Slide(_name(rng, [s.name for s in state.stages if s.at is not None]))


DRAWS: dict[Draw, float] = {
    _split: 6, _reorder: 3, _fuse: 1, _parallel: 2, _vectorize: 3, _unroll: 2, _prefetch: 1, _fetch_ahead: 1, _compute_at: 5,
    _inline: 1, _cache_read: 2, _reindex: 1, _cache_write: 2, _pack: 1.5, _rfactor: 2, _write_out: 0.3, _slide: 0.5,
}  # fmt: skip
