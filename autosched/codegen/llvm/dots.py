"""Dot-product instructions in LLVM (`instructions/dots.py`): one instruction, or the products one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from autosched.codegen.llvm.vocabulary import value_type
from autosched.ir.dtype import DTYPES
from autosched.ir.instructions.dots import FIRST_BITS, INTRINSICS, WORD_BITS, Intrinsic, WidthForm

if TYPE_CHECKING:
    from autosched.codegen.llvm.arithmetic import Arithmetic, Val


def declarations(texts: Sequence[str]) -> list[str]:
    """The declarations of the intrinsics in `texts`: their types differ between LLVM's versions, which adapt them."""
    lines: dict[str, None] = {}
    for row in INTRINSICS.values():
        for name, form in {f.llvm: f for f in row.forms}.items():
            if any(f"@{name}(" in text for text in texts):
                result, operand = value_type(row.accumulator, form.lanes), _operand(form)
                start = f"{result}, " if form.adds else ""
                lines[f"declare {result} @{name}({start}{operand}, {operand})"] = None
    return list(lines)


def assemble(m: Arithmetic, parts: list[Val]) -> Val:
    """The word of some elements."""
    total: Val | None = None
    size = WORD_BITS // len(parts)
    for n, part in enumerate(parts):
        is_negative = part.dtype == "int8" and size > 8  # perhaps: its sign fills the field
        field = m.converted("sext" if is_negative else "zext", part, "i32", "int32")
        if is_negative and n + 1 < len(parts):
            field = m.binary("bitand", field, m.number((1 << size) - 1, "int32"))
        if n:
            field = m.binary("shl", field, m.number(n * size, "int32"))
        total = field if total is None else m.binary("bitor", total, field)
    assert total is not None
    return total


def extend(m: Arithmetic, a: Val) -> Val:
    """Return the words of two adjacent bytes each in `a`."""
    word = "sext" if DTYPES[a.dtype].kind == "i" else "zext"
    wide = m.converted(word, a, "i16")
    kind = value_type("int32", a.lanes // 2)
    name = m.writer.value(f"bitcast <{a.lanes} x i16> {wide.name} to {kind}")
    return a._replace(name=name, dtype="int32", lanes=a.lanes // 2)


def dot(m: Arithmetic, row: Intrinsic, a: Val, b: Val, total: Val | None) -> Val:
    """total + the products of two words in every lane; without `total` the products alone."""
    lanes = max(v.lanes for v in (a, b, total) if v is not None)
    start = m.number(0, row.accumulator) if total is None else total
    form = row.form(m.target.has, lanes)
    if form is None:
        return _one_by_one(m, row, a, b, total)
    if row.flips is None:
        return _instruction(m, form, a, b, start)
    words, bits = [a, b], m.number(FIRST_BITS, "int32")
    words[row.flips] = m.binary("bitxor", m.broadcast(words[row.flips], form.lanes), bits)
    shifted = _instruction(m, form, words[0], words[1], start)
    words[row.flips] = bits
    return m.binary("sub", shifted, _instruction(m, form, words[0], words[1], m.number(0, row.accumulator)))


def _instruction(m: Arithmetic, form: WidthForm, a: Val, b: Val, total: Val) -> Val:
    start = m.broadcast(total, form.lanes)
    kind, result = _operand(form), value_type(total.dtype, form.lanes)
    operands = []
    for word in (a, b):
        broadcast = m.broadcast(word, form.lanes)
        operands.append(m.writer.value(f"bitcast {value_type('int32', form.lanes)} {broadcast.name} to {kind}"))
    arguments = [f"{result} {start.name}"] * form.adds + [f"{kind} {x}" for x in operands]
    dot = m.emitted(f"call {result} @{form.llvm}({', '.join(arguments)})", start)
    return dot if form.adds else m.binary("add", start, dot)


def _operand(form: WidthForm) -> str:
    return f"<{form.lanes * (1 if form.element == 'i32' else 2)} x {form.element}>"


def _one_by_one(m: Arithmetic, row: Intrinsic, a: Val, b: Val, total: Val | None) -> Val:
    for n in range(row.depth):
        x, y = _part(m, a, row.a, n, row.depth), _part(m, b, row.b, n, row.depth)
        if total is not None and row.accumulator == "float32" and m.target.has_fma:
            total = m.fma(x, y, total)
        else:
            product = m.binary("mul", x, y)
            total = product if total is None else m.binary("add", total, product)
    assert total is not None
    return total


def _part(m: Arithmetic, word: Val, dtype: str, n: int, depth: int) -> Val:
    """The n-th of the `depth` elements of a word, in the type that is multiplied in."""
    size = WORD_BITS // depth
    up = m.binary("shl", word, m.number(WORD_BITS - size * (n + 1), "int32")) if size * (n + 1) < WORD_BITS else word
    if dtype == "bfloat16":
        top = m.binary("bitand", up, m.number(-(1 << size), "int32"))
        return m.converted("bitcast", top, "float", "float32")
    assert not DTYPES[dtype].is_float, f"there is no dot product of {dtype}"
    down = m.number(WORD_BITS - size, "int32")
    if DTYPES[dtype].kind == "i":
        return m.binary("shr", up, down)
    places = m.broadcast(down, word.lanes)
    return m.emitted(f"lshr {value_type('int32', word.lanes)} {up.name}, {places.name}", word)
