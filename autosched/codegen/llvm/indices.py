"""Lanes of an index in 32 bits, where they fit: half the registers, and before AVX-512 the integers that are converted
to floats, and compared without masks to join, in one instruction.

Quotients and remainders of lanes that are evenly apart need no division of vectors, which no processor has. What all
lanes share is divided once, b = d q + r, and where that does not vary outside of the loops that do not move it. A lane
that is n further has (b + n) % d = r + n % d, less d where that is not below d, and (b + n) // d = q + n // d, and one
more there.
"""

from __future__ import annotations

from collections.abc import Sequence

from autosched.codegen.llvm.address import Addresses, Lanes, Numbers, fits_32
from autosched.codegen.llvm.arithmetic import Arithmetic, Val
from autosched.codegen.llvm.words import suffix, value_type
from autosched.ir.expr import Binary, Const, Expr, Var, binary
from autosched.ir.simplify import Affine
from autosched.ir.visit import free_vars

MAX_DIVISOR = 1 << 30  # twice that is no negative number of 32 bits


def narrow_index(arithmetic: Arithmetic, addresses: Addresses, expr: Expr, used: int) -> Val | None:
    """The index as int32; None where that, or what it divides, does not fit in one of the first `used` lanes, or where
    data are in it."""
    data = any(isinstance(addresses.env.get(v), Numbers) for v in free_vars(expr))
    if data or not fits_32(*addresses.interval(expr, used)):
        return None
    total = _plain(arithmetic, addresses, expr)
    if total is not None:
        return total
    form = addresses.simplify.affine(addresses.fixed(expr))
    divided = [(a, c) for a, c in form.terms if isinstance(a, Binary) and _lanes_of(a, addresses)]
    rest = Affine(tuple(t for t in form.terms if t not in divided), form.constant)
    total = _plain(arithmetic, addresses, rest.expr())
    for atom, c in divided:
        lanes = _divided(arithmetic, addresses, atom, used)
        if lanes is None or total is None or not fits_32(c):
            return None
        scaled = lanes if c == 1 else arithmetic.binary("mul", lanes, Val(str(c), "int32", 1))
        total = scaled if total.name == "0" else arithmetic.binary("add", scaled, total)
    return total


def literal_lanes(numbers: Sequence[int]) -> Val:
    """A number of 32 bits for each lane."""
    text = ", ".join(f"i32 {n}" for n in numbers)
    return Val(f"<{text}>" if len(numbers) > 1 else str(numbers[0]), "int32", len(numbers))


def _plain(arithmetic: Arithmetic, addresses: Addresses, expr: Expr) -> Val | None:
    """An index whose lanes are evenly apart, or equal."""
    if not _lanes_of(expr, addresses):
        return Val(addresses.narrowed(addresses.scalar(expr)), "int32", 1)
    even = addresses.evenly(expr)
    if even is None or not fits_32(*even[0]):
        return None
    numbers, start = even
    return arithmetic.binary(
        "add", literal_lanes(numbers), Val(addresses.narrowed(addresses.scalar(start)), "int32", 1)
    )


def _lanes_of(expr: Expr, addresses: Addresses) -> list[Var]:
    return [v for v in free_vars(expr) if isinstance(addresses.env.get(v), Lanes)]


def _divided(arithmetic: Arithmetic, addresses: Addresses, atom: Binary, used: int) -> Val | None:
    """The lanes of a quotient or a remainder."""
    known = addresses.pattern(atom)
    if known is not None:
        return arithmetic.binary("add", literal_lanes(known[1]), Val(addresses.narrowed(known[0]), "int32", 1))
    divisor = atom.b.value if isinstance(atom.b, Const) and atom.op in ("floordiv", "mod") else 0
    if not 0 < divisor < MAX_DIVISOR:
        return None
    even = addresses.evenly(atom.a)
    if even is None or not fits_32(*even[0]):
        inner = narrow_index(arithmetic, addresses, atom.a, used)
        return None if inner is None else arithmetic.binary(atom.op, inner, Val(str(divisor), "int32", 1))
    d, (numbers, start) = int(divisor), even

    def plus(lanes: Sequence[int], op: str) -> Val:
        shared = addresses.scalar(binary(op, start, d))
        return arithmetic.binary("add", literal_lanes(lanes), Val(addresses.narrowed(shared), "int32", 1))

    high = plus([n % d for n in numbers], "mod")
    if atom.op == "floordiv":
        more = arithmetic.cast(arithmetic.binary("ge", high, Val(str(d), "int32", 1)), "int32")
        return arithmetic.binary("add", plus([n // d for n in numbers], "floordiv"), more)
    low = plus([n % d - d for n in numbers], "mod")  # large as an unsigned number where it is below 0
    kind = value_type("int32", high.lanes)
    call = f"call {kind} @llvm.umin.{suffix('int32', high.lanes)}({kind} {low.name}, {kind} {high.name})"
    return arithmetic.emitted(call, high)
