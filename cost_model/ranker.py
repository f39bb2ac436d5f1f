"""The learned half of the cost model: gradient-boosted trees on what the analytic latency gets wrong.

    score      a * (sum of trees - log2(draft seconds))      (higher is better)

The draft is where the trees start from, so with little data the order is the draft's. They are grown in one of two
ways, by how much there is to learn from (`FORESTS`):

`SQUARES`, in a session: least squares on log2(speed), less its mean within the workload. Labels, best seconds /
seconds in (0, 1], weigh the rows: a mistake among the fast candidates, which the search is about, costs more than one
among the slow ones (Ansor weighs likewise). a = 1.

`PAIRS`, of a collection: the loss of a pair of programs of a workload is log(1 + exp(worse - better)) of the sums,
whatever the times are (RankNet). Over thousands of programs squares spend themselves on the few that are slow for
reasons of their own, and on each workload's mean error, which orders nothing. Sums in the right order need not be as
far apart as logarithms of times: `a`, least squares over the programs fitted on, makes them that. In sessions pairs
did worse where times are noisy: 5 and 12 percent on two 7x7 convolutions with 9 MB of weights, the same on seven more.

A failed candidate counts as slower than all others, as one of `FAILED_LABEL` of the slowest one's speed.

The forest of a session is small, because predicting is most of the search's time, and refitted only when the data has
grown by a fifth; that of a collection of thousands of programs is larger. It is deterministic: fixed seed, no row or
column sampling.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cost_model.features import DRAFT_COLUMN

if TYPE_CHECKING:
    import xgboost

Rows: TypeAlias = npt.NDArray[np.float32]  # [n, F]
Reals: TypeAlias = npt.NDArray[np.floating[Any]]  # [n]
Groups: TypeAlias = npt.NDArray[np.integer[Any]]  # [n]

SQUARES: Mapping[str, Any] = {"objective": "reg:squarederror"}
PAIRS: Mapping[str, Any] = {
    "objective": "rank:pairwise", "lambdarank_pair_method": "mean", "lambdarank_score_normalization": False,
    "lambdarank_num_pair_per_sample": 16,
}  # fmt: skip
FORESTS = ((4000, 200, PAIRS), (0, 100, SQUARES))  # from so many rows on: trees, loss
GROWTH = 1.2  # refit when the data has grown by this factor
FIRST_FIT = 8  # rows; fewer say less than the draft
FAILED_LABEL = 0.5
FAILED_WEIGHT = 0.3
LEAST_WEIGHT = 0.05
PARAMETERS: Mapping[str, Any] = {
    "tree_method": "hist", "eta": 0.1, "max_depth": 6, "min_child_weight": 0.5, "lambda": 1.0, "max_bin": 64,
    "base_score": 0.0, "verbosity": 0, "seed": 0, "nthread": 1,
}  # fmt: skip


class Ranker:
    """Fitted on features `[n, F]` and labels; without a fit it predicts by the draft."""

    def __init__(self) -> None:
        self._booster: xgboost.Booster | None = None
        self._scale = 1.0  # the factor of its sums
        self._fitted_rows = 0

    @property
    def fitted(self) -> bool:
        """Whether it knows more than the draft."""
        return self._booster is not None

    def prepare(self) -> None:
        """Imports what `fit` needs."""
        _xgboost()

    def should_refit(self, n_rows: int) -> bool:
        """Whether `n_rows` of data are enough more than at the last fit."""
        return n_rows >= max(FIRST_FIT, GROWTH * self._fitted_rows)

    def fit(self, x: Rows, y: Reals, groups: Groups) -> None:
        """`y`: best / seconds within the row's group (a workload on a target), 0 for a failure."""
        self._fitted_rows = len(x)
        rows = np.argsort(groups, kind="stable")
        rows = rows[np.isin(groups[rows], groups[y > 0])]  # the others have no order
        if not len(rows):
            return
        xgboost, x, y = _xgboost(), x[rows], y[rows]
        groups = np.unique(groups[rows], return_inverse=True)[1]
        target, margin = targets(y, groups), -x[:, DRAFT_COLUMN]
        n_trees, loss = next((trees, loss) for least, trees, loss in FORESTS if len(x) >= least)
        if loss is PAIRS:
            learned = {"label": target - target.min(), "qid": groups}
        else:
            weight = np.where(y > 0, np.maximum(y, LEAST_WEIGHT), FAILED_WEIGHT)
            learned = {"label": target - means(target - margin, weight * (y > 0), groups), "weight": weight}
        data = xgboost.DMatrix(x, base_margin=margin, nthread=1, **learned)
        self._booster = xgboost.train({**PARAMETERS, **loss}, data, num_boost_round=n_trees)
        if loss is PAIRS:
            sums = margin + self._booster.inplace_predict(x)
            self._scale = slope(sums, target, groups)

    def predict(self, x: Rows) -> npt.NDArray[np.float32]:
        """`[n]`, higher is better: log2 of executions a second, up to a constant of the workload."""
        by_draft = -x[:, DRAFT_COLUMN]
        if self._booster is None or not len(x):
            return by_draft
        sums = by_draft + np.asarray(self._booster.inplace_predict(x), np.float32)
        return sums * np.float32(self._scale)


def labels(seconds: Reals, groups: Groups) -> npt.NDArray[np.float64]:
    """Best seconds of the group over seconds, in (0, 1]; 0 where `seconds` is not finite (a failure)."""
    result = np.zeros(len(seconds))
    for group in np.unique(groups):
        rows = (groups == group) & np.isfinite(seconds)
        if rows.any():
            result[rows] = seconds[rows].min() / seconds[rows]
    return result


def targets(y: Reals, groups: Groups) -> npt.NDArray[np.float64]:
    """`[n]` log2 of the labels, of failures as the module's text has it. Every group has a valid row."""
    label = np.array(y, np.float64)
    for group in np.unique(groups):
        rows, valid = groups == group, y > 0
        label[rows & ~valid] = FAILED_LABEL * y[rows & valid].min()
    return np.log2(label)


def means(values: Reals, weight: Reals, groups: Groups) -> npt.NDArray[np.float64]:
    """`[n]` the weighted mean of each row's group, of groups `0 .. n - 1`."""
    return (np.bincount(groups, values * weight) / np.bincount(groups, weight))[groups]


def slope(sums: Reals, target: Reals, groups: Groups) -> float:
    """Least squares of `target` by `sums` within groups `0 .. n - 1`; 1 where there is nothing to tell it by."""
    x, y = (v - means(v, np.ones(len(v)), groups) for v in (sums.astype(np.float64), target))
    found = float(x @ y / max(float(x @ x), 1e-12))
    return found if found > 0.0 else 1.0


def _xgboost() -> Any:
    """Imported late (100 ms); idle OpenMP threads must sleep, not spin beside a running measurement."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import xgboost

    return xgboost
