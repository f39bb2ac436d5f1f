"""Kernels that a running worker holds by slot, and what is timed of them, on a processor and on a GPU alike."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from autosched.measure import timing
from autosched.measure.check import CandidateError
from autosched.measure.protocol import Measure, Message, ProtocolError, Sample, Samples


class Timed(Protocol):
    """A checked kernel; `reps` calls fill a short sample of the interleaved comparison, 0 when not yet known."""

    reps: int


K = TypeVar("K", bound=Timed)


class Slots(ABC, Generic[K]):
    def __init__(self) -> None:
        self._held: dict[int, K] = {}

    @abstractmethod
    def _clock(self, held: K) -> Callable[[int], float]:
        """Seconds of so many calls in a row."""

    @abstractmethod
    def _launch_again(self, held: K) -> None:
        """One checked launch, outputs poisoned, scratch as the timing loop left it. Raises CandidateError."""

    def _measure(self, message: Measure) -> Message:
        held = self._slot(message.slot)
        samples, early = timing.take_samples(self._clock(held), message.floor_s, message.best_s)
        return Samples(message.id, samples, early, self._check_again(held))

    def _sample(self, message: Sample) -> Message:
        held = self._slot(message.slot)
        run = self._clock(held)
        sample = run(1)  # other kernels ran since
        if sample < timing.LONG_CALL_S:
            if held.reps == 0:
                held.reps, _ = timing.calibrate(run, min(timing.SAMPLE_S, message.sample_s))
            sample = timing.undisturbed(run, held.reps, message.sample_s)
        return Samples(message.id, (sample,), False, self._check_again(held))

    def _slot(self, slot: int) -> K:
        if slot not in self._held:
            raise ProtocolError(f"slot {slot} is empty")
        return self._held[slot]

    def _check_again(self, held: K) -> float:
        """Seconds of one more launch after the timing loop."""
        start = time.monotonic()
        try:
            self._launch_again(held)
        except CandidateError as fault:
            if fault.fault == "wrong_result":
                raise CandidateError("unstable_result", f"correct before timing, then: {fault}") from None
            raise
        return time.monotonic() - start
