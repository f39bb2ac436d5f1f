"""Rules of control flow with constant conditions: branches are selected, loops of a known count become loops of ours.

A loop is unrolled if it has few iterations, or if its body must know the number of the iteration while importing: a
slice at that number is a view then. So is a loop whose states change their shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index

import numpy as np
from onnx import GraphProto

from autosched.errors import GraphError
from autosched.graph.index_checks import required_checks
from autosched.graph.loop_builder import Row
from autosched.graph.loops import FEW_ITERATIONS
from autosched.graph.onnx.site import NotConstant, Results, Site, refuse, rule

MOST_STEPS = 4096  # of a loop that is unrolled
MOST_ITERATIONS = 1 << 20  # of another one, whose body has an array of their numbers
BY_DATA = "depends on data; control flow by data is not supported"


def is_true(site: Site, name: str, what: str) -> bool:
    """Return the value of a condition. Raises NotConstant."""
    if name not in site.builder.constants:
        raise NotConstant(f"{what} ({name}) {BY_DATA}", name)
    return bool(site.builder.constants[name].reshape(()))


@rule("If")
def choose(site: Site) -> Results:
    branches = [site.attribute(f"{side}_branch") for side in ("else", "then")]
    return site.run(branches[is_true(site, site.input(0), "its condition")], [])


def attempt(site: Site, operands: Sequence[str], add: Callable[[], tuple[str, ...]]) -> tuple[str, ...] | None:
    """Return the results of a loop that `add` adds; None for one that must be unrolled."""
    b = site.builder
    is_tensor = all(name not in b.sequences and name not in b.held_types for name in operands)
    return site.importer.attempt(add) if is_tensor else None


def iteration(site: Site, body: GraphProto, given: Sequence[str]) -> tuple[str, ...]:
    """Import the body of a loop that is not unrolled. Raises GraphError for a body that only an unrolled loop has."""
    start, n_draws = len(site.builder.nodes), site.builder.n_draws
    results = site.run(body, given)
    b = site.builder
    refuse(b.n_draws > n_draws, "to draw random numbers in a loop")
    refuse(any(x in b.sequences or x in b.held_types for x in results), "what is no tensor of ours, in a loop")
    refuse(any(required_checks(node, b.values) for node in b.nodes[start:]), "to check indices in a loop")
    return results


def rolled_loop(site: Site, body: GraphProto, steps: int, carried: Sequence[str]) -> tuple[str, ...]:
    """Import a loop whose condition is always true."""
    numbers = site.constant(np.arange(steps))

    def one(states: tuple[str, ...], rows: tuple[str, ...]) -> tuple[Sequence[str], Sequence[Row]]:
        condition, *made = iteration(site, body, [rows[0], site.constant(True), *states])
        refuse(not is_true(site, condition, "its condition"), "a condition that becomes false")
        return made[: len(states)], [Row(name) for name in made[len(states) :]]

    ends, columns = site.builder.repeat(steps, carried, [Row(numbers)], one, site.origin)
    return (*ends, *columns)


@rule("Loop")
def loop(site: Site) -> Results:
    """Import a loop. Its body maps (iteration, condition, carried values) to (condition, carried values, rows)."""
    body, most, first = site.attribute("body"), site.array(0), site.optional(1)
    carried = [site.input(n) for n in range(2, len(site.inputs))]
    limit = MOST_STEPS + 1 if most is None else int(most.item())
    condition = site.constant(True) if first is None else first
    if most is not None and FEW_ITERATIONS < limit <= MOST_ITERATIONS and is_true(site, condition, "its condition"):
        rolled = attempt(site, carried, lambda: rolled_loop(site, body, limit, carried))
        if rolled is not None:
            return rolled
    rows: list[tuple[str, ...]] = []
    while len(rows) < limit and is_true(site, condition, "its condition"):
        check_steps(len(rows) + 1)
        condition, *made = site.run(body, [site.constant(len(rows), "int64"), condition, *carried])
        rows.append(tuple(made[len(carried) :]))
        carried = made[: len(carried)]
    count = len(site.is_used) - len(carried)
    if count and not rows:  # the shapes of rows follow from a step, which nothing reads
        step = site.run(body, [site.constant(0, "int64"), site.constant(True), *carried])
        one = step[1 + len(carried) :]
        return (*carried, *(site.constant(np.zeros((0, *site.shape(x))), site.dtype(x)) for x in one))
    return (*carried, *(stacked(site, [row[n] for row in rows], 0) for n in range(count)))


@rule("Scan")
def scan(site: Site) -> Results:
    """Import a scan. Its body maps carried values and rows of the inputs to carried values and rows of results."""
    body, n_rows = site.attribute("body"), site.attribute("num_scan_inputs")
    given = site.all_inputs()
    carried, read = given[: len(given) - n_rows], given[len(given) - n_rows :]
    n_results = len(body.output) - len(carried)
    axes, backwards = (site.attribute(f"scan_input_{what}", (0,) * n_rows) for what in ("axes", "directions"))
    axes = [site.axis(axis, site.rank(name)) for axis, name in zip(axes, read, strict=True)]
    steps = {site.shape(name)[axis] for axis, name in zip(axes, read, strict=True)}
    if len(steps) != 1:
        raise GraphError(f"its inputs have different numbers of rows: {sorted(steps)}")
    (n,) = steps
    out_axes, reverse = (site.attribute(f"scan_output_{what}", (0,) * n_results) for what in ("axes", "directions"))
    if (n := index(n)) > FEW_ITERATIONS:
        reads = [(name, axis, bool(back)) for name, axis, back in zip(read, axes, backwards, strict=True)]
        writes = list(zip(out_axes, map(bool, reverse), strict=True))
        rolled = attempt(site, given, lambda: rolled_scan(site, body, carried, reads, writes))
        if rolled is not None:
            return rolled
    check_steps(n)
    if not n and n_results:
        raise GraphError("its inputs have no rows, so that the shapes of its results are not known")
    rows = []
    for step in range(n):
        places = [n - 1 - step if back else step for back in backwards]
        now = [row(site, name, axis, at) for name, axis, at in zip(read, axes, places, strict=True)]
        made = site.run(body, [*carried, *now])
        carried, results = list(made[: len(carried)]), made[len(carried) :]
        rows.append(results)
    columns = [[r[k] for r in (rows[::-1] if reverse[k] else rows)] for k in range(n_results)]
    return (*carried, *(stacked(site, column, axis) for column, axis in zip(columns, out_axes, strict=True)))


def rolled_scan(
    site: Site,
    body: GraphProto,
    carried: Sequence[str],
    reads: Sequence[tuple[str, int, bool]],
    writes: Sequence[tuple[int, bool]],
) -> tuple[str, ...]:
    """Import a scan. `reads`: each input with the axis of its rows, and whether the last is read first; `writes`: the
    axis along which the rows of a result are stacked, and whether the first comes last."""

    def one(states: tuple[str, ...], rows: tuple[str, ...]) -> tuple[Sequence[str], Sequence[Row]]:
        made = iteration(site, body, [*states, *rows])
        given = zip(made[len(states) :], writes, strict=True)
        return made[: len(states)], [Row(name, is_backwards) for name, (_, is_backwards) in given]

    rows = [Row(moved(site, name, axis, 0), is_backwards) for name, axis, is_backwards in reads]
    ends, columns = site.builder.repeat(site.shape(rows[0].name)[0], carried, rows, one, site.origin)
    placed = (moved(site, x, 0, site.axis(axis, site.rank(x))) for x, (axis, _) in zip(columns, writes, strict=True))
    return (*ends, *placed)


def moved(site: Site, name: str, old: int, new: int) -> str:
    """Move an axis of a value."""
    order = [axis for axis in range(site.rank(name)) if axis != old]
    order.insert(new, old)
    return name if old == new else site.emit("transpose", name, perm=tuple(order))


def check_steps(steps: int) -> None:
    if steps > MOST_STEPS:
        raise GraphError(f"a loop of more than {MOST_STEPS} steps is not supported, as all are written out")


def row(site: Site, name: str, axis: int, at: int) -> str:
    shape = site.shape(name)
    return site.reshape(site.part(name, axis, at, at + 1), shape[:axis] + shape[axis + 1 :])


def stacked(site: Site, parts: Sequence[str], axis: int) -> str:
    """Stack rows along a new axis; constant rows give a constant."""
    arrays = [site.builder.constants.get(name) for name in parts]
    known = [a for a in arrays if a is not None]
    shape = site.shape(parts[0])
    at = site.axis(axis, len(shape) + 1)
    if len(known) == len(parts):
        return site.constant(np.stack(known, at))
    wide = [site.reshape(name, (*shape[:at], 1, *shape[at:])) for name in parts]
    return wide[0] if len(wide) == 1 else site.emit("concat", *wide, axis=at)
