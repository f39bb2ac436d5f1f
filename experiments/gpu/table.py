"""The short table at the end, and what the results say about the goals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autosched.cli.output import table
from experiments.gpu.cases import MEMORY
from experiments.tuning import geomean, microseconds, number

Row = Mapping[str, Any]
HEADER = (
    "case", "ours us", "GFLOP/s", "of peak", "GB/s", "of copy", "torch us", "compile us", "triton us", "vs torch",
    "vs best", "tune s", "trials", "note",
)  # fmt: skip
EAGER = ("torch", "torch other")
COMPILED, TRITON = "torch.compile", "triton"
SINGLE_GOAL, BEST_GOAL, LARGEST_GOAL, COPY_GOAL, TUNING_GOAL_S = 1.0, 1.0, 0.9, 0.85, 90.0
LARGEST_CASE = "gmm:1x8192x8192x8192@bfloat16"
PRODUCTS = ("gmm", "c2d")
TUNING_CASE, TUNING_TRIALS = "gmm:1x1024x1024x1024", 64


def peer_seconds(row: Row, names: Sequence[str] = (*EAGER, COMPILED, TRITON)) -> float | None:
    """The best of the named peers that gave a right result."""
    peers = row.get("peers") or {}
    times = [peers[name]["seconds"] for name in names if name in peers and peers[name].get("right")]
    return min(times, default=None)


def ours_seconds(row: Row) -> float | None:
    """Our time beside the peers, None where the kernel is not right or there is none."""
    ours = row.get("ours") or {}
    return ours.get("seconds") if ours.get("right") else None


def ratio(row: Row, names: Sequence[str] = (*EAGER, COMPILED, TRITON)) -> float | None:
    """How many times as fast as the named peers we are."""
    ours, theirs = ours_seconds(row), peer_seconds(row, names)
    return theirs / ours if ours and theirs else None


def rates(row: Row) -> dict[str, float | None]:
    """GFLOP/s and bytes a second of our kernel, and the shares of what the device was measured to do beside it."""
    seconds = ours_seconds(row)
    if seconds is None:
        return {"gflops": None, "of_peak": None, "bandwidth": None, "of_copy": None}
    gflops, bandwidth = row["flops"] / seconds / 1e9, row["bytes"] / seconds
    peak, copy = row.get("peak_gflops"), row.get("copy_bandwidth")
    return {
        "gflops": gflops,
        "of_peak": gflops / peak if peak else None,
        "bandwidth": bandwidth,
        "of_copy": bandwidth / copy if copy else None,
    }


def cells(label: str, row: Row) -> tuple[str, ...]:
    found = rates(row)
    tuning = row.get("tuning") or {}
    bandwidth = found["bandwidth"]
    return (
        label,
        microseconds(ours_seconds(row)),
        number(found["gflops"], 0),
        number(found["of_peak"]),
        number(None if bandwidth is None else bandwidth / 1e9, 0),
        number(found["of_copy"]),
        microseconds(peer_seconds(row, EAGER)),
        microseconds(peer_seconds(row, (COMPILED,))),
        microseconds(peer_seconds(row, (TRITON,))),
        number(ratio(row, EAGER)),
        number(ratio(row)),
        number(tuning.get("wall_s"), 1),
        str(tuning.get("trials", "-")),
        note(row),
    )


def note(row: Row) -> str:
    """What went wrong in this row, in a few words; empty when nothing did."""
    words = []
    if row.get("error"):
        words.append(str(row["error"]))
    ours = row.get("ours") or {}
    if ours and not ours.get("right"):
        words.append(f"ours: {ours.get('reason')}")
    wrong = [name for name, peer in (row.get("peers") or {}).items() if peer.get("seconds") and not peer["right"]]
    words += [f"{name} beyond the error bound" for name in wrong]
    return "; ".join(words)[:80]


def totals(checks: Mapping[str, Row], cases: Mapping[str, Row]) -> dict[str, Any]:
    """What the goals ask for. Ratios are speed ratios: above 1 we are the faster one."""

    def ratios(workloads: Sequence[str], dtype: str, names: Sequence[str]) -> list[float]:
        rows = [r for r in cases.values() if r.get("workload") in workloads and (r.get("dtype") or "float32") == dtype]
        return [found for row in rows if (found := ratio(row, names)) is not None]

    def every_ratio(names: Sequence[str]) -> list[float]:
        return [found for row in cases.values() if (found := ratio(row, names)) is not None]

    every = (*EAGER, COMPILED, TRITON)
    copies = {
        label: found
        for label, row in cases.items()
        if row.get("workload") in MEMORY and (found := rates(row)["of_copy"]) is not None
    }
    tuning = (cases.get(TUNING_CASE) or {}).get("tuning") or {}
    dtypes = sorted({row.get("dtype") or "float32" for row in cases.values()})
    gemm = ratios(("gmm",), "float32", EAGER)
    products = {dtype: ratios(PRODUCTS, dtype, every) for dtype in dtypes}
    calls = [row["torch_tensors"] for row in cases.values() if "torch_tensors" in row]
    return {
        "operators_verified": sum(bool(row.get("ok")) for row in checks.values()),
        "operators_checked": len(checks),
        "candidates_right": sum(row.get("right", 0) for row in checks.values()),
        "not_verified": [label for label, row in checks.items() if not row.get("ok")],
        "cases": len(cases),
        "cases_compared": len(every_ratio(every)),
        "wrong_trials": sum(sum(_wrong(row).values()) for row in cases.values()),
        "gmm_vs_torch_geomean": geomean(gemm),
        "gmm_vs_torch_worst": min(gemm, default=None),
        "largest_vs_torch": ratio(cases.get(LARGEST_CASE) or {}, EAGER),
        "products_vs_best": {dtype: geomean(found) for dtype, found in products.items() if found},
        "products_vs_best_geomean": geomean([x for found in products.values() for x in found]),
        "all_vs_torch_geomean": geomean(every_ratio(EAGER)),
        "all_vs_best_geomean": geomean(every_ratio(every)),
        "memory_bound_of_copy_worst": min(copies.values(), default=None),
        "memory_bound_of_copy_geomean": geomean(list(copies.values())),
        "torch_tensors_right": sum(bool(call.get("right")) for call in calls),
        "torch_tensors_tried": len(calls),
        "tuning_gmm_1024_s": tuning.get("wall_s"),
        "tuning_gmm_1024_trials": tuning.get("trials"),
    }


def _wrong(row: Row) -> dict[str, int]:
    from experiments.tuning import WRONG

    failures = (row.get("tuning") or {}).get("failures") or {}
    return {kind: n for kind, n in failures.items() if kind in WRONG}


def verdicts(found: Mapping[str, Any], n_checks: int) -> list[str]:
    """A line for each goal: reached, missed, or not measured."""

    def line(what: str, value: float | None, reached: bool, goal: str) -> str:
        word = "not measured" if value is None else "reached" if reached else "MISSED"
        return f"{what}: {number(value)} (goal {goal}): {word}"

    gemm, copy = found["gmm_vs_torch_geomean"], found["memory_bound_of_copy_worst"]
    products, largest = found["products_vs_best_geomean"], found["largest_vs_torch"]
    by_dtype = ", ".join(f"{dtype} {number(x)}" for dtype, x in found["products_vs_best"].items())
    wall, verified = found["tuning_gmm_1024_s"], found["operators_verified"]
    done = found["tuning_gmm_1024_trials"] == TUNING_TRIALS
    return [
        f"operators verified: {verified} of {n_checks}, {found['candidates_right']} candidates right"
        + (f"; not: {', '.join(found['not_verified'])}" if found["not_verified"] else ""),
        line("fp32 GMM against cuBLAS, geometric mean", gemm, (gemm or 0) >= SINGLE_GOAL, f">= {SINGLE_GOAL}"),
        line("bf16 GMM 8192 against cuBLAS", largest, (largest or 0) >= LARGEST_GOAL, f">= {LARGEST_GOAL}"),
        line(f"GMM and C2D against the best peer, geometric mean ({by_dtype or 'none'})", products,
             (products or 0) >= BEST_GOAL, f">= {BEST_GOAL}"),
        line("memory-bound operators, worst share of a copy", copy, (copy or 0) >= COPY_GOAL, f">= {COPY_GOAL}"),
        line(
            f"GMM 1024, seconds of {found['tuning_gmm_1024_trials']} trials", wall,
            done and (wall or 1e9) <= TUNING_GOAL_S, f"{TUNING_TRIALS} trials within {TUNING_GOAL_S:.0f}",
        ),
    ]  # fmt: skip


def report(checks: Mapping[str, Row], cases: Mapping[str, Row], n_checks: int) -> str:
    """Everything that is printed last."""
    found = totals(checks, cases)
    lines = [table(HEADER, [cells(label, row) for label, row in cases.items()])] if cases else []
    lines += verdicts(found, n_checks)
    lines += [
        f"geometric mean against torch eager: {number(found['all_vs_torch_geomean'])}, "
        f"against the best peer: {number(found['all_vs_best_geomean'])} ({found['cases_compared']} cases compared)",
        f"wrong results among all trials: {found['wrong_trials']}; kernels right as functions of PyTorch's tensors: "
        f"{found['torch_tensors_right']} of {found['torch_tensors_tried']}",
    ]
    return "\n".join(lines)
