"""TVM MetaSchedule behind small commands, for an interpreter that has TVM and need not have autosched.

    tune  --workload c2d --shape 1,56,56,64,64,1,1,0 --trials 64 --threads 2 --library best.so
    serve --workload c2d --library best.so --threads 2
    tune-network  --model resnet18.onnx --trials 2000 --threads 2 --library network.so
    serve-network --library network.so --threads 2

`tune` prints one JSON object as its last line and writes its best kernel as a shared library. `serve` loads that and
answers JSON lines on stdin: {"op": "enter", "directory": D} runs it on the arrays D/in0.npy, ... in the order of our
operator's inputs and writes the result to D/metaschedule.npy; {"op": "time", "block_s": s} times blocks that long and
answers {"row": {"seconds": median of a call}}; {"op": "call", "times": n} calls it n times, and once more before.

The network verbs do the same for an ONNX file, by TVM's own pipeline for fixed shapes with weights packed ahead. Its
`enter` reads the inputs from D/inputs.npz, in0 onwards, and writes the results to D/metaschedule.npz.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
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


def searching(args: argparse.Namespace, work: Path, callback: Any) -> dict[str, Any]:
    """The words that both kinds of search take."""
    from tvm.s_tir import meta_schedule as ms

    return {
        "target": target_of(args),
        "work_dir": str(work),
        "max_trials_global": args.trials,
        "num_trials_per_iter": 64,
        "builder": ms.builder.LocalBuilder(max_workers=args.threads, timeout_sec=BUILD_DEADLINE_S),
        "database": "memory",
        "seed": args.seed,
        "measure_callbacks": [*ms.measure_callback.MeasureCallback.create("default"), callback],
    }


def target_of(args: argparse.Namespace) -> Any:
    import tvm

    mcpu = args.mcpu or tvm.target.codegen.llvm_get_system_cpu()
    return tvm.target.Target({"kind": "llvm", "mcpu": mcpu, "num-cores": args.threads})


def tune(args: argparse.Namespace) -> dict[str, Any]:
    import tvm
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.meta_schedule.testing import te_workload

    target = target_of(args)
    name = args.workload.upper()
    if name not in te_workload.CONFIGS:
        return {"error": {"class": "NoWorkload", "message": f"{args.workload} is not in its operator set"}}
    function = tvm.te.create_prim_func(te_workload.CONFIGS[name][0](*map(int, args.shape.split(","))))
    shapes = [[int(extent) for extent in buffer.shape] for buffer in function.params]
    with tempfile.TemporaryDirectory(prefix="metaschedule-") as work:
        start = time.monotonic()
        history, callback = watcher(start)
        words = searching(args, Path(work), callback)
        database = ms.tune_tir(mod=function, num_tuning_cores=args.threads, **words)
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
        "mcpu": str(target.attrs["mcpu"]),
        "version": tvm.__version__,
    }


def tune_network(args: argparse.Namespace) -> dict[str, Any]:
    """The stages of TVM's `static_shape_tuning_pipeline` with `cpu_weight_prepack`, but watched."""
    import numpy as np
    import onnx
    import tvm
    from tvm import relax
    from tvm.relax import transform
    from tvm.relax.frontend.onnx import from_onnx
    from tvm.s_tir import meta_schedule as ms

    target = target_of(args)
    module = from_onnx(onnx.load(str(args.model)), keep_params_in_input=True)
    module, given = relax.frontend.detach_params(module)
    ahead = [transform.DecomposeOpsForInference(), transform.CanonicalizeBindings(), relax.get_pipeline("zero")]
    with target:
        module = tvm.transform.Sequential([*ahead, transform.AttachAttrLayoutFreeBuffers()])(module)
    with tempfile.TemporaryDirectory(prefix="metaschedule-") as work:
        start = time.monotonic()
        history, callback = watcher(start)
        database = ms.relax_integration.tune_relax(module, {}, **searching(args, Path(work), callback))
        tuning_s = time.monotonic() - start
    packing = [transform.SplitLayoutRewritePreproc(), transform.LiftTransformParams(), transform.FoldConstant()]
    with target, database:
        module = tvm.transform.Sequential([transform.MetaScheduleApplyDatabase(), *packing])(module)
    built = tvm.compile(module, target=target)
    built.export_library(str(args.library))
    packed = relax.VirtualMachine(built, tvm.cpu())["main_transform_params"](given["main"])
    np.savez(args.library.with_suffix(".npz"), *(array.numpy() for array in packed))
    failed = sum(seconds is None for _, seconds in history)
    return {
        "history": history,
        "tuning_s": tuning_s,
        "trials": len(history),
        "failed": failed,
        "mcpu": str(target.attrs["mcpu"]),
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
    attend(lambda request: answer(request, library, args.workload, arguments, shapes))


def attend(answered: Callable[[dict[str, Any]], Any]) -> None:
    """Answers the lines of standard input until there are no more."""
    for line in sys.stdin:
        try:
            row = answered(json.loads(line))
        except (OSError, ValueError, RuntimeError) as error:
            row = {"reason": f"{type(error).__name__}: {error}"[:500]}
        print(json.dumps({"row": row}), flush=True)


def serve_network(args: argparse.Namespace) -> None:
    import numpy as np
    import tvm
    from tvm import relax

    machine = relax.VirtualMachine(tvm.runtime.load_module(str(args.library)), tvm.cpu())
    weights = arrays_of(args.library.with_suffix(".npz"), "arr_")
    arguments: list[Any] = []

    def answered(request: dict[str, Any]) -> Any:
        if request["op"] == "enter":
            directory = Path(request["directory"])
            arguments[:] = [*arrays_of(directory / "inputs.npz", "in"), *weights]
            found = machine["main"](*arguments)
            results = [found] if isinstance(found, tvm.runtime.Tensor) else list(found)
            np.savez(directory / "metaschedule.npz", *(array.numpy() for array in results))
            return {"entered": True}
        milliseconds = max(1, round(1000 * request["block_s"]))
        timer = machine.time_evaluator("main", tvm.cpu(), number=1, repeat=1, min_repeat_ms=milliseconds)
        return {"seconds": float(timer(*arguments).median)}

    attend(answered)


def arrays_of(path: Path, prefix: str) -> list[Any]:
    """Those of a file, in the order of the numbers behind `prefix`, as TVM has them."""
    import numpy as np
    import tvm

    with np.load(path, allow_pickle=False) as found:
        return [tvm.runtime.tensor(found[f"{prefix}{n}"]) for n in range(len(found.files))]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    names = ("tune", "serve", "tune-network", "serve-network")
    tuner, server, network_tuner, network_server = (verbs.add_parser(name) for name in names)
    tuner.add_argument("--shape", required=True)
    network_tuner.add_argument("--model", type=Path, required=True)
    for verb in (tuner, network_tuner):
        verb.add_argument("--trials", type=int, default=64)
        verb.add_argument("--seed", type=int, default=0)
        verb.add_argument("--mcpu")
    for verb in (tuner, server):
        verb.add_argument("--workload", required=True)
    for verb in (tuner, server, network_tuner, network_server):
        verb.add_argument("--threads", type=int, required=True)
        verb.add_argument("--library", type=Path, required=True)
    args = parser.parse_args(argv)
    os.environ["TVM_NUM_THREADS"] = str(args.threads)  # read when its pool starts, in its workers too
    if args.verb.startswith("serve"):
        (serve if args.verb == "serve" else serve_network)(args)
        return 0
    print(json.dumps((tune if args.verb == "tune" else tune_network)(args)), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
