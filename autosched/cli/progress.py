"""Progress of a search: a live line on a terminal, plain lines elsewhere, nothing for `--json` in a pipe.

No thread draws: callbacks come between measurements, so that drawing never disturbs one.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from autosched.cli.output import clock_text, device_text, rate_text, share_text, time_text

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from autosched.tuner.callbacks import Callback, Event
    from autosched.tuner.result import Result

REFRESH_S = 0.15  # seconds between two drawings of the live line
PAUSE_S = 10.0  # seconds between two plain lines while nothing improves


@contextmanager
def watcher(*, as_json: bool, budget_s: float | None) -> Iterator[tuple[Callback, ...]]:
    """Yield the callbacks of one search. With `as_json`, stdout stays free and lines go to stderr, if that is a
    terminal.
    """
    stream = sys.stderr if as_json else sys.stdout
    is_terminal = stream.isatty()
    if as_json and not is_terminal:
        yield ()
    elif as_json or not is_terminal or os.environ.get("TERM") == "dumb":
        yield (PlainLines(stream),)
    else:
        live = LiveLine(budget_s)
        try:
            yield (live,)
        finally:
            live.close()  # also when the search raises: the terminal gets its cursor back


def best_text(event: Event) -> str:
    """Format the best result: 'best 83.1 us, 312 GFLOP/s, 59 % of peak'."""
    if event.best_s is None:
        return "no verified kernel yet"
    share = f", {share_text(event.fraction_of_peak)} of peak" if event.fraction_of_peak is not None else ""
    return f"best {time_text(event.best_s)}, {rate_text(event.best_gflops)}{share}"


def trials_text(n: int) -> str:
    return "1 trial" if n == 1 else f"{n} trials"


class PlainLines:
    """Progress as a line for each improvement and each round, for logs and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._best_s: float | None = None
        self._last_line_s = 0.0

    def on_start(self, event: Event) -> None:
        resumed = f", {event.resumed} trials from records" if event.resumed else ""
        sketches = "1 sketch" if event.n_sketches == 1 else f"{event.n_sketches} sketches"
        self._line(f"{event.workload} on {device_text(event.target, event.threads)}: {sketches}{resumed}")

    def on_round(self, event: Event) -> None:
        if event.best_s is not None:
            self._best_s = event.best_s
        self._line(f"{self._state(event)}  round {event.round}, {event.phase}: {best_text(event)}")

    def on_result(self, event: Event) -> None:
        improved = event.best_s is not None and event.best_s != self._best_s
        if improved or time.monotonic() - self._last_line_s > PAUSE_S:
            self._best_s = event.best_s
            self._line(f"{self._state(event)}  {best_text(event)}")

    def on_finish(self, result: Result) -> None:
        """The summary is printed by the verb."""

    def _state(self, event: Event) -> str:
        failed = f", {event.failed} failed" if event.failed else ""
        return f"[{clock_text(event.elapsed_s)}] {trials_text(event.trial)}{failed}"

    def _line(self, text: str) -> None:
        self._last_line_s = time.monotonic()
        print(text, file=self._stream, flush=True)


class LiveLine:
    """Progress as a bar with trials, best time, failures and time left, redrawn in place."""

    def __init__(self, budget_s: float | None = None) -> None:
        self._budget_s = budget_s
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._drawn_s = 0.0

    def on_start(self, event: Event) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[state]}", markup=False),
            auto_refresh=False,
            transient=True,
        )
        self._task = self._progress.add_task(event.workload.rpartition("/")[2], total=1.0, state="")
        self._progress.start()
        self._draw(event)

    def on_round(self, event: Event) -> None:
        self._draw(event)

    def on_result(self, event: Event) -> None:
        if time.monotonic() - self._drawn_s >= REFRESH_S or event.seconds == event.best_s:
            self._draw(event)

    def on_finish(self, result: Result) -> None:
        self.close()

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _draw(self, event: Event) -> None:
        if self._progress is None or self._task is None:
            return
        self._drawn_s = time.monotonic()
        share = event.trial / max(event.trials, 1)
        if self._budget_s is not None:
            share = max(share, event.elapsed_s / self._budget_s)
        trials = trials_text(event.trial) if self._budget_s is not None else f"{event.trial}/{event.trials}"
        failed = f", {event.failed} failed" if event.failed else ""
        state = f"{trials}{failed}  {best_text(event)}  {event.phase}  {clock_text(event.eta_s)} left"
        self._progress.update(self._task, completed=min(share, 1.0), state=state, refresh=True)
