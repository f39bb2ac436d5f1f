"""Linked network: the functions of a network on a processor and its block of weights, made from a link plan.

    plan + object files    -> the network's entry point, and the functions of its kernels
    functions + constants  -> the block of weights: raw constants, and the packed weights of each kernel

A link plan is data: neither the graph nor the execution plan is needed to link it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from autosched.errors import AutoschedError, OutOfRangeError, index_message
from autosched.ir.dtype import DTYPES
from autosched.runtime.jit import LoadedKernel, load_objects
from autosched.runtime.kernel import Kernel
from autosched.runtime.spec import ArraySpec
from autosched.runtime.tensors import Array, address_of, aligned_empty, aligned_zeros

ENTRY = "network"  # the symbol of the entry point


class Constants(Protocol):
    """The constants of a network by their names."""

    def arrays(self, names: Sequence[str]) -> Sequence[Array]:
        """Return contiguous arrays with the elements of constants, which are valid until the next call."""

    def copy(self, name: str, memory: Array) -> None:
        """Copy the elements of a constant to the beginning of `memory`, an array of bytes."""


@dataclass(frozen=True)
class PackingCall:
    """A call of `prepare`, a function that packs the weights of a kernel to the byte `at` of the block.

    `arguments`: the constants that it reads, by name; None for the other inputs and the outputs of the kernel.
    """

    prepare: str
    at: int
    workspace_bytes: int
    arguments: tuple[str | None, ...]


@dataclass(frozen=True)
class WeightsPlan:
    """The content of the block of weights. `raw_offsets`: names and offsets of constants that kernels read unpacked."""

    nbytes: int
    raw_offsets: tuple[tuple[str, int], ...]
    packing: tuple[PackingCall, ...]

    @property
    def constants(self) -> tuple[str, ...]:
        """The names of the constants that are read, each once."""
        packed = (name for call in self.packing for name in call.arguments if name is not None)
        return tuple(dict.fromkeys((*(name for name, _ in self.raw_offsets), *packed)))


@dataclass(frozen=True)
class LinkPlan:
    """What a network is linked from, beside object files and constants.

    `entry_key`: the key of the entry point's code in the disk cache. `symbols`: the functions of kernels. `in_place`:
    pairs of an output and the input that it may alias, by index. `checks`: by the number that a failed call reports,
    the operator that reads the indices, and their lowest and highest value.
    """

    inputs: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]
    entry_key: str
    symbols: tuple[str, ...]
    workspace_bytes: int
    arena_bytes: int
    bound_bytes: int
    in_place: tuple[tuple[int, int], ...]
    checks: tuple[tuple[str, int, int], ...]
    weights: WeightsPlan

    @property
    def call_bytes(self) -> int:
        """The bytes of memory of a call: inputs, outputs, weights and arena."""
        return sum(spec.nbytes for spec in (*self.inputs, *self.outputs)) + self.weights.nbytes + self.arena_bytes


@dataclass(frozen=True)
class LinkedNetwork:
    """`functions` of a plan by their symbols, and the `block` of weights."""

    plan: LinkPlan
    functions: Mapping[str, LoadedKernel]
    block: Array


class NetworkKernel(Kernel):
    """A linked network as a function of arrays."""

    def __init__(self, linked: LinkedNetwork) -> None:
        plan = linked.plan
        fixed = (*(None for _ in (*plan.inputs, *plan.outputs)), address_of(linked.block))
        entry = linked.functions[ENTRY]
        super().__init__(entry, plan.inputs, plan.outputs, plan.workspace_bytes, fixed, dict(plan.in_place))
        self.linked, self.block = linked, linked.block

    @property
    def in_place(self) -> Mapping[int, int]:
        return dict(self.linked.plan.in_place)

    @property
    def arena_bytes(self) -> int:
        return self.linked.plan.arena_bytes

    @property
    def bound_bytes(self) -> int:
        return self.linked.plan.bound_bytes

    def _failure(self, code: int, workspace: int) -> AutoschedError:
        from autosched.codegen.calls import OUT_OF_RANGE

        if code != OUT_OF_RANGE:
            return super()._failure(code, workspace)
        number, index = (ctypes.c_int64 * 2).from_address(workspace)
        reader, low, high = self.linked.plan.checks[number]
        return OutOfRangeError(index_message(reader, index, low, high))


def link_network(plan: LinkPlan, objects: Sequence[bytes], constants: Constants, threads: int) -> LinkedNetwork:
    """Link the object files of a plan into this process, and pack its weights."""
    functions = load_objects(objects, (ENTRY, *plan.symbols), threads)
    return LinkedNetwork(plan, functions, pack_weights(plan.weights, functions, constants))


def pack_weights(plan: WeightsPlan, functions: Mapping[str, LoadedKernel], constants: Constants) -> Array:
    """Return the block of weights."""
    block = aligned_zeros(max(plan.nbytes, 1))  # padding is 0, so that equal weights are equal blocks
    for name, at in plan.raw_offsets:
        constants.copy(name, block[at:])
    for call in plan.packing:
        run_packing(call, functions[call.prepare], constants, address_of(block) + call.at)
    return block


def run_packing(call: PackingCall, prepare: LoadedKernel, constants: Constants, at: int) -> None:
    """Write the packed weights of a call to the address `at`."""
    arrays = iter(constants.arrays([name for name in call.arguments if name is not None]))
    held = [None if name is None else next(arrays) for name in call.arguments]
    pointers = [*(0 if array is None else address_of(array) for array in held), at]
    arguments = (ctypes.c_size_t * len(pointers))(*pointers)
    workspace = aligned_empty((max(call.workspace_bytes, 1),), "uint8")
    code = prepare(ctypes.addressof(arguments), address_of(workspace))
    assert code == 0, f"{call.prepare} ended with {code}"


def link_plan_of(data: Any) -> LinkPlan:
    """Return the plan of `dataclasses.asdict`, after JSON. Raises ValueError, TypeError or KeyError for other data."""
    return LinkPlan(
        inputs=tuple(map(_spec, data["inputs"])),
        outputs=tuple(map(_spec, data["outputs"])),
        entry_key=str(data["entry_key"]),
        symbols=tuple(map(str, data["symbols"])),
        workspace_bytes=_size(data["workspace_bytes"]),
        arena_bytes=_size(data["arena_bytes"]),
        bound_bytes=_size(data["bound_bytes"]),
        in_place=tuple((_size(output), _size(given)) for output, given in data["in_place"]),
        checks=tuple((str(reader), int(low), int(high)) for reader, low, high in data["checks"]),
        weights=_weights_plan(data["weights"]),
    )


def _weights_plan(data: Any) -> WeightsPlan:
    raw_offsets = tuple((str(name), _size(at)) for name, at in data["raw_offsets"])
    return WeightsPlan(_size(data["nbytes"]), raw_offsets, tuple(map(_packing_call, data["packing"])))


def _packing_call(data: Any) -> PackingCall:
    arguments = tuple(None if name is None else str(name) for name in data["arguments"])
    return PackingCall(str(data["prepare"]), _size(data["at"]), _size(data["workspace_bytes"]), arguments)


def _spec(data: Any) -> ArraySpec:
    spec = ArraySpec(str(data["name"]), tuple(map(_size, data["shape"])), str(data["dtype"]))
    if spec.dtype not in DTYPES:
        raise ValueError(f"an array of {spec.dtype}")
    return spec


def _size(data: object) -> int:
    if type(data) is not int or data < 0:
        raise ValueError(f"a size of {data!r}")
    return data
