"""The kernels of a network alone: how long they take, and how long they must take at least."""

from __future__ import annotations

import ctypes
from statistics import median
from typing import Any

import numpy as np

from autosched.executor.model import Model
from autosched.kernel.request import array_specs
from autosched.kernel.roofline import LARGEST, SMALLEST, Roof, compulsory_bytes
from autosched.measure import timing
from autosched.planning.extract_tasks import NetworkTask, objects_of
from autosched.runtime.jit import load_objects
from autosched.runtime.peak import measure_bandwidth, measure_fma_gflops
from autosched.runtime.tensors import Array, address_of, aligned_empty
from autosched.target import Target
from autosched.target.far_weights import passing_bytes
from experiments.scoreboard.contestant import compiled_clock

NETWORK = "network"


def against_network(model: Model, network: timing.Clock, rounds: int, sample_s: float) -> dict[str, Any]:
    """kernels_s, network_s and each task's name, count and seconds, all timed in turn."""
    clocks: dict[str, timing.Clock] = {str(n): task_clock(task) for n, task in enumerate(model.tasks)}
    samples = timing.interleaved({**clocks, NETWORK: network}, rounds, sample_s)
    seconds = {name: median(found) for name, found in samples.items()}
    tasks = [
        {"name": task.name, "count": task.count, "seconds": seconds[str(n)], "least_s": min(samples[str(n)])}
        for n, task in enumerate(model.tasks)
    ]
    return {
        "kernels_s": sum(task.count * seconds[str(n)] for n, task in enumerate(model.tasks)),
        "network_s": seconds[NETWORK],
        "kernels_least_s": sum(task.count * min(samples[str(n)]) for n, task in enumerate(model.tasks)),
        "network_least_s": min(samples[NETWORK]),
        "kernel_times": tasks,
    }


def task_clock(task: NetworkTask) -> timing.Clock:
    """The kernel of a task on arrays of its own, normal numbers and zeros where integers may be places; weights come
    from where the network has them."""
    kernel, dag = task.kernel, task.request.problem.dag
    threads, passing = task.kernel_spec.threads, 0
    loaded = load_objects(objects_of([task]), tuple(filter(None, (kernel.name, kernel.prepare))), threads)
    rng = np.random.default_rng(0)
    arrays = [filled(spec.shape, spec.dtype, rng) for spec in array_specs((*dag.inputs, *dag.outputs))]
    if kernel.prepare is not None:
        packed = aligned_empty((kernel.packed_bytes,), "uint8")
        pointers = (ctypes.c_size_t * (len(arrays) + 1))(*map(address_of, (*arrays, packed)))
        workspace = aligned_empty((max(kernel.workspace_bytes, 1),), "uint8")
        code = loaded[kernel.prepare](ctypes.addressof(pointers), address_of(workspace))
        assert code == 0, f"{kernel.prepare} ended with {code}"
        arrays.append(packed)
        passing = passing_bytes(dag.weights_in, task.kernel_spec.device.target, threads)
    clock = compiled_clock(loaded[kernel.name].address, arrays, kernel.workspace_bytes, threads, passing)

    def run(repeats: int) -> float:
        assert loaded  # which holds the code
        return clock(repeats)

    return run


def filled(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> Array:
    array = aligned_empty(shape, dtype)
    array[...] = 0 if array.dtype.kind in "biu" else rng.standard_normal(shape, "float32").astype(array.dtype)
    return array


def least_seconds(model: Model, target: Target, threads: int) -> dict[str, Any]:
    """bound_s, with the operations, the bytes and the peak that it is of."""
    peak, rates = 1e9 * measure_fma_gflops(target, threads), dict[int, float]()
    total, flops, n_bytes = 0.0, 0, 0
    for task in model.tasks:
        dag = task.request.problem.dag
        needed = compulsory_bytes(dag)
        total += task.count * Roof(peak, _bandwidth(rates, target, threads, needed)).seconds(dag.flops, needed)
        flops, n_bytes = flops + task.count * dag.flops, n_bytes + task.count * needed
    gbytes = {str(size): rate / 1e9 for size, rate in sorted(rates.items())}
    return {"bound_s": total, "flops": flops, "bytes": n_bytes, "peak_gflops": peak / 1e9, "gbytes_per_s": gbytes}


def _bandwidth(rates: dict[int, float], target: Target, threads: int, n_bytes: int) -> float:
    """Of reading so many bytes, rounded down to a power of 2: fewer lie nearer. `rates` keeps what was measured."""
    size = 1 << (min(max(n_bytes, SMALLEST), LARGEST).bit_length() - 1)
    if size not in rates:
        rates[size] = measure_bandwidth(target, threads, size)
    return rates[size]


def facts_of(model: Model, network: timing.Clock, rounds: int, sample_s: float) -> dict[str, Any]:
    """All that a row says of our kernels."""
    target, threads = model.device.target, model.device.threads
    return {**against_network(model, network, rounds, sample_s), **least_seconds(model, target, threads)}
