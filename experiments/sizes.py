"""Kernels of sizes that are known at a call beside kernels of the same schedule with these sizes as constants.

    python -m experiments.sizes c2d sfm:1 --json sizes.json

Cases are the benchmark shapes of the built-in operators and those of EXTRA, float32, on one thread. Open are the sizes
that users leave open: batch, rows, length, depth, height and width. Each pair of kernels is timed interleaved in
processor time on the same arrays. A ratio is the time with constants over the time with open sizes, 1 where the open
sizes cost nothing. The seconds of LLVM are those of either module.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import autosched as at
from autosched.cli import options
from autosched.cli.bench import geomean, time_interleaved
from autosched.codegen.source import KernelSource
from autosched.ir.size import Guards
from autosched.kernel.request import Request
from autosched.kernel.sizes.sized_kernel import SizedKernel
from autosched.lower import lower
from autosched.runtime.jit import compile_object
from autosched.runtime.kernel import Kernel
from autosched.te.operators.registry import WORKLOADS
from experiments.hostinfo import host_facts

OPEN = {"B", "D", "H", "L", "M", "N", "W", "seq"}  # arguments that are not channels; of `gmm`, M are the columns
EXTRA: tuple[tuple[str, dict[str, int], tuple[str, ...]], ...] = (
    ("matmul", {"M": 384, "N": 384, "K": 384}, ("M",)),
    ("matmul", {"M": 384, "N": 384, "K": 384}, ("K",)),
    ("batch_matmul", {"B": 12, "M": 128, "N": 64, "K": 128}, ("M", "K")),
    ("attention", {"N": 1, "heads": 12, "queries": 128, "dim": 64}, ("N", "queries")),
    ("transpose", {"M": 512, "N": 512}, ("M", "N")),
    ("layer_norm", {"M": 256, "N": 768}, ("M",)),
    ("rms_norm", {"M": 256, "N": 1024}, ("M",)),
    ("max_pool2d", {"N": 1, "H": 56, "W": 56, "C": 64, "k": 3, "stride": 2, "pad": 1}, ("N", "H", "W")),
    ("global_avg_pool2d", {"N": 1, "H": 14, "W": 14, "C": 512}, ("N", "H", "W")),
    ("gelu", {"M": 256, "N": 768}, ("M", "N")),
    ("add", {"M": 256, "N": 768}, ("M", "N")),
)  # fmt: skip
LEAST, MOST = 8, 4096  # the range of a size; LEAST so that a window fits into every image
RIGHT = 1e-4  # relative to the largest element


@dataclass(frozen=True)
class Case:
    """An operator with `numbers` for its arguments, of which `varying` are open."""

    label: str
    operator: str
    numbers: Mapping[str, int]
    varying: tuple[str, ...]


def all_cases() -> list[Case]:
    cases = []
    for name, workload in WORKLOADS.items():
        varying = tuple(a for a in workload.args if a in OPEN and (name, a) != ("gmm", "M"))
        for n, shape in enumerate(workload.shapes):
            cases.append(Case(f"{name}:{n}", name, dict(zip(workload.args, shape, strict=True)), varying))
    return cases + [Case(f"{name}({','.join(v)})", name, numbers, v) for name, numbers, v in EXTRA]


def compared(case: Case, rounds: int) -> dict[str, Any]:
    """Return the seconds of both kernels and of LLVM. Raises AssertionError where their results differ."""
    sized = at.compile(
        case.operator,
        sizes={a: (min(case.numbers[a], LEAST), MOST) for a in case.varying},
        settings={a: n for a, n in case.numbers.items() if a not in case.varying},
        threads=1,
    )
    sizes = {a: case.numbers[a] for a in case.varying}
    kernels = {"sized": sized.of(**sizes), "exact": exact_kernel(sized, sizes)}
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(spec.shape, "float32") for spec in kernels["exact"].inputs]
    results = {name: kernel(*arrays) for name, kernel in kernels.items()}
    error = np.abs(results["sized"] - results["exact"]).max()
    assert error <= RIGHT * np.abs(results["exact"]).max(), f"{case.label}: the kernels differ by {error}"

    def run(name: str) -> Any:
        return lambda: kernels[name](*arrays, out=results[name])

    seconds = time_interleaved({name: run(name) for name in kernels}, rounds, 0.01, time.process_time)
    target, llvm = sized.request(sizes).device.target, {}
    for name, source in (("sized", sized_source(sized, sizes)), ("exact", exact_source(sized, sizes))):
        started = time.process_time()
        compile_object(source.text, target)
        llvm[name] = time.process_time() - started
    return {"case": asdict(case), "seconds": seconds, "llvm_seconds": llvm}


def sized_source(sized: SizedKernel, sizes: Mapping[str, int]) -> KernelSource:
    """Return the code of the last variant, emitted again."""
    with Guards() as guards:
        symbols = {n: guards.symbol_of_class(n, sizes[n], r.start, r[-1]) for n, r in sized.ranges.items()}
        return _source(sized.request(sizes).of(sized.workload.make_dag(symbols)), sized)


def exact_source(sized: SizedKernel, sizes: Mapping[str, int]) -> KernelSource:
    """Return the code of the schedule of the last variant with `sizes` as constants."""
    return _source(sized.request(sizes), sized)


def _source(request: Request, sized: SizedKernel) -> KernelSource:
    state = request.replay(sized.variants[-1].kernel.schedule.steps)
    source = request.source(lower(state, "kernel"), state.steps, {})
    assert isinstance(source, KernelSource)
    return source


def exact_kernel(sized: SizedKernel, sizes: Mapping[str, int]) -> Kernel:
    kernel = sized.request(sizes).load(exact_source(sized, sizes))
    assert isinstance(kernel, Kernel)
    return kernel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help="c2d:1 or c2d; by default all")
    parser.add_argument("--rounds", type=options.integer(1), default=20, help="samples of each kernel")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    cases = [c for c in all_cases() if not args.cases or {c.label, c.operator} & set(args.cases)]
    rows, ratios = [], []
    for case in cases:
        row = compared(case, args.rounds)
        seconds, llvm = row["seconds"], row["llvm_seconds"]
        ratios.append(seconds["exact"] / seconds["sized"])
        rows.append(row)
        print(
            f"{case.label:28} {1e6 * seconds['exact']:9.1f} us  sized {1e6 * seconds['sized']:9.1f} us  "
            f"ratio {ratios[-1]:.3f}  LLVM {llvm['exact']:.2f} s, sized {llvm['sized']:.2f} s",
            flush=True,
        )
    mean = geomean(ratios) or 1.0
    print(f"geometric mean of {len(ratios)} ratios {mean:.3f}, the least {min(ratios, default=1.0):.3f}")
    if args.json:
        facts = {"host": host_facts(), "rounds": args.rounds, "rows": rows}
        args.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
