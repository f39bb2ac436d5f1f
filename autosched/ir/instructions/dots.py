"""Dot-product instructions on words: two or four small numbers in 32 bits, multiplied pairwise and added up.

    Word(parts)            int32: the parts in fields of 32 / len(parts) bits, the first one lowest; an integer of fewer
                           bits is extended by its sign or by zeros
    Dot(intrinsic, a, b)   sum over the parts of a and b of their products, in the intrinsic's accumulator type

Which intrinsics there are is the table INTRINSICS. What a `Dot` means does not depend on the processor: one that
lacks the instruction gets the products one by one. Of float32 the order of the additions is not defined, and the
processor may take subnormal operands and results for zero (Intel's and AMD's VDPBF16PS do).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Binary, Call, Cast, Expr, Load, precision_of

WORD_BITS = 32
FIRST_BITS = -0x7F7F7F80  # of each byte of an int32, 0x80808080


@dataclass(frozen=True)
class WidthForm:
    """An intrinsic at one width: it needs LLVM's processor feature `feature`; `element` is LLVM's type of operands.

    `adds`: its first operand is what the products are added to; otherwise an addition follows.
    """

    feature: str
    lanes: int
    llvm: str
    element: str
    adds: bool = True


@dataclass(frozen=True)
class Intrinsic:
    """Lanes of `accumulator` += the products of `depth` pairs of `a` and `b`; forms in the order of preference.

    `flips`: the instruction takes operand 0 as unsigned and operand 1 as signed bytes, and this one is not what it
    takes. With the first bit of each byte flipped it is, and its elements are 128 more (operand 0) or less (operand 1):

        sum a b = sum (a + 128) b - sum 128 b = sum a (b - 128) - sum a (-128)

    The sums with 128 are the same for all rows (or columns) of a register tile.

    Without `forms` it is of GPUs, whose emitters know it by the types of its operands.

    `slow_on`: processors, by LLVM's names, that convert, multiply and add one by one in less time.

    `tile`: the LLVM intrinsic and the processor's feature that multiply whole tiles of words, operand 0 by rows and
    operand 1 by columns (`tile_products.py`). Where loops are no such tiles it is its `forms`, or one by one.
    """

    name: str
    a: str
    b: str
    depth: int
    accumulator: str
    forms: tuple[WidthForm, ...]
    flips: int | None = None
    slow_on: frozenset[str] = frozenset()
    tile: tuple[str, str] | None = None

    def form(self, has: Callable[[str], bool], lanes: int) -> WidthForm | None:
        """The form for so many lanes on a processor with features `has`."""
        return next((f for f in self.forms if f.lanes == lanes and has(f.feature)), None)

    @property
    def is_of_gpus(self) -> bool:
        return not self.forms and self.tile is None

    @property
    def plain(self) -> str:
        """The instruction itself, which takes a flipped operand as it is."""
        return self.name.partition(".")[0]

    @property
    def is_extended(self) -> bool:
        """Whether elements are narrower than their fields of a word: they do not lie in memory as words."""
        return self.depth * DTYPES[self.a].bits < WORD_BITS


def _x86(llvm: str, features: dict[str, tuple[int, ...]], element: str) -> tuple[WidthForm, ...]:
    return tuple(
        WidthForm(f, n, f"llvm.x86.{llvm}.{WORD_BITS * n}", element) for f, sizes in features.items() for n in sizes
    )


_VNNI = _x86("avx512.vpdpbusd", {"avx512vnni": (16, 8, 4), "avxvnni": (8, 4)}, "i32")
_VNNI_SHORT = _x86("avx512.vpdpwssd", {"avx512vnni": (16, 8, 4), "avxvnni": (8, 4)}, "i32")
_MADD = tuple(
    WidthForm(f, n, f"llvm.x86.{name}", "i16", adds=False)
    for f, n, name in (
        ("avx512bw", 16, "avx512.pmaddw.d.512"), ("avx2", 8, "avx2.pmadd.wd"), ("sse2", 4, "sse2.pmadd.wd"),
    )
)  # fmt: skip
# dp4a is CUDA's, from compute capability 6.1 on; OpenCL C has the products one by one.
# The first that a processor has is taken: VPMADDWD is for those without VNNI. It multiplies numbers of 16 bits.
# Sources: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2; LLVM's IntrinsicsX86.td.
# On Emerald Rapids, whose core is Sapphire Rapids', a VDPBF16PS takes 2 cycles of 512 or 256 bits, measured, in which
# the two FMA units have multiplied twice as many numbers in float32 as it does; VPDPBUSD and VPMADDWD take half of one.
INTRINSICS: dict[str, Intrinsic] = {
    row.name: row
    for row in (
        Intrinsic("vdpbf16ps", "bfloat16", "bfloat16", 2, "float32",
                  _x86("avx512bf16.dpbf16ps", {"avx512bf16": (16, 8, 4)}, "bfloat"),
                  slow_on=frozenset({"sapphirerapids", "emeraldrapids"})),
        Intrinsic("vpdpbusd", "uint8", "int8", 4, "int32", _VNNI),
        Intrinsic("vpdpbusd.signed", "int8", "int8", 4, "int32", _VNNI, flips=0),
        Intrinsic("vpdpbusd.unsigned", "uint8", "uint8", 4, "int32", _VNNI, flips=1),
        Intrinsic("vpmaddwd", "uint8", "int8", 2, "int32", _MADD),
        Intrinsic("vpmaddwd.signed", "int8", "int8", 2, "int32", _MADD),
        Intrinsic("vpmaddwd.unsigned", "uint8", "uint8", 2, "int32", _MADD),
        Intrinsic("vpdpwssd", "int16", "int16", 2, "int32", (*_VNNI_SHORT, *_MADD)),
        Intrinsic("tdpbusd", "uint8", "int8", 4, "int32", _VNNI, tile=("llvm.x86.tdpbusd", "amx-int8")),
        Intrinsic("tdpbssd", "int8", "int8", 4, "int32", (), tile=("llvm.x86.tdpbssd", "amx-int8")),
        Intrinsic("tdpbsud", "int8", "uint8", 4, "int32", (), tile=("llvm.x86.tdpbsud", "amx-int8")),
        Intrinsic("tdpbuud", "uint8", "uint8", 4, "int32", (), tile=("llvm.x86.tdpbuud", "amx-int8")),
        Intrinsic("tdpbf16ps", "bfloat16", "bfloat16", 2, "float32", (), tile=("llvm.x86.tdpbf16ps", "amx-bf16")),
        Intrinsic("dp4a", "uint8", "int8", 4, "int32", ()),
        Intrinsic("dp4a.signed", "int8", "int8", 4, "int32", ()),
        Intrinsic("dp4a.unsigned", "uint8", "uint8", 4, "int32", ()),
    )
}  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Word(Expr):
    """Two elements of at most 2 bytes or four of 1 byte as one int32, the first in the lowest bits."""

    parts: tuple[Expr, ...]

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return "int32"

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.parts


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Dot(Expr):
    """The sum of products of two words; `intrinsic` is a name of INTRINSICS, which says what the words hold."""

    intrinsic: str
    a: Expr
    b: Expr

    @property
    def row(self) -> Intrinsic:
        return INTRINSICS[self.intrinsic]

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.row.accumulator

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.a, self.b)


def problem(e: Word | Dot) -> str | None:
    """Return the type error of a word or a dot product, for the verifier."""
    if isinstance(e, Dot):
        wrong = [x.dtype for x in e.children if x.dtype != "int32"]
        return f"{e.intrinsic} takes words, not {wrong[0]}" if wrong else None
    kinds = {x.dtype for x in e.parts}
    field = WORD_BITS // len(e.parts)
    fits = all(DTYPES[k].bits == field or (DTYPES[k].is_integer and DTYPES[k].bits < field) for k in kinds)
    if len(kinds) != 1 or not fits or kinds == {"bool"}:
        return f"a word of {len(e.parts)} parts holds {', '.join(sorted(kinds))}"
    return None


def is_whole_word(expr: Expr) -> bool:
    """Whether a word is one load: its parts are neighbours in a row."""
    if not isinstance(expr, Word) or not all(isinstance(p, Load) and p.indices for p in expr.parts):
        return False
    return len({(p.buffer, p.indices[:-1]) for p in expr.parts if isinstance(p, Load)}) == 1


def dots_of(values: Iterable[Expr]) -> list[Dot]:
    """Those that are values themselves."""
    return [value for value in values if isinstance(value, Dot)]


def packed(values: list[object], dtype: str) -> int:
    """The word of some numbers of `dtype`, as an int32."""
    row, size = DTYPES[dtype], WORD_BITS // len(values)
    total = 0
    for n, value in enumerate(values):
        field = row.to_bits(float(value)) if row.is_float else int(value) % (1 << size)  # type: ignore[arg-type, call-overload]
        total |= field << (n * size)
    return total - (1 << WORD_BITS) if total >> (WORD_BITS - 1) else total


def unpacked(word: int, dtype: str, count: int) -> list[int | float]:
    """The numbers of a word."""
    row, size = DTYPES[dtype], WORD_BITS // count
    fields = [(word >> (n * size)) & ((1 << size) - 1) for n in range(count)]
    if row.is_float:
        return [row.from_bits(field) for field in fields]
    half = 1 << (size - 1)
    return [f - 2 * half if row.kind == "i" and f >= half else f for f in fields]


def factors(value: Expr, accumulator: str) -> tuple[Load, Load] | None:
    """The two elements whose product in `accumulator` the value is, or may be (`ir/instructions/precision.py`)."""
    if not (isinstance(value, Binary) and value.op == "mul"):
        return None
    pair = _element(value.a, accumulator), _element(value.b, accumulator)
    return None if pair[0] is None or pair[1] is None else (pair[0], pair[1])


def _element(value: Expr, accumulator: str) -> Load | None:
    element = value.args[0] if precision_of(value) and isinstance(value, Call) else value
    match element:
        case Cast(a=Load() as load, dtype=dtype) if dtype == accumulator:
            return load
        case Load(dtype=dtype) as load if dtype == accumulator:
            return load
    return None
