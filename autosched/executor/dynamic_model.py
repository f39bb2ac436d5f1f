"""A network whose sizes vary: a program for each choice of them, made when it is first asked for.

A new program takes over the schedules of those that there are, which takes little time, and their weights where they
are the same. The programs that were used last are kept.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, TypeAlias

from autosched.errors import UsageError
from autosched.executor.model import Model
from autosched.graph.graph import Graph
from autosched.kernel.transfer import NearestSchedules
from autosched.runtime.spec import in_order
from autosched.runtime.tensors import are_equal

MOST = 16  # programs that are kept
ANY = range(1, 1 << 31)
Key: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Dimension:
    """One that varies: dimension `place` of input number `of` is the first that has it. `sizes`: what it may be."""

    name: str
    of: int
    place: int
    sizes: range = ANY


@dataclass
class VaryingModel:
    """A network as a function of arrays of any sizes: `model(x)`, `model(x, out=y)`.

    `inputs` are the names of its arrays, `graph_of` gives the graph for sizes by name, `compiled` its program with
    schedules that are chosen.
    """

    inputs: tuple[str, ...]
    dimensions: tuple[Dimension, ...]
    graph_of: Callable[[Mapping[str, int]], Graph]
    compiled: Callable[[Graph, NearestSchedules], Model]
    _made: dict[Key, Model] = field(default_factory=dict)  # those that were used last come last
    _last: Key | None = None
    _nearest: NearestSchedules = field(default_factory=NearestSchedules)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._places = [(dimension.of, dimension.place) for dimension in self.dimensions]

    def __repr__(self) -> str:
        names = ", ".join(dimension.name for dimension in self.dimensions)
        return f"<network of {', '.join(self.inputs)}, for any {names}; {len(self._made)} programs>"

    def __reduce__(self) -> NoReturn:
        raise UsageError("a network is machine code of this process, which can be neither copied nor pickled: load it")

    def __call__(self, *arrays: Any, out: object = None, **named: object) -> Any:
        if named or len(arrays) != len(self.inputs):
            arrays = in_order(self.inputs, arrays, named)
        try:
            key = tuple([arrays[of].shape[place] for of, place in self._places])
        except (AttributeError, IndexError) as error:
            raise self._misfit(arrays) from error
        model = self._made.get(key)
        if model is None or key != self._last:
            model = self._used(key)
        return model(*arrays, out=out)

    @property
    def sizes(self) -> tuple[dict[str, int], ...]:
        """Those for which there are programs, by name; those that were used last come last."""
        return tuple(self._named(key) for key in list(self._made))

    def of(self, **sizes: int) -> Model:
        """The program for sizes by name, which may have been made before. Raises UsageError for a size that is missing,
        unknown, or not allowed."""
        names = [dimension.name for dimension in self.dimensions]
        if set(sizes) != set(names):
            raise UsageError(f"the network varies in {', '.join(names)}, got sizes of {', '.join(sizes) or 'none'}")
        return self._used(tuple(int(sizes[name]) for name in names))

    def prepare(self, sizes: Mapping[str, Sequence[int]]) -> None:
        """Makes the programs of all combinations of sizes, at most MOST. Raises UsageError."""
        names = [dimension.name for dimension in self.dimensions]
        if lacking := [name for name in names if sizes and name not in sizes]:
            raise UsageError(f"programs are made ahead for sizes of all of {', '.join(names)}: {lacking[0]} has none")
        combined = [dict(zip(sizes, each, strict=True)) for each in itertools.product(*sizes.values())] if sizes else []
        if len(combined) > MOST:
            raise UsageError(f"{len(combined)} combinations of sizes are asked for, and {MOST} programs are kept")
        for each in combined:
            self.of(**each)

    def _misfit(self, arrays: Sequence[object]) -> UsageError:
        """Says which of the arrays is none, or has too few dimensions."""
        for dimension in self.dimensions:
            name, array = self.inputs[dimension.of], arrays[dimension.of]
            shape = getattr(array, "shape", None)
            if shape is None:
                kind = f"{type(array).__module__}.{type(array).__qualname__}"
                return UsageError(f"{name} must be an array, but got a {kind}; convert it with np.asarray")
            if len(shape) <= dimension.place:
                where = f"dimension {dimension.place} of it is {dimension.name}"
                return UsageError(f"{name} has the shape {list(shape)}, and {where}")
        raise AssertionError("all arrays have the dimensions that vary")

    def _used(self, key: Key) -> Model:
        with self._lock:
            model = self._made.pop(key, None) or self._new(key)
            self._made[key] = model
            self._last = key
            while len(self._made) > MOST:
                del self._made[next(iter(self._made))]
        return model

    def _new(self, key: Key) -> Model:
        for dimension, size in zip(self.dimensions, key, strict=True):
            if size not in dimension.sizes:
                allowed = f"{dimension.sizes.start} to {dimension.sizes.stop - 1}"
                allowed += f" in steps of {dimension.sizes.step}" if dimension.sizes.step > 1 else ""
                raise UsageError(f"{dimension.name} is {size}, and may be {allowed}")
        model = self.compiled(self.graph_of(self._named(key)), self._nearest)
        self._nearest.add((task.recipe.spec, task.kernel.steps) for task in model.tasks)
        for other in self._made.values():
            model = sharing(model, other)
        return model

    def _named(self, key: Key) -> dict[str, int]:
        return {dimension.name: size for dimension, size in zip(self.dimensions, key, strict=True)}


def sharing(model: Model, other: Model) -> Model:
    """The model with the constants, and the packed weights, of the other one where they are equal: once in memory."""
    original = _with_constants(model.original, other.original)
    program = replace(model.program, graph=_with_constants(model.program.graph, other.program.graph))
    return model.sharing(original, program, other)


def _with_constants(graph: Graph, other: Graph) -> Graph:
    known = other.constants
    constants = {n: known[n] if n in known and are_equal(a, known[n]) else a for n, a in graph.constants.items()}
    return replace(graph, constants=constants)
