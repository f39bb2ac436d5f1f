"""A parallel loop that counts: every task adds 1 to its own counter and records the thread that ran it."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from autosched.runtime.jit import LoadedKernel

# args: counters (int64 per task), threads (int64 per task), number of tasks, number of regions
COUNT = """
declare void @autosched_parallel(ptr, ptr, i64)
define internal void @body(ptr %args, i64 %task, i64 %id) nounwind {
  %counters = load ptr, ptr %args
  %counter = getelementptr i64, ptr %counters, i64 %task
  %old = atomicrmw add ptr %counter, i64 1 monotonic
  %threads.p = getelementptr ptr, ptr %args, i64 1
  %threads = load ptr, ptr %threads.p
  %thread = getelementptr i64, ptr %threads, i64 %task
  store i64 %id, ptr %thread
  ret void
}
define i32 @count(ptr %args, ptr %workspace, i64 %n) nounwind {
entry:
  %tasks.p = getelementptr i64, ptr %args, i64 2
  %tasks = load i64, ptr %tasks.p
  %regions.p = getelementptr i64, ptr %args, i64 3
  %regions = load i64, ptr %regions.p
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %loop ]
  call void @autosched_parallel(ptr @body, ptr %args, i64 %tasks)
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %regions
  br i1 %more, label %loop, label %done
done:
  ret i32 0
}
"""

# The outer loop's tasks (args[4] of them) each run the inner loop.
NESTED = (
    COUNT
    + """
define internal void @outer(ptr %args, i64 %task, i64 %id) nounwind {
  %tasks.p = getelementptr i64, ptr %args, i64 2
  %tasks = load i64, ptr %tasks.p
  call void @autosched_parallel(ptr @body, ptr %args, i64 %tasks)
  ret void
}
define i32 @nested(ptr %args, ptr %workspace, i64 %n) nounwind {
  %outer.p = getelementptr i64, ptr %args, i64 4
  %outer = load i64, ptr %outer.p
  call void @autosched_parallel(ptr @outer, ptr %args, i64 %outer)
  ret i32 0
}
"""
)

# args: for each thread the first task that it takes; the tasks wait until both threads have one
MEET = """
declare void @autosched_parallel(ptr, ptr, i64)
@arrived = internal global i64 0
define internal void @body(ptr %first, i64 %task, i64 %id) nounwind {
entry:
  %mine = getelementptr i64, ptr %first, i64 %id
  %old = load i64, ptr %mine
  %new = icmp slt i64 %old, 0
  br i1 %new, label %arrive, label %done
arrive:
  store i64 %task, ptr %mine
  %before = atomicrmw add ptr @arrived, i64 1 release
  br label %wait
wait:
  %there = load atomic i64, ptr @arrived acquire, align 8
  %both = icmp sge i64 %there, 2
  br i1 %both, label %done, label %wait
done:
  ret void
}
define i32 @meet(ptr %first, ptr %workspace, i64 %n) nounwind {
  call void @autosched_parallel(ptr @body, ptr %first, i64 7)
  ret i32 0
}
"""

Counters = npt.NDArray[np.int64]


def run(kernel: LoadedKernel, tasks: int, regions: int, outer: int = 0) -> tuple[Counters, Counters]:
    """(how often each task ran, the thread that ran it last); two guard elements follow the tasks."""
    counters = np.zeros(tasks + 2, np.int64)
    threads = np.zeros(tasks + 2, np.int64)
    args = (ctypes.c_int64 * 5)(counters.ctypes.data, threads.ctypes.data, tasks, regions, outer)
    assert kernel(ctypes.addressof(args), 0) == 0
    return counters, threads
