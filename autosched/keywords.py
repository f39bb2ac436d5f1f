"""Keywords of public functions: signatures that `help()` shows in full, one sentence for a keyword that is unknown."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, TypeVar, cast

from autosched.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])


def spelled_out(record: Any = None) -> Callable[[F], F]:
    """Decorate a public function: an unknown keyword raises UsageError with the nearest known one.

    `record`: the frozen dataclass whose fields the function takes as `**keywords`; its signature has them, with their
    defaults, behind the first parameter.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        kind = inspect.Parameter.KEYWORD_ONLY
        given = () if record is None else fields(record)
        named = [inspect.Parameter(f.name, kind, default=f.default, annotation=f.type) for f in given]
        positional = [p for p in own if p.kind is not kind]
        parameters = [*positional, *named, *(p for p in own if p.kind is kind)]
        names = [p.name for p in parameters]

        @functools.wraps(function)
        def checked(*arguments: Any, **keywords: Any) -> Any:
            refuse_unknown(function.__name__, keywords, names)
            return function(*arguments, **keywords)

        checked.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return cast("F", checked)

    return decorate


def refuse_unknown(subject: str, given: Any, known: Sequence[str], word: str = "keyword") -> None:
    """Raise UsageError for the first name of `given` that is not `known`, with the nearest one that is."""
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        near = difflib.get_close_matches(str(unknown).lower(), known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(known)}"
        raise UsageError(f"{subject} has no {word} {unknown!r}; {hint}")
