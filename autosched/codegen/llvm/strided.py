"""Loads whose lanes are a few elements apart: whole vectors, of which shuffles pick what is wanted.

    X[2 i] in 16 lanes:  elements 0..15 and 15..30, then every other one of the two

As many vectors as the step has elements, instead of a load and an insertion for each lane. The last vector ends with
the last lane: what follows it may not exist. What lies between two lanes does, because they do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autosched.codegen.llvm.address import Access
from autosched.codegen.llvm.words import memory_type
from autosched.codegen.llvm.writer import Writer

LONGEST_STEP = 4
FEWEST_LANES = 4


def vector_starts(access: Access, lanes: int, used: int) -> list[int]:
    """The first elements of the vectors that hold the first `used` lanes; none where lanes are better loaded one by
    one: far apart, or so few that a vector would reach beyond the last."""
    step = access.lane_stride
    if step is None or not 1 < step <= LONGEST_STEP or lanes < FEWEST_LANES:
        return []
    end = (used - 1) * step + 1
    return [*range(0, end - lanes, lanes), end - lanes] if end >= lanes else []


def picked(
    writer: Writer, starts: Sequence[int], access: Access, dtype: str, lanes: int, load: Callable[[Access], str]
) -> str:
    """The vector of the lanes that the vectors at `starts` hold, undefined in the others."""
    step = access.lane_stride
    assert step is not None
    kind = memory_type(dtype, lanes)
    result, where = "", dict[int, int]()
    for start in starts:
        vector = load(Access(access.pointer, access.offset + start, 1))
        here = {n: n * step - start for n in range(lanes) if n not in where and 0 <= n * step - start < lanes}
        if not result:  # what the first vector holds is picked with the second one's
            result, where = vector, here
            continue
        picks = {**where, **{n: lanes + at for n, at in here.items()}}
        result, where = _shuffled(writer, kind, result, vector, picks, lanes), {n: n for n in picks}
    return result if len(starts) > 1 else _shuffled(writer, kind, result, "poison", where, lanes)


def _shuffled(writer: Writer, kind: str, a: str, b: str, picks: dict[int, int], lanes: int) -> str:
    order = ", ".join(f"i32 {picks[n]}" if n in picks else "i32 poison" for n in range(lanes))
    return writer.value(f"shufflevector {kind} {a}, {kind} {b}, <{lanes} x i32> <{order}>")
