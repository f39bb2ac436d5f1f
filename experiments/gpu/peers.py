"""The peers of one case on CUDA: PyTorch eager, torch.compile and Triton, timed as our kernels are.

A peer brings every copy of the inputs into the layout that it likes best, outside of the timing. NoPeer says why there
is none. Only the process of `contest` imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from autosched.cli.peers import CONVOLUTIONS, TORCH
from autosched.ir.dtype import is_foreign
from autosched.te.operators.registry import build
from experiments.tuning import BenchmarkCase

if TYPE_CHECKING:
    import torch

Array: TypeAlias = npt.NDArray[Any]
Tensors: TypeAlias = "list[torch.Tensor]"
Run: TypeAlias = "Callable[[], torch.Tensor]"
Copies: TypeAlias = "Sequence[Tensors]"
IN_GRAPH = 16  # calls in a CUDA graph at least, so that launching it does not show
WARM_UPS = 3
_NCHW = ("c2d", "grp", "dil", "dep", "t2d", "cbr")  # convolutions that are tried in PyTorch's own layout too


class NoPeer(Exception):
    """Why a peer has nothing for a case."""


@dataclass(frozen=True)
class Entry:
    """A call for each copy of the inputs, and what brings its value into our layout."""

    runs: Sequence[Run]
    ours: Callable[[torch.Tensor], torch.Tensor]


Peer: TypeAlias = Callable[[BenchmarkCase, Copies], Entry]


def start_torch() -> Any:
    """PyTorch as it computes in full single precision. Raises NoPeer where it has no CUDA device."""
    try:
        import torch
    except ImportError as error:
        raise NoPeer(f"PyTorch is not installed: {error}") from None
    if not torch.cuda.is_available():
        raise NoPeer("PyTorch finds no CUDA device")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    return torch


def on_device(array: Array) -> torch.Tensor:
    """A copy, of types that NumPy alone does not know too."""
    import torch

    if not is_foreign(array.dtype):
        return torch.from_numpy(np.array(array)).cuda()
    bits = np.array(array).view(f"int{8 * array.dtype.itemsize}")
    kind: torch.dtype = getattr(torch, array.dtype.name)
    return torch.from_numpy(bits).view(kind).cuda()


def on_host(tensor: torch.Tensor, kind: np.dtype[Any]) -> Array:
    """The values as an array of `kind`, which is the tensor's type by another name."""
    import torch

    found = tensor.contiguous().cpu()
    if is_foreign(kind):
        found = found.view(getattr(torch, f"int{8 * kind.itemsize}"))
    array: Array = found.numpy()
    return array.view(kind)


def eager(case: BenchmarkCase, copies: Copies) -> Entry:
    """The formulation of `autosched bench`: images in channels_last, which is our layout."""
    if case.workload not in TORCH:
        raise NoPeer(f"PyTorch has no single call for {case.workload}")
    formulations = [TORCH[case.workload](_arguments(case), list(tensors)) for tensors in copies]
    return Entry([run for run, _ in formulations], formulations[0][1])


def eager_otherwise(case: BenchmarkCase, copies: Copies) -> Entry:
    """Another way to say the same, which the libraries may like better: convolutions in PyTorch's own layout, NCHW, and
    a batch of one product as one product."""
    if case.workload == "gmm" and len(copies[0][0]) == 1:
        return Entry([_one_product(tensors) for tensors in copies], lambda y: y.unsqueeze(0))
    if case.workload not in _NCHW:
        raise NoPeer(f"{case.workload} has no other form")
    found = [CONVOLUTIONS[case.workload](_arguments(case), list(tensors)) for tensors in copies]
    calls = [replace(c, x=c.x.contiguous(), w=c.w.contiguous()).call() for c in found]
    return Entry([run for run, _ in calls], calls[0][1])


def _arguments(case: BenchmarkCase) -> dict[str, Any]:
    """All arguments of the workload by name."""
    return dict(build(case.workload, case.shape, dtype=case.dtype)[1]["args"])


def _one_product(a: Tensors) -> Run:
    import torch

    x, y = a[0][0], a[1][0]
    if x.dtype is torch.int8:
        return lambda: torch._int_mm(x, y)
    return lambda: torch.mm(x, y)


def compiled(case: BenchmarkCase, copies: Copies) -> Entry:
    """torch.compile of the eager formulation, its kernels found by autotuning."""
    import torch

    torch._dynamo.reset()  # shapes of earlier cases would make it compile for any shape
    entry = eager(case, copies)
    mode = "max-autotune-no-cudagraphs"
    return Entry([torch.compile(run, mode=mode, dynamic=False, fullgraph=True) for run in entry.runs], entry.ours)


def triton(case: BenchmarkCase, copies: Copies) -> Entry:
    """Kernels of the kind that Triton's tutorials show."""
    try:
        from experiments.gpu import triton_kernels as kernels
    except ImportError as error:
        raise NoPeer(f"Triton is not installed: {error}") from None
    if case.workload == "gmm":
        return Entry([kernels.matmul(x, y) for x, y in copies], lambda y: y)
    if case.workload in ("sfm", "softmax"):
        return Entry([kernels.softmax(x) for (x,) in copies], lambda y: y)
    raise NoPeer(f"there is no standard Triton kernel for {case.workload}")


PEERS: dict[str, Peer] = {"torch": eager, "torch other": eager_otherwise, "triton": triton, "torch.compile": compiled}
SLOW = ("torch.compile",)  # left for a second pass


class GraphClock:
    """Seconds of `repeats` calls on the device: events around replays of a graph that goes round the copies, with
    `least` calls or more (IN_GRAPH)."""

    def __init__(self, runs: Sequence[Run], least: int | None = None) -> None:
        import torch

        self._torch = torch
        self._kept: list[Any] = [None] * len(runs)  # each copy's result lives on, so that results go round as well
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                for n, run in enumerate(runs):
                    self._kept[n] = run()
        torch.cuda.synchronize()
        self._calls = len(runs) * -(-(least or IN_GRAPH) // len(runs))
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            for i in range(self._calls):
                self._kept[i % len(runs)] = runs[i % len(runs)]()
        self._start, self._end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def __call__(self, repeats: int) -> float:
        replays = -(-repeats // self._calls)
        self._start.record()
        for _ in range(replays):
            self._graph.replay()
        self._end.record()
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) * 1e-3 * repeats / (replays * self._calls)
