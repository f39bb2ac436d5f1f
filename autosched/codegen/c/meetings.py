"""Kernels that run one behind the other, those of a call or of a network: the next one starts while this one ends, and
waits for it.

A device that can launches the next kernel as soon as the last block of this one has started: its blocks are there, and
wait before they do anything until all before them has ended and what that wrote can be seen. Waiting is in the text, so
a driver that launches one kernel after the other is right as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autosched.codegen.c.dialects import Dialect
from autosched.codegen.c.expressions import Expressions
from autosched.codegen.c.names import Text
from autosched.ir.stmt import Buffer, Stmt, Store, TileCopy, walk


@dataclass(frozen=True)
class KernelOrder:
    """A kernel's place among others. `earlier`: the outside buffers that kernels before it may still write when it
    starts."""

    is_first: bool
    is_last: bool
    earlier: frozenset[str]


def orders(
    nests: tuple[Stmt, ...], outside: Mapping[str, Buffer], given: Sequence[str] | None = None
) -> list[KernelOrder]:
    """Of the kernels of a call; of one among others, which go before it and follow it, `given` are its inputs, for any
    may be what those write."""
    found: list[KernelOrder] = []
    earlier = frozenset(given or ())
    for n, nest in enumerate(nests):
        is_alone = given is None
        found.append(KernelOrder(is_alone and n == 0, is_alone and n + 1 == len(nests), earlier))
        earlier |= _written(nest) & outside.keys()
    return found


def is_early(order: KernelOrder, dialect: Dialect) -> bool:
    """Whether the kernel may start before the one before it has ended."""
    return not order.is_first and bool(dialect.meetings)


def meet(order: KernelOrder, c: Expressions, text: Text) -> None:
    """The first lines of a kernel, where the dialect has words for them."""
    for name, is_needed in (("start_next_kernel", not order.is_last), ("wait_for_kernels_before", not order.is_first)):
        if is_needed and c.dialect.meetings:
            c.helpers[name] = c.dialect.meetings[name]
            text.line(f"{name}();")


def _written(nest: Stmt) -> frozenset[str]:
    """The buffers that a thread, or the copy engine, stores to."""
    stored = {b for s in walk(nest) if isinstance(s, Store) for b in s.buffers}
    return frozenset(stored | {s.outside for s in walk(nest) if isinstance(s, TileCopy) and s.back})
