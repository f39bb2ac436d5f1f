"""Kernel calls of a network: for each call, where the kernel finds its arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace

ARGUMENT, ARENA, WEIGHTS, ADDRESS = "argument", "arena", "weights", "address"
OUT_OF_RANGE = 34  # what a network returns where an index of its data is out of range: ERANGE, which no kernel returns
REPORT_BYTES = 16  # of the arena, which then begins with the number of the bounds check and the index, both int64


@dataclass(frozen=True)
class Pointer:
    """Where a kernel finds an array: `offset` bytes into the caller's argument number `at`, at byte `at` of the arena
    or of the weights, or at the address `at`."""

    place: str
    at: int
    offset: int = 0

    def moved(self, nbytes: int) -> Pointer:
        """Return the pointer `nbytes` further on."""
        if self.place == ARGUMENT:
            return replace(self, offset=self.offset + nbytes)
        return replace(self, at=self.at + nbytes)


@dataclass(frozen=True)
class KernelCall:
    """A call of the kernel `entry`. `pointers` are its arguments, None for one that it does not look at. `address`: of
    its code, where the linker does not find it."""

    entry: str
    pointers: tuple[Pointer | None, ...]
    workspace: Pointer
    address: int | None = None


@dataclass(frozen=True)
class RowWrite:
    """Rows of `nbytes`, copied to their places along an axis. An index is an integer of `index_bytes`; one from -1
    downwards counts from the end, and one beyond is passed over.

    `shape`: how many times its places there are before the axis, its places, and the rows for each of these times.
    `sharing`: how many of these times, one after the other, have the same places.
    """

    to: Pointer
    at: Pointer
    rows: Pointer
    shape: tuple[int, int, int]
    sharing: int
    nbytes: int
    index_bytes: int


@dataclass(frozen=True)
class BoundsCheck:
    """A check of `count` integers of the type `dtype`, `stride` elements apart from `ids` on. Where one is not in `low`
    to `high`, the network ends with OUT_OF_RANGE, and its arena begins with `number` and that integer."""

    number: int
    ids: Pointer
    dtype: str
    count: int
    stride: int
    low: int
    high: int


@dataclass(frozen=True)
class LoopArgument:
    """Where the body of a loop finds an array in iteration i: at `pointer`, in odd iterations at `odd` if that is
    given, i times `stride` bytes further on.

    With `first`, it is there in iteration 0, and then where these say for iteration i - 1. Pointers to arguments and to
    the arena are those of the loop.
    """

    pointer: Pointer
    stride: int = 0
    odd: Pointer | None = None
    first: Pointer | None = None

    def at(self, step: int) -> Pointer:
        """Return where the array is in an iteration."""
        if self.first is not None:
            return replace(self, first=None).at(step - 1) if step else self.first
        pointer = self.odd if self.odd is not None and step % 2 else self.pointer
        return pointer.moved(step * self.stride)


@dataclass(frozen=True)
class ArgumentCopy:
    """`nbytes` of the caller's argument number `source` are copied to the one at `to`, unless they are one array."""

    source: int
    to: int
    nbytes: int
