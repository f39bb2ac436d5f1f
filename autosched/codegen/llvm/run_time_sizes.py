"""Sizes that a kernel reads from a table at run time.

The text of a size (`ir.size`) is its closed form in brackets, and stands where an i64 is expected. It becomes a value
that its function loads from the table: the last of the kernel's `args` points to it, and it holds one int64 for each
closed form.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from autosched.ir.expr import Expr
from autosched.ir.size import printed_form

LOADS = "  ⟦⟧"  # the line of a function where its sizes are loaded; %sizes is known there
_TEXT = re.compile("⟦([^⟧]+)⟧")


def reads_sizes(text: str) -> bool:
    return _TEXT.search(text) is not None


def load_sizes(functions: Sequence[str]) -> tuple[list[str], tuple[Expr, ...]]:
    """Return the functions with loads in place of sizes, and the closed forms of the table."""
    places: dict[str, int] = {}
    return [_loaded(text, places) for text in functions], tuple(map(printed_form, places))


def table_lines(slot: int) -> list[str]:
    """Return the lines that load %sizes, the pointer to the table, which is this one of %args."""
    at = f"  %sizes.at = getelementptr inbounds ptr, ptr %args, i64 {slot}"
    return [at, "  %sizes = load ptr, ptr %sizes.at, align 8"]


def _loaded(text: str, places: dict[str, int]) -> str:
    forms = dict.fromkeys(_TEXT.findall(text))
    lines = []
    for form in forms:
        n = places.setdefault(form, len(places))
        lines.append(f"  %size{n}.at = getelementptr inbounds i64, ptr %sizes, i64 {n}")
        lines.append(f"  %size{n} = load i64, ptr %size{n}.at, align 8")
    text = text.replace(LOADS + "\n", "\n".join([*lines, ""]))
    return _TEXT.sub(lambda match: f"%size{places[match[1]]}", text)
