"""Progress of loading a network, reported to a callback, a line on stderr, and the logger "autosched" (INFO).

Long operations call `report_stage`, which does nothing outside of a load.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TextIO, TypeAlias

LOGGER = logging.getLogger("autosched")
COLUMNS = 80  # of a terminal of unknown width
REDRAW_S = 0.1  # minimum time between two drawings of the line


@dataclass(frozen=True)
class LoadEvent:
    """The `stage` of loading the network `name`, `seconds` after the load began.

    `done` of `of` kernels are compiled; `of` is 0 if the stage has no count.
    """

    name: str
    stage: str
    seconds: float
    done: int = 0
    of: int = 0

    def __str__(self) -> str:
        count = f" {self.done}/{self.of}" if self.of else ""
        return f"loading {self.name}: {self.stage}{count} [{self.seconds:.0f} s]"


LoadCallback: TypeAlias = Callable[[LoadEvent], None]


class LoadLine:
    """A progress line: on a terminal it is redrawn, and erased at the end; elsewhere each stage has a line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_live = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._stage, self._drawn_s = "", 0.0

    def __call__(self, event: LoadEvent) -> None:
        is_new = event.stage != self._stage
        if not is_new and (not self._is_live or event.seconds - self._drawn_s < REDRAW_S):
            return
        self._stage, self._drawn_s = event.stage, event.seconds
        if self._is_live:
            width = COLUMNS
            with suppress(OSError):
                width = os.get_terminal_size(self._stream.fileno()).columns or COLUMNS
            self._stream.write(f"\r\x1b[K{''.join(c if c.isprintable() else '?' for c in str(event))[: width - 1]}")
        else:
            self._stream.write(f"{event}\n")
        self._stream.flush()

    def close(self) -> None:
        if self._is_live and self._stage:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
        self._stage = ""


@dataclass
class _Load:
    name: str
    listener: LoadCallback | None
    begun: float = field(default_factory=time.monotonic)
    stage: str = ""

    def tell(self, stage: str, done: int, of: int) -> None:
        event = LoadEvent(self.name, stage, time.monotonic() - self.begun, done, of)
        if stage != self.stage:
            LOGGER.info("%s", event)
        self.stage = stage
        if self.listener is not None:
            self.listener(event)


_CURRENT: ContextVar[_Load | None] = ContextVar("load", default=None)
_DEFAULT: ContextVar[bool] = ContextVar("load_line", default=False)


def show_on_terminal() -> None:
    """Draw a progress line for each later load if stderr is a terminal."""
    _DEFAULT.set(sys.stderr.isatty())


@contextmanager
def reported_load(name: str, progress: bool | LoadCallback | None) -> Iterator[None]:
    """Report the stages of loading the network `name` within this context; a nested load is part of the outer one.

    `progress`: a callback, True for a line on stderr, None for the default of `show_on_terminal`.
    """
    receiver = _DEFAULT.get() if progress is None else progress
    if _CURRENT.get() is not None or not (receiver or LOGGER.isEnabledFor(logging.INFO)):
        yield
        return
    line = LoadLine(sys.stderr) if receiver is True else None
    listener = line if line is not None else receiver if callable(receiver) else None
    load = _Load(name, listener)
    token = _CURRENT.set(load)
    try:
        yield
        LOGGER.info("loaded %s in %.1f s", name, time.monotonic() - load.begun)
    finally:
        _CURRENT.reset(token)
        if line is not None:
            line.close()


def report_stage(stage: str, done: int = 0, of: int = 0) -> None:
    """Report that a stage of the current load has begun, or how far it is."""
    if (load := _CURRENT.get()) is not None:
        load.tell(stage, done, of)
