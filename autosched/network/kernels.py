"""Kernels of a network by themselves: one run on arrays of the caller's, with its weights of the network."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import numpy as np

from autosched.errors import DeviceError
from autosched.graph.graph import Array
from autosched.graph.partition import Group
from autosched.ir.dtype import DTYPES
from autosched.network.model import Model
from autosched.runtime.tensors import address_of, aligned_empty


def run_kernel(model: Model, number: int, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The results of the kernel that step `number` is, by name. `arrays`: of its inputs that are no constants.

    Raises DeviceError where it stops.
    """
    program = model.program
    step, kernel = program.steps[number], program.kernels[number]
    assert isinstance(step, Group)
    given = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    made = {}
    for name in step.outputs:
        value = program.graph.values[name]
        made[name] = aligned_empty(value.shape, DTYPES[value.dtype].numpy_dtype)
        made[name].reshape(-1).view("uint8")[:] = 0xFF  # what the kernel leaves out shows
    weights = address_of(model.block)
    pointers = []
    for name in step.inputs:
        if program.graph.is_constant(program.bases.get(name, name)):
            pointer = program.constant(name)
            pointers.append(0 if pointer is None else weights + pointer.at)
        else:
            pointers.append(address_of(given[name]))
    pointers += [address_of(array) for array in made.values()]
    if number in program.packed:
        pointers.append(weights + program.packed[number])
    block = (ctypes.c_size_t * len(pointers))(*pointers)
    workspace = aligned_empty((max(kernel.workspace_bytes, 1),), "uint8")
    code = model.linked[kernel.name](ctypes.addressof(block), address_of(workspace))
    if code:
        raise DeviceError(f"the kernel of {step} stopped with code {code}")
    return made


def origin_of(model: Model, number: int) -> str:
    """What the last node of the kernel that step `number` is was called where the network came from; it may be empty,
    as for nodes that passes have made."""
    step = model.program.steps[number]
    assert isinstance(step, Group)
    return next((node.origin for node in reversed(step.nodes) if node.origin), "")
