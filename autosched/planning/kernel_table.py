"""Table of a network's kernels with their work and roofline time, which AUTOSCHED_DEBUG=4 prints."""

from __future__ import annotations

from collections.abc import Sequence

from autosched.graph.fusion.cost import rates_of
from autosched.kernel.device import Device
from autosched.kernel.roofline import Roof, compulsory_bytes
from autosched.planning.extract_tasks import NetworkTask

HEAD = f"{'kernels':>7} {'operations':>13} {'bytes':>12} {'least us':>9}  operators"


def kernel_table(tasks: Sequence[NetworkTask], device: Device) -> str:
    """Return a line for each task, slowest first: its calls, and for all calls operations, bytes and roofline time.

    Bytes are compulsory traffic, times are microseconds at the rates of the device's table and its last cache. A
    multiply-add is two operations.
    """
    from cost_model.cpu.machine import CLOCK_HZ

    rates = rates_of(device.target, device.threads)
    roof = Roof(2 * rates.operations_per_cycle * CLOCK_HZ, rates.bytes_per_cycle * CLOCK_HZ)
    rows: list[tuple[float, str]] = []
    kernels, operations, moved = 0, 0, 0
    for task in tasks:
        dag, count = task.request.problem.dag, task.count
        flops, n_bytes = count * dag.flops, count * compulsory_bytes(dag)
        kernels, operations, moved = kernels + count, operations + flops, moved + n_bytes
        least = 1e6 * roof.seconds(flops, n_bytes)
        rows.append((least, f"{count:7} {flops:13} {n_bytes:12} {least:9.1f}  {task.name.replace('-', ' ')}"))
    rows.sort(reverse=True)
    least = sum(row[0] for row in rows)
    total = f"{kernels:7} {operations:13} {moved:12} {least:9.1f}  in {len(rows)} tasks"
    return "\n".join([HEAD, *(text for _, text in rows), total])
