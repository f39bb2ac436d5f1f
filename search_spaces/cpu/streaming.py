"""Outputs written around the caches.

A store to a line that no cache has fetches it first, so that an output costs twice its bytes, and it takes the place of
data that will be read again. Where inputs and outputs together are larger than the last cache, none of that helps
anybody. Only memory-bound graphs are asked: others hide their stores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autosched.ir.expr import DTYPES
from autosched.ir.stmt import ForKind
from autosched.schedule import Stage, Stream
from autosched.te.dag import ComputeDAG
from search_spaces.draft import Context, Draft

LEAST_SHARE = 16  # outputs that are a smaller part of all bytes cost nothing worth another sketch
MAX_INTENSITY = 8.0  # operations for each byte of inputs and outputs; with more, arithmetic takes longer


def streamed(drafts: Sequence[Draft], dag: ComputeDAG, context: Context) -> list[Draft]:
    """The drafts once more, with every output that is written in vectors streamed; none where that cannot pay."""
    read, written = (sum(math.prod(t.shape) * DTYPES[t.dtype][1] for t in ts) for ts in (dag.inputs, dag.outputs))
    n_bytes = read + written
    if n_bytes < context.target.l3_bytes or dag.flops > MAX_INTENSITY * n_bytes or n_bytes > LEAST_SHARE * written:
        return []
    found = []
    for draft in drafts:
        names = [s.name for s in draft.state.stages if draft.state.is_output(s) and _in_vectors(s)]
        if names:
            found.append(draft.apply(*(Stream(n) for n in names)).finish(note="stream"))
    return found


def _in_vectors(stage: Stage) -> bool:
    """Whether the stage writes its last axis in vectors, with nothing added up in place."""
    last = stage.loops[-1] if stage.loops else None
    if last is None or stage.op.reducer is not None:
        return False
    return last.kind is ForKind.VECTORIZE and last.parts[-1][0] == stage.op.axes[-1].name
