"""The text of one LLVM function, with an insertion point for invariant code in every loop.

Each serial loop is a `Frame`: its `header` lines run at the start of every iteration, before the
body, and dominate everything inside. Address arithmetic is put into the header of the innermost loop
it depends on, so invariant code is outside of inner loops by construction and no LICM pass is needed.

Register buffers are stack slots, which LLVM turns into values. Within a block that is done here: what a slot holds is
not loaded again, and it is stored once, where the block ends. Of an unrolled reduction this is a third of the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

Lines = list["str | Lines"]


@dataclass
class Frame:
    """A loop body (or the function's entry): hoisted lines, and what they have computed."""

    header: Lines = field(default_factory=list)
    memo: dict[object, str] = field(default_factory=dict)
    conditions: int = 0  # under which the writer stands, since the body began


@dataclass
class Slot:
    """The contents of a stack slot within a block: vectors of `lanes` elements, by the index of their first element."""

    lanes: int
    held: dict[int, str] = field(default_factory=dict)
    stores: dict[int, str] = field(default_factory=dict)  # lines that are still to be emitted


class Writer:
    """Fresh names, the current insertion point, and the stack of frames."""

    def __init__(self) -> None:
        self.frames: list[Frame] = [Frame()]
        self._names = 0
        self._lines: Lines = []
        self._late: list[str] | None = None
        self.block = "entry"
        self.broadcast: dict[
            tuple[str, int], str
        ] = {}  # scalars in every lane that this block has: (name, lanes) -> name
        self.min_max_chains: dict[str, tuple[Any, ...]] = {}  # of this block: `Arithmetic._chained`
        self.orders: dict[str, tuple[str, tuple[int, ...]]] = {}  # of this block: `reordered`
        self.integers: set[str] = set()  # floats that are converted integers, and so finite
        self.numbers: set[str] = set()  # other floats that are not NaN, whatever is read
        self.slots: dict[str, Slot] = {}  # of this block, by pointer
        self.single = False  # whether a row of what is computed is one vector
        self.hoisting = False  # whether what is emitted goes into the header of a loop around this one
        self.deinterleaved = False  # whether vectors of bfloat16 are split into even and odd lanes, see `lane_pairs.py`
        self.top: Lines = [self.frames[0].header, self._lines]

    def fresh(self, prefix: str = "t") -> str:
        self._names += 1
        return f"%{prefix}{self._names}"

    def emit(self, line: str) -> None:
        self._lines.append("  " + line)

    def store(self, line: str) -> None:
        """Emit a store, in `late_stores` at the end of that."""
        if self._late is None:
            self.emit(line)
        else:
            self._late.append(line)

    @contextmanager
    def late_stores(self, rows: int = 1) -> Iterator[None]:
        """Emit the stores of this context at its end: no load after one has to be repeated.

        Those of several `rows`, which come in turn, are emitted row by row.
        """
        outer, self._late = self._late, []
        yield
        late, self._late = self._late, outer
        for row in range(rows):
            for line in late[row::rows]:
                self.store(line)

    def value(self, text: str, prefix: str = "t") -> str:
        """Emit `%new = text` and return the name."""
        self._names += 1
        name = f"%{prefix}{self._names}"
        self._lines.append(f"  {name} = {text}")
        return name

    def reordered(self, kind: str, name: str, fenced: str, order: tuple[int, ...]) -> str:
        """The lanes `order` of a vector, also known as `fenced`; that they are these is known while the block lasts."""
        picks = ", ".join(f"i32 {n}" for n in order)
        shuffled = self.value(f"shufflevector {kind} {fenced}, {kind} poison, <{len(order)} x i32> <{picks}>")
        self.orders[shuffled] = name, order
        return shuffled

    def new_label(self, prefix: str) -> str:
        return self.fresh(prefix)[1:]

    def label(self, name: str) -> None:
        self._lines.append(f"{name}:")
        assert not self.slots, "a block ends with a branch"
        self.block = name
        self.broadcast = {}
        self.min_max_chains = {}
        self.orders = {}

    def branch(self, where: str) -> None:
        """The end of a block."""
        for pointer in list(self.slots):
            self.settle(pointer)
        self.emit(f"br {where}")

    def rarely(
        self, condition: str, kinds: Sequence[str], usual: Sequence[str], rare: Callable[[], Sequence[str]]
    ) -> list[str]:
        """The values `usual`, of types `kinds`, or those that `rare` emits, in a branch, where `condition` holds.
        The header of a loop has no branches: there both are computed."""
        if self.hoisting:
            pairs = zip(kinds, rare(), usual, strict=True)
            return [self.value(f"select i1 {condition}, {kind} {a}, {kind} {b}") for kind, a, b in pairs]
        seldom, join = self.new_label("rare"), self.new_label("join")
        self.branch(f"i1 {condition}, label %{seldom}, label %{join}")
        before = self.block
        self.label(seldom)
        rare_values = rare()
        self.branch(f"label %{join}")
        self.label(join)
        pairs = zip(kinds, usual, rare_values, strict=True)
        return [self.value(f"phi {kind} [ {a}, %{before} ], [ {b}, %{seldom} ]") for kind, a, b in pairs]

    def held(self, pointer: str, start: int, lanes: int) -> str | None:
        """What a slot surely has in `lanes` elements from `start` on; else everything stored there is in memory now."""
        slot = self.slots.get(pointer)
        if slot is None:
            return None
        name = slot.held.get(start) if slot.lanes == lanes else None
        if name is None and (slot.lanes != lanes or start % lanes):
            self.settle(pointer)
        return name

    def hold(self, pointer: str, start: int, lanes: int, name: str, store: str | None = None) -> None:
        """The slot has `name` there, in memory only after the line `store`, which may be replaced by a later one."""
        slot = self.slots.get(pointer)
        if slot is not None and (slot.lanes != lanes or start % lanes):  # they may overlap
            self.settle(pointer)
            slot = None
        if start % lanes == 0:
            slot = slot or self.slots.setdefault(pointer, Slot(lanes))
            slot.held[start] = name
            if store is not None:
                slot.stores[start] = store
        elif store is not None:
            self.emit(store)

    def settle(self, pointer: str) -> None:
        """What a slot has is in memory from here on, and nothing is known of it."""
        slot = self.slots.pop(pointer, None)
        for store in () if slot is None else slot.stores.values():
            self.emit(store)

    def gap(self) -> list[str | Lines]:
        """A line to be filled in later."""
        hole: Lines = []
        self._lines.append(hole)
        return hole

    @contextmanager
    def hoisted(self, depth: int) -> Iterator[None]:
        """Emit into the header of frame `depth` instead of here."""
        saved, self._lines = self._lines, self.frames[depth].header
        known, self.broadcast = self.broadcast, {}
        inside, self.hoisting = self.hoisting, True
        try:
            yield
        finally:
            self._lines, self.broadcast, self.hoisting = saved, known, inside

    @contextmanager
    def conditional(self, sometimes: bool = True) -> Iterator[None]:
        """Whether what is emitted does not run in every iteration of the innermost loop."""
        frame = self.frames[-1]
        frame.conditions += sometimes
        try:
            yield
        finally:
            frame.conditions -= sometimes

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
        lines: list[str] = []
        _flatten(self.top, lines)
        return "\n".join(lines)


def _flatten(lines: Lines, texts: list[str]) -> None:
    for line in lines:
        if isinstance(line, str):
            texts.append(line)
        else:
            _flatten(line, texts)
