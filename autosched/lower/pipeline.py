"""From a schedule to the loop nest that code is generated from.

Once for each sketch, `lower` makes the symbolic nest (`symbolic/`). For each candidate that is built, `concretise` puts
in its integers (`passes/instantiate.py`) and runs PASSES in their order. `watch` sees the nest after each of them:
`autosched show ID --as passes` prints what changed, and the environment's AUTOSCHED_DEBUG has levels, each with what
those before it do:

    2   the nest is verified after each pass
    3   the time of each pass goes to stderr
    4   and the nest, where the pass changed it
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from autosched.ir.printer import func_text
from autosched.ir.simplify import Simplifier
from autosched.ir.stmt import BLOCKS, THREADS, Buffer, For, Func, Seq, Stmt, walk
from autosched.lower.code_splitting import Piece
from autosched.lower.limits import check_nest
from autosched.lower.passes.compute_in_place import compute_in_place
from autosched.lower.passes.divide_once import divide_once
from autosched.lower.passes.fuse_passes import fuse_passes
from autosched.lower.passes.hoist_invariants import hoist_invariants
from autosched.lower.passes.instantiate import instantiate, simplify_stmt
from autosched.lower.passes.integral_floats import integral_floats
from autosched.lower.passes.loop_over_lines import loop_over_lines
from autosched.lower.passes.merge_equal_guards import join_cases
from autosched.lower.passes.overlap_iterations import overlap_iterations
from autosched.lower.passes.partition_interior import partition_interior
from autosched.lower.passes.scatter import scatter_by_data
from autosched.lower.passes.specialise_tails import specialise_tails
from autosched.lower.passes.unroll_and_jam_rows import unroll_and_jam_rows
from autosched.lower.symbolic.lower import lower

VERIFY, TIME, DUMP = 2, 3, 4  # levels of AUTOSCHED_DEBUG
Watch = Callable[[str, Func, bool, float], None]  # a pass by name, what is there after it, if it changed that, seconds


@dataclass(frozen=True)
class PassContext:
    """What passes know beside the body: the function that it is of, and the ranges of its loops."""

    func: Func
    simplify: Simplifier

    @property
    def inputs(self) -> frozenset[str]:
        """With what was prepared of them."""
        given = self.func.params[: len(self.func.params) - self.func.n_outputs]
        return frozenset(b.name for b in (*given, *self.func.prepared))

    @property
    def outputs(self) -> dict[str, Buffer]:
        return {b.name: b for b in self.func.params[len(self.func.params) - self.func.n_outputs :]}


@dataclass(frozen=True)
class Pass:
    """One step over the body of a concrete function; `when` says for which bodies, as they were at the beginning."""

    name: str
    run: Callable[[Stmt, PassContext], Stmt]
    when: Callable[[Stmt], bool] = lambda body: True


def is_for_processors(body: Stmt) -> bool:
    return not any(isinstance(s, For) and (s.kind in BLOCKS or s.kind in THREADS) for s in walk(body))


def _checked(body: Stmt, context: PassContext) -> Stmt:
    check_nest(context.func.name, context.func.params, body)
    return body


PASSES: tuple[Pass, ...] = (
    # What is too large is refused, before any pass copies code and once more at the end.
    Pass("check_limits", _checked),
    # Shared buffers are filled ahead of the iteration that reads them.
    Pass("overlap_iterations", lambda body, c: overlap_iterations(body, c.simplify)),
    # A row is used while it is being made, in vectors of the same width.
    Pass("fuse_passes", lambda body, c: fuse_passes(body, c.simplify)),
    # A row on its way to an output is kept in the output.
    Pass("compute_in_place", lambda body, c: compute_in_place(body, c.outputs, c.simplify), is_for_processors),
    # The passes over one row run beside those over the next ones.
    Pass("unroll_and_jam_rows", lambda body, c: unroll_and_jam_rows(body, c.simplify), is_for_processors),
    # What all vectors of a row read is read once.
    Pass("hoist_invariants", lambda body, c: hoist_invariants(body, c.inputs), is_for_processors),
    # Loops of which the data choose one iteration do that one.
    Pass("scatter_by_data", lambda body, c: scatter_by_data(body, c.simplify), is_for_processors),
    # Constant extents for unrolled and vectorised loops.
    Pass("specialise_tails", lambda body, c: specialise_tails(body, c.simplify)),
    Pass("simplify", lambda body, c: simplify_stmt(body, c.simplify) or Seq(())),
    # A full tile and one that is not are each done as a whole.
    Pass("join_cases", lambda body, c: join_cases(body), is_for_processors),
    # A byte between floats need not become one, and is rounded where it does.
    Pass("integral_floats", lambda body, c: integral_floats(body), is_for_processors),
    # On GPUs a division by what a thread's loop does not change is a product.
    Pass("divide_once", lambda body, c: divide_once(body), lambda body: not is_for_processors(body)),
    # Register tiles away from borders lose their conditions; at a border what lies outside is left out of reductions.
    Pass("partition_interior", lambda body, c: partition_interior(body, c.simplify)),
    Pass("check_limits", _checked),
)


# Of what is done with weights, once and ahead of the kernel.
ON_WEIGHTS: tuple[Pass, ...] = (
    # Wide panels are written by a loop.
    Pass("loop_over_lines", lambda body, c: loop_over_lines(body, {b.name for b in c.func.prepared}, c.simplify)),
)


def concretise(func: Func, values: Mapping[str, int], watch: Watch | None = None) -> tuple[Func, Simplifier]:
    """The concrete nest of a symbolic one, and the simplifier that knows its loops' ranges.

    Raises ScheduleError where it is more than a kernel may be (`limits.py`).
    """
    watchers = [w for w in (watch, _debug_watch()) if w is not None]
    started = time.perf_counter()
    concrete, simplify = instantiate(func, values)
    for each in watchers:
        each("instantiate", concrete, True, time.perf_counter() - started)
    context = PassContext(concrete, simplify)
    if concrete.prepare is not None:
        whole = partial(_preparing, concrete)
        prepare = _run_passes(concrete.prepare, context, whole, watchers, (*PASSES, *ON_WEIGHTS))
        concrete = replace(concrete, prepare=prepare)
    whole = partial(_running, concrete)
    return whole(_run_passes(concrete.body, context, whole, watchers, PASSES)), simplify


def concretise_piece(piece: Piece) -> tuple[Func, Simplifier]:
    """As `concretise`, of a piece of a kernel, whose function has no `prepare`."""
    watchers = [w for w in (_debug_watch(),) if w is not None]
    simplify = Simplifier()
    func = replace(piece.func, body=simplify_stmt(piece.func.body, simplify) or Seq(()))
    passes = (*PASSES, *ON_WEIGHTS) if piece.ahead else PASSES
    whole = partial(_running, func)
    return whole(_run_passes(func.body, PassContext(func, simplify), whole, watchers, passes)), simplify


def _running(func: Func, body: Stmt) -> Func:
    return replace(func, body=body)


def _preparing(func: Func, body: Stmt) -> Func:
    return replace(func, prepare=body)


def _run_passes(
    body: Stmt, context: PassContext, whole: Callable[[Stmt], Func], watchers: list[Watch], passes: tuple[Pass, ...]
) -> Stmt:
    """`whole` makes of a body the function that watchers see."""
    holds = {when: when(body) for when in {step.when for step in passes}}
    for step in [step for step in passes if holds[step.when]]:
        started, before = time.perf_counter(), body
        body = step.run(body, context)
        if watchers:
            seconds = time.perf_counter() - started
            for watch in watchers:
                watch(step.name, whole(body), body != before, seconds)
    return body


def _debug_watch() -> Watch | None:
    """What AUTOSCHED_DEBUG asks for."""
    level = debug_level()
    if level < VERIFY:
        return None

    def watch(name: str, func: Func, changed: bool, seconds: float) -> None:
        from autosched.ir.verify import verify

        if level >= TIME:
            print(f"{func.name}: {name} {1e3 * seconds:.2f} ms", file=sys.stderr)
        if level >= DUMP and changed:
            print(func_text(func), file=sys.stderr)
        verify(func, concrete=True)

    return watch


def debug_level() -> int:
    """AUTOSCHED_DEBUG as a number: 0 where it is not set, 1 for what is no number."""
    text = os.environ.get("AUTOSCHED_DEBUG", "")
    return int(text) if text.isdecimal() else int(bool(text))


__all__ = ["PASSES", "concretise", "debug_level", "lower"]
