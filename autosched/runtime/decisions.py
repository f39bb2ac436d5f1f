"""Decisions that take long, kept in the disk cache, so that the next load of a network finds them."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from autosched.errors import UsageError
from autosched.runtime.disk_cache import key_of, read, write
from autosched.runtime.versions import code_version


def decided_once(what: str, depends: object, decide: Callable[[], Any]) -> Any:
    """Return what `decide` returns, JSON data that follow from `depends`, JSON data too, and from autosched's code.

    It is called if the cache lacks the result, which is then kept.
    """
    key = key_of(what, json.dumps(depends), *code_version())
    if (entry := read(key)) is not None:
        return entry[0]["decision"]
    decision = json.loads(json.dumps(decide()))
    with suppress(UsageError):  # a complete cache may be on a file system that cannot be written
        write(key, {"decision": decision}, b"")
    return decision
