"""Warp shuffles: exchanges between the threads of a warp by CUDA's intrinsics, or through shared memory without them.

    "xor"   lane ^ number      "down"  lane + number      "lane"  the lane with that number

The first two have the number in the instruction. CUDA C++ Programming Guide, "Warp Shuffle Functions".
"""

from __future__ import annotations

from autosched.codegen.c.expressions import Expressions
from autosched.codegen.c.names import Text
from autosched.codegen.c.shared import SharedMemory
from autosched.codegen.c.threads import Threads
from autosched.codegen.c.updates import assign
from autosched.ir.expr import INDEX, Const, Expr, binary, select
from autosched.ir.simplify import Simplifier
from autosched.ir.stmt import Buffer, Scope, Shuffle

WARP = 32  # threads that exchange values unless a shuffle says how many


def emit_shuffle(stmt: Shuffle, c: Expressions, text: Text, threads: Threads, shared: SharedMemory) -> None:
    """Emit a shuffle by the language's intrinsic, or through shared memory if it has none."""
    values = [c.text(v) for v in stmt.values]
    dialect, simplify = c.dialect, c.simplify
    thread = simplify(threads.number())
    if dialect.shuffles:
        kind, number = source_lane(stmt, thread, simplify)
        width = "" if stmt.warp == WARP else f", {stmt.warp}"
        words, where = dialect.shuffles[kind], c.text(number)
        assign(stmt, [words.format(value=v, number=where, width=width) for v in values], c, text)
        return
    count = Const(threads.count, INDEX)
    buffers = [Buffer(f"exchange {n} of {v.dtype}", (count,), v.dtype, Scope.SHARED) for n, v in enumerate(stmt.values)]
    places = [_exchange(buffer, c, text, shared) for buffer in buffers]
    text.line(dialect.barrier)  # others may still read what was exchanged before
    for place, value in zip(places, values, strict=True):
        text.line(f"{place}[{c.text(thread)}] = {value};")
    text.line(dialect.barrier)
    other = simplify(thread - thread % stmt.warp + stmt.lane)
    exists = binary("lt", stmt.lane, Const(stmt.warp, INDEX)) & binary("lt", other, count)
    safe = c.text(simplify(select(exists, other, thread)))
    assign(stmt, [f"{place}[{safe}]" for place in places], c, text)


def _exchange(places: Buffer, c: Expressions, text: Text, shared: SharedMemory) -> str:
    """Shared memory with a place for each thread: the same for all shuffles of a kernel."""
    if places.name not in shared.names:
        shared.declare(places, c.memory_type(places.dtype), text.name(f"exchange_{places.dtype}"))
    return shared.names[places.name]


def source_lane(stmt: Shuffle, thread: Expr, simplify: Simplifier) -> tuple[str, Expr]:
    """Return (kind, number) of the source thread, by its number in the block."""
    own = simplify(thread % stmt.warp)
    lane = simplify(stmt.lane)
    ahead = simplify(lane - own)
    if isinstance(ahead, Const) and ahead.value > 0:
        return "down", ahead
    for distance in range(1, stmt.warp):
        number = Const(distance, INDEX)
        if lane is simplify(binary("bitxor", own, number)):
            return "xor", number
    return "lane", lane
