"""What a user asks for: a workload's numbers and a device. The keywords that `tune`, `compile` and `best` share."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias, TypedDict, TypeVar, cast

from autosched.errors import UsageError
from autosched.ir.instructions.precision import EXACT, PRECISIONS
from autosched.ir.symbolic import type_name

Setting: TypeAlias = "int | str"
F = TypeVar("F", bound=Callable[..., Any])


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


def asks(function: F) -> F:
    """Of a function that takes a workload and `**asked`: its signature spells out the fields of `Asked`, and a keyword
    that it does not take is refused in one sentence."""
    first, *own, _ = inspect.signature(function).parameters.values()
    kind = inspect.Parameter.KEYWORD_ONLY
    asked = [inspect.Parameter(f.name, kind, default=f.default, annotation=f.type) for f in fields(Asked)]
    names = [p.name for p in (first, *asked, *own)]

    @functools.wraps(function)
    def checked(*given: Any, **keywords: Any) -> Any:
        unknown = next((name for name in keywords if name not in names), None)
        if unknown is not None:
            near = difflib.get_close_matches(unknown.lower(), names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(names)}"
            raise UsageError(f"{function.__name__} has no keyword {unknown!r}; {hint}")
        return function(*given, **keywords)

    signature = inspect.signature(function).replace(parameters=[first, *asked, *own])
    checked.__signature__ = signature  # type: ignore[attr-defined]
    return cast("F", checked)
