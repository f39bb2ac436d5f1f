"""A process of the step `again`, which tools watch: `--once WHERE ROW` launches a candidate, `--torch WHERE ROW` has
PyTorch compute the same, `--time WHERE FILE` times those of a file beside PyTorch, with a line of JSON for each.

WHERE is `card` or `simulator`, which times nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from autosched.codegen import build_source
from autosched.codegen.c.source import GpuSource
from autosched.errors import AutoschedError, UsageError
from autosched.ir.dtype import numpy_dtype
from autosched.lower import lower
from autosched.measure.timing import Clock, interleaved
from autosched.runtime.gpu.compile import CompileError, compile_source, cuda_compiler
from autosched.runtime.gpu.device import DeviceFault, GpuDevice
from autosched.runtime.gpu.devices import device_facts, open_device
from autosched.runtime.simulator.execute import Mode, build, execute
from autosched.runtime.spec import ArraySpec
from autosched.target import Target, parse_target
from autosched.te.dag import ComputeDAG
from autosched.te.operators.registry import build as workload
from autosched.te.rewrites.collapse import collapse
from experiments.gpu.again import AgainRow, decode, read_rows
from experiments.gpu.forms.form import aligned
from experiments.gpu.peers import GraphClock, start_torch
from search_spaces.gpu import sketches
from search_spaces.space import Sketch

ROUNDS, SAMPLE_S = 6, 0.012
SAMPLED_ROWS, SUMS = 64, 1e-5  # of the sum of absolute products
SEED_NUMBERS = 1 << 20


@dataclass(frozen=True)
class Rebuilt:
    """A candidate's source and the arrays that it takes, inputs first."""

    source: GpuSource
    inputs: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]

    @property
    def arrays(self) -> tuple[ArraySpec, ...]:
        return (*self.inputs, *self.outputs)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the arrays, as the launches know them."""
        return (*self.source.inputs, *self.source.outputs)


def target_of(where: str) -> Target:
    target = parse_target("cuda")
    return target.with_gpu(device_facts("cuda")) if where == "card" else target


@lru_cache(maxsize=1)  # rows of a problem follow each other
def problem(name: str, shape: tuple[int, ...], dtype: str, target: Target) -> tuple[ComputeDAG, dict[str, Sketch]]:
    dag: ComputeDAG = workload(name, shape, {}, None, dtype)[0]
    return dag, {sketch.name: sketch for sketch in sketches(collapse(dag), target)}


def rebuilt(row: AgainRow, target: Target) -> Rebuilt:
    """Of parameters that came later the smallest value. Raises UsageError, with what there is, where no sketch of today
    has that name or takes these values."""
    dag, found = problem(row.workload, row.shape, row.dtype, target)
    if row.sketch not in found:
        raise UsageError(f"{row.label}: no sketch of that name; there are {', '.join(found)}")
    sketch = found[row.sketch]
    values = {p.name: row.values.get(p.name, p.domain[0]) for p in sketch.params}
    if unknown := sorted(set(row.values) - set(values)):
        raise UsageError(f"{row.label}: the sketch has no {', '.join(unknown)}; it takes {', '.join(values)}")
    made = build_source(lower(sketch.state), values, target)
    assert isinstance(made, GpuSource)
    if row.text:
        made = replace(made, text=Path(row.text).read_text(encoding="utf-8"))
    inputs, outputs = (
        tuple(ArraySpec(t.name, t.public_shape, t.dtype) for t in tensors) for tensors in (dag.inputs, dag.outputs)
    )
    return Rebuilt(made, inputs, outputs)


def once(row: AgainRow, where: str) -> None:
    """Raises AssertionError for what the simulator finds wrong, DeviceFault on the card."""
    of = rebuilt(row, target_of(where))
    numbers = np.random.default_rng(0).standard_normal(SEED_NUMBERS)
    data = [np.resize(numbers, int(np.prod(spec.shape))).astype(numpy_dtype(spec.dtype)) for spec in of.arrays]
    if where == "simulator":
        memory = {name: aligned(array) for name, array in zip(of.names, data, strict=True)}
        memory |= {name: aligned(np.zeros(nbytes, np.uint8)) for name, nbytes in of.source.workspace}
        ran = execute(build(of.source.text), list(of.source.launches), memory, frozenset(of.source.inputs), Mode())
        assert not ran.mistakes, "; ".join(map(str, ran.mistakes))
        return
    device = open_device("cuda")
    buffers = {}
    for name, spec, array in zip(of.names, of.arrays, data, strict=True):
        buffers[name] = device.allocate(spec.nbytes)
        device.upload(buffers[name], array.view(np.uint8))
    launch(device, of.source, buffers)


def launch(device: GpuDevice, source: GpuSource, buffers: Mapping[str, Any]) -> Any:
    """One call, waited for; what may be timed."""
    binary = compile_source(source, cuda_compiler(device.facts().arch))
    workspace = {name: device.allocate(nbytes) for name, nbytes in source.workspace}
    call = device.prepare(device.load(binary, source), source, {**buffers, **workspace})
    device.run(call)
    device.synchronise()
    return call


def operands(torch: Any, row: AgainRow) -> tuple[Any, Any]:
    """Of a product of matrices. Raises UsageError for another workload."""
    if row.workload != "gmm" or row.shape[0] != 1:
        raise UsageError(f"{row.label}: only single products are held beside PyTorch")
    torch.manual_seed(0)
    _, m, n, k = row.shape
    dtype = getattr(torch, row.dtype)
    a, b = (torch.randn(shape, device="cuda", dtype=dtype) for shape in ((m, k), (k, n)))
    return a, b


def timed(row: AgainRow, torch: Any, device: GpuDevice, target: Target) -> dict[str, Any]:
    """Right or not, and seconds of ours and of PyTorch's from the same rounds."""
    a, b = operands(torch, row)
    theirs = torch.matmul(a, b)
    c = torch.full_like(theirs, float("nan"))
    of = rebuilt(row, target)
    buffers = {
        name: device.adopt(t.data_ptr(), t.numel() * t.element_size())
        for name, t in zip(of.names, (a, b, c), strict=True)
    }
    torch.cuda.synchronize()
    call = launch(device, of.source, buffers)
    peer = GraphClock([lambda: torch.matmul(a, b)], 1)
    clocks: dict[str, Clock] = {"ours": lambda repeats: device.time([call], repeats), "torch": peer}
    samples = interleaved(clocks, ROUNDS, SAMPLE_S)
    rows = torch.linspace(0, c.shape[0] - 1, SAMPLED_ROWS, device="cuda").long()
    exact, size = a[rows].double() @ b.double(), a[rows].double().abs() @ b.double().abs()
    within = (c[rows].double() - exact).abs() <= SUMS * size + torch.finfo(c.dtype).eps * exact.abs()
    least = {name: min(found) for name, found in samples.items()}
    return {
        "us": 1e6 * least["ours"], "torch_us": 1e6 * least["torch"], "ratio": least["torch"] / least["ours"],
        "median_us": 1e6 * float(np.median(samples["ours"])), "wrong": int((~within).sum()), "values": dict(row.values),
    }  # fmt: skip


def time_all(path: Path, where: str) -> None:
    rows = [row for row in read_rows(path) if not row.failure]
    target = target_of(where)
    torch, device = (start_torch(), open_device("cuda")) if where == "card" else (None, None)
    for row in rows:
        try:
            if device is None:
                once(row, where)
                found: dict[str, Any] = {"wrong": 0}
            else:
                found = timed(row, torch, device, target)
        except (AutoschedError, CompileError, DeviceFault, OSError) as error:
            found = {"error": str(error)[:600]}
        print(json.dumps({"timed": row.label, "row": found}), flush=True)


def watched_torch(row: AgainRow) -> None:
    """PyTorch's product three times: tools take one that is not the first."""
    torch = start_torch()
    a, b = operands(torch, row)
    for _ in range(3):
        torch.matmul(a, b)
    torch.cuda.synchronize()


def main() -> int:
    how, where, what = sys.argv[1:]
    if how == "--time":
        time_all(Path(what), where)
    elif how == "--torch":
        watched_torch(decode(what))
    else:
        once(decode(what), where)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
