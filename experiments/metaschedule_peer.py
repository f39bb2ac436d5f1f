"""TVM MetaSchedule behind two small commands, for an interpreter that has TVM and need not have autosched.

    tune  --workload c2d --shape 1,56,56,64,64,1,1,0 --trials 64 --threads 2 --library best.so
    serve --workload c2d --library best.so --threads 2

`tune` prints one JSON object as its last line and writes its best kernel as a shared library. `serve` loads that and
answers JSON lines on stdin: {"op": "enter", "directory": D} runs it on the arrays D/in0.npy, ... in the order of our
operator's inputs and writes the result to D/metaschedule.npy; {"op": "time", "block_s": s} times blocks that long and
answers {"row": {"seconds": median of a call}}; {"op": "call", "times": n} calls it n times, and once more before.
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
# Where its operator's arguments have another order than our inputs: which of ours each is.
ORDERS = {"cbr": (0, 1, 2, 4, 3)}  # bn_offset before bn_scale


def watcher(start: float) -> tuple[list[tuple[float, float | None]], Any]:
    """(what it will have seen, a measure callback): of each trial in order the seconds from `start` to the end of its
    batch, and its time, None for a failure."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms

    history: list[tuple[float, float | None]] = []

    @derived_object
    class Watcher(ms.measure_callback.PyMeasureCallback):  # type: ignore[misc]
        def apply(self, scheduler: Any, task: Any, candidates: Any, builds: Any, results: Any) -> None:
            elapsed = time.monotonic() - start
            for result in results:
                run = [float(s) for s in result.run_secs or ()]
                mean = sum(run) / len(run) if run else FAILED_S
                history.append((elapsed, mean if mean < FAILED_S else None))

    return history, Watcher()


def tune(args: argparse.Namespace) -> dict[str, Any]:
    import tvm
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.meta_schedule.testing import te_workload

    mcpu = args.mcpu or tvm.target.codegen.llvm_get_system_cpu()
    target = tvm.target.Target({"kind": "llvm", "mcpu": mcpu, "num-cores": args.threads})
    name = args.workload.upper()
    if name not in te_workload.CONFIGS:
        return {"error": {"class": "NoWorkload", "message": f"{args.workload} is not in its operator set"}}
    function = tvm.te.create_prim_func(te_workload.CONFIGS[name][0](*map(int, args.shape.split(","))))
    shapes = [[int(extent) for extent in buffer.shape] for buffer in function.params]
    with tempfile.TemporaryDirectory(prefix="metaschedule-") as work:
        start = time.monotonic()
        history, callback = watcher(start)
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
            measure_callbacks=[*ms.measure_callback.MeasureCallback.create("default"), callback],
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
        "history": history,
        "tuning_s": tuning_s,
        "trials": len(means),
        "failed": len(means) - len(valid),
        "shapes": shapes,
        "mcpu": mcpu,
        "version": tvm.__version__,
    }


def enter(library: Any, workload: str, shapes: Sequence[Sequence[int]], directory: Path) -> list[Any]:
    """The kernel's arguments, after it ran on them once. The last one is its result."""
    import numpy as np
    import tvm

    order = ORDERS.get(workload, range(len(shapes) - 1))
    given = [np.load(directory / f"in{i}.npy", allow_pickle=False) for i in order]
    arrays = [array.reshape(shape) for array, shape in zip(given, shapes[:-1], strict=True)]
    arguments = [tvm.runtime.tensor(a) for a in (*arrays, np.zeros(shapes[-1], "float32"))]
    library["main"](*arguments)
    np.save(directory / "metaschedule.npy", arguments[-1].numpy())
    return arguments


def answer(
    request: dict[str, Any], library: Any, workload: str, arguments: list[Any], shapes: Sequence[Sequence[int]]
) -> Any:
    import tvm

    if request["op"] == "enter":
        arguments[:] = enter(library, workload, shapes, Path(request["directory"]))
        return {"entered": True}
    if request["op"] == "call":
        library.time_evaluator("main", tvm.cpu(), number=request["times"], repeat=1)(*arguments)
        return {"called": request["times"]}
    milliseconds = max(1, round(1000 * request["block_s"]))
    timer = library.time_evaluator("main", tvm.cpu(), number=1, repeat=1, min_repeat_ms=milliseconds)
    return {"seconds": float(timer(*arguments).median)}


def serve(args: argparse.Namespace) -> None:
    import tvm

    library = tvm.runtime.load_module(str(args.library))
    shapes = json.loads(args.library.with_suffix(".shapes.json").read_text(encoding="utf-8"))
    arguments: list[Any] = []
    for line in sys.stdin:
        try:
            row = answer(json.loads(line), library, args.workload, arguments, shapes)
        except (OSError, ValueError, RuntimeError) as error:
            row = {"reason": f"{type(error).__name__}: {error}"[:500]}
        print(json.dumps({"row": row}), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    tuner, server = verbs.add_parser("tune"), verbs.add_parser("serve")
    tuner.add_argument("--shape", required=True)
    tuner.add_argument("--trials", type=int, default=64)
    tuner.add_argument("--seed", type=int, default=0)
    tuner.add_argument("--mcpu")
    for verb in (tuner, server):
        verb.add_argument("--workload", required=True)
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
