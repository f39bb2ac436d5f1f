"""Measured peak rates of this machine, for `fraction_of_peak` and `autosched doctor`.

The loops are LLVM IR at the target's vector width, timed from outside for at least `FLOOR_S` seconds; the best of
several samples counts.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from functools import lru_cache
from string import Template

import numpy as np

from autosched.codegen.source import function_attributes
from autosched.errors import DeviceError
from autosched.runtime.jit import load_library
from autosched.runtime.tensors import address_of, aligned_empty
from autosched.target import Target

# About as long as a core is left alone that others use, too. With a strange thread on its second half, which came and
# went every millisecond, and nine waiting threads for each core, 13 of 14 readings lay within 171 and 179 GFLOP/s; with
# 8 samples of 3 ms there was none above 172, and half were below 167.
FLOOR_S = 0.001
SAMPLES, FEWEST, ENOUGH_S = 48, 8, 0.1  # fewer, but not below FEWEST, where they take ENOUGH_S together
_SINK_BYTES = 256  # per task, so that threads never share a line
_NAMES = ("fma_task", "read_task", "spin_task", "regions")

# Every task function is `void (ptr env, i64 task, i64 thread_id)`; env = { i64 count, ptr sink, ptr data, i64 bytes }.
_MODULE = """
%env = type { i64, ptr, ptr, i64 }
declare void @autosched_run(ptr, ptr, i64, i64)
$declare_fma

define void @fma_task(ptr %env, i64 %task, i64 %id) #0 {
entry:
  %count = load i64, ptr %env
  $sink
  %x = load $vec, ptr %sink, align 4
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %loop ]
$fma_phis
$fma_steps
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %count
  br i1 %more, label %loop, label %done
done:
$fma_sum
  ret void
}

define void @read_task(ptr %env, i64 %task, i64 %id) #0 {
entry:
  %count = load i64, ptr %env
  $sink
  %data.p = getelementptr %env, ptr %env, i64 0, i32 2
  %data = load ptr, ptr %data.p
  %bytes.p = getelementptr %env, ptr %env, i64 0, i32 3
  %bytes = load i64, ptr %bytes.p
  %first = mul i64 %task, %bytes
  %base = getelementptr i8, ptr %data, i64 %first
  br label %pass
pass:
  %r = phi i64 [ 0, %entry ], [ %r1, %next ]
  br label %loop
loop:
  %i = phi i64 [ 0, %pass ], [ %i1, %loop ]
$read_phis
  %p = getelementptr i8, ptr %base, i64 %i
$read_steps
  %i1 = add i64 %i, $step
  %more = icmp slt i64 %i1, %bytes
  br i1 %more, label %loop, label %next
next:
$read_sum
  %r1 = add i64 %r, 1
  %again = icmp slt i64 %r1, %count
  br i1 %again, label %pass, label %done
done:
  ret void
}

define void @spin_task(ptr %env, i64 %task, i64 %id) #0 {
entry:
  %count = load i64, ptr %env
  $sink
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %loop ]
  store volatile i64 %i, ptr %sink
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %count
  br i1 %more, label %loop, label %done
done:
  ret void
}

; `repeats` regions of `tasks` tasks on at most `limit` threads
define void @regions(ptr %fn, ptr %env, i64 %tasks, i64 %limit, i64 %repeats) #0 {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %loop ]
  call void @autosched_run(ptr %fn, ptr %env, i64 %tasks, i64 %limit)
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %repeats
  br i1 %more, label %loop, label %done
done:
  ret void
}
attributes #0 = { $attributes }
"""

_SINK = f"""%sink.p = getelementptr %env, ptr %env, i64 0, i32 1
  %sink.0 = load ptr, ptr %sink.p
  %sink.o = mul i64 %task, {_SINK_BYTES}
  %sink = getelementptr i8, ptr %sink.0, i64 %sink.o
  %result = getelementptr i8, ptr %sink, i64 {_SINK_BYTES // 2}"""


class _Env(ctypes.Structure):
    _fields_ = (
        ("count", ctypes.c_int64),
        ("sink", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_int64),
    )


class _Loops:
    """The compiled loops and the memory they write."""

    def __init__(self, target: Target) -> None:
        if not target.runs_here:
            raise DeviceError(f"peak rates are measured on this machine, which cannot run code for {target.mcpu!r}")
        self._owner, self._address = load_library(_module(target), target, _NAMES)
        prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3)
        self._regions = prototype(self._address["regions"])

    def seconds(self, task: str, env: _Env, tasks: int, threads: int, repeats: int = 1) -> float:
        start = time.perf_counter()
        self._regions(self._address[task], ctypes.addressof(env), tasks, threads, repeats)
        return time.perf_counter() - start


def measure_fma_gflops(target: Target, threads: int) -> float:
    """Measure the single-precision peak of `threads` threads in GFLOP/s, two operations per multiply-add."""
    seconds, operations = multiplier(target, threads)
    return _best_rate(seconds, float(operations)) / 1e9


def multiplier(target: Target, threads: int) -> tuple[Callable[[int], float], int]:
    """Return the function that runs so many rounds of multiply-adds in registers and returns their seconds, and the
    operations of a round of all threads, two per multiply-add.
    """
    loops = _loops(target)
    sink = _sink(threads)

    def seconds(repeats: int) -> float:
        return loops.seconds("fma_task", _Env(repeats, address_of(sink), None, 0), threads, threads)

    return seconds, 2 * _lanes(target) * _accumulators(target) * threads


def measure_bandwidth(target: Target, threads: int, nbytes: int) -> float:
    """Measure the bytes per second read by `threads` threads that sum `nbytes` in all, again and again, each its own
    range.
    """
    seconds, count = reader(target, threads, nbytes)
    return _best_rate(seconds, float(count))


def reader(target: Target, threads: int, nbytes: int) -> tuple[Callable[[int], float], int]:
    """Return the function that reads the memory so many times and returns the seconds, and the bytes read each time:
    `nbytes` rounded down to whole steps of each thread.
    """
    loops = _loops(target)
    step = _read_step(target)
    part = max(step, nbytes // threads // step * step)
    data = aligned_empty((part * threads // 4,), "float32")
    data.fill(1.0)
    sink = _sink(threads)
    held = (sink, data)

    def seconds(repeats: int) -> float:
        assert held
        env = _Env(repeats, address_of(sink), address_of(data), part)
        return loops.seconds("read_task", env, threads, threads)

    return seconds, part * threads


def fork_join_seconds(threads: int, target: Target, work: int = 20_000) -> float:
    """Measure the overhead of a warm parallel region of one task per thread beyond the task itself, in seconds, at
    least 0.

    The task takes some microseconds (`work` stores), so that every thread gets one before the caller takes it. The
    fastest of several loops counts on both sides: other programs take a core from one or the other, and the difference
    of two such times may have any sign.
    """
    loops = _loops(target)
    sink = _sink(threads)
    env = _Env(work, address_of(sink), None, 0)
    repeats = 40
    alone, together = (min(loops.seconds("spin_task", env, n, n, repeats) for _ in range(45)) for n in (1, threads))
    return max(0.0, together - alone) / repeats


def _best_rate(seconds: Callable[[int], float], per_count: float) -> float:
    """Return the best rate of some samples, in units per second; `seconds(count)`: of `count` rounds of `per_count`
    units.

    The count is raised if it is too small: a first call may take long because it waits for its core, and rates of
    single rounds were those of waking a thread, 300 times below the peak.
    """
    count, rates, sampled = 1, list[float](), 0.0
    while len(rates) < (SAMPLES if sampled < ENOUGH_S else FEWEST):
        spent = seconds(count)
        if spent >= FLOOR_S:
            rates.append(count * per_count / spent)
            sampled += spent
        else:
            count = int(count * min(64.0, 1.2 * FLOOR_S / max(spent, 1e-7))) + 1
    return max(rates)


@lru_cache(maxsize=4)
def _loops(target: Target) -> _Loops:
    return _Loops(target)


def _sink(threads: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    sink = aligned_empty((threads * _SINK_BYTES // 4,), "float32")
    sink.fill(0.5)
    return sink


def _lanes(target: Target) -> int:
    return target.vector_bytes // 4


def _accumulators(target: Target) -> int:
    """Return the number of independent chains: two units times a latency of 4 to 5 cycles need 10; more hide a shared
    core.
    """
    return 24 if target.n_vector_registers >= 32 else 12


def _read_step(target: Target) -> int:
    return 8 * target.vector_bytes


def _module(target: Target) -> str:
    vec = f"<{_lanes(target)} x float>"
    suffix = f"v{_lanes(target)}f32"
    chains = range(_accumulators(target))
    loads = range(8)

    def phis(names: range, block: str, start: str) -> str:
        return "\n".join(f"  %a{c} = phi {vec} [ {start}, %{block} ], [ %b{c}, %loop ]" for c in names)

    def fma(c: int) -> str:  # x is 0.5, so every chain goes to 1: nothing subnormal or infinite
        if target.has_fma:
            return f"  %b{c} = call {vec} @llvm.fma.{suffix}({vec} %a{c}, {vec} %x, {vec} %x)"
        return f"  %m{c} = fmul {vec} %a{c}, %x\n  %b{c} = fadd {vec} %m{c}, %x"

    def read(c: int) -> str:
        return (
            f"  %p{c} = getelementptr i8, ptr %p, i64 {c * target.vector_bytes}\n"
            f"  %v{c} = load {vec}, ptr %p{c}, align 64\n  %b{c} = fadd {vec} %a{c}, %v{c}"
        )

    def total(names: range) -> str:
        lines = [f"  %s{c} = fadd {vec} %{'b0' if c == 1 else f's{c - 1}'}, %b{c}" for c in names[1:]]
        return "\n".join([*lines, f"  store {vec} %s{names[-1]}, ptr %result, align 4"])

    return Template(_MODULE).substitute(
        vec=vec,
        declare_fma=f"declare {vec} @llvm.fma.{suffix}({vec}, {vec}, {vec})",
        sink=_SINK,
        fma_phis=phis(chains, "entry", "%x"),
        fma_steps="\n".join(fma(c) for c in chains),
        fma_sum=total(chains),
        read_phis=phis(loads, "pass", "zeroinitializer"),
        read_steps="\n".join(read(c) for c in loads),
        read_sum=total(loads),
        step=_read_step(target),
        attributes=function_attributes(target),
    )
