"""The interpreter's buffers, with detection of races between parallel tasks.

Tasks are numbered upwards through the whole run, so what an element remembers of an earlier parallel
region is a smaller number than the present region's first and does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum

from autosched.ir.expr import Const
from autosched.ir.interpreter.scalars import Value
from autosched.ir.stmt import Buffer


def shape_of(buffer: Buffer) -> tuple[int, ...]:
    return tuple(e.number for e in buffer.shape if isinstance(e, Const))


def index_text(index: Iterable[Value]) -> str:
    return f"[{', '.join(str(int(i)) for i in index)}]"


class ElementUse(Enum):
    """What a statement does with an element, as messages say it."""

    READ = "reads"
    WRITE = "writes"
    UPDATE = "updates"  # in one step, which meets no other such update


@dataclass
class Clock:
    """The task that runs, and the first one of the present parallel region."""

    task: int = 0
    first: int = 1


@dataclass
class BufferMemory:
    """A buffer's elements, and for races the last task that wrote each and the last two that read or updated it."""

    buffer: Buffer
    shape: tuple[int, ...]
    data: list[Value]
    is_input: bool
    in_region: bool
    writers: list[int] = field(default_factory=list)
    readers: list[int] = field(default_factory=list)
    other_readers: list[int] = field(default_factory=list)
    updaters: list[int] = field(default_factory=list)
    other_updaters: list[int] = field(default_factory=list)

    def track(self) -> None:
        if not self.writers:
            self.writers, self.readers, self.other_readers = ([0] * len(self.data) for _ in range(3))
            self.updaters, self.other_updaters = ([0] * len(self.data) for _ in range(2))

    def races(self, use: ElementUse) -> Callable[[int, Clock], bool]:
        """Whether a task that so uses an element meets another one."""
        return {
            ElementUse.READ: self._races_reading,
            ElementUse.WRITE: self._races_writing,
            ElementUse.UPDATE: self._races_updating,
        }[use]

    def _races_reading(self, at: int, clock: Clock) -> bool:
        _remember(self.readers, self.other_readers, at, clock)
        return _meets(clock, self.writers[at], self.updaters[at], self.other_updaters[at])

    def _races_writing(self, at: int, clock: Clock) -> bool:
        others = (self.writers[at], self.readers[at], self.other_readers[at])
        self.writers[at] = clock.task
        return _meets(clock, *others, self.updaters[at], self.other_updaters[at])

    def _races_updating(self, at: int, clock: Clock) -> bool:
        _remember(self.updaters, self.other_updaters, at, clock)
        return _meets(clock, self.writers[at], self.readers[at], self.other_readers[at])


def _meets(clock: Clock, *others: int) -> bool:
    return any(clock.first <= other != clock.task for other in others)


def _remember(tasks: list[int], other_tasks: list[int], at: int, clock: Clock) -> None:
    """Two tasks of the region are enough: one of them is not the task that comes later."""
    if tasks[at] < clock.first:
        tasks[at] = clock.task
    elif tasks[at] != clock.task:
        other_tasks[at] = clock.task
