"""What a result must say about the machine that produced it; no host names and no paths."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeAlias

from autosched.target import parse_target

Facts: TypeAlias = "dict[str, str | int | float | list[float] | dict[str, str] | None]"

PACKAGES = ("autosched", "numpy", "llvmlite", "xgboost", "xgboost-cpu", "networkx", "torch", "apache-tvm", "scipy")


def host_facts() -> Facts:
    """Processor, caches in bytes, versions of what is installed, the time in UTC and the load average now."""
    target = parse_target("cpu")
    return {
        "cpu_model": cpu_model(),
        "llvm_cpu": target.mcpu,
        "vector_bytes": target.vector_bytes,
        "cores_usable": target.cores,
        "cores_online": os.cpu_count(),
        "l1_bytes": target.l1_bytes,
        "l2_bytes": target.l2_bytes,
        "l3_bytes": target.l3_bytes,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.machine()}",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": package_versions(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def cpu_model() -> str:
    """The processor's name as Linux gives it, else as Python does."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.lower().startswith(("model name", "hardware"))]
    return names[0] if names else platform.processor() or platform.machine()


def package_versions(names: Sequence[str] = PACKAGES) -> dict[str, str]:
    """The installed ones of `names`, without importing them."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
