"""Legality rules of CPU candidates, as boolean closed forms.

These are limits of the machine and of code size, not of correctness: every row of a sketch's parameters gives a
right program. A row that breaks one spills registers, overflows a cache that was meant to hold it, or takes LLVM
seconds to compile.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass

from autosched.ir.closed_forms.arithmetic import in_pairs
from autosched.ir.expr import Const, Expr, ceildiv, imax, product, select
from autosched.ir.stmt import ForKind, Scope
from autosched.lower.limits import MAX_LOCAL_BYTES, MAX_WORKSPACE_BYTES, WORKSPACE_SHARE
from cost_model.analysis.statements import Analysis, Statement
from cost_model.cpu.machine import Machine
from cost_model.cpu.tile_products import fits_tiles

MAX_UNROLLED = 1024  # copies of one statement (vectors counted)
# The same where not all outputs of a tile have a register: half the square of the registers, 512 of 32 (7 x 7 outputs
# by 3 x 3 are 441) and 128 of 16. There tiles of 72 and 126 copies took 1.00 to 1.02 of the time of the best, whose
# text is two to six times as long. Vectors beyond a line share nothing, and have no more than this for each register.
MAX_PASSING_LINES = 8
MAX_INSTRUCTIONS = 4096  # arithmetic and memory instructions of all unrolled statements together,
UNROLLED_SHARE = 2  # or this multiple of those without unrolling, if that is more: a pipeline has a hundred stages


@dataclass(frozen=True, eq=False)
class Rule:
    name: str
    holds: Expr  # bool
    whole: bool = False  # about a sum over all nests, of which none need know the others' parameters to be right itself


def rules(analysis: Analysis, machine: Machine) -> tuple[Rule, ...]:
    """Return all limits of one sketch, without those that are always true."""
    nests = dict.fromkeys(s.nest for s in analysis.statements)
    instructions = max(MAX_INSTRUCTIONS, UNROLLED_SHARE * sum(map(_instructions, analysis.statements)))
    found = [Rule("registers", _registers(analysis, n, machine) <= machine.accumulator_limit) for n in nests]
    found += [
        Rule("local bytes", _bytes(analysis, Scope.LOCAL) <= MAX_LOCAL_BYTES, True),
        Rule(
            "workspace bytes",
            _bytes(analysis, Scope.GLOBAL) + _bytes(analysis, Scope.LOCAL) * machine.threads
            <= max(MAX_WORKSPACE_BYTES, WORKSPACE_SHARE * analysis.parameter_bytes),
            True,
        ),
        Rule(
            "instructions",
            summed([_copies(s, machine) * _instructions(s) for s in analysis.statements]) <= instructions,
            True,
        ),
    ]
    by_tiles = [(s.stage, fits_tiles(s, machine)) for s in analysis.statements]
    found += [Rule(f"tiles {stage}", fits) for stage, fits in by_tiles if fits is not None]
    found += [Rule(f"unrolled {s.stage}", _copies(s, machine) <= _most(s, machine)) for s in analysis.statements]
    found += [Rule("extents", bound >= 1) for bound in extents(analysis)]
    return tuple(r for r in found if not (isinstance(r.holds, Const) and r.holds.value))


def summed(terms: list[Expr]) -> Expr:
    return in_pairs(operator.add, terms, Const(0))


def _registers(analysis: Analysis, nest: int, machine: Machine) -> Expr:
    result: Expr = Const(0)
    for statement in analysis.statements:
        if statement.nest == nest and statement.accumulators:
            result = imax(result, statement.registers(machine.lanes(statement.itemsize), machine.target))
    return result


def _bytes(analysis: Analysis, scope: Scope) -> Expr:
    return summed([a.bytes for a in analysis.allocations if a.buffer.scope is scope])


def _instructions(statement: Statement) -> int:
    """Of one copy; arithmetic hides loads that it takes from memory itself."""
    return max(len(statement.accesses), math.ceil(statement.ops.slots))


def _copies(statement: Statement, machine: Machine) -> Expr:
    """Copies of the statement in the code: unrolled iterations times vectors; a product in tiles is one."""
    if fits_tiles(statement, machine) is not None:
        return Const(1)
    lanes = machine.lanes(statement.itemsize)
    unrolled = product([x.bound for x in statement.loops if x.kind is ForKind.UNROLL])
    return unrolled * product([ceildiv(x.bound, lanes) for x in statement.loops if x.kind is ForKind.VECTORIZE])


def _most(statement: Statement, machine: Machine) -> Expr:
    """Copies of the statement that are worth their code."""
    if statement.rolling is None:
        return Const(MAX_UNROLLED)
    lanes, target = machine.lanes(statement.itemsize), machine.target
    chunks = product([ceildiv(x.bound, lanes) for x in statement.loops if x.kind is ForKind.VECTORIZE])
    of_a_line = chunks <= max(1, target.line_bytes // target.vector_bytes)
    few = select(of_a_line, Const(machine.registers**2 // 2), Const(MAX_PASSING_LINES * machine.registers))
    return select(statement.rolling.rolls(statement.accumulating(lanes), target), few, Const(MAX_UNROLLED))


def extents(analysis: Analysis) -> list[Expr]:
    """Distinct closed forms that must be positive: trip counts and buffer shapes."""
    bounds = [x.bound for s in analysis.statements for x in s.loops]
    shapes = [e for a in analysis.allocations for e in a.buffer.shape]
    return [e for e in dict.fromkeys(bounds + shapes) if not isinstance(e, Const)]
