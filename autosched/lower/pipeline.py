"""What runs, in order, from a schedule to the loop nest that code is generated from.

once for each sketch      lower               schedule -> symbolic nest (nest.py, domains.py, weights.py)
for each measured row     instantiate         integers for parameters, canonical expressions
                          check_nest          what is too large is refused (limits.py), here and at the end
                          overlap_iterations  shared buffers are filled ahead of the iteration that reads them
                          join_passes         a row is used while it is being made, in vectors of the same width
                          compute_in_place    a row on its way to an output is kept in the output
                          interleave_rows     the passes over one row run beside those over the next ones
                          hold_values         what all vectors of a row read is read once
                          go_where_data_say   loops of which the data choose one iteration do that one (the last four on
                                              CPUs only)
                          specialise_tails    constant extents for unrolled and vectorised loops
                          specialise_interior register tiles away from borders lose their conditions; at a border what
                                              lies outside is left out of reductions (borders.py)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autosched.ir.simplify import Simplifier
from autosched.ir.stmt import BLOCKS, THREADS, For, Func, Seq, Stmt, walk
from autosched.lower.limits import check_nest
from autosched.lower.passes.compute_in_place import compute_in_place
from autosched.lower.passes.fuse_passes import join_passes
from autosched.lower.passes.hoist_invariants import hold_values
from autosched.lower.passes.instantiate import instantiate, simplify_stmt
from autosched.lower.passes.overlap_iterations import overlap_iterations
from autosched.lower.passes.partition_interior import specialise_interior
from autosched.lower.passes.scatter import go_where_data_say
from autosched.lower.passes.specialise_tails import specialise_tails
from autosched.lower.passes.unroll_and_jam_rows import interleave_rows
from autosched.lower.symbolic.lower import lower


def concretise(func: Func, values: Mapping[str, int]) -> tuple[Func, Simplifier]:
    """The concrete nest of a symbolic one, and the simplifier that knows its loops' ranges."""
    concrete, simplify = instantiate(func, values)
    outputs = {b.name: b for b in concrete.params[len(concrete.params) - concrete.n_outputs :]}

    def finished(body: Stmt) -> Stmt:
        check_nest(func.name, func.params, body)
        body = join_passes(overlap_iterations(body, simplify), simplify)
        if not any(isinstance(s, For) and (s.kind in BLOCKS or s.kind in THREADS) for s in walk(body)):
            body = hold_values(interleave_rows(compute_in_place(body, outputs, simplify), simplify))
            body = go_where_data_say(body, simplify)
        body = simplify_stmt(specialise_tails(body, simplify), simplify) or Seq(())
        body = specialise_interior(body, simplify)
        check_nest(func.name, func.params, body)
        return body

    prepare = None if concrete.prepare is None else finished(concrete.prepare)
    return replace(concrete, body=finished(concrete.body), prepare=prepare), simplify


__all__ = ["concretise", "lower"]
