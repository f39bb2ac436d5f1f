"""Backends: the kinds of targets and the properties of each, a row of BACKENDS.

The other tables by kind of target; a new kind is a row in each of them:

    target.parse.TARGETS              the target of a text
    codegen.backends.EMITTERS         its code; where that is C, codegen.c.dialects.DIALECTS is what differs
    runtime.backends.LOADERS          callable kernels
    measure.backends.WORKERS          builders and runners of candidates
    kernel.device.HARDWARE            devices, search spaces and peak rates
    artifacts.kernel.FILE_KINDS        the files of `exports`

and, of GPUs, `runtime.gpu.devices.GPUS` (drivers and the compiler) and `runtime.gpu.peak.CHAINS` (peak rates).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Backend:
    """`forms` are those of its code that `show` prints, `exports` the kinds of file that `export` writes, each with its
    suffix. `option` may follow the kind in a target's text."""

    is_gpu: bool
    option: str | None
    forms: tuple[str, ...]
    exports: Mapping[str, str]
    has_weights: bool = False  # weights are packed at load time
    has_winograd: bool = False
    has_shuffles: bool = False  # the threads of a warp exchange values
    has_asynchronous_copies: bool = False  # if the device has them too
    has_matrices: bool = False  # warps multiply matrices, if the device can
    array_alignment: int = 64  # alignment in bytes of the arrays of a network
    part_alignment: int = 1  # alignment in bytes of views of them


BACKENDS: dict[str, Backend] = {
    "cpu": Backend(
        False,
        "-mcpu",
        ("llvm", "asm"),
        {"so": ".so", "object": ".o", "c-header": ".h"},
        has_weights=True,
        has_winograd=True,
    ),
    "cuda": Backend(
        True,
        "-arch",
        ("cuda",),
        {"cuda": ".cu", "cubin": ".cubin"},
        has_shuffles=True,
        has_asynchronous_copies=True,
        has_matrices=True,
        array_alignment=512,
        part_alignment=16,  # of the widest access
    ),
    # No device asks for more of a part of a buffer (CL_DEVICE_MEM_BASE_ADDR_ALIGN).
    "opencl": Backend(True, None, ("opencl",), {"opencl": ".cl"}, array_alignment=512, part_alignment=512),
}


COMMON_FORMS = ("steps", "ir", "passes")
VARIANTS = "variants"  # the form of a record's workload over sizes


def gpu_kinds() -> tuple[str, ...]:
    return tuple(kind for kind, backend in BACKENDS.items() if backend.is_gpu)


def forms() -> dict[str, str | None]:
    """Forms that `show` prints a record in -> the kind of target whose code each is; None for what all kinds have."""
    code = {form: kind for kind, backend in BACKENDS.items() for form in backend.forms}
    return {**dict.fromkeys(COMMON_FORMS), **code}


def exports() -> dict[str, str]:
    """Kinds of file that kernels are exported as -> the kind of target that each is of."""
    return {name: kind for kind, backend in BACKENDS.items() for name in backend.exports}
