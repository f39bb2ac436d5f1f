"""Text of one LLVM function, with a place to hoist to in every loop.

Each serial loop is a `Frame`: its `header` lines run at the start of every iteration, before the
body, and dominate everything inside. Address arithmetic is put into the header of the innermost loop
it depends on, so invariant code is outside of inner loops by construction and no LICM pass is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

Lines = list["str | Lines"]


@dataclass
class Frame:
    """A loop body (or the function's entry): hoisted lines, and what they have computed."""

    header: Lines = field(default_factory=list)
    memo: dict[object, str] = field(default_factory=dict)


class Writer:
    """Fresh names, the current insertion point, and the stack of frames."""

    def __init__(self) -> None:
        self.frames: list[Frame] = [Frame()]
        self._names = 0
        self._lines: Lines = []
        self.block = "entry"
        self.spread: dict[tuple[str, int], str] = {}  # scalars in every lane that this block has: (name, lanes) -> name
        self.single = False  # whether a row of what is computed is one vector
        self.top: Lines = [self.frames[0].header, self._lines]

    def fresh(self, prefix: str = "t") -> str:
        self._names += 1
        return f"%{prefix}{self._names}"

    def emit(self, line: str) -> None:
        self._lines.append("  " + line)

    def value(self, text: str, prefix: str = "t") -> str:
        """Emit `%new = text` and return the name."""
        name = self.fresh(prefix)
        self.emit(f"{name} = {text}")
        return name

    def new_label(self, prefix: str) -> str:
        return self.fresh(prefix)[1:]

    def label(self, name: str) -> None:
        self._lines.append(f"{name}:")
        self.block = name
        self.spread = {}

    def slot(self) -> list[str | Lines]:
        """A line to be filled in later."""
        hole: Lines = []
        self._lines.append(hole)
        return hole

    @contextmanager
    def hoisted(self, depth: int) -> Iterator[None]:
        """Emit into the header of frame `depth` instead of here."""
        saved, self._lines = self._lines, self.frames[depth].header
        known, self.spread = self.spread, {}
        try:
            yield
        finally:
            self._lines, self.spread = saved, known

    @contextmanager
    def frame(self) -> Iterator[int]:
        """A new innermost frame at the current point; yields its depth."""
        frame, saved = Frame(), self._lines
        body: Lines = []
        saved.append(frame.header)
        saved.append(body)
        self.frames.append(frame)
        self._lines = body
        try:
            yield len(self.frames) - 1
        finally:
            self.frames.pop()
            self._lines = saved

    def text(self) -> str:
        found: list[str] = []
        _flatten(self.top, found)
        return "\n".join(found)


def _flatten(lines: Lines, found: list[str]) -> None:
    for line in lines:
        if isinstance(line, str):
            found.append(line)
        else:
            _flatten(line, found)
