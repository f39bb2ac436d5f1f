"""Operation counts of a statement by class, as in Ansor's features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autosched.ir.conditions import border_reads, conjuncts, is_ordering
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import BITWISE, COMPARISON, LOGICAL, Binary, Call, Cast, Const, Expr, Load, Select, Var
from autosched.ir.instructions.dots import Dot, Word, is_whole_word
from autosched.ir.linear import linear
from autosched.ir.recurrence import steps_from
from autosched.ir.stmt import Buffer, Prefetch, Store, changed
from autosched.ir.symbolic import SymbolicInteger
from autosched.ir.visit import bottom_up, free_vars, loads, subexpressions, substitute
from cost_model.cpu.instructions import (
    CALL_SLOTS,
    DIVISION_SLOTS,
    DOT_SLOTS,
    OP_SLOTS,
    REMAINDER,
    SIGNED_DIVISION,
    WORD_PART_SLOTS,
)

KINDS = tuple(OP_SLOTS)
FLOPS = {
    "float_mad": 2,
    "float_addsub": 1,
    "float_mul": 1,
    "float_divmod": 1,
    "float_cmp": 1,
    "float_math": 1,
    "float_other": 1,
}
_BINARY = {
    "add": "addsub", "sub": "addsub", "mul": "mul", "div": "divmod", "floordiv": "divmod", "mod": "divmod",
    "ceildiv": "divmod", "min": "cmp", "max": "cmp", "pow": "math",
    "fmod": "math",
}  # fmt: skip


@dataclass(frozen=True)
class Operations:
    """What one execution of a statement computes; `slots` are vector instructions on the arithmetic pipes,
    `minima_and_maxima` the minima and maxima of floats of which each may be NaN.

    `shared`: the slots by the variables that what they compute depends on; None for what is accumulated. Copies of the
    statement that agree in all of these compute it once."""

    counts: tuple[tuple[str, int], ...]
    shared: tuple[tuple[frozenset[Var] | None, float], ...]
    minima_and_maxima: int = 0

    @property
    def slots(self) -> float:
        return sum(slots for _, slots in self.shared)

    def count(self, kind: str) -> int:
        return dict(self.counts).get(kind, 0)

    @property
    def flops(self) -> int:
        return sum(FLOPS.get(kind, 0) * n for kind, n in self.counts)


def operations(store: Store, lanes: frozenset[Var] | None = None, vectors: frozenset[Var] = frozenset()) -> Operations:
    """Counts each distinct subexpression once (code generation shares them) and nothing inside indices; integers that
    no data are in are as good as indices.

    Where `lanes` are the only variables that a condition may depend on lane by lane, a select by other indices takes
    no slots: it is a branch, and in register tiles it is decided for the whole tile. Vectors along `vectors` are
    divided by what is the same in all lanes with one division of scalars.
    """
    counts: dict[str, int] = {}
    slots: dict[frozenset[Var] | None, float] = {}
    values = _combined(store)
    before = frozenset(() if store.reducer is None else store.reducer.lhs)
    fused = {_fused_product(e) for e in _nodes(values)} - {None}
    decided = set() if lanes is None else {e for e in _nodes(values) if _is_decided(e, lanes)}
    free = decided | set(_nodes([e.cond for e in decided if isinstance(e, Select)]))
    for expr in _nodes(values):
        kind = "" if expr in fused else kind_of(expr)
        if kind:
            counts[kind] = counts.get(kind, 0) + _multiplicity(expr)
            shared = kind == "float_divmod" and vectors and not free_vars(expr.children[1]) & vectors
            variables = free_vars(expr)
            if expr not in free and not (variables.isdisjoint(before) and _is_index(expr)):
                depends = variables if variables.isdisjoint(before) else None
                taken = OP_SLOTS["float_mul"] if shared else _slots(expr, kind)
                slots[depends] = slots.get(depends, 0.0) + taken
    minima_and_maxima = sum(map(_is_min_or_max, _nodes(values)))
    return Operations(tuple(sorted(counts.items())), tuple(slots.items()), minima_and_maxima)


def recurrence_chain(store: Store) -> float:
    """Return the dependent operations from an earlier position of a recurrence to the next one, in those of one pipe
    slot, for each position in between; 0.0 for any other store.

    A multiply-add is one, but of two products that are added the compiler may take the other one. Choices by the
    position are made ahead of the loop.
    """
    back = {x: _steps_back(store, x) for v in store.values for x in loads(v) if x.buffer in store.buffers}
    longest: dict[Expr, float] = {}

    def length(e: Expr) -> float:
        """From the nearest of the earlier positions to `e`; below 0 where none of them is in it."""
        if e not in longest:
            kind, product = kind_of(e), _only_product(e)
            own = max(1.0, _slots(e, kind)) if kind and not _is_decided(e, frozenset()) else 0.0
            through = [n + (0.0 if c is product else own) for c in e.children if (n := length(c)) >= 0.0]
            longest[e] = 0.0 if e in back else max(through, default=-1.0)
        return longest[e]

    return max(map(length, store.values)) / min(back.values()) if back else 0.0


def in_steady_state(store: Store) -> Store:
    """Return the store of a recurrence as nearly all positions compute it: of two values that the position chooses
    from, the one that reads earlier positions. Any other store is returned as it is."""

    def chosen(e: Expr) -> Expr:
        if isinstance(e, Select) and not loads(e.cond):
            goes_on, begins = (any(x.buffer in store.buffers for x in loads(v)) for v in (e.a, e.b))
            return e if goes_on == begins else e.a if goes_on else e.b
        return e

    if store.reducer is not None or not any(x.buffer in store.buffers for v in store.values for x in loads(v)):
        return store
    return changed(store, values=tuple(bottom_up(v, chosen) for v in store.values))


def _only_product(e: Expr) -> Expr | None:
    """Return the product that a sum of floats turns into a multiply-add; None of two."""
    products = [x for x in e.children if isinstance(x, Binary) and x.op == "mul"]
    is_sum = isinstance(e, Binary) and e.op in ("add", "sub") and DTYPES[e.dtype].is_float
    return products[0] if is_sum and len(products) == 1 else None


def _steps_back(store: Store, load: Load) -> int:
    return max(abs(step or 0) for step in steps_from(store.indices, load.indices)) or 1


def _is_index(expr: Expr) -> bool:
    """Whether it is an integer that no data are in: the same for a vector, or a constant."""
    return DTYPES[expr.dtype].is_integer and not loads(expr)


def _is_min_or_max(expr: Expr) -> bool:
    plain = isinstance(expr, Binary) and expr.op in ("min", "max") and DTYPES[expr.dtype].is_float
    return plain and not any(isinstance(x, Const) for x in expr.children)


def _is_decided(expr: Expr, lanes: frozenset[Var]) -> bool:
    """A select whose condition is about indices that are the same in all lanes, or that is decided for whole blocks of
    vectors, as borders are (`lower/passes/partition_interior.py`)."""
    if not isinstance(expr, Select) or loads(expr.cond):
        return False
    return all(not free_vars(c) & lanes or _is_border(c, lanes) for c in conjuncts(expr.cond))


def _is_border(cond: Expr, lanes: frozenset[Var]) -> bool:
    """An ordering of an index that is linear in the lanes."""
    if not is_ordering(cond):
        return False
    return all(isinstance(atom, Var) or not free_vars(atom) & lanes for atom, _ in linear(cond.a - cond.b).terms)


def _combined(store: Store) -> tuple[Expr, ...]:
    """The values, with the reducer's combination written out."""
    if store.reducer is None:
        return store.values
    operands: dict[Expr, Expr] = dict(zip(store.reducer.rhs, store.values, strict=True))
    return tuple(substitute(result, operands) for result in store.reducer.results)


def _nodes(values: Sequence[Expr]) -> list[Expr]:
    seen: dict[Expr, None] = {}
    stack = list(values)
    while stack:
        expr = stack.pop()
        if expr not in seen:
            seen[expr] = None
            if not isinstance(expr, Load):
                stack.extend(expr.children)
    return list(seen)


def _fused_product(expr: Expr) -> Expr | None:
    """The product, or the products of words, that a sum turns into a multiply-add."""
    if isinstance(expr, Binary) and expr.op in ("add", "sub"):
        return next((c for c in expr.children if isinstance(c, Dot) or (isinstance(c, Binary) and c.op == "mul")), None)
    return None


def _dot(expr: Expr) -> Dot | None:
    found = expr if isinstance(expr, Dot) else _fused_product(expr)
    return found if isinstance(found, Dot) else None


def _multiplicity(expr: Expr) -> int:
    """Multiply-adds of an element operation."""
    dot = _dot(expr)
    return 1 if dot is None else dot.row.depth


def kind_of(expr: Expr) -> str:
    """Its class of operations, "" where it takes none."""
    prefix = "float_" if DTYPES[expr.dtype].is_float else "int_"
    match expr:
        case Binary(op=op) if op in COMPARISON:
            return ("float_" if DTYPES[expr.a.dtype].is_float else "int_") + "cmp"
        case Binary(op=op) if op in LOGICAL:
            return "bool_op"
        case Binary(op="add" | "sub") if _fused_product(expr) is not None:
            return prefix + "mad"
        case Binary(op=op) if op in BITWISE:
            return "int_other"
        case Binary(op=op):
            return prefix + _BINARY[op]
        case Call(fn="not"):
            return "bool_op"
        case Call(fn=fn):
            return prefix + ("math" if fn in CALL_SLOTS else "other")
        case Select():
            return "select_op"
        case Cast():
            return prefix + "other"
        case Word():
            return "" if is_whole_word(expr) else "int_other"
        case Dot():
            return prefix + "mad"
    return ""


def _slots(expr: Expr, kind: str) -> float:
    if isinstance(expr, Call) and expr.fn in CALL_SLOTS:
        return CALL_SLOTS[expr.fn]
    if isinstance(expr, Binary) and expr.op in CALL_SLOTS:
        return CALL_SLOTS[expr.op]
    if isinstance(expr, Word):
        return WORD_PART_SLOTS * len(expr.parts)
    if kind == "int_divmod" and isinstance(expr, Binary) and isinstance(expr.b, Const):
        return _division_slots(expr, expr.b)
    dot = _dot(expr)
    return OP_SLOTS[kind] if dot is None else DOT_SLOTS[dot.intrinsic]


def _division_slots(expr: Binary, divisor: Const) -> float:
    """Slots of the quotient or the remainder of an integer by a constant, or by a size, which no code is made for."""
    if isinstance(divisor.value, SymbolicInteger) or divisor.value <= 0:
        return OP_SLOTS["int_divmod"]
    if divisor.number.bit_count() == 1:
        return OP_SLOTS["int_other"]
    row = DTYPES[expr.dtype]
    slots = DIVISION_SLOTS[row.bits] * (SIGNED_DIVISION if row.kind == "i" else 1.0)
    return slots if expr.op == "floordiv" else slots * REMAINDER


def loaded(value: Expr) -> list[Load]:
    """The loads of a value, of a word that is loaded whole the first part's."""
    rest = {p for e in subexpressions(value) if is_whole_word(e) for p in e.children[1:]}
    return [load for load in loads(value) if load not in rest]


def border_loads(store: Store, buffers: Mapping[str, Buffer]) -> frozenset[Load]:
    """Return the loads of a border that happen only where a clamped index is outside: those of few threads, of lines
    that others load as well."""
    read = dict.fromkeys(load.buffer for value in store.values for load in loads(value))
    found = (border_reads(store.values, frozenset({name}), buffers[name].shape) for name in read)
    return frozenset(load for pairs in found for load, _ in pairs)


def edge_loads(store: Store) -> frozenset[Load]:
    """Return the loads that only blocks at a border make: X[0] of select(i >= 1, X[i - 1], X[0])."""
    inside = {load for v in store.values for load in loads(bottom_up(v, _away_from_border))}
    return frozenset(load for v in store.values for load in loads(v)) - inside


def _away_from_border(e: Expr) -> Expr:
    """The first choice of a select by position both of whose choices read one buffer."""
    if not isinstance(e, Select) or not any(map(is_ordering, conjuncts(e.cond))):
        return e
    return e.a if {x.buffer for x in loads(e.a)} & {x.buffer for x in loads(e.b)} else e


def hint_instructions(hint: Prefetch, var: Var, copied: frozenset[Var]) -> tuple[float, float]:
    """(of each copy, of all together) instructions of a hint in the loop of `var`, written out for those `copied`: what
    of its place moves with the loop, and the hint itself."""
    moving = {e for i in hint.indices for e in subexpressions(i) if e.children and var in free_vars(e)}
    apart = {e for e in moving if copied & free_vars(e)}
    each = sum(_index_instructions(e) for e in apart if not _is_displaced(e, var))
    return 1.0 + each, float(sum(map(_index_instructions, moving - apart)))


def _index_instructions(expr: Expr) -> int:
    """Of one operation on indices: a lesser number is a comparison and a choice, a quotient a product and a shift, a
    remainder one more product and a difference."""
    return 2 if isinstance(expr, Binary) and expr.op in ("min", "max", "floordiv", "mod") else 1


def _is_displaced(expr: Expr, var: Var) -> bool:
    """Whether only a distance is added that does not move with the variable: a part of each address."""
    return isinstance(expr, Binary) and expr.op == "add" and not all(var in free_vars(e) for e in expr.children)
