"""Import rules: ATen operators as nodes of our operators, one function each, by the name that torch prints.

    @rule("aten.mm.default", "aten.bmm.default")
    def matmul(b: Builder, x: Value, y: Value) -> Value: ...

A rule takes the arguments of the ATen operator, in their order and by its names, with values where torch has tensors,
and makes nodes by the builder. It returns the result, or a tuple of results with None for one that it cannot make. It
raises GraphError for arguments that it does not take.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
_FAMILIES = (
    *("arithmetic", "functions", "shapes", "indices", "reductions", "products", "normalization", "windows"),
    *("gradients", "regions", "creation", "recurrent"),
)
_TABLE: dict[str, Callable[..., Any]] = {}


def rule(*overloads: str) -> Callable[[F], F]:
    """Decorator: the function is the rule of these ATen operators."""

    def enter(function: F) -> F:
        for overload in overloads:
            assert overload not in _TABLE, f"there are two rules for {overload}"
            _TABLE[overload] = function
        return function

    return enter


def enter_all(rules: Mapping[str, Callable[..., Any]]) -> None:
    """Rules that a loop made, by the overloads they are for."""
    for overload, function in rules.items():
        rule(overload)(function)


@cache
def rules() -> Mapping[str, Callable[..., Any]]:
    """All rules by the overload's name."""
    for family in _FAMILIES:
        importlib.import_module(f"{__name__}.{family}")
    return _TABLE
