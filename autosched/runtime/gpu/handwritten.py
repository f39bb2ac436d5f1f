"""Handwritten kernels in any dialect of C: for peak rates, and the canary."""

from __future__ import annotations

from collections.abc import Sequence

from autosched.codegen.c.dialects import DIALECTS
from autosched.codegen.c.source import GpuSource, Launch

THREADS = 256  # in a block


def thread_number(kind: str) -> str:
    """Return the C expression of a thread's number in the grid."""
    dialect = DIALECTS[kind]
    return f"{dialect.block.format(axis='x', number=0)} * {THREADS} + {dialect.thread.format(axis='x', number=0)}"


def handwritten_source(
    kind: str, name: str, element: str, lines: Sequence[str], blocks: int, prologue: str = ""
) -> GpuSource:
    """Return the source of one kernel `name(start, end)` over elements of a C type, with these lines as its body."""
    dialect = DIALECTS[kind]
    head = dialect.kernel.format(threads=f"{THREADS}, 1, 1", count=THREADS, resident="", cluster="")
    start = dialect.pointer.format(const="const ", type=element)
    end = dialect.pointer.format(const="", type=element)
    text = "\n".join([f"{prologue}{head} {name}({start} start, {end} end)", "{", *lines, "}\n"])
    launch = Launch(name, (blocks, 1, 1), (THREADS, 1, 1), ("start", "end"), 0)
    return GpuSource(name, kind, text, (launch,), ("start",), ("end",), ())


def canary_source(kind: str, elements: int) -> GpuSource:
    """Return a kernel that doubles `elements` floats, a multiple of THREADS."""
    lines = [f"  const int i = {thread_number(kind)};", "  end[i] = start[i] + start[i];"]
    return handwritten_source(kind, "canary", "float", lines, elements // THREADS)
