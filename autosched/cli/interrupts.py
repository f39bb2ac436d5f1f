"""Handling of Ctrl-C, SIGTERM and SIGHUP in a command.

The first signal raises KeyboardInterrupt: a search stops at once, the best so far is printed, everything is closed. The
second ends the process at once, without workers or scratch files left behind; records are durable anyway.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130
POLITE_ENDS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
SOON_S = 0.01
SHOW_CURSOR = b"\x1b[?25h"


class Interrupts:
    """The signal handlers of a process that runs one command. `happened`: whether a signal came."""

    happened = False
    _is_told = False  # whether the last lines of output were printed, or are about to be

    def listen(self) -> None:
        """Install the handlers, except for signals that are ignored (nohup)."""
        for number in POLITE_ENDS:
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                signal.signal(number, self._handle)
        signal.signal(signal.SIGALRM, self._raise)
        sys.unraisablehook = self._unraisable

    def end_quietly(self) -> None:
        """Mark the command as complete but for its last lines, so that another signal prints nothing."""
        self._is_told = True

    def _handle(self, *_: object) -> None:
        if self.happened or self._is_told:
            self._end_at_once()
        self.happened = True
        raise KeyboardInterrupt

    def _raise(self, number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    def _unraisable(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Raise a KeyboardInterrupt again that Python dropped inside a finaliser."""
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, SOON_S)
        else:
            sys.__unraisablehook__(unraisable)

    def _end_at_once(self) -> NoReturn:
        for number in POLITE_ENDS:
            signal.signal(number, signal.SIG_IGN)
        leave_nothing()
        with suppress(OSError):
            for stream in (1, 2):
                if os.isatty(stream):
                    os.write(stream, SHOW_CURSOR)
            if not self._is_told:
                os.write(2, b"autosched: error: interrupted twice; everything measured so far is saved\n")
        os._exit(INTERRUPTED)


def leave_nothing() -> None:
    """End the workers and remove the scratch files that an interrupted end may have left."""
    if process_pool := sys.modules.get("autosched.measure.process_pool"):
        process_pool.abandon()


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Handle SIGTERM and SIGHUP as Ctrl-C: the search stops, and the best so far is printed and saved.

    A signal that is ignored (nohup) stays ignored. Has an effect in the main thread only, as Python's handlers do.
    """

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {}
    try:
        for number in POLITE_ENDS:
            if signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, interrupt)
    except ValueError:  # not the main thread
        pass
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
