"""Jobs, results and fault classes of measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autosched.codegen import Source


@dataclass(frozen=True)
class Fault:
    """A class of failure. `respawn`: the worker is not trusted any more and is replaced before the next candidate.

    `tried_again`: the failure is not the candidate's, so that a resumed search measures it again. `repeated`: the
    measurer measures it again at once, before it answers.
    """

    meaning: str
    action: str
    respawn: bool
    tried_again: bool = False
    repeated: bool = False


# Each candidate without a time has exactly one of these classes; none of them stops a search.
FAULTS: dict[str, Fault] = {
    "build_error": Fault(
        "the compiler rejected the IR text or the C, or died on it (the message has its last words)",
        "recorded as a bug of code generation, which may have been mended when a search resumes",
        True,
        tried_again=True,
    ),
    "build_timeout": Fault(
        "the compiler was still busy at the build deadline and was killed",
        "recorded; the cost model learns it as slow",
        True,
    ),
    "spills": Fault(
        "the compiler of a device ran out of registers and moved some to memory",
        "recorded without being timed; the cost model learns it as slow",
        False,
    ),
    "serialised": Fault(
        "the assembler of a device makes products of matrices wait for one another, or does not move registers to them",
        "recorded without being timed; the cost model learns it as slow",
        False,
    ),
    "crash": Fault(
        "the worker died of a signal, left by itself, or the kernel returned a status other than 0",
        "worker replaced, canary run, candidate recorded; counts as a bug of code generation",
        True,
    ),
    "hang": Fault(
        "no answer at the run deadline; the worker's process group was killed",
        "worker replaced, canary run, candidate recorded and not tried again",
        True,
    ),
    "killed": Fault(
        "the worker was killed or stopped from outside: by somebody, or by the system for lack of memory",
        "built or measured once more in a new worker, and recorded only if that one is killed too",
        True,
        tried_again=True,
        repeated=True,
    ),
    "impossible_time": Fault(
        "the clock says less than any kernel of this workload takes on this machine, or nothing, or less than that",
        "measured once more in a new worker; recorded without a time if it stays so, never a result",
        True,
        tried_again=True,
        repeated=True,
    ),
    "out_of_memory": Fault(
        "buffers or scratch do not fit under the worker's memory limit or into the device's memory",
        "recorded with the sizes; the worker goes on, because nothing was launched",
        False,
    ),
    "wrong_result": Fault(
        "an output differs from the reference by more than its bound, or was not written",
        "recorded as a bug of code generation, never a result",
        False,
    ),
    "clobbered_input": Fault("the kernel changed one of its inputs", "recorded as a bug; inputs are restored", False),
    "out_of_bounds": Fault(
        "bytes next to an input, an output or the scratch were written",
        "recorded as a bug; worker replaced, because other memory may be damaged too",
        True,
    ),
    "unstable_result": Fault(
        "correct at first, wrong after the timing loop: a race, or state kept between calls",
        "recorded as a bug, never a result",
        False,
    ),
    "launch_refused": Fault(
        "the device does not take the launch: threads, registers, shared bytes or grid beyond its limits",
        "recorded as a bug of the search space's limits; the worker goes on, because nothing was launched",
        False,
    ),
    "illegal_address": Fault(
        "the kernel touched device memory that is not its own",
        "the context is lost: worker replaced, canary run, recorded as a bug of code generation",
        True,
    ),
    "misaligned_address": Fault(
        "the kernel made a vector access at an address that is no multiple of the vector's size",
        "the context is lost: worker replaced, canary run, recorded as a bug of code generation",
        True,
    ),
    "launch_failure": Fault(
        "the kernel ended in another fault of the device: an illegal instruction, a stack overflow, an assertion",
        "the context is lost: worker replaced, canary run, candidate recorded",
        True,
    ),
    "device_lost": Fault(
        "the device does not answer, has an uncorrectable memory error, or cannot be opened any more",
        "worker replaced; where the canary fails again and again, the search ends, and what it recorded stays",
        True,
    ),
    "protocol": Fault(
        "the worker's answer was malformed, too long, of another request, or held impossible times",
        "answer thrown away, worker replaced, candidate recorded",
        True,
    ),
}


@dataclass(frozen=True)
class Job:
    """A candidate to measure; `key` names it in all answers and must be unique within a `Measurer`."""

    key: str
    source: Source


@dataclass(frozen=True)
class Measurement:
    """A verified candidate's time. `seconds` is the median of `samples`, each the mean seconds of one call.

    `early_stopped`: it had lost against the best known after a few samples (`measure.timing.LOST`).
    """

    key: str
    seconds: float
    samples: tuple[float, ...]
    early_stopped: bool = False


@dataclass(frozen=True)
class Failure:
    """A candidate without a time; `kind` is a key of FAULTS."""

    key: str
    kind: str
    message: str


@dataclass(frozen=True)
class FinalMeasurement:
    """A candidate's time from an interleaved comparison: median, and an interval for the median."""

    key: str
    seconds: float
    ci: tuple[float, float]
    samples: tuple[float, ...] = ()


def impossible_time(seconds: float) -> tuple[str, str]:
    """Return the fault class and message of a time shorter than a kernel can take."""
    return "impossible_time", f"by the clock a call took {seconds:.3g} s, less than any kernel can take here"


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return the interval [x_(k), x_(n+1-k)] of order statistics that holds the median with at least `confidence`.

    Distribution-free: P(x_(k) <= median <= x_(n+1-k)) >= 1 - 2 P(Binomial(n, 1/2) < k) (David and Nagaraja, Order
    Statistics, 3rd ed., section 7.1). Below 6 samples no such interval reaches 95 %; then it is [min, max].
    """
    ordered = sorted(samples)
    n, k, tail = len(ordered), 0, 0.0
    while k < n // 2:
        tail += math.comb(n, k) / 2.0**n
        if 2 * tail > 1 - confidence:
            break
        k += 1
    k = max(k, 1)
    return ordered[k - 1], ordered[n - k]
