"""Kernels that a runner holds by slot, and their timing, on processors and GPUs alike."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from autosched.measure import timing
from autosched.measure.check import CandidateError
from autosched.measure.protocol import (
    Canary,
    Done,
    Drop,
    Failed,
    LoadData,
    Measure,
    Message,
    ProtocolError,
    Sample,
    Samples,
)


class Timed(Protocol):
    """A checked kernel; `reps` calls fill a short sample of the interleaved comparison, 0 when not yet known."""

    reps: int


K = TypeVar("K", bound=Timed)


class Slots(ABC, Generic[K]):
    """State of a runner, and how it handles requests."""

    _out_of_memory = "no memory on the host"

    def __init__(self) -> None:
        self._held: dict[int, K] = {}

    def handle(self, message: Message) -> Message:
        """Handle one request. A candidate's faults become replies; any other exception ends the worker."""
        try:
            return self._carry_out(message)
        except CandidateError as fault:
            return Failed(message.id, fault.fault, str(fault))
        except MemoryError as error:
            return Failed(message.id, "out_of_memory", f"{self._out_of_memory}: {error}"[:500])

    def _carry_out(self, message: Message) -> Message:
        match message:
            case LoadData():
                self._release_all()
                self._load(message)
            case Measure():
                return self._measure(message)
            case Sample():
                return self._sample(message)
            case Drop():
                self._release_all()
            case Canary():
                return Samples(message.id, self._canary(), False, 0.0)
            case _:
                raise ProtocolError(f"a runner got {type(message).__name__}")
        return Done(message.id)

    @abstractmethod
    def _load(self, message: LoadData) -> None:
        """Read a problem's data sets, which replace the earlier ones; no kernel is held."""

    @abstractmethod
    def _canary(self) -> tuple[float, ...]:
        """Check and time the canary kernel; return the seconds of a call for each sample."""

    def _release(self, slot: int) -> None:
        self._held.pop(slot, None)

    def _release_all(self) -> None:
        for slot in list(self._held):
            self._release(slot)

    @abstractmethod
    def _clock(self, held: K) -> Callable[[int], float]:
        """Return the clock of a kernel: from a number of calls to their seconds."""

    @abstractmethod
    def _launch_again(self, held: K) -> None:
        """Launch once more, checked, with poisoned outputs and the last scratch. Raises CandidateError."""

    def _witness(self, held: K) -> timing.Witness | None:
        """Return the witness of disturbances by other programs; None if the device is not shared."""
        return None

    def _poisoned(self, held: K) -> Callable[[], None] | None:
        """Poison the outputs and return the function that checks them after a single call of the timing loop, which
        then counts as a checked launch; None if it cannot.
        """
        return None

    def _measure(self, message: Measure) -> Message:
        held = self._slot(message.slot)
        run = _Counted(self._clock(held))
        examine = self._poisoned(held)
        samples, early = timing.take_samples(run, message.floor_s, message.best_s, self._witness(held))
        return Samples(message.id, samples, early, self._check_again(held, run, examine))

    def _sample(self, message: Sample) -> Message:
        held = self._slot(message.slot)
        run = _Counted(self._clock(held))
        examine = self._poisoned(held)
        sample = first = run(1)  # warms the caches up, as other kernels ran since
        if first < timing.LONG_CALL_S:
            if held.reps == 0:
                held.reps, _ = timing.calibrate(run, min(timing.SAMPLE_S, message.sample_s))
            sample = timing.fastest_sample(run, held.reps, message.sample_s)
            if held.reps == 1:  # the first call is a sample too
                sample = min(sample, first)
        return Samples(message.id, (sample,), False, self._check_again(held, run, examine))

    def _slot(self, slot: int) -> K:
        if slot not in self._held:
            raise ProtocolError(f"slot {slot} is empty")
        return self._held[slot]

    def _check_again(self, held: K, run: _Counted, examine: Callable[[], None] | None) -> float:
        """Check one more launch after timing, or the result of a single long call; return the seconds it took."""
        start = time.monotonic()
        try:
            if examine is not None and run.calls == 1:
                examine()
            else:
                self._launch_again(held)
        except CandidateError as fault:
            if fault.fault == "wrong_result":
                raise CandidateError("unstable_result", f"correct before timing, then: {fault}") from None
            raise
        return time.monotonic() - start


class _Counted:
    """A clock that counts the calls it has timed."""

    def __init__(self, run: timing.Clock) -> None:
        self._run = run
        self.calls = 0

    def __call__(self, reps: int) -> float:
        self.calls += reps
        return self._run(reps)
