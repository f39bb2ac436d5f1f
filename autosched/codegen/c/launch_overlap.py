"""Programmatic dependent launch: the next kernel of a call starts while this one ends, and waits for its results.

A device that can launches the next kernel as soon as the last block of this one has started: its blocks are there, and
wait before they do anything until all before them has ended and what that wrote can be seen. Waiting is in the text, so
a driver that launches one kernel after the other is right as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autosched.codegen.c.dialects import Dialect
from autosched.codegen.c.expressions import Expressions
from autosched.codegen.c.names import Text
from autosched.ir.stmt import Buffer, Stmt, Store, TileCopy, walk


@dataclass(frozen=True)
class KernelOrder:
    """A kernel's place in a call. `earlier`: the outside buffers that kernels before it write; `writes`: those that it
    does."""

    is_first: bool
    is_last: bool
    earlier: frozenset[str]
    writes: frozenset[str]


def orders(nests: tuple[Stmt, ...], outside: Mapping[str, Buffer]) -> list[KernelOrder]:
    found: list[KernelOrder] = []
    earlier: frozenset[str] = frozenset()
    for n, nest in enumerate(nests):
        writes = frozenset(_written(nest) & outside.keys())
        found.append(KernelOrder(n == 0, n + 1 == len(nests), earlier, writes))
        earlier |= writes
    return found


def is_early(order: KernelOrder, dialect: Dialect) -> bool:
    """Return whether the kernel may start before the one before it has ended."""
    return not order.is_first and bool(dialect.meetings)


def meet(order: KernelOrder, c: Expressions, text: Text) -> None:
    """Return the first lines of a kernel, which wait for the one before it, if the dialect supports that."""
    for name, is_needed in (("start_next_kernel", not order.is_last), ("wait_for_kernels_before", not order.is_first)):
        if is_needed and c.dialect.meetings:
            c.helpers[name] = c.dialect.meetings[name]
            text.line(f"{name}();")


def _written(nest: Stmt) -> frozenset[str]:
    """The buffers that a thread, or the copy engine, stores to."""
    stored = {b for s in walk(nest) if isinstance(s, Store) for b in s.buffers}
    return frozenset(stored | {s.outside for s in walk(nest) if isinstance(s, TileCopy) and s.back})
