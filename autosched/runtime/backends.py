"""Loaders: from a source to a callable kernel, one row of LOADERS for each kind of target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from autosched.codegen import GpuSource, KernelSource, Source
    from autosched.runtime.gpu.kernel import GpuKernel
    from autosched.runtime.kernel import Kernel
    from autosched.runtime.spec import ArraySpec
    from autosched.target import Target

    Specs: TypeAlias = Sequence[ArraySpec]


def load(
    source: Source, target: Target, inputs: Specs, outputs: Specs, weights: Sequence[str] = ()
) -> Kernel | GpuKernel:
    """Load a source as a function of arrays, compiled in this process. Raises DeviceError if it cannot run here."""
    return LOADERS[target.kind](source, target, inputs, outputs, weights)


def _on_processor(
    source: KernelSource, target: Target, inputs: Specs, outputs: Specs, weights: Sequence[str]
) -> Kernel:
    if source.prepare is not None:
        from autosched.runtime.weights import build_weights_kernel

        return build_weights_kernel(source, target, inputs, outputs, weights)
    from autosched.runtime.kernel import build_kernel

    return build_kernel(source.ir, source.name, target, inputs, outputs, source.workspace_bytes, source.threads)


def _on_gpu(source: GpuSource, target: Target, inputs: Specs, outputs: Specs, weights: Sequence[str]) -> GpuKernel:
    from autosched.runtime.gpu.kernel import build_gpu_kernel

    return build_gpu_kernel(source, target, inputs, outputs)


# The kind of a target -> what loads the sources that EMITTERS make for it.
LOADERS: dict[str, Callable[[Any, Target, Specs, Specs, Sequence[str]], Kernel | GpuKernel]] = {
    "cpu": _on_processor,
    "cuda": _on_gpu,
    "opencl": _on_gpu,
}
