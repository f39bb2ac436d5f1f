"""What is tuned, as its user named it: a task has it, and what a session tells and leaves behind begins with it."""

from __future__ import annotations

from dataclasses import dataclass

from autosched.ir.instructions.precision import EXACT


@dataclass(frozen=True)
class Subject:
    """A workload with its numbers, on a target with its threads. `target` is the text that named it.

    `flops` are those of one call (2 for a multiply-add), with `winograd` too those of the direct form. `weights` are
    inputs that are prepared ahead: times and rates are those of the rest. `winograd`: its error is accepted,
    as is that of `precision`, one of PRECISIONS, in products of float32.
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
