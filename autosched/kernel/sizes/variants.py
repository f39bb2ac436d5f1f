"""Variants of the code of a kernel: each is right for the sizes for which its guards hold, and is kept for them.

Sizes that no variant is right for have one compiled, or taken from the disk cache, with the schedule of the first for
sizes of the same classes.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from autosched.errors import NoValidCandidate
from autosched.kernel.pool import build_kernels
from autosched.kernel.spec import MAX_VARIANTS, CodeSizes, KernelObject, KernelSpec
from autosched.runtime.jit import LoadedKernel, load_objects

if TYPE_CHECKING:
    from autosched.runtime.gpu.device import GpuDevice
    from autosched.runtime.gpu.kernel import LoadedCode

K = TypeVar("K", bound=Hashable)
Values = Mapping[str, int]  # of the symbols of a network, or the sizes of a workload


@dataclass(frozen=True)
class KernelVariant:
    """Code of a kernel for the sizes for which its guards hold."""

    kernel: KernelObject
    sizes: CodeSizes
    loaded: LoadedKernel | LoadedCode
    prepare: LoadedKernel | None


@dataclass
class KernelVariants:
    """The code of a kernel. `variants`: those that are compiled, the last MAX_VARIANTS. `steps`: the schedules, by the
    classes of sizes that they are for. `gpu`: the device, by default this machine's."""

    kernel_spec: KernelSpec
    variants: list[KernelVariant] = field(default_factory=list)
    steps: dict[tuple[int, ...], str] = field(default_factory=dict)
    gpu: GpuDevice | None = None

    def symbols(self, values: Values) -> dict[str, int]:
        """Return the values of the kernel's symbols."""
        assert self.kernel_spec.sized is not None
        return self.kernel_spec.sized.named(values)

    def at(self, symbols: Values) -> KernelVariant | None:
        """Return the code for values of the kernel's symbols; None if it is to be compiled."""
        return next((variant for variant in self.variants if variant.sizes.hold(symbols)), None)

    def spec_at(self, values: Values) -> KernelSpec:
        """Return the specification of the code, with the steps for sizes of the same classes."""
        own = self.kernel_spec
        assert own.sized is not None
        sized = own.sized.at(values)
        steps = own.steps or self.steps.get(sized.classes, "")
        return replace(own, workload=sized.typical, sized=sized, steps=steps)

    def add(self, kernel: KernelObject, kernel_spec: KernelSpec) -> KernelVariant:
        """Add code that was compiled for a specification of `spec_at`."""
        variant, sized = self._load(kernel), kernel_spec.sized
        assert sized is not None
        values = sized.named_values
        assert variant.sizes.hold(values), f"the code that was emitted for {values} has a guard that they break"
        self.variants = [*self.variants[1 - MAX_VARIANTS :], variant]
        self.steps.setdefault(sized.classes, kernel.schedule.steps)
        return variant

    def _load(self, kernel: KernelObject) -> KernelVariant:
        target = self.kernel_spec.device.target
        if not target.backend.is_gpu:
            return load_variant(kernel, self.kernel_spec.threads)
        from autosched.kernel.gpu_kernel import load_source

        return KernelVariant(kernel, CodeSizes.parse(kernel.sizes), load_source(kernel.code, target, self.gpu), None)


def load_variant(kernel: KernelObject, threads: int, loaded: Mapping[str, LoadedKernel] | None = None) -> KernelVariant:
    names = tuple(name for name in (kernel.name, kernel.prepare) if name is not None)
    functions = loaded or load_objects([kernel.code], names, threads)
    prepare = None if kernel.prepare is None else functions[kernel.prepare]
    return KernelVariant(kernel, CodeSizes.parse(kernel.sizes), functions[kernel.name], prepare)


def variants_at(kernels: Mapping[K, KernelVariants], values: Values) -> dict[K, KernelVariant]:
    """Return the code of each kernel, compiled where none is right. Raises NoValidCandidate if none can be made."""
    chosen = {k: kernel.at(kernel.symbols(values)) for k, kernel in kernels.items()}
    specs = {k: kernels[k].spec_at(values) for k, variant in chosen.items() if variant is None}
    objects, unbuilt = build_kernels([*dict.fromkeys(specs.values())])
    own = {spec: replace(spec, steps="") for spec in unbuilt if spec.steps}  # the steps of other sizes may not fit
    if own:
        more, reasons = build_kernels([*own.values()])
        objects |= {spec: more[again] for spec, again in own.items() if again in more}
        unbuilt |= {spec: reasons[again] for spec, again in own.items() if again in reasons}
    for k, spec in specs.items():
        if spec not in objects:
            raise NoValidCandidate(
                f"no code can be made for the kernel of {spec.request.problem.name}: {unbuilt[spec]}"
            )
        chosen[k] = kernels[k].at(kernels[k].symbols(values)) or kernels[k].add(objects[spec], spec)
    return {k: variant for k, variant in chosen.items() if variant is not None}
