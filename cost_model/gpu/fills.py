"""Cooperative fills of shared buffers by all threads of a block: their memory accesses, as closed forms.

Such a buffer is walked element by element, whatever its shape:
element = (each * threads + thread) * vector + lane. With G_d the distance in global memory of neighbours along
dimension d of the buffer, a run of contiguous elements is its last extent where G is 1 there, times the one before
where that continues the run, and so on; `vector` neighbours are one access where they are neighbours in both
memories and `vector` divides the run and everything else that moves the addresses. Where the position is a part of a
number of which the address has digits (windows in a row of a matrix), the run is as long as the last digit counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autosched.ir.closed_forms.arithmetic import is_one, is_zero
from autosched.ir.expr import COMPARISON, INDEX, Binary, Const, Expr, Var, binary, imin, product, select
from autosched.ir.linear import linear
from autosched.ir.stmt import Buffer, Scope, Store
from autosched.ir.visit import free_vars, loads, subexpressions
from cost_model.analysis.access import stored
from cost_model.analysis.operations import border_loads
from cost_model.analysis.statements import Statement

OUTSIDE = (Scope.PARAM, Scope.GLOBAL)
UNIT: Expr = Const(1, INDEX)
NONE: Expr = Const(0, INDEX)
TRUE: Expr = Const(True, "bool")
FALSE: Expr = Const(False, "bool")


@dataclass(frozen=True, eq=False)
class Fill:
    """A statement that fills a shared buffer together with the other threads of its block. Integer closed forms."""

    vector: Expr
    trips: Expr
    shape: tuple[Expr, ...]
    steps: tuple[Expr, ...]  # distance in shared memory of neighbours along each dimension
    runs: tuple[tuple[str, Expr], ...]  # buffer outside -> contiguous elements of it
    aligned: Expr  # bool: every vector is one access
    borders: Expr  # comparisons with a border that some place of the buffer may be beyond

    @property
    def width(self) -> Expr:
        """Elements of one access."""
        return select(self.aligned, self.vector, UNIT)

    def run(self, buffer: str) -> Expr:
        return dict(self.runs).get(buffer, UNIT)


def fill_of(statement: Statement) -> Fill | None:
    store = statement.store
    lane, each = Var(f"{store.stage}.lane"), Var(f"{store.stage}.each")
    if statement.write.buffer.scope is not Scope.SHARED or not any(lane in free_vars(i) for i in store.indices):
        return None
    bounds = {x.var: x.bound for x in statement.loops}
    vector = bounds.get(lane, UNIT)
    own_vars = {lane, each}
    is_place = [bool(free_vars(i)) and not free_vars(i) & own_vars for i in store.indices]  # of a pipeline
    shape = tuple(UNIT if p else e for p, e in zip(is_place, statement.write.buffer.shape, strict=True))
    places = [
        None if p or isinstance(i, Const) else lane if isinstance(i, Binary) and i.op == "add" else i
        for p, i in zip(is_place, store.indices, strict=True)
    ]
    runs: list[tuple[str, Expr]] = []
    own, _ = flat(statement.write.buffer, store.indices)
    steps = [NONE if p is None else own.get(p, NONE) for p in places]
    _, aligned = _run(statement.write.buffer, store.indices, places, shape, vector, lane)
    by_name = {a.buffer.name: a.buffer for a in statement.accesses}
    borders = border_loads(store, by_name)
    for load in dict.fromkeys(x for v in store.values for x in loads(v) if x not in borders):
        buffer = by_name[load.buffer]
        if buffer.scope not in OUTSIDE:
            # The rows of other buffers of the block are longer: a vector that is in two rows has no neighbours there.
            aligned = aligned & divides(vector, shape[-1]) if buffer.scope is Scope.SHARED else aligned
            continue
        run, even = _run(buffer, load.indices, places, shape, vector, lane)
        runs.append((buffer.name, run))
        aligned = aligned & even
    lengths = {x.var: x.bound for x in statement.loops} | {
        p: e for p, e in zip(places, shape, strict=True) if p is not None
    }
    trips, tests = bounds.get(each, UNIT), _borders(store, lengths)
    return Fill(vector, trips, shape, tuple(steps), tuple(runs), aligned, tests)


def _borders(store: Store, lengths: Mapping[Expr, Expr]) -> Expr:
    """Of the comparisons in a store's values, how many are needed; `lengths`: atom -> its values are 0 and up to that.

    Code of a tile that divides its axis has none: what they say is known."""
    found = NONE
    for e in dict.fromkeys(x for value in store.values for x in subexpressions(value)):
        if isinstance(e, Binary) and e.op in COMPARISON and e.a.dtype == INDEX:
            found = found + select(_is_known(e, lengths), NONE, UNIT)
    return found


def _is_known(comparison: Binary, lengths: Mapping[Expr, Expr]) -> Expr:
    """Return whether the comparison holds for all values of the atoms, bool, with coefficients of at least 0."""
    form = linear(comparison.a)
    if comparison.op == "ge" and is_zero(comparison.b):
        return binary("ge", form.constant, NONE)
    if comparison.op != "lt" or not isinstance(comparison.b, Const) or any(a not in lengths for a, _ in form.terms):
        return FALSE
    largest = form.constant
    for atom, coefficient in form.terms:
        largest = largest + coefficient * (lengths[atom] - 1)
    return binary("lt", largest, comparison.b)


def flat(buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[dict[Expr, Expr], Expr]:
    """(atom -> elements that one step of it moves the address, constant part) of an element's place."""
    places, shape = stored(buffer, indices)
    moves: dict[Expr, Expr] = {}
    constant = NONE
    for n, place in enumerate(places):
        form, stride = linear(place), product(shape[n + 1 :])
        constant = constant + form.constant * stride
        for atom, coefficient in form.terms:
            moves[atom] = moves.get(atom, NONE) + coefficient * stride
    return moves, constant


def _run(
    buffer: Buffer,
    indices: tuple[Expr, ...],
    places: Sequence[Expr | None],
    shape: Sequence[Expr],
    vector: Expr,
    lane: Var,
) -> tuple[Expr, Expr]:
    """(contiguous elements, whether vectors are aligned) of an access in a fill; `places[d]`: the atom that is the
    position along dimension d of the shared buffer, None where it has one element."""
    moves, constant = flat(buffer, indices)
    digits = {p: d for p in places if p is not None and (d := _digit(moves, p)) is not None}
    steps = [NONE if p is None else digits[p].step if p in digits else moves.get(p, NONE) for p in places]
    known = [p for p in places if p is not None] + [d.last for d in digits.values()]
    others = [(atom, step) for atom, step in moves.items() if atom not in known]
    inside = {atom for d in digits.values() for atom in d.atoms}
    if any(lane in free_vars(atom) and not isinstance(atom, Var) and atom not in inside for atom, _ in others):
        return UNIT, binary("eq", vector, UNIT)  # addresses that are no linear form of the position
    run, goes_on, even = UNIT, TRUE, divides(vector, constant)
    for place, step, extent in reversed(list(zip(places, steps, shape, strict=True))):
        if is_one(extent):
            continue
        digit = None if place is None else digits.get(place)
        goes_on = goes_on & binary("eq", step, run)
        length = extent if digit is None else imin(extent, digit.reach)
        run = select(goes_on, run * length, run)
        even = even & (divides(vector, step) | binary("lt", step, run) | binary("eq", extent, UNIT))
        if digit is not None:
            even = even & (divides(vector, step) | digit.keeps(vector))
            goes_on = FALSE
    for atom, step in others:
        if lane not in free_vars(atom) or atom in inside:
            even = even & divides(vector, step)
    return run, even & divides(vector, run)


@dataclass(frozen=True)
class PlaceDigit:
    """A position that moves an address by digits of a number: by `step` for each of `count` positions, of which `last`
    is the digit, then by others of `atoms`. `number`: what is divided."""

    step: Expr
    count: Expr
    last: Expr
    atoms: tuple[Expr, ...]
    number: Expr
    place: Expr
    reach: Expr  # for how many positions neighbours are neighbours, with the digits after the last

    def keeps(self, vector: Expr) -> Expr:
        """Whether neighbours in a vector differ in the last digit alone, bool."""
        form = linear(self.number)
        even = divides(vector, self.count) & divides(vector, form.constant)
        for atom, coefficient in form.terms:
            even = even if atom is self.place else even & divides(vector, coefficient)
        return even


def _digit(moves: Mapping[Expr, Expr], place: Expr) -> PlaceDigit | None:
    """How a position moves an address if it does by digits; None where it does otherwise, or not."""
    atoms = tuple(a for a in moves if a is not place and any(e is place for e in subexpressions(a)))
    divisions = {
        (e.a, e.b)
        for a in atoms
        for e in subexpressions(a)
        if isinstance(e, Binary) and e.op in ("mod", "floordiv") and is_one(linear(e.a).coefficient(place))
    }
    counts = sorted(int(b.value) for _, b in divisions if isinstance(b, Const))
    is_one_number = len({number for number, _ in divisions}) == 1 and len(counts) == len(divisions)
    if not is_one_number or any(n % counts[0] for n in counts) or place in moves:
        return None
    number, count = next(iter(divisions))[0], Const(counts[0], INDEX)
    last = binary("mod", number, count)
    return PlaceDigit(moves.get(last, NONE), count, last, atoms, number, place, _reach(moves, number, counts[0]))


def _reach(moves: Mapping[Expr, Expr], number: Expr, count: int) -> Expr:
    """Positions until a digit moves the address by something else than all the positions before it: taps beside each
    other go on where the channels end."""
    while True:
        here, quotient = Const(count, INDEX), binary("floordiv", number, Const(count, INDEX))
        digits = (a for a, step in moves.items() if isinstance(a, Binary) and a.op == "mod" and step is here)
        following = next((a.b for a in digits if a.a is quotient and isinstance(a.b, Const)), None)
        if following is None:
            return here
        count *= int(following.value)


def divides(small: Expr, large: Expr) -> Expr:
    if is_one(small) or is_zero(large):
        return TRUE
    return binary("eq", large % small, NONE)
