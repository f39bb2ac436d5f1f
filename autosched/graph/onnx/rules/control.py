"""Rules of control flow with constant conditions: branches are selected, loops unrolled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autosched.errors import GraphError
from autosched.graph.onnx.site import NotConstant, Results, Site, rule

MOST_STEPS = 4096  # of a loop
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


@rule("Loop")
def loop(site: Site) -> Results:
    """Unroll a loop. Its body maps (iteration, condition, carried values) to (condition, carried values, rows)."""
    body, most, first = site.attribute("body"), site.array(0), site.optional(1)
    carried = [site.input(n) for n in range(2, len(site.inputs))]
    limit = MOST_STEPS + 1 if most is None else int(most.item())
    condition = site.constant(True) if first is None else first
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
    """Unroll a scan. Its body maps carried values and rows of the inputs to carried values and rows of results."""
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
    out_axes, reverse = (site.attribute(f"scan_output_{what}", (0,) * n_results) for what in ("axes", "directions"))
    columns = [[r[k] for r in (rows[::-1] if reverse[k] else rows)] for k in range(n_results)]
    return (*carried, *(stacked(site, column, axis) for column, axis in zip(columns, out_axes, strict=True)))


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
