"""The step `again`: chosen rows of a calibration once more, timed beside PyTorch and watched by NVIDIA's tools.

    python -m experiments.gpu.again CALIBRATION WANTED... >.card/again.jsonl

writes its input: WANTED is a label, for the fastest of that problem, LABEL@N for the N-th fastest (0 first), or
"failures". A line is an `AgainRow` as JSON; `text` may name a file whose CUDA C, changed by hand, takes the place of
what the candidate's is. Files of the tools go to OUT/again/. In a dry run the simulator stands for the card.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from autosched.errors import UsageError
from experiments.gpu.sanitizer import watched
from experiments.gpu.steps import Row, StepRequest

ROWS = Path(__file__).resolve().parents[2] / ".card" / "again.jsonl"
TIMING_S, ONE_S, LEAST_S = 45.0, 25.0, 4.0
RUN = (sys.executable, "-m", "experiments.gpu.again_run")
# Of the thousands that there are.
KEPT = re.compile(
    r"^(Kernel Name|Block Size|Grid Size)$|gpu__time_duration|launch__(registers|shared|occupancy|waves)|inst_issued|"
    r"inst_executed\.|issue_active|issue_inst0|warps_eligible|warps_active|stalled.*ratio|pipe_(fma|alu|lsu).*pct|"
    r"shared.*(wavefronts|conflict)|hit_rate|dram__bytes|throughput.*pct|cycles_elapsed"
)
SHOWN = re.compile(
    r"time_duration\.sum|registers_per_thread |issue_active\.avg\.pct_of_peak_sustained_active|"
    r"pipe_fma_cycles_active\.avg|stalled.*ratio|lts__t_sector_hit_rate\.pct"
)


@dataclass(frozen=True)
class AgainRow:
    """A candidate by the names of its sketch and parameters; `failure`: what it ended in, "" for none."""

    workload: str
    shape: tuple[int, ...]
    dtype: str
    sketch: str
    values: Mapping[str, int]
    failure: str = ""
    text: str = ""
    note: str = field(default="")

    @property
    def label(self) -> str:
        words = "x".join(map(str, self.shape))
        return f"{self.workload}:{words} {self.dtype} {self.note or self.sketch}"


def decode(line: str) -> AgainRow:
    fields = json.loads(line)
    return AgainRow(**fields | {"shape": tuple(fields["shape"])})


def read_rows(path: Path) -> list[AgainRow]:
    """Raises UsageError where there are none."""
    try:
        return [decode(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{path} has no rows to run again: {error}; experiments/gpu/again.py says how") from None


def chosen_rows(lines: Sequence[Mapping[str, Any]], wanted: Sequence[str]) -> list[AgainRow]:
    """Of the lines of a calibration. Raises UsageError for what is not there."""
    problems = {line["problem"]["label"]: line["problem"] for line in lines if "problem" in line}
    tried = [line for line in lines if "sketch" in line]
    found: list[AgainRow] = []
    for words in wanted:
        label, _, place = words.partition("@")
        here = [line for line in tried if line["label"] == label and "seconds" in line]
        here = sorted(here, key=lambda line: float(line["seconds"]))[int(place or 0) :][:1]
        here = [line for line in tried if "failure" in line] if words == "failures" else here
        if not here:
            raise UsageError(f"the calibration has no {words!r}; it has {', '.join(problems)}")
        for n, line in enumerate(here):
            of = problems[line["label"]]
            note = f"{line['sketch']} {line['failure']} {n}" if "failure" in line else f"{line['sketch']} {words[-2:]}"
            found.append(
                AgainRow(
                    of["workload"], tuple(of["shape"]), of["dtype"], line["sketch"], line["values"],
                    line.get("failure", ""), note=note,
                )
            )  # fmt: skip
    return found


def predict(request: StepRequest) -> str:
    return (
        "float32 products: FMA pipe 65-75 % busy where cuBLAS has 78, issue slots 80-85 %; the stalls say which of "
        "short scoreboard, barrier, dispatch and not selected it is; failures: an address outside, in their prologue"
    )


def measure(request: StepRequest) -> Iterator[tuple[str, Row]]:
    give_up = time.monotonic() + request.seconds
    path = request.out / ROWS.name
    path = path if path.exists() else ROWS
    rows = read_rows(path)
    where = "simulator" if request.is_dry else "card"
    sound = [row for row in rows if not row.failure]
    yield from _timed(path, where, min(TIMING_S, give_up - time.monotonic()))
    tasks = [("ncu", row) for row in sound[:1]]
    tasks += [("ncu torch", row) for row in sound[:1] if not request.is_dry]
    tasks += [("memcheck", row) for row in rows if row.failure]
    tasks += [("ncu", row) for row in sound[1:]]
    for how, row in tasks:
        left = min(ONE_S, give_up - time.monotonic())
        if left < LEAST_S:
            return
        yield f"{how} {row.label}", _watched(how, row, where, left, request.out / "again")


def _timed(path: Path, where: str, seconds: float) -> Iterator[tuple[str, Row]]:
    """All rows that did not fail, in one process, each beside PyTorch."""
    found = watched([*RUN, "--time", where, str(path)], seconds, None)
    lines = [line for line in found["words"].splitlines() if line.startswith('{"timed"')]
    for line in map(json.loads, lines):
        yield f"time {line['timed']}", line["row"]
    if found["status"] != 0:
        yield "time", {"error": f"{found['status']}: {found['words'][-600:]}"}


def _watched(how: str, row: AgainRow, where: str, seconds: float, folder: Path) -> Row:
    tool = shutil.which("compute-sanitizer" if how == "memcheck" else "ncu")
    if tool is None:
        return {"error": "the tool is not installed"}
    folder.mkdir(parents=True, exist_ok=True)
    run = [*RUN, "--torch" if how == "ncu torch" else "--once", where, json.dumps(asdict(row))]
    if how == "memcheck":
        return watched([tool, "--tool", "memcheck", "--print-limit", "8", *run], seconds, 4000)
    name = folder / re.sub(r"\W+", "-", f"{how} {row.label}")
    kernels = ["-k", "regex:gemm|cutlass|xmma", "-s", "1"] if how == "ncu torch" else []
    command = [tool, "--clock-control", "none", "--set", "full", *kernels, "-c", "1", "-f", "-o", str(name)]
    begun = time.monotonic()
    found = watched([*command, *run], seconds)
    left = max(LEAST_S, seconds - (time.monotonic() - begun))
    pages = {page: _page(tool, name, page, left) for page in ("raw", "source")}
    return read(pages["raw"]) or {"error": f"{found['status']}: {found['words'][-600:]}"}


def _page(tool: str, name: Path, page: str, seconds: float) -> str:
    """What the report says on a page, as CSV: all metrics, or the stalls of each instruction. It is kept as a file."""
    words = watched([tool, "--import", f"{name}.ncu-rep", "--page", page, "--csv"], seconds, None)["words"]
    Path(f"{name}.{page}.csv").write_text(words, encoding="utf-8")
    return str(words)


def read(printed: str) -> Row:
    """The chosen metrics of the one kernel, in the tool's words for name and unit."""
    lines = [line for line in printed.splitlines() if line.startswith('"')]
    table = list(csv.reader(io.StringIO("\n".join(lines))))
    if len(table) < 3:
        return {}
    names, units, values = table[:3]
    return {
        f"{name} {unit}".strip(): value
        for name, unit, value in zip(names, units, values, strict=False)
        if KEPT.search(name)
    }


def summary(rows: Mapping[str, Row]) -> str:
    lines = []
    for name, row in rows.items():
        if name.startswith("ncu") and "error" not in row:
            lines += [name, *(f"  {metric} {value}" for metric, value in row.items() if SHOWN.search(metric))]
        else:
            said = row.get("words", "") or json.dumps(row)
            lines.append(f"{name}: {' '.join(str(said).split())[:400]}")
    return "\n".join(lines) or "nothing was run again"


def main(arguments: Sequence[str]) -> int:
    calibration, *wanted = arguments
    lines = list(map(json.loads, Path(calibration).read_text(encoding="utf-8").splitlines()))
    for row in chosen_rows(lines, wanted):
        print(json.dumps(asdict(row)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
