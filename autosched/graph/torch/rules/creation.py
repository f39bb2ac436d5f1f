"""Rules of tensors of sizes alone, for sizes of a trace: torch computes those of numbers itself."""

from __future__ import annotations

from typing import Any

from autosched.errors import GraphError
from autosched.graph.graph import Value
from autosched.graph.torch.builder import TraceBuilder
from autosched.graph.torch.rules import rule


@rule("aten.arange.start_step")
def arange(b: TraceBuilder, start: Any, end: Any, step: Any, **_: Any) -> Value:
    return _counted(b, start, step)


@rule("aten.arange.start")
def arange_from(b: TraceBuilder, start: Any, end: Any, **_: Any) -> Value:
    return _counted(b, start, 1)


@rule("aten.arange.default")
def arange_to(b: TraceBuilder, end: Any, **_: Any) -> Value:
    return _counted(b, 0, 1)


@rule("prims.iota.default")
def iota(b: TraceBuilder, length: Any, *, start: Any, step: Any, **_: Any) -> Value:
    return _counted(b, start, step)


@rule("aten.full.default")
def full(b: TraceBuilder, size: Any, fill_value: Any, **_: Any) -> Value:
    return b.filled(b.result.shape, fill_value, b.result.dtype)


@rule("aten.zeros.default", "aten.empty.memory_format")
def zeros(b: TraceBuilder, size: Any, **_: Any) -> Value:
    return b.filled(b.result.shape, 0, b.result.dtype)


@rule("aten.ones.default")
def ones(b: TraceBuilder, size: Any, **_: Any) -> Value:
    return b.filled(b.result.shape, 1, b.result.dtype)


@rule("aten.scalar_tensor.default")
def scalar_tensor(b: TraceBuilder, s: Any, **_: Any) -> Value:
    return b.filled((), s, b.result.dtype)


def _counted(b: TraceBuilder, start: Any, step: Any) -> Value:
    if isinstance(start, float) or isinstance(step, float):
        raise GraphError(f"{b.origin}: a range of floats from {start} by {step} for sizes that vary")
    return b.emit("arange", start=start, step=step, size=b.result.shape[0], dtype=b.result.dtype)
