"""Rendering of a network as text: graph after passes, kernels, arena, and the kernels in Graphviz's language."""

from __future__ import annotations

import json
import string
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from autosched.graph.fusion.choice import FusionChoice
from autosched.graph.graph import Graph
from autosched.graph.loops import loop_of
from autosched.graph.memory.arena import ArenaPlan
from autosched.graph.memory.liveness import LiveBuffer
from autosched.graph.steps import Alias, Group, Join, NetworkStep, Repeat, Write
from autosched.ir.dtype import DTYPES
from autosched.kernel.spec import KernelSpec
from autosched.planning.execution_plan import NetworkProgram

WIDTH, HEIGHT = 100, 32  # characters of the rendered arena
N_LARGEST = 3  # values that are listed below it
LETTERS = string.ascii_letters + string.digits
MEMORY = "memory"
PRODUCTS = ("conv", "conv_transpose", "linear", "gemm", "matmul")


@dataclass(frozen=True)
class PlannedGraph:
    """A graph after passes, its steps, and its fusion candidates."""

    graph: Graph
    steps: tuple[NetworkStep, ...]
    fusion_choices: tuple[FusionChoice[KernelSpec], ...] = ()


def graph_text(planned: PlannedGraph) -> str:
    return str(planned.graph)


def groups_text(planned: PlannedGraph) -> str:
    """Return a line for each kernel and each view in execution order, then one for each fusion candidate."""
    lines = []
    for n, step in enumerate(planned.steps):
        if isinstance(step, Join):
            lines.append(f"{n:4}  {planned.graph.values[step.output]} is the concatenation of {', '.join(step.parts)}")
        elif isinstance(step, Repeat):
            results = ", ".join(str(planned.graph.values[name]) for name in step.outputs)
            loop = f"{loop_of(step.node).steps} iterations of the loop {step.node.origin}"
            lines.append(f"{n:4}  {results} = {loop}({', '.join(step.reads)})")
        elif isinstance(step, Write):
            lines.append(f"{n:4}  {planned.graph.values[step.output]} is {step.base} with {step.rows} at {step.at}")
        elif isinstance(step, Alias):
            start = f" from element {step.offset} on" if step.offset else ""
            lines.append(f"{n:4}  {planned.graph.values[step.output]} is {step.base}{start}")
        else:
            results = ", ".join(str(planned.graph.values[name]) for name in step.outputs)
            operators = " ".join(node.operator for node in step.nodes)
            lines.append(f"{n:4}  {results} = {operators}({', '.join(step.inputs)}){_origin(step)}")
    return "\n".join([*lines, *map(str, planned.fusion_choices), *_remaining_floats(planned)])


def _remaining_floats(planned: PlannedGraph) -> Iterator[str]:
    """Yield lines on a quantised network: values between its kernels that are floats, and products of dequantised
    floats."""
    graph = planned.graph
    if not any(node.operator == "quantize" for node in graph.nodes):
        return
    makers = {name: n for n, step in enumerate(planned.steps) if isinstance(step, Group) for name in step.outputs}
    readers = _readers(planned.steps)
    floats = [name for name in makers if readers[name] and DTYPES[graph.values[name].dtype].is_float]
    yield f"quantised; values between its kernels that are floats: {len(floats)}"
    for name in floats:
        yield f"  {graph.values[name]}, from kernel {makers[name]} to {', '.join(map(str, readers[name]))}"
    for node in graph.nodes:
        dequantised = [x for x in node.used[:2] if node.operator in PRODUCTS and _is_dequantised(graph, x)]
        if dequantised:
            operands = ", ".join(dequantised)
            yield f"  {graph.values[node.outputs[0]]}, a {node.operator} of dequantised floats: {operands}"


def _readers(steps: Sequence[NetworkStep]) -> Mapping[str, list[int]]:
    """Return the steps that read each value, directly or through a view."""
    bases = {step.output: step.base for step in steps if isinstance(step, Alias)}
    readers = defaultdict[str, list[int]](list)
    for n, step in enumerate(steps):
        for name in () if isinstance(step, Alias) else _read(step):
            while name in bases:
                name = bases[name]
            readers[name].append(n)
    return readers


def _is_dequantised(graph: Graph, name: str) -> bool:
    maker = graph.producers.get(name)
    return maker is not None and maker.operator == "dequantize"


def _origin(group: Group) -> str:
    origin = next((node.origin for node in reversed(group.nodes) if node.origin), "")
    return f"  # {origin}" if origin else ""


def dot_text(planned: PlannedGraph) -> str:
    """Return a Graphviz graph with kernels as boxes and values as edges."""
    makers = {name: f"k{n}" for n, step in enumerate(planned.steps) for name in _results(step)}
    inputs = {name: f"i{n}" for n, name in enumerate(planned.graph.inputs)}
    lines = [f"digraph {_quoted(planned.graph.name)} {{", "  node [shape=box];"]
    lines += [f"  {inputs[name]} [shape=oval, label={_quoted(str(planned.graph.values[name]))}];" for name in inputs]
    for n, step in enumerate(planned.steps):
        operators = "loop" if isinstance(step, Repeat) else "view"
        operators = " ".join(node.operator for node in step.nodes) if isinstance(step, Group) else operators
        lines.append(f"  k{n} [label={_quoted(operators)}];")
        read = _read(step)
        lines += _arrows({**inputs, **makers}, read, f"k{n}", planned.graph)
    for n, name in enumerate(planned.graph.outputs):
        lines.append(f"  o{n} [shape=oval, label={_quoted(name)}];")
        lines += _arrows({**inputs, **makers}, (name,), f"o{n}", planned.graph)
    return "\n".join([*lines, "}"])


def _results(step: NetworkStep) -> Sequence[str]:
    return step.outputs if isinstance(step, Group | Repeat) else (step.output,)


def _read(step: NetworkStep) -> Sequence[str]:
    if isinstance(step, Join):
        return step.parts
    if isinstance(step, Write | Repeat):
        return step.reads
    return step.inputs if isinstance(step, Group) else (step.base,)


def _arrows(makers: Mapping[str, str], read: Sequence[str], reader: str, graph: Graph) -> Iterator[str]:
    """Yield the edges to `reader`; constants have none."""
    for name in read:
        if name in makers:
            label = str(graph.values[name]).partition(": ")[2]
            yield f"  {makers[name]} -> {reader} [label={_quoted(label)}];"


def _quoted(text: str) -> str:
    return json.dumps(text)


def memory_text(program: NetworkProgram) -> str:
    """Return the arena as a diagram: kernels from left to right, bytes from bottom to top, a letter for each value."""
    arena, buffers = program.memory, program.buffers
    lines = [f"arena of {arena.nbytes} bytes; {arena.bound_bytes} are alive at once, so none is smaller"]
    if arena.nbytes:
        lines += _diagram(arena, buffers)
    for buffer in sorted(buffers, key=lambda t: -t.nbytes)[:N_LARGEST]:
        extent = f"at byte {arena.offsets[buffer.name]}, kernels {buffer.first} to {buffer.last}"
        lines.append(f"{_letter(buffer, buffers)}  {buffer.name}: {buffer.nbytes} bytes {extent}")
    lines.append(f"weights of {program.weights_bytes} bytes, inputs and outputs are the caller's")
    return "\n".join(lines)


def _diagram(arena: ArenaPlan, buffers: Sequence[LiveBuffer]) -> list[str]:
    steps = max(buffer.last for buffer in buffers) + 1
    columns = min(WIDTH, steps)
    rows = [["."] * columns for _ in range(HEIGHT)]
    for buffer in sorted(buffers, key=lambda t: t.nbytes):  # large values are drawn last, over small ones
        begin = arena.offsets[buffer.name]
        low, high = (at * HEIGHT // arena.nbytes for at in (begin, begin + buffer.nbytes - 1))
        left, right = (step * columns // steps for step in (buffer.first, buffer.last))
        for row in rows[low : high + 1]:
            row[left : right + 1] = _letter(buffer, buffers) * (right + 1 - left)
    return ["".join(row) for row in reversed(rows)]


def _letter(buffer: LiveBuffer, buffers: Sequence[LiveBuffer]) -> str:
    return LETTERS[buffers.index(buffer) % len(LETTERS)]


TEXTS: Mapping[str, Callable[[PlannedGraph], str]] = {"graph": graph_text, "groups": groups_text, "dot": dot_text}
