"""Declarations of a block's arrays in shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autosched.codegen.c.words import Words

VECTOR_BYTES = 16  # that an access moves at most, and to which shared arrays are aligned


@dataclass(frozen=True)
class SharedArray:
    """`places` arrays of `count` elements; `before`: bytes of what is declared earlier.

    Several are an array of arrays: nvcc knows how those are aligned, and loads vectors from them, but it does not see
    that k % 3 * 2048 + 4 * i is a multiple of 4.
    """

    type: str
    name: str
    places: int
    count: int
    before: int
    itemsize: int

    @property
    def start(self) -> int:
        return -(-self.before // VECTOR_BYTES) * VECTOR_BYTES

    @property
    def end(self) -> int:
        return self.start + self.places * self.count * self.itemsize

    @property
    def declaration(self) -> str:
        outer = f"[{self.places}]" if self.places > 1 else ""
        return f"{self.type} {self.name}{outer}[{self.count}];"

    def part_of(self, memory: str) -> str:
        """A pointer to the array's place in `memory`."""
        row = f"[{self.count}]" if self.places > 1 else ""
        name, kind = (f"(* const {self.name})", "(*)") if row else (f"* const {self.name}", "*")
        gap = " " * bool(row)
        return f"{self.type}{gap}{name}{row} = ({self.type}{gap}{kind}{row})({memory} + {self.start});"


def total_bytes(arrays: Sequence[SharedArray]) -> int:
    return arrays[-1].end if arrays else 0


def declarations(arrays: Sequence[SharedArray], words: Words, memory: str) -> list[str]:
    """The arrays one by one, or as parts of all shared memory, called `memory`, where they are too large."""
    if not words.all_shared or total_bytes(arrays) <= words.static_shared_bytes:
        return [words.shared + x.declaration for x in arrays]
    return [f"{words.all_shared}unsigned char {memory}[];", *(x.part_of(memory) for x in arrays)]
