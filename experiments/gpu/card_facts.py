"""The step `facts`: what the card is, and what it does at most when nothing of ours is asked of it.

Clocks and power are read and never set. In a dry run the device is OpenCL's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial

import numpy as np

from autosched.runtime.gpu.compile import compile_source, find_nvcc, nvrtc_version
from autosched.runtime.gpu.device import GpuDevice
from autosched.runtime.gpu.devices import compiler_for, driver_name, open_device
from autosched.runtime.gpu.handwritten import THREADS, canary_source
from autosched.runtime.gpu.peak import ThreadWork, copy_source, fma_source, measure_gpu_bandwidth, measure_gpu_peak
from autosched.runtime.gpu.tensor_pipes import pipes_of
from experiments.gpu.facts import PACKAGES
from experiments.gpu.steps import Row, StepRequest
from experiments.hostinfo import package_versions

QUERY = (
    "name,driver_version,pstate,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.draw,power.limit,"
    "temperature.gpu,utilization.gpu,clocks_event_reasons.active,ecc.mode.current,mig.mode.current"
)
TOOLS = ("nvcc", "ncu", "compute-sanitizer", "cuobjdump", "nvdisasm", "g++", "nvidia-smi")
LOAD_S, SAMPLES = 1.5, 5
LARGE, DRY_LARGE = 512 << 20, 4 << 20  # bytes that a copy moves, one way
SIZES = tuple(1 << n for n in (18, 20, 22, 24, 25, 26, 27))  # of copies that may stay in the last cache


def predict(request: StepRequest) -> str:
    return (
        "H100: 132 multiprocessors, 50 MB L2, copy 3.0 TB/s (H200: 60 MB, 4.3 TB/s), FFMA 51-67 TFLOP/s, L2 copy about "
        "5-6 TB/s, an empty kernel in a graph 1.5-2.5 us; 1980 MHz at most, 1400-1755 under tensor load; wgmma of "
        "16 bits 950-1050 TFLOP/s, of 8 bits twice, tf32 half of it, mma.sync 0.63 of each, of float8 a fifth"
    )


def measure(request: StepRequest) -> Iterator[tuple[str, Row]]:
    yield "software", software()
    yield "clocks idle", nvidia_smi()
    device = open_device("opencl" if request.is_dry else "cuda")
    try:
        yield "attributes", asdict(device.facts()) | {"free_bytes": device.memory()[0]}
        large = DRY_LARGE if request.is_dry else LARGE
        for label, found in rates(device, large):
            yield label, attempt(found)
        yield "clocks under load", attempt(partial(loaded_clocks, device, 0.05 if request.is_dry else LOAD_S))
    finally:
        device.close()


def attempt(found: Callable[[], Row]) -> Row:
    """What one measurement gives; what it raises is its row."""
    try:
        return found()
    except Exception as error:  # whatever fails on an unknown machine, the others go on
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]}


def rates(device: GpuDevice, large: int) -> Iterator[tuple[str, Callable[[], Row]]]:
    yield "copy", lambda: {"bytes_s": measure_gpu_bandwidth(device, large), "n_bytes": large}
    yield "fp32", lambda: {"gflops": measure_gpu_peak(device, "float32")}
    yield "fp64", lambda: {"gflops": measure_gpu_peak(device, "float64")}
    for pipe in pipes_of(device.facts()):
        if "uint8" not in pipe:  # as int8
            yield pipe, partial(tensor_cores, device, pipe)
    yield "launches", lambda: launches(device)
    for n_bytes in SIZES:
        if n_bytes <= large:
            yield f"copy {n_bytes >> 10} KiB", partial(held_copy, device, n_bytes)


def tensor_cores(device: GpuDevice, pipe: str) -> Row:
    return {"gflops": measure_gpu_peak(device, pipe)}


def held_copy(device: GpuDevice, n_bytes: int) -> Row:
    """Bytes a second of copying the same `n_bytes` again and again: the last cache's, while both buffers fit."""
    best = 0.0
    for form in (ThreadWork(1), ThreadWork(4)):
        source, moved = copy_source(device.kind, form, n_bytes)
        kernels = device.load(compile_source(source, compiler_for(device.kind, device.facts().arch)), source)
        buffers = {name: device.allocate(moved // 2) for name in ("start", "end")}
        try:
            device.fill(buffers["start"], b"\1", 0, moved // 2)
            call = device.prepare(kernels, source, buffers)
            device.time([call], 20)
            best = max(best, 20 * moved / min(device.time([call], 20) for _ in range(SAMPLES)))
        finally:
            for buffer in buffers.values():
                device.free(buffer)
    return {"bytes_s": best, "n_bytes": n_bytes}


def launches(device: GpuDevice) -> Row:
    """Seconds of a launch of next to nothing: one after the other on the device, and from the host and back."""
    source = canary_source(device.kind, THREADS)
    kernels = device.load(compile_source(source, compiler_for(device.kind, device.facts().arch)), source)
    start, end = device.allocate(4 * THREADS), device.allocate(4 * THREADS)
    try:
        device.upload(start, np.ones(THREADS, np.float32))
        call = device.prepare(kernels, source, {"start": start, "end": end})
        device.time([call], 256)
        in_turn = min(device.time([call], 256) for _ in range(SAMPLES)) / 256
        there_and_back = []
        for _ in range(50):
            begun = time.perf_counter()
            device.run(call)
            device.synchronise()
            there_and_back.append(time.perf_counter() - begun)
        return {"in_turn_s": in_turn, "there_and_back_s": min(there_and_back)}
    finally:
        device.free(start)
        device.free(end)


def loaded_clocks(device: GpuDevice, seconds: float) -> Row:
    """What nvidia-smi says in the middle of multiply-adds."""
    source, n_flops = fma_source(device.kind, ThreadWork(8), device.facts(), "float32")
    kernels = device.load(compile_source(source, compiler_for(device.kind, device.facts().arch)), source)
    sizes = {"start": 36, "end": source.launches[0].grid[0] * THREADS * 4}
    buffers = {name: device.allocate(nbytes) for name, nbytes in sizes.items()}
    try:
        device.fill(buffers["start"], b"\0", 0, sizes["start"])
        call = device.prepare(kernels, source, buffers)
        one = max(device.time([call], 4) / 4, 1e-5)
        for _ in range(min(4000, max(1, int(seconds / one)))):
            device.run(call)
        found = nvidia_smi()
        device.synchronise()
        return {**found, "gflops": n_flops / one / 1e9}
    finally:
        for buffer in buffers.values():
            device.free(buffer)


def nvidia_smi() -> Row:
    """What the tool says of the first GPU; {"error": ...} where it is missing or fails."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {"error": "nvidia-smi is not installed"}
    command = [tool, f"--query-gpu={QUERY}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"error": str(error)}
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return {"error": (done.stderr or done.stdout).strip()[:300]}
    return dict(zip(QUERY.split(","), map(str.strip, lines[0].split(",")), strict=False))


def software() -> Row:
    found: Row = {"packages": package_versions((*PACKAGES, "numpy", "llvmlite", "xgboost-cpu", "xgboost", "ml_dtypes"))}
    found["tools"] = {name: shutil.which(name) for name in TOOLS}
    found["nvcc"], found["nvrtc"] = find_nvcc(), nvrtc_version()
    found["cuda driver"], found["cores"] = driver_name("cuda"), os.cpu_count()
    return found


def summary(rows: Mapping[str, Row]) -> str:
    facts, fp32, copy = (rows.get(name, {}) for name in ("attributes", "fp32", "copy"))
    loaded, idle, launched = (rows.get(name, {}) for name in ("clocks under load", "clocks idle", "launches"))
    cached = max(
        (row["bytes_s"] for name, row in rows.items() if name.startswith("copy ") and "bytes_s" in row), default=0
    )
    pipes = {name: row["gflops"] / 1e3 for name, row in rows.items() if "mma." in name and "gflops" in row}
    tensor = ", ".join(f"{name} {rate:.0f}" for name, rate in pipes.items()) or "none"
    return (
        f"{facts.get('name', '?')} ({facts.get('multiprocessors', '?')} multiprocessors, driver "
        f"{idle.get('driver_version', '?')}), clocks {idle.get('clocks.sm', '?')} idle, {loaded.get('clocks.sm', '?')} "
        f"loaded, {loaded.get('power.draw', '?')}\nFFMA {fp32.get('gflops', 0) / 1e3:.1f} TFLOP/s, copy "
        f"{copy.get('bytes_s', 0) / 1e12:.2f} TB/s, in the last cache {cached / 1e12:.2f} TB/s, launches "
        f"{launched.get('in_turn_s', 0) * 1e6:.2f} us in turn, "
        f"{launched.get('there_and_back_s', 0) * 1e6:.1f} us there and back\n"
        f"tensor cores in TFLOP/s: {tensor}"
    )
