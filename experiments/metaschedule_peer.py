"""TVM MetaSchedule behind two small commands, for an interpreter that has TVM and need not have autosched.

    tune  --workload c2d --index 1 --trials 64 --threads 2 --library best.so
    serve --library best.so --threads 2

`tune` prints one JSON object as its last line and writes its best kernel as a shared library. `serve` loads that and
answers every line on stdin, a number of seconds, with {"seconds": median of a call} timed over blocks that long.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# For one build. A worker's first one parses TVM's CUDA intrinsics for 10 to 30 seconds, beside other work longer; at
# MetaSchedule's own 30 it would be killed, start again, and fail for ever.
BUILD_DEADLINE_S = 180.0
FAILED_S = 1e9  # MetaSchedule writes 1e10 seconds for a candidate that failed


def tune(args: argparse.Namespace) -> dict[str, Any]:
    import tvm
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.meta_schedule.testing import te_workload

    mcpu = args.mcpu or tvm.target.codegen.llvm_get_system_cpu()
    target = tvm.target.Target({"kind": "llvm", "mcpu": mcpu, "num-cores": args.threads})
    function = te_workload.create_te_workload(args.workload.upper(), args.index)
    shapes = [[int(extent) for extent in buffer.shape] for buffer in function.params]
    with tempfile.TemporaryDirectory(prefix="metaschedule-") as work:
        start = time.monotonic()
        database = ms.tune_tir(
            mod=function,
            target=target,
            work_dir=work,
            max_trials_global=args.trials,
            num_trials_per_iter=64,
            num_tuning_cores=args.threads,
            builder=ms.builder.LocalBuilder(max_workers=args.threads, timeout_sec=BUILD_DEADLINE_S),
            database="memory",
            seed=args.seed,
        )
        tuning_s = time.monotonic() - start
    runs = [[float(s) for s in record.run_secs] for record in database.get_all_tuning_records() if record.run_secs]
    means = [sum(run) / len(run) for run in runs]
    valid = [mean for mean in means if mean < FAILED_S]
    schedule = ms.tir_integration.compile_tir(database, function, target)
    if schedule is None or not valid:
        return {"error": {"class": "NoKernel", "message": f"none of {len(means)} candidates ran"}}
    tvm.compile(schedule.mod, target=target).export_library(str(args.library))
    args.library.with_suffix(".shapes.json").write_text(json.dumps(shapes), encoding="utf-8")
    return {
        "best_s": min(valid),
        "tuning_s": tuning_s,
        "trials": len(means),
        "failed": len(means) - len(valid),
        "shapes": shapes,
        "mcpu": mcpu,
        "version": tvm.__version__,
    }


def serve(args: argparse.Namespace) -> None:
    import numpy as np
    import tvm

    library = tvm.runtime.load_module(str(args.library))
    shapes = json.loads(args.library.with_suffix(".shapes.json").read_text(encoding="utf-8"))
    rng = np.random.default_rng(0)
    arrays = [tvm.runtime.tensor(rng.standard_normal(shape).astype("float32")) for shape in shapes]
    for line in sys.stdin:
        milliseconds = max(1, round(1000 * float(line)))
        timer = library.time_evaluator("main", tvm.cpu(), number=1, repeat=1, min_repeat_ms=milliseconds)
        print(json.dumps({"seconds": float(timer(*arrays).median)}), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    tuner, server = verbs.add_parser("tune"), verbs.add_parser("serve")
    tuner.add_argument("--workload", required=True)
    tuner.add_argument("--index", type=int, required=True)
    tuner.add_argument("--trials", type=int, default=64)
    tuner.add_argument("--seed", type=int, default=0)
    tuner.add_argument("--mcpu")
    for verb in (tuner, server):
        verb.add_argument("--threads", type=int, required=True)
        verb.add_argument("--library", type=Path, required=True)
    args = parser.parse_args(argv)
    os.environ["TVM_NUM_THREADS"] = str(args.threads)  # read when its pool starts, in its workers too
    if args.verb == "serve":
        serve(args)
        return 0
    print(json.dumps(tune(args)), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
