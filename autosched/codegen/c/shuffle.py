"""Which of CUDA's shuffles reads the lane that a statement names.

    "xor"   lane ^ number      "down"  lane + number      "lane"  the lane with that number

The first two have the number in the instruction. CUDA C++ Programming Guide, "Warp Shuffle Functions".
"""

from __future__ import annotations

from autosched.ir.expr import INDEX, Const, Expr, binary
from autosched.ir.simplify import Simplifier
from autosched.ir.stmt import Shuffle


def source_lane(stmt: Shuffle, thread: Expr, simplify: Simplifier) -> tuple[str, Expr]:
    """(kind, number) for the thread of that number in its block."""
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
