"""Count of vector spills: instructions of machine code that access a vector on the stack.

Object code is searched, which takes microseconds; printing it by LLVM would take as long as generating it. An x86
instruction on vectors of one length begins with bytes that say so, and one whose address is the stack pointer with a
constant has two bytes that others do not have in their place. Bytes of something else look like that now and then, too
seldom to matter where objects of one kernel are compared. Buffers on the stack count as well, alike in both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from autosched.target import Target


def stack_accesses(code: bytes, target: Target) -> int:
    """Return the number of instructions on whole vectors that access the stack; 0 for processors other than x86."""
    if target.arch != "x86_64" or target.vector_bytes not in _FORMS:
        return 0
    return sum(1 for _ in _pattern(target.vector_bytes).finditer(code))


@cache
def _pattern(vector_bytes: int) -> re.Pattern[bytes]:
    """How instructions begin, then a register and an address, which is the stack pointer and no index."""
    operands = _one_of(place << 6 | register << 3 | 4 for place in range(3) for register in range(8))
    return re.compile(b"(?:" + b"|".join(_FORMS[vector_bytes]) + b")" + operands + _one_of([0x24]), re.DOTALL)


def _one_of(values: Iterable[int]) -> bytes:
    return b"[" + b"".join(re.escape(bytes([v])) for v in values) + b"]"


# How instructions begin, by the bytes of their vectors, with the opcode: EVEX and VEX, of two and of three bytes, with
# the bits that are the length, and moves and arithmetic of SSE.
_FORMS: dict[int, tuple[bytes, ...]] = {
    64: (b"\x62.." + _one_of(b for b in range(256) if b >> 5 & 3 == 2) + b".",),
    32: tuple(start + _one_of(b for b in range(256) if b >> 2 & 1) + b"." for start in (b"\xc5", b"\xc4.")),
    16: (b"\x0f" + _one_of((0x10, 0x11, 0x28, 0x29, *range(0x51, 0x60))),),
}
