"""From a schedule to the loop nest that code is generated from.

Once for each sketch, `lower` makes the symbolic nest (`symbolic/`). For each candidate that is built, `concretise` puts
in its integers (`passes/instantiate.py`) and runs PASSES in their order (`autosched/passes.py`).
"""

from __future__ import annotations

import operator
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

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
from autosched.passes import Pass, Pipeline, Watch


@dataclass(frozen=True)
class PassContext:
    """What passes know beside the body: the function that it is of, and the ranges of its loops."""

    func: Func
    simplify: Simplifier

    @cached_property
    def is_for_processors(self) -> bool:
        return not any(isinstance(s, For) and (s.kind in BLOCKS or s.kind in THREADS) for s in walk(self.func.body))

    @property
    def inputs(self) -> frozenset[str]:
        """With what was prepared of them."""
        given = self.func.params[: len(self.func.params) - self.func.n_outputs]
        return frozenset(b.name for b in (*given, *self.func.prepared))

    @property
    def outputs(self) -> dict[str, Buffer]:
        return {b.name: b for b in self.func.params[len(self.func.params) - self.func.n_outputs :]}


def is_for_processors(context: PassContext) -> bool:
    return context.is_for_processors


def is_for_gpus(context: PassContext) -> bool:
    return not context.is_for_processors


def _checked(body: Stmt, context: PassContext) -> Stmt:
    check_nest(context.func.name, context.func.params, body)
    return body


NestPass = Pass[Stmt, PassContext]
PASSES: tuple[NestPass, ...] = (
    NestPass("check_limits", _checked, "What is too large is refused before any pass copies code."),
    NestPass(
        "overlap_iterations", lambda body, c: overlap_iterations(body, c.simplify),
        "Shared buffers are filled ahead of the iteration that reads them.",
    ),
    NestPass(
        "fuse_passes", lambda body, c: fuse_passes(body, c.simplify),
        "A row is used while it is being made, in vectors of the same width.",
    ),
    NestPass(
        "compute_in_place", lambda body, c: compute_in_place(body, c.outputs, c.simplify),
        "A row on its way to an output is kept in the output.", is_for_processors,
    ),
    NestPass(
        "unroll_and_jam_rows", lambda body, c: unroll_and_jam_rows(body, c.simplify),
        "The loops over one row run beside those over the next ones.", is_for_processors,
    ),
    NestPass(
        "hoist_invariants", lambda body, c: hoist_invariants(body, c.inputs),
        "What all vectors of a row read is read once.", is_for_processors,
    ),
    NestPass(
        "scatter_by_data", lambda body, c: scatter_by_data(body, c.simplify),
        "Loops of which the data choose one iteration do that one.", is_for_processors,
    ),
    NestPass(
        "specialise_tails", lambda body, c: specialise_tails(body, c.simplify),
        "Unrolled and vectorised loops have constant extents.",
    ),
    NestPass(
        "simplify", lambda body, c: simplify_stmt(body, c.simplify) or Seq(()),
        "Tails make conditions constant.",
    ),
    NestPass(
        "join_cases", lambda body, c: join_cases(body),
        "A full tile and a partial one are each computed as a whole.", is_for_processors,
    ),
    NestPass(
        "integral_floats", lambda body, c: integral_floats(body),
        "A byte between floats need not become one, and is rounded where it does.", is_for_processors,
    ),
    NestPass(
        "divide_once", lambda body, c: divide_once(body),
        "A division by a loop invariant is a product, which GPUs do faster.", is_for_gpus,
    ),
    NestPass(
        "partition_interior", lambda body, c: partition_interior(body, c.simplify),
        "Register tiles in the interior have no conditions; at a border, reductions leave out the padding.",
    ),
    NestPass("check_limits", _checked, "Passes that copy code may have made too much of it."),
)  # fmt: skip
# For the packing of weights, once and ahead of the kernel.
PACKING_PASSES: tuple[NestPass, ...] = (
    NestPass(
        "loop_over_lines", lambda body, c: loop_over_lines(body, {b.name for b in c.func.prepared}, c.simplify),
        "Wide panels are written by a loop.",
    ),
)  # fmt: skip


def pipeline(packing: bool = False) -> Pipeline[Stmt, PassContext]:
    """The passes over the body of a kernel, or over the packing of its weights; watchers see the function."""
    passes = (*PASSES, *PACKING_PASSES) if packing else PASSES
    return Pipeline("lower", passes, lambda func: str(func.name), func_text, _verify, operator.eq)


def concretise(func: Func, values: Mapping[str, int], watch: Watch | None = None) -> tuple[Func, Simplifier]:
    """The concrete nest of a symbolic one, and the simplifier that knows its loops' ranges.

    Raises ScheduleError where it is more than a kernel may be (`limits.py`).
    """
    started = time.perf_counter()
    concrete, simplify = instantiate(func, values)
    for each in pipeline().watchers(watch):
        each("instantiate", concrete, True, time.perf_counter() - started)
    context = PassContext(concrete, simplify)
    if concrete.prepare is not None:
        packed = pipeline(packing=True).run(concrete.prepare, context, watch, partial(_with_packing, concrete))
        concrete = _with_packing(concrete, packed)
    whole = partial(_with_body, concrete)
    return whole(pipeline().run(concrete.body, context, watch, whole)), simplify


def concretise_piece(piece: Piece) -> tuple[Func, Simplifier]:
    """As `concretise`, of a piece of a kernel, whose function has no `prepare`."""
    simplify = Simplifier()
    func = replace(piece.func, body=simplify_stmt(piece.func.body, simplify) or Seq(()))
    whole = partial(_with_body, func)
    body = pipeline(piece.ahead).run(func.body, PassContext(func, simplify), None, whole)
    return whole(body), simplify


def _with_body(func: Func, body: Stmt) -> Func:
    return replace(func, body=body)


def _with_packing(func: Func, body: Stmt) -> Func:
    return replace(func, prepare=body)


def _verify(func: Func) -> None:
    from autosched.ir.verify import verify

    verify(func, concrete=True)


__all__ = ["PASSES", "concretise", "lower"]
