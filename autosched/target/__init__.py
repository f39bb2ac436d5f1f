"""What a kernel is compiled for: the facts about a device that the search, the cost model and LLVM need."""

from autosched.target.cpu import LEVELS, LINE_BYTES, LONGEST_STEP, PIECE_BYTES
from autosched.target.gpu import CUDA_CARDS, DEFAULT_ARCH, GpuFacts
from autosched.target.host import HostCpu, host_arch, host_cpu, may_use_tiles, usable_cores
from autosched.target.microarchitecture import MICROARCHITECTURES, Microarchitecture, microarchitecture
from autosched.target.parse import parse_target
from autosched.target.target import Target

__all__ = [
    "CUDA_CARDS",
    "DEFAULT_ARCH",
    "LEVELS",
    "LINE_BYTES",
    "LONGEST_STEP",
    "MICROARCHITECTURES",
    "PIECE_BYTES",
    "GpuFacts",
    "HostCpu",
    "Microarchitecture",
    "Target",
    "host_arch",
    "host_cpu",
    "may_use_tiles",
    "microarchitecture",
    "parse_target",
    "usable_cores",
]
