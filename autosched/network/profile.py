"""The kernels of a network as they run one after the other, in the network's arena, each timed.

They are called from Python, so that each can be timed; what such a call itself takes is measured and taken away.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

from autosched.codegen.llvm.program import ARENA, ARGUMENT, WEIGHTS, Pointer
from autosched.errors import DeviceError
from autosched.graph.graph import Array
from autosched.graph.partition import Group
from autosched.measure.host import device_lock
from autosched.network.model import Model
from autosched.runtime.tensors import address_of, aligned_empty, as_input, new_outputs

BUDGET_S = 2.0
FEWEST, MOST = 5, 200  # runs
EMPTY_CALLS = 2000


@dataclass(frozen=True)
class NetworkTimes:
    """Medians in seconds. `kernels`: by the step that each is; `call`: of the whole network, called as users do."""

    kernels: Mapping[int, float]
    call: float


@dataclass(frozen=True)
class _Launch:
    """A kernel with its pointers. `held` owns the memory that they are in."""

    step: int
    function: Callable[[int, int, int], int]
    pointers: int
    workspace: int
    held: object


def profile(model: Model, arrays: Mapping[str, Array], budget_s: float | None = None) -> NetworkTimes:
    """Runs the network on `arrays`, by the names of its inputs, kernel by kernel and whole in turn, for about
    `budget_s` (default: BUDGET_S). Raises DeviceError where a kernel stops."""
    given = [as_input(spec, arrays[spec.name]) for spec in model.inputs]
    results = new_outputs(model.outputs)
    arena = aligned_empty((max(model.arena_bytes, 1),), "uint8")
    launches = _launches(model, [address_of(array) for array in (*given, *results)], address_of(arena))
    out = results[0] if len(results) == 1 else tuple(results)
    samples: dict[int, list[float]] = {launch.step: [] for launch in launches}
    calls: list[float] = []
    with device_lock("cpu"):
        model(*given, out=out)
        spare = _empty_call_s()
        end = time.perf_counter() + (BUDGET_S if budget_s is None else budget_s)
        while len(calls) < FEWEST or (len(calls) < MOST and time.perf_counter() < end):
            for launch in launches:
                samples[launch.step].append(max(0.0, _seconds(launch, model.threads) - spare))
            start = time.perf_counter()
            model(*given, out=out)
            calls.append(time.perf_counter() - start)
    return NetworkTimes({step: median(found) for step, found in samples.items()}, median(calls))


def _launches(model: Model, arguments: list[int], arena: int) -> list[_Launch]:
    bases = {ARENA: arena, WEIGHTS: address_of(model.block)}
    steps = [n for n, step in enumerate(model.program.steps) if isinstance(step, Group)]
    found = []
    for step, call in zip(steps, model.program.launches(), strict=True):
        addresses = [0 if p is None else _address(p, arguments, bases) for p in call.pointers]
        block = (ctypes.c_size_t * len(addresses))(*addresses)
        workspace = bases[call.workspace.place] + call.workspace.at
        function = model.linked[call.entry].function
        found.append(_Launch(step, function, ctypes.addressof(block), workspace, block))
    return found


def _address(pointer: Pointer, arguments: list[int], bases: Mapping[str, int]) -> int:
    if pointer.place == ARGUMENT:
        return arguments[pointer.at] + pointer.offset
    return bases[pointer.place] + pointer.at


def _seconds(launch: _Launch, threads: int) -> float:
    start = time.perf_counter()
    code = launch.function(launch.pointers, launch.workspace, threads)
    taken = time.perf_counter() - start
    if code:
        raise DeviceError(f"the kernel of step {launch.step} stopped with code {code}")
    return taken


def _empty_call_s() -> float:
    """What the call of a function that does nothing takes from here."""
    prototype = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    address = ctypes.cast(ctypes.CDLL(None).labs, ctypes.c_void_p).value
    launch = _Launch(0, prototype(address or 0), 0, 0, None)
    return median(_without_code(launch) for _ in range(EMPTY_CALLS))


def _without_code(launch: _Launch) -> float:
    start = time.perf_counter()
    launch.function(launch.pointers, launch.workspace, 1)
    return time.perf_counter() - start
