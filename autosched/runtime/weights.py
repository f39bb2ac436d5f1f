"""Kernels with weights, which are packed at load time.

    kernel = at.compile("conv2d", weights=["W"])
    layer = kernel.bind(W=W)        # packs W, once
    Y = layer(X)                    # computes, any number of times
    Y = kernel(X, W)                # packs W and runs, at every call

The kernel that `bind` returns has a copy of the weights: changes of `W` have no effect on it. It may be called from
several threads at a time, and one kernel may be bound to any number of weights.
"""

from __future__ import annotations

from collections.abc import Sequence

from autosched.codegen.source import KernelSource
from autosched.errors import UsageError
from autosched.runtime.jit import LoadedKernel, load_object
from autosched.runtime.kernel import Kernel, build_object
from autosched.runtime.spec import ArraySpec
from autosched.runtime.tensors import Array, address_of, aligned_empty, as_input
from autosched.target import Target


class BoundKernel(Kernel):
    """A kernel of the inputs other than weights; `packed_bytes` of memory hold the packed weights."""

    def __init__(self, whole: WeightsKernel, packed: Array) -> None:
        rest = [spec for spec in whole.inputs if spec.name not in whole.weights]
        fixed = [0 if spec.name in whole.weights else None for spec in (*whole.inputs, *whole.outputs)]
        super().__init__(whole.run, rest, whole.outputs, whole.workspace_bytes, (*fixed, address_of(packed)))
        self.packed_bytes = whole.packed_bytes
        self._packed = packed


class WeightsKernel(Kernel):
    """A kernel of all inputs that packs the weights at every call; `bind` packs them once."""

    def __init__(
        self,
        run: LoadedKernel,
        prepare: LoadedKernel,
        inputs: Sequence[ArraySpec],
        outputs: Sequence[ArraySpec],
        weights: Sequence[str],
        workspace_bytes: int,
        packed_bytes: int,
    ) -> None:
        super().__init__(run, inputs, outputs, workspace_bytes)
        self.run = run
        self.weights = tuple(weights)
        self.packed_bytes = packed_bytes
        self._gate = None  # `launch` has more to do
        self._prepare = Kernel(prepare, inputs, outputs, workspace_bytes)  # takes the same pointers

    def bind(self, **weights: object) -> BoundKernel:
        """Pack all weights, given by name. Raises UsageError for an unknown or a missing name."""
        wrong = [*(n for n in weights if n not in self.weights), *(n for n in self.weights if n not in weights)]
        if wrong:
            names, got = ", ".join(self.weights), ", ".join(weights) or "none"
            raise UsageError(f"bind takes exactly the weights of this kernel ({names}), but got {got}")
        given = [as_input(s, weights[s.name]) if s.name in weights else None for s in self.inputs]
        addresses = [0 if array is None else address_of(array) for array in given]
        return BoundKernel(self, self._pack([*addresses, *(0 for _ in self.outputs)]))

    def _pack(self, addresses: Sequence[int]) -> Array:
        packed = aligned_empty((self.packed_bytes,), "uint8")
        packed[:] = 0  # what is left between panels may be computed with: no chance denormal numbers, which are slow
        self._prepare._start([*addresses, address_of(packed)])
        return packed

    def launch(self, addresses: Sequence[int]) -> None:
        packed = self._pack(addresses)
        self._start([*addresses, address_of(packed)])


def build_weights_kernel(
    source: KernelSource,
    target: Target,
    inputs: Sequence[ArraySpec],
    outputs: Sequence[ArraySpec],
    weights: Sequence[str],
) -> WeightsKernel:
    """Compile `source`, which has a `prepare`, in this process."""
    assert source.prepare is not None
    code = build_object(source.ir, target)
    run, prepare = (load_object(code, entry, source.threads) for entry in (source.name, source.prepare))
    return WeightsKernel(run, prepare, inputs, outputs, weights, source.workspace_bytes, source.packed_bytes)
