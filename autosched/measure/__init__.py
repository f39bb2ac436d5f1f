"""Measurement: building, verifying and timing candidates in worker processes. `results.FAULTS` is the table of
failures.

Its names are imported on first use: a worker, which starts as a module of this package, needs none of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autosched.measure.measurer import Measurer
    from autosched.measure.problem import Problem, make_problem
    from autosched.measure.results import FAULTS, Failure, FinalMeasurement, Job, Measurement
    from autosched.measure.worker_pool import WorkerPool

__all__ = ["FAULTS", "Failure", "FinalMeasurement", "Job", "Measurement"]
__all__ += ["Measurer", "Problem", "WorkerPool", "make_problem"]

_MODULES = {"Measurer": "measurer", "Problem": "problem", "WorkerPool": "worker_pool", "make_problem": "problem"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULES.get(name, 'results')}")
    return getattr(module, name)
