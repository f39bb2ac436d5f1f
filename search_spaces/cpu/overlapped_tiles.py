"""Overlapped tiling: a stage in tiles, and the stages that it reads computed for each tile, with their halos.

    for i.0, j.0:  Y[tile] from B[tile and halo] from A[tile and larger halo]          instead of A, then B, then Y

An intermediate value that is in the cache when it is read costs no traffic to memory; values of halos are computed once
for each tile that reads them. The tile's loop is a row loop, where `Placement` computes the producers.
"""

from __future__ import annotations

from autosched.ir.visit import free_vars
from autosched.schedule import Parallel, Reorder, Split, Stage, State, Step, Vectorize
from autosched.schedule.stage import StageAxis
from search_spaces.access import extent, points
from search_spaces.cpu.domains import tile_count, vector_width
from search_spaces.fusion import is_read_indirectly
from search_spaces.partial_sketch import PartialSketch, SketchContext
from search_spaces.space import SketchParam

TILES = (2, 4, 8, 16, 32, 64, 128, 256)  # points of a tile along an axis that is no vector
FEW_POINTS = 1 << 12  # of a stage up to which its producers stay in a cache without tiles


def overlapped_tiles(
    sketch: PartialSketch, stage: Stage, vectors: tuple[int, ...], context: SketchContext
) -> PartialSketch | None:
    """Return the stage in tiles with a row loop for its producers; None where no producer can be computed in a tile.

    `vectors`: the candidate numbers of vectors of the last axis that are computed together.
    """
    producers = _producers(sketch, stage)
    if not producers or points(stage) <= FEW_POINTS:
        return None
    name, (*_, last) = stage.op.name, stage.op.axes
    tiled, outer, inner = _kinds_of_axes(sketch.state, stage, producers)
    params, steps = list[SketchParam](), list[Step]()
    for axis in tiled:
        tile = _tile(f"{name}.{axis.name}.t", extent(axis))
        params.append(tile)
        steps.append(Split(name, axis.name, (tile.name,)))
    lanes, group = context.lanes_of(stage), f"{name}.{last.name}"
    columns = tile_count(f"{group}.t", -(-extent(last) // lanes), group)
    vector = vector_width(f"{group}.r", extent(last), lanes, group, vectors=vectors)
    steps.append(Split(name, last.name, (columns.name, vector.name)))
    around = [*(a.name for a in outer), *(f"{a.name}.0" for a in tiled)]
    tile_loop = f"{last.name}.0"
    inside = [*(a.name for a in inner), *(f"{a.name}.1" for a in tiled), f"{last.name}.1", f"{last.name}.2"]
    steps += [
        Reorder(name, (*around, tile_loop, *inside)),
        Parallel(name, tuple(around) or (tile_loop,)),
        Vectorize(name, f"{last.name}.2"),
    ]
    made = sketch.with_params([*params, columns, vector]).apply(*steps).finish(name, note=f"{name}:tiles")
    return made.with_row_loop(name, tile_loop)


def _producers(sketch: PartialSketch, stage: Stage) -> list[Stage]:
    """Return the stages that could be computed in tiles of `stage`, directly read by it or not: elementwise, and read
    by nothing else."""
    state, group, found = sketch.state, {stage.name}, list[Stage]()
    for candidate in reversed(state.stages):
        readers = {r.name for r in state.consumers(candidate)}
        is_free = candidate.name not in sketch.done and candidate.op.is_elementwise and candidate.at is None
        fits = is_free and readers and readers <= group and not state.is_output(candidate)
        if fits and not state.is_constant(candidate) and not is_read_indirectly(state, candidate):
            group.add(candidate.name)
            found.append(candidate)
    return found


def _kinds_of_axes(
    state: State, stage: Stage, producers: list[Stage]
) -> tuple[list[StageAxis], list[StageAxis], list[StageAxis]]:
    """Return the axes of `stage` but for the last: those in tiles, as producers are read at several places along them;
    those around all tiles; and those inside of each, along which producers do not vary."""
    buffers = [b for p in producers for b in p.op.buffers]
    indices = [i for r in (stage, *producers) for x in r.op.loads_from(*buffers) for i in x.indices]
    tiled, outer, inner = list[StageAxis](), list[StageAxis](), list[StageAxis]()
    for axis in stage.op.axes[:-1]:
        used = [i for i in indices if axis.var in free_vars(i)]
        kind = inner if not used else outer if all(i is axis.var for i in used) else tiled
        kind.append(axis)
    return tiled, outer, inner


def _tile(name: str, size: int) -> SketchParam:
    return SketchParam(name, tuple(sorted({*(n for n in TILES if n < size), min(size, TILES[-1])})), "tile", "", size)
