"""Declarations of a block's arrays in shared memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from autosched.codegen.c.dialects import Dialect
from autosched.ir.stmt import Buffer
from autosched.ir.storage import element_count, versions_of

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
    alignment: int = VECTOR_BYTES

    @property
    def start(self) -> int:
        return -(-self.before // self.alignment) * self.alignment

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


@dataclass
class SharedMemory:
    """The arrays of a kernel, and by our names for them those in C."""

    arrays: list[SharedArray] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)

    @property
    def n_bytes(self) -> int:
        return self.arrays[-1].end if self.arrays else 0

    def declare(self, buffer: Buffer, kind: str, name: str, alignment: int = VECTOR_BYTES) -> None:
        self.names[buffer.name] = name
        places, one = versions_of(buffer)
        count = max(1, element_count(one))
        self.arrays.append(SharedArray(kind, name, places, count, self.n_bytes, buffer.itemsize, alignment))

    def declarations(self, dialect: Dialect, memory: str) -> list[str]:
        """The arrays one by one, or as parts of all shared memory, called `memory`, where they are too large."""
        alignment = max((x.alignment for x in self.arrays), default=VECTOR_BYTES)
        is_small = self.n_bytes <= dialect.static_shared_bytes and alignment == VECTOR_BYTES
        if not dialect.all_shared or is_small:
            return [dialect.shared + x.declaration for x in self.arrays]
        whole = f"{dialect.all_shared.format(alignment=alignment)}unsigned char {memory}[];"
        return [whole, *(x.part_of(memory) for x in self.arrays)]
