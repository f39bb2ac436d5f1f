"""The slow, exact interpreter, which defines the semantics of the IR; `scalars.py` defines those of each operation.

Undefined, and an `InterpretError`, are an index outside a shape, an element read before it was written and an output
element never written. So are an operation on values that it has no result for, a loop longer than its bound and, where
it is asked for, a race between iterations of parallel loops. The branch of `select` not taken is not evaluated; both
operands of `and` and `or` are.

A function with loops of blocks and threads runs as a GPU would run it (`ir/interpreter/blocks.py`), where races and
threads that do not meet at a barrier are undefined too. About 10^6 stores a second, a tenth of that in blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

import numpy as np

from autosched.ir.dtype import DTYPES
from autosched.ir.interpreter.blocks import BlockMachine, runs_in_blocks
from autosched.ir.interpreter.machine import InterpretError, InterpreterState, Order
from autosched.ir.interpreter.memory import BufferMemory, index_text, shape_of
from autosched.ir.interpreter.scalars import Value
from autosched.ir.stmt import Buffer, Func
from autosched.ir.verify import verify

__all__ = ["InterpretError", "interpret"]


def interpret(
    func: Func,
    inputs: Mapping[str, np.ndarray],
    *,
    parallel_order: Order | None = None,
    counts: MutableMapping[str, int] | None = None,
) -> tuple[np.ndarray, ...]:
    """The outputs of a concrete `func` for `inputs` by parameter name, whose shapes and dtypes must match.

    `parallel_order(n)` gives the order in which the n iterations of a parallel loop run; with it, two tasks
    of one parallel region (its consecutive parallel loops) of which one writes what the other reads or
    writes are an `InterpretError`. On a GPU it gives the order of blocks and of threads, and races are always
    looked for. `counts[stage]` is increased by one for every store of that stage.
    """
    verify(func, concrete=True)
    machine = (BlockMachine if runs_in_blocks(func) else InterpreterState)(parallel_order, counts)
    outputs = []
    for i, buffer in enumerate(func.params):
        is_input = i < len(func.params) - func.n_outputs
        memory = machine.memory(buffer, _elements(buffer, inputs) if is_input else None)
        if not is_input:
            outputs.append(memory)
    for buffer in func.prepared:
        machine.memory(buffer)
    with np.errstate(all="ignore"):
        if func.prepare is not None:
            machine.stmt(func.prepare)()
        machine.stmt(func.body)()
    return tuple(_finished(memory) for memory in outputs)


def _elements(buffer: Buffer, inputs: Mapping[str, np.ndarray]) -> list[Value]:
    if buffer.name not in inputs:
        raise InterpretError(f"the input {buffer.name} is missing; given are {', '.join(inputs) or 'none'}")
    array, shape = inputs[buffer.name], shape_of(buffer)
    if array.shape != shape or array.dtype != DTYPES[buffer.dtype].numpy_dtype:
        raise InterpretError(
            f"the input {buffer.name} is {buffer.dtype}{list(shape)} but got {array.dtype}{list(array.shape)}"
        )
    flat = np.ascontiguousarray(array).reshape(-1)
    if DTYPES[buffer.dtype].computes_in == "float32":
        return list(flat.astype("float32"))
    return list(flat.tolist())


def _finished(memory: BufferMemory) -> np.ndarray:
    missing = next((at for at, value in enumerate(memory.data) if value is None), None)
    if missing is not None:
        index = index_text(np.unravel_index(missing, memory.shape))
        raise InterpretError(f"the output element {memory.buffer.name}{index} is never written")
    return np.array(memory.data, dtype=DTYPES[memory.buffer.dtype].numpy_dtype).reshape(memory.shape)
