"""Forms of a product beside torch.matmul: `python -m experiments.gpu.climb PARENT_PID WHERE` answers requests.
`--once REQUEST` launches one, a JSON object with "form" and "size".

WHERE is `card` or `simulator`. A form is checked first: sampled rows against float64, all of C against PyTorch's.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from autosched.errors import AutoschedError
from autosched.ir.dtype import numpy_dtype
from autosched.measure.timing import Clock, interleaved
from autosched.runtime.gpu.compile import CompileError, DeviceCode, compile_source, cuda_compiler
from autosched.runtime.gpu.device import STICKY, DeviceFault, GpuDevice, LaunchSequence
from autosched.runtime.gpu.devices import open_device
from autosched.runtime.simulator.execute import Mode, build, execute
from experiments.arena import serve
from experiments.gpu.forms.form import Array, aligned
from experiments.gpu.peers import GraphClock
from experiments.gpu.warpgroup_product import ProductForm, Size, source

ARCH, MULTIPROCESSORS = "sm_90", 132
SIMULATED = 2  # multiprocessors of the simulator
ROUNDS, SAMPLE_S = 6, 0.012
SAMPLED_ROWS = 64
ROUNDING, SUMS = 2.0**-8, 1e-5  # of a result in bfloat16, and of the sum of absolute products


@cache
def card() -> GpuDevice:
    return open_device("cuda")


@dataclass(frozen=True)
class Contestants:
    """Matrices on the card as PyTorch has them: B as it is and transposed; what it makes of them."""

    a: Any
    b: Any
    b_transposed: Any
    c: Any
    theirs: Any


@cache
def contestants(size: Size) -> Contestants:
    import torch

    torch.manual_seed(0)
    a = torch.randn(size.m, size.k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(size.k, size.n, device="cuda", dtype=torch.bfloat16)
    c = torch.empty(size.m, size.n, device="cuda", dtype=torch.bfloat16)
    return Contestants(a, b, b.t().contiguous(), c, torch.matmul(a, b))


def on_card(form: ProductForm, size: Size) -> dict[str, Any]:
    """Right or not, seconds of ours and of PyTorch's in the same rounds. Raises what drivers raise."""
    device = card()
    made = source(form, size, device.facts().multiprocessors)
    binary = compile_source(made, cuda_compiler(ARCH))
    them = contestants(size)
    tensors = {"A": them.a, "B": them.b_transposed if form.is_transposed else them.b, "C": them.c}
    buffers = {n: device.adopt(t.data_ptr(), t.numel() * t.element_size()) for n, t in tensors.items()}
    device.fill(buffers["C"], b"\xff", 0, buffers["C"].nbytes)
    device.synchronise()
    call = device.prepare(device.load(binary, made), made, buffers)
    device.run(call)
    device.synchronise()
    row = said_by_compiler(binary) | {"wrong": wrong_on_card(them)}
    if row["wrong"] is None:
        row |= timed(device, call, them, form.is_transposed)
        row["tflops"] = size.flops / row["seconds"] / 1e12
    return row


def wrong_on_card(them: Contestants) -> str | None:
    """A sentence on what is not right in C; None when all is."""
    import torch

    ours, theirs = them.c.float(), them.theirs.float()
    rows = torch.linspace(0, ours.shape[0] - 1, SAMPLED_ROWS, device="cuda").long()
    exact = them.a[rows].double() @ them.b.double()
    size = them.a[rows].double().abs() @ them.b.double().abs()
    beyond = (ours[rows].double() - exact).abs() > ROUNDING * exact.abs() + SUMS * size
    beyond |= ours[rows].isnan()
    apart = ((ours - theirs).abs() > 0.02 * theirs.abs() + 2e-3 * size.mean()) | ours.isnan()
    if bool(beyond.any()):
        return f"{int(beyond.sum())} of {beyond.numel()} sampled elements are beyond the bound"
    if bool(apart.any()):
        return f"{int(apart.sum())} of {apart.numel()} elements are far from torch.matmul's"
    return None


def timed(device: GpuDevice, call: LaunchSequence, them: Contestants, is_transposed: bool) -> dict[str, Any]:
    """The least and the median of interleaved samples."""
    import torch

    b = them.b_transposed.t() if is_transposed else them.b
    peer = GraphClock([lambda: torch.matmul(them.a, b)])
    clocks: dict[str, Clock] = {"ours": lambda repeats: device.time([call], repeats), "torch": peer}
    samples = interleaved(clocks, ROUNDS, SAMPLE_S)
    ours, torchs = samples["ours"], samples["torch"]
    return {
        "seconds": min(ours), "median_s": float(np.median(ours)), "torch_s": min(torchs),
        "torch_median_s": float(np.median(torchs)), "ratio": float(np.median(torchs) / np.median(ours)),
    }  # fmt: skip


def on_simulator(form: ProductForm, size: Size) -> dict[str, Any]:
    made = source(form, size, SIMULATED * form.cluster)
    rng = np.random.default_rng(0)
    dtype = numpy_dtype("bfloat16")
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((size.m, size.k), (size.k, size.n)))
    c = np.full((size.m, size.n), np.nan, dtype)
    memory = {"A": aligned(a), "B": aligned(np.ascontiguousarray(b.T) if form.is_transposed else b), "C": aligned(c)}
    ran = execute(build(made.text), list(made.launches), memory, frozenset("AB"), Mode())
    mistakes = "; ".join(map(str, ran.mistakes)) or None
    return {"wrong": mistakes or wrong_elements(memory["C"], a, b)}


def wrong_elements(c: Array, a: Array, b: Array) -> str | None:
    x, y, got = a.astype(np.float64), b.astype(np.float64), c.astype(np.float64)
    exact = x @ y
    beyond = ~(np.abs(got - exact) <= ROUNDING * np.abs(exact) + SUMS * (np.abs(x) @ np.abs(y)))
    return f"{int(beyond.sum())} of {beyond.size} elements are beyond the bound" if beyond.any() else None


def said_by_compiler(binary: DeviceCode) -> dict[str, Any]:
    return {
        "registers": [r.registers for r in binary.resources], "spill_bytes": [r.spill_bytes for r in binary.resources],
        "warnings": list(binary.warnings),
    }  # fmt: skip


def answer(request: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A row: "wrong" is None or a sentence, "error" what kept the form from running."""
    form, size = ProductForm(**request["form"]), Size(*request["size"])
    begun = time.monotonic()
    try:
        row = on_card(form, size) if where == "card" else on_simulator(form, size)
    except DeviceFault as fault:
        row = {"error": f"{fault.kind}: {fault}"[:600], "sticky": fault.kind in STICKY}
    except (AutoschedError, CompileError) as error:
        row = {"error": str(error)[:600]}
    except Exception as error:  # of PyTorch, of any class
        row = {"error": f"{type(error).__name__}: {error}"[:600], "sticky": True}
    return row | {"spent_s": round(time.monotonic() - begun, 3)}


def once(text: str) -> None:
    """One launch on data of its own, for tools that watch a process."""
    request = json.loads(text)
    form, size = ProductForm(**request["form"]), Size(*request["size"])
    device = card()
    made = source(form, size, device.facts().multiprocessors)
    numbers = np.random.default_rng(0).standard_normal(1 << 20).astype(numpy_dtype("bfloat16")).view(np.uint16)
    buffers = {}
    for name, count in (("A", size.m * size.k), ("B", size.k * size.n), ("C", size.m * size.n)):
        buffers[name] = device.allocate(2 * count)
        device.upload(buffers[name], np.resize(numbers, count))
    device.run(device.prepare(device.load(compile_source(made, cuda_compiler(ARCH)), made), made, buffers))
    device.synchronise()


def main() -> int:
    if sys.argv[1] == "--once":
        once(sys.argv[2])
        return 0
    where = sys.argv[2]
    serve(lambda request, _: answer(request, where))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
