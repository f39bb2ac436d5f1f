"""Vector types in C text: several elements that move at once, as vectors or as words of 32 bits.

    float4 v;   v.y                                          uint4 v;   (unsigned short)(v.x >> 16)

CUDA has no vectors of 8 numbers of 16 bits, nor of 16 bytes; OpenCL has, ushort8 and char16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autosched.codegen.c.expressions import Expressions
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Expr
from autosched.lower.passes.overlap_iterations import WORD_BYTES

MOST_BYTES = 16
PARTS = "xyzw"


def lanes_together(dtype: str) -> tuple[int, ...]:
    """Return the number of elements that one access may move: at least 2 and a word, up to 16 bytes."""
    size = DTYPES[dtype].nbytes
    return tuple(n for n in (2, 4, 8, 16) if WORD_BYTES <= n * size <= MOST_BYTES)


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
        """Elements in a word; 0 where vectors are made of elements."""
        return WORD_BYTES // DTYPES[self.dtype].nbytes if self.c.dialect.packs_small_ones and self._is_small else 0

    @property
    def _is_small(self) -> bool:
        return DTYPES[self.dtype].nbytes < WORD_BYTES

    @property
    def type(self) -> str:
        if not self._per_word:
            return f"{self.c.memory_type(self.dtype).replace(' ', '')}{self.count}"
        words = self.count // self._per_word
        return f"uint{words}" if words > 1 else "unsigned"

    def lane(self, vector: str, n: int) -> str:
        """Element n of a variable."""
        if not self._per_word:
            return f"{vector}.{PARTS[n]}" if self.count <= len(PARTS) else f"{vector}.s{n:x}"
        word, place = divmod(n, self._per_word)
        name = vector if self.count == self._per_word else f"{vector}.{PARTS[word]}"
        shift = f"({name} >> {place * self._bits})" if place else name
        return f"(({self.c.memory_type(self.dtype)}){shift})"

    def of(self, values: Sequence[Expr]) -> list[str]:
        """The vector's parts with these values: elements or words."""
        if not self._per_word:
            return [self.c.text(v) for v in values]
        return [self.c.word(values[n : n + self._per_word]) for n in range(0, self.count, self._per_word)]

    def vector(self, parts: Sequence[str], separator: str = ", ") -> str:
        """The vector of these parts."""
        if self.type == "unsigned":
            return parts[0]
        return self.c.dialect.vector_of.format(type=self.type, elements=separator.join(parts))

    @property
    def zeros(self) -> str:
        parts = self.count // self._per_word if self._per_word else self.count
        zero = "0" if self._per_word else self.c.literal(0, self.dtype)
        return self.vector([zero] * parts)

    @property
    def _bits(self) -> int:
        return DTYPES[self.dtype].bits
