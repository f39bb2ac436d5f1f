"""A page: the parts between two marks are made, all else stays as it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from autosched.errors import UsageError

START, END = re.compile(r"<!-- generated: (\S+) -->"), "<!-- end -->"


@dataclass(frozen=True)
class Block:
    """A part of a page that is made: `lines` are those between the marks, `line` is the first mark's, from 1."""

    name: str
    line: int
    lines: tuple[str, ...]


def blocks_of(text: str, page: str) -> list[Block]:
    """The made parts of a page. Raises UsageError for a mark without its other half."""
    found: list[Block] = []
    name, start = "", 0
    lines = text.splitlines()
    for i, line in enumerate(lines, start=1):
        mark = START.fullmatch(line)
        if mark and name:
            raise UsageError(f"{page}:{i}: a table begins before `{name}` of line {start} ends; close it with {END}")
        if line == END and not name:
            raise UsageError(f"{page}:{i}: {END} ends no table; remove it")
        if mark:
            name, start = mark[1], i
        elif line == END:
            found.append(Block(name, start, tuple(lines[start : i - 1])))
            name = ""
    if name:
        raise UsageError(f"{page}:{start}: table `{name}` has no end; close it with {END}")
    return found


@dataclass(frozen=True)
class Difference:
    """A block that is not what it should be: the first line at which it differs, of each side; "" where it has none."""

    block: Block
    here: str
    made: str


def compare(block: Block, made: Sequence[str]) -> Difference | None:
    """None where they are the same. Lines tell more than the lack of an empty one."""
    unlike = [(here or "", new or "") for here, new in zip_longest(block.lines, made) if here != new]
    if not unlike:
        return None
    return Difference(block, *next(filter(any, unlike), unlike[0]))


def between_marks(made: Sequence[str]) -> tuple[str, ...]:
    """What a block holds: blank lines keep the marks apart from a table, as Markdown wants it."""
    return ("", *made, "")


def rewritten(text: str, page: str, make: Callable[[str], Sequence[str]]) -> tuple[str, list[Difference]]:
    """The page with each block made anew by name, and what differed. Raises UsageError for broken marks."""
    lines, differences = text.splitlines(), list[Difference]()
    for block in reversed(blocks_of(text, page)):  # from the last, so that line numbers hold
        made = between_marks(make(block.name))
        if (difference := compare(block, made)) is not None:
            differences.insert(0, difference)
            lines[block.line : block.line + len(block.lines)] = made
    return "\n".join(lines) + "\n", differences
