"""Interning (hash consing): equal nodes are one object while it is referenced, so equality is identity."""

from __future__ import annotations

import weakref
from typing import Any, TypeVar

N = TypeVar("N")

TABLE: weakref.WeakValueDictionary[tuple[Any, ...], Any] = weakref.WeakValueDictionary()
# Its dictionary of references: nearly every node that is asked for is there, and the table's own `get` is Python.
KNOWN: dict[tuple[Any, ...], weakref.ref[Any]] = TABLE.data  # type: ignore[attr-defined]


def interned(cls: type[N], key: tuple[Any, ...], fields: tuple[Any, ...]) -> N:
    """Return the object interned by `key`; if there is none, a new one of the dataclass `cls` with these fields."""
    known = KNOWN.get(key)
    node: N | None = None if known is None else known()
    if node is None:
        node = object.__new__(cls)
        node.__dict__.update(zip(cls.__match_args__, fields, strict=True))  # type: ignore[attr-defined]
        TABLE[key] = node
    return node
