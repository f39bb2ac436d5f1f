"""Signatures of outcomes with the key of this installation, which identify its own measurements.

Records move between machines, and a file that says "verified, 3 us" proves nothing. So every outcome of a worker here
is signed (HMAC-SHA256 over the candidate's identity and the outcome's content) with a key that never leaves the user's
data directory. The key does not belong to a database: an export that is imported again is still verified.

Without a key (the directory cannot be written, or the key file has another size, belongs to another user or can be read
by others) no record counts as verified, and nothing fails.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
import struct
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

from autosched.errors import StoreError
from autosched.runtime.data_files import key_path
from autosched.store.records import FusionDecision, Outcome, canonical_json
from autosched.store.schema import make_directories

KEY_BYTES = 32
PURPOSE = "autosched outcome 1"  # signed with the data, so that a signature cannot be used for another purpose
FUSION_PURPOSE = "autosched fusion decision 1"


def installation_key(*, make: bool = False) -> bytes | None:
    """Return the key, created if it is missing and `make` is true; None if there is none."""
    try:
        path = key_path()
        if make and not os.path.lexists(path):
            _make_key(path)
        return _read_key(path)
    except (OSError, StoreError):
        return None


def signature(key: bytes, identity: str, signed: Outcome | FusionDecision) -> str:
    """Return the signature of an outcome of the candidate `identity`, or of a decision about the fused kernel
    `identity`, without the numbers of attempt and run, which differ between databases.
    """
    words: tuple[object, ...]
    times: tuple[Sequence[float], ...]
    if isinstance(signed, Outcome):
        o = signed
        words = (PURPOSE, identity, o.failure, o.message, o.created)
        times = (() if o.seconds is None else (o.seconds,), o.ci or (), o.samples)
    else:
        words = (FUSION_PURPOSE, identity, signed.target, signed.threads, signed.is_fused, signed.created)
        times = (signed.fused_s, signed.unfused_s)
    text = canonical_json((*words, [len(part) for part in times]))
    numbers = [*chain(*times)]  # as they are: texts of many times would cost the most of a reading
    return hmac.digest(key, text.encode() + struct.pack(f"<{len(numbers)}d", *numbers), "sha256").hex()


def is_signed(key: bytes | None, identity: str, signed: Outcome | FusionDecision) -> bool:
    """Return whether `signed` is of the installation with this key."""
    if key is None or signed.signature is None:
        return False
    return hmac.compare_digest(signature(key, identity, signed).encode(), signed.signature.encode())


def _read_key(path: Path) -> bytes | None:
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    with open(descriptor, "rb") as file:
        facts = os.fstat(descriptor)
        is_mine = stat.S_ISREG(facts.st_mode) and facts.st_uid == os.geteuid() and not facts.st_mode & 0o077
        key = file.read(KEY_BYTES + 1) if is_mine else b""
    return key if len(key) == KEY_BYTES else None


def _make_key(path: Path) -> None:
    """Create the key file atomically, by a temporary file that is linked to its name, so that one of several processes
    succeeds.
    """
    make_directories(path.parent)
    descriptor, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # 0600
    try:
        with open(descriptor, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(descriptor)
        with suppress(FileExistsError):  # another process was first
            os.link(partial, path)
    finally:
        os.unlink(partial)
