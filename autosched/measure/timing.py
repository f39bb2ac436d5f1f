"""Timing loop: compiled code calls the kernel and reads the clock; Python only chooses the number of calls.

The helper's IR is compiled once in each worker, together with the canary, a kernel known to be good. The canary shows
that a fresh worker compiles, runs and times correctly before a candidate's failure is attributed to the candidate.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

# Seconds of a sample, which has so many calls that reading the clock (about 50 ns) does not matter. Samples are short
# because the fastest one counts, and most short ones are undisturbed. On ten replayed sessions beside other processes
# 0.5 ms found the times of good candidates to 2.1 %, 1 ms to 3.5 %.
SAMPLE_S = 5e-4
MIN_SAMPLES, MAX_SAMPLES = 5, 50
FEWER_SAMPLES = {0.5: 2, 0.05: 3}  # number of samples by the seconds of a call: long calls need no averaging
# From so many seconds on the first call is a sample already, although it fills the caches: the fastest sample counts,
# and one more call of each slow candidate would take a tenth of the time of timing.
COUNTED_CALL_S = 1e-3
LONG_CALL_S = 0.02  # seconds; filling the caches is a small part of such a call
# Early stopping: after so many undisturbed samples (key) a candidate has lost whose fastest sample takes so many times
# (value) the fastest of all candidates. The fastest sample is compared because disturbances only make samples slower.
# A candidate that lost narrowly may still win the final comparison.
LOST = {2: 1.3, 4: 1.08, 7: 1.02, 10: 1.0}
LONG_LOST = {1: 1.3, 2: 1.1, 4: 1.03}  # for long calls, of which short disturbances are a small part
CANARY_ELEMENTS = 1024  # elements of each thread, computed eight times
# The canary as a witness of disturbances: seconds of a run, and the slowdown from which a core counts as disturbed.
# Another hyperthread of the core slows the canary, which saturates the load and store pipes, down by 1.4 to 2 and
# kernels by 1.2 to 1.6, for milliseconds at a time; a changing clock frequency by 1.1. If the canary was slower than
# this before or after a sample, four of five samples were slow, else one of six (shared Emerald Rapids). Of 62 and 80
# candidates in random order the one chosen took 1.10 times the time of the best, with quiet samples alone 1.03 times.
# All cores of a kernel must be quiet: of samples of three kernels on two threads that were quiet by one core alone
# 0.74 to 0.88 were slow, by both cores 0.07 of 149 and 1 of 8.
WITNESS_S, WITNESS_SLOWER = 2e-5, 1.2
DISTURBED = 2.0  # a slowdown that no disturbance causes: a candidate that is so slow has lost in any sample

# Returns the nanoseconds of `reps` calls (at least one), or BAD_STATUS if a call returned a status other than 0.
# `clock` is clock_gettime; `timespec` is two 64-bit words on every 64-bit Unix. Calls take the sets of pointers at
# `args` in turn; `turn` points to (number of the next call's set, number of sets, pointers in a set).
BAD_STATUS = -(2**63)
TIME_ENTRY, CANARY_ENTRY = "autosched_time", "autosched_canary"
HELPER_IR = """
declare void @autosched_run(ptr, ptr, i64, i64)

define i64 @autosched_time(ptr %clock, i32 %clock.id, ptr %kernel, ptr %args, ptr %turn, ptr %ws,
                           i64 %threads, i64 %reps) {
entry:
  %t = alloca [2 x i64], align 16
  %r0 = call i32 %clock(i32 %clock.id, ptr %t)
  %s0 = load i64, ptr %t
  %n.at = getelementptr i64, ptr %t, i64 1
  %n0 = load i64, ptr %n.at
  %first = load i64, ptr %turn
  %sets.at = getelementptr i64, ptr %turn, i64 1
  %sets = load i64, ptr %sets.at
  %pointers.at = getelementptr i64, ptr %turn, i64 2
  %pointers = load i64, ptr %pointers.at
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %set = phi i64 [ %first, %entry ], [ %set.next, %loop ]
  %bad = phi i32 [ 0, %entry ], [ %sum, %loop ]
  %place = mul i64 %set, %pointers
  %now = getelementptr ptr, ptr %args, i64 %place
  %status = call i32 %kernel(ptr %now, ptr %ws, i64 %threads)
  %set.up = add i64 %set, 1
  %set.last = icmp eq i64 %set.up, %sets
  %set.next = select i1 %set.last, i64 0, i64 %set.up
  %sum = or i32 %bad, %status
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %reps
  br i1 %more, label %loop, label %done
done:
  %r1 = call i32 %clock(i32 %clock.id, ptr %t)
  store i64 %set.next, ptr %turn
  %s1 = load i64, ptr %t
  %n1 = load i64, ptr %n.at
  %s = sub i64 %s1, %s0
  %ns = mul i64 %s, 1000000000
  %n = sub i64 %n1, %n0
  %total = add i64 %ns, %n
  %ok = icmp eq i32 %sum, 0
  %result = select i1 %ok, i64 %total, i64 -9223372036854775808
  ret i64 %result
}

define internal void @autosched_canary_task(ptr %args, i64 %task, i64 %thread) {
entry:
  %first = mul i64 %task, 1024
  %in.all = load ptr, ptr %args
  %out.at = getelementptr ptr, ptr %args, i64 1
  %out.all = load ptr, ptr %out.at
  %in = getelementptr float, ptr %in.all, i64 %first
  %out = getelementptr float, ptr %out.all, i64 %first
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %at = and i64 %i, 1023
  %src = getelementptr float, ptr %in, i64 %at
  %x = load float, ptr %src
  %y = fadd float %x, %x
  %dst = getelementptr float, ptr %out, i64 %at
  store float %y, ptr %dst
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, 8192
  br i1 %more, label %loop, label %done
done:
  ret void
}

define i32 @autosched_canary(ptr %args, ptr %ws, i64 %threads) {
  call void @autosched_run(ptr @autosched_canary_task, ptr %args, i64 %threads, i64 %threads)
  ret i32 0
}
"""

Clock = Callable[[int], float]  # number of calls -> seconds of all calls


def calibrate(run: Clock, sample_s: float) -> tuple[int, float]:
    """Return how many calls make a sample of at least `sample_s` seconds, and the seconds of a call. The calls warm the
    kernel up as well.
    """
    reps = 1
    while True:
        seconds = run(reps)
        if seconds >= sample_s:
            return reps, seconds / reps
        estimated = math.ceil(1.2 * reps * sample_s / max(seconds, 1e-9))
        reps = min(
            max(estimated, reps + 1), 16 * reps
        )  # limits the effect of a first call with an implausibly short time


def python_clock(run: Callable[[], object], now: Callable[[], float] = time.perf_counter) -> Clock:
    """Return the clock of a Python function."""

    def clock(reps: int) -> float:
        start = now()
        for _ in range(reps):
            run()
        return now() - start

    return clock


def interleaved(clocks: Mapping[str, Clock], rounds: int, sample_s: float) -> dict[str, list[float]]:
    """Return the seconds of a call of each clock, one sample of at least `sample_s` in each round, in alternating
    order.
    """
    reps = {name: calibrate(clock, sample_s)[0] for name, clock in clocks.items()}
    samples: dict[str, list[float]] = {name: [] for name in clocks}
    order = list(clocks)
    for _ in range(rounds):
        for name in order:
            samples[name].append(clocks[name](reps[name]) / reps[name])
        order.reverse()
    return samples


def fastest_sample(run: Clock, reps: int, total_s: float) -> float:
    """Return the seconds of a call in the fastest of several samples of `reps` calls.

    The samples take `total_s` together; there are at most MAX_SAMPLES. Other programs only make samples slower, and
    seldom all of many short ones.
    """
    fastest, spent = math.inf, 0.0
    for _ in range(MAX_SAMPLES):
        seconds = run(reps)
        fastest, spent = min(fastest, seconds), spent + seconds
        if spent >= total_s:
            break
    return fastest / reps


class Witness:
    """Detects other programs on the core by the time of a known kernel."""

    def __init__(self, run: Clock) -> None:
        self._run = run
        self._reps, _ = calibrate(run, WITNESS_S)
        self._fastest = math.inf

    def is_quiet(self) -> bool:
        """Return whether one of two runs is undisturbed: in the first one threads may just have been woken."""
        return self._looks_quiet() or self._looks_quiet()

    def _looks_quiet(self) -> bool:
        seconds = self._run(self._reps)
        self._fastest = min(self._fastest, seconds)
        return seconds <= WITNESS_SLOWER * self._fastest


def take_samples(
    run: Clock, floor_s: float, best_s: float | None, witness: Witness | None = None
) -> tuple[tuple[float, ...], bool]:
    """Return the seconds of a call for each sample, and whether sampling stopped early.

    Samples are taken for `floor_s` seconds and MIN_SAMPLES at least, at most MAX_SAMPLES; fewer of long calls, and
    fewer of a candidate that has LOST against `best_s`, the fastest sample of any candidate. Of short calls only
    samples between two quiet moments of `witness` count for that: on a shared core equal candidates are slow and fast
    in turn.
    """
    if best_s is None or best_s >= LONG_CALL_S:
        witness = None
    before = witness is None or witness.is_quiet()
    reps, first = calibrate(run, SAMPLE_S)
    samples = [first] if reps > 1 or first >= COUNTED_CALL_S else []  # several calls were warmed up by calibration
    quiet = witness is None or witness.is_quiet()
    telling = len(samples) if before and quiet else 0
    while not (lost := _has_lost(samples, telling, best_s)) and not _are_enough(samples, reps, floor_s):
        samples.append(run(reps) / reps)
        before, quiet = quiet, witness is None or witness.is_quiet()
        telling += before and quiet
    return tuple(samples), lost


def _has_lost(samples: Sequence[float], telling: int, best_s: float | None) -> bool:
    """Return whether the fastest sample is too slow after so many `telling` samples."""
    if best_s is None or not samples:
        return False
    limits = LONG_LOST if best_s >= LONG_CALL_S else LOST
    times = min(samples) / best_s
    return times > limits.get(telling, math.inf) or times > DISTURBED * limits.get(len(samples), math.inf)


def _are_enough(samples: Sequence[float], reps: int, floor_s: float) -> bool:
    fastest = min(samples, default=0.0)
    least = next((n for call_s, n in FEWER_SAMPLES.items() if fastest >= call_s), MIN_SAMPLES)
    return len(samples) >= least and (len(samples) == MAX_SAMPLES or sum(samples) * reps >= floor_s)
