"""How a network is compiled: the options that loading, planning, tuning and the torch backend share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from autosched.errors import UsageError


class CompileKeywords(TypedDict, total=False):
    """The fields of `CompileOptions` as keywords, for type checkers and editors."""

    target: str | None
    threads: int | None
    db: Path | str | None
    records: bool
    simulate: bool
    winograd: bool


@dataclass(frozen=True)
class CompileOptions:
    """How a network is compiled; each default is stated here and nowhere else.

    `target`: "cpu", "cuda", "opencl", "llvm -mcpu=haswell" or "cuda -arch=sm_80"; None is this processor. `threads` of
    a processor: all cores where it is None. `db`: the database of records, the user's where it is None; `records` False
    leaves it out. `simulate` executes the kernels for CUDA on the processor. `winograd` accepts the larger error of
    Winograd's convolutions where they are faster.

    Raises UsageError for a value of another type.
    """

    target: str | None = "cpu"
    threads: int | None = None
    db: Path | str | None = None
    records: bool = True
    simulate: bool = False
    winograd: bool = False

    def __post_init__(self) -> None:
        for name in ("records", "simulate", "winograd"):
            if not isinstance(value := getattr(self, name), bool):
                raise UsageError(f"{name} must be True or False, got {value!r}")
        target: object = self.target
        if target is not None and not isinstance(target, str):
            raise UsageError(f"target is a word such as 'cpu' or 'cuda -arch=sm_80', got {target!r}")


DEFAULTS = CompileOptions()
