"""`autosched bench`: comparison of tuned kernels with NumPy and PyTorch; networks are compared in `cli.network.bench`.

All peers of a case are timed in this process in interleaved blocks, in an order that alternates from round to round, so
that drift of the machine affects all of them alike. Our results are new arrays at each call, as PyTorch's are. Only
times of one run may be compared.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autosched.cli import options
from autosched.cli.network.arguments import SYNTAX, add_sizes, is_network_name
from autosched.errors import UsageError, VerificationError

if TYPE_CHECKING:
    from autosched.cli.peers import Array, Peer, PeerCall
    from autosched.te.operators.registry import BuiltinWorkload
    from autosched.tuner.options import WorkloadKeywords

ROUNDS = 10  # even: every order as often as its reverse
BLOCK_S = 0.05  # least seconds of successive calls of one peer
TRIALS = 64
TOLERANCE = 2e-3  # relative to the largest element: checks that a peer computes the same function, not its precision
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class BenchCase:
    """A workload with its sizes: `shape` for the library (None: its defaults), `params`: the arguments by name.

    The batch is no parameter: peers take it from the arrays.
    """

    workload: str
    shape: tuple[int, ...] | None
    params: Mapping[str, int | float | str]


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "bench",
        help="time tuned kernels or networks against other libraries",
        description="Times tuned kernels against NumPy and PyTorch, which are tuned first where they are not yet, or "
        "networks as they are compiled against PyTorch, ONNX Runtime and OpenVINO.",
    )
    parser.add_argument(
        "workload", nargs="*",
        help=f"built-in names, each at all its benchmark shapes (default: all at the first one), or networks: {SYNTAX}",
    )  # fmt: skip
    parser.add_argument(
        "--peers", metavar="NAMES",
        help="torch,torch.compile,torch.prepacked,numpy (default: torch and numpy, where installed); of networks "
        "torch,inductor,onnxruntime,openvino (default: all that are installed)",
    )  # fmt: skip
    parser.add_argument("--trials", type=options.integer(1), default=TRIALS, metavar="N", help="default 64")
    options.add_workload(parser)
    options.add_target(parser, threads=options.counts)
    add_sizes(parser)
    parser.add_argument(
        "--inputs", type=options.path, metavar="FILE.npz", help="arrays by the inputs' names, for a network"
    )
    options.add_db(parser)
    options.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if any(map(is_network_name, args.workload)):
        return _bench_networks(args)
    for name in ("size", "fix", "inputs"):
        if getattr(args, name):
            raise UsageError(f"--{name} is for networks, and none is named")
    if args.threads is not None:
        if len(args.threads) > 1:
            raise UsageError("several numbers of threads are for networks: give one")
        (args.threads,) = args.threads
    return _bench_workloads(args)


def _bench_networks(args: argparse.Namespace) -> int:
    from autosched.cli.network.bench import bench_networks
    from autosched.cli.output import SCHEMA_VERSION, print_json

    rows = []
    for row in bench_networks(args.workload, args):
        rows.append(row.to_json())
        if not args.json:
            print(row, flush=True)
    mean = geomean([ratio for row in rows if (ratio := _ratio(row)) is not None])
    if args.json:
        print_json({"schema_version": SCHEMA_VERSION, "cases": rows, "geomean_against_best_peer": mean})
    elif mean is not None:
        print(f"geometric mean against the best peer of each case: {mean:.2f} times as fast")
    return 0


def _bench_workloads(args: argparse.Namespace) -> int:
    if args.threads is not None:  # read by NumPy's BLAS when it is loaded, so before any import of it
        for name in THREAD_VARIABLES:
            os.environ[name] = str(args.threads)
    from autosched.cli import peers
    from autosched.cli.output import SCHEMA_VERSION, is_gpu, print_json
    from autosched.te.operators.registry import WORKLOADS

    if is_gpu(args.target or ""):
        raise UsageError(
            f"bench compares on the processor, got --target {args.target}: experiments/gpu/run.sh compares on a GPU"
        )
    cases = choose_cases(args, WORKLOADS)
    names = args.peers.split(",") if args.peers else peers.installed()
    selected_peers = peers.find_peers([name.strip() for name in names])
    rows = []
    for case in cases:
        row = run_case(case, args, selected_peers)
        rows.append(row)
        if not args.json:
            print(_line(row), flush=True)
    mean = geomean([ratio for row in rows if (ratio := _ratio(row)) is not None])
    if args.json:
        print_json({"schema_version": SCHEMA_VERSION, "cases": rows, "geomean_against_best_peer": mean})
    elif mean is not None:
        print(f"geometric mean against the best peer of each case: {mean:.2f} times as fast")
    return 0


def choose_cases(args: argparse.Namespace, workloads: Mapping[str, BuiltinWorkload]) -> list[BenchCase]:
    """Return the cases that the options select. Raises UsageError for unknown workloads and options that exclude each
    other.
    """
    from autosched.te.operators.registry import find

    if not args.workload:
        if args.shape is not None or args.settings:
            raise UsageError("--shape and --set need the name of one workload")
        return [_case(w, w.shapes[0], args) for w in workloads.values() if w.shapes]
    if len(args.workload) > 1 and (args.shape is not None or args.settings):
        raise UsageError("--shape and --set go with one workload, and several are named")
    cases = []
    for name in args.workload:
        workload = find(name)
        if args.shape is None and not args.settings and workload.shapes:
            cases += [_case(workload, shape, args) for shape in workload.shapes]
        else:
            cases.append(_case(workload, args.shape, args))
    return cases


def _case(workload: BuiltinWorkload, shape: tuple[int, ...] | None, args: argparse.Namespace) -> BenchCase:
    params: dict[str, int | float | str] = dict(zip(workload.args, workload.defaults, strict=True))
    params.update(zip(workload.numbers, shape or (), strict=False))
    params.update(options.settings(args))
    return BenchCase(workload.name, shape, params)


def run_case(case: BenchCase, args: argparse.Namespace, selected_peers: Mapping[str, Peer]) -> dict[str, object]:
    """Return a row of the output: the workload, our time and each peer's, in seconds."""
    from autosched import api
    from autosched.cli.peers import session

    keywords: WorkloadKeywords = {**options.workload_keywords(args), "shape": case.shape}
    result = api.tune(
        case.workload,
        **keywords,
        trials=args.trials,
        db=args.db,
        resume=True,  # records count as trials: tuned workloads are only compared
    )
    kernel = result.compile()
    arrays = random_inputs([(spec.name, spec.shape, spec.dtype) for spec in kernel.inputs])
    out = kernel(*arrays)
    with session(tuple(selected_peers), result.threads):
        calls = {name: peer(case.workload, case.params, arrays) for name, peer in selected_peers.items()}
        # Elements of 8 bits are added up in 8 by PyTorch: another result, and another operator.
        present = {name: call for name, call in calls.items() if call is not None and call.result().dtype == out.dtype}
        check_same(case.workload, out, present)
        runs: dict[str, Callable[[], object]] = {"ours": lambda: kernel(*arrays)}
        runs.update((name, call.run) for name, call in present.items())
        seconds = time_interleaved(runs)
    return {
        "workload": case.workload,
        "shape": list(result.shape),
        "threads": result.threads,
        "ours_s": seconds.pop("ours"),
        "peers": seconds,
        "record_id": result.record_id,
    }


def random_inputs(specs: Sequence[tuple[str, tuple[int, ...], str]]) -> list[Array]:
    """Return normally distributed numbers of a fixed seed, integers for integer types; variances are positive."""
    import numpy as np

    rng = np.random.default_rng(0)
    arrays = []
    for name, shape, dtype in specs:
        values = rng.standard_normal(shape)
        if np.issubdtype(np.dtype(dtype), np.integer):
            values = rng.integers(0, 8, shape).astype(np.float64)
        arrays.append((np.abs(values) + 0.1 if name == "var" else values).astype(dtype))
    return arrays


def check_same(workload: str, ours: Array, calls: Mapping[str, PeerCall]) -> None:
    """Raise VerificationError if a peer's result differs from ours."""
    import numpy as np

    for name, call in calls.items():
        theirs = call.result()
        if theirs.shape != ours.shape:
            raise VerificationError(f"{name} gives shape {theirs.shape} for {workload}, autosched {ours.shape}")
        scale = float(np.max(np.abs(ours), initial=1e-30))
        error = float(np.max(np.abs(theirs.astype(np.float64) - ours), initial=0.0))
        if not error <= TOLERANCE * scale:
            raise VerificationError(
                f"{name} and autosched differ by {error:.3g} for {workload}, whose largest element is {scale:.3g}"
            )


def time_interleaved(
    runs: Mapping[str, Callable[[], object]],
    rounds: int = ROUNDS,
    block_s: float = BLOCK_S,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Return the median seconds of one call of each peer, over blocks in alternating order."""
    from autosched.measure import timing

    clocks = {name: timing.python_clock(run, clock) for name, run in runs.items()}
    return {name: statistics.median(times) for name, times in timing.interleaved(clocks, rounds, block_s).items()}


def _ratio(row: Mapping[str, object]) -> float | None:
    """Return the best peer's time divided by ours."""
    times, ours = row["peers"], row["ours_s"]
    if not isinstance(times, dict) or not times or not isinstance(ours, float):
        return None
    return float(min(times.values())) / ours


def geomean(ratios: Sequence[float]) -> float | None:
    """Return the geometric mean; None of no ratios."""
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else None


def _line(row: Mapping[str, object]) -> str:
    from autosched.cli.output import time_text

    times, shape, ours = row["peers"], row["shape"], row["ours_s"]
    assert isinstance(times, dict)
    assert isinstance(shape, list)
    assert isinstance(ours, float)
    others = "  ".join(f"{name} {time_text(s)} ({s / ours:.2f}x)" for name, s in times.items())
    return f"{row['workload']} {','.join(map(str, shape))}  ours {time_text(ours)}  {others}"
