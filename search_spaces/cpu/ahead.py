"""Operands asked for ahead of time.

Prefetchers of processors follow a row of memory once they have seen a few of its lines. Where rows are short and far
from each other (the heads of an attention, the groups of a convolution) every row begins with lines that have to be
waited for. So each register tile asks for what later ones read: for the rows of the next tile but one, and for its
share of the next panel.
"""

from __future__ import annotations

from autosched.errors import ScheduleError
from autosched.ir.expr import DTYPES, Const
from autosched.ir.stmt import Scope
from autosched.schedule import FetchAhead, Stage, State
from search_spaces.facts import Read, is_copy, reads_of, run_length

SHORT_ROW_BYTES = 1024  # longer ones are followed by the processor
TILES_AHEAD = 2  # a tile takes about as long as the memory


def fetch_ahead(state: State) -> State:
    """The schedule with its register tiles asking for operands whose rows are short; itself where none is."""
    for stage in state.stages:
        if _is_tile(stage):
            state = _fetch_operands(state, stage)
    return state


def _is_tile(stage: Stage) -> bool:
    """A register tile over the whole reduction; blocks of one are as long as a parameter says."""
    whole = all(isinstance(a.extent, Const) for a in stage.op.all_axes)
    return stage.op.reducer is not None and stage.scope is Scope.REGISTER and stage.at is not None and whole


def _fetch_operands(state: State, tile: Stage) -> State:
    rows = reads_of(state, tile)
    assert tile.at is not None
    for read in rows:
        if not _is_scattered(read, tile, rows):
            continue
        name = read.load.buffer
        copy = state.producer(name)
        if copy is None:
            step = FetchAhead(tile.at.stage, tile.at.loop, tile.name, name, TILES_AHEAD)
        elif is_copy(copy) and len(copy.op.reads) == 1:
            step = FetchAhead(tile.at.stage, tile.at.loop, copy.name, next(iter(copy.op.reads)), 1)
        else:
            continue
        try:
            state = state.apply(step)
        except ScheduleError:  # copied elsewhere, no input, or no loop inside a task
            continue
    return state


def _is_scattered(read: Read, tile: Stage, rows: tuple[Read, ...]) -> bool:
    run = run_length(read, tile, rows)
    return run is not None and run * DTYPES[read.load.dtype][1] <= SHORT_ROW_BYTES
