"""Chains of dependent accumulations in a block, and of positions of a recurrence: how long each operation waits."""

from __future__ import annotations

from collections.abc import Sequence

from autosched.ir.closed_forms.arithmetic import ONE, ZERO, add, multiply, real, subtract, where
from autosched.ir.expr import INDEX, Const, Expr, product
from autosched.ir.stmt import ForKind
from autosched.lower.passes.carry_states import MOST_HELD
from cost_model.analysis.operations import recurrence_chain
from cost_model.analysis.statements import Statement
from cost_model.analysis.trips import AnalysedLoop
from cost_model.cpu.machine import Machine


def accumulation_chains(statement: Statement, chunks: Expr, machine: Machine) -> tuple[Expr, Expr, Expr]:
    """(independent chains, dependent steps of each, cycles) of the accumulations in one block.

    Steps of the loop just outside depend on each other when they update the same place, or are positions of a
    recurrence; otherwise blocks overlap.
    """
    inner = statement.loops[statement.block_depth :]
    if not statement.updates:
        return ONE, ZERO, _recurrence_latency(statement, inner, machine)
    write, first = statement.write, statement.block_depth
    chains, length = ONE, ONE
    for i, loop in enumerate(inner, first):
        if write.moves(i):
            chains = multiply(chains, chunks if loop.kind is ForKind.VECTORIZE else loop.trips)
        elif loop.kind is ForKind.UNROLL:
            length = multiply(length, loop.trips)
        else:  # a reduction over lanes is a tree of shuffles at the end; the chunks are added up one by one
            length = multiply(length, chunks)
    carried = first > 0 and not write.moves(first - 1)
    step = machine.uarch.min_max_latency if statement.ops.minima_and_maxima else machine.uarch.accumulator_step
    step += 0.0 if write.in_registers else machine.uarch.store_forward
    cycles = multiply(length, step) if carried else multiply(subtract(length, 1.0), step)
    return chains, length, cycles


def _recurrence_latency(statement: Statement, inner: Sequence[AnalysedLoop], machine: Machine) -> Expr:
    """Cycles from one position of a recurrence to the next, where these are the blocks of the loop just outside."""
    first, chain = statement.block_depth, recurrence_chain(statement.store)
    if not chain or first == 0 or not statement.loops[first - 1].reduce:
        return ZERO
    held = real(product([Const(2, INDEX), *(x.bound for x in inner)]))
    through_memory = where(held > float(MOST_HELD), machine.uarch.store_forward, 0.0)
    return add(through_memory, chain * machine.uarch.fma_latency)
