"""A source of CUDA C on the processor: right, wrong, a race, a deadlock, a read of what nobody wrote, with numbers.

python -m tests.codegen.cuda_on_cpu KERNEL.cu [--checked] [--counted] [--workload FILE.py:function]

KERNEL.cu as `autosched tune ... --target cuda --no-run --out-dir DIR` writes it, changed at will; KERNEL.json beside it
says what it computes. Large ones are quick without the checks.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from autosched.codegen.c.source import GpuSource
from autosched.errors import AutoschedError
from autosched.kernel.simulation import read_source, simulated_data
from autosched.measure.check import CandidateError
from autosched.measure.gpu.simulated import EXAMINING, HASTY, SimulatedData
from autosched.tuner.definition import redefine


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.codegen.cuda_on_cpu")
    parser.add_argument("kernel", type=Path, metavar="KERNEL.cu")
    parser.add_argument("--checked", action="store_true", help="examine every access to memory")
    parser.add_argument("--counted", action="store_true", help="also count wavefronts and sectors, which takes longer")
    parser.add_argument("--workload", help="FILE.py:function, of a source that computes a user's function")
    parser.add_argument("--seed", type=int, default=0, help="of the random data")
    options = parser.parse_args()
    try:
        source, spec = read_source(options.kernel)
        with simulated_data(redefine(spec, options.workload).dag, options.seed) as data:
            return _report(data, source, options)
    except AutoschedError as error:
        print(error, file=sys.stderr)
        return 2


def _report(data: SimulatedData, source: GpuSource, options: argparse.Namespace) -> int:
    begin = time.monotonic()
    try:
        numbers = data.check(source, EXAMINING if options.checked or options.counted else HASTY, options.counted)
    except CandidateError as error:
        print(f"{error.fault}: {error}")
        return 1
    print(f"right on all data sets, in {time.monotonic() - begin:.2f} s")
    for name, value in numbers.items():
        if value:
            print(f"{name:20} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
