"""Targets as they are written: `cpu` (this machine), `llvm -mcpu=haswell` (a processor by its LLVM name), `cuda`,
`cuda -arch=sm_80` (a GPU of that compute capability) or `opencl`.

Vector width, registers and FMA of a named processor come from the tables of `cpu.py`; LLVM knows the rest from the
name.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import lru_cache

from autosched.backends import BACKENDS, gpu_kinds
from autosched.errors import TargetError
from autosched.target.cpu import LEVELS, PROCESSORS
from autosched.target.gpu import CUDA_CARDS, DEFAULT_ARCH, OPENCL_DEVICE, GpuFacts
from autosched.target.host import USUAL_CACHES, cache_sizes, host_arch, host_cpu, usable_cores
from autosched.target.target import Target


def parse_target(text: str | None = None) -> Target:
    """Return the `Target` that a text describes: "cpu", "llvm -mcpu=NAME", "cuda", "cuda -arch=sm_80" or "opencl".

    None is this machine's processor. Raises TargetError for another text, with the possible names.
    """
    given: object = text
    if not isinstance(given, str | None):
        raise TargetError(f"a target is a text, as in 'cpu' or 'llvm -mcpu=haswell', got {text!r}")
    words = ["cpu"] if text is None else text.split()
    kind = "cpu" if words and words[0] == "llvm" else words[0] if words else ""
    if kind not in BACKENDS:
        *others, last = "cpu", "'llvm -mcpu=NAME'", *gpu_kinds()
        raise TargetError(f"target {text!r} is not known; write {', '.join(others)} or {last}")
    option = BACKENDS[kind].option
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
    return TARGETS[kind](chosen)


def gpu_target(kind: str, facts: GpuFacts) -> Target:
    return Target(kind, "", "", 0, 0, True, 0, 0, 0, 0, 0, arch=facts.arch, gpu=facts)


def _cuda_card(arch: str) -> GpuFacts:
    """sm_90a is sm_90: sources say by themselves which instructions they have."""
    card = CUDA_CARDS.get(arch.removesuffix("a"))
    if card is None:
        raise TargetError(
            f"the compute capability {arch!r} in -arch is not known; write one of {', '.join(CUDA_CARDS)}"
        )
    return card


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
        "cpu", host.name, host.feature_text, vector_bytes, registers, fma, usable_cores(), *cache_sizes(), arch=arch
    )


def _named_target(mcpu: str) -> Target:
    if mcpu not in PROCESSORS:
        near = difflib.get_close_matches(mcpu, PROCESSORS, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "write -mcpu=native for this machine"
        raise TargetError(f"the processor {mcpu!r} in -mcpu is not known; {hint}")
    arch, level_name, _ = PROCESSORS[mcpu]
    level = LEVELS[level_name]
    here = arch == host_arch()
    caches = cache_sizes() if here else USUAL_CACHES
    return Target(
        "cpu", mcpu, "", level.vector_bytes, level.n_registers, level.has_fma, usable_cores(), *caches, arch=arch
    )


# Kind -> the target of its option's value, which is empty where none was given.
TARGETS: dict[str, Callable[[str], Target]] = {
    "cpu": lambda mcpu: _host_target() if mcpu in ("", "native") else _named_target(mcpu),
    "cuda": lambda arch: gpu_target("cuda", _cuda_card(arch or DEFAULT_ARCH)),
    "opencl": lambda _: gpu_target("opencl", OPENCL_DEVICE),
}
