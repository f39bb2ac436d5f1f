"""The interpreter's buffers, and how it notices that parallel tasks meet in one.

Tasks are numbered upwards through the whole run, so what an element remembers of an earlier parallel
region is a smaller number than the present region's first and does not count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from autosched.ir.expr import Const
from autosched.ir.scalars import Value
from autosched.ir.stmt import Buffer


def shape_of(buffer: Buffer) -> tuple[int, ...]:
    return tuple(int(e.value) for e in buffer.shape if isinstance(e, Const))


def index_text(index: Iterable[Value]) -> str:
    return f"[{', '.join(str(int(i)) for i in index)}]"


@dataclass
class Clock:
    """The task that runs, and the first one of the present parallel region."""

    task: int = 0
    first: int = 1


@dataclass
class Memory:
    """A buffer's elements, and for races the last task that wrote each and the last two that read it."""

    buffer: Buffer
    shape: tuple[int, ...]
    data: list[Value]
    is_input: bool
    in_region: bool
    writers: list[int] = field(default_factory=list)
    readers: list[int] = field(default_factory=list)
    other_readers: list[int] = field(default_factory=list)

    def track(self) -> None:
        if not self.writers:
            self.writers, self.readers, self.other_readers = ([0] * len(self.data) for _ in range(3))

    def races_reading(self, at: int, clock: Clock) -> bool:
        if self.readers[at] < clock.first:
            self.readers[at] = clock.task
        elif self.readers[at] != clock.task:
            self.other_readers[at] = clock.task
        return clock.first <= self.writers[at] != clock.task

    def races_writing(self, at: int, clock: Clock) -> bool:
        others = (self.writers[at], self.readers[at], self.other_readers[at])
        self.writers[at] = clock.task
        return any(clock.first <= other != clock.task for other in others)
