"""Options of a workload: its arguments and device, the keywords that `tune`, `compile` and `best` share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypedDict

from autosched.errors import UsageError
from autosched.ir.instructions.precision import EXACT, PRECISIONS
from autosched.ir.symbolic import type_name

Setting: TypeAlias = "int | str"


class WorkloadKeywords(TypedDict, total=False):
    """The fields of `WorkloadOptions` as keywords, for type checkers and editors."""

    shape: Sequence[int] | None
    settings: Mapping[str, Setting] | None
    batch: int | None
    dtype: str | None
    weights: Sequence[str]
    winograd: bool
    precision: str
    target: str | None
    threads: int | None


@dataclass(frozen=True)
class WorkloadOptions:
    """Options of a workload. These are the only definitions of the defaults.

    `shape`: the workload's integer arguments in order. `settings`: arguments by name. `batch` replaces the first
    integer argument, or multiplies it if its name is M. `dtype` None: the default of the operator or function.
    `weights`: inputs that never change. `winograd` accepts the larger error of Winograd's transforms, `precision` that
    of float32 multiplied as "tf32" or "3xtf32". Each of these three makes another workload, with its own records.
    `target` None: this processor. `threads` None: all its cores.

    Raises UsageError for values of other types.
    """

    shape: Sequence[int] | None = None
    settings: Mapping[str, Setting] | None = None
    batch: int | None = None
    dtype: str | None = None
    weights: Sequence[str] = ()
    winograd: bool = False
    precision: str = "float32"
    target: str | None = "cpu"
    threads: int | None = None

    def __post_init__(self) -> None:
        settings: object = self.settings
        weights: object = self.weights
        winograd: object = self.winograd
        is_mapping = settings is None or (
            isinstance(settings, Mapping) and all(isinstance(key, str) for key in settings)
        )
        if not is_mapping:
            raise UsageError(f'settings are arguments by name, as in settings={{"CO": 128}}, got {settings!r}')
        if isinstance(weights, str) or not isinstance(weights, Iterable | None):
            raise UsageError(f"weights is a list of names of inputs, as in weights=['W'], got {weights!r}")
        if not isinstance(winograd, bool):
            raise UsageError(f"winograd must be True or False, got {winograd!r}")
        if self.precision not in (EXACT, *PRECISIONS):
            *names, last = PRECISIONS
            raise UsageError(f"precision must be {', '.join((EXACT, *names))} or {last}, got {self.precision!r}")
        if self.dtype is None:
            return
        dtype = type_name(self.dtype)
        object.__setattr__(self, "dtype", dtype)  # a name, also for types of NumPy and PyTorch
        own = type_name((self.settings or {}).get("dtype", dtype))
        if own != dtype:
            raise UsageError(f"the type of the elements is given twice, as {dtype!r} and in the settings as {own!r}")


NO_OPTIONS = WorkloadOptions()
