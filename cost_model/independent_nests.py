"""Independent nests of a sketch: rows combined from legal rows, or from the best rows, of each nest.

A rule connects the parameters that it names. Where the rules of a sketch fall into groups without a parameter in common
(the kernels of a graph with many stages do), a row is legal when each of its parts is: of six kernels with a tenth of
all values legal in each, one row in a million would be. So a row takes the parts that are illegal from other rows.

What one nest takes of the time, too, is nearly a matter of its own parameters: the best rows by the analytic latency
are made of the best columns for each nest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autosched.ir.closed_forms.program import Floats, Ints
from autosched.ir.expr import Expr
from autosched.ir.visit import named_params
from cost_model.cpu.legality import Rule

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class IndependentGroup:
    """Indices of rules, or of nests, that share parameters, and the indices of these parameters."""

    members: tuple[int, ...]
    columns: tuple[int, ...]


def independent_parts(rules: Sequence[Rule], params: Sequence[str]) -> tuple[IndependentGroup, ...]:
    """The groups of rules, but those about sums over everything; parameters that no other rule names are in none."""
    return connected({n: [rule.holds] for n, rule in enumerate(rules) if not rule.whole}, params)


def connected(forms: Mapping[int, Sequence[Expr]], params: Sequence[str]) -> tuple[IndependentGroup, ...]:
    """The groups of members whose closed forms share parameters."""
    number = {name: n for n, name in enumerate(params)}
    groups: list[tuple[set[int], set[int]]] = []
    for n, own in forms.items():
        named = {number[name] for form in own for name in named_params(form)}
        met = [g for g in groups if g[1] & named]
        groups = [g for g in groups if not g[1] & named]
        groups.append(({n}.union(*(g[0] for g in met)), named.union(*(g[1] for g in met))))
    return tuple(IndependentGroup(tuple(sorted(r)), tuple(sorted(c))) for r, c in groups)


def legal_rows(rows: Ints, holds: Mask, parts: Sequence[IndependentGroup]) -> Ints:
    """`[m, n_params]` rows of legal parts made of `rows [n, n_params]`, whose rules hold where `holds [n_rules, n]`.

    With one part those that are legal; with several also the others (m is then n), their illegal parts replaced by
    legal ones of other rows; none where no row has a legal one. Always the same for the same rows. What holds for the
    whole of a row is to be asked again of those that were put together.
    """
    fine = [holds[list(part.members)].all(axis=0) for part in parts]
    if len(parts) < 2 or not all(f.any() for f in fine):
        return rows[holds.all(axis=0)]
    made = rows.copy()
    rng = np.random.default_rng(len(rows))
    for part, good in zip(parts, fine, strict=True):
        donors, bad = np.flatnonzero(good), np.flatnonzero(~good)
        columns = np.array(part.columns, np.intp)
        made[np.ix_(bad, columns)] = rows[np.ix_(rng.choice(donors, len(bad)), columns)]
    return made


def best_rows(rows: Ints, cost: Floats, parts: Sequence[IndependentGroup], n: int) -> Ints:
    """`[n, n_params]` rows, the best first: the k-th has of each part the columns that are the k-th best of `rows`
    `[m, n_params]` there, by `cost` `[n_parts, m]`. What is in no part is as in the row that costs least."""
    made = np.repeat(rows[[cost.sum(axis=0).argmin()]], n, axis=0)
    for part, spent in zip(parts, cost, strict=True):
        columns = np.array(part.columns, np.intp)
        _, first = np.unique(rows[:, columns], axis=0, return_index=True)
        best = first[np.argsort(spent[first], kind="stable")[:n]]
        made[:, columns] = rows[np.ix_(np.resize(best, n), columns)]
    return made
