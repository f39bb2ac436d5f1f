"""`autosched bench MODEL`: interleaved comparison of a network with other runtimes (peers), each in a process.

In each round a block of runs of each runtime is timed, in alternating order, on the same inputs. Peers whose results
differ from ours, that are not installed or that do not support the network are left out, with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from autosched.cli import options
from autosched.cli.network import arguments
from autosched.cli.network.peers import OURS, NetworkCase, known_peers, why_missing
from autosched.errors import UsageError, VerificationError
from autosched.runtime.gpu.devices import GPUS, device_facts
from autosched.runtime.processes import ProcessLost, ask_within, end_group
from autosched.target import parse_target

if TYPE_CHECKING:
    from autosched.cli.network.arguments import NamedNetwork

ROUNDS = 10  # even: every order as often as its reverse
BLOCK_S = 0.1
REST_S = 0.05  # pause in which the threads of the last runtime go to sleep
LOAD_S, TIME_S = 900.0, 120.0  # deadlines
TOLERANCE = 2e-3  # of the root mean square: checks that a peer computes the same function, not its precision
# Tolerance of quantised networks: another runtime may round numbers near a tie to the neighbour, and later layers
# propagate that. The difference is 0.06 for ResNet-50, 0.02 for MobileNetV2.
ROUNDED_TO_BYTES = 0.1
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class PeerProcess:
    """A process with one runtime, which ends with this process."""

    def __init__(self, threads: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "autosched.cli.network.peer_process", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(threads))},
            start_new_session=True,
            bufsize=0,
        )

    def ask(self, request: Mapping[str, Any], deadline_s: float) -> dict[str, Any]:
        """Return the answer to a request, or {"reason": ...}. A process that misses its deadline is killed."""
        try:
            answer = ask_within(deadline_s, self._process, json.dumps(request).encode() + b"\n")
        except ProcessLost as error:
            return {"reason": f"its process {error}"}
        message: dict[str, Any] = json.loads(answer)
        return message

    def close(self) -> None:
        end_group(self._process)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


@dataclass(frozen=True)
class NetworkRow:
    """Median seconds of a run by runtime, with confidence intervals. `missing`: reasons of the peers left out."""

    model: str
    batch: int
    threads: int
    seconds: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    facts: Mapping[str, Mapping[str, Any]]
    missing: Mapping[str, str]

    def __str__(self) -> str:
        from autosched.cli.output import interval_text, threads_text

        ours = self.seconds[OURS]
        lines = [f"{self.model}, batch {self.batch}, {threads_text(self.threads)}"]
        for name, seconds in sorted(self.seconds.items(), key=lambda pair: pair[1]):
            ratio = "" if name == OURS else f"  {seconds / ours:.2f}x"
            lines.append(f"  {name:<12} {interval_text(seconds, self.intervals[name])}{ratio}")
        return "\n".join([*lines, *(f"  {name:<12} not: {reason}" for name, reason in self.missing.items())])

    def to_json(self) -> dict[str, object]:
        peers = {name: s for name, s in self.seconds.items() if name != OURS}
        facts = {"model": self.model, "batch": self.batch, "threads": self.threads}
        details = {"intervals": self.intervals, "loaded": self.facts, "missing": self.missing}
        return {**facts, "ours_s": self.seconds[OURS], "peers": peers, **details}


def bench_networks(words: Sequence[str], args: argparse.Namespace) -> Iterator[NetworkRow]:
    """Yield a row for each network and number of threads. Raises UsageError for words that name no network and for
    options of workloads, before anything is timed."""
    peers = known_peers([name.strip() for name in args.peers.split(",")] if args.peers else None)
    if args.shape is not None or args.batch is not None or args.dtype is not None:
        raise UsageError("--shape, --batch and --dtype are for workloads, not for networks")
    target = options.target_text(args) or "cpu"
    if args.mcpu is not None:
        raise UsageError("bench compares networks on this machine's devices: leave --mcpu out")
    if (kind := parse_target(target).kind) in GPUS:
        if args.threads:
            raise UsageError(f"threads are those of a processor, but the target is {kind}: leave them out")
        device_facts(kind)  # raises for an absent device, before any process starts
    for network in [arguments.require_network(word, args) for word in words]:
        inputs, fixed = _inputs(network, args)
        onnx = network.model.resolve() if network.suffix == arguments.ONNX else None
        case = NetworkCase(
            network.word, options.settings(args), arguments.sizes(args.size), 1, onnx, args.db, target,
            names=tuple(inputs), fixed=fixed,
        )  # fmt: skip
        arrays, is_module = list(inputs.values()), not network.suffix
        for threads in args.threads or ((1,) if case.is_on_gpu else (len(os.sched_getaffinity(0)),)):
            with tempfile.TemporaryDirectory(prefix="autosched-bench-") as folder:
                yield _compare(replace(case, threads=threads), peers, arrays, Path(folder), is_module)


def _inputs(network: NamedNetwork, args: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return all inputs by name, from the file or function, else normally distributed; and the values of the fixed
    ones, as JSON data."""
    from autosched import inspection_api
    from autosched.graph.fixed_inputs import fixed_array
    from autosched.ir.dtype import DTYPES
    from autosched.runtime.spec import ArraySpec

    fixed = arguments.fixed_values(args.fix)
    normal = inspection_api.made_inputs(
        network.model, network.example_inputs, sizes=arguments.sizes(args.size), inputs=fixed
    )
    specs = [ArraySpec(name, array.shape, array.dtype.name) for name, array in normal.items()]
    given = arguments.arrays_for(specs, network, args.inputs, fixed) or list(normal.values())
    arrays = dict(zip(normal, given, strict=True))
    if not fixed:
        return arrays, {}
    described = {d.name: d for d in arguments.inputs_of(network)}
    values = {
        name: fixed_array(name, value, DTYPES[d.dtype].numpy_dtype, d.shape)
        for name, value in fixed.items() if (d := described[name])
    }  # fmt: skip
    return {name: arrays.get(name, values.get(name)) for name in described}, {n: v.tolist() for n, v in values.items()}


@contextmanager
def _processes(names: Sequence[str], threads: int) -> Iterator[dict[str, PeerProcess]]:
    with ExitStack() as stack:
        processes = {}
        for name in names:
            processes[name] = PeerProcess(threads)
            stack.callback(processes[name].close)
        yield processes


def _compare(
    case: NetworkCase, peers: Sequence[str], inputs: Sequence[Any], folder: Path, is_module: bool
) -> NetworkRow:
    """Load the network in all runtimes, one after the other, and time those with our results, interleaved."""
    import numpy as np

    from autosched.measure.results import median_interval

    np.savez(folder / "inputs.npz", *inputs)
    missing = {name: reason for name in peers if (reason := why_missing(name, is_module, case.kind)) is not None}
    present = [name for name in peers if name not in missing]
    if is_module and {"onnxruntime", "openvino"} & set(present):
        case, reason = _export(case, folder)
        without_file = {name: reason for name in present if case.onnx is None and name in ("onnxruntime", "openvino")}
        missing, present = {**missing, **without_file}, [name for name in present if name not in without_file]
    with _processes((OURS, *present), case.threads) as processes:
        facts = {name: process.ask(_request(case, folder, name), LOAD_S) for name, process in processes.items()}
        if "reason" in facts[OURS]:
            raise VerificationError(f"{case.word} does not run: {facts[OURS]['reason']}")
        tolerance = _tolerance(facts[OURS])
        missing |= {name: reason for name in present if (reason := _mismatch(facts[name], folder, name, tolerance))}
        samples = _time({name: process for name, process in processes.items() if name not in missing}, missing)
    if OURS not in samples:
        raise VerificationError(f"{case.word} does not run: {missing[OURS]}")
    return NetworkRow(
        case.word,
        int(inputs[0].shape[0]) if inputs and inputs[0].ndim else 1,
        case.threads,
        {name: median(seconds) for name, seconds in samples.items()},
        {name: median_interval(seconds) for name, seconds in samples.items()},
        {name: facts[name] for name in samples},
        missing,
    )


def _export(case: NetworkCase, folder: Path) -> tuple[NetworkCase, str]:
    """Export the module, and return the case with its ONNX file, or the same case and the reason of a failure."""
    exported = replace(case, onnx=folder / "model.onnx")
    with _processes(("export",), case.threads) as processes:
        answer = processes["export"].ask({**_request(exported, folder, "export"), "op": "export"}, LOAD_S)
    return (case, f"no ONNX file: {answer['reason']}") if "reason" in answer else (exported, "")


def _request(case: NetworkCase, folder: Path, name: str) -> dict[str, Any]:
    paths = {"inputs": str(folder / "inputs.npz"), "results": str(folder / f"{name}.npz")}
    return {
        **asdict(case),
        **paths,
        "onnx": None if case.onnx is None else str(case.onnx),
        "db": None if case.db is None else str(case.db.absolute()),
        "op": "enter",
        "peer": name,
    }


def _tolerance(ours: Mapping[str, Any]) -> float:
    """Return the tolerance of a peer's results, relative to the root mean square of ours."""
    return ROUNDED_TO_BYTES if ours["is_quantised"] else TOLERANCE


def _mismatch(facts: Mapping[str, Any], folder: Path, name: str, tolerance: float) -> str:
    """Return why a peer is left out; empty if its results are within the tolerance."""
    import numpy as np

    if "reason" in facts:
        return str(facts["reason"])
    with np.load(folder / f"{OURS}.npz") as mine, np.load(folder / f"{name}.npz") as theirs:
        if [mine[n].shape for n in mine.files] != [theirs[n].shape for n in theirs.files]:
            return "its results have other shapes"
        for n in mine.files:
            error = relative_error(theirs[n], mine[n])
            if not error <= tolerance:
                return f"its results differ from ours by {error:.3g} of their root mean square, beyond {tolerance:.3g}"
    return ""


def relative_error(got: Any, want: Any) -> float:
    """Return rms(got - want) / rms(want)."""
    import numpy as np

    reference = want.astype(np.float64)
    error, size = (float(np.sqrt(np.mean(np.square(x)))) for x in (got.astype(np.float64) - reference, reference))
    return error / size if size else error


def _time(processes: Mapping[str, PeerProcess], missing: dict[str, str]) -> dict[str, list[float]]:
    """Return interleaved samples of each runtime, after a warm-up round; runtimes that fail are added to `missing`."""
    samples: dict[str, list[float]] = {name: [] for name in processes}
    order = list(processes)
    for n in range(ROUNDS + 1):
        for name in [name for name in order if name in samples]:
            time.sleep(REST_S)
            answer = processes[name].ask({"op": "time", "block_s": BLOCK_S}, TIME_S)
            if "reason" in answer:
                missing[name] = str(answer["reason"])
                del samples[name]
            elif n:
                samples[name].append(float(answer["seconds"]))
        order.reverse()
    return samples
