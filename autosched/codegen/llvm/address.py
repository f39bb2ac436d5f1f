"""Address computation: one base pointer for each set of loop variables, constants in the instruction.

The flat element index of an access is brought to  sum of coefficient * atom + constant. Unrolled
variables are constants, so accesses of an unrolled tile share one pointer and differ by an immediate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import index
from typing import NamedTuple

from autosched.codegen.llvm.bindings import HERE, Bindings, LaneRange, Numbers, Runtime
from autosched.codegen.llvm.vocabulary import memory_type
from autosched.codegen.llvm.writer import Frame, Writer
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import INDEX, Binary, Const, Expr, Var
from autosched.ir.simplify import Affine
from autosched.ir.stmt import Buffer
from autosched.ir.storage import element_count, flat_form, flat_index
from autosched.ir.symbolic import INTEGERS, SymbolicInteger, common_divisor, is_known
from autosched.ir.visit import free_vars


class LaneAccess(NamedTuple):
    """A pointer to the first element; lanes are `lane_stride` elements apart, or each is known to be `steps` behind it,
    or has an index of its own.

    A tuple, as `Val` is: thousands are made and looked up for a kernel, and a dataclass takes three times as long.
    """

    pointer: str
    offset: int  # constant, in elements
    lane_stride: int | None
    lane_index: Expr | None = None
    multiple: int = 1  # of which the number of the first element is a multiple
    steps: tuple[int, ...] = ()
    base: int = 1  # of which, for lanes at `steps`, the number of the element at `pointer` is a multiple

    def lane_steps(self, lanes: int) -> tuple[int, ...]:
        """Elements from the first one to that of each lane, where they are numbers."""
        return self.steps or tuple(n * (self.lane_stride or 0) for n in range(lanes))


def is_adjacent(places: list[LaneAccess]) -> bool:
    """Whether the places of each lane follow one another, and those of neighbouring lanes as well."""
    first = places[0]
    if first.lane_index is not None or first.lane_stride not in (0, len(places)):
        return False
    return all(
        (p.pointer, p.lane_stride, p.lane_index) == (first.pointer, first.lane_stride, None)
        and p.offset == first.offset + n
        for n, p in enumerate(places)
    )


@dataclass
class Placed:
    """A buffer with its pointer and the strides of its stored dimensions."""

    buffer: Buffer
    pointer: str
    blends: bool = True  # whether an update of some lanes of a row leaves the others as they are


@dataclass
class AccessPlan:
    """What an access is, whatever its loop variables are bound to; and what it is in `frame`, an innermost loop.

    Which variables are registers is the same everywhere in a frame: copies of an unrolled body differ in numbers alone.
    """

    place: Placed
    flat: Affine
    constant: int
    terms: list[tuple[Var, int]]
    atoms: list[tuple[Expr, int]]  # the terms that are no variables
    data: list[Var]  # those that stand for indices that are data
    frame: Frame | None = None
    numbers: list[tuple[Var, int]] = field(default_factory=list)  # the other terms
    running: list[tuple[Runtime, int]] = field(default_factory=list)
    pointer: str = ""
    multiple: int = 0  # of which all steps in `running` are multiples


@dataclass
class Addresses:
    """Pointers to elements over the current bindings of loop variables."""

    writer: Writer
    bindings: Bindings
    placed: dict[str, Placed]
    reduces_strength: bool  # whether LLVM looks for cheaper addresses in loops
    slots: set[str] = field(default_factory=set)  # pointers to register buffers
    inside: dict[str, str] = field(default_factory=dict)  # pointers into these that depend on loops, to theirs
    steady: frozenset[str] = frozenset()  # buffers that nothing here writes to
    _plans: dict[tuple[str, tuple[Expr, ...]], AccessPlan] = field(default_factory=dict)

    def access(self, name: str, indices: tuple[Expr, ...]) -> LaneAccess:
        place, key, env = self.placed[name], (name, indices), self.bindings.env
        plan = self._plans.get(key)
        if plan is None or plan.place is not place:
            if plan is None or plan.place.buffer != place.buffer:
                plan = self._plans[key] = self._plan(place, indices)
            plan.place, plan.frame = place, None  # the same elsewhere, as in each copy of a tile
        if any(isinstance(env[v], Numbers) for v in plan.data):
            return self._scattered(plan)
        if plan.data or plan.frame is not self.writer.frames[-1]:
            self._enter(plan)
        offset, stride = plan.constant, 0
        for var, c in plan.numbers:
            bound = env[var]
            if isinstance(bound, INTEGERS):
                offset += bound * c
            elif isinstance(bound, LaneRange):
                offset += bound.base * c
                stride += c
        if plan.atoms:
            return self._irregular(plan, offset, stride, plan.running.copy())
        if plan.pointer in self.slots:
            offset = index(offset)  # the writer tracks what registers hold by number
        multiple, pointer = common_divisor(offset, plan.multiple), plan.pointer
        if isinstance(offset, SymbolicInteger):
            rows, offset = _split(offset)
            pointer = self._pointer(plan.place, _terms(plan.running), rows)
        return LaneAccess(pointer, offset, stride, None, multiple)

    def _enter(self, plan: AccessPlan) -> None:
        """Recompute the plan of the access in the innermost frame."""
        plan.frame, plan.numbers, plan.running = self.writer.frames[-1], [], []
        for var, c in plan.terms:
            bound = self.bindings.env[var]
            if isinstance(bound, Runtime):
                plan.running.append((bound, c))
                continue
            plan.numbers.append((var, c))
            if isinstance(bound, LaneRange) and bound.chunk is not None:
                plan.running.append((bound.chunk, c * bound.lanes))
        if not plan.atoms:
            plan.pointer = self._pointer(plan.place, _terms(plan.running))
            plan.multiple = common_divisor(*(c for _, c in plan.running))

    def _plan(self, place: Placed, indices: tuple[Expr, ...]) -> AccessPlan:
        form = flat_form(place.buffer, indices, self.bindings.simplify)
        terms = [(atom, c) for atom, c in form.terms if isinstance(atom, Var)]
        atoms = [(atom, c) for atom, c in form.terms if not isinstance(atom, Var)]
        used = frozenset[Var]().union(*(free_vars(atom) for atom, _ in form.terms))
        data = [v for v in used if v in self.bindings.data.values()]
        return AccessPlan(place, form, form.constant, terms, atoms, data)

    def _scattered(self, plan: AccessPlan) -> LaneAccess:
        """A gathered access: the lanes' common address is the pointer, and each lane adds an offset."""
        offset, own = plan.constant, list[tuple[Expr, int]]()
        running: list[tuple[int, str, int]] = []
        for atom, c in (*plan.terms, *plan.atoms):
            vector = self.bindings.env[atom] if isinstance(atom, Var) else None
            if isinstance(vector, LaneRange):
                offset += vector.base * c
                running += [] if vector.chunk is None else [(vector.chunk.depth, vector.chunk.name, c * vector.lanes)]
                own.append((self.bindings.lane(vector.lanes), c))
                continue
            if any(isinstance(self.bindings.env[v], LaneRange | Numbers) for v in free_vars(atom)):
                own.append((atom, c))
                continue
            bound = self.bindings.scalar(atom)
            if isinstance(bound, INTEGERS):
                offset += bound * c
            else:
                running.append((bound.depth, bound.name, c))
        rows, offset = _split(offset)
        pointer = self._pointer(plan.place, sorted(running), rows)
        return LaneAccess(pointer, offset, None, self.bindings.fixed(Affine(tuple(own), 0).expr()))

    def _irregular(self, plan: AccessPlan, offset: int, stride: int, running: list[tuple[Runtime, int]]) -> LaneAccess:
        """An access whose index has other terms than loop variables, of which the rest is known."""
        odd: Expr | None = None
        patterns = self._known_lanes(plan.atoms)
        steps = [0]
        for atom, c in plan.atoms:
            bound = self.bindings.shared(atom)
            if bound is None and patterns is not None:
                bound, apart = patterns[atom]
                steps = [c * n + m for n, m in zip(apart, steps * (len(apart) // len(steps)), strict=True)]
            if isinstance(bound, INTEGERS):
                offset += bound * c
            elif bound is not None:
                running.append((bound, c))
            else:
                piece = Binary("mul", atom, Const(c, INDEX))
                odd = piece if odd is None else Binary("add", odd, piece)
        if odd is not None and stride:  # keep all lane-dependent parts together
            return LaneAccess(plan.place.pointer, 0, None, self.bindings.fixed(plan.flat.expr()))
        by_register: dict[tuple[int, str], int] = {}
        for at, c in running:
            by_register[at.depth, at.name] = by_register.get((at.depth, at.name), 0) + c
        terms = [(depth, name, c) for (depth, name), c in sorted(by_register.items())]
        rows, offset = _split(offset)
        pointer = self._pointer(plan.place, terms, rows)
        if odd is not None:
            return LaneAccess(pointer, offset, None, self.bindings.fixed(odd))
        base = common_divisor(rows, *by_register.values())
        return _spaced(pointer, offset, [m + n * stride for n, m in enumerate(steps)], stride, base)

    def _known_lanes(self, atoms: list[tuple[Expr, int]]) -> dict[Expr, tuple[int | Runtime, tuple[int, ...]]] | None:
        """What the atoms with lanes are (see `pattern`), None if one of them is not known."""
        lanes_of_atom = {}
        for atom, _ in atoms:
            if any(isinstance(self.bindings.env[v], LaneRange) for v in free_vars(atom)):
                known = self.bindings.pattern(atom)
                if known is None:
                    return None
                lanes_of_atom[atom] = known
        return lanes_of_atom

    def room(self, name: str, indices: tuple[Expr, ...], used: int) -> tuple[int, int]:
        """How many elements the buffer has, whatever the loops do, before the first lane and behind the last of those
        `used`."""
        place = self.placed[name]
        low, high = self.bindings.interval(flat_index(place.buffer, indices, self.bindings.simplify), used)
        return low, element_count(place.buffer) - 1 - high

    def has_all(self, name: str, indices: tuple[Expr, ...], used: int) -> bool:
        """Whether the buffer has the elements of all lanes `used`, at the current point."""
        buffer = self.placed[name].buffer
        low, high = self.bindings.interval_here(flat_index(buffer, indices, self.bindings.simplify), used)
        return is_known("ge", low, 0) and is_known("lt", high, element_count(buffer))

    def is_multiple(self, name: str, lanes: int) -> bool:
        """Whether the buffer consists of whole vectors."""
        return element_count(self.placed[name].buffer) % lanes == 0

    def at(self, access: LaneAccess, dtype: str) -> str:
        """A pointer to the first element."""
        if access.pointer in self.slots:
            self.writer.settle(access.pointer)
            return self._slot(access, dtype)
        if access.pointer in self.inside:
            self.writer.settle(self.inside[access.pointer])
        if is_known("eq", access.offset, 0):
            return access.pointer
        nbytes = access.offset * DTYPES[dtype].nbytes
        return self.writer.value(f"getelementptr inbounds i8, ptr {access.pointer}, i64 {nbytes}", "p")

    def _slot(self, access: LaneAccess, dtype: str) -> str:
        """Return a pointer into a register buffer, whose contents the writer tracks."""
        if access.offset == 0:
            return access.pointer
        nbytes = access.offset * DTYPES[dtype].nbytes
        memo, key = self.writer.frames[0].memo, (access.pointer, nbytes)
        name = memo.get(key)  # it is asked for again at every step of a reduction
        if name is None:
            name = memo[key] = self.writer.fresh("p")
            line = f"  {name} = getelementptr inbounds i8, ptr {access.pointer}, i64 {nbytes}"
            self.writer.frames[0].header.append(line)
        return name

    def read(self, access: LaneAccess, dtype: str, lanes: int) -> str:
        """So many adjacent elements, or one, as they are in memory."""
        held = access.pointer in self.slots
        name = self.writer.held(access.pointer, access.offset, lanes) if held else None
        if name is None:
            place = (self._slot if held else self.at)(access, dtype)
            name = self.writer.value(f"load {memory_type(dtype, lanes)}, ptr {place}, align {DTYPES[dtype].nbytes}")
            if held:
                self.writer.hold(access.pointer, access.offset, lanes, name)
        return name

    def write(self, access: LaneAccess, dtype: str, lanes: int, text: str, note: str = "") -> None:
        """Writes `text` to so many adjacent elements, with a note on the line."""
        held = access.pointer in self.slots
        place = (self._slot if held else self.at)(access, dtype)
        line = f"store {memory_type(dtype, lanes)} {text}, ptr {place}, align {DTYPES[dtype].nbytes}{note}"
        if held:
            self.writer.hold(access.pointer, access.offset, lanes, text, line)
        else:
            self.writer.store(line)

    def _pointer(self, place: Placed, terms: list[tuple[int, str, int]], rows: int = 0) -> str:
        """Return the pointer to the element at the sum of the terms and `rows`, a number that depends on sizes.

        That is added outside of the innermost loop, so that elements a number apart share a register there.
        """
        pointer, made = place.pointer, 0
        element = memory_type(place.buffer.dtype)
        if not is_known("eq", rows, 0):
            outer = [t for t in terms if t[0] < terms[-1][0]]
            pointer = self._pointer(place, outer)
            made = outer[-1][0] if outer else 0
            terms, of_rows, memo = terms[len(outer) :], (pointer, "rows", str(rows)), self.writer.frames[made].memo
            if of_rows not in memo:
                with self.writer.hoisted(made):
                    line = f"getelementptr inbounds {element}, ptr {pointer}, i64 {rows}"
                    memo[of_rows] = self.writer.value(line, "p")
            pointer = memo[of_rows]
        for depth, name, coefficient in terms:
            if depth == HERE:
                pointer = self._behind(pointer, element, name, coefficient)
                continue
            if self.reduces_strength and depth > made and pointer != place.pointer:
                pointer = self._opaque(pointer, made)
            made = depth
            memo, key = self.writer.frames[depth].memo, (pointer, name, coefficient)
            if key not in memo:
                with self.writer.hoisted(depth):
                    memo[key] = self._behind(pointer, element, name, coefficient)
            pointer = memo[key]
        if terms and place.pointer in self.slots:
            self.inside[pointer] = place.pointer
        return pointer

    def _behind(self, pointer: str, element: str, name: str, coefficient: int) -> str:
        is_constant = isinstance(coefficient, int) and coefficient > 0
        size = f"[{coefficient} x {element}]" if is_constant and coefficient > 1 else element
        step = name if is_constant else self.writer.value(f"mul nsw i64 {name}, {coefficient}")
        return self.writer.value(f"getelementptr inbounds {size}, ptr {pointer}, i64 {step}", "p")

    def _opaque(self, pointer: str, depth: int) -> str:
        """The pointer, made in frame `depth`, for the loops inside: as one from nowhere.

        Strength reduction takes an address apart into the variables of all loops around it. That is a quarter of LLVM's
        time, and what it then keeps for the outer loops are more integers than there are registers.
        """
        memo, key = self.writer.frames[depth].memo, ("opaque", pointer)
        if key not in memo:
            with self.writer.hoisted(depth):
                memo[key] = self.writer.value(f"call ptr @llvm.strip.invariant.group.p0(ptr {pointer})", "p")
        return memo[key]


def _split(offset: int) -> tuple[int, int]:
    """Return a number of elements as what sizes make of it, and a number."""
    if not isinstance(offset, SymbolicInteger):
        return 0, offset
    return offset - offset.constant, offset.constant


def _terms(running: Sequence[tuple[Runtime, int]]) -> list[tuple[int, str, int]]:
    """Return registers and their coefficients from the outermost loop to the innermost one."""
    return sorted((at.depth, at.name, c) for at, c in running)


def _spaced(pointer: str, offset: int, steps: list[int], stride: int, base: int) -> LaneAccess:
    """The access of which the lanes are `steps` behind `offset`; one stands for lanes `stride` apart."""
    offset, apart = offset + steps[0], tuple(index(n - steps[0]) for n in steps)
    if len(apart) > 1:
        stride = apart[1]
        if any(m != n * stride for n, m in enumerate(apart)):
            return LaneAccess(pointer, offset, None, None, 1, apart, base)
    return LaneAccess(pointer, offset, stride, None, common_divisor(offset, base))
