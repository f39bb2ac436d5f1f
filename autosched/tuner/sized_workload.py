"""The workload of a kernel of a network for sizes that are known at run time (`ir.size`).

    {"data": {"name": ..., "graph": {"inputs": [[[{"size": ["mul", "s0", 4]}, 64], "float32"], ...], ...}},
     "ranges": [[2, 4096]]}

The text is that of a `WorkloadSpec` with closed forms for sizes, over the symbols s0, s1 and so on in the order in
which they occur, and the least and the greatest value of each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from autosched.ir.size import Guards, class_of, entered, evaluate, typical_size
from autosched.ir.size_data import form_of_data, size_data, size_of_data, symbols_in
from autosched.te import ComputeDAG
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
        if len(self.values) > 1:
            return self.numbered
        (value,), ((_, high),) = self.values, self.parsed["ranges"]
        return self._numbered((typical_size(value, high),))

    @property
    def classes(self) -> tuple[int, ...]:
        """The classes of the present values, each of which has a schedule of its own."""
        return tuple(map(class_of, self.values))

    def _numbered(self, numbers: tuple[int, ...]) -> WorkloadSpec:
        values = replace(self, values=numbers).named_values
        return WorkloadSpec.of(_replaced(self.parsed["data"], lambda form: int(evaluate(form_of_data(form), values))))

    def dag(self, guards: Guards) -> ComputeDAG:
        """Return the stages over symbols of `guards`, which is entered."""
        from autosched.graph.group_description import described_dag

        symbols = {
            name: guards.symbol_of_class(name, value, low, high)
            for (name, value), (low, high) in zip(self.named_values.items(), self.parsed["ranges"], strict=True)
        }
        data = _replaced(self.parsed["data"], lambda form: size_of_data(form, symbols))
        dag = described_dag(data["graph"])
        return dag.with_weights_in(data[WEIGHTS_IN]) if WEIGHTS_IN in data else dag


def _replaced(data: Any, size: Any) -> Any:
    """Return data with `size(form)` in place of closed forms."""
    if isinstance(data, dict):
        if set(data) == {SIZE}:
            return size(data[SIZE])
        return {key: _replaced(value, size) for key, value in data.items()}
    return [_replaced(part, size) for part in data] if isinstance(data, list) else data
