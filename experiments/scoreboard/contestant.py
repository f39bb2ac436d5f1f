"""Contestants in a process of their own: `python -m experiments.scoreboard.contestant PARENT_PID`.

Requests are JSON lines on standard input, answers {"row": ...}, as `experiments.arena` asks them. {"op": "enter"}
makes a contestant from the inputs D/in0.npy, ..., runs it once and writes its result to D/<name>.npy; {"op": "time"}
times one block of it; {"op": "peak"} measures what the machine can compute. Whatever fails is answered with its reason.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from autosched import api
from autosched.cli import peers
from autosched.codegen import KernelSource, build_source
from autosched.kernel.request import array_specs
from autosched.kernel.roofline import LARGEST, SMALLEST, compulsory_bytes
from autosched.lower import lower
from autosched.measure import timing
from autosched.measure.argument_sets import ArgumentSets
from autosched.measure.runner import Timer
from autosched.runtime.jit import compile_object, load_object
from autosched.runtime.kernel import Kernel
from autosched.runtime.peak import measure_fma_gflops, multiplier, reader
from autosched.runtime.tensors import Array, address_of, aligned_empty
from autosched.schedule import replay
from autosched.store import Database
from autosched.target import parse_target
from autosched.te import ComputeDAG
from autosched.te.operators.registry import build
from autosched.te.rewrites.collapse import collapse
from experiments.arena import serve

OURS, CALL, READ, MULTIPLY = "autosched", "autosched.call", "read", "multiply"
OPERATIONS = 1e7  # 0.1 ms of one core: no call is all overhead
Request: TypeAlias = "Mapping[str, Any]"
Clocks: TypeAlias = "dict[str, timing.Clock]"


def load_inputs(directory: Path, n: int) -> list[Array]:
    return [aligned(np.load(directory / f"in{i}.npy", allow_pickle=False)) for i in range(n)]


def aligned(array: Array) -> Array:
    """A copy that is aligned as PyTorch aligns its own."""
    copy = aligned_empty(array.shape, array.dtype)
    np.copyto(copy, array)
    return copy


def our_source(dag: ComputeDAG, database: Path, record_id: int, threads: int) -> KernelSource:
    """A stored candidate, generated anew from its steps."""
    with Database(database) as records:
        steps = records.record(record_id).steps
    source = build_source(lower(replay(collapse(dag), steps)), {}, parse_target("cpu"), threads)
    assert isinstance(source, KernelSource)
    return source


def compiled_clock(
    address: int, arrays: list[Array], workspace_bytes: int, threads: int, passing: int = 0
) -> timing.Clock:
    """The timing loop of the tuner's workers around the kernel at `address`. Holds the arrays. `passing`: bytes of
    copies of the last one, if that are packed weights, between two calls with the same."""
    timer = Timer(parse_target("cpu"))
    sets = ArgumentSets([address_of(array) for array in arrays], arrays[-1] if passing else None, passing)
    workspace = aligned_empty((max(workspace_bytes, 1),), "uint8")
    run = timer.clock(address, sets, address_of(workspace), threads)

    def clock(repeats: int) -> float:
        assert workspace.nbytes
        assert arrays
        return run(repeats)

    return clock


def read_clock(n_bytes: int, threads: int) -> timing.Clock:
    """Reading `n_bytes`, in seconds; of what memory is read by, the rate for that many."""
    seconds, count = reader(parse_target("cpu"), threads, min(max(n_bytes, SMALLEST), LARGEST))
    return lambda repeats: seconds(repeats) * n_bytes / count


def multiply_clock(threads: int) -> timing.Clock:
    """Fused multiply-adds in registers, in seconds for `OPERATIONS` of them."""
    seconds, operations = multiplier(parse_target("cpu"), threads)
    count = math.ceil(OPERATIONS / operations)
    return lambda repeats: seconds(repeats * count) * OPERATIONS / (count * operations)


def enter_ours(request: Request, arrays: list[Array]) -> tuple[dict[str, timing.Clock], Array]:
    """Our kernel in both manners of calling it, the machine's two yardsticks, and the kernel's result."""
    dag, _ = build(request["workload"], request["shape"])
    source = our_source(dag, Path(request["database"]), request["record_id"], request["threads"])
    loaded = load_object(compile_object(source.ir, parse_target("cpu")), source.name, source.threads)
    kernel = Kernel(loaded, array_specs(dag.inputs), array_specs(dag.outputs), source.workspace_bytes)
    out = kernel(*arrays)
    clocks = {
        OURS: compiled_clock(loaded.address, [*arrays, out], source.workspace_bytes, source.threads),
        CALL: timing.python_clock(lambda: kernel(*arrays)),
        READ: read_clock(compulsory_bytes(dag), source.threads),
        MULTIPLY: multiply_clock(source.threads),
    }
    return clocks, out


def enter_opt_in(asked: Mapping[str, Any], request: Request, arrays: list[Array]) -> tuple[timing.Clock, Array]:
    """Our kernel of an opt-in, called from Python; constant weights are packed by `bind`."""
    kernel = api.compile(
        request["workload"], shape=request["shape"], db=request["database"], threads=request["threads"], **asked
    )
    assert isinstance(kernel, Kernel)
    names = asked.get("weights", ())
    given = {spec.name: array for spec, array in zip(kernel.inputs, arrays, strict=True)}
    layer = kernel.bind(**{name: given[name] for name in names}) if names else kernel
    rest = [array for name, array in given.items() if name not in names]
    out = layer(*rest)
    return timing.python_clock(lambda: layer(*rest)), out


def enter_peer(name: str, request: Request, arrays: list[Array]) -> tuple[timing.Clock, Array]:
    """PyTorch or NumPy. Raises LookupError where it has no formulation of the operator."""
    library = "numpy" if name == "numpy" else "torch"
    if library == "torch":
        if not peers.has_torch():
            raise LookupError("PyTorch is not installed")
        peers.torch_session(request["threads"]).__enter__()  # for the rest of this process
    call = peers.PEERS[name](request["workload"], request["args"], arrays)
    if call is None:
        raise LookupError("it has no single call for this operator")
    return timing.python_clock(call.run), call.result()


def enter(request: Request, clocks: Clocks) -> dict[str, Any]:
    directory, name = Path(request["directory"]), str(request["name"])
    arrays = load_inputs(directory, request["n_inputs"])
    found: Mapping[str, timing.Clock]
    if name == OURS:
        found, result = enter_ours(request, arrays)
    elif name in request["asked"]:
        clock, result = enter_opt_in(request["asked"][name], request, arrays)
        found = {name: clock}
    else:
        clock, result = enter_peer(name, request, arrays)
        found = {name: clock}
    np.save(directory / f"{name}.npy", result)
    clocks.update(found)
    return {"entered": list(found)}


def sample(request: Request, clocks: Clocks, repeats: dict[str, int]) -> dict[str, Any]:
    """Seconds of one call, over a block after a call that warms up; `repeats` keeps how many calls make a block."""
    name = request["name"]
    clock = clocks[name]
    if name not in repeats:
        repeats[name], _ = timing.calibrate(clock, request["block_s"])
    clock(1)
    return {"seconds": clock(repeats[name]) / repeats[name]}


def answer(request: Request, clocks: Clocks, repeats: dict[str, int]) -> dict[str, Any]:
    """The row of one request, {"reason": ...} for whatever goes wrong: a peer's errors are of any class."""
    try:
        match request["op"]:
            case "enter":
                return enter(request, clocks)
            case "time":
                return sample(request, clocks, repeats)
            case "peak":
                return {"peak_gflops": measure_fma_gflops(parse_target("cpu"), request["threads"])}
        return {"reason": f"there is no {request['op']!r}"}
    except Exception as error:
        return {"reason": f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]}


def main() -> int:
    gc.disable()
    clocks: Clocks = {}
    repeats: dict[str, int] = {}
    serve(lambda request, _: answer(request, clocks, repeats))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
