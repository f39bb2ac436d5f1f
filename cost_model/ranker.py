"""The learned half of the cost model: gradient-boosted trees on what the analytic latency gets wrong.

    target     r = log2(draft seconds / measured seconds), minus its mean within the workload
    score      -log2(draft seconds) + predicted r            (higher is better)

Only the order within a workload matters, so a workload's mean error is taken out. With little data the trees stay
near zero and the score is the draft's; with more they correct it. Labels, best seconds / seconds in (0, 1],
weigh the rows: a mistake among the fast candidates costs more than one among the slow ones (Ansor weighs likewise).
Failed candidates (label 0) count as `FAILED_LABEL` of the slowest valid one with a small weight.

The forest of a session is small, because predicting is most of the search's time, and refitted only when the data has
grown by a fifth; that of a collection of thousands of programs is larger. It is deterministic: fixed seed, no row or
column sampling.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cost_model.features import DRAFT_COLUMN

if TYPE_CHECKING:
    import xgboost

Rows: TypeAlias = npt.NDArray[np.float32]  # [n, F]
Reals: TypeAlias = npt.NDArray[np.floating[Any]]  # [n]
Groups: TypeAlias = npt.NDArray[np.integer[Any]]  # [n]

FORESTS = ((4000, 300, 8), (0, 100, 6))  # from so many rows on: trees, depth
N_OWN_TREES = 60  # on top of a prior's
GROWTH = 1.2  # refit when the data has grown by this factor
FIRST_FIT = 8  # rows; fewer say less than the draft
FAILED_LABEL = 0.5
FAILED_WEIGHT = 0.3
PARAMETERS: dict[str, Any] = {
    "objective": "reg:squarederror", "tree_method": "hist", "eta": 0.1, "min_child_weight": 0.5,
    "lambda": 1.0, "max_bin": 64, "base_score": 0.0, "verbosity": 0,
}  # fmt: skip


class Ranker:
    """Fitted on features `[n, F]` and labels; without a fit it predicts by its prior, and without one by the draft.

    `prior`: a forest of other workloads (`cost_model.prior`), in xgboost's binary form; a fit adds trees to it.
    """

    def __init__(self, seed: int = 0, threads: int = 1, prior: bytes | None = None) -> None:
        self.seed, self.threads = seed, max(1, threads)
        self._prior = prior
        self._booster: xgboost.Booster | None = None
        self._fitted_rows = 0

    @property
    def fitted(self) -> bool:
        """Whether it knows more than the draft."""
        return self._booster is not None or self._prior is not None

    def prepare(self) -> None:
        """Imports what `fit` needs."""
        _xgboost()

    def should_refit(self, n_rows: int) -> bool:
        """Whether `n_rows` of data are enough more than at the last fit."""
        return n_rows >= max(FIRST_FIT, GROWTH * self._fitted_rows)

    def fit(self, x: Rows, y: Reals, groups: Groups) -> None:
        """`y`: best / seconds within the row's group (a workload on a target), 0 for a failure."""
        xgboost = _xgboost()
        start = self._start
        known = None if start is None else start.inplace_predict(x)
        target, weight = targets(x, y, groups, known)
        data = xgboost.DMatrix(x, target, weight=weight, nthread=self.threads)
        n_trees, depth = next((trees, depth) for least, trees, depth in FORESTS if len(x) >= least)
        parameters = {**PARAMETERS, "max_depth": depth, "seed": self.seed, "nthread": self.threads}
        n_trees = n_trees if start is None else N_OWN_TREES
        self._booster = xgboost.train(parameters, data, num_boost_round=n_trees, xgb_model=start)
        self._fitted_rows = len(x)

    def predict(self, x: Rows) -> npt.NDArray[np.float32]:
        """`[n]`, higher is better: log2 of executions a second, up to a constant of the workload."""
        by_draft = -x[:, DRAFT_COLUMN]
        forest = self._booster or self._start
        if forest is None or not len(x):
            return by_draft
        return by_draft + np.asarray(forest.inplace_predict(x), np.float32)

    def save(self) -> bytes:
        """The fitted forest, as another ranker's prior."""
        assert self._booster is not None, "fit first"
        return bytes(self._booster.save_raw("ubj"))

    @cached_property
    def _start(self) -> xgboost.Booster | None:
        if self._prior is None:
            return None
        booster: xgboost.Booster = _xgboost().Booster({"nthread": self.threads})
        booster.load_model(bytearray(self._prior))
        return booster


def labels(seconds: Reals, groups: Groups) -> npt.NDArray[np.float64]:
    """Best seconds of the group over seconds, in (0, 1]; 0 where `seconds` is not finite (a failure)."""
    result = np.zeros(len(seconds))
    for group in np.unique(groups):
        rows = (groups == group) & np.isfinite(seconds)
        if rows.any():
            result[rows] = seconds[rows].min() / seconds[rows]
    return result


def targets(
    x: Rows, y: Reals, groups: Groups, known: Reals | None = None
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """(r, weight) of every row; see the module's text. `known` `[n]` is predicted already: no constant is left to learn
    beyond it."""
    valid = y > 0
    result, weight = np.zeros(len(y)), np.where(valid, np.maximum(y, 0.05), FAILED_WEIGHT)
    for group in np.unique(groups):
        rows = groups == group
        if not (rows & valid).any():
            weight[rows] = 0.0
            continue
        label = np.where(valid[rows], y[rows], FAILED_LABEL * y[rows & valid].min())
        error = np.log2(label) + x[rows, DRAFT_COLUMN]
        unknown = error if known is None else error - known[rows]
        result[rows] = error - np.average(unknown[valid[rows]], weights=weight[rows & valid])
    return result, weight


def _xgboost() -> Any:
    """Imported late (100 ms); idle OpenMP threads must sleep, not spin beside a running measurement."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import xgboost

    return xgboost
