"""What measurements of other workloads say of the draft's errors: a ranker to start from.

It is a forest in xgboost's own binary JSON, made by `python -m experiments.pretrain` from committed measurements; none
comes with the package. A session with `Policy(prior=True)` grows its own trees on top of it. The file is named after
the table of features that it was made for; where that is another one than today's it is not found, and the session
starts from the draft.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from cost_model.features import FEATURES, Feature

FOLDER = Path(__file__).parent / "priors"


def path(table: Sequence[Feature] = FEATURES) -> Path:
    """Of the forest for processors whose features are `table`: names, units and formulas, in this order."""
    text = "\n".join(f"{f.name}\t{f.unit}\t{f.formula}" for f in table)
    return FOLDER / f"cpu-{hashlib.sha256(text.encode()).hexdigest()[:16]}.ubj"


@lru_cache(maxsize=1)
def forest() -> bytes | None:
    """That for processors; None where there is none for today's features."""
    return path().read_bytes() if path().is_file() else None
