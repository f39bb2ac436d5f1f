"""Short integers (`shorten_integers`): arithmetic of wide integers whose values always fit in 8 or 16 bits is in these.

    B[i] = (int32(A[i]) + int32(A[i+1]) + int32(A[i+2])) // 3         A uint8: all values are in 0 .. 765
    C[i] = uint8((B[i] + B[i+1] + B[i+2]) // 3)

    B[i] = (uint16(A[i]) + uint16(A[i+1]) + uint16(A[i+2])) // 3      C[i] = uint8((B[i] + B[i+1] + B[i+2]) // 3)

A vector then has two or four times the lanes, and B half the bytes. The proof is by intervals (`integer_bounds`,
`te/multilinear.py`), from those of the types of inputs. An operand of a sum, a difference, a product or a bit operation
may be signed or not: the low 16 bits of the result follow from those of the operands. Quotients, minima, maxima and
comparisons have both operands in one type.

Operands of casts to types of 8 and 16 bits become short, and so do stages that only such operands read, and what takes
several operations before it is converted to a wide type. Sums of products of two elements stay, as processors have
instructions for them. Quotients that stay wide are unsigned where the dividend is never negative: rounding towards zero
is then rounding down.

In 8 bits are what vectors of bytes have instructions for, and only of operands that are bytes already:

    uint8(min(int32(a), int32(b)))         ->   min(a, b)                     likewise max, select, comparisons
    uint8(abs(int32(a) - int32(b)))        ->   max(a, b) - min(a, b)
    uint8(min(int32(a) + int32(b), 255))   ->   s < a ? 255 : s, s = a + b    LLVM's uadd.sat
    uint8(max(int32(a) - int32(b), 0))     ->   max(a, b) - b                 LLVM's usub.sat
    uint8((int32(a) + int32(b) + 1) >> 1)  ->   (a | b) - ((a ^ b) >> 1)      LLVM's avgceilu
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

from autosched.ir.dtype import DTYPES
from autosched.ir.expr import (
    COMPARISON,
    LOGICAL,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Var,
    binary,
    call,
    cast,
    const,
    select,
)
from autosched.ir.instructions.dots import factors
from autosched.ir.symbolic import SymbolicInteger
from autosched.ir.types import Interval, integer_bounds
from autosched.ir.visit import bottom_up, loads, rebuild, subexpressions
from autosched.te.dag import ComputeDAG
from autosched.te.multilinear import Polynomial, interval_of, polynomial
from autosched.te.reducers import sum_reducer
from autosched.te.tensor import ComputeOp, Tensor, postorder

MIN_OPERATIONS = 6  # of an integer that is converted to a wide one at its end
MANY = 1 << 62  # terms of a sum whose number is not known
_OF_LOW_BITS = frozenset({"add", "sub", "mul", "bitand", "bitor", "bitxor"})  # their low bits follow from low bits
_MOST = 255  # that a byte without a sign holds
_WITHOUT_BYTES = frozenset({"mul", "floordiv", "mod", "shl", "shr"})  # which processors have in 16 bits at least


@dataclass(frozen=True)
class _Size:
    """Integers of so many bits."""

    bits: int

    @property
    def signed(self) -> str:
        return f"int{self.bits}"

    @property
    def unsigned(self) -> str:
        return f"uint{self.bits}"

    @property
    def is_byte(self) -> bool:
        return self.bits == BYTE.bits

    def type_of(self, interval: Interval) -> str:
        """The type for numbers that fit."""
        return self.unsigned if interval[0] >= 0 else self.signed

    def fits(self, interval: Interval) -> bool:
        return _within(interval, self.type_of(interval))

    def is_wide(self, e: Expr) -> bool:
        return DTYPES[e.dtype].is_integer and DTYPES[e.dtype].bits > self.bits

    def is_short(self, e: Expr) -> bool:
        return DTYPES[e.dtype].is_integer and DTYPES[e.dtype].bits <= self.bits


BYTE, WORD = _Size(8), _Size(16)


def shorten_integers(dag: ComputeDAG) -> ComputeDAG:
    """The DAG with its arithmetic in 8 and in 16 bits where it fits; `dag` itself where it fits nowhere."""
    has_bytes = any(DTYPES[t.dtype].is_integer and DTYPES[t.dtype].bits == BYTE.bits for t in dag.tensors.values())
    return _shortened(_shortened(dag, BYTE) if has_bytes else dag, WORD)


def _shortened(dag: ComputeDAG, size: _Size) -> ComputeDAG:
    """The DAG with its arithmetic in integers of a size where it fits."""
    ranges = _ranges(dag)
    bodies, stored = dict[str, tuple[Expr, ...]](), dict[str, str]()
    read_wide = set[str]()  # tensors with a read that needs all bits
    for op in reversed(dag.stages):  # readers first
        short = _Shortener(size, _bounds(op, ranges), op.reducer is None and op.recurrence is None)
        may_be_short = op.name not in read_wide and not dag.is_output(op) and _may_be_stored_short(op, ranges, size)
        body = short.operand(op.body[0]) if may_be_short else None
        if body is not None:
            stored[op.name] = size.type_of(ranges[op.name])
            bodies[op.name] = (cast(body, stored[op.name]),)
        else:
            bodies[op.name] = tuple(map(short.in_its_type, op.body))
        read_wide |= {x.buffer for value in bodies[op.name] for x in loads(value) if size.is_wide(x)}
    wide = {name: t.dtype for name, t in dag.tensors.items() if name not in stored}

    def remade(op: ComputeOp) -> tuple[Tensor, ...] | None:
        body = tuple(_with_reads(value, wide, size) for value in bodies[op.name])
        is_short_sum = op.reducer is not None and op.name in stored
        reducer = sum_reducer(stored[op.name]) if is_short_sum else op.reducer
        return None if body == op.body else replace(op, body=body, reducer=reducer).outputs

    return dag.remade(remade)


def _ranges(dag: ComputeDAG) -> dict[str, Interval]:
    """The least and the greatest element of tensors of integers."""
    ranges = {t.name: DTYPES[t.dtype].integer_range for t in dag.tensors.values() if DTYPES[t.dtype].is_integer}
    for op in dag.stages:
        if op.name not in ranges or op.recurrence is not None or not (op.reducer is None or op.reducer.is_sum):
            continue
        low, high = _bounds(op, ranges).get(op.body[0], ranges[op.name])
        if op.reducer is not None:
            extents = [axis.extent for axis in op.reduce_axes]
            terms = MANY if any(isinstance(n, SymbolicInteger) for n in extents) else prod(extents)
            low, high = min(0, terms * low), max(0, terms * high)  # partial sums, too
        if ranges[op.name][0] <= low and high <= ranges[op.name][1]:
            ranges[op.name] = low, high
    return ranges


def _bounds(op: ComputeOp, ranges: Mapping[str, Interval]) -> dict[Expr, Interval]:
    """The least and the greatest value of each integer in the body of a stage."""
    known: dict[Expr, Interval] = {
        axis.var: (0, axis.extent - 1)
        for axis in (*op.axes, *op.reduce_axes)
        if not isinstance(axis.extent, SymbolicInteger)
    }
    terms = dict[Expr, Polynomial | None]()
    for node in postorder(op.body):
        if not DTYPES[node.dtype].is_integer:
            continue
        terms[node] = polynomial(node, terms)
        if isinstance(node, Load):
            known[node] = ranges[node.buffer]
        elif isinstance(node, Const) and isinstance(node.value, SymbolicInteger):
            known[node] = DTYPES[node.dtype].integer_range
        else:
            known[node] = _narrowed(node, integer_bounds(node, known), terms[node], known)
    return known


def _narrowed(e: Expr, interval: Interval, terms: Polynomial | None, known: Mapping[Expr, Interval]) -> Interval:
    """The interval of an integer by those of its operands, or of the variables of its polynomial."""
    if terms is None or not isinstance(e, Binary) or frozenset({e}) in terms:
        return interval
    low, high = interval_of(terms, known)
    least, most = DTYPES[e.dtype].integer_range
    return (max(low, interval[0]), min(high, interval[1])) if least <= low and high <= most else interval


def _may_be_stored_short(op: ComputeOp, ranges: Mapping[str, Interval], size: _Size) -> bool:
    """Whether a stage's elements fit in the size, and it is no sum of products that an instruction may compute."""
    value = op.body[0]
    if op.name not in ranges or not size.is_wide(value) or not size.fits(ranges[op.name]) or not loads(value):
        return False
    is_sum_of_products = op.reducer is not None and factors(value, value.dtype) is not None
    return op.recurrence is None and (op.reducer is None or op.reducer.is_sum) and not is_sum_of_products


@dataclass(frozen=True)
class _Shortener:
    """The expressions of a stage, whose integers have `bounds`, with what fits computed in the size."""

    size: _Size
    bounds: Mapping[Expr, Interval]
    is_elementwise: bool
    known: dict[Expr, Expr] = field(default_factory=dict)  # the results of `in_its_type`
    short: dict[Expr, Expr | None] = field(default_factory=dict)  # the results of `in_short`

    def in_its_type(self, e: Expr) -> Expr:
        """The same value in the same type, operands of casts to short types being short."""
        if e not in self.known:
            self.known[e] = self._in_its_type(e)
        return self.known[e]

    def _in_its_type(self, e: Expr) -> Expr:
        if isinstance(e, Load | Const | Var):
            return e
        if isinstance(e, Cast) and self.size.is_short(e) and (short := self.in_short(e.a)) is not None:
            return cast(short, e.dtype)
        if self.size.is_byte and isinstance(e, Binary) and e.op in COMPARISON:
            return self._condition(e)
        if self.is_elementwise and self._is_long(e) and (short := self.in_short(e)) is not None:
            return cast(short, e.dtype)
        same = rebuild(e, self.in_its_type)
        if self._is_unsigned_quotient(e) and isinstance(same, Binary):
            kind = f"u{e.dtype}"
            return cast(binary(same.op, cast(same.a, kind), cast(same.b, kind)), e.dtype)
        return same

    def _is_long(self, e: Expr) -> bool:
        """Whether a wide integer takes more operations than one that halves a vector is worth."""
        if not self.size.is_wide(e) or not self.size.fits(self.bounds[e]):
            return False
        return sum(isinstance(x, Binary | Select) and bool(loads(x)) for x in subexpressions(e)) >= MIN_OPERATIONS

    def _is_unsigned_quotient(self, e: Expr) -> bool:
        if self.size.is_byte or not isinstance(e, Binary) or e.op not in ("floordiv", "mod"):
            return False
        if DTYPES[e.dtype].kind == "u" or not loads(e):
            return False
        return self.bounds[e.a][0] >= 0 and isinstance(e.b, Const) and self.bounds[e.b][0] > 0

    def in_short(self, e: Expr) -> Expr | None:
        """A wide integer in the size; None where it does not fit, or is not made of what fits."""
        if e not in self.short:
            may_fit = self.size.is_wide(e) and self.size.fits(self.bounds[e]) and bool(loads(e))
            made = self._in_short(e) if may_fit else None
            self.short[e] = None if made is None else cast(made, self.size.type_of(self.bounds[e]))
        return self.short[e]

    def operand(self, e: Expr, dtype: str | None = None) -> Expr | None:
        """An integer that fits, in the size, as a given type of it. What it is made of may be wide, but for bytes."""
        short = self.in_short(e)
        if short is None:
            value = e
            while isinstance(value, Cast) and self.size.is_wide(value) and value.a in self.bounds:
                value = value.a  # a number that fits stays the same
            if self.size.is_byte and not (self.size.is_short(value) or isinstance(value, Const)):
                return None
            short = cast(self.in_its_type(value), self.size.type_of(self.bounds[e]))
        return short if dtype is None else cast(short, dtype)

    def _in_short(self, e: Expr) -> Expr | None:
        kind, signed = self.size.type_of(self.bounds[e]), self.size.signed
        match e:
            case Load(buffer=name, indices=indices):
                return Load(name, indices, kind)
            case Cast(a=a) if a.dtype == "bool":
                return cast(self._condition(a), kind)
            case Cast(a=a) if DTYPES[a.dtype].is_integer:
                return self.operand(a)
            case Select(cond=cond, a=a, b=b) if self._fit(a, b):
                x, y = self.operand(a, kind), self.operand(b, kind)
                return None if x is None or y is None else select(self._condition(cond), x, y)
            case Call(fn="neg", args=(a,)) if self._fit(a):
                x = self.operand(a, signed)
                return None if x is None else call("neg", x)
            case Call(fn="abs", args=(a,)) if self._is_signed(a):
                x = self.operand(a, signed)
                return None if x is None else call("abs", x)
            case Binary(op=op, a=a, b=b) if self._fit(a, b):
                return self._operation(op, a, b, kind)
        return self._of_bytes(e) if self.size.is_byte else None

    def _of_bytes(self, e: Expr) -> Expr | None:
        """A byte made by way of numbers that are none: a distance, a saturated sum or difference, an average."""
        match e:
            case Call(fn="abs", args=(Binary(op="sub", a=a, b=b),)) if (pair := self._bytes(a, b)) is not None:
                return binary("max", *pair) - binary("min", *pair)
            case Binary(op="max", a=Binary(op="sub", a=a, b=b), b=Const(value=0)):
                if (pair := self._bytes(a, b)) is not None:
                    return binary("max", *pair) - pair[1]
            case Binary(op="min", a=Binary(op="add", a=a, b=b), b=Const(value=most)):
                if (pair := self._bytes(a, b)) is not None:
                    total = pair[0] + pair[1]
                    whole = select(total < pair[0], const(_MOST, BYTE.unsigned), total)  # it wraps around
                    return whole if most == _MOST else binary("min", whole, const(most, BYTE.unsigned))
            case Binary(op="shr", a=Binary(op="add", a=total, b=Const(value=1)), b=Const(value=1)):
                is_sum = isinstance(total, Binary) and total.op == "add"
                if is_sum and (pair := self._bytes(*total.children)) is not None:
                    either, differing = binary("bitor", *pair), binary("bitxor", *pair)
                    return either - binary("shr", differing, const(1, BYTE.unsigned))
        return None

    def _bytes(self, *operands: Expr) -> tuple[Expr, ...] | None:
        """Integers as bytes without a sign; None where one is none."""
        made = [self.operand(e, BYTE.unsigned) for e in operands] if self._is_unsigned(*operands) else [None]
        return None if None in made else tuple(x for x in made if x is not None)

    def _operation(self, op: str, a: Expr, b: Expr, kind: str) -> Expr | None:
        """The result in the type `kind`, or in the other one of the size."""
        if self.size.is_byte and op in _WITHOUT_BYTES:
            return None
        if op in ("shl", "shr") and not (isinstance(b, Const) and 0 <= b.number < self.size.bits):
            return None
        if op in ("floordiv", "mod") and not (isinstance(b, Const) and b.number > 0):
            return None  # by 0 it has a result of its own
        common: str | None = kind
        if op in ("floordiv", "mod", "shr"):
            is_unsigned, is_signed = self._is_unsigned(a, b), self._is_signed(a, b)
            common = self.size.unsigned if is_unsigned else self.size.signed if is_signed else None
        elif op in ("min", "max"):
            common = self._comparable(a, b)
        elif op not in _OF_LOW_BITS and op != "shl":
            return None
        if common is None:
            return None
        x, y = self.operand(a, common), self.operand(b, common)
        return None if x is None or y is None else binary(op, x, y)

    def _condition(self, e: Expr) -> Expr:
        """A condition with comparisons of what fits in the size."""
        match e:
            case Binary(op=op, a=a, b=b) if op in LOGICAL:
                return binary(op, self._condition(a), self._condition(b))
            case Call(fn="not", args=(a,)):
                return call("not", self._condition(a))
            case Binary(op=op, a=a, b=b) if op in COMPARISON and self.size.is_wide(a) and loads(e) and self._fit(a, b):
                common = self._comparable(a, b)
                x, y = (None, None) if common is None else (self.operand(a, common), self.operand(b, common))
                if x is not None and y is not None:
                    return binary(op, x, y)
        return rebuild(e, self.in_its_type) if isinstance(e, Binary) else self.in_its_type(e)

    def _comparable(self, a: Expr, b: Expr) -> str | None:
        """The type in which both numbers can be compared: with a sign, if possible, as AVX2 compares no others."""
        is_unsigned = self._is_unsigned(a, b)
        return self.size.signed if self._is_signed(a, b) else self.size.unsigned if is_unsigned else None

    def _fit(self, *operands: Expr) -> bool:
        return all(self.size.fits(self.bounds[e]) for e in operands)

    def _is_signed(self, *operands: Expr) -> bool:
        return all(_within(self.bounds[e], self.size.signed) for e in operands)

    def _is_unsigned(self, *operands: Expr) -> bool:
        return all(_within(self.bounds[e], self.size.unsigned) for e in operands)


def _with_reads(e: Expr, wide: Mapping[str, str], size: _Size) -> Expr:
    """The expression with reads of the tensors that are not stored in the size, of the types `wide`, converted."""

    def converted(node: Expr) -> Expr:
        if isinstance(node, Load) and wide.get(node.buffer, node.dtype) != node.dtype:
            return cast(Load(node.buffer, node.indices, wide[node.buffer]), node.dtype)
        if isinstance(node, Cast) and isinstance(node.a, Cast) and isinstance(node.a.a, Load):
            is_cut = size.is_wide(node.a.a) and _keeps_bits(node.a, node, size)
            return cast(node.a.a, node.dtype) if is_cut else node
        return node

    return bottom_up(e, converted)


def _keeps_bits(cut: Expr, e: Expr, size: _Size) -> bool:
    """Whether `e`, a cast of `cut`, has only bits that are in both."""
    return size.is_short(cut) and size.is_short(e) and DTYPES[e.dtype].bits <= DTYPES[cut.dtype].bits


def _within(interval: Interval, dtype: str) -> bool:
    low, high = DTYPES[dtype].integer_range
    return low <= interval[0] and interval[1] <= high
