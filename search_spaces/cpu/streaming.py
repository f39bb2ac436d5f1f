"""Streaming variants for data that no cache holds: non-temporal stores of outputs, prefetched short rows.

A store that misses all caches fetches the line first: an output costs twice its bytes, and evicts data that will be
read again. Where inputs and outputs together exceed the last-level cache, the fetch is useless.

An output whose consecutive stores hit different rows also waits for these fetches, which no prefetcher foresees.
Non-temporal stores are faster for it from a quarter of the last-level cache on: a transpose of 8 MB 1.2 times as fast,
of 16 MB 1.6 times.

Graphs with more arithmetic hide their bandwidth, but not the latency, even of the last-level cache. Their operands are
prefetched where rows are apart (`prefetch.py`), and their outputs are stored non-temporally as well (attention scores
1.1 times as fast), because fetches of those lines would delay the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from autosched.ir.dtype import DTYPES
from autosched.ir.stmt import ForKind, Scope
from autosched.schedule import Prefetch, Stage, State, Stream
from autosched.te.dag import ComputeDAG
from search_spaces.cpu.elementwise import transposed_read
from search_spaces.cpu.prefetch import prefetch_short_rows
from search_spaces.partial_sketch import PartialSketch, SketchContext

LEAST_SHARE = 16  # all bytes per byte of outputs, up to which non-temporal stores are worth another sketch
MAX_INTENSITY = 8.0  # operations per byte of inputs and outputs; above, arithmetic takes longer
MAX_HIDING = 48.0  # operations per byte, above which memory latency is a small share
STEPS_AHEAD = 8  # of a pass over a row, of 64 to 1024 bytes each
LEAST_OF_CACHE = 4  # the data exceed the last-level cache divided by this where some are no longer in caches


def streaming_variants(
    sketches: Sequence[PartialSketch], dag: ComputeDAG, context: SketchContext
) -> list[PartialSketch]:
    """Return the sketches with outputs stored non-temporally in vectors, and short rows prefetched.

    The list is empty where that cannot pay.
    """
    read, written = (sum(math.prod(t.shape) * DTYPES[t.dtype].nbytes for t in ts) for ts in (dag.inputs, dag.outputs))
    n_bytes, l3_bytes = read + written, context.target.l3_bytes
    is_light, is_large = dag.flops <= MAX_INTENSITY * n_bytes, n_bytes >= l3_bytes
    are_far = LEAST_OF_CACHE * n_bytes >= l3_bytes
    if n_bytes > LEAST_SHARE * written or not are_far or dag.flops > MAX_HIDING * n_bytes:
        return []
    variants = []
    for sketch in sketches:
        state = prefetch_short_rows(sketch.state, context)
        asks = state is not sketch.state
        outputs = [s for s in sketch.state.stages if sketch.state.is_output(s) and _writes_vectors(s)]
        around = asks or (is_light and is_large)
        names = [s.name for s in outputs if around or (is_light and transposed_read(sketch, s) is not None)]
        if names or asks:
            state = _prefetch_in_first_pass(state, context) if is_large else state
            state = state.apply(*(Stream(n) for n in names))
            variants.append(replace(sketch, state=state).finish(note="stream"))
    return variants


def _prefetch_in_first_pass(state: State, context: SketchContext) -> State:
    """Return the schedule where the first of several passes over the rows of a large input prefetches its later reads.

    The other passes are interleaved with it, over earlier rows, and the hardware prefetcher does not look ahead far
    enough. A softmax of 32 MB is 1.32 times as fast in rows of 16 KB, 1.05 times in rows of 4 KB. With one pass the
    hardware prefetcher suffices (RMS normalisation: from a tenth slower to a sixth faster).
    """
    passes = [s for s in state.stages if s.op.reducer is not None and s.scope is Scope.REGISTER and _serial_steps(s)]
    for tensor in state.inputs if len(passes) > 1 else ():
        n_bytes = math.prod(tensor.shape) * DTYPES[tensor.dtype].nbytes
        if tensor.name in passes[0].op.reads and 2 * n_bytes >= context.target.l3_bytes:
            state = state.apply(Prefetch(passes[0].name, tensor.name, _serial_steps(passes[0])[-1], STEPS_AHEAD, 2))
    return state


def _serial_steps(stage: Stage) -> list[str]:
    """Return the loops over the vectors of a row of a reduction in lanes."""
    if not stage.name.endswith(".rf"):
        return []
    return [x.name for x in stage.loops if x.reduce and x.kind is ForKind.SERIAL]


def _writes_vectors(stage: Stage) -> bool:
    """Whether the stage writes its last axis in vectors, without accumulating in memory."""
    last = stage.loops[-1] if stage.loops else None
    if last is None or not stage.op.is_elementwise:
        return False
    return last.kind is ForKind.VECTORIZE and last.parts[-1][0] == stage.op.axes[-1].name
