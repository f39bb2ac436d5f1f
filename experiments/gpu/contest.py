"""One case beside its peers, in a process of its own: `python -m experiments.gpu.contest PARENT_PID TARGET`.

Requests come as JSON lines on standard input; answers leave as JSON lines: {"stage": name} before each contestant is
made, and {"row": ...} at the end. Our kernel is the best one of the records, compiled anew. All contestants are checked
against the float64 reference first and then timed in turn, the order alternating from round to round, each sample
after one that is not counted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from autosched.codegen.c.source import GpuSource
from autosched.errors import AutoschedError, NoValidCandidate
from autosched.ir.instructions.matrices import MATRICES
from autosched.measure import make_problem, timing
from autosched.measure.check import CandidateError, Expected, compare, open_array, open_expected
from autosched.measure.gpu.data import GpuData, make_workspace
from autosched.measure.host import ScratchDirectory
from autosched.measure.problem import Problem
from autosched.measure.results import median_interval
from autosched.measure.timing import Clock
from autosched.runtime.gpu.compile import CompileError, compile_source
from autosched.runtime.gpu.device import DeviceFault, GpuDevice
from autosched.runtime.gpu.devices import compiler_for, shared_device
from autosched.runtime.gpu.kernel import GpuKernel
from autosched.runtime.gpu.peak import measure_gpu_bandwidth, measure_gpu_peak
from autosched.te.operators.registry import build
from experiments.arena import serve
from experiments.gpu import peers
from experiments.tuning import BenchmarkCase, parse_cases

DATA_SET = "normal"
Tell = Callable[[str], None]


def contest(
    case: BenchmarkCase,
    kernel: GpuKernel,
    device: GpuDevice,
    names: list[str],
    rounds: int,
    sample_s: float,
    tell: Tell,
) -> dict[str, Any]:
    """One row: rates of the device, our kernel and the named peers side by side."""
    dag, _ = build(case.workload, case.shape, dtype=case.dtype)
    row: dict[str, Any] = {"workload": case.workload, "shape": case.shape, "flops": dag.flops, "peers": {}}
    clocks: dict[str, Clock] = {}
    with ScratchDirectory() as scratch:
        problem = make_problem(dag, scratch, seed=0)
        problem.wait()
        tell("rates")
        row["bytes"] = problem.n_bytes
        row["pipe"] = MATRICES[kernel.source.matrices[-1]].pipe if kernel.source.matrices else "float32"
        row["peak_gflops"] = measure_gpu_peak(device, row["pipe"])
        row["copy_bandwidth"] = measure_gpu_bandwidth(device, problem.n_bytes // 2)  # as much as the case must move
        data = GpuData(device, scratch, problem.inputs, problem.outputs)
        tell("ours")
        row["ours"], clock = enter_ours(device, data, kernel.source)
        if clock is not None:
            clocks["ours"] = clock
        with torch_session(names, row["peers"]) as present:
            for name in present:
                tell(name)
                row["peers"][name], clock = enter_peer(name, case, problem, data.n_copies)
                if clock is not None:
                    clocks[name] = clock
            if present:
                tell("torch tensors")
                row["torch_tensors"] = called_with_tensors(kernel, problem)
            tell("timing")
            samples_of = timing.interleaved({n: warmed(clock) for n, clock in clocks.items()}, rounds, sample_s)
            for name, samples in samples_of.items():
                entry = row["ours"] if name == "ours" else row["peers"][name]
                entry |= {"seconds": median(samples), "ci": median_interval(samples), "samples": len(samples)}
    return row


def enter_ours(device: GpuDevice, data: GpuData, source: GpuSource) -> tuple[dict[str, Any], Clock | None]:
    """Checks our kernel as a candidate is checked; its entry and its clock."""
    try:
        binary = compile_source(source, compiler_for(device.kind, device.facts().arch))
        kernels, workspace = device.load(binary, source), make_workspace(device, source)
        scratch = {name: buffer.memory for name, buffer in workspace.items()}
        data.poison_outputs()
        device.run(device.prepare(kernels, source, data.buffers(source, 0, scratch)))
        device.synchronise()
        data.examine(0, workspace)
        calls = [device.prepare(kernels, source, buffers) for buffers in data.timing_buffers(source, scratch)]
    except (CandidateError, CompileError, DeviceFault) as fault:
        return {"right": False, "reason": str(fault)[:500]}, None
    entry = {
        "right": True,
        "launches": len(source.launches),
        "registers": [r.registers for r in binary.resources],
        "spill_bytes": [r.spill_bytes for r in binary.resources],
    }
    return entry, lambda repeats: device.time(calls, repeats)


@contextmanager
def torch_session(names: list[str], entries: dict[str, Any]) -> Iterator[list[str]]:
    """The peers that can compete; `entries` says why the others cannot."""
    try:
        torch = peers.start_torch() if names else None
    except peers.NoPeer as reason:
        entries |= {name: {"right": False, "reason": str(reason)} for name in names}
        names, torch = [], None
    with nullcontext() if torch is None else torch.inference_mode():
        yield names


def enter_peer(name: str, case: BenchmarkCase, problem: Problem, n_copies: int) -> tuple[dict[str, Any], Clock | None]:
    """As `enter_ours`, for a peer; whatever it raises is its reason not to take part."""
    try:
        arrays = load_inputs(problem)
        copies = [[peers.on_device(array) for array in arrays] for _ in range(n_copies)]
        entry = peers.PEERS[name](case, copies)
        found = judged(problem, peers.on_host(entry.ours(entry.runs[0]()), problem.outputs[0].numpy_dtype))
        return found, peers.GraphClock(entry.runs)
    except peers.NoPeer as reason:
        return {"right": False, "reason": str(reason)}, None
    except Exception as error:  # a peer's errors are of any class
        return {"right": False, "reason": f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]}, None


def load_inputs(problem: Problem) -> list[np.ndarray[Any, Any]]:
    """Of types that are not NumPy's own too."""
    files = (problem.directory / f"{DATA_SET}.in{i}.npy" for i in range(len(problem.inputs)))
    return [open_array(file, spec) for file, spec in zip(files, problem.inputs, strict=True)]


def judged(problem: Problem, result: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Whether `result` is the output within the bound that our kernels are held to, and how much of it is used."""
    spec = problem.outputs[0]
    if result.size != np.prod(spec.shape):
        return {"right": False, "reason": f"the result has shape {result.shape}, expected {spec.shape}"}
    expected = open_expected(problem.directory, DATA_SET, 0, spec)
    flat = np.ascontiguousarray(result).reshape(-1)
    complaint = compare(spec, flat, expected)
    return {"right": complaint is None, "share_of_bound": share_of_bound(flat, expected)} | (
        {} if complaint is None else {"reason": complaint}
    )


def share_of_bound(flat: np.ndarray[Any, Any], expected: Expected) -> float:
    """The largest error, in units of its bound."""
    bounded = expected.bound > 0
    errors = np.abs(flat.astype(np.float64) - expected.value)[bounded] / expected.bound[bounded]
    return float(np.nan_to_num(np.max(errors, initial=0.0), nan=np.finfo(float).max))


def warmed(clock: Clock) -> Clock:
    """After as many calls that are not counted: another's kernels and data were there before."""
    return lambda repeats: (clock(repeats), clock(repeats))[1]


def called_with_tensors(kernel: GpuKernel, problem: Problem) -> dict[str, Any]:
    """Whether our kernel as a Python function is right on PyTorch's tensors, without copies."""
    import torch

    try:
        inputs = [peers.on_device(array) for array in load_inputs(problem)]
        spec = problem.outputs[0]
        out = peers.on_device(np.zeros(spec.shape, spec.numpy_dtype))
        kernel(*inputs, out=out)
        torch.cuda.synchronize()
        return judged(problem, peers.on_host(out, spec.numpy_dtype))
    except Exception as error:  # recorded: the contest goes on without it
        return {"right": False, "reason": f"{type(error).__name__}: {error}"[:500]}


def best_kernel(case: BenchmarkCase, target: str, database: Path) -> GpuKernel:
    """The stored best kernel. Raises AutoschedError."""
    from autosched import api

    if not api.best(case.workload, shape=case.shape, dtype=case.dtype, target=target, db=database):
        raise NoValidCandidate(f"{database} has no kernel of {case.label} for this device")
    kernel = api.compile(case.workload, shape=case.shape, dtype=case.dtype, target=target, db=database)
    assert isinstance(kernel, GpuKernel)
    return kernel


def answer(request: Mapping[str, Any], target: str, tell: Tell) -> dict[str, Any]:
    """The row of one request, {"error": ...} where there is none."""
    (case,) = parse_cases(request["case"])
    try:
        tell("code")
        kernel, device = best_kernel(case, target, Path(request["db"])), shared_device(target)
        return contest(case, kernel, device, list(request["peers"]), request["rounds"], request["sample_s"], tell)
    except (AutoschedError, DeviceFault) as error:
        return {"error": str(error)}


def main() -> int:
    target = sys.argv[2]
    serve(lambda request, tell: answer(request, target, tell))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
