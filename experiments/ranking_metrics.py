"""How good a ranking is. `predicted`: higher is better; `seconds`: measured, lower is better; both `[n]`."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Reals: TypeAlias = npt.NDArray[np.floating[Any]]


def pairwise_accuracy(predicted: Reals, seconds: Reals, apart: float = 1.0) -> float:
    """The share of pairs of different times that are ordered rightly, ties counting half; nan for no pair.

    With `apart`, of pairs whose slower one takes more than so many times the faster one's time.
    """
    right = np.sign(predicted[:, None] - predicted[None, :]) * np.sign(seconds[None, :] - seconds[:, None])
    differs = np.maximum(seconds[:, None], seconds[None, :]) > apart * np.minimum(seconds[:, None], seconds[None, :])
    return float((right[differs] * 0.5 + 0.5).mean()) if differs.any() else float("nan")


def recall_at_k(predicted: Reals, seconds: Reals, k: int) -> float:
    """The share of the k fastest that are among the k best predicted (Ansor's recall of top-k)."""
    k = min(k, len(seconds))
    fastest = set(np.argsort(seconds, kind="stable")[:k].tolist())
    chosen = set(np.argsort(-predicted, kind="stable")[:k].tolist())
    return len(fastest & chosen) / k if k else float("nan")
