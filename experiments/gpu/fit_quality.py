"""How a model orders measured candidates of a problem."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autosched.ir.closed_forms.program import Floats


@dataclass(frozen=True)
class FitQuality:
    """How a model orders the candidates of a problem. Times are ratios to the best measured one."""

    correlation: float  # of ranks (Spearman's)
    regret: float  # of the model's pick
    regret_of_4: float  # of the fastest of its first four
    level: float  # geometric mean of predicted by measured seconds


def ranking(predicted: Floats, seconds: Floats) -> FitQuality:
    order = np.argsort(predicted, kind="stable")
    ratio = np.log(predicted / seconds)
    return FitQuality(
        rank_correlation(predicted, seconds),
        float(seconds[order[0]] / seconds.min()),
        float(seconds[order[:4]].min() / seconds.min()),
        float(np.exp(ratio.mean())),
    )


def rank_correlation(a: Floats, b: Floats) -> float:
    """Spearman's; nan for fewer than two."""
    if len(a) < 2:
        return float("nan")
    first, second = (np.argsort(np.argsort(x, kind="stable"), kind="stable").astype(float) for x in (a, b))
    return float(np.corrcoef(first, second)[0, 1])
