"""A result and a kernel as `autosched.api.tune` gives them, without any tuning."""

from collections.abc import Callable
from typing import Any

import numpy as np

from autosched.runtime.spec import ArraySpec
from autosched.tuner.callbacks import Event
from autosched.tuner.result import Point, Result


class FakeMatmul:
    """Multiplies with NumPy where a compiled kernel would run."""

    inputs = (ArraySpec("A", (4, 3), "float32"), ArraySpec("B", (3, 5), "float32"))

    def __call__(self, a: Any, b: Any, out: Any = None) -> Any:
        return np.matmul(a, b, out=out)


def result(interrupted: bool = False, kernel: Callable[[], Any] | None = None) -> Result:
    return Result(
        workload="matmul",
        shape=(4, 5, 3),
        dtype="float32",
        target="cpu",
        threads=2,
        flops=26_000_000,
        trials=3,
        wall_s=61.2,
        search_s=0.1,
        model_s=0.2,
        build_s=0.3,
        check_s=0.4,
        measure_s=0.5,
        first_result_s=0.9,
        best_s=83.1e-6,
        best_ci_s=(82.7e-6, 83.6e-6),
        gflops=312.0,
        peak_gflops=520.0,
        record_id=17,
        sketch="tiled",
        values={"i": 4},
        interrupted=interrupted,
        failures={"crash": 1},
        curve=(Point(1, 0.9, 90e-6), Point(3, 2.0, 83.1e-6)),
        kernel=kernel,
    )


def event(trial: int, best_s: float | None, failed: int = 0, phase: str = "draft") -> Event:
    return Event(
        workload="matmul",
        shape=(4, 5, 3),
        dtype="float32",
        target="cpu",
        threads=2,
        flops=26_000_000,
        phase=phase,
        round=0,
        trial=trial,
        trials=3,
        failed=failed,
        seconds=best_s,
        failure=None,
        message="",
        gflops=None,
        best_s=best_s,
        best_gflops=None if best_s is None else 26.0e-3 / best_s,
        peak_gflops=520.0,
        elapsed_s=float(trial),
        eta_s=None if trial == 0 else 3.0 - trial,
        n_sketches=2,
    )
