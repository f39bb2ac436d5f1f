"""The ranker: gradient-boosted trees on the residual of the analytic latency.

    score      a * (sum of trees - log2(analytic latency))      (higher is better)

The analytic latency is where the trees start from, so with little data the order is its own. They are grown to order
pairs of programs of a workload: the loss of a pair is log(1 + exp(worse - better)) of the sums, whatever the times are
(RankNet). So what disturbs one time counts no more the larger it is. Fitted on 64 programs of a workload they order
0.840 of the pairs of its others and find 0.61 of its ten fastest, where least squares of log2(speed), weighed towards
the fast, have 0.826 and 0.55 (`experiments.cost_model_quality`); where three times in ten are a third too long, 0.80
and 0.49 instead of 0.79 and 0.47. Fitted on a session of 64 trials on a busy machine, the four that they like best of
another seed's have one within 1.107 of its fastest, instead of 1.130 (geometric mean of 34 sessions).

Sums in the right order need not be as far apart as logarithms of times: `a`, least squares over the programs fitted on,
makes them that. A search adds to scores.

A failed candidate counts as slower than all others, as one of `FAILED_LABEL` of the slowest one's speed.

The forest is small, because predicting is most of the search's time, and refitted only when the data has grown by a
fifth. It is deterministic: fixed seed, no row or column sampling.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cost_model.cpu.features import ANALYTIC_COLUMN

if TYPE_CHECKING:
    import xgboost

Rows: TypeAlias = npt.NDArray[np.float32]  # [n, F]
Reals: TypeAlias = npt.NDArray[np.floating[Any]]  # [n]
Groups: TypeAlias = npt.NDArray[np.integer[Any]]  # [n]

TREES = 100
GROWTH = 1.2  # refit when the data has grown by this factor
FIRST_FIT = 8  # rows; fewer say less than the analytic latency
FAILED_LABEL = 0.5
PARAMETERS: Mapping[str, Any] = {
    "objective": "rank:pairwise", "lambdarank_pair_method": "mean", "lambdarank_score_normalization": False,
    "lambdarank_num_pair_per_sample": 16, "tree_method": "hist", "eta": 0.2, "max_depth": 6, "min_child_weight": 0.5,
    "lambda": 1.0, "max_bin": 64, "base_score": 0.0, "verbosity": 0, "seed": 0, "nthread": 1,
}  # fmt: skip


class Ranker:
    """Fitted on features `[n, F]` and labels; without a fit it predicts by the analytic latency."""

    def __init__(self) -> None:
        self._booster: xgboost.Booster | None = None
        self._scale = 1.0  # the factor of its sums
        self._fitted_rows = 0

    @property
    def fitted(self) -> bool:
        """Whether it knows more than the analytic latency."""
        return self._booster is not None

    def prepare(self) -> None:
        """Import the modules that `fit` needs."""
        _xgboost()

    def should_refit(self, n_rows: int) -> bool:
        """Whether `n_rows` of data are enough more than at the last fit."""
        return n_rows >= max(FIRST_FIT, GROWTH * self._fitted_rows)

    def fit(self, x: Rows, y: Reals, groups: Groups, own: int | None = None) -> None:
        """`y`: best / seconds within the row's group (a workload on a target), 0 for a failure. `own`: of the rows,
        those that count for the next fit (all)."""
        self._fitted_rows = len(x) if own is None else own
        rows = np.argsort(groups, kind="stable")
        rows = rows[np.isin(groups[rows], groups[y > 0])]  # the others have no order
        if not len(rows):
            return
        xgboost, x, y = _xgboost(), x[rows], y[rows]
        groups = np.unique(groups[rows], return_inverse=True)[1]
        target, margin = targets(y, groups), -x[:, ANALYTIC_COLUMN]
        data = xgboost.DMatrix(x, target - target.min(), base_margin=margin, qid=groups, nthread=1)
        self._booster = xgboost.train(dict(PARAMETERS), data, num_boost_round=TREES)
        self._scale = slope(margin + self._booster.inplace_predict(x), target, groups)

    def predict(self, x: Rows) -> npt.NDArray[np.float32]:
        """`[n]`, higher is better: log2 of executions a second, up to a constant of the workload."""
        by_latency = -x[:, ANALYTIC_COLUMN]
        if self._booster is None or not len(x):
            return by_latency
        sums = by_latency + np.asarray(self._booster.inplace_predict(x), np.float32)
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


def slope(sums: Reals, target: Reals, groups: Groups) -> float:
    """Least squares of `target` by `sums` within groups `0 .. n - 1`; 1 where there is nothing to tell it by."""
    size = np.bincount(groups)
    x, y = (v - (np.bincount(groups, v) / size)[groups] for v in (sums.astype(np.float64), target))
    found = float(x @ y / max(float(x @ x), 1e-12))
    return found if found > 0.0 else 1.0


def _xgboost() -> Any:
    """Imported late (100 ms); idle OpenMP threads must sleep, not spin beside a running measurement."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import xgboost

    return xgboost
