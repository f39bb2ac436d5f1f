"""This machine: its processor as LLVM sees it, its caches, and the cores that this process may use."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Set
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from autosched.target.cpu import LINE_BYTES, PROCESSORS, required_features

# (L1 data, L2, L3, line) in bytes where the system does not tell: those of a server core of the last years.
USUAL_CACHES = (32 << 10, 1 << 20, 32 << 20, LINE_BYTES)
# Features that no older core of the maker has. A virtual machine may give its guests the model number of another core:
# one was seen with that of Rocket Lake, which has half the multiply-adds, and with FP16 and AMX.
_KNOWN_BY = (("avx512fp16", "sapphirerapids"),)
TILES = "amx-"  # how the names of features begin that the system may keep back
ASK_FOR_TILES = (158, 0x1023, 18)  # arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA), on x86-64
_ARCH_NAMES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True)
class HostCpu:
    """LLVM's view of this machine: its processor name, the features it has, and the whole feature string."""

    name: str
    features: frozenset[str]
    feature_text: str


@lru_cache(maxsize=1)
def host_arch() -> str:
    machine = platform.machine().lower()
    return _ARCH_NAMES.get(machine, machine)


@lru_cache(maxsize=1)
def host_cpu() -> HostCpu:
    """Asks LLVM once; costs the import of llvmlite (about 40 ms)."""
    import llvmlite.binding as llvm

    flags = llvm.get_host_cpu_features()
    if not may_use_tiles():
        flags.update({name: False for name in flags if name.startswith(TILES)})
    features = frozenset(k for k, v in flags.items() if v)
    return HostCpu(core_name(str(llvm.get_host_cpu_name()), features), features, str(flags.flatten()))


@lru_cache(maxsize=1)
def may_use_tiles() -> bool:
    """Asks Linux for the registers of AMX, which a process has to do before its first instruction with them."""
    if host_arch() != "x86_64" or platform.system() != "Linux":
        return False
    return int(ctypes.CDLL(None).syscall(*ASK_FOR_TILES)) == 0


def core_name(name: str, features: Set[str]) -> str:
    """The core that LLVM finds by the model number, or another where what it can do shows that it is no such core."""
    for feature, core in _KNOWN_BY:
        is_another = feature in features and name in PROCESSORS and feature not in required_features(name)
        if is_another and {f for f in required_features(core) if not f.startswith(TILES)} <= features:
            return core
    return name


def usable_cores() -> int:
    """Processors this process may use: its affinity, cut to the control group's quota where there is one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):
        pass
    return cores


@lru_cache(maxsize=1)
def cache_sizes() -> tuple[int, int, int, int]:
    """(L1 data, L2, L3, line) in bytes of the first core, from Linux's sysfs, with fallbacks."""
    l1, l2, l3, line = USUAL_CACHES
    sizes, is_known = {1: l1, 2: l2, 3: 0}, False
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            if (index / "type").read_text().strip() == "Instruction":
                continue
            level = int((index / "level").read_text())
            sizes[level] = _bytes((index / "size").read_text().strip())
            line = int((index / "coherency_line_size").read_text()) or line  # virtual machines may say 0
            is_known = True
        except (OSError, ValueError):
            continue
    return sizes[1], sizes[2], sizes[3] or (sizes[2] if is_known else l3), line


def _bytes(text: str) -> int:
    """'1024K' -> 1048576."""
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 0)
    return int(text[:-1]) * unit if unit else int(text)
