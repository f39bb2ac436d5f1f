"""The roofline of a kernel, measured, and the analytic latency of the same code by the cost model.

The roofline (Williams, Waterman, Patterson, CACM 2009): a kernel of F operations that moves at least B bytes takes at
least max(F / peak, B / bandwidth) seconds. B is the compulsory traffic: each output, and once the elements of each
input that are read. The bandwidth is that of reading B bytes again and again: a cache's, if the arrays fit into it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autosched.ir.dtype import DTYPES
from autosched.ir.visit import free_vars
from autosched.target import Target
from autosched.te.reference.blocks import affine

if TYPE_CHECKING:
    from autosched.ir.expr import Expr, Load, Var
    from autosched.ir.stmt import Func
    from autosched.te import ComputeDAG
    from cost_model.cpu.latency import AnalyticLatency, Cost
    from cost_model.model import GpuSketchModel

Fact = float | int | str
SMALLEST, LARGEST = 1 << 16, 256 << 20  # bytes of the arrays that the bandwidth is measured with
MEMORY = ("L2 to L1", "L3 to L2", "DRAM to L3")


@dataclass(frozen=True)
class Roof:
    """Peak rates of a device: operations a second (0: unknown for the type) and bytes a second."""

    flops: float
    bandwidth: float

    def seconds(self, flops: int, n_bytes: int) -> float:
        """Return the least seconds of a kernel with so many operations and bytes."""
        return max(flops / self.flops if self.flops else 0.0, n_bytes / self.bandwidth)

    def over(self, flops: int, n_bytes: int, seconds: float) -> Roof:
        """Return the roofline, raised to the rates of a measured kernel: below them its measurement was disturbed."""
        return Roof(max(self.flops, flops / seconds) if self.flops else 0.0, max(self.bandwidth, n_bytes / seconds))


def compulsory_bytes(dag: ComputeDAG) -> int:
    """Return the bytes of the outputs and of the elements of each input that are read.

    Of a table these are the rows that are gathered, of an image those under a strided window.
    """
    read = {t.name: 0 for t in dag.inputs}
    for op in dag.stages:
        extents = {axis.var: axis.extent for axis in (*op.axes, *op.reduce_axes)}
        for places in _neighbours(load for load in dag.reads(op) if load.buffer in read):
            name = places[0].buffer
            read[name] = max(read[name], _elements(places, dag.tensors[name].shape, extents))
    written = sum(math.prod(t.shape) * DTYPES[t.dtype].nbytes for t in dag.outputs)
    return written + sum(read[t.name] * DTYPES[t.dtype].nbytes for t in dag.inputs)


def _neighbours(loads: Iterable[Load]) -> list[list[Load]]:
    """Return the loads of a stage in lists of those whose indices differ in constants alone: the taps of a stencil, or
    the bytes of a block."""
    alike: dict[object, list[Load]] = {}
    for load in loads:
        forms = [affine(index) for index in load.indices]
        slopes = tuple(None if form is None else tuple(sorted(form.coefficients.items())) for form in forms)
        alike.setdefault((load.buffer, load if None in slopes else slopes), []).append(load)
    return list(alike.values())


def _elements(places: Sequence[Load], shape: Sequence[int], extents: Mapping[Var, int]) -> int:
    """Return an upper bound of the number of different elements that loads read whose indices differ in constants."""
    load, ranges = places[0], {var.name: (0, extent) for var, extent in extents.items()}

    def points(index: Iterable[Expr]) -> int:
        names = {name for part in index for name in free_vars(part)}
        return math.prod(extents.get(name, 1) for name in names)

    def width(dimension: int) -> int:
        """How many elements there are between the first and the last one, and these."""
        forms = [affine(each.indices[dimension]) for each in places]
        if any(form is None for form in forms):
            return shape[dimension]
        ends = [form.range(ranges) for form in forms if form is not None]
        return max(high for _, high in ends) - min(low for low, _ in ends) + 1

    def count(dimension: int) -> int:
        different = len({each.indices[dimension] for each in places})
        return min(shape[dimension], different * points([load.indices[dimension]]), width(dimension))

    if not all(extents.values()):
        return 0
    in_box = math.prod(map(count, range(len(shape))))
    return min(in_box, len(places) * points(load.indices))


def measure_roof(target: Target, threads: int, n_bytes: int, peak_gflops: float | None) -> Roof:
    """Measure the bandwidth of a processor; return it as a roofline with `peak_gflops`."""
    from autosched.measure.host import device_lock
    from autosched.runtime.peak import measure_bandwidth

    with device_lock("cpu"):
        bandwidth = measure_bandwidth(target, threads, min(max(n_bytes, SMALLEST), LARGEST))
    return Roof(1e9 * (peak_gflops or 0.0), bandwidth)


def has_peak(target: Target, pipe: str) -> bool:
    """Return whether the peak of a GPU's pipe can be measured: that of float32, float64 and its tensor cores."""
    from autosched.runtime.gpu.tensor_pipes import pipes_of

    assert target.gpu is not None
    return pipe in ("float32", "float64", *pipes_of(target.gpu))


def measure_gpu_roof(target: Target, n_bytes: int, pipe: str) -> Roof:
    """Measure a GPU's roofline: the arithmetic of one of its pipes, and a copy that misses its caches.

    Raises DeviceError if the device cannot be used.
    """
    from autosched.measure.backends import lock_name
    from autosched.measure.gpu.rates import measure_rates
    from autosched.measure.host import device_lock

    pipes = [pipe] if has_peak(target, pipe) else ["float32"]
    with device_lock(lock_name(target.kind)):
        rates = measure_rates(target.kind, pipes, min(max(n_bytes, SMALLEST), LARGEST))
    return Roof(1e9 * rates.gflops.get(pipe, 0.0), rates.bandwidth)


def roofline_facts(flops: int, n_bytes: int, seconds: float | None, roof: Roof | None) -> dict[str, Fact]:
    """Return work and arithmetic intensity; with a `roof` also the limits, with `seconds` the fraction reached."""
    facts: dict[str, Fact] = {"flops": flops, "bytes": n_bytes, "flops_per_byte": flops / max(n_bytes, 1)}
    if seconds is not None:
        facts["gflops"] = flops / seconds / 1e9
    if roof is None:
        return facts
    least = roof.seconds(flops, n_bytes)
    facts["gbytes_per_second"] = roof.bandwidth / 1e9
    if roof.flops:
        facts["peak_gflops"] = roof.flops / 1e9
        facts["limit"] = "arithmetic" if flops / roof.flops >= n_bytes / roof.bandwidth else "memory"
    facts["roofline_s"] = least
    if seconds is not None:
        facts["fraction_of_roofline"] = least / seconds
    return facts


def model_facts(func: Func, target: Target, threads: int) -> dict[str, Fact]:
    """Return the analytic latency of the nest `func`, which has no parameters, and the costs that it consists of."""
    from autosched.ir.stmt import ForKind
    from cost_model.model import GpuSketchModel, sketch_model

    sketch = sketch_model(func, (), target, threads)
    if not sketch.analysis.statements:  # of a kernel whose outputs have no elements
        return {"predicted_s": 0.0}
    if isinstance(sketch, GpuSketchModel):
        return _gpu_facts(sketch)
    latency = sketch.latency
    main = max(latency.costs, key=lambda cost: _number(cost.cycles))
    inner = main.statement.loops[main.statement.block_depth :]
    limits = _limits(main)
    shares = {name: cycles / max(limits.values()) for name, cycles in limits.items()}
    order = sorted(shares, key=lambda name: -shares[name])
    return {
        "predicted_s": _number(latency.seconds),
        "main_stage": main.statement.stage,
        "share_of_main_stage": _share(main, latency),
        "vector_lanes": main.block.lanes,
        "vectors": round(_number(main.block.chunks)),
        "unroll": round(np.prod([_number(loop.trips) for loop in inner if loop.kind is ForKind.UNROLL])),
        "accumulator_registers": round(_number(main.block.registers)),
        "operand_registers": round(_number(main.block.operands)),
        "spilled_registers": round(_number(main.block.spills)),
        "parallel_tasks": round(_number(main.tasks)),
        "predicted_limit": order[0],
        "predicted_limits": ", ".join(f"{name} {shares[name]:.2f}" for name in order if shares[name] >= 0.05),
    }


def _gpu_facts(sketch: GpuSketchModel) -> dict[str, Fact]:
    """Return occupancy and limits of the GPU kernel with the largest predicted latency."""
    kernels = sketch.latency.kernels
    main = max(kernels, key=lambda k: _number(k.seconds))
    total = sum(_number(k.seconds) for k in kernels)
    threads, resident = _number(main.kernel.threads), _number(main.occupancy)
    gpu = sketch.machine.facts
    limits = {
        name: _number(cycles)
        for name, cycles in zip(("arithmetic", "issue", "memory instructions", "L2 port"), main.pipes, strict=True)
    }
    on_chip = _number(main.on_chip)
    longest = {"on chip": on_chip, "L2": _number(main.l2), "DRAM": _number(main.dram)}
    return {
        "predicted_s": _number(sketch.latency.seconds),
        "kernels": len(kernels),
        "share_of_main_kernel": _number(main.seconds) / max(total, 1e-30),
        "blocks": round(_number(main.kernel.blocks)),
        "threads_per_block": round(threads),
        "shared_bytes": round(_number(main.kernel.shared)),
        "estimated_registers": round(_number(main.registers)),
        "resident_blocks": round(resident),
        "occupancy": min(1.0, threads * resident / gpu.max_threads_per_multiprocessor),
        "waves": _number(main.kernel.blocks) / (resident * gpu.multiprocessors),
        "predicted_limit": max(longest, key=lambda name: longest[name]),
        "predicted_pipe": max(limits, key=lambda name: limits[name]),
    }


def _limits(cost: Cost) -> Mapping[str, float]:
    """Return the cycles of the busiest thread if each resource were the only limit, by the resource's name."""
    share = _number(cost.share)
    blocks = _number(cost.blocks) * share
    return {
        **{name: blocks * _number(cycles) for name, cycles in cost.block.limits.items()},
        "loops": _number(cost.loop_overhead) * share,
        **{name: _number(cycles) for name, cycles in zip(MEMORY, cost.memory, strict=True)},
    }


def _share(main: Cost, latency: AnalyticLatency) -> float:
    return _number(main.cycles) / max(sum(_number(cost.cycles) for cost in latency.costs), 1e-30)


def _number(closed: Expr) -> float:
    """Return the value of a closed form without parameters."""
    from autosched.ir.closed_forms.program import Program

    return float(Program([closed], ())(np.zeros((1, 0), np.int64))[0, 0])
