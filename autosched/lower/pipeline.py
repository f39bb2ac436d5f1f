"""The lowering pipeline: from a schedule to the loop nest that code is generated from.

Once for each sketch, `lower` makes the symbolic nest (`symbolic/`). For each candidate that is built, `concretise`
substitutes its integers (`passes/instantiate.py`) and runs PASSES in order (`autosched/passes.py`).
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
from autosched.lower.passes.carry_states import carry_states
from autosched.lower.passes.compute_in_place import compute_in_place
from autosched.lower.passes.divide_once import divide_once
from autosched.lower.passes.fuse_passes import fuse_passes
from autosched.lower.passes.hoist_invariants import hoist_invariants
from autosched.lower.passes.instantiate import instantiate, simplify_stmt
from autosched.lower.passes.integral_floats import integral_floats
from autosched.lower.passes.loop_over_lines import loop_over_lines
from autosched.lower.passes.merge_equal_guards import merge_equal_guards
from autosched.lower.passes.overlap_iterations import overlap_iterations
from autosched.lower.passes.partition_interior import partition_interior
from autosched.lower.passes.scatter import scatter_by_data
from autosched.lower.passes.specialise_tails import specialise_tails
from autosched.lower.passes.unroll_and_jam_rows import unroll_and_jam_rows
from autosched.lower.passes.unswitch_blocks import unswitch_blocks
from autosched.lower.symbolic.lower import lower
from autosched.passes import Pass, PassPipeline, Watch


@dataclass(frozen=True)
class PassContext:
    """The function that a pass transforms, and a simplifier with the ranges of its loops."""

    func: Func
    simplify: Simplifier

    @cached_property
    def is_for_processors(self) -> bool:
        return not any(isinstance(s, For) and (s.kind in BLOCKS or s.kind in THREADS) for s in walk(self.func.body))

    @property
    def inputs(self) -> frozenset[str]:
        """Names of the inputs, and of the values prepared from them."""
        originals = self.func.params[: len(self.func.params) - self.func.n_outputs]
        return frozenset(b.name for b in (*originals, *self.func.prepared))

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Those that the body does not allocate."""
        return (*self.func.params, *self.func.prepared)

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
    NestPass("check_limits", _checked, "The limits of a kernel are checked before any pass copies code."),
    NestPass(
        "overlap_iterations", lambda body, c: overlap_iterations(body, c.simplify),
        "Shared buffers are filled ahead of the iteration that reads them.",
    ),
    NestPass(
        "fuse_passes", lambda body, c: fuse_passes(body, c.simplify),
        "Loop fusion: a row is used while it is computed, in vectors of the same width.",
    ),
    NestPass(
        "compute_in_place", lambda body, c: compute_in_place(body, c.outputs, c.simplify),
        "An intermediate row is kept in the output that it is copied to.", is_for_processors,
    ),
    NestPass(
        "unroll_and_jam_rows", lambda body, c: unroll_and_jam_rows(body, c.simplify),
        "The loops over one row are interleaved with those over the next rows.", is_for_processors,
    ),
    NestPass(
        "hoist_invariants", lambda body, c: hoist_invariants(body, c.inputs),
        "Loads and computations that all vectors of a row share are hoisted.", is_for_processors,
    ),
    NestPass(
        "scatter_by_data", lambda body, c: scatter_by_data(body, c.simplify),
        "A loop of which the data select one iteration runs only that one.", is_for_processors,
    ),
    NestPass(
        "unswitch_blocks", lambda body, c: unswitch_blocks(body, c.simplify),
        "Vectors over parts of a concatenation are blocks with branches between them.", is_for_processors,
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
        "join_cases", lambda body, c: merge_equal_guards(body),
        "Adjacent statements under equal guards share one guard.", is_for_processors,
    ),
    NestPass(
        "carry_states", lambda body, c: carry_states(body, c.buffers, c.simplify),
        "A recurrence keeps the values of earlier positions in registers.",
    ),
    NestPass(
        "integral_floats", lambda body, c: integral_floats(body),
        "Integral floats skip conversions to bytes, and are rounded when converted.", is_for_processors,
    ),
    NestPass(
        "divide_once", lambda body, c: divide_once(body),
        "A division by a loop invariant becomes a multiplication, which is faster on GPUs.", is_for_gpus,
    ),
    NestPass(
        "partition_interior", lambda body, c: partition_interior(body, c.simplify),
        "Register tiles in the interior have no conditions; at a border, reductions leave out the padding.",
    ),
    NestPass("check_limits", _checked, "The limits are checked again after the passes that copy code."),
)  # fmt: skip
# Passes over the packing of weights, which runs once at load time.
PACKING_PASSES: tuple[NestPass, ...] = (
    NestPass(
        "loop_over_lines", lambda body, c: loop_over_lines(body, {b.name for b in c.func.prepared}, c.simplify),
        "Wide panels are written by a loop.",
    ),
)  # fmt: skip


def _verify(func: Func) -> None:
    from autosched.ir.verify import verify

    verify(func, concrete=True)


# Watchers see the function around the body.
PIPELINE: PassPipeline[Stmt, PassContext] = PassPipeline(
    "lower", PASSES, lambda func: str(func.name), func_text, _verify, operator.eq
)
PACKING_PIPELINE = replace(PIPELINE, passes=(*PASSES, *PACKING_PASSES))


def concretise(func: Func, values: Mapping[str, int], watch: Watch | None = None) -> tuple[Func, Simplifier]:
    """Return the concrete nest of a symbolic one, and the simplifier with its loops' ranges.

    Raises ScheduleError where it is more than a kernel may be (`limits.py`).
    """
    started = time.perf_counter()
    concrete, simplify = instantiate(func, values)
    for each in PIPELINE.watchers(watch):
        each("instantiate", concrete, True, time.perf_counter() - started)
    context = PassContext(concrete, simplify)
    if concrete.prepare is not None:
        packed = PACKING_PIPELINE.run(concrete.prepare, context, watch, partial(_with_packing, concrete))
        concrete = _with_packing(concrete, packed)
    whole = partial(_with_body, concrete)
    return whole(PIPELINE.run(concrete.body, context, watch, whole)), simplify


def concretise_piece(piece: Piece) -> tuple[Func, Simplifier]:
    """As `concretise`, for a piece of a kernel, whose function has no `prepare`."""
    simplify = Simplifier()
    func = replace(piece.func, body=simplify_stmt(piece.func.body, simplify) or Seq(()))
    whole = partial(_with_body, func)
    pipeline = PACKING_PIPELINE if piece.ahead else PIPELINE
    body = pipeline.run(func.body, PassContext(func, simplify), None, whole)
    return whole(body), simplify


def _with_body(func: Func, body: Stmt) -> Func:
    return replace(func, body=body)


def _with_packing(func: Func, body: Stmt) -> Func:
    return replace(func, prepare=body)


__all__ = ["PASSES", "concretise", "lower"]
