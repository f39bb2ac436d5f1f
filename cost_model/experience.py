"""Training data of the ranker: measured programs of one task, or of a network's tasks on one target.

A task's ranker is fitted on its own programs and on the newest of the others'. After 8 to 16 of its own, 1,000 programs
of other workloads bring the share of pairs that are ordered rightly from 0.74 and 0.78 to 0.80, after 32 next to
nothing (24 workloads of the committed programs, each without all programs of its operator at its shape).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cost_model.ranker import Groups, Reals, Rows

OTHERS = 800  # programs of other tasks at most: a fit takes a third of a millisecond for each

Row: TypeAlias = npt.NDArray[np.float32]


class Experience:
    """Features and seconds of measured programs, by the number of their task."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._seconds: list[float] = []
        self._tasks: list[int] = []
        self._n_tasks = 0

    def new_task(self) -> int:
        """The number of a task that begins."""
        self._n_tasks += 1
        return self._n_tasks - 1

    def add(self, task: int, rows: Sequence[Row], seconds: Sequence[float]) -> None:
        """Programs that were measured; seconds are inf for failures."""
        self._rows += rows
        self._seconds += seconds
        self._tasks += [task] * len(rows)

    def count(self, task: int) -> int:
        """Programs of a task."""
        return self._tasks.count(task)

    def has_time(self, task: int) -> bool:
        """Whether one of a task's programs did not fail."""
        return any(np.isfinite(s) for s, t in zip(self._seconds, self._tasks, strict=True) if t == task)

    def known_to(self, task: int) -> tuple[Rows, Reals, Groups]:
        """Features `[n, F]`, seconds and tasks of what the ranker of a task is fitted on."""
        groups = np.array(self._tasks)
        others = np.flatnonzero(groups != task)[-OTHERS:]
        chosen = np.sort(np.concatenate([np.flatnonzero(groups == task), others]))
        rows: npt.NDArray[Any] = np.stack([self._rows[n] for n in chosen])
        return rows, np.array(self._seconds)[chosen], groups[chosen]
