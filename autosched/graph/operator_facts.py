"""Facts about operators that follow from their expressions, kept in memory and in the disk cache.

The layers of a network are often equal, and a network is loaded many times: each fact is derived once for an operator,
the types of its operands and its attributes. To make and check the expressions took half of a load from the cache.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any, Generic, TypeAlias, TypeVar

from autosched.errors import UsageError
from autosched.graph.graph import Attribute, Shape
from autosched.ir.size import has_size
from autosched.runtime.disk_cache import key_of, read, write
from autosched.runtime.versions import code_version

R = TypeVar("R")
OperandTypes: TypeAlias = tuple[tuple[Shape, str] | None, ...]  # shape and type; None for an operand that is left out
Attributes: TypeAlias = tuple[tuple[str, Attribute], ...]
Derivation: TypeAlias = Callable[[str, OperandTypes, Attributes, int], R]

MAX_KEPT = 1 << 14  # entries of a file; with more, only those that this process used are kept
MAX_TRACED = 1024  # facts of each kind about sizes that are symbols, the last used ones
_FACTS: list[OperatorFact[Any]] = []


class OperatorFact(Generic[R]):
    """A fact about an operator as a function of its name, operands' types, attributes and number of results.

    `derive` computes it; `to_json` and `from_json` convert it to JSON data and back.
    """

    def __init__(self, derive: Derivation[R], to_json: Callable[[R], Any], from_json: Callable[[Any], R]) -> None:
        self._derive, self._to_json, self._from_json = derive, to_json, from_json
        self._known: dict[tuple[object, ...], R] = {}
        self._used: dict[str, Any] = {}  # as JSON data
        self._stored: dict[str, Any] | None = None
        self._has_new = False
        self._of_trace = lru_cache(MAX_TRACED)(derive)
        _FACTS.append(self)

    def __call__(self, operator: str, operands: OperandTypes, attributes: Attributes, n_outputs: int) -> R:
        key = operator, operands, attributes, n_outputs
        if has_size((operands, attributes)):  # a fact about a trace
            return self._of_trace(*key)
        if key not in self._known:
            self._known[key] = self._look_up(json.dumps(key), *key)
        return self._known[key]

    def save(self) -> None:
        """Write the facts to the disk cache if there are new ones."""
        if self._has_new:
            entries = {**(self._stored or {}), **self._used}
            with suppress(UsageError):  # a complete cache may be on a file system that cannot be written
                write(self._key, {"entries": entries if len(entries) <= MAX_KEPT else self._used}, b"")
            self._has_new = False

    @property
    def _key(self) -> str:
        return key_of("facts about operators", self._derive.__qualname__, *code_version())

    def _look_up(self, text: str, *key: Any) -> R:
        if self._stored is None:
            entry = read(self._key)
            self._stored = {} if entry is None else entry[0]["entries"]
        stored = self._stored.get(text)
        fact = self._derive(*key) if stored is None else self._from_json(stored)
        self._used[text] = self._to_json(fact) if stored is None else stored
        self._has_new |= stored is None
        return fact


def operator_fact(
    to_json: Callable[[R], Any], from_json: Callable[[Any], R]
) -> Callable[[Derivation[R]], OperatorFact[R]]:
    """Make an `OperatorFact` of the decorated function, which derives it."""
    return lambda derive: OperatorFact(derive, to_json, from_json)


def save_facts() -> None:
    """Write all new facts to the disk cache."""
    for fact in _FACTS:
        fact.save()
