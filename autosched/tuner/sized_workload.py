"""The workload of a kernel for sizes that are known at run time (`ir.size`): of a network, or of the user's.

    {"data": {"name": ..., "graph": {"inputs": [[[{"size": ["mul", "s0", 4]}, 64], "float32"], ...], ...}},
     "ranges": [[2, 4096]]}

The text is that of a `WorkloadSpec` with closed forms for sizes, over the symbols s0, s1 and so on in the order in
which they occur, and the least and the greatest value of each. Of a workload of the user's it has the sizes among the
arguments, and a digest of the stages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from autosched.ir.size import Guards, class_of, entered, evaluate, typical_size, unit_of
from autosched.ir.size_data import form_of_data, size_data, size_of_data, symbols_in
from autosched.runtime.disk_cache import key_of
from autosched.te import ComputeDAG
from autosched.tuner.definition import Definition
from autosched.tuner.workload_spec import WEIGHTS_IN, WorkloadSpec

SIZE = "size"  # the key of a closed form


@dataclass(frozen=True)
class SizedWorkload:
    """`text`: as above. `values`: the present ones of the symbols. `symbols`: their names in the network."""

    text: str
    values: tuple[int, ...]
    symbols: tuple[str, ...]

    @staticmethod
    def of(data: Mapping[str, Any]) -> SizedWorkload | None:
        """Return the workload of the data of a specification, whose sizes are of the entered guards; None if it has no
        sizes."""
        names = {symbol: f"s{n}" for n, symbol in enumerate(symbols_in(dict(data)))}
        if not names:
            return None
        guards = entered()
        ranges = [guards.range_of(symbol) for symbol in names]
        text = json.dumps(
            {"data": data, "ranges": ranges}, sort_keys=True, default=lambda size: {SIZE: size_data(size, names)}
        )
        return SizedWorkload(text, tuple(guards.present[symbol] for symbol in names), tuple(names))

    @cached_property
    def parsed(self) -> Any:
        return json.loads(self.text)

    @property
    def named_values(self) -> dict[str, int]:
        return {f"s{n}": value for n, value in enumerate(self.values)}

    def named(self, values: Mapping[str, int]) -> dict[str, int]:
        """Return other values of the symbols, from those by their names in the network."""
        return {f"s{n}": values[symbol] for n, symbol in enumerate(self.symbols)}

    def at(self, values: Mapping[str, int]) -> SizedWorkload:
        """Return the workload with other present values, by the names of the symbols in the network."""
        return replace(self, values=tuple(values[symbol] for symbol in self.symbols))

    @property
    def numbered(self) -> WorkloadSpec:
        """The specification for the present values."""
        return self._numbered(self.values)

    @property
    def typical(self) -> WorkloadSpec:
        """The specification for which a schedule is chosen: for a typical size of the class of the present one, or for
        the present values of several symbols, as these may depend on each other."""
        return self.numbered if len(self.values) > 1 else self._numbered(self._typical_values)

    @property
    def _typical_values(self) -> tuple[int, ...]:
        """The typical values of the classes of the present ones."""
        rows = zip(self.values, self.parsed["ranges"], self._units, strict=True)
        return tuple(-(-typical_size(value * unit, high * unit) // unit) for value, (_, high), unit in rows)

    @property
    def classes(self) -> tuple[int, ...]:
        """The classes of the present sizes, each of which has a schedule of its own."""
        return tuple(class_of(value * unit) for value, unit in zip(self.values, self._units, strict=True))

    @property
    def _units(self) -> tuple[int, ...]:
        """By what the values of the symbols are multiplied to be sizes."""
        return (1,) * len(self.values)

    def _numbered(self, numbers: tuple[int, ...]) -> WorkloadSpec:
        values = replace(self, values=numbers).named_values
        return WorkloadSpec.of(_replaced(self.parsed["data"], lambda form: int(evaluate(form_of_data(form), values))))

    def dag(self, guards: Guards) -> ComputeDAG:
        """Return the stages over symbols of `guards`, which is entered."""
        from autosched.graph.group_description import described_dag

        symbols = self._symbols(guards)
        data = _replaced(self.parsed["data"], lambda form: size_of_data(form, symbols))
        dag = described_dag(data["graph"])
        return dag.with_weights_in(data[WEIGHTS_IN]) if WEIGHTS_IN in data else dag

    def _symbols(self, guards: Guards) -> dict[str, int]:
        rows = zip(self.named_values.items(), self.parsed["ranges"], self._units, strict=True)
        return {name: guards.symbol_of_class(name, value, low, high, unit) for (name, value), (low, high), unit in rows}


@dataclass(frozen=True)
class OpenWorkload:
    """A workload of this process whose sizes in `ranges` are open. `definition`: that of the smallest sizes.

    `define` returns the definition of others, by name, `make_dag` the stages, for which they may be symbols. Both raise
    ExpressionError for sizes that the workload refuses.
    """

    ranges: Mapping[str, range]
    definition: Definition
    define: Callable[[Mapping[str, int]], Definition]
    make_dag: Callable[[Mapping[str, int]], ComputeDAG]

    @property
    def smallest(self) -> dict[str, int]:
        return {name: allowed.start for name, allowed in self.ranges.items()}


@dataclass(frozen=True)
class TracedWorkload(SizedWorkload):
    """An open workload that was traced with symbols.

    Where the steps of a range divide its start, as those of `range(8, 65, 8)`, the symbol is the number of steps, so
    that it is known what divides the size. `symbols`: the names of the sizes.
    """

    workload: OpenWorkload = field(compare=False, repr=False)

    @staticmethod
    def trace(workload: OpenWorkload, sizes: Mapping[str, int]) -> TracedWorkload:
        """Return the workload for present sizes."""
        definition = workload.definition
        with Guards() as guards:
            symbols = {name: size_symbol(guards, name, sizes[name], r) for name, r in workload.ranges.items()}
            stages = workload.make_dag(symbols).canonical_text
            for own, name in guards.names.items():
                stages = stages.replace(own, name)
            data = {"name": definition.name, "args": symbols, "dtype": definition.dtype, "stages": key_of(stages)}
            sized = SizedWorkload.of(data)
        assert sized is not None, "no size is open"
        return TracedWorkload(sized.text, sized.values, tuple(workload.ranges), workload)

    def at(self, values: Mapping[str, int]) -> TracedWorkload:
        return self.trace(self.workload, values)

    def named(self, values: Mapping[str, int]) -> dict[str, int]:
        return {
            f"s{n}": values[name] // unit for n, (name, unit) in enumerate(zip(self.symbols, self._units, strict=True))
        }

    @property
    def typical(self) -> WorkloadSpec:
        return self._numbered(self._typical_values)

    @property
    def _units(self) -> tuple[int, ...]:
        return tuple(map(unit_of, self.workload.ranges.values()))

    def _numbered(self, numbers: tuple[int, ...]) -> WorkloadSpec:
        sizes = {name: n * unit for name, n, unit in zip(self.symbols, numbers, self._units, strict=True)}
        return _TracedSpec(super()._numbered(numbers).text, partial(self.workload.define, sizes))

    def dag(self, guards: Guards) -> ComputeDAG:
        sizes = zip(self.symbols, self._symbols(guards).values(), self._units, strict=True)
        return self.workload.make_dag({name: size * unit for name, size, unit in sizes})


@dataclass(frozen=True)
class _TracedSpec(WorkloadSpec):
    """The specification of a workload that `define` returns the definition of."""

    define: Callable[[], Definition] = field(compare=False, repr=False)

    @cached_property
    def definition(self) -> Definition:
        return self.define()


def size_symbol(guards: Guards, name: str, size: int, allowed: range) -> int:
    """Return a size that has any value of a range, and `size` now."""
    unit = unit_of(allowed)
    return guards.symbol(name, size // unit, allowed.start // unit, allowed[-1] // unit) * unit


def _replaced(data: Any, size: Any) -> Any:
    """Return data with `size(form)` in place of closed forms."""
    if isinstance(data, dict):
        if set(data) == {SIZE}:
            return size(data[SIZE])
        return {key: _replaced(value, size) for key, value in data.items()}
    return [_replaced(part, size) for part in data] if isinstance(data, list) else data
