"""A network as calls of its kernels: where each finds its arrays, whoever makes the calls."""

from __future__ import annotations

from dataclasses import dataclass

ARGUMENT, ARENA, WEIGHTS = "argument", "arena", "weights"


@dataclass(frozen=True)
class Pointer:
    """Where a kernel finds an array: `offset` bytes into the caller's argument number `at`, or at byte `at` of the
    arena or of the weights."""

    place: str
    at: int
    offset: int = 0


@dataclass(frozen=True)
class KernelCall:
    """A call of the kernel `entry`. `pointers` are its arguments, None for one that it does not look at."""

    entry: str
    pointers: tuple[Pointer | None, ...]
    workspace: Pointer
