"""`autosched doctor`: properties of this machine, measured, and what is missing for tuning."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autosched.backends import gpu_kinds
from autosched.cli import options

if TYPE_CHECKING:
    from autosched.target import Target

NEEDED = ("numpy", "llvmlite", "networkx", "rich")
OPTIONAL = {
    "matplotlib": "autosched plot: pip install 'autosched[plot]'",
    "torch": "a peer of autosched bench: pip install 'autosched[peers]'",
    "apache-tvm": "a peer of the experiments: pip install 'autosched[metaschedule]' without PyTorch",
    "cuda-core": "CUDA devices: pip install 'autosched[cuda]'",
    "pycuda": "CUDA devices by way of pycuda: pip install 'autosched[pycuda]'",
    "pyopencl": "OpenCL devices: pip install 'autosched[opencl]'",
}
STREAM_BYTES = 256 << 20  # beyond the last-level caches of a core's share
NOISY = 0.05  # from this spread of equal work on measurements take long


@dataclass(frozen=True)
class DoctorFinding:
    """A line of the report: `value` is a JSON number or text; if `ok` is false, `hint` says what to do."""

    name: str
    value: object
    text: str
    ok: bool = True
    hint: str = ""


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "doctor",
        help="measure this machine and check the installation",
        description="Measures this machine and checks the installation; exit code 2 where something must be mended.",
    )
    options.add_target(parser)
    options.add_db(parser)
    options.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from autosched.cli.output import SCHEMA_VERSION, print_json
    from autosched.errors import UsageError
    from autosched.target import parse_target

    target = parse_target(options.target_text(args))
    findings = [
        *(_gpu_rates(target.kind) if target.backend.is_gpu else _processor(target, args.threads)),
        *(_gpu(kind) for kind in gpu_kinds()),
        _timer_noise(),
        *_packages(),
        _cache(),
        _database(args.db),
        _key(),
    ]
    is_well = all(f.ok for f in findings)
    if args.json:
        facts = {f.name.replace(" ", "_"): f.value for f in findings}
        hints = [f"{f.name}: {f.hint}" for f in findings if f.hint]
        print_json({"schema_version": SCHEMA_VERSION, "ok": is_well, **facts, "hints": hints})
    else:
        width = max(len(f.name) for f in findings)
        for f in findings:
            mark = "  " if f.ok else "! "
            print(f"{mark}{f.name.ljust(width)}  {f.text}{f'  ({f.hint})' if f.hint else ''}")
    if is_well:
        return 0
    wrong = "; ".join(f"{f.name}: {f.text}{f' ({f.hint})' if f.hint else ''}" for f in findings if not f.ok)
    print(f"autosched: error: something must be mended: {wrong}", file=sys.stderr)
    return UsageError.exit_code


def _processor(target: Target, threads: int | None) -> list[DoctorFinding]:
    return [*_machine(target), *_rates(target, threads or target.cores)]


def _gpu(kind: str) -> DoctorFinding:
    """Return the GPU of a kind of target; a missing one is no fault of the installation."""
    from autosched.errors import DeviceError
    from autosched.runtime.gpu.devices import device_facts, driver_name, lacking

    try:
        facts = device_facts(kind)
    except DeviceError as error:
        return DoctorFinding(kind, None, "no device", True, str(error))
    size = f"{facts.multiprocessors} multiprocessors at {facts.clock_ghz:.2f} GHz"
    memory = f"{facts.shared_per_block >> 10} KiB shared for a block, L2 {facts.l2_bytes >> 20} MiB"
    lacks = f"; its driver {driver_name(kind)} lacks {', '.join(missing)}" if (missing := lacking(kind)) else ""
    return DoctorFinding(kind, facts.name, f"{facts.name} {facts.arch}: {size}, {memory}{lacks}")


def _gpu_rates(kind: str) -> list[DoctorFinding]:
    """Return the peak rates of a GPU that was requested by name. Raises DeviceError if it is missing."""
    from autosched.measure.backends import lock_name
    from autosched.measure.gpu.rates import measure_rates
    from autosched.measure.host import device_lock

    with device_lock(lock_name(kind)):
        rates = measure_rates(kind, None)
    return [
        DoctorFinding("target", rates.device, rates.device),
        *(DoctorFinding(*_pipe(name, rate)) for name, rate in rates.gflops.items()),
        DoctorFinding("copy gbytes per s", rates.bandwidth / 1e9, f"{rates.bandwidth / 1e9:.1f} GB/s measured"),
    ]


def _pipe(name: str, gflops: float) -> tuple[str, float, str]:
    title = "fma gflops" if name == "float32" else f"{name} gflops"
    return title, gflops, f"{gflops:.0f} GFLOP/s measured"


def _machine(target: Target) -> list[DoctorFinding]:
    bits = 8 * target.vector_bytes
    caches = (target.l1_bytes, target.l2_bytes, target.l3_bytes)
    return [
        DoctorFinding("target", target.fingerprint, f"{target.kind} {target.mcpu}"),
        DoctorFinding("cores", target.cores, f"{target.cores} usable of {os.cpu_count()}"),
        DoctorFinding("caches bytes", list(caches), " ".join(f"L{i + 1} {n >> 10} KiB" for i, n in enumerate(caches))),
        DoctorFinding(
            "vector bits",
            bits,
            f"{bits} bits, {target.n_vector_registers} registers, {'with' if target.has_fma else 'without'} FMA",
        ),
    ]


def _rates(target: Target, threads: int) -> list[DoctorFinding]:
    """Return the peaks of one and of all threads, the memory bandwidth and the overhead of a parallel loop."""
    from autosched.runtime import peak

    findings = []
    for n in sorted({1, threads}):
        gflops = peak.measure_fma_gflops(target, n)
        findings.append(DoctorFinding(f"fma gflops {n}", gflops, f"{gflops:.0f} GFLOP/s measured"))
    for n in sorted({1, threads}):
        rate = peak.measure_bandwidth(target, n, STREAM_BYTES) / 1e9
        findings.append(DoctorFinding(f"memory gbytes per s {n}", rate, f"{rate:.1f} GB/s measured"))
    cost = peak.fork_join_seconds(threads, target)
    findings.append(DoctorFinding("fork join s", cost, f"{1e6 * cost:.2f} us for {threads} threads"))
    return findings


def _timer_noise() -> DoctorFinding:
    """Return the spread of equal work: (90th - 10th percentile) / median of 200 loops of about 0.1 ms."""
    samples = []
    for _ in range(200):
        start = time.perf_counter()
        sum(range(5_000))
        samples.append(time.perf_counter() - start)
    tenths = statistics.quantiles(samples, n=10)
    spread = (tenths[-1] - tenths[0]) / statistics.median(samples)
    hint = "something else runs on this machine; measurements will take longer" if spread > NOISY else ""
    return DoctorFinding("timer noise", spread, f"{100.0 * spread:.1f} % between equal pieces of work", True, hint)


def _packages() -> list[DoctorFinding]:
    import platform

    findings = [DoctorFinding("python", platform.python_version(), platform.python_version())]
    for name in NEEDED:
        version = _version(name)
        hint = "" if version else f"pip install {name}"
        findings.append(DoctorFinding(name, version, version or "missing", version is not None, hint))
    booster = _version("xgboost-cpu") or _version("xgboost")
    hint = "" if booster else "pip install xgboost-cpu"
    findings.append(DoctorFinding("xgboost", booster, booster or "missing", booster is not None, hint))
    for name, use in OPTIONAL.items():
        version = _version(name)
        findings.append(DoctorFinding(name, version, version or "not installed", True, "" if version else use))
    return findings


def _version(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cache() -> DoctorFinding:
    """Return whether the state directory for locks and scratch files can be used, without which nothing is measured."""
    from autosched.errors import UsageError
    from autosched.measure.host import ScratchDirectory

    try:
        with ScratchDirectory() as scratch:
            place = str(scratch.parents[1])
    except UsageError as error:
        return DoctorFinding("cache", None, "not usable", False, str(error))
    return DoctorFinding("cache", place, place)


def _database(path: Path | None) -> DoctorFinding:
    """Return whether records can be written, without creating a file."""
    from autosched.errors import StoreError
    from autosched.store import Database, absolute_path, command, default_path

    try:
        place = absolute_path(default_path() if path is None else path)
        if not place.exists():
            parent = next(p for p in place.parents if p.exists())
            writable = parent.is_dir() and os.access(parent, os.W_OK)
            hint = "" if writable else f"{parent} cannot be written: name another file with --db"
            return DoctorFinding("database", str(place), f"{place} (made by the first tune)", writable, hint)
        with Database(place) as database:
            health = database.check()
    except StoreError as error:
        return DoctorFinding("database", str(path), "not usable", False, str(error))
    text = f"{place}, {health.n_records} records"
    hint = "" if health.ok else f"{health.n_damaged} damaged rows: `{command('db export', path)}` rescues the others"
    return DoctorFinding("database", str(place), text, health.ok, hint)


def _key() -> DoctorFinding:
    """Return the state of this installation's key: without it, every record is verified again before it is used."""
    from autosched.errors import StoreError
    from autosched.runtime.data_files import key_path
    from autosched.store.signing import installation_key

    try:
        path = key_path()
    except StoreError as error:
        return DoctorFinding("key", None, "none", False, str(error))
    if not os.path.lexists(path):
        return DoctorFinding("key", str(path), f"{path} (made by the first tune)")
    if installation_key() is None:
        hint = "not 32 bytes of yours that only you can read: `chmod 600` it, or remove it and verify records anew"
        return DoctorFinding("key", str(path), str(path), False, hint)
    return DoctorFinding("key", str(path), str(path))
