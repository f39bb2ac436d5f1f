"""The yardsticks: plausible numbers, and no run on a machine that cannot."""

from __future__ import annotations

import pytest

from autosched.errors import DeviceError
from autosched.runtime import peak
from autosched.target import parse_target

HOST = parse_target("cpu")


def test_rates_are_positive_and_finite() -> None:
    assert 0.1 < peak.measure_fma_gflops(HOST, 1) < 1e4
    assert 1e6 < peak.measure_bandwidth(HOST, 1, HOST.l1_bytes // 2) < 1e13


def test_narrower_targets_run_too() -> None:
    names = ("haswell", "nehalem") if HOST.arch == "x86_64" else ("cortex-a53",)
    for target in (parse_target(f"llvm -mcpu={name}") for name in names):
        if target.runs_here:
            assert peak.measure_fma_gflops(target, 1) > 0.1


def test_another_machine_is_refused() -> None:
    other = "neoverse-n1" if HOST.arch == "x86_64" else "haswell"
    with pytest.raises(DeviceError, match=other):
        peak.measure_fma_gflops(parse_target(f"llvm -mcpu={other}"), 1)


def test_a_first_call_that_waits_for_its_core_is_not_the_peak() -> None:
    """One round, of 10 ns, is timed as 50 us for waking a thread, and the first as ten milliseconds."""
    calls: list[int] = []

    def seconds(count: int) -> float:
        calls.append(count)
        return 0.01 if len(calls) == 1 else 50e-6 + count * 10e-9

    assert peak._best_rate(seconds, 1.0) == pytest.approx(1e8, rel=0.05)
