"""Kernels on a device as Python functions of arrays."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from autosched.codegen.c.source import SIZES, GpuSource
from autosched.errors import DeviceError
from autosched.runtime.gpu.arrays import DeviceBlock, allocate, device_errors, mark_used, queue_after, upload
from autosched.runtime.gpu.compile import CompileError, Compiler, DeviceCode, compile_source
from autosched.runtime.gpu.device import GpuDevice, Stream
from autosched.runtime.gpu.devices import compiler_for, shared_device
from autosched.runtime.gpu.function import DeviceFunction
from autosched.runtime.spec import ArraySpec
from autosched.target import Target


class LoadedCode:
    """The kernels of a compiled `source` on a device. `resources`: what the compiler says that they use."""

    def __init__(self, device: GpuDevice, binary: DeviceCode, source: GpuSource) -> None:
        self.device, self.resources, self.source = device, binary.resources, source
        with device_errors(device):
            self.kernels = device.load(binary, source)


class GpuKernel(DeviceFunction):
    """A source as a function of arrays, by code that is loaded: of the source, or for other sizes of a call."""

    def __init__(
        self, code: LoadedCode, source: GpuSource, inputs: Sequence[ArraySpec], outputs: Sequence[ArraySpec]
    ) -> None:
        super().__init__(code.device, inputs, outputs)
        self.source, self.resources, self._kernels = source, code.resources, code.kernels
        self._scratch: dict[str, DeviceBlock] | None = None
        self._launching = threading.Lock()  # guards the workspace from the first to the last kernel of a call

    @property
    def workspace_bytes(self) -> int:
        """Bytes of device memory between the kernel's launches, which are allocated at the first call and kept."""
        return sum(nbytes for _, nbytes in self.source.workspace)

    @contextmanager
    def _transfer_blocks(self) -> Iterator[Sequence[DeviceBlock]]:
        with self._launching:
            self._make_scratch()
        yield list(allocate(self._device, self._sizes()).values())

    def _make_scratch(self) -> dict[str, DeviceBlock]:
        """Return the workspace and the table of sizes, allocated at the first call; the caller holds `_launching`."""
        if self._scratch is None:
            names = {f"workspace {name}": nbytes for name, nbytes in self.source.workspace}
            blocks = allocate(self._device, names)
            self._scratch = {name: blocks[f"workspace {name}"] for name, _ in self.source.workspace}
            if sizes := self.source.sizes:
                self._scratch[SIZES] = upload_sizes(self._device, sizes)
        return self._scratch

    def _launch(self, blocks: Sequence[DeviceBlock], lasting: Sequence[DeviceBlock], stream: Stream) -> None:
        source, device = self.source, self._device
        with self._launching:
            scratch = self._make_scratch()
            named = dict(zip((*source.inputs, *source.outputs), blocks, strict=True)) | scratch
            call = device.prepare(self._kernels, source, {name: block.memory for name, block in named.items()})
            queue_after(device, named.values(), stream)
            device.run(call, stream)
            mark_used(device, (*lasting, *scratch.values()), stream)


def upload_sizes(device: GpuDevice, sizes: Sequence[int]) -> DeviceBlock:
    """Return the buffer SIZES of a source with these numbers."""
    array = np.array(sizes, np.int64)
    (block,) = allocate(device, {SIZES: array.nbytes}).values()
    upload(block, array)
    return block


def build_gpu_kernel(
    source: GpuSource, target: Target, inputs: Sequence[ArraySpec], outputs: Sequence[ArraySpec]
) -> GpuKernel:
    """Compile `source` for `target` and load it on this machine's device. Raises DeviceError."""
    device = shared_device(target.kind)
    code = LoadedCode(device, device_code(device, source, target), source)
    return GpuKernel(code, source, inputs, outputs)


def device_code(device: GpuDevice, source: GpuSource, target: Target) -> DeviceCode:
    """Return the code of a source for `device`. Raises DeviceError if it cannot run there."""
    arch = target.gpu.arch if target.gpu is not None else ""
    _check_arch(device, arch)
    try:
        compiler = device if isinstance(device, Compiler) else compiler_for(target.kind, arch)
        return compile_source(source, compiler)
    except CompileError as error:
        raise DeviceError(f"the kernel {source.name} does not compile for {target.kind} {arch}: {error}") from None


def _check_arch(device: GpuDevice, arch: str) -> None:
    """Raise DeviceError if a cubin cannot run: it runs on its own compute capability and on later ones of the same
    generation (CUDA C++ Programming Guide, "Binary Compatibility").
    """
    device_arch = device.facts().arch
    if not arch or not device_arch:
        return
    required, available = _capability(arch), _capability(device_arch)
    if required[0] != available[0] or required[1] > available[1]:
        raise DeviceError(
            f"code for {arch} cannot run on {device.name}, which is {device_arch}; tune for cuda -arch={device_arch}"
        )


def _capability(arch: str) -> tuple[int, int]:
    """Return (9, 0) for sm_90 and sm_90a, (10, 0) for sm_100."""
    digits = "".join(c for c in arch if c.isdigit())
    return int(digits[:-1]), int(digits[-1])
