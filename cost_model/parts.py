"""Independent parts of a sketch, and legal rows put together from them.

A rule connects the parameters that it names. Where the rules of a sketch fall into groups without a parameter in common
(the kernels of a graph with many stages do), a row is legal when each of its parts is: of six kernels with a tenth of
all values legal in each, one row in a million would be. So a row takes the parts that are illegal from other rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autosched.ir.expr import Param
from autosched.ir.program import Ints
from autosched.ir.visit import subexpressions
from cost_model.legality import Rule

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Part:
    """Numbers of rules that share parameters, and the numbers of those parameters."""

    rules: tuple[int, ...]
    columns: tuple[int, ...]


def independent_parts(rules: Sequence[Rule], params: Sequence[str]) -> tuple[Part, ...]:
    """The groups of rules; parameters that no rule names are in none."""
    number = {name: n for n, name in enumerate(params)}
    groups: list[tuple[set[int], set[int]]] = []
    for n, rule in enumerate(rules):
        named = {number[e.name] for e in subexpressions(rule.holds) if isinstance(e, Param)}
        met = [g for g in groups if g[1] & named]
        groups = [g for g in groups if not g[1] & named]
        groups.append(({n}.union(*(g[0] for g in met)), named.union(*(g[1] for g in met))))
    return tuple(Part(tuple(sorted(r)), tuple(sorted(c))) for r, c in groups)


def legal_rows(rows: Ints, holds: Mask, parts: Sequence[Part]) -> Ints:
    """`[m, n_params]` legal rows made of `rows [n, n_params]`, whose rules hold where `holds [n_rules, n]`.

    With one part those that are legal; with several also the others (m is then n), their illegal parts replaced by
    legal ones of other rows; none where no row has a legal one. Always the same for the same rows.
    """
    fine = [holds[list(part.rules)].all(axis=0) for part in parts]
    if len(parts) < 2 or not all(f.any() for f in fine):
        return rows[holds.all(axis=0)]
    made = rows.copy()
    rng = np.random.default_rng(len(rows))
    for part, good in zip(parts, fine, strict=True):
        donors, bad = np.flatnonzero(good), np.flatnonzero(~good)
        columns = np.array(part.columns, np.intp)
        made[np.ix_(bad, columns)] = rows[np.ix_(rng.choice(donors, len(bad)), columns)]
    return made
