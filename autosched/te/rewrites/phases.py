"""Strided reductions (`in_phases`): a sum of which a condition keeps every s-th term becomes a sum over those terms.

    Y[h] = sum over k of W[k] (X[(h + p - k) // s] where (h + p - k) % s = 0, else 0)        a transposed convolution

Of all k only t, s + t, 2 s + t, .. count, where t depends on the remainder of h alone: with k = s q + t and
h = s j + t - p every index is linear in the new axes,

    Y.phases[t, j] = sum over q of W[s q + t] X[j - q]         Y[h] = Y.phases[(h + p) % s, (h + p) // s]

so a convolution of stride s in d dimensions does 1 / s^d of the work. Remainders are outermost, or stand behind their
rows where the last axis has none: then all phases may be the result itself, in another shape. Conditions are found in
any reduction that they leave at its identity (`conditions.leaves_identity`), with constants that share no factor with
s. They are found in stages as well that it reads and that only insert zeros, as x[i // s] where i % s = 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import gcd

from autosched.ir.conditions import conjuncts, every, leaves_identity
from autosched.ir.expr import INDEX, Binary, Const, Expr, Load, Select, Var, const, select
from autosched.ir.simplify import Simplifier
from autosched.ir.visit import free_vars, loads, rebuild, substitute
from autosched.te.checks import is_inside
from autosched.te.dag import ComputeDAG
from autosched.te.tensor import Axis, ComputeOp, Tensor, fresh_name, postorder, rewrite


@dataclass(frozen=True)
class Phase:
    """Terms k = step * q + t count. `output`: the axis h whose remainder says which, h + shift = step * j + t, or
    step * j + step - 1 - t if `mirrored`; None where t is `shift` everywhere."""

    term: Axis
    step: int
    output: Axis | None
    shift: int
    mirrored: bool = False

    @property
    def rows(self) -> int:
        """The values of j."""
        assert self.output is not None
        return (self.output.extent - 1 + self.shift) // self.step + 1

    @property
    def is_whole(self) -> bool:
        """Whether j and t in this order are h."""
        return self.output is None or not (self.shift or self.mirrored or self.output.extent % self.step)


def in_phases(dag: ComputeDAG) -> ComputeDAG:
    """The DAG with its sums of every s-th term over those terms; `dag` itself where there are none."""
    taken, alone = dag.names, {op.name for op in dag.stages if not dag.consumers(op.name)}

    def made(op: ComputeOp) -> tuple[Tensor, ...] | None:
        parts = _parts(op) or _parts(_read_through(op))
        return None if parts is None else (parts.result(taken, op.name in alone),)

    return dag.remade(made)


def _parts(op: ComputeOp) -> _Parts | None:
    """The stage in phases; None where it has none, or what it would read is not known to exist."""
    phases = tuple(_phases(op)) if op.reducer is not None and len(op.body) == 1 else ()
    candidates = (_Parts(op, phases, careful) for careful in (False, True) if phases)
    return next((parts for parts in candidates if is_inside(parts.stage)), None)


def _phases(op: ComputeOp) -> Iterator[Phase]:
    """One for each condition that chooses terms by a remainder, over axes of its own."""
    assert op.reducer is not None
    simplify = Simplifier({a.var: (0, a.extent - 1) for a in (*op.axes, *op.reduce_axes)})
    used: set[Axis] = set()
    conditions = dict.fromkeys(c for e in postorder(op.body) if isinstance(e, Select) for c in conjuncts(e.cond))
    for condition in conditions:
        phase = _phase(op, condition, simplify)
        if phase is not None and leaves_identity(op.body, op.reducer, condition):
            axes = {phase.term, *([phase.output] if phase.output else [])}
            if not axes & used:
                used |= axes
                yield phase


def _phase(op: ComputeOp, condition: Expr, simplify: Simplifier) -> Phase | None:
    """Which terms the condition f % s = r chooses; f = a h + b k + c, beside multiples of s."""
    if not (isinstance(condition, Binary) and condition.op == "eq" and condition.a.dtype == INDEX) or loads(condition):
        return None
    form = simplify.affine(condition.a - condition.b)
    if len(form.terms) != 1 or abs(form.terms[0][1]) != 1:
        return None
    ((atom, sign),) = form.terms
    if not (isinstance(atom, Binary) and atom.op == "mod" and isinstance(atom.b, Const)):
        return None
    s, inner = atom.b.number, simplify.affine(atom.a)
    single = {a.var for a in op.axes if a.extent == 1}
    moving = {v: c % s for v, c in inner.terms if c % s and v not in single}
    terms, outputs = ([a for a in axes if a.var in moving] for axes in (op.reduce_axes, op.axes))
    if len(terms) != 1 or len(outputs) > 1 or len(moving) != len(terms) + len(outputs):
        return None
    (k,), rest = terms, -sign * form.constant - inner.constant
    b = moving[k.var]
    if gcd(b, s) > 1:
        return None
    if not outputs:
        return Phase(k, s, None, pow(b, -1, s) * rest % s)
    (h,) = outputs
    a, steps = moving[h.var], dict(inner.terms)
    mirrored = steps[h.var] == steps[k.var] or (a + b) % s != 0  # t then moves what is read least
    if (a - b if mirrored else a + b) % s:
        return None
    return Phase(k, s, h, ((s - 1) * mirrored - pow(a, -1, s) * rest) % s, mirrored)


def _read_through(op: ComputeOp) -> ComputeOp:
    """The stage with elements that are only spread out, or padded as well, read where they come from."""
    made = {t.name: t.op for t in op.inputs if isinstance(t.op, ComputeOp) and _spreads(t.op)}
    if op.reducer is None or not made:
        return op

    def element(node: Expr, new: Expr) -> Expr:
        if not isinstance(node, Load) or node.buffer not in made:
            return new
        source = made[node.buffer]
        return substitute(source.body[0], dict(zip((a.var for a in source.axes), new.children, strict=True)))

    sources = (t for s in made.values() for t in s.inputs)
    inputs = {t.name: t for t in (*op.inputs, *sources) if t.name not in made}
    return _read_through(replace(op, body=rewrite(op.body, element), inputs=tuple(inputs.values())))


def _spreads(op: ComputeOp) -> bool:
    """Whether the stage is elements of another one that spreads out, or spreads itself: zeros but at multiples."""
    (value, *more) = op.body
    if op.reducer is not None or more or not isinstance(value, Select) or not isinstance(value.a, Load):
        return False
    by_remainder = (isinstance(e, Binary) and e.op == "mod" for c in conjuncts(value.cond) for e in postorder((c,)))
    sources = (t.op for t in op.inputs)
    return any(by_remainder) or any(isinstance(s, ComputeOp) and _spreads(s) for s in sources)


class _Parts:
    """A stage with the terms and outputs of its phases in parts. `careful`: terms beyond the last one are left out as a
    whole, instead of with a factor of 0."""

    def __init__(self, op: ComputeOp, phases: tuple[Phase, ...], careful: bool) -> None:
        self.op, self.phases = op, phases
        self.first = any(p.output is op.axes[-1] for p in phases if op.axes)  # remainders are outermost
        self.axes: dict[Var, tuple[Axis, ...]] = {}
        self.remainders: list[Axis] = []
        whole: dict[Expr, Expr] = {}
        taken = {a.name for a in (*op.axes, *op.reduce_axes)}
        for phase in phases:
            whole.update(self._divide(phase, taken))
        spatial, reduced = (
            tuple(p for a in axes for p in self.axes.get(a.var, (a,))) for axes in (op.axes, op.reduce_axes)
        )
        axes = (*(self.remainders if self.first else ()), *spatial)
        body = self._body(whole, (*axes, *reduced), careful)
        self.stage = ComputeOp(op.name, axes, reduced, (body,), op.reducer, op.inputs)

    def _divide(self, phase: Phase, taken: set[str]) -> Iterable[tuple[Var, Expr]]:
        """The axes of a phase in parts, by which these are."""
        k, h, s = phase.term, phase.output, phase.step

        def part(axis: Axis, suffix: str, extent: int) -> Axis:
            return Axis(Var(fresh_name(f"{axis.name}_{suffix}", taken), INDEX), extent, axis.reduce)

        q = part(k, "term", -(-k.extent // s))
        self.axes[k.var] = (q,)
        if h is None:
            return [(k.var, q.var * s + phase.shift)]
        t, j = part(h, "phase", s), part(h, "row", phase.rows)
        self.remainders.append(t)
        self.axes[h.var] = (j,) if self.first else (j, t)
        within = const(s - 1, INDEX) - t.var if phase.mirrored else t.var
        return [(k.var, q.var * s + t.var), (h.var, j.var * s + within - phase.shift)]

    def _body(self, whole: dict[Expr, Expr], axes: tuple[Axis, ...], careful: bool) -> Expr:
        assert self.op.reducer is not None
        (value,), (identity, *_) = self.op.body, self.op.reducer.identity
        guards = {k.var: whole[k.var] < k.extent for k in (p.term for p in self.phases if p.term.extent % p.step)}
        cut = _cut(value, guards)
        if careful or not all(leaves_identity((cut,), self.op.reducer, guard) for guard in guards.values()):
            cut = select(every(guards.values()), value, identity)
        return Simplifier({a.var: (0, a.extent - 1) for a in axes})(substitute(cut, whole))

    def result(self, taken: set[str], alone: bool) -> Tensor:
        """What the whole stage gives; `alone`: it is an output that nobody reads."""
        whole = not self.first and all(p.is_whole for p in self.phases)
        if not self.remainders or (whole and alone):
            return self.stage.outputs[0].seen_as(self.op.shape)
        parts = replace(self.stage, name=fresh_name(f"{self.op.name}.phases", taken)).outputs[0]
        load: Load = Load(parts.name, self._places(), parts.dtype)
        return ComputeOp(self.op.name, self.op.axes, (), (load,), None, (parts,)).outputs[0]

    def _places(self) -> tuple[Expr, ...]:
        """Where the stage with the phases has the value of each point of the whole stage."""
        remainders, rows = list[Expr](), dict[Var, tuple[Expr, ...]]()
        for phase in (p for p in self.phases if p.output is not None):
            assert phase.output is not None
            moved = phase.output.var + phase.shift
            t = moved % phase.step
            remainders.append(const(phase.step - 1, INDEX) - t if phase.mirrored else t)
            rows[phase.output.var] = (moved // phase.step, *([] if self.first else remainders[-1:]))
        inner = (part for a in self.op.axes for part in rows.get(a.var, (a.var,)))
        return (*(remainders if self.first else ()), *inner)


def _cut(expr: Expr, guards: Mapping[Var, Expr]) -> Expr:
    """`expr` with 0 in place of what it reads, outside of selects, at axes whose guard does not hold."""
    if isinstance(expr, Load):
        return select(every(guards[v] for v in guards if v in free_vars(expr)), expr, const(0, expr.dtype))
    return expr if isinstance(expr, Select) or not expr.children else rebuild(expr, lambda e: _cut(e, guards))
