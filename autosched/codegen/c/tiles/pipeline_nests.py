"""Recognition of tile pipelines in a nest: the loads of their stages and the products that read them."""

from __future__ import annotations

from dataclasses import dataclass

from autosched.errors import ScheduleError
from autosched.ir.expr import Const
from autosched.ir.stmt import Allocate, Barrier, Buffer, For, If, Seq, Stmt, TileCopy, walk


@dataclass(frozen=True)
class TilePipeline:
    """A tile pipeline: a `loop` whose stages `loads` fill, `buffers` with all stages, and the consumer's `compute`."""

    loop: For
    buffers: tuple[Buffer, ...]
    loads: tuple[TileCopy, ...]
    compute: tuple[Stmt, ...]

    @property
    def multiprocessors(self) -> int:
        """The multiprocessors that persistent blocks share; 0 for a kernel without persistent blocks."""
        return 0 if self.loop.overlap is None else self.loop.overlap.multiprocessors

    @property
    def stages(self) -> int:
        assert self.loop.overlap is not None
        assert isinstance(self.loop.overlap.stages, Const)
        return int(self.loop.overlap.stages.value)


def tile_pipeline(nest: Stmt) -> TilePipeline | None:
    """Return the tile pipeline of a kernel or None. Raises ScheduleError for several pipelines or other statements."""
    loops = [s for s in walk(nest) if isinstance(s, For) and s.overlap is not None and s.overlap.by_tiles]
    if not loops:
        return None
    buffers: list[Buffer] = []
    body = loops[0].body
    while isinstance(body, Allocate):
        buffers.append(body.buffer)
        body = body.body
    stmts = body.stmts if isinstance(body, Seq) else ()
    barriers = [n for n, s in enumerate(stmts) if isinstance(s, Barrier)]
    loads = [s.then for s in stmts[1 : barriers[1]] if isinstance(s, If)] if len(barriers) == 2 else []
    tile_copies = tuple(s for s in loads if isinstance(s, TileCopy))
    if len(loops) > 1 or barriers[:1] != [0] or len(tile_copies) != len(buffers) or len(tile_copies) + 1 != barriers[1]:
        raise ScheduleError("a kernel with tiles has one loop over them: barrier, loads, barrier, product")
    return TilePipeline(loops[0], tuple(buffers), tile_copies, stmts[barriers[1] + 1 :])


def stores_of(nest: Stmt) -> dict[TileCopy, Buffer]:
    """Return the tiles that a kernel stores, and their buffers in shared memory."""
    buffers = {s.buffer.name: s.buffer for s in walk(nest) if isinstance(s, Allocate)}
    return {s: buffers[s.buffer] for s in walk(nest) if isinstance(s, TileCopy) and s.back}
