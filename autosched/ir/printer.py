"""Expressions, statements and functions as text: stable, readable, in Python's words and precedence.

    for i.0 in 0..4  # parallel
        alloc B.pack: float32[16, 8] local layout(1,0; 1:4)
        for i.1 in 0..min(4, 13 - 4*i.0)  # at most 4
            C[4*i.0 + i.1, j] += A[4*i.0 + i.1, k] * B.pack[k, j]

Parentheses appear only where the tree is not the one precedence and left association would give.
A constant carries its dtype (`0.5_f64`, `3_i32`) where neither its spelling nor its neighbour tells it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autosched.ir.bitcast import Bitcast
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import COMPARISON, LOGICAL, Binary, Call, Cast, Const, Expr, Load, Param, Select, Var
from autosched.ir.instructions.dots import Dot, Word
from autosched.ir.stmt import (
    Allocate,
    Barrier,
    Buffer,
    Commit,
    For,
    ForKind,
    Func,
    If,
    Layout,
    Prefetch,
    Reducer,
    Scope,
    Seq,
    Shuffle,
    Stmt,
    Store,
    TileCopy,
    Wait,
)
from autosched.ir.symbolic import SymbolicInteger

# op -> (symbol, precedence), higher binds tighter, as in Python; other operations are printed as calls.
INFIX: dict[str, tuple[str, int]] = {
    "or": ("or", 1),
    "and": ("and", 2),
    "eq": ("==", 4),
    "ne": ("!=", 4),
    "lt": ("<", 4),
    "le": ("<=", 4),
    "gt": (">", 4),
    "ge": (">=", 4),
    "bitor": ("|", 5),
    "bitxor": ("^", 6),
    "bitand": ("&", 7),
    "shl": ("<<", 8),
    "shr": (">>", 8),
    "add": ("+", 9),
    "sub": ("-", 9),
    "mul": ("*", 10),
    "div": ("/", 10),
    "floordiv": ("//", 10),
    "mod": ("%", 10),
}
PREFIX: dict[str, tuple[str, int]] = {"not": ("not ", 3), "neg": ("-", 11)}
COMPARISON_PRECEDENCE, PRODUCT_PRECEDENCE = 4, 10

INDENT = "    "


def expr_text(e: Expr) -> str:
    """One line of text for an expression."""
    return _text(e, 0, False)


def stmt_text(s: Stmt) -> str:
    """A statement and all inside it, one line each, no trailing newline."""
    return "\n".join(_lines(s))


def func_text(f: Func) -> str:
    """A kernel: its name, one line for each input and output, what is prepared once from weights, then the body."""
    first_output = len(f.params) - f.n_outputs
    words = ["in " if i < first_output else "out" for i in range(len(f.params))]
    head = [f"{word} {buffer_text(b)}" for word, b in zip(words, f.params, strict=True)]
    if f.prepare is not None:
        head += [f"pre {buffer_text(b)}" for b in f.prepared]
        head += ["", "prepare, once:", *(f"  {line}" for line in _lines(f.prepare)), "", "run:"]
    else:
        head.append("")
    return "\n".join([f"kernel {f.name}", *head, *_lines(f.body)])


def buffer_text(b: Buffer) -> str:
    """`name: dtype[shape] scope layout(...)`; scope and layout only where they are not the usual ones."""
    text = f"{b.name}: {b.dtype}[{_list(b.shape)}]"
    if b.scope is not Scope.PARAM:
        text += f" {b.scope.value}"
    return text if b.layout is None else f"{text} {_layout_text(b.layout)}"


def headline(s: Stmt) -> str:
    """The first line of a statement: what error messages call it."""
    return next(_lines(s), "nothing")


def _layout_text(layout: Layout) -> str:
    order = ",".join(map(str, layout.order))
    tiles = ", ".join(f"{dim}:{expr_text(factor)}" for dim, factor in layout.tiles)
    pad = "" if layout.pad is None else f"; pad {expr_text(layout.pad)}"
    pad += "; panels" * layout.panels
    return f"layout({order}; {tiles}{pad})" if tiles else f"layout({order}{pad})"


def _list(items: tuple[Expr, ...]) -> str:
    return ", ".join(map(expr_text, items))


def _text(e: Expr, outer: int, known: bool) -> str:
    """`outer`: precedence the text must at least have; `known`: the reader knows the dtype from the context."""
    match e:
        case Const(value, dtype):
            return _const_text(value, dtype, outer, known)
        case Var() | Param():
            return e.name
        case Load(buffer, indices, _):
            return f"{buffer}[{_list(indices)}]"
        case Cast(a, dtype):
            return f"{dtype}({expr_text(a)})"
        case Bitcast(a, dtype):
            return f"bits_as_{dtype}({expr_text(a)})"
        case Word(parts):
            return f"word({_list(parts)})"
        case Dot(intrinsic, a, b):
            return f"{intrinsic}({_list((a, b))})"
        case Select(cond, a, b):
            left, right = _known(a, b, known)
            return f"select({expr_text(cond)}, {_text(a, 0, left)}, {_text(b, 0, right)})"
        case Call(fn, args):
            if fn not in PREFIX:
                return f"{fn}({', '.join(_text(a, 0, known) for a in args)})"
            symbol, precedence = PREFIX[fn]
            return _wrap(symbol + _text(args[0], precedence, known), precedence, outer)
        case Binary():
            return _binary_text(e, outer, known)
    raise TypeError(f"{type(e).__name__} is not an expression")


def _binary_text(e: Binary, outer: int, known: bool) -> str:
    left, right = _known(e.a, e.b, known and e.op not in COMPARISON and e.op not in LOGICAL)
    if e.op not in INFIX:
        return f"{e.op}({_text(e.a, 0, left)}, {_text(e.b, 0, right)})"
    symbol, precedence = INFIX[e.op]
    x, y = e.a, e.b
    if e.op == "add":  # i + -4 and j*-4 + i read better as differences; for integers they are the same
        negated = _negated(y)
        if negated is None and (negated := _negated(x)) is not None:
            x = y
        if negated is not None:
            symbol, y = "-", negated
    left_precedence = precedence + 1 if precedence == COMPARISON_PRECEDENCE else precedence
    gap = "" if precedence == PRODUCT_PRECEDENCE and DTYPES[e.dtype].is_integer else " "
    a = _text(x, left_precedence, left)
    b = _text(y, precedence + 1, right)
    return _wrap(f"{a}{gap}{symbol}{gap}{b}", precedence, outer)


def _negated(e: Expr) -> Expr | None:
    """-e for a negative integer constant or a product with one, so that `+` can be written as `-`; else None."""
    match e:
        case Const(value=SymbolicInteger()) | Binary(a=Const(value=SymbolicInteger())):
            return None  # the sign may vary
        case Binary(b=Const(value=SymbolicInteger())):
            return None
        case Const(value, dtype) if DTYPES[dtype].kind == "i" and value < 0:
            return Const(-value, dtype)
        case Binary("mul", Const(value, dtype), b) if DTYPES[dtype].kind == "i" and value < 0:
            return b if value == -1 else Binary("mul", Const(-value, dtype), b)
        case Binary("mul", a, Const(value, dtype)) if DTYPES[dtype].kind == "i" and value < 0:
            return a if value == -1 else Binary("mul", a, Const(-value, dtype))
    return None


def _wrap(text: str, precedence: int, outer: int) -> str:
    return f"({text})" if precedence < outer else text


def _known(a: Expr, b: Expr, known: bool) -> tuple[bool, bool]:
    """Whether the reader knows the dtype of each of two operands that share one."""
    return known or _tells_dtype(b), known or _tells_dtype(a)


def _tells_dtype(e: Expr) -> bool:
    """A tensor element, a variable or a cast shows its dtype; a constant does not; the rest asks its operands."""
    match e:
        case Const():
            return False
        case Binary(op, a, b):
            return op in COMPARISON or op in LOGICAL or _tells_dtype(a) or _tells_dtype(b)
        case Select(_, a, b):
            return _tells_dtype(a) or _tells_dtype(b)
        case Call(_, args):
            return _tells_dtype(args[0])
    return True


def _const_text(value: bool | int | float, dtype: str, outer: int, known: bool) -> str:
    row = DTYPES[dtype]
    if row.is_float:
        text = str(np.float32(value)) if dtype == "float32" else repr(float(value))
        default = "float32"
    else:
        text = str(value)
        default = "bool" if row.kind == "b" else "int64"
    if dtype != default and not known:
        text += f"_{row.abbreviation}"
    return _wrap(text, PREFIX["neg"][1], outer) if text.startswith("-") else text


def _lines(s: Stmt) -> Iterator[str]:
    match s:
        case For():
            yield _for_line(s)
            yield from _indented(s.body)
        case Seq(stmts):
            for stmt in stmts[:-1]:
                yield from _closed_lines(stmt)
            for stmt in stmts[-1:]:
                yield from _lines(stmt)
        case If(cond, then, otherwise):
            yield f"if {expr_text(cond)}"
            yield from _indented(then)
            if otherwise is not None:
                yield "else"
                yield from _indented(otherwise)
        case Allocate(buffer, body):
            yield f"alloc {buffer_text(buffer)}"
            yield from _lines(body)
        case Store():
            yield _store_line(s)
        case Prefetch(name, indices, level, writes):
            yield f"prefetch {name}[{_list(indices)}]" + ("" if level == 1 else f" to L{level}") + " to write" * writes
        case Barrier(of_warp=of_warp):
            yield "barrier of warps" if of_warp else "barrier"
        case Shuffle(names, indices, values, lane, warp):
            places = _tuple([f"{name}[{_list(indices)}]" for name in names])
            yield f"{places} = {_tuple(list(map(expr_text, values)))} of lane {expr_text(lane)}  # warps of {warp}"
        case Commit():
            yield "commit"
        case Wait(pending):
            yield f"wait {pending}"
        case TileCopy(name, place, outside, origin, shape):
            inner = f"{name}[{_list((*place, *(Const(0) for _ in shape)))}]"
            outer = f"{outside}[{_list(origin)}]"
            size = " x ".join(map(expr_text, shape))
            parts = "" if s.pixels is None else f" pixels and channels, of {s.pixels}"
            ends = f"store tile {outer} = {inner}" if s.back else f"load tile {inner} = {outer}"
            yield f"{ends}  # {size}{parts}"
        case _:
            raise TypeError(f"{type(s).__name__} is not a statement")


def _indented(s: Stmt) -> Iterator[str]:
    return (INDENT + line for line in _lines(s))


def _closed_lines(s: Stmt) -> Iterator[str]:
    """An allocation that ends before its neighbours do shows its scope by indentation."""
    if isinstance(s, Allocate):
        yield f"alloc {buffer_text(s.buffer)}"
        yield from _indented(s.body)
    else:
        yield from _lines(s)


def _for_line(s: For) -> str:
    notes = []
    if s.kind is not ForKind.SERIAL:
        notes.append(s.kind.value)
    if s.reduce:
        notes.append("reduce")
    if s.resident is not None:
        notes.append(f"{expr_text(s.resident)} blocks resident")
    if s.raster is not None:
        notes.append(f"{expr_text(s.raster)} rows together")
    if s.sharing is not None:
        notes.append(f"clusters of {expr_text(s.sharing.down)} by {expr_text(s.sharing.across)} blocks")
        notes.append(f"{expr_text(s.sharing.turns)} in turn")
    if s.overlap is not None:
        words = ", asynchronous" * s.overlap.asynchronous + ", by tiles" * s.overlap.by_tiles
        words += f", on {s.overlap.multiprocessors} multiprocessors" * bool(s.overlap.multiprocessors)
        notes.append(f"{expr_text(s.overlap.stages)} stages{words}")
    if s.bound is not s.extent:
        notes.append(f"at most {expr_text(s.bound)}")
    line = f"for {s.var.name} in 0..{_text(s.extent, PRODUCT_PRECEDENCE, True)}"
    return f"{line}  # {', '.join(notes)}" if notes else line


def _store_line(s: Store) -> str:
    places = [f"{name}[{_list(s.indices)}]" for name in s.buffers]
    values = [_text(v, 0, True) for v in s.values]
    place, value = _tuple(places), _tuple(values)
    if s.reducer is None:
        line = f"{'start ' * s.asynchronous}{place} = {value}"
    else:
        op = _reducer_op(s.reducer)
        line = f"{place} {INFIX[op][0]}= {value}" if op in ("add", "mul") else f"{place} = {op}({place}, {value})"
    notes = [s.stage] if s.stage and s.stage not in s.buffers else []
    notes += ["atomic"] * s.atomic + ["streamed"] * s.non_temporal
    notes += [s.matrix] if s.matrix else []
    return f"{line}  # {', '.join(notes)}" if notes else line


def _tuple(texts: list[str]) -> str:
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"


def _reducer_op(reducer: Reducer) -> str:
    """The operation a reducer is, or its name where it is more than one."""
    if len(reducer.results) == 1 and len(reducer.lhs) == 1 and len(reducer.rhs) == 1:
        match reducer.results[0]:
            case Binary(op, a, b) if {a, b} == {reducer.lhs[0], reducer.rhs[0]}:
                return op
    return reducer.name
