"""How a network is compiled: the options that loading, planning, tuning and the torch backend share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from autosched.errors import UsageError

NOW, BACKGROUND, NEVER = "now", "background", "never"
SPECIALISE = (NOW, BACKGROUND, NEVER)


class CompileKeywords(TypedDict, total=False):
    """The fields of `CompileOptions` as keywords, for type checkers and editors."""

    target: str | None
    threads: int | None
    db: Path | str | None
    records: bool
    simulate: bool
    winograd: bool
    specialise: str
    strict: bool


@dataclass(frozen=True)
class CompileOptions:
    """Options of compiling a network. These are the only definitions of the defaults.

    Attributes:
        target: "cpu", "cuda", "opencl", "llvm -mcpu=haswell" or "cuda -arch=sm_80"; None: this processor.
        threads: threads of a processor; None: all its cores.
        db: database file of the records; None: the user's.
        records: whether records are used; without them the analytic model chooses the schedules.
        simulate: execute kernels for CUDA on the processor.
        winograd: accept the larger error of Winograd's convolutions where they are faster.
        specialise: how kernels for processors without a record get a schedule. "now": the analytic model chooses one
            for each. "never": they take known ones of the nearest sizes, of the shipped table for example; for all
            that differ in sizes alone and have none it chooses one. "background": the same, and each gets its own while
            the network is in use. Of a network with dynamic shapes: which sizes have a program of their own, all at
            their first call, none, or those that are called often.
        strict: refuse an ONNX model with nodes that would run by another engine.

    Raises UsageError for a value of another type, or an unknown word.
    """

    target: str | None = "cpu"
    threads: int | None = None
    db: Path | str | None = None
    records: bool = True
    simulate: bool = False
    winograd: bool = False
    specialise: str = BACKGROUND
    strict: bool = False

    def __post_init__(self) -> None:
        for name in ("records", "simulate", "winograd", "strict"):
            if not isinstance(value := getattr(self, name), bool):
                raise UsageError(f"{name} must be True or False, got {value!r}")
        if self.specialise not in SPECIALISE:
            raise UsageError(f"specialise is {' or '.join(SPECIALISE)}, got {self.specialise!r}")
        target: object = self.target
        if target is not None and not isinstance(target, str):
            raise UsageError(f"target is a word such as 'cpu' or 'cuda -arch=sm_80', got {target!r}")


DEFAULTS = CompileOptions()
