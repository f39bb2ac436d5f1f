"""Comparisons of indices in the conditions of selects, and the effect of a reduction where one is false."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache, reduce
from typing import TypeGuard

from autosched.ir.expr import INDEX, Binary, Cast, Const, Expr, Load, Select, Var, const
from autosched.ir.instructions.dots import Dot, Word
from autosched.ir.linear import Linear, linear
from autosched.ir.stmt import For, ForKind, Reducer, Seq, Store, walk
from autosched.ir.symbolic import is_known
from autosched.ir.visit import free_vars, loads, rebuild, subexpressions, substitute

ORDERINGS = frozenset({"ge", "gt", "le", "lt"})
MIRRORED = {"ge": "le", "gt": "lt", "le": "ge", "lt": "gt"}  # a op b  is  b MIRRORED[op] a
NEGATED = {"ge": "lt", "gt": "le", "le": "gt", "lt": "ge", "eq": "ne", "ne": "eq"}  # ... and not a NEGATED[op] b
# a op b  of integers  is  a - b at least, or at most, this
LIMITS = {"ge": (True, 0), "gt": (True, 1), "le": (False, 0), "lt": (False, -1)}


def is_ordering(cond: Expr) -> TypeGuard[Binary]:
    """Whether it compares indices with <, <=, > or >=, whatever the data are."""
    return isinstance(cond, Binary) and cond.op in ORDERINGS and cond.a.dtype == INDEX and not loads(cond)


def conjuncts(cond: Expr) -> Iterator[Expr]:
    """The conditions that have to hold together."""
    if isinstance(cond, Binary) and cond.op == "and":
        yield from conjuncts(cond.a)
        yield from conjuncts(cond.b)
    else:
        yield cond


def every(conditions: Iterable[Expr]) -> Expr:
    """Return the conjunction of the conditions."""
    return reduce(lambda a, b: a & b, conditions, const(True, "bool"))


def comparisons(stores: Iterable[Store]) -> list[Binary]:
    """Those of indices with <, <=, > or >= that what is stored depends on, each once; none that depends on data."""
    conditions: dict[Expr, None] = {}
    for value in (v for store in stores for v in store.values):
        for e in subexpressions(value):
            conditions.update(dict.fromkeys(conjuncts(e.cond) if isinstance(e, Select) else ()))
    return list(filter(is_ordering, conditions))


def adds_nothing(store: Store, comparison: Expr) -> bool:
    """Whether the store combines what is there with the reducer's identity where the comparison does not hold.

    A product with zero counts as zero, whatever the other factor.
    """
    return store.reducer is not None and leaves_identity(store.values, store.reducer, comparison)


def is_left_out(store: Store, fixed: Callable[[Expr], Expr]) -> bool:
    """Whether `fixed` decides that what is combined with what is there is an identity in a condition's stead."""
    if store.reducer is None or len(store.values) > 1 or not isinstance(value := store.values[0], Select):
        return False
    known = (c for c in conjuncts(value.cond) if isinstance(c, Binary) and c.a.dtype == INDEX and not loads(c))
    return value.b is store.reducer.identity[0] and any(fixed(c) is const(False, "bool") for c in known)


def leaves_identity(values: Iterable[Expr], reducer: Reducer, comparison: Expr) -> bool:
    """Whether what is reduced is the reducer's identity where the comparison does not hold."""
    return _are_identities([outside(v, comparison) for v in values], reducer)


def _are_identities(values: Iterable[Expr], reducer: Reducer) -> bool:
    pairs = zip(values, reducer.identity, strict=True)
    return all(value is start or (_is_zero(value) and _is_zero(start)) for value, start in pairs)


def chosen_by_data(values: Sequence[Expr], reducer: Reducer, axis: Var) -> tuple[Expr, Expr] | None:
    """A comparison `data == axis + c` without which only the reducer's identity is combined, as in the counts of a
    histogram and the sums of segments, and the axis' value where it holds."""
    for e in dict.fromkeys(x for v in values for x in subexpressions(v)):
        if not (isinstance(e, Binary) and e.op == "eq" and e.a.dtype == INDEX):
            continue
        form = linear(e.a - e.b)
        sign = form.coefficient(axis)
        if sign not in (const(1), const(-1)):
            continue
        at = Linear(tuple((x, sign * c * -1) for x, c in form.terms if x is not axis), sign * form.constant * -1).expr()
        if axis in free_vars(at) or not loads(at):
            continue
        if _are_identities([substitute(v, {e: const(False, "bool")}) for v in values], reducer):
            return e, at
    return None


def iteration_by_data(loop: For) -> tuple[Expr, Expr] | None:
    """The same of a serial loop around one update, which does nothing in its other iterations."""
    if loop.kind is not ForKind.SERIAL or loop.reduce:
        return None
    inside = list(walk(loop.body))
    stores = [s for s in inside if isinstance(s, Store)]
    if len(stores) != 1 or stores[0].reducer is None:
        return None
    choice = chosen_by_data(stores[0].values, stores[0].reducer, loop.var)
    if choice is None or not all(isinstance(s, (For, Seq, Store)) for s in inside):
        return None
    inner: set[Expr] = {s.var for s in inside if isinstance(s, For)}
    moves = free_vars(choice[1]) & inner or any(x.buffer in stores[0].buffers for x in loads(choice[1]))
    return None if moves else choice


def given(expr: Expr, known: set[Expr]) -> Expr:
    """`expr` where all of `known` hold, parts of selects' conditions, also of selects within conditions."""

    @cache
    def go(e: Expr) -> Expr:
        if not isinstance(e, Select):
            return rebuild(e, go) if e.children else e
        value = go(e.a)
        left = [go(c) for c in conjuncts(e.cond) if c not in known]
        if not left:
            return value
        cond = left[0]
        for c in left[1:]:
            cond = cond & c
        return Select(cond, value, go(e.b))

    return go(expr)


def outside(expr: Expr, comparison: Expr) -> Expr:
    """`expr` where `comparison`, a part of selects' conditions, does not hold."""

    @cache
    def go(e: Expr) -> Expr:
        if isinstance(e, Select) and comparison in conjuncts(e.cond):
            return go(e.b)
        return rebuild(e, go) if e.children else e

    return go(expr)


def _is_zero(expr: Expr) -> bool:
    match expr:
        case Const(value=value):
            return value == 0
        case Cast(a=a):
            return _is_zero(a)
        case Word(parts=parts):
            return all(map(_is_zero, parts))
        case Binary(op="mul", a=a, b=b) | Dot(a=a, b=b):
            return _is_zero(a) or _is_zero(b)
    return False


@lru_cache(maxsize=1 << 10)  # regions are inferred again for each partial sketch
def border_reads(
    values: tuple[Expr, ...], buffers: frozenset[str], shape: tuple[Expr, ...]
) -> frozenset[tuple[Load, int]]:
    """The loads, with a dimension, that read the first or the last element only where an index that is read as well
    lies outside: of select(i >= 1, X[i - 1], X[0]), which is X[max(i - 1, 0)], the load X[0].

    `shape`: that of each of the buffers. A tile that has the values i - 1 of a clamped index, each clamped, has these
    elements wherever they are read."""
    reads = dict.fromkeys(x for v in values for x in loads(v) if x.buffer in buffers)
    indices = [dict.fromkeys(i for x in reads if free_vars(i := x.indices[d])) for d in range(len(shape))]
    settled, used = set[tuple[Load, int]](), set[tuple[Load, int]]()

    def is_border(index: Expr, dim: int, facts: frozenset[Expr]) -> bool:
        """Whether the facts, forms that are 0 at most, say that some other index is before the first element that
        this index is, or after the last one."""
        last = shape[dim] - const(1)
        below = list(indices[dim]) if index is const(0) else []
        above = [last - i for i in indices[dim]] if index is last else []
        gaps = (linear(fact - form) for fact in facts for form in (*below, *above))
        constants = (g.constant for g in gaps if not g.terms)
        return any(isinstance(c, Const) and is_known("ge", c.value, 0) for c in constants)

    @cache
    def visit(e: Expr, facts: frozenset[Expr]) -> None:
        if isinstance(e, Load) and e.buffer in buffers:
            for dim, index in enumerate(e.indices):
                if not free_vars(index):
                    (settled if is_border(index, dim, facts) else used).add((e, dim))
        if isinstance(e, Select):
            visit(e.cond, facts)
            visit(e.a, facts.union(limits(e.cond)))
            visit(e.b, facts.union(limits(e.cond, holds=False)))
        else:
            for child in e.children:
                visit(child, facts)

    for value in values:
        visit(value, frozenset())
    return frozenset(settled - used)


def limits(cond: Expr, holds: bool = True) -> list[Expr]:
    """Return forms that are 0 at most where the condition holds, or where it does not: those of its comparisons of
    indices."""
    parts = list(conjuncts(cond))
    return [_at_most_zero(c, holds) for c in parts if is_ordering(c)] if holds or len(parts) == 1 else []


def limits_of_loop(loop: For) -> list[Expr]:
    """Return forms that are 0 at most in the loop, of its variable and each of its `ends_of` that is no constant."""
    return [loop.var - (end - 1) for end in ends_of(loop) if not isinstance(end, Const)]


def ends_of(loop: For) -> list[Expr]:
    """Return what the variable of the loop is below: its extent, of a minimum each operand."""
    ends, found = [loop.extent], list[Expr]()
    while ends:
        end = ends.pop()
        if isinstance(end, Binary) and end.op == "min":
            ends += [end.a, end.b]
        else:
            found.append(end)
    return found


def _at_most_zero(cond: Binary, holds: bool = True) -> Expr:
    """A form that is 0 at most exactly where the comparison of integers holds, or exactly where it does not."""
    is_at_least, limit = LIMITS[cond.op if holds else NEGATED[cond.op]]
    difference = cond.a - cond.b
    return const(limit) - difference if is_at_least else difference - const(limit)
