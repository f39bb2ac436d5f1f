"""Programmatic dependent launch: the next kernel of a call starts while this one ends, and waits for its results.

Devices with this feature launch the next kernel when the last block of this one has started. Its blocks first wait
until all kernels before have ended and their writes are visible. The wait is part of the generated text, so a driver
that launches one kernel after the other is correct as well.
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
    """A kernel's position among the launches of a call. `earlier`: outside buffers that kernels before it write;
    `writes`: outside buffers that it writes."""

    is_first: bool
    is_last: bool
    earlier: frozenset[str]
    writes: frozenset[str]


def kernel_orders(nests: tuple[Stmt, ...], outside: Mapping[str, Buffer]) -> list[KernelOrder]:
    """Return the position of each nest's kernel among the launches of the function."""
    orders: list[KernelOrder] = []
    earlier: frozenset[str] = frozenset()
    for n, nest in enumerate(nests):
        writes = frozenset(_written(nest) & outside.keys())
        orders.append(KernelOrder(n == 0, n + 1 == len(nests), earlier, writes))
        earlier |= writes
    return orders


def is_early(order: KernelOrder, dialect: Dialect) -> bool:
    """Return whether the kernel may start before the one before it has ended."""
    return not order.is_first and bool(dialect.launch_overlap)


def emit_launch_overlap(order: KernelOrder, c: Expressions, text: Text) -> None:
    """Emit the calls that start the next kernel and wait for the ones before, if the dialect has them."""
    for name, is_needed in (("start_next_kernel", not order.is_last), ("wait_for_kernels_before", not order.is_first)):
        if is_needed and c.dialect.launch_overlap:
            c.helpers[name] = c.dialect.launch_overlap[name]
            text.line(f"{name}();")


def _written(nest: Stmt) -> frozenset[str]:
    """Return the buffers that threads or the copy engine store to."""
    stored = {b for s in walk(nest) if isinstance(s, Store) for b in s.buffers}
    return frozenset(stored | {s.outside for s in walk(nest) if isinstance(s, TileCopy) and s.back})
