"""Measured peak rates of a device: multiply-adds a second, and bytes a second of a copy.

Both kernels are, as generated code, in CUDA C or OpenCL C, compiled by the same compiler and timed by the driver's
events. The arithmetic kernel has independent chains `a = a * 0.5 + x` in registers, in as many threads as
the device holds at a time; compilers contract each step into one multiply-add. The other kernel copies 16 bytes an
access. The best variant differs between devices, so each kernel has several, and the best rate counts.

The rates of tensor cores are in `tensor_pipes`.

A fault here may lose the device for the whole process: `measure.gpu.rates` runs in a separate one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autosched.codegen.c.dialects import DIALECTS
from autosched.codegen.c.source import GpuSource
from autosched.errors import DeviceError
from autosched.runtime.gpu.compile import CompileError, compile_source
from autosched.runtime.gpu.device import Array, DeviceFault, GpuDevice
from autosched.runtime.gpu.devices import compiler_for
from autosched.runtime.gpu.handwritten import THREADS, handwritten_source, thread_number
from autosched.runtime.gpu.tensor_pipes import PIPES, peak_kernels, pipes_of

if TYPE_CHECKING:
    from autosched.target import GpuFacts

STEPS = 16  # of every chain in one iteration of the loop, so that the loop costs less than 2 %
SAMPLE_S, SAMPLES = 5e-3, 5
LAUNCH_S = 1e-3  # seconds that a launch of multiply-adds should take by the device's properties
L2_FACTOR = 2  # copies rotate through buffers of so many times the last cache
MAX_PAIRS = 64
_TYPES = {"float32": "float", "float64": "double"}
_VECTOR_BYTES = 16


@dataclass(frozen=True)
class ThreadWork:
    """A thread's work: `count` chains of vectors of `lanes` elements, or `count` accesses of 16 bytes."""

    count: int
    lanes: int = 1


# Variants by kind of device. A processor under OpenCL needs vector operations; a GPU executes scalar ones.
CHAINS: dict[str, tuple[ThreadWork, ...]] = {
    "cuda": (ThreadWork(8), ThreadWork(16)),
    "opencl": (ThreadWork(16), ThreadWork(12, 8), ThreadWork(12, 16)),
}
ACCESSES = (ThreadWork(1), ThreadWork(4))


def measure_gpu_peak(device: GpuDevice, pipe: str = "float32") -> float:
    """Measure GFLOP/s, two operations for each multiply-add: of float32 or float64, or of a row of PIPES.

    Raises DeviceError, also for a pipe that the device lacks.
    """
    return _fma_peak(device, pipe) if pipe in _TYPES else _matrix_peak(device, pipe)


def _matrix_peak(device: GpuDevice, pipe: str) -> float:
    facts = device.facts()
    if pipe not in pipes_of(facts):
        raise DeviceError(f"{device.name} has no {pipe}: it has {', '.join((*_TYPES, *pipes_of(facts)))}")
    rates = []
    for kernel in peak_kernels(PIPES[pipe], facts, LAUNCH_S):
        start = np.array([PIPES[pipe].one_bits] * kernel.n_operand_words + [0] * kernel.n_zero_words, np.uint32)
        threads = kernel.source.launches[0].grid[0] * THREADS
        sizes = {"start": start.nbytes, "end": 4 * threads}
        rates.append(kernel.operations / _seconds(device, kernel.source, [sizes], {"start": start}) / 1e9)
    return max(rates)


def _fma_peak(device: GpuDevice, dtype: str) -> float:
    facts = device.facts()
    itemsize = np.dtype(dtype).itemsize
    rates = []
    for work in CHAINS[device.kind]:
        source, n_flops = fma_source(device.kind, work, facts, dtype)
        threads = source.launches[0].grid[0] * THREADS
        start = np.full((work.count + 1) * work.lanes, 0.5, dtype)
        sizes = {"start": start.nbytes, "end": threads * work.lanes * itemsize}
        rates.append(n_flops / _seconds(device, source, [sizes], {"start": start}) / 1e9)
    return max(rates)


def measure_gpu_bandwidth(device: GpuDevice, n_bytes: int) -> float:
    """Measure the bytes read and written a second while copying `n_bytes` from one buffer to another.

    Small copies rotate through several pairs of buffers, so that they miss the last cache, as timed kernels do. Raises
    DeviceError.
    """
    facts, rates = device.facts(), []
    for work in ACCESSES:
        source, bytes_per_launch = copy_source(device.kind, work, n_bytes)
        n_pairs_for_l2 = -(-L2_FACTOR * facts.l2_bytes // bytes_per_launch)
        n_pairs = max(1, min(n_pairs_for_l2, MAX_PAIRS, device.memory()[0] // 2 // bytes_per_launch))
        sizes = [{"start": bytes_per_launch // 2, "end": bytes_per_launch // 2}] * n_pairs
        rates.append(bytes_per_launch / _seconds(device, source, sizes, {}))
    return max(rates)


def fma_source(kind: str, work: ThreadWork, facts: GpuFacts, dtype: str) -> tuple[GpuSource, float]:
    """Return a kernel that fills the device with chains of multiply-adds, and the operations of one launch."""
    dialect = DIALECTS[kind]
    vector = _TYPES[dtype] + (str(work.lanes) if work.lanes > 1 else "")
    blocks = facts.multiprocessors * max(1, facts.max_threads_per_multiprocessor // THREADS)
    per_round = 2.0 * work.count * work.lanes * STEPS * THREADS * blocks
    estimate = 2e9 * facts.clock_ghz * facts.multiprocessors * facts.fma_per_cycle_per_multiprocessor
    rounds = max(1, round(LAUNCH_S * estimate / per_round))
    chains, half = range(work.count), "0.5f" if dtype == "float32" else "0.5"
    lines = [
        f"  const {vector} x = start[0];",
        *(f"  {vector} a{c} = start[{c + 1}];" for c in chains),
        f"  for (int i = 0; i < {rounds}; ++i) {{",
        f"    {dialect.unroll}",
        f"    for (int s = 0; s < {STEPS}; ++s) {{",
        *(f"      a{c} = a{c} * {half} + x;" for c in chains),
        "    }",
        "  }",
        f"  end[{thread_number(kind)}] = {' + '.join(f'a{c}' for c in chains)};",
    ]
    prologue = (dialect.doubles if dtype == "float64" else "") + dialect.prologue
    return handwritten_source(kind, "fma_peak", vector, lines, blocks, prologue), per_round * rounds


def copy_source(kind: str, work: ThreadWork, n_bytes: int) -> tuple[GpuSource, int]:
    """Return a kernel that copies whole blocks of threads, at least one, of `n_bytes`; and the bytes it reads and
    writes.
    """
    accesses_per_block = work.count * THREADS
    blocks = max(1, n_bytes // (_VECTOR_BYTES * accesses_per_block))
    accesses = range(work.count)
    base = f"{DIALECTS[kind].block.format(axis='x', number=0)} * {accesses_per_block}"
    lines = [
        f"  const int at = {base} + {DIALECTS[kind].thread.format(axis='x', number=0)};",
        *(f"  const float4 v{k} = start[at + {k * THREADS}];" for k in accesses),
        *(f"  end[at + {k * THREADS}] = v{k};" for k in accesses),
    ]
    return handwritten_source(
        kind, "copy_peak", "float4", lines, blocks
    ), 2 * _VECTOR_BYTES * accesses_per_block * blocks


def _seconds(
    device: GpuDevice, source: GpuSource, sizes: Sequence[Mapping[str, int]], content: Mapping[str, Array]
) -> float:
    """Return the fastest time of one launch in seconds, with a set of buffers for each entry of `sizes` in turn."""
    memory = []
    try:
        kernels = device.load(compile_source(source, compiler_for(device.kind, device.facts().arch)), source)
        calls = []
        for entry in sizes:
            buffers = {name: device.allocate(nbytes) for name, nbytes in entry.items()}
            memory += list(buffers.values())
            for name, buffer in buffers.items():
                if name in content:
                    device.upload(buffer, content[name])
                else:
                    device.fill(buffer, b"\0", 0, buffer.nbytes)
            calls.append(device.prepare(kernels, source, buffers))
        return _fastest_seconds(lambda repeats: device.time(calls, repeats), len(calls))
    except (DeviceFault, CompileError) as fault:
        raise DeviceError(f"the peak rates of {device.name} cannot be measured: {fault}") from None
    finally:
        for allocated in memory:
            device.free(allocated)


def _fastest_seconds(run: Callable[[int], float], calls: int) -> float:
    """Return the second smallest sample in seconds a launch. A sample has enough launches for SAMPLE_S, at least
    `calls`.

    The smallest may be too small: OpenCL on a processor records the start of a launch late if it is interrupted there.
    """
    repeats = calls
    while (elapsed_s := run(repeats)) < SAMPLE_S:
        repeats = int(repeats * min(16.0, 1.2 * SAMPLE_S / max(elapsed_s, 1e-9))) + 1
    return sorted(run(repeats) for _ in range(SAMPLES))[1] / repeats
