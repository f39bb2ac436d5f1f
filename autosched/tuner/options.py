"""What a user asks for: a workload's numbers and a device. The keywords that `tune`, `compile` and `best` share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypedDict

from autosched.errors import UsageError
from autosched.ir.instructions.precision import EXACT, PRECISIONS
from autosched.ir.symbolic import type_name

Setting: TypeAlias = "int | str"


class AskedKeywords(TypedDict, total=False):
    """The fields of `Asked` as keywords, for type checkers and editors."""

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
class Asked:
    """What makes a kernel of a workload; each default is stated here and nowhere else.

    `shape` fills the workload's numbers in order, `settings` any argument by name. `batch` replaces the first number,
    or multiplies it where that is called M. `dtype` None: the operator's default, or what a function of the user's
    has. `weights` are inputs that never change, `winograd` accepts the larger error of Winograd's transforms,
    `precision` that of float32 multiplied as "tf32" or "3xtf32": each makes another workload, with records of its own.
    `target` None: this processor; `threads` None: all its cores.

    Raises UsageError for what is of another kind.
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
        named = settings is None or (isinstance(settings, Mapping) and all(isinstance(key, str) for key in settings))
        if not named:
            raise UsageError(f'settings are arguments by name, as in settings={{"CO": 128}}, got {settings!r}')
        if isinstance(weights, str) or not isinstance(weights, Iterable | None):
            raise UsageError(f"weights is a list of names of inputs, as in weights=['W'], got {weights!r}")
        if not isinstance(winograd, bool):
            raise UsageError(f"winograd must be True or False, got {winograd!r}")
        if self.precision not in (EXACT, *PRECISIONS):
            raise UsageError(f"precision must be {EXACT}, {' or '.join(PRECISIONS)}, got {self.precision!r}")
        if self.dtype is None:
            return
        dtype = type_name(self.dtype)
        object.__setattr__(self, "dtype", dtype)  # NumPy's and PyTorch's types go by their names from here on
        own = type_name((self.settings or {}).get("dtype", dtype))
        if own != dtype:
            raise UsageError(f"the type of the elements is given twice, as {dtype!r} and in the settings as {own!r}")


NOTHING = Asked()  # but the workload as it is
