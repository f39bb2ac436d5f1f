"""Runner of kernels for processors: it loads a kernel, checks it and times it. Only workers import this."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from autosched.codegen.source import KernelSource
from autosched.measure import timing
from autosched.measure.argument_sets import ArgumentSets, CopyMemory
from autosched.measure.buffers import GuardedBuffer
from autosched.measure.check import CandidateError, CheckedKernel, DataSet, Packing, check, launch, load_data_sets
from autosched.measure.protocol import Done, Failed, Hold, LoadData, Message, Setup, source_as
from autosched.measure.results import impossible_time
from autosched.measure.slots import Slots
from autosched.runtime.jit import LoadedKernel, load_library, load_object
from autosched.runtime.tensors import address_of, aligned_empty
from autosched.target import Target
from autosched.target.far_weights import NEAR, passing_bytes

_TIMER = ctypes.CFUNCTYPE(
    ctypes.c_int64,
    *(ctypes.c_void_p, ctypes.c_int),  # the clock
    *(ctypes.c_void_p,) * 4,  # kernel, arguments, turn, workspace
    *(ctypes.c_int64,) * 2,  # threads, calls
)


class Timer:
    """The compiled timing loop, and the canary that came with it."""

    def __init__(self, target: Target) -> None:
        names = (timing.TIME_ENTRY, timing.CANARY_ENTRY)
        self._library, addresses = load_library(timing.HELPER_IR, target, names)
        self._run = _TIMER(addresses[timing.TIME_ENTRY])
        self._now = ctypes.cast(ctypes.CDLL(None).clock_gettime, ctypes.c_void_p).value or 0
        self.canary = addresses[timing.CANARY_ENTRY]

    def clock(self, address: int, sets: ArgumentSets, workspace: int, threads: int) -> timing.Clock:
        """Return the clock of the kernel at `address`, whose calls take the argument sets in turn."""

        def run(reps: int) -> float:
            clock = (self._now, time.CLOCK_MONOTONIC)
            nanoseconds: int = self._run(*clock, address, sets.args, sets.turn, workspace, threads, reps)
            if nanoseconds == timing.BAD_STATUS:
                raise CandidateError("crash", "the kernel returned a status other than 0 in the timing loop")
            if nanoseconds < 0:  # the clock went back; 0 is a single call by a coarse clock
                raise CandidateError(*impossible_time(nanoseconds * 1e-9 / reps))
            return nanoseconds * 1e-9

        return run


@dataclass
class HeldKernel:
    """A checked kernel; `reps` calls fill a short sample of the interleaved comparison, 0 when not yet known."""

    loaded: LoadedKernel
    prepare: LoadedKernel | None
    kernel: CheckedKernel
    reps: int = 0


class CanaryKernel:
    """The canary, with arrays for `threads` threads."""

    def __init__(self, timer: Timer, threads: int) -> None:
        self._input = aligned_empty((threads * timing.CANARY_ELEMENTS,), "float32")
        self._input[:] = np.arange(len(self._input))
        self._result = aligned_empty(self._input.shape, "float32")
        sets = ArgumentSets((address_of(self._input), address_of(self._result)), None, 0)
        self.clock = timer.clock(timer.canary, sets, 0, threads)

    @cached_property
    def witness(self) -> timing.Witness:
        """The witness of disturbances on all cores that the threads run on."""
        self.clock(1)  # starts the threads
        return timing.Witness(self.clock)

    def forget(self) -> None:
        """Overwrite the result."""
        self._result[:] = np.nan

    def is_right(self) -> bool:
        return np.array_equal(self._result, 2 * self._input)


class Runner(Slots[HeldKernel]):
    """State of a running worker: the compiled timing loop, the data sets, the kernels held by slot."""

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self._out_of_memory = f"no memory under the worker's limit of {setup.memory_limit >> 20} MB"
        self._target = setup.target
        self._timer = Timer(setup.target)
        self._weights_in = NEAR
        self._copies = CopyMemory()
        self._data: list[DataSet] = []
        self._canaries: dict[int, CanaryKernel] = {}  # by threads

    def _load(self, message: LoadData) -> None:
        self._data = []  # frees memory before more is allocated
        self._data = load_data_sets(Path(message.directory), message.inputs, message.outputs)
        self._weights_in = message.weights_in

    def _carry_out(self, message: Message) -> Message:
        return self._hold(message) if isinstance(message, Hold) else super()._carry_out(message)

    def _hold(self, message: Hold) -> Message:
        self._release(message.slot)  # frees its scratch before more is allocated
        source = source_as(KernelSource, message)
        try:
            code = Path(message.object_path).read_bytes()
            loaded = load_object(code, source.name, source.threads)
            prepare = None if source.prepare is None else load_object(code, source.prepare, source.threads)
        except (RuntimeError, ValueError) as error:  # a symbol that nothing defines
            return Failed(message.id, "build_error", " ".join(str(error).split())[:2000])
        packing = None if prepare is None else Packing(prepare.function, GuardedBuffer(source.packed_bytes))
        kernel = CheckedKernel(
            loaded.function, source.threads, GuardedBuffer(source.workspace_bytes), packing, source.winograd
        )
        check(kernel, self._data)
        self._held[message.slot] = HeldKernel(loaded, prepare, kernel)
        return Done(message.id)

    def _launch_again(self, held: HeldKernel) -> None:
        launch(held.kernel, self._data[0])

    def _poisoned(self, held: HeldKernel) -> Callable[[], None]:
        self._data[0].poison_outputs()
        return partial(self._data[0].examine, held.kernel)

    def _clock(self, held: HeldKernel) -> Callable[[int], float]:
        kernel = held.kernel
        bytes_between_calls = passing_bytes(self._weights_in, self._target, kernel.threads)
        sets = self._data[0].sets(kernel.packing, bytes_between_calls, self._copies)
        return self._timer.clock(held.loaded.address, sets, kernel.workspace.address, kernel.threads)

    def _witness(self, held: HeldKernel) -> timing.Witness:
        return self._canary_of(held.kernel.threads).witness

    def _canary(self) -> tuple[float, ...]:
        canary = self._canary_of(1)
        canary.forget()
        samples, _ = timing.take_samples(canary.clock, 0.0, None)
        if not canary.is_right():
            raise CandidateError("wrong_result", "the canary kernel's result is wrong")
        return samples

    def _canary_of(self, threads: int) -> CanaryKernel:
        if threads not in self._canaries:
            self._canaries[threads] = CanaryKernel(self._timer, threads)
        return self._canaries[threads]
