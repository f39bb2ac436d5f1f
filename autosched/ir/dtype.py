"""Element types: the table DTYPES, and properties that follow from a row of it.

Expressions, buffers and records carry a dtype's name, which is NumPy's or ml_dtypes'; DTYPES tells what it is. Some
floats are only stored: an element that is read becomes a number of the wider dtype `computes_in` before anything is
done with it, and a result becomes one of the narrow dtype by a cast, which rounds once, to even. float16 is IEEE 754
binary16, bfloat16 the upper half of a binary32, float8_e5m2 that of a binary16; float8_e4m3fn has no infinities. NumPy
has only the first one; the others are ml_dtypes' (JAX's), which is imported when it is first needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from autosched.errors import ExpressionError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True)
class Dtype:
    """One type of elements. A float has a sign bit, exponent bits and, in the rest, the fraction of its mantissa."""

    name: str
    kind: str  # as NumPy's kinds: f(loat), i(nt), u(nsigned), b(ool)
    bits: int  # in memory
    exponent_bits: int = 0
    wider: str | None = None  # the dtype that is computed in, where numbers are only stored in this one
    has_infinity: bool = True  # of a float; else the highest exponent is one of numbers, but for a NaN of all ones
    in_ml_dtypes: bool = False  # the type for arrays, which NumPy lacks
    dlpack_code: int | None = None  # DLDataTypeCode, where NumPy's kind does not tell it

    @cached_property
    def nbytes(self) -> int:
        return self.bits // 8

    @cached_property
    def is_float(self) -> bool:
        return self.kind == "f"

    @cached_property
    def is_integer(self) -> bool:
        return self.kind in "iu"

    @cached_property
    def is_stored_only(self) -> bool:
        """Whether the dtype is only stored, without arithmetic."""
        return self.wider is not None

    @cached_property
    def computes_in(self) -> str:
        """The dtype of arithmetic on its numbers."""
        return self.name if self.wider is None else self.wider

    @property
    def accumulates_in(self) -> str:
        """The dtype of sums and products of its numbers: those of narrow integers would overflow at once."""
        return "int32" if self.bits < 32 and not self.is_float else self.computes_in

    @property
    def abbreviation(self) -> str:
        """f64, bf16, i8, u8: a number's suffix in printed code."""
        return self.name.replace("uint", "u").replace("int", "i").replace("float", "f")

    @cached_property
    def integer_range(self) -> tuple[int, int]:
        """Smallest and largest value of an integer dtype."""
        half = 1 << (self.bits - 1)
        return (0, 2 * half - 1) if self.kind == "u" else (-half, half - 1)

    @cached_property
    def fraction_bits(self) -> int:
        return self.bits - 1 - self.exponent_bits

    @cached_property
    def unit_roundoff(self) -> float:
        """The most that rounding to nearest changes a normal number by, relatively."""
        return float(2.0 ** -(self.fraction_bits + 1))

    @cached_property
    def smallest_normal(self) -> float:
        return float(2.0 ** (2 - (1 << (self.exponent_bits - 1))))

    @cached_property
    def smallest_subnormal(self) -> float:
        return self.smallest_normal * float(2.0**-self.fraction_bits)

    @cached_property
    def largest(self) -> float:
        """The largest finite number."""
        top, last = (1 << (self.exponent_bits - 1)) - 1, float(2.0**-self.fraction_bits)
        return (2.0 - last) * 2.0**top if self.has_infinity else (2.0 - 2.0 * last) * 2.0 ** (top + 1)

    @cached_property
    def largest_exact_integer(self) -> float:
        """All integers up to this size are numbers of a float dtype."""
        return float(2.0 ** (self.fraction_bits + 1))

    @cached_property
    def flushes(self) -> bool:
        """Whether a processor may take its subnormal numbers for zero: those that are subnormal where they are computed
        with as well. float16's are normal numbers of float32."""
        return self.exponent_bits == DTYPES[self.computes_in].exponent_bits

    @cached_property
    def underflow(self) -> float:
        """The most that a result loses where it is too small for a normal number."""
        return self.smallest_normal if self.flushes else self.smallest_subnormal / 2.0

    @cached_property
    def numpy_dtype(self) -> np.dtype[Any]:
        import numpy as np

        if not self.in_ml_dtypes:
            return np.dtype(self.name)
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, self.name))
        return dtype

    @property
    def bits_dtype(self) -> str:
        """The unsigned integer, by NumPy's name, that its bits are."""
        return f"uint{self.bits}"

    def nearest(self, value: float) -> float:
        """The number of this float dtype that `value` rounds to; too large a one becomes infinite, or NaN."""
        return float(self._rounded(value))

    def to_bits(self, value: float) -> int:
        """The bits of `value` rounded to this float dtype."""
        return int(self._rounded(value).view(self.bits_dtype))

    def from_bits(self, bits: int) -> float:
        """The number of this float dtype with these bits."""
        import numpy as np

        return float(np.array(bits, self.bits_dtype).view(self.numpy_dtype))

    def holds(self, other: Dtype) -> bool:
        """Whether every number of `other` is one of this dtype, both being floats or neither."""
        if self.is_float:
            return self.exponent_bits >= other.exponent_bits and self.fraction_bits >= other.fraction_bits
        if "b" in (self.kind, other.kind):
            return other.kind == "b"
        (low, high), (least, most) = self.integer_range, other.integer_range
        return low <= least and most <= high

    def _rounded(self, value: float) -> npt.NDArray[Any]:
        import numpy as np

        with np.errstate(over="ignore"):
            return np.asarray(self.numpy_dtype.type(value))


MIN_PROMOTED_BITS = 32  # of what integers become of which neither type holds the other's numbers

# In the order of promotion.
DTYPES: Mapping[str, Dtype] = {
    row.name: row
    for row in (
        Dtype("bool", "b", 8),
        Dtype("int8", "i", 8),
        Dtype("uint8", "u", 8),
        Dtype("int16", "i", 16),
        Dtype("uint16", "u", 16),
        Dtype("int32", "i", 32),
        Dtype("uint32", "u", 32),
        Dtype("int64", "i", 64),
        Dtype("uint64", "u", 64),
        Dtype("float8_e4m3fn", "f", 8, exponent_bits=4, wider="float32", has_infinity=False, in_ml_dtypes=True,
              dlpack_code=10),
        Dtype("float8_e5m2", "f", 8, exponent_bits=5, wider="float32", in_ml_dtypes=True, dlpack_code=12),
        Dtype("float16", "f", 16, exponent_bits=5, wider="float32"),
        Dtype("bfloat16", "f", 16, exponent_bits=8, wider="float32", in_ml_dtypes=True, dlpack_code=4),
        Dtype("float32", "f", 32, exponent_bits=8),
        Dtype("float64", "f", 64, exponent_bits=11),
    )
}  # fmt: skip


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The type for arrays of this name, which may also be one that only NumPy knows."""
    import numpy as np

    return DTYPES[name].numpy_dtype if name in DTYPES else np.dtype(name)


def is_foreign(kind: np.dtype[Any]) -> bool:
    """Whether a type for arrays is not NumPy's own: files and other libraries take the bits of its elements only."""
    return kind.isbuiltin == 2  # "user-defined", as types that other packages register are


def promote(a: str, b: str) -> str:
    """The dtype of a result: a float beats an int, else that of the operands which holds the other's numbers, else the
    first of DTYPES that holds the numbers of both; of integers one of 32 bits at least, as products are.

    int8 with int16 gives int16, int8 with uint8 int32, float16 with bfloat16 float32. Raises ExpressionError for
    uint64 with a signed integer, as no dtype holds the numbers of both.
    """
    if a == b:
        return a
    x, y = DTYPES[a], DTYPES[b]
    if x.is_float != y.is_float:
        return a if x.is_float else b
    for row in (x, y, *(row for row in DTYPES.values() if row.is_float or row.bits >= MIN_PROMOTED_BITS)):
        if row.is_float == x.is_float and row.holds(x) and row.holds(y):
            return row.name
    raise ExpressionError(f"no dtype holds the numbers of {a} and {b}; cast one of them to the other's")
