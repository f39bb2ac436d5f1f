"""The timing loop: compiled code calls the kernel and reads the clock, Python only chooses how many calls.

The helper's IR is compiled once in each worker, together with the canary: a kernel known to be good, which shows that a
fresh worker compiles, runs and tells the time before a candidate is charged with anything.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

# A sample is as many calls as fill this, so that reading the clock (about 50 ns) vanishes. Short, because the fastest
# counts: more of the short ones are not disturbed. Replayed on ten sessions beside other processes, half a millisecond
# found the times of good candidates to 2.1 %, a whole one with the limits it had to 3.5 %.
SAMPLE_S = 5e-4
MIN_SAMPLES, MAX_SAMPLES = 5, 50
FEWER_SAMPLES = {0.5: 2, 0.05: 3}  # of calls that take so many seconds: they need no averaging
# A call so long is a sample from the first one on, though caches that others have used are filled in it: the fastest
# counts, and a call more of each loser is a tenth of what timing takes.
COUNTED_CALL_S = 1e-3
LONG_CALL_S = 0.02  # filling caches is a small part of a call this long
# After so many undisturbed samples a candidate whose fastest is so many times the fastest known has lost, and no more
# are taken. The fastest, because what disturbs a sample makes it slower; samples are about SAMPLE_S long. What lost by
# a hair may still win the final comparison.
LOST = {2: 1.3, 4: 1.08, 7: 1.02, 10: 1.0}
LONG_LOST = {1: 1.3, 2: 1.1, 4: 1.03}  # where the fastest is a long call: short disturbances are a small part of it
CANARY_ELEMENTS = 1024  # of each thread, eight times
# Another thread of the same core makes the canary, which keeps the pipes of loads and stores busy, take 1.4 to 2 times
# as long, and kernels 1.2 to 1.6 times, for milliseconds at a time; a changing clock makes it 1.1. Where it took longer
# than this before or after a sample, four of five samples were slow, else one of six (Emerald Rapids, shared). Of 62
# and 80 candidates in random order the one found fastest was 1.10 times the best, by judging quiet samples alone 1.03.
# A kernel on several threads needs all their cores: beside other work, of the samples of three kernels on
# two threads that one core alone called quiet 0.74 to 0.88 were slow, of those that both did 0.07 of 149 and 1 of 8.
WITNESS_S, WITNESS_SLOWER = 2e-5, 1.2
DISTURBED = 2.0  # no other thread makes a sample so many times as long: samples of any moment tell what is beyond

# `timespec` is two 64-bit words on every 64-bit Unix; `clock` is clock_gettime. Nanoseconds of `reps` calls (at least
# one), or BAD_STATUS when a call returned a status other than 0. `turn` is (number of the next call's set of arguments,
# sets, pointers of a set): calls take the sets of pointers that lie at `args` by turns.
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

Clock = Callable[[int], float]  # repetitions -> seconds of all of them together


def calibrate(run: Clock, sample_s: float) -> tuple[int, float]:
    """How many calls make a sample of at least `sample_s`, and the seconds of a call when that was found; what it runs
    is the warm-up as well."""
    reps = 1
    while True:
        seconds = run(reps)
        if seconds >= sample_s:
            return reps, seconds / reps
        wanted = math.ceil(1.2 * reps * sample_s / max(seconds, 1e-9))
        reps = min(max(wanted, reps + 1), 16 * reps)  # a first call that was too fast to be true cannot mislead far


def python_clock(run: Callable[[], object], now: Callable[[], float] = time.perf_counter) -> Clock:
    """Calls from Python, one after the other."""

    def clock(reps: int) -> float:
        start = now()
        for _ in range(reps):
            run()
        return now() - start

    return clock


def interleaved(clocks: Mapping[str, Clock], rounds: int, sample_s: float) -> dict[str, list[float]]:
    """Seconds of a call of each: a sample of at least `sample_s` in each round, forwards and backwards in turn."""
    reps = {name: calibrate(clock, sample_s)[0] for name, clock in clocks.items()}
    samples: dict[str, list[float]] = {name: [] for name in clocks}
    order = list(clocks)
    for _ in range(rounds):
        for name in order:
            samples[name].append(clocks[name](reps[name]) / reps[name])
        order.reverse()
    return samples


def undisturbed(run: Clock, reps: int, total_s: float) -> float:
    """Seconds of a call: the fastest of samples of `reps` calls that take `total_s` together, at most MAX_SAMPLES.

    What else runs on the machine makes a sample slower, and seldom all of many short ones.
    """
    fastest, spent = math.inf, 0.0
    for _ in range(MAX_SAMPLES):
        seconds = run(reps)
        fastest, spent = min(fastest, seconds), spent + seconds
        if spent >= total_s:
            break
    return fastest / reps


class Witness:
    """Tells by a kernel whose time is known whether something else has a share of the core now."""

    def __init__(self, run: Clock) -> None:
        self._run = run
        self._reps, _ = calibrate(run, WITNESS_S)
        self._fastest = math.inf

    def is_quiet(self) -> bool:
        """Whether one of two looks says so: at the first one threads may just have been woken."""
        return self._looks_quiet() or self._looks_quiet()

    def _looks_quiet(self) -> bool:
        seconds = self._run(self._reps)
        self._fastest = min(self._fastest, seconds)
        return seconds <= WITNESS_SLOWER * self._fastest


def take_samples(
    run: Clock, floor_s: float, best_s: float | None, witness: Witness | None = None
) -> tuple[tuple[float, ...], bool]:
    """(seconds of a call for each sample, whether it stopped early).

    Samples until `floor_s` seconds and MIN_SAMPLES, at most MAX_SAMPLES; fewer of long calls, and fewer of a candidate
    that has LOST against `best_s`, the fastest sample of any candidate. Of short calls only samples between two moments
    that `witness` calls quiet tell that: equal candidates are slow and fast by turns where others share the core.
    """
    if best_s is None or best_s >= LONG_CALL_S:
        witness = None
    before = witness is None or witness.is_quiet()
    reps, first = calibrate(run, SAMPLE_S)
    samples = [first] if reps > 1 or first >= COUNTED_CALL_S else []  # several calls were warmed up by those before
    quiet = witness is None or witness.is_quiet()
    telling = len(samples) if before and quiet else 0
    while not (lost := _has_lost(samples, telling, best_s)) and not _are_enough(samples, reps, floor_s):
        samples.append(run(reps) / reps)
        before, quiet = quiet, witness is None or witness.is_quiet()
        telling += before and quiet
    return tuple(samples), lost


def _has_lost(samples: Sequence[float], telling: int, best_s: float | None) -> bool:
    """Whether the fastest is too slow for so many `telling` samples."""
    if best_s is None or not samples:
        return False
    limits = LONG_LOST if best_s >= LONG_CALL_S else LOST
    times = min(samples) / best_s
    return times > limits.get(telling, math.inf) or times > DISTURBED * limits.get(len(samples), math.inf)


def _are_enough(samples: Sequence[float], reps: int, floor_s: float) -> bool:
    fastest = min(samples, default=0.0)
    least = next((n for call_s, n in FEWER_SAMPLES.items() if fastest >= call_s), MIN_SAMPLES)
    return len(samples) >= least and (len(samples) == MAX_SAMPLES or sum(samples) * reps >= floor_s)
