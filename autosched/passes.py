"""Passes: one record for a step over an intermediate representation, one runner that verifies, times and dumps it.

Four lists are run, each in the order in which it is written:

    te      `te.rewrites.collapse.PASSES`, over the graph of stages of one kernel
    graph   `graph.passes.PASSES`, over the graph of operators of a network
    device  `planning.device_passes.PASSES`, over that graph, for the device that it is compiled for
    lower   `lower.pipeline.PASSES`, over the concrete loop nest of one candidate

A `watch` is called after each pass; `autosched show ... --as passes` prints what it sees. The environment's
AUTOSCHED_DEBUG has levels, each with what those before it do:

    2   the representation is verified after each pass
    3   the time of each pass goes to stderr
    4   and the representation, where the pass changed it
"""

from __future__ import annotations

import operator
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

IR = TypeVar("IR")  # the representation that a pass transforms
Context = TypeVar("Context")  # further data that a pass reads
Watch = Callable[[str, Any, bool, float], None]  # a pass by name, the result, whether it differs, seconds

VERIFY, TIME, DUMP = 2, 3, 4  # levels of AUTOSCHED_DEBUG


@dataclass(frozen=True)
class Pass(Generic[IR, Context]):
    """One step. `why`: the reason for it, in a sentence. `when`: the contexts in which it runs, all if None."""

    name: str
    run: Callable[[IR, Context], IR]
    why: str
    when: Callable[[Context], bool] | None = None


def of_function(run: Callable[[IR], IR], why: str) -> Pass[IR, Any]:
    """Return the pass of a function that needs no context, under its name."""
    return Pass(run.__name__, lambda value, _: run(value), why)


@dataclass(frozen=True)
class PassPipeline(Generic[IR, Context]):
    """A list of passes over one representation.

    `title`, `text` and `verify` are functions of the representation for watchers: its name, its text, and a check that
    raises if it is not well-formed. `is_same` tells whether a pass has changed nothing.
    """

    name: str
    passes: Sequence[Pass[IR, Context]]
    title: Callable[[Any], str]
    text: Callable[[Any], str]
    verify: Callable[[Any], None]
    is_same: Callable[[Any, Any], bool] = operator.is_

    def run(
        self, value: IR, context: Context, watch: Watch | None = None, shown: Callable[[IR], Any] = lambda value: value
    ) -> IR:
        """Return `value` after all passes. `shown`: the representation for watchers, the function around a body for
        example.
        """
        watchers = self.watchers(watch)
        holds = {when: when is None or when(context) for when in {step.when for step in self.passes}}
        for step in [step for step in self.passes if holds[step.when]]:
            started, before = time.perf_counter(), value
            value = step.run(before, context)
            if watchers:
                seconds = time.perf_counter() - started
                for each in watchers:
                    each(step.name, shown(value), not self.is_same(value, before), seconds)
        return value

    def watchers(self, watch: Watch | None) -> list[Watch]:
        """Return `watch` and the watcher of AUTOSCHED_DEBUG."""
        level = debug_level()
        return [each for each in (watch, self._debug_watch(level) if level >= VERIFY else None) if each is not None]

    def _debug_watch(self, level: int) -> Watch:
        def watch(name: str, value: Any, changed: bool, seconds: float) -> None:
            if level >= TIME:
                print(f"{self.name} {self.title(value)}: {name} {1e3 * seconds:.2f} ms", file=sys.stderr)
            if level >= DUMP and changed:
                print(self.text(value), file=sys.stderr)
            self.verify(value)

        return watch


def debug_level() -> int:
    """Return AUTOSCHED_DEBUG as a number: 0 if it is not set, 1 if it is not a number."""
    text = os.environ.get("AUTOSCHED_DEBUG", "")
    return int(text) if text.isdecimal() else int(bool(text))


def report(parts: list[str], text: Callable[[Any], str]) -> Watch:
    """Return a watcher that adds to `parts` the text after each pass, or the name alone if the pass changed nothing."""

    def watch(name: str, value: Any, changed: bool, seconds: float) -> None:
        headline = f"== {name}, {1e3 * seconds:.1f} ms"
        parts.append(f"{headline}\n{text(value)}" if changed else f"{headline}: no change")

    return watch
