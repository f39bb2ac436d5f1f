"""Model with dynamic shapes: one program for all sizes for which its guards hold, or one for each choice of sizes.

A program for certain sizes takes its schedules from the existing programs (schedule transfer), which makes compilation
quick, and shares their weights where they are equal. Sizes that are called often get one in the background: constants
in place of numbers of tables make it up to 1.9 times as fast, but for many sizes no faster, so both are measured.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, product
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias

from autosched.errors import GraphError, NoValidCandidate, RefusedNodes, SizesWarning, UsageError
from autosched.executor.composite_model import CompositeModel
from autosched.executor.hot_swap import improve_later
from autosched.executor.model import Model
from autosched.graph.graph import Array, Graph
from autosched.kernel.device import Device
from autosched.kernel.pool import idle_builds
from autosched.kernel.transfer import NearestSchedules
from autosched.kernel.trust import warn_user
from autosched.measure.timing import Clock, interleaved, python_clock
from autosched.planning.extract_tasks import NetworkTask
from autosched.runtime.spec import ArraySpec, in_order
from autosched.runtime.tensors import are_equal, as_input

if TYPE_CHECKING:
    from autosched.executor.gpu_model import GpuModel
    from autosched.executor.sized_network import SizedCall, SizedNetwork

MAX_PROGRAMS = 16  # for certain sizes
MAX_NETWORKS = 8  # for all sizes for which their guards hold
MAX_CALLS = 256  # choices of sizes of such networks on processors; on GPUs each has an arena, as a program has
# Calls with the same sizes after which these are compiled for in the background. The length of a cache, say, grows with
# each call, so that none of its sizes comes so often; sizes that do will come again.
OFTEN = 64
FASTER = 0.97  # of the time of a call, at most, for a program to be used: a smaller gain is within the noise
ROUNDS, SAMPLE_S = 9, 1e-3  # of the measurement of both
ANY_SIZE = range(1 << 31)
Key: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Dimension:
    """A dynamic dimension: first used as axis `axis` of input `input`. `sizes`: the allowed ones."""

    name: str
    input: int
    axis: int
    sizes: range = ANY_SIZE


@dataclass(eq=False, repr=False)
class VaryingModel(CompositeModel):
    """A network as a function of arrays of any sizes: `model(x)`, `model(x, out=y)`.

    `inputs`: the arrays, with -1 for sizes that vary. `compile` returns the program for sizes by name, with schedules
    transferred from other programs. `trace` returns the network for all sizes that pass the guards of these ones;
    without it each choice of sizes has a program of its own. `improves`: whether sizes that are called often get one in
    the background.
    """

    inputs: tuple[ArraySpec, ...]
    device: Device
    dimensions: tuple[Dimension, ...]
    compile: Callable[[Mapping[str, int], NearestSchedules], Model]
    trace: Callable[[Mapping[str, int]], SizedNetwork] | None = None
    improves: bool = False
    _programs: dict[Key, Model] = field(default_factory=dict)  # most recently used last
    _calls: dict[Key, _Use] = field(default_factory=dict)  # most recently used last
    _networks: list[SizedNetwork] = field(default_factory=list)
    _last: tuple[Key, _Use] | None = None
    _jobs: list[threading.Event] = field(default_factory=list)  # the ends of background jobs
    _transfer: NearestSchedules = field(default_factory=NearestSchedules)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._names = [spec.name for spec in self.inputs]
        self._axes = [(dimension.input, dimension.axis) for dimension in self.dimensions]

    def __repr__(self) -> str:
        n, names = len(self._programs) + len(self._networks), ", ".join(self._names)
        return f"<network of {names}, for any {self._varying_names}; {n} program{'s' if n != 1 else ''}>"

    def __reduce__(self) -> NoReturn:
        raise UsageError("a network is machine code of this process, which can be neither copied nor pickled: load it")

    def __call__(self, *arrays: Any, out: object = None, **named: object) -> Any:
        if named or len(arrays) != len(self._names):
            arrays = in_order(self._names, arrays, named)
        try:
            key = tuple([arrays[input].shape[axis] for input, axis in self._axes])
        except (AttributeError, IndexError) as error:
            raise self._shape_error(arrays) from error
        last = self._last
        run, calls = last[1] if last is not None and last[0] == key else self._use(key)
        results = run(*arrays, out=out)
        if calls is not None and next(calls) == OFTEN:
            self._improve(key, run, arrays)
        return results

    @property
    def _varying_names(self) -> str:
        return ", ".join(dimension.name for dimension in self.dimensions)

    def _refuse(self) -> NoReturn:
        sizes = ", ".join(f'"{dimension.name}": N' for dimension in self.dimensions)
        raise UsageError(
            f"the network varies in {self._varying_names}, and this needs a program for certain sizes: "
            f"model.of(**{{{sizes}}}) is one, and so is autosched.load(path, sizes={{{sizes}}})"
        )

    @property
    def outputs(self) -> tuple[ArraySpec, ...]:  # type: ignore[override]
        self._refuse()

    @property
    def compiled_parts(self) -> tuple[Model, ...]:
        self._refuse()

    @property
    def sizes(self) -> tuple[dict[str, int], ...]:
        """The sizes that were called or compiled, by name, those of programs of their own first."""
        return tuple(self._by_name(key) for key in [*self._programs, *self._calls])

    def of(self, **sizes: int) -> Model:
        """Return the program for certain sizes by name, and compile it if there is none: calls with these sizes use it
        from then on. Raises UsageError for a size that is missing, unknown or not allowed."""
        names = [dimension.name for dimension in self.dimensions]
        if set(sizes) != set(names):
            raise UsageError(f"the network varies in {self._varying_names}, got sizes of {', '.join(sizes) or 'none'}")
        return self._program(tuple(int(sizes[name]) for name in names))

    def prepare(self, sizes: Mapping[str, Sequence[int]]) -> None:
        """Compile the programs of all combinations of sizes, at most MAX_PROGRAMS. Raises UsageError."""
        names = [dimension.name for dimension in self.dimensions]
        if lacking := [name for name in names if sizes and name not in sizes]:
            raise UsageError(f"programs are made ahead for sizes of all of {', '.join(names)}: {lacking[0]} has none")
        combined = [dict(zip(sizes, each, strict=True)) for each in product(*sizes.values())] if sizes else []
        if len(combined) > MAX_PROGRAMS:
            raise UsageError(
                f"{len(combined)} combinations of sizes are asked for, and {MAX_PROGRAMS} programs are kept"
            )
        for each in combined:
            self.of(**each)

    def _shape_error(self, arrays: Sequence[object]) -> UsageError:
        """Return an error that names the argument that is no array or has too few dimensions."""
        for dimension in self.dimensions:
            name, array = self._names[dimension.input], arrays[dimension.input]
            shape = getattr(array, "shape", None)
            if shape is None:
                kind = f"{type(array).__module__}.{type(array).__qualname__}"
                return UsageError(f"{name} must be an array, but got a {kind}; convert it with np.asarray")
            if len(shape) <= dimension.axis:
                where = f"dimension {dimension.axis} of it is {dimension.name}"
                return UsageError(f"{name} has the shape {list(shape)}, and {where}")
        raise AssertionError("all arrays have the dimensions that vary")

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until sizes that were called often have programs of their own, `seconds` at most, and return whether
        that has ended."""
        end = math.inf if seconds is None else time.monotonic() + seconds
        return all(job.wait(None if seconds is None else max(end - time.monotonic(), 0.0)) for job in [*self._jobs])

    def _use(self, key: Key) -> _Use:
        """Return the program for these sizes, or the one for all sizes with their numbers."""
        with self._lock:
            if key not in self._programs and (use := self._calls.pop(key, None) or self._sized(key)) is not None:
                self._calls[key] = use
                self._last = key, use
                while len(self._calls) > (MAX_PROGRAMS if self.device.target.backend.is_gpu else MAX_CALLS):
                    del self._calls[next(iter(self._calls))]
                return use
        return _Use(self._program(key))

    def _improve(self, key: Key, call: Model | SizedCall, arrays: Sequence[object]) -> None:
        """Compile a program for these sizes in the background, which is used if it is faster on copies of `arrays`."""
        on_host = arrays
        if self.device.target.backend.is_gpu:
            from autosched.runtime.gpu.arrays import to_device

            on_host = [to_device(array, device="cpu") for array in arrays]
        copies = [as_input(spec, array).copy() for spec, array in zip(call.inputs, on_host, strict=True)]
        self._jobs = [job for job in self._jobs if not job.is_set()] + [threading.Event()]
        improve_later(self, partial(_improve, key=key, call=call, arrays=copies), self._jobs[-1])

    def _sized(self, key: Key) -> _Use | None:
        """Return the network for these sizes; None where it is to have a program of its own for them."""
        self._check(key)
        sizes = self._by_name(key)
        try:
            for network in self._networks:
                if (call := network.at(sizes)) is not None:
                    return _Use(call, count(1) if self.improves else None)
            if self.trace is None or len(self._networks) == MAX_NETWORKS:
                return None
            network = self.trace(sizes)
            network.share_weights(self._networks)
            call = network.at(sizes)
        except (GraphError, NoValidCandidate) as error:  # the program of these sizes says what is wrong with them
            self.trace = None if isinstance(error, RefusedNodes) else self.trace
            return None
        except Exception as error:  # a bug of tracing: the network is right with a program for each choice of sizes
            text = f"one program for all sizes could not be made, and each choice has a program of its own: {error}"
            warn_user(text, SizesWarning)
            self.trace = None
            return None
        assert call is not None, "a guard does not hold for the sizes that it was made for"
        self._networks.append(network)
        self._add_schedules(network.program.tasks)
        return _Use(call, count(1) if self.improves else None)

    def _check(self, key: Key) -> None:
        """Raise UsageError for a size that is not allowed."""
        for dimension, size in zip(self.dimensions, key, strict=True):
            if size not in dimension.sizes:
                allowed = f"{dimension.sizes.start} to {dimension.sizes.stop - 1}"
                allowed += f" in steps of {dimension.sizes.step}" if dimension.sizes.step > 1 else ""
                raise UsageError(f"{dimension.name} is {size}, and may be {allowed}")

    def _program(self, key: Key) -> Model:
        with self._lock:
            model = self._programs.pop(key, None) or self._compile(key)
            self._programs[key] = model
            self._last = key, _Use(model)
            while len(self._programs) > MAX_PROGRAMS:
                del self._programs[next(iter(self._programs))]
        return model

    def _compile(self, key: Key) -> Model:
        self._check(key)
        model = self.compile(self._by_name(key), self._transfer)
        self._add_schedules(model.tasks)
        return self._share_weights(model)

    def _share_weights(self, model: Model) -> Model:
        others: list[Model | SizedNetwork] = [*self._networks, *self._programs.values()]
        for other in others:
            model = share_weights(model, other)
        return model

    def _adopt(self, key: Key, model: Model) -> None:
        """Use a program for these sizes from the next call on."""
        with self._lock:
            if key not in self._programs and len(self._programs) < MAX_PROGRAMS:
                self._programs[key] = self._share_weights(model)
                self._calls.pop(key, None)
                self._last = None

    def _add_schedules(self, tasks: Sequence[NetworkTask]) -> None:
        self._transfer.add((task.kernel_spec.workload, task.kernel.schedule.steps) for task in tasks)

    def _by_name(self, key: Key) -> dict[str, int]:
        return {dimension.name: size for dimension, size in zip(self.dimensions, key, strict=True)}


class _Use(NamedTuple):
    """What runs for certain sizes. `calls` counts the calls of what may be replaced by a program for these sizes."""

    run: Model | SizedCall | GpuModel
    calls: count[int] | None = None


def _improve(reference: weakref.ref[VaryingModel], key: Key, call: Model | SizedCall, arrays: Sequence[Array]) -> None:
    """Compile a program for the sizes of `key`, and use it if it is faster than `call` on the arrays.

    The analytic model cannot compare them: it knows nothing of tables. The fastest samples are compared, as calls of
    the network in use disturb both.
    """
    if (varying := reference()) is None or key in varying._programs or len(varying._programs) >= MAX_PROGRAMS:
        return
    with varying._lock:
        sizes, known = varying._by_name(key), deepcopy(varying._transfer)
    compile_for = varying.compile
    del varying
    with idle_builds(lambda: reference() is not None):
        model = compile_for(sizes, known)
    clocks = {name: _clock(run, arrays) for name, run in (("own", model), ("all", call))}
    samples = interleaved(clocks, ROUNDS, SAMPLE_S)
    is_faster = min(samples["own"]) <= FASTER * min(samples["all"])
    if is_faster and (varying := reference()) is not None:
        varying._adopt(key, model)


def _clock(run: Model | SizedCall, arrays: Sequence[Array]) -> Clock:
    """Return the clock of a call, on a GPU the device's: calls return before it has run them."""
    if isinstance(run, Model) and run.device.target.backend.is_gpu:
        return run.clocks({spec.name: array for spec, array in zip(run.inputs, arrays, strict=True)}).call
    return python_clock(partial(run, *arrays))


def share_weights(model: Model, other: Model | SizedNetwork) -> Model:
    """Return the model with those constants and packed weights of another network that are equal, to save memory.

    Models in parts keep their own.
    """
    if model.compiled_parts != (model,) or (isinstance(other, Model) and other.compiled_parts != (other,)):
        return model
    original = _with_constants(model.original, other.original)
    program = replace(model.program, graph=_with_constants(model.program.graph, other.program.graph))
    return model.with_shared_weights(original, program, other)


def _with_constants(graph: Graph, other: Graph) -> Graph:
    shared = other.constants
    constants = {n: shared[n] if n in shared and are_equal(a, shared[n]) else a for n, a in graph.constants.items()}
    return replace(graph, constants=constants)
