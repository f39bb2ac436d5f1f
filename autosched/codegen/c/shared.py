"""Declarations of a block's arrays in shared memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from autosched.codegen.c.dialects import Dialect
from autosched.ir.stmt import Buffer
from autosched.ir.storage import element_count, versions_of

VECTOR_BYTES = 16  # of the widest access, and alignment of shared arrays


@dataclass(frozen=True)
class SharedArray:
    """An array of `n_stages` times `count` elements; `bytes_before`: size of the arrays declared before it.

    Several stages are an array of arrays. nvcc knows the alignment of its rows and loads vectors from them, whereas it
    does not see that k % 3 * 2048 + 4 * i is a multiple of 4.
    """

    type: str
    name: str
    n_stages: int
    count: int
    bytes_before: int
    itemsize: int
    alignment: int = VECTOR_BYTES

    @property
    def start(self) -> int:
        return -(-self.bytes_before // self.alignment) * self.alignment

    @property
    def end(self) -> int:
        return self.start + self.n_stages * self.count * self.itemsize

    @property
    def declaration(self) -> str:
        outer = f"[{self.n_stages}]" if self.n_stages > 1 else ""
        return f"{self.type} {self.name}{outer}[{self.count}];"

    def pointer_into(self, memory: str) -> str:
        """Return the declaration of the array as a pointer into `memory`, a C array of bytes."""
        row = f"[{self.count}]" if self.n_stages > 1 else ""
        name, kind = (f"(* const {self.name})", "(*)") if row else (f"* const {self.name}", "*")
        gap = " " * bool(row)
        return f"{self.type}{gap}{name}{row} = ({self.type}{gap}{kind}{row})({memory} + {self.start});"


@dataclass
class SharedMemory:
    """The shared arrays of a kernel; `names`: their C names by buffer."""

    arrays: list[SharedArray] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)

    @property
    def n_bytes(self) -> int:
        return self.arrays[-1].end if self.arrays else 0

    def declare(self, buffer: Buffer, c_type: str, name: str, alignment: int = VECTOR_BYTES) -> None:
        self.names[buffer.name] = name
        n_stages, one_stage = versions_of(buffer)
        count = max(1, int(element_count(one_stage)))
        self.arrays.append(SharedArray(c_type, name, n_stages, count, self.n_bytes, buffer.itemsize, alignment))

    def declarations(self, dialect: Dialect, memory: str) -> list[str]:
        """Return the declarations of the arrays. Arrays that exceed the static limit of the dialect are pointers into
        one array with dynamic size, named `memory`."""
        alignment = max((x.alignment for x in self.arrays), default=VECTOR_BYTES)
        is_small = self.n_bytes <= dialect.static_shared_bytes and alignment == VECTOR_BYTES
        if not dialect.all_shared or is_small:
            return [dialect.shared + x.declaration for x in self.arrays]
        whole = f"{dialect.all_shared.format(alignment=alignment)}unsigned char {memory}[];"
        return [whole, *(x.pointer_into(memory) for x in self.arrays)]
