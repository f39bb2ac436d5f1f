"""Parts of an array on all processors: NumPy gives up the interpreter's lock while it computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock, Thread
from typing import TypeVar, cast

from autosched.target import usable_cores

Part = TypeVar("Part")


def for_each(work: Callable[[Part], None], parts: Sequence[Part]) -> None:
    """Calls `work` with each of `parts`, in any order and several at a time; raises what one of the calls raises.

    The threads are daemons: a program that is told to end does not wait for them.
    """
    waiting, lock, end = iter(parts), Lock(), object()
    raised: list[BaseException] = []

    def go_on() -> None:
        while not raised:
            with lock:
                part = next(waiting, end)
            if part is end:
                return
            try:
                work(cast("Part", part))
            except BaseException as error:
                raised.append(error)

    threads = [
        Thread(target=go_on, name="autosched-part", daemon=True) for _ in range(min(len(parts), usable_cores()) - 1)
    ]
    for thread in threads:
        thread.start()
    go_on()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]
