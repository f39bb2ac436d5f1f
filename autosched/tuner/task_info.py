"""Description of a task in the user's terms, the common fields of tasks, events and results."""

from __future__ import annotations

from dataclasses import dataclass

from autosched.ir.instructions.precision import EXACT


@dataclass(frozen=True)
class TaskInfo:
    """A workload with its arguments, on a target (as the user wrote it) with its threads.

    `flops`: operations of a call, 2 for a multiply-add; with `winograd` those of the direct form. `weights`: inputs
    that are packed ahead of time, which is not part of times and rates. `winograd`: its error is accepted, as is that
    of `precision`, one of PRECISIONS, in products.
    """

    workload: str
    shape: tuple[int, ...]
    dtype: str
    target: str
    threads: int
    flops: int
    weights: tuple[str, ...] = ()
    winograd: bool = False
    precision: str = EXACT
