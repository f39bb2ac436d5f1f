"""Tables of a GPU: our kernels beside its libraries."""

from __future__ import annotations

from autosched.cli.bench import geomean
from experiments.gpu.table import EAGER, TRITON, ours_seconds, peer_seconds, rates, ratio
from experiments.report.markdown import table
from experiments.report.results import Lines, Results
from experiments.tuning import microseconds, number


def whole_networks(results: Results) -> Lines:
    """Each network: milliseconds of a call that is waited for, ours and the peers', and of our kernels as one graph."""
    peers = {"cudagraphs_s": "compiled, graphs", "compiled_s": "compiled", "eager_s": "eager"}
    header = ("network", "ours, ms", *(f"PyTorch {name}, ms" for name in peers.values()), "the best peer over ours",
              "ours on the device, ms", "load, s", "error")  # fmt: skip
    content = results.content["steps"]["networks"]
    rows, ratios = [], []
    for label, row in content["rows"].items():
        if "ours_s" in row:
            best = min(row[name] for name in peers if name in row)
            ratios.append(best / row["ours_s"])
            times = (number(1e3 * row[name], 3) if name in row else "-" for name in ("ours_s", *peers))
            rows.append(
                (f"`{label}`", *times, number(best / row["ours_s"]), number(1e3 * row["graph_s"], 3),
                 number(row["load_s"], 1), f"{row['error']:.1e}")
            )  # fmt: skip
    card = content["rows"]["card"]
    source = (
        f"*From `experiments/results/{results.name}.json`: {card['name']}, {results.content['begun'][:10]}, "
        f"PyTorch {card['torch']}.*"
    )
    return [*table(header, rows), "", f"Geometric mean of the ratios: {number(geomean(ratios))}.", "", source]


def board(results: Results) -> Lines:
    """Each case: microseconds on both sides, the share of the pipe's measured peak, the best peer's time over ours."""
    header = (
        "case",
        "ours, us",
        "TFLOP/s",
        "of the pipe's peak",
        "PyTorch, us",
        "Triton, us",
        "the best peer over ours",
    )
    cases = {label: row for label, row in results.content["cases"].items() if ours_seconds(row)}
    rows = []
    for label, row in cases.items():
        found = rates(row)
        rows.append(
            (
                f"`{label}`", microseconds(ours_seconds(row)), number((found["gflops"] or 0.0) / 1e3, 0),
                number(found["of_peak"]), microseconds(peer_seconds(row, EAGER)),
                microseconds(peer_seconds(row, (TRITON,))), number(ratio(row)),
            )
        )  # fmt: skip
    mean = geomean([times for row in cases.values() if (times := ratio(row)) is not None])
    torch = results.content["host"]["packages"]["torch"]
    source = (
        f"*From `experiments/results/{results.name}.json`: {results.content['device']}, "
        f"{results.content['host']['date'][:10]}, PyTorch {torch}.*"
    )
    return [*table(header, rows), "", f"Geometric mean of the last column: {number(mean)}.", "", source]
