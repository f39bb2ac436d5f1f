"""The step `counters`: what ncu counts in the best forms of the ladder. Clocks are left as they are."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping

from experiments.gpu.sanitizer import watched
from experiments.gpu.steps import Row, StepRequest, rows_of

MOST, ONE_S = 4, 40.0
# Of the thousands that there are.
KEPT = re.compile(
    r"(tensor|gmma|hmma).*(pct|cycles_active\.avg$)|hit_rate|bank_conflict|issue_active|issued_pct|throughput.*pct|"
    r"gpu__time_duration|cycles_elapsed\.max|registers_per_thread|warps_active.*pct|stalled.*(ratio|pct)|"
    r"lts__t_sectors_op|dram__bytes|clock_rate|cycles_per_second"
)
SHOWN = re.compile(
    r"(tensor|gmma).*pct|lts__t_sector_hit_rate\.pct|gpu__time_duration\.sum|issue_active.*pct|bank_conflict"
)


def predict(request: StepRequest) -> str:
    return "tensor pipe 70-85 % active, issue slots below 20 %, hit rate of the last cache 70-90 %, no bank conflicts"


def best(rows: Mapping[str, Row]) -> list[str]:
    """The fastest forms, of the largest size first."""
    timed = [(-row["tflops"], name) for name, row in rows.items() if "tflops" in row]
    return [name for _, name in sorted(timed)[:MOST]]


def measure(request: StepRequest) -> Iterator[tuple[str, Row]]:
    give_up = time.monotonic() + request.seconds
    tool = shutil.which("ncu")
    rows = rows_of(request.out, "ladder")
    if tool is None:
        yield "tool", {"error": "ncu is not installed"}
        return
    for name in best(rows):
        left = min(ONE_S, give_up - time.monotonic())
        if left <= 2:
            return
        asked = json.dumps({"form": rows[name]["form"], "size": list(map(int, name.split(":")[0].split("x")))})
        command = [tool, "--clock-control", "none", "--set", "full", "-k", "gemm", "-c", "1", "--csv", "--page", "raw"]
        found = watched([*command, sys.executable, "-m", "experiments.gpu.climb", "--once", asked], left, None)
        metrics = read(found["words"])
        yield name, metrics or {"error": f"{found['status']}: {found['words'][-400:]}"}


def read(printed: str) -> Row:
    """The chosen metrics of the one kernel, in the tool's words for name and unit."""
    lines = [line for line in printed.splitlines() if line.startswith('"')]
    table = list(csv.reader(io.StringIO("\n".join(lines))))
    if len(table) < 3:
        return {}
    names, units, values = table[0], table[1], table[2]
    return {
        f"{name} {unit}".strip(): value
        for name, unit, value in zip(names, units, values, strict=False)
        if KEPT.search(name)
    }


def summary(rows: Mapping[str, Row]) -> str:
    lines = []
    for name, row in rows.items():
        lines.append(f"{name}: {row['error'][:200]}" if "error" in row else name)
        lines += [f"  {metric} {value}" for metric, value in row.items() if metric != "error" and SHOWN.search(metric)][
            :12
        ]
    return "\n".join(lines)
