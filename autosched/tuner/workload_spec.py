"""The specification of a workload: the JSON text from which a record's workload is defined again, parsed once.

    {"name": "matmul", "args": {"M": 64, ...}, "dtype": "float32", ...}
    {"name": "conv-relu", "args": {}, "dtype": "float32", "graph": {"inputs": ..., ...}, "weights_in": "memory"}

The second one is of a kernel of a network, which is described by its operators.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from autosched.ir.size import value_of
from autosched.store.records import parse_data
from autosched.tuner.definition import Definition, redefine

WEIGHTS_IN = "weights_in"  # the cache level of the weights, which does not change what is computed
NOTHING = "no value"  # in place of an attribute without a value, as None is in place of a number
AXES = ("axis", "axes", "perm")  # attributes whose numbers are axes, not sizes


@dataclass(frozen=True)
class SizedStructure:
    """A workload apart from its sizes. `structure`: without the values of floats, such as the epsilon of a norm, and
    without integers, but for axes and for those that are 1, which have no loops. `sizes`: the other integers in the
    order in which they stand in it."""

    structure: str
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class WorkloadSpec:
    """`text` is canonical JSON: equal workloads have equal texts."""

    text: str

    @staticmethod
    def of(data: Mapping[str, Any]) -> WorkloadSpec:
        return WorkloadSpec(json.dumps(data, sort_keys=True, default=value_of))

    @staticmethod
    def from_record(text: str) -> WorkloadSpec:
        """The specification of a record, which may come from elsewhere. Raises StoreError for text that is no data."""
        spec = WorkloadSpec(text)
        spec.__dict__["data"] = parse_data(text)  # as `cached_property` keeps it
        return spec

    @cached_property
    def data(self) -> dict[str, Any]:
        """The JSON object. Raises ValueError for text that is none."""
        parsed: dict[str, Any] = json.loads(self.text)
        return parsed

    @cached_property
    def definition(self) -> Definition:
        """The workload itself. Raises UsageError for a function of the user's own."""
        return redefine(self.text, None)

    @cached_property
    def inputs(self) -> str:
        """Shapes, types and weights of a kernel of a network, as text. Raises KeyError for another workload."""
        return json.dumps([self.data["graph"]["inputs"], self.data["graph"]["weights"]])

    @cached_property
    def numbers(self) -> tuple[dict[str, Any], dict[str, int]]:
        """The data with a None for each number among the arguments, or, of a kernel of a network, for each size and
        each number among the attributes, without the residency of the weights; and the numbers by their positions."""
        numbers: dict[str, int] = {}
        parts = {"args": _without_numbers(self.data["args"], "args", numbers)}
        if "graph" in self.data:
            graph = self.data["graph"]
            inputs = [
                [_without_numbers(shape, f"input {n}", numbers), dtype]
                for n, (shape, dtype) in enumerate(graph["inputs"])
            ]
            nodes = [
                [operator, used, made, _without_numbers(attributes, f"node {n}", numbers)]
                for n, (operator, used, made, attributes) in enumerate(graph["nodes"])
            ]
            parts["graph"] = {**graph, "inputs": inputs, "nodes": nodes}
        return {name: part for name, part in {**self.data, **parts}.items() if name != WEIGHTS_IN}, numbers

    @cached_property
    def sized(self) -> SizedStructure:
        without, numbers = self.numbers
        fixed = {position: n for position, n in numbers.items() if n <= 1 or not set(AXES).isdisjoint(position.split())}
        sizes = tuple(n for position, n in numbers.items() if position not in fixed)
        return SizedStructure(json.dumps([_without_floats(without), fixed]), sizes)

    def without_weight_residency(self) -> WorkloadSpec:
        """The same workload with its weights near: a schedule for one is a schedule for the other."""
        return WorkloadSpec.of({name: part for name, part in self.data.items() if name != WEIGHTS_IN})


def distance(sizes: Iterable[int], others: Iterable[int]) -> float:
    """The sum of the binary logarithms of the ratios of as many sizes."""
    return sum(abs(math.log2((abs(a) + 1) / (abs(b) + 1))) for a, b in zip(sizes, others, strict=True))


def _without_numbers(data: Any, position: str, numbers: dict[str, int]) -> Any:
    if isinstance(data, dict):
        return {name: _without_numbers(value, f"{position} {name}", numbers) for name, value in data.items()}
    if isinstance(data, list):
        return [_without_numbers(value, f"{position} {n}", numbers) for n, value in enumerate(data)]
    if isinstance(data, int) and not isinstance(data, bool):
        numbers[position] = data
        return None
    return NOTHING if data is None else data


def _without_floats(data: Any) -> Any:
    """Return the data with the word "float" for each float."""
    if isinstance(data, dict):
        return {name: _without_floats(value) for name, value in data.items()}
    if isinstance(data, list):
        return [_without_floats(value) for value in data]
    return "float" if isinstance(data, float) else data
