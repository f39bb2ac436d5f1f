"""What a kernel is compiled for: the facts about a processor that the search, the cost model and LLVM need.

A target is written as `cpu` (this machine), `llvm -mcpu=haswell` (a processor by its LLVM name), `cuda`,
`cuda -arch=sm_80` (a GPU of that compute capability) or `opencl`.
Vector width, registers and FMA of a named processor come from the tables below; LLVM knows the rest from the name.
Sources: the x86-64 psABI micro-architecture levels, LLVM's X86TargetParser and AArch64 processor definitions,
the Arm Architecture Reference Manual (AdvSIMD: 32 registers of 16 bytes).
A GPU's facts are those of the device where a driver tells them (`with_gpu`), else of a card of its compute
capability. Sources: the CUDA C++ Programming Guide's tables "Technical Specifications per Compute Capability" and
"Throughput of Native Arithmetic Instructions"; NVIDIA's data sheets and architecture papers of the cards named.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import platform
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from autosched.errors import TargetError

KINDS = ("cpu", "cuda", "opencl")
# Of processors of either architecture.
PAGE_BYTES = 4096  # the sets of a first level cache of 32 or 48 KB, one after another, are as long
L1_WAYS = 8  # lines of such a set
PIECE_BYTES = 16  # what shuffles within a vector stay in, however long it is


@dataclass(frozen=True)
class GpuFacts:
    """A GPU as the search space and the cost model see it. Sizes in bytes, rates at the boost clock.

    `warp`: threads that run in step. `fma_per_cycle_per_multiprocessor`: single-precision lanes.
    `shared_per_block` is what a block may have after asking for it.
    """

    name: str
    arch: str  # "sm_90"; empty where the device has no compute capability
    multiprocessors: int
    warp: int
    max_threads_per_block: int
    max_threads_per_multiprocessor: int
    registers_per_multiprocessor: int
    max_registers_per_thread: int
    shared_per_block: int
    shared_per_multiprocessor: int
    l2_bytes: int
    clock_ghz: float
    fma_per_cycle_per_multiprocessor: int
    bandwidth_bytes_s: float
    max_grid: tuple[int, int, int] = (2**31 - 1, 65535, 65535)
    max_blocks_per_multiprocessor: int = 32

    @property
    def has_asynchronous_copies(self) -> bool:
        """From global to shared memory: CUDA's cp.async, of compute capability 8.0 and later."""
        digits = re.sub(r"\D", "", self.arch)
        return bool(digits) and int(digits) >= 80


@dataclass(frozen=True)
class Target:
    """One device to compile for. Sizes in bytes; `cores` is what this process may use; L3 is shared.

    `features` is LLVM's feature string ("+avx2,-amx..."), empty when the processor's name implies everything.
    `gpu` are a device's facts, None for a processor.
    """

    kind: str
    mcpu: str
    features: str
    vector_bytes: int
    n_vector_registers: int
    has_fma: bool
    cores: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    line_bytes: int
    arch: str = ""
    gpu: GpuFacts | None = None

    @property
    def fingerprint(self) -> str:
        """Names everything that makes two machines' timings incomparable; the number of threads is kept beside it, so
        a process with another CPU affinity finds the same records."""
        if self.gpu is not None:
            return _gpu_fingerprint(self.kind, self.gpu)
        features = hashlib.sha256(self.features.encode()).hexdigest()[:8] if self.features else "named"
        caches = f"{self.l1_bytes >> 10}K-{self.l2_bytes >> 10}K-{self.l3_bytes >> 10}K"
        return f"cpu-{self.arch}-{self.mcpu}-v{self.vector_bytes}x{self.n_vector_registers}-{caches}-{features}"

    def with_gpu(self, facts: GpuFacts) -> Target:
        """The same kind of target with the facts of a device."""
        return replace(self, arch=facts.arch, gpu=facts)

    @property
    def triple(self) -> str:
        """The LLVM target triple of the code, the host's own where the architecture is the host's."""
        if self.arch == host_arch():
            import llvmlite.binding as llvm

            return str(llvm.get_default_triple())
        return f"{self.arch}-unknown-linux-gnu"

    def has(self, feature: str) -> bool:
        """Whether the processor has an instruction set by LLVM's name for it, "avx512bf16"."""
        if self.kind != "cpu":
            return False
        if self.features:
            return f"+{feature}" in self.features.split(",")
        return feature in _required_features(self.mcpu)

    @property
    def reduces_strength(self) -> bool:
        """Whether LLVM looks for cheaper addresses in loops: with 16 registers it must, see `runtime/jit.py`."""
        return (self.arch, self.vector_bytes) != ("x86_64", 64)

    @property
    def runs_here(self) -> bool:
        """Whether this machine can execute the code; False for devices that are not processors."""
        return self.kind == "cpu" and self.arch == host_arch() and not self.missing_features

    @property
    def missing_features(self) -> tuple[str, ...]:
        """Instruction sets that LLVM may use for this processor and this machine lacks."""
        if self.kind != "cpu" or self.arch != host_arch() or self.features:  # a feature string is the host's own
            return ()
        return tuple(sorted(_required_features(self.mcpu) - host_cpu().features))


@dataclass(frozen=True)
class HostCpu:
    """LLVM's view of this machine: its processor name, the features it has, and the whole feature string."""

    name: str
    features: frozenset[str]
    feature_text: str


@dataclass(frozen=True)
class Level:
    """A step of an instruction set: what it adds to its base, and the vector registers a kernel may use."""

    base: str | None
    adds: str
    vector_bytes: int
    n_registers: int
    has_fma: bool


# Features that LLVM's code generator may pick by itself when compiling scalar and vector arithmetic.
LEVELS: dict[str, Level] = {
    "x86-64": Level(None, "sse2", 16, 16, False),
    "x86-64-v2": Level("x86-64", "sse3 ssse3 sse4.1 sse4.2 popcnt cx16", 16, 16, False),
    "avx": Level("x86-64-v2", "avx", 32, 16, False),
    "avx-fma": Level("avx", "fma", 32, 16, True),
    "x86-64-v3": Level("avx-fma", "avx2 bmi bmi2 lzcnt movbe f16c", 32, 16, True),
    "knights": Level("x86-64-v3", "avx512f avx512cd", 64, 32, True),
    "x86-64-v4": Level("knights", "avx512bw avx512dq avx512vl", 64, 32, True),
    "icelake": Level(
        "x86-64-v4",
        "avx512ifma avx512vbmi avx512vbmi2 avx512vnni avx512bitalg avx512vpopcntdq gfni vaes vpclmulqdq",
        64,
        32,
        True,
    ),
    "sapphirerapids": Level("icelake", "avx512bf16 avx512fp16 avxvnni", 64, 32, True),
    "armv8": Level(None, "neon", 16, 32, True),
}

# Processor name -> (architecture, level, features beyond the level that matter to code generation).
_CPU_ROWS: tuple[tuple[str, str, str, str], ...] = (
    ("x86_64", "x86-64", "", "x86-64 core2 k8 opteron athlon64"),
    ("x86_64", "x86-64", "sse3", "k8-sse3 nocona"),
    ("x86_64", "x86-64", "sse3 sse4a popcnt lzcnt", "amdfam10 barcelona"),
    ("x86_64", "x86-64", "sse3 ssse3 sse4.1", "penryn"),
    ("x86_64", "x86-64-v2", "", "x86-64-v2 nehalem corei7 westmere"),
    ("x86_64", "x86-64-v2", "movbe", "silvermont goldmont goldmont-plus tremont"),
    ("x86_64", "avx", "", "sandybridge corei7-avx"),
    ("x86_64", "avx", "f16c", "ivybridge core-avx-i"),
    ("x86_64", "avx", "f16c bmi lzcnt movbe sse4a", "btver2"),
    ("x86_64", "avx", "fma4 xop lzcnt sse4a", "bdver1"),
    ("x86_64", "avx-fma", "fma4 xop lzcnt sse4a bmi f16c tbm", "bdver2 bdver3"),
    ("x86_64", "x86-64-v3", "fma4 xop sse4a tbm", "bdver4"),
    ("x86_64", "x86-64-v3", "", "x86-64-v3 haswell core-avx2 broadwell skylake"),
    ("x86_64", "x86-64-v3", "sse4a", "znver1 znver2 znver3"),
    ("x86_64", "x86-64-v3", "avxvnni gfni vaes vpclmulqdq", "alderlake raptorlake meteorlake gracemont"),
    (
        "x86_64",
        "x86-64-v3",
        "avxvnni avxifma avxneconvert avxvnniint8 gfni vaes vpclmulqdq",
        "arrowlake arrowlake-s lunarlake pantherlake sierraforest grandridge",
    ),
    ("x86_64", "knights", "", "knl knm"),
    ("x86_64", "x86-64-v4", "", "x86-64-v4 skylake-avx512 skx"),
    ("x86_64", "x86-64-v4", "avx512vnni", "cascadelake"),
    ("x86_64", "x86-64-v4", "avx512vnni avx512bf16", "cooperlake"),
    ("x86_64", "x86-64-v4", "avx512ifma avx512vbmi", "cannonlake"),
    ("x86_64", "icelake", "", "icelake-client icelake-server rocketlake"),
    ("x86_64", "icelake", "avx512vp2intersect", "tigerlake"),
    ("x86_64", "icelake", "avx512bf16 sse4a", "znver4"),
    ("x86_64", "icelake", "avx512bf16 sse4a avxvnni avx512vp2intersect", "znver5"),
    ("x86_64", "sapphirerapids", "", "sapphirerapids emeraldrapids graniterapids graniterapids-d"),
    ("aarch64", "armv8", "", "cortex-a53 cortex-a57 cortex-a72 cortex-a73"),
    ("aarch64", "armv8", "dotprod", "cortex-a55 cortex-a76 cortex-a77 cortex-a78 cortex-x1 neoverse-n1 ampere1"),
    ("aarch64", "armv8", "dotprod sve", "neoverse-v1 neoverse-512tvb"),
    ("aarch64", "armv8", "sve", "a64fx"),
    ("aarch64", "armv8", "dotprod sve sve2", "neoverse-n2 neoverse-v2 neoverse-n3 neoverse-v3 cortex-x2 cortex-a710"),
    ("aarch64", "armv8", "dotprod", "apple-m1 apple-m2 apple-m3 apple-m4"),
)
_CPUS: dict[str, tuple[str, str, str]] = {
    name: (arch, level, extra) for arch, level, extra, names in _CPU_ROWS for name in names.split()
}

# Cache sizes where the system does not tell: those of a server core of the last years.
_L1, _L2, _L3, _LINE = 32 << 10, 1 << 20, 32 << 20, 64
_ARCH_NAMES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}


# Compute capability -> facts of one card of it. Boost clocks.
CUDA_CARDS: dict[str, GpuFacts] = {
    card.arch: card
    for card in (
        GpuFacts("NVIDIA T4", "sm_75", 40, 32, 1024, 1024, 65536, 255, 64 << 10, 64 << 10, 4 << 20, 1.59, 64, 320e9,
                 max_blocks_per_multiprocessor=16),
        GpuFacts("NVIDIA A100-SXM4-80GB", "sm_80", 108, 32, 1024, 2048, 65536, 255, 163 << 10, 164 << 10, 40 << 20,
                 1.41, 64, 2039e9),
        GpuFacts("NVIDIA GeForce RTX 3090", "sm_86", 82, 32, 1024, 1536, 65536, 255, 99 << 10, 100 << 10, 6 << 20,
                 1.695, 128, 936e9, max_blocks_per_multiprocessor=16),
        GpuFacts("NVIDIA GeForce RTX 4090", "sm_89", 128, 32, 1024, 1536, 65536, 255, 99 << 10, 100 << 10, 72 << 20,
                 2.52, 128, 1008e9, max_blocks_per_multiprocessor=24),
        GpuFacts("NVIDIA H200", "sm_90", 132, 32, 1024, 2048, 65536, 255, 227 << 10, 228 << 10, 50 << 20,
                 1.98, 128, 4800e9),
        GpuFacts("NVIDIA B200", "sm_100", 148, 32, 1024, 2048, 65536, 255, 227 << 10, 228 << 10, 126 << 20,
                 1.965, 128, 7700e9),
        GpuFacts("NVIDIA GeForce RTX 5090", "sm_120", 170, 32, 1024, 1536, 65536, 255, 99 << 10, 100 << 10, 96 << 20,
                 2.407, 128, 1792e9, max_blocks_per_multiprocessor=24),
    )
}  # fmt: skip
DEFAULT_ARCH = "sm_90"
# What nearly every GPU with OpenCL can do: 256 work items in a group, 48 KB of local memory.
OPENCL_DEVICE = GpuFacts(
    "any OpenCL device", "", 16, 32, 256, 1024, 65536, 255, 48 << 10, 64 << 10, 4 << 20, 1.5, 64, 200e9
)


def parse_target(text: str | None = None) -> Target:
    """The target that `text` describes; None means this machine. Raises TargetError with near names."""
    given: object = text
    if not isinstance(given, str | None):
        raise TargetError(f"a target is a text, as in 'cpu' or 'llvm -mcpu=haswell', got {text!r}")
    words = ["cpu"] if text is None else text.split()
    kind = "cpu" if words and words[0] == "llvm" else words[0] if words else ""
    if kind not in KINDS:
        raise TargetError(f"target {text!r} is not known; write cpu, 'llvm -mcpu=NAME', cuda or opencl")
    option = {"cpu": "-mcpu", "cuda": "-arch"}.get(kind)
    chosen = ""
    for word in words[1:]:
        name, _, value = word.partition("=")
        if option is None:
            raise TargetError(f"target {text!r} has the option {word!r}, but {kind} takes none; write just {kind}")
        if name != option or not value:
            raise TargetError(f"target {text!r} has the unknown option {word!r}; the only one is {option}=NAME")
        if chosen:
            raise TargetError(f"target {text!r} has {option} twice; write it once")
        chosen = value
    if kind == "cuda":
        return _gpu_target(kind, _cuda_card(chosen or DEFAULT_ARCH))
    if kind == "opencl":
        return _gpu_target(kind, OPENCL_DEVICE)
    return _host_target() if chosen in ("", "native") else _named_target(chosen)


def _gpu_target(kind: str, facts: GpuFacts) -> Target:
    return Target(kind, "", "", 0, 0, True, 0, 0, 0, 0, 0, arch=facts.arch, gpu=facts)


def _cuda_card(arch: str) -> GpuFacts:
    card = CUDA_CARDS.get(arch)
    if card is None:
        raise TargetError(
            f"the compute capability {arch!r} in -arch is not known; write one of {', '.join(CUDA_CARDS)}"
        )
    return card


def _gpu_fingerprint(kind: str, gpu: GpuFacts) -> str:
    """The device by its name and by what decides its speed; clocks differ from one query to the next."""
    name = re.sub(r"[^a-z0-9]+", "-", gpu.name.lower()).strip("-")
    memory = f"{gpu.shared_per_block >> 10}K-{gpu.l2_bytes >> 20}M-{gpu.bandwidth_bytes_s / 1e9:.0f}GBs"
    size = f"{gpu.multiprocessors}x{gpu.fma_per_cycle_per_multiprocessor}-t{gpu.max_threads_per_block}"
    return "-".join(x for x in (kind, gpu.arch, name, size, memory) if x)


@lru_cache(maxsize=1)
def host_arch() -> str:
    machine = platform.machine().lower()
    return _ARCH_NAMES.get(machine, machine)


@lru_cache(maxsize=1)
def host_cpu() -> HostCpu:
    """Asks LLVM once; costs the import of llvmlite (about 40 ms)."""
    import llvmlite.binding as llvm

    flags = llvm.get_host_cpu_features()
    return HostCpu(str(llvm.get_host_cpu_name()), frozenset(k for k, v in flags.items() if v), str(flags.flatten()))


@lru_cache(maxsize=1)
def _host_target() -> Target:
    host, arch = host_cpu(), host_arch()
    vector_bytes, registers, fma = 16, 16, False
    if arch == "aarch64":
        vector_bytes, registers, fma = 16, 32, True
    elif "avx512f" in host.features and "avx512vl" in host.features:
        vector_bytes, registers, fma = 64, 32, True
    elif "avx" in host.features:
        vector_bytes, registers, fma = 32, 16, "fma" in host.features
    return Target(
        "cpu", host.name, host.feature_text, vector_bytes, registers, fma, usable_cores(), *_cache_sizes(), arch=arch
    )


def _named_target(mcpu: str) -> Target:
    if mcpu not in _CPUS:
        near = difflib.get_close_matches(mcpu, _CPUS, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "write -mcpu=native for this machine"
        raise TargetError(f"the processor {mcpu!r} in -mcpu is not known; {hint}")
    arch, level_name, _ = _CPUS[mcpu]
    level = LEVELS[level_name]
    here = arch == host_arch()
    caches = _cache_sizes() if here else (_L1, _L2, _L3, _LINE)
    return Target(
        "cpu", mcpu, "", level.vector_bytes, level.n_registers, level.has_fma, usable_cores(), *caches, arch=arch
    )


def _required_features(mcpu: str) -> frozenset[str]:
    _, name, extra = _CPUS[mcpu]
    features = set(extra.split())
    step: str | None = name
    while step is not None:
        features |= set(LEVELS[step].adds.split())
        step = LEVELS[step].base
    return frozenset(features)


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
def _cache_sizes() -> tuple[int, int, int, int]:
    """(L1 data, L2, L3, line) in bytes of the first core, from Linux's sysfs, with fallbacks."""
    sizes = {1: _L1, 2: _L2, 3: 0}
    line, found = _LINE, False
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            if (index / "type").read_text().strip() == "Instruction":
                continue
            level = int((index / "level").read_text())
            sizes[level] = _bytes((index / "size").read_text().strip())
            line = int((index / "coherency_line_size").read_text())
            found = True
        except (OSError, ValueError):
            continue
    return sizes[1], sizes[2], sizes[3] or (sizes[2] if found else _L3), line


def _bytes(text: str) -> int:
    """'1024K' -> 1048576."""
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 0)
    return int(text[:-1]) * unit if unit else int(text)
