"""Warp shuffles: exchanges between the threads of a warp by CUDA's intrinsics, or through shared memory without them.

    "xor"   lane ^ number      "down"  lane + number      "lane"  the lane with that number

The first two take a constant number. CUDA C++ Programming Guide, "Warp Shuffle Functions".
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

WARP = 32  # threads of a shuffle without a width


def emit_shuffle(stmt: Shuffle, c: Expressions, text: Text, threads: Threads, shared: SharedMemory) -> None:
    """Emit a shuffle by the language's intrinsic, or through shared memory if it has none."""
    values = [c.text(v) for v in stmt.values]
    dialect, simplify = c.dialect, c.simplify
    thread = simplify(threads.number())
    if dialect.shuffles:
        kind, number = source_lane(stmt, thread, simplify)
        width = "" if stmt.warp == WARP else f", {stmt.warp}"
        template, lane = dialect.shuffles[kind], c.text(number)
        assign(stmt, [template.format(value=v, number=lane, width=width) for v in values], c, text)
        return
    count = Const(threads.count, INDEX)
    buffers = [Buffer(f"exchange {n} of {v.dtype}", (count,), v.dtype, Scope.SHARED) for n, v in enumerate(stmt.values)]
    arrays = [_exchange_array(buffer, c, text, shared) for buffer in buffers]
    text.line(dialect.barrier)  # other threads may still read the values of an earlier shuffle
    for array, value in zip(arrays, values, strict=True):
        text.line(f"{array}[{c.text(thread)}] = {value};")
    text.line(dialect.barrier)
    other = simplify(thread - thread % stmt.warp + stmt.lane)
    exists = binary("lt", stmt.lane, Const(stmt.warp, INDEX)) & binary("lt", other, count)
    safe = c.text(simplify(select(exists, other, thread)))
    assign(stmt, [f"{array}[{safe}]" for array in arrays], c, text)


def _exchange_array(array: Buffer, c: Expressions, text: Text, shared: SharedMemory) -> str:
    """Return the C name of a shared array with an element for each thread, which all shuffles of the kernel share."""
    if array.name not in shared.names:
        shared.declare(array, c.memory_type(array.dtype), text.name(f"exchange_{array.dtype}"))
    return shared.names[array.name]


def source_lane(stmt: Shuffle, thread: Expr, simplify: Simplifier) -> tuple[str, Expr]:
    """Return (kind, number) of the source lane; `thread`: linear index of the reading thread in its block."""
    own = simplify(thread % stmt.warp)
    lane = simplify(stmt.lane)
    distance_down = simplify(lane - own)
    if isinstance(distance_down, Const) and distance_down.value > 0:
        return "down", distance_down
    for distance in range(1, stmt.warp):
        number = Const(distance, INDEX)
        if lane is simplify(binary("bitxor", own, number)):
            return "xor", number
    return "lane", lane
