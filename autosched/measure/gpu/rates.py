"""Peak rates of a device, measured in a separate process, so that a device that fails there affects nothing else.

The process is `python -m autosched.measure.gpu.rates PARENT_PID KIND PIPES N_BYTES`, with the limits and environment of
a worker; its last line is a JSON object. No other process of autosched may use the device meanwhile: callers hold its
`device_lock`, and either have no workers yet or know that they are idle.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from autosched.errors import DeviceError
from autosched.measure.process import worker_environment

DEADLINE_S = 120.0  # initialising a device takes seconds, and so does its compiler
ALL = "all"
_L2_SHARES, _LEAST_BYTES = 4, 64 << 20


@dataclass(frozen=True)
class Rates:
    """`gflops` by pipe; `bandwidth`: bytes read and written a second while copying `n_bytes`."""

    device: str
    gflops: Mapping[str, float]
    bandwidth: float
    n_bytes: int


def measure_rates(
    kind: str, pipes: Sequence[str] | None = ("float32",), n_bytes: int | None = None, deadline_s: float = DEADLINE_S
) -> Rates:
    """Measure the peak rates of the device of `kind` ("cuda", "opencl").

    `pipes`: float32, float64, and rows of `runtime.gpu.tensor_pipes.PIPES`; None: float32 and all its tensor cores.
    `n_bytes`: bytes that the copy reads; default: several times the last cache. Raises DeviceError.
    """
    command = [sys.executable, "-m", __name__, str(os.getpid()), kind, ALL if pipes is None else ",".join(pipes)]
    command.append(str(n_bytes or 0))
    try:
        done = subprocess.run(
            command,
            env=worker_environment(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=deadline_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DeviceError(f"the device of {kind} did not measure its peak rates within {deadline_s:g} s") from None
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        said = done.stderr.strip().splitlines()
        reason = said[-1] if said else f"its process ended with code {done.returncode}"
        raise DeviceError(f"the peak rates of the device of {kind} cannot be measured: {reason}")
    return Rates(**json.loads(lines[-1]))


def main(kind: str, pipes: str, n_bytes: int) -> Rates:
    from autosched.runtime.gpu.devices import open_device
    from autosched.runtime.gpu.peak import measure_gpu_bandwidth, measure_gpu_peak
    from autosched.runtime.gpu.tensor_pipes import pipes_of

    device = open_device(kind)
    names = ("float32", *pipes_of(device.facts())) if pipes == ALL else tuple(pipes.split(","))
    size = n_bytes or max(_LEAST_BYTES, _L2_SHARES * device.facts().l2_bytes)
    size = min(size, device.memory()[0] // 4)
    gflops = {name: measure_gpu_peak(device, name) for name in names}
    return Rates(device.name, gflops, measure_gpu_bandwidth(device, size), size)


if __name__ == "__main__":
    from autosched.measure.worker import harden

    harden(int(sys.argv[1]))
    try:
        found = main(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    except DeviceError as error:
        print(error, file=sys.stderr)
        raise SystemExit(5) from None
    print(json.dumps(asdict(found)))
