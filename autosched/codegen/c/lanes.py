"""Vector types in C text: elements that one access moves, as vectors or packed in words of 32 bits.

    float4 v;   v.y                                          uint4 v;   (unsigned short)(v.x >> 16)

CUDA lacks vectors of 8 numbers of 16 bits and of 16 bytes; OpenCL has them, ushort8 and char16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autosched.codegen.c.expressions import Expressions
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Expr
from autosched.lower.passes.overlap_iterations import WORD_BYTES

MAX_BYTES = 16
COMPONENTS = "xyzw"


def vector_widths(dtype: str) -> tuple[int, ...]:
    """Return the vector widths of the dtype in elements: at least 2 and 4 bytes, at most 16 bytes."""
    size = DTYPES[dtype].nbytes
    return tuple(n for n in (2, 4, 8, 16) if WORD_BYTES <= n * size <= MAX_BYTES)


@dataclass(frozen=True)
class Lanes:
    """A vector of `count` elements of `dtype` in the language of `c`."""

    c: Expressions
    dtype: str
    count: int

    @property
    def nbytes(self) -> int:
        return self.count * DTYPES[self.dtype].nbytes

    @property
    def _per_word(self) -> int:
        """Elements packed in a word; 0 for a vector of elements."""
        return WORD_BYTES // DTYPES[self.dtype].nbytes if self.c.dialect.packs_small_types and self._is_small else 0

    @property
    def _is_small(self) -> bool:
        return DTYPES[self.dtype].nbytes < WORD_BYTES

    @property
    def type(self) -> str:
        if not self._per_word:
            return f"{self.c.memory_type(self.dtype).replace('unsigned ', 'u').replace(' ', '')}{self.count}"
        words = self.count // self._per_word
        return f"uint{words}" if words > 1 else "unsigned"

    def lane(self, vector: str, n: int) -> str:
        """Return element n of the C variable `vector`."""
        if not self._per_word:
            return f"{vector}.{COMPONENTS[n]}" if self.count <= len(COMPONENTS) else f"{vector}.s{n:x}"
        word, position = divmod(n, self._per_word)
        name = vector if self.count == self._per_word else f"{vector}.{COMPONENTS[word]}"
        shift = f"({name} >> {position * self._bits})" if position else name
        return f"(({self.c.memory_type(self.dtype)}){shift})"

    def components_of(self, values: Sequence[Expr]) -> list[str]:
        """Return the components of a vector of `values`: elements or packed words."""
        if not self._per_word:
            return [self.c.text(v) for v in values]
        return [self.c.word(values[n : n + self._per_word]) for n in range(0, self.count, self._per_word)]

    def vector(self, components: Sequence[str], separator: str = ", ") -> str:
        """Return the vector of these components."""
        if self.type == "unsigned":
            return components[0]
        return self.c.dialect.vector_of.format(type=self.type, elements=separator.join(components))

    @property
    def zeros(self) -> str:
        n_components = self.count // self._per_word if self._per_word else self.count
        zero = "0" if self._per_word else self.c.literal(0, self.dtype)
        return self.vector([zero] * n_components)

    @property
    def _bits(self) -> int:
        return DTYPES[self.dtype].bits
