"""What a kernel is compiled for: the facts about a device that the search, the cost model and LLVM need."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from autosched.backends import BACKENDS, Backend
from autosched.target.cpu import required_features
from autosched.target.gpu import GpuFacts
from autosched.target.host import host_arch, host_cpu


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
    def backend(self) -> Backend:
        return BACKENDS[self.kind]

    @property
    def fingerprint(self) -> str:
        """Names everything that makes two machines' timings incomparable; the number of threads is kept beside it, so
        a process with another CPU affinity finds the same records."""
        if self.gpu is not None:
            return self.gpu.fingerprint(self.kind)
        features = hashlib.sha256(self.features.encode()).hexdigest()[:8] if self.features else "named"
        caches = f"{self.l1_bytes >> 10}K-{self.l2_bytes >> 10}K-{self.l3_bytes >> 10}K"
        return f"cpu-{self.arch}-{self.mcpu}-v{self.vector_bytes}x{self.n_vector_registers}-{caches}-{features}"

    def with_gpu(self, facts: GpuFacts) -> Target:
        """The same kind of target with the facts of a device."""
        return replace(self, arch=facts.arch, gpu=facts)

    @property
    def masks_are_vectors(self) -> bool:
        """Whether comparing vectors sets all bits of a lane, and masks of lanes take registers of vectors."""
        return self.arch == "x86_64" and self.vector_bytes < 64

    @property
    def triple(self) -> str:
        """The LLVM target triple of the code, the host's own where the architecture is the host's."""
        if self.arch == host_arch():
            import llvmlite.binding as llvm

            return str(llvm.get_default_triple())
        return f"{self.arch}-unknown-linux-gnu"

    def has(self, feature: str) -> bool:
        """Whether the processor has an instruction set by LLVM's name for it, "avx512bf16"."""
        if self.backend.is_gpu:
            return False
        if self.features:
            return f"+{feature}" in self.features.split(",")
        return feature in required_features(self.mcpu)

    @property
    def reduces_strength(self) -> bool:
        """Whether LLVM looks for cheaper addresses in loops: with 16 registers it must, see `runtime/jit.py`."""
        return (self.arch, self.vector_bytes) != ("x86_64", 64)

    @property
    def runs_here(self) -> bool:
        """Whether this machine can execute the code; False for devices that are not processors."""
        return not self.backend.is_gpu and self.arch == host_arch() and not self.missing_features

    @property
    def missing_features(self) -> tuple[str, ...]:
        """Instruction sets that LLVM may use for this processor and this machine lacks."""
        if self.backend.is_gpu or self.arch != host_arch() or self.features:  # a feature string is the host's own
            return ()
        return tuple(sorted(required_features(self.mcpu) - host_cpu().features))
