"""What can be said of kernels for tensor cores without a card: the draft's first pick of each problem, compiled.

    python -m experiments.gpu.sass [--out FILE] [NAMES]

For each problem, type and compute capability: seconds of the processor until the search has its first candidate, the
sketch and its values, what ptxas says (registers before warps give some to others, spilled bytes, warnings), of the
instructions of the loop that multiplies the share that are products of tensor cores, the model's seconds and the share
of the tensor cores' rate at the boost clock that they stand for, and whether the same sketch and values are right on
the simulator at reduced sizes, with the wavefronts of shared memory over the least there, of what threads themselves
load and store. NAMES are parts of labels, such as `gmm` or "sm_80": only these are made anew.
Rows go to FILE, results/gpu/sass.json, one by one; the whole table is printed at the end. Needs nvcc and cuobjdump.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autosched.codegen.c.source import GpuSource
from autosched.errors import AutoschedError, UsageError
from autosched.ir.instructions.matrices import MATRICES
from autosched.runtime.gpu.compile import CompileError, DeviceCode, NvccCompiler, find_nvcc
from autosched.target import GpuFacts, Target, parse_target
from autosched.tuner.gc_pause import pause_gc
from autosched.tuner.protocols import Candidate
from autosched.tuner.search import Search
from experiments.gpu.drawn import ProblemModel, job, named, problem_model
from experiments.gpu.hot_loop import disassembled, find_cuobjdump, hot_loop
from experiments.gpu.reduced import SassProblem, tried
from experiments.tuning import write_results
from search_spaces import space

Row = dict[str, Any]
OUT = Path(__file__).parents[1] / "results" / "gpu" / "sass.json"
SHAPES: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("gmm", (1, 4096, 4096, 4096)), ("gmm", (1, 8192, 8192, 8192)), ("gmm", (1, 1024, 1024, 1024)),
    ("gmm", (1, 512, 4096, 4096)), ("gmm", (1, 17, 4096, 4096)), ("c2d", (16, 14, 14, 256, 256, 3, 1, 1)),
    ("c2d", (16, 56, 56, 64, 64, 1, 1, 0)), ("c2d", (16, 7, 7, 512, 512, 3, 1, 1)),
    ("c2d", (16, 224, 224, 3, 64, 7, 2, 3)), ("attention", (8, 12, 1024, 64)),
)  # fmt: skip
HEADER = (
    "problem", "draft, CPU s", "sketch", "registers", "spilled", "warnings", "products in the loop", "share",
    "predicted, us", "of the pipe", "wavefronts", "reduced",
)  # fmt: skip


@dataclass(frozen=True)
class SassCase:
    problem: SassProblem
    arch: str

    @property
    def label(self) -> str:
        return f"{self.problem.label} {self.arch}"

    @property
    def target(self) -> Target:
        return parse_target(f"cuda -arch={self.arch}")


CASES = tuple(
    SassCase(SassProblem(workload, shape, dtype), arch)
    for arch in ("sm_90", "sm_80")
    for dtype in ("bfloat16", "float16")
    for workload, shape in SHAPES
)


@dataclass(frozen=True)
class Tools:
    """Paths of programs."""

    nvcc: str
    cuobjdump: str


def find_tools() -> Tools:
    """Raises UsageError where one is missing."""
    nvcc, cuobjdump = find_nvcc(), find_cuobjdump()
    if nvcc is None or cuobjdump is None:
        raise UsageError("nvcc and cuobjdump are needed and one is not on the PATH; install the CUDA toolkit")
    return Tools(nvcc, cuobjdump)


def measured(case: SassCase, tools: Tools) -> Row:
    """All that is said of a case. Raises AutoschedError where there is no candidate,
    CompileError where nvcc refuses it."""
    of, candidate, seconds = _pick(case)
    made = job(of, candidate)
    assert isinstance(made.source, GpuSource)
    code = NvccCompiler(case.arch, tools.nvcc, "").compile(made.source)
    predicted = float(of.model.analytic_latency(candidate.sketch, np.array([candidate.values], np.int64))[0])
    assert of.target.gpu is not None
    peak = tensor_peak(of.target.gpu, case.problem.dtype)
    return {
        "draft_s": seconds, "sketch": of.sketches[candidate.sketch].name, "values": named(of, candidate),
        **_compiled(code, tools), "predicted_s": predicted, "of_peak": of.problem.dag().flops / predicted / peak,
        "reduced": tried(of, candidate),
    }  # fmt: skip


def _pick(case: SassCase) -> tuple[ProblemModel, Candidate, float]:
    """The sketches, the first candidate and the processor's seconds until it is known, as a session takes them."""
    begun = time.process_time()
    with pause_gc():
        of = problem_model(case.problem, case.target)
        picks = Search(space, of.sketches, of.model, 0).propose(0, 1, "draft")
    if not picks:
        raise UsageError(f"{case.label} has no candidate")
    return of, picks[0], time.process_time() - begun


def _compiled(code: DeviceCode, tools: Tools) -> Row:
    loop = hot_loop(disassembled(code.code, tools.cuobjdump))
    assert loop is not None
    return {
        "registers": {r.kernel: r.registers for r in code.resources},
        "spilled": sum(r.spill_bytes for r in code.resources),
        "warnings": list(code.warnings),
        "loop": {**vars(loop), "share": loop.share},
    }


def tensor_peak(facts: GpuFacts, dtype: str) -> float:
    """Operations a second of the fastest products of `dtype` on the card, at its boost clock."""
    rows = [row for row in MATRICES.values() if (row.left, row.right) == (dtype, dtype)]
    rate = max(row.rate(facts.arch) for row in rows if row.since <= facts.capability)
    return 2.0 * rate * facts.multiprocessors * facts.clock_ghz * 1e9


def table(rows: Mapping[str, Row]) -> str:
    """Markdown."""
    lines = [f"| {' | '.join(cells)} |" for cells in (HEADER, ("---",) * len(HEADER))]
    return "\n".join([*lines, *(f"| {' | '.join(_cells(label, row))} |" for label, row in rows.items())])


def _cells(label: str, row: Row) -> Iterator[str]:
    yield f"`{label}`"
    if "error" in row:
        yield from (row["error"], *("-",) * (len(HEADER) - 2))
        return
    loop, ratios = row["loop"], [x["wavefronts"] for x in row["reduced"] if x.get("wavefronts")]
    yield f"{row['draft_s']:.2f}"
    yield f"`{row['sketch']}` {' '.join(f'{name}={value}' for name, value in row['values'].items())}"
    yield ", ".join(str(count) for _, count in sorted(row["registers"].items()))
    yield str(row["spilled"])
    yield "; ".join(row["warnings"]) or "none"
    yield f"{loop['products']} {loop['opcode']} of {loop['instructions']}{'' if loop['is_loop'] else ', no loop'}"
    yield f"{loop['share']:.2f}"
    yield f"{row['predicted_s'] * 1e6:.1f}"
    yield f"{row['of_peak']:.2f}"
    yield f"{ratios[0]:.2f}" if ratios else "-"
    yield ", ".join(x["said"] for x in row["reduced"])


def recorded(path: Path) -> dict[str, Row]:
    """Rows by label in the order of CASES. Raises UsageError for a file that has none."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} holds no results of this command ({error}); choose another --out") from None
    return {case.label: rows[case.label] for case in CASES if case.label in rows}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.gpu.sass")
    parser.add_argument("names", nargs="*", metavar="NAMES", help="parts of labels; all without any")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FILE")
    options = parser.parse_args()
    try:
        tools = find_tools()
        for case in CASES:
            if not options.names or any(name in case.label for name in options.names):
                _record(case, tools, options.out)
        print(table(recorded(options.out)))
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _record(case: SassCase, tools: Tools, out: Path) -> None:
    try:
        row = measured(case, tools)
    except (AutoschedError, CompileError) as error:
        row = {"error": str(error)[:300]}
    write_results(out, {"rows": {**recorded(out), case.label: row}})
    print(case.label, row.get("error", "done"), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
