"""Reduced precision of products: `Call("tf32", x)` is x, of which a kernel may use the leading bits only.

Tensor cores multiply numbers of tf32, float32's range with 10 bits of fraction. Either an operand becomes one, rounded
by warps and cut off by warpgroups, whose instructions read it where it lies, or it is the sum of two, big = tf32(x) and
small = tf32(x - big), and a b = big big + big small + small big, which leaves out small small. What x is rounded by,
relatively, so that this is covered:

    tf32      2^-10, a unit in the last place
    3xtf32    2^-21: what is cut off the small part is 2^-22, and what is left out as much of the product

Numbers with no more than 11 bits are not changed by either.

`Call("fp8-fast", x)` changes no number. It is of products of 8-bit floats, whose sums tensor cores cut off to 13 bits:
by default these are added to registers of float32 every 128 terms, with it never (`te/reference/error_bounds.cut_off`).
"""

from __future__ import annotations

from collections.abc import Mapping

FAST_FLOAT8 = "fp8-fast"
PRECISIONS: Mapping[str, float] = {"tf32": 2.0**-10, "3xtf32": 2.0**-21, FAST_FLOAT8: 0.0}
EXACT = "float32"  # that of products which are as they are written
SHORT_BITS = 11  # of numbers that are left as they are
