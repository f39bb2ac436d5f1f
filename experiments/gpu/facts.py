"""What a result says about the device, the drivers and the peers that produced it."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import asdict
from typing import Any

from autosched.errors import DeviceError
from autosched.measure.gpu.rates import measure_rates
from autosched.runtime.gpu.compile import nvrtc_version
from autosched.runtime.gpu.devices import driver_name
from autosched.target import Target
from experiments.hostinfo import package_versions

PACKAGES = (
    "torch",
    "triton",
    "cuda-bindings",
    "cuda-core",
    "pycuda",
    "pyopencl",
    "nvidia-cuda-nvrtc",
    "nvidia-cudnn-cu13",
)
_QUERY = "name,driver_version,clocks.max.sm,clocks.max.memory,power.limit,temperature.gpu,utilization.gpu"


def device_report(target: Target) -> dict[str, Any]:
    """The device's facts, its measured rates over large data, and the versions around it."""
    assert target.gpu is not None
    rates: dict[str, Any]
    try:
        rates = asdict(measure_rates(target.kind))
    except DeviceError as error:
        rates = {"error": str(error)}
    found: dict[str, Any] = {"gpu": asdict(target.gpu), "rates": rates, "packages": package_versions(PACKAGES)}
    if target.kind == "cuda":
        found |= {"driver": driver_name("cuda"), "nvrtc": nvrtc_version(), "nvidia_smi": _nvidia_smi()}
    return found


def _nvidia_smi() -> dict[str, str] | None:
    """Driver, clocks and power of the first GPU; None where the tool is missing or fails."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    command = [tool, f"--query-gpu={_QUERY}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.splitlines()
    return dict(zip(_QUERY.split(","), map(str.strip, lines[0].split(",")), strict=False)) if lines else None
