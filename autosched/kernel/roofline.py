"""A kernel against the limits of its device: the roofline as measured, and the cost model's view of the same code.

The roofline (Williams, Waterman, Patterson, CACM 2009): a kernel of F operations that moves at least B bytes takes no
less than max(F / peak, B / bandwidth). B is compulsory traffic: what is read of each input, once, and each output. The
bandwidth is that of reading B bytes again and again, so it is a cache's where the arrays fit into one.
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

if TYPE_CHECKING:
    from autosched.ir.expr import Expr, Load, Var
    from autosched.ir.stmt import Func
    from autosched.te import ComputeDAG
    from cost_model.cpu.latency import AnalyticLatency, Cost
    from cost_model.model import GpuSketchModel

Fact = float | int | str
SMALLEST, LARGEST = 1 << 16, 256 << 20  # bytes that the bandwidth is measured with
MEMORY = ("L2 to L1", "L3 to L2", "DRAM to L3")


@dataclass(frozen=True)
class Roof:
    """Rates of the machine: operations (0: not known for the type) and bytes a second."""

    flops: float
    bandwidth: float

    def seconds(self, flops: int, n_bytes: int) -> float:
        return max(flops / self.flops if self.flops else 0.0, n_bytes / self.bandwidth)

    def over(self, flops: int, n_bytes: int, seconds: float) -> Roof:
        """A roof that is not below what a kernel was measured to do: then it is the reading that was disturbed."""
        return Roof(max(self.flops, flops / seconds) if self.flops else 0.0, max(self.bandwidth, n_bytes / seconds))


def compulsory_bytes(dag: ComputeDAG) -> int:
    """Of the outputs, and of what is read of each input: of a table the rows that are looked up, of an image what lies
    under a strided window."""
    read = {t.name: 0 for t in dag.inputs}
    for op in dag.stages:
        extents = {axis.var: axis.extent for axis in (*op.axes, *op.reduce_axes)}
        for load in dag.reads(op):
            if load.buffer in read:
                read[load.buffer] = max(read[load.buffer], _elements(load, dag.tensors[load.buffer].shape, extents))
    written = sum(math.prod(t.shape) * DTYPES[t.dtype].nbytes for t in dag.outputs)
    return written + sum(read[t.name] * DTYPES[t.dtype].nbytes for t in dag.inputs)


def _elements(load: Load, shape: Sequence[int], extents: Mapping[Var, int]) -> int:
    """How many different ones a load reads, at most."""

    def points(index: Iterable[Expr]) -> int:
        names = {name for part in index for name in free_vars(part)}
        return math.prod(extents.get(name, 1) for name in names)

    in_box = math.prod(min(size, points([index])) for size, index in zip(shape, load.indices, strict=True))
    return min(in_box, points(load.indices))


def measure_roof(target: Target, threads: int, n_bytes: int, peak_gflops: float | None) -> Roof:
    """A processor's roof; its peak was measured before."""
    from autosched.measure.host import device_lock
    from autosched.runtime.peak import measure_bandwidth

    with device_lock("cpu"):
        bandwidth = measure_bandwidth(target, threads, min(max(n_bytes, SMALLEST), LARGEST))
    return Roof(1e9 * (peak_gflops or 0.0), bandwidth)


def has_peak(target: Target, pipe: str) -> bool:
    """Whether it is known how to measure what a GPU's pipe can do: float32, float64, and tensor cores that it has."""
    from autosched.runtime.gpu.tensor_pipes import pipes_of

    assert target.gpu is not None
    return pipe in ("float32", "float64", *pipes_of(target.gpu))


def measure_gpu_roof(target: Target, n_bytes: int, pipe: str) -> Roof:
    """A GPU's roof: the arithmetic of one of its pipes, and a copy past its caches. Raises DeviceError."""
    from autosched.measure.backends import lock_name
    from autosched.measure.gpu.rates import measure_rates
    from autosched.measure.host import device_lock

    pipes = [pipe] if has_peak(target, pipe) else ["float32"]
    with device_lock(lock_name(target.kind)):
        rates = measure_rates(target.kind, pipes, min(max(n_bytes, SMALLEST), LARGEST))
    return Roof(1e9 * rates.gflops.get(pipe, 0.0), rates.bandwidth)


def roofline_facts(flops: int, n_bytes: int, seconds: float | None, roof: Roof | None) -> dict[str, Fact]:
    """Work and intensity; with a `roof` what is possible, with `seconds` how near the kernel comes."""
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
    """What the analytic model says of the nest `func` without parameters: its estimate and what it is made of."""
    from autosched.ir.stmt import ForKind
    from cost_model.model import GpuSketchModel, sketch_model

    sketch = sketch_model(func, (), target, threads)
    if isinstance(sketch, GpuSketchModel):
        return _gpu_facts(sketch)
    latency = sketch.latency
    main = max(latency.costs, key=lambda cost: _number(cost.cycles))
    inner = main.statement.loops[main.statement.block :]
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
    """Of the kernel that takes longest: how it fills the device, and which of its limits is the nearest."""
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
    """Cycles of the busiest thread that each resource needs, were it the only one."""
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
    """The value of a closed form without parameters."""
    from autosched.ir.closed_forms.program import Program

    return float(Program([closed], ())(np.zeros((1, 0), np.int64))[0, 0])
