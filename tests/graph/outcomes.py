"""What comes of the cases of another project's tests, run in processes that may end."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, TypeVar

C = TypeVar("C")
CONTEXT = multiprocessing.get_context("fork")  # cases may take long to make: they are handed on as they are


@dataclass(frozen=True)
class Outcome:
    """`kind`: passed, wrong (computed, but something else), refused (an error that says why), or crashed."""

    kind: str
    why: str = ""


def in_processes(
    cases: Sequence[C], run: Callable[[C], Outcome], limit_s: float, prepare: Callable[[], Any] = lambda: None
) -> Iterator[tuple[C, Outcome]]:
    """Of each case what `run` finds, in a process that is replaced where a case ends it or takes more than `limit_s`.
    `prepare` runs once in each."""
    done = 0
    while done < len(cases):
        receiver, sender = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(target=_send, args=(cases[done:], run, prepare, sender))
        process.start()
        sender.close()
        for case in cases[done:]:
            done += 1
            try:
                late = not receiver.poll(limit_s)
                yield case, Outcome("crashed", f"no result in {limit_s} s") if late else receiver.recv()
            except EOFError:
                late = True
                yield case, Outcome("crashed", "it ends the process")
            if late:
                break
        process.kill()
        process.join()


def _send(cases: Sequence[C], run: Callable[[C], Outcome], prepare: Callable[[], Any], sender: Connection) -> None:
    prepare()
    for case in cases:
        sender.send(found(case, run))


def found(case: C, run: Callable[[C], Outcome]) -> Outcome:
    """What comes of a case; an exception is an outcome too."""
    try:
        return run(case)
    except Exception as error:
        return Outcome("crashed", f"{type(error).__name__}: {error}".partition("\n")[0])
