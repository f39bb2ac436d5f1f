"""Background jobs: one thread runs one job at a time, because processes would disturb each other's measurements."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from functools import cache
from typing import TypeAlias

Job: TypeAlias = Callable[[], None]


def enqueue(job: Job) -> None:
    """Run a job, which must not raise, after those that were enqueued before."""
    _jobs().put(job)


@cache
def _jobs() -> queue.SimpleQueue[Job]:
    jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()

    def work() -> None:
        while True:
            jobs.get()()

    threading.Thread(target=work, name="autosched-background", daemon=True).start()
    return jobs
