"""A network as text: its graph after passes, its kernels, the plan of its arena, and both as Graphviz reads them."""

from __future__ import annotations

import json
import string
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from autosched.graph.graph import Graph
from autosched.graph.memory.arena import ArenaPlan
from autosched.graph.memory.liveness import LiveBuffer
from autosched.graph.steps import Alias, Group, Join, NetworkStep, Write
from autosched.ir.dtype import DTYPES
from autosched.planning.execution_plan import NetworkProgram
from autosched.planning.fusion_choice import FusionChoice

WIDTH, HEIGHT = 100, 32  # characters of the picture of an arena
LARGEST = 3  # values that are named below it
SIGNS = string.ascii_letters + string.digits
MEMORY = "memory"
PRODUCTS = ("conv", "conv_transpose", "linear", "gemm", "matmul")


@dataclass(frozen=True)
class Steps:
    """A graph after passes, the steps that it is computed in, and parts of them that may be one kernel or several."""

    graph: Graph
    steps: tuple[NetworkStep, ...]
    fusion_choices: tuple[FusionChoice, ...] = ()


def graph_text(found: Steps) -> str:
    return str(found.graph)


def groups_text(found: Steps) -> str:
    """A line for each kernel in the order in which they run, and one for each view; then the parts that may be one
    kernel or several."""
    lines = []
    for n, step in enumerate(found.steps):
        if isinstance(step, Join):
            lines.append(f"{n:4}  {found.graph.values[step.output]} is {', '.join(step.parts)} behind each other")
        elif isinstance(step, Write):
            lines.append(f"{n:4}  {found.graph.values[step.output]} is {step.base} with {step.rows} at {step.at}")
        elif isinstance(step, Alias):
            start = f" from element {step.offset} on" if step.offset else ""
            lines.append(f"{n:4}  {found.graph.values[step.output]} is {step.base}{start}")
        else:
            made = ", ".join(str(found.graph.values[name]) for name in step.outputs)
            operators = " ".join(node.operator for node in step.nodes)
            lines.append(f"{n:4}  {made} = {operators}({', '.join(step.inputs)}){_origin(step)}")
    return "\n".join([*lines, *map(str, found.fusion_choices), *_floats_left(found)])


def _floats_left(found: Steps) -> Iterator[str]:
    """Of a network that rounds to bytes: which values between its kernels are floats nevertheless, and which products
    are of floats that bytes stand for."""
    graph = found.graph
    if not any(node.operator == "quantize" for node in graph.nodes):
        return
    makers = {name: n for n, step in enumerate(found.steps) if isinstance(step, Group) for name in step.outputs}
    readers = _readers(found.steps)
    left = [name for name in makers if readers[name] and DTYPES[graph.values[name].dtype].is_float]
    yield f"quantised; values between its kernels that are floats: {len(left)}"
    for name in left:
        yield f"  {graph.values[name]}, from kernel {makers[name]} to {', '.join(map(str, readers[name]))}"
    for node in graph.nodes:
        floats = [x for x in node.used[:2] if node.operator in PRODUCTS and _is_dequantised(graph, x)]
        if floats:
            yield f"  {graph.values[node.outputs[0]]}, a {node.operator} of dequantised floats: {', '.join(floats)}"


def _readers(steps: Sequence[NetworkStep]) -> Mapping[str, list[int]]:
    """The steps that read each value that is made, by way of its views too."""
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
    found = next((node.origin for node in reversed(group.nodes) if node.origin), "")
    return f"  # {found}" if found else ""


def dot_text(found: Steps) -> str:
    """Kernels as boxes, and values as arrows between them."""
    makers = {name: f"k{n}" for n, step in enumerate(found.steps) for name in _made(step)}
    ends = {name: f"i{n}" for n, name in enumerate(found.graph.inputs)}
    lines = [f"digraph {_quoted(found.graph.name)} {{", "  node [shape=box];"]
    lines += [f"  {ends[name]} [shape=oval, label={_quoted(str(found.graph.values[name]))}];" for name in ends]
    for n, step in enumerate(found.steps):
        words = " ".join(node.operator for node in step.nodes) if isinstance(step, Group) else "view"
        lines.append(f"  k{n} [label={_quoted(words)}];")
        read = _read(step)
        lines += _arrows({**ends, **makers}, read, f"k{n}", found.graph)
    for n, name in enumerate(found.graph.outputs):
        lines.append(f"  o{n} [shape=oval, label={_quoted(name)}];")
        lines += _arrows({**ends, **makers}, (name,), f"o{n}", found.graph)
    return "\n".join([*lines, "}"])


def _made(step: NetworkStep) -> Sequence[str]:
    return step.outputs if isinstance(step, Group) else (step.output,)


def _read(step: NetworkStep) -> Sequence[str]:
    if isinstance(step, Join):
        return step.parts
    if isinstance(step, Write):
        return step.reads
    return step.inputs if isinstance(step, Group) else (step.base,)


def _arrows(makers: Mapping[str, str], read: Sequence[str], reader: str, graph: Graph) -> Iterator[str]:
    """Of constants there are none."""
    for name in read:
        if name in makers:
            label = str(graph.values[name]).partition(": ")[2]
            yield f"  {makers[name]} -> {reader} [label={_quoted(label)}];"


def _quoted(text: str) -> str:
    return json.dumps(text)


def memory_text(program: NetworkProgram) -> str:
    """The arena as a picture: kernels from left to right, bytes from bottom to top, a sign for each value."""
    arena, buffers = program.memory, program.buffers
    lines = [f"arena of {arena.nbytes} bytes; {arena.bound_bytes} are alive at once, so none is smaller"]
    if arena.nbytes:
        lines += _picture(arena, buffers)
    for buffer in sorted(buffers, key=lambda t: -t.nbytes)[:LARGEST]:
        place = f"at byte {arena.offsets[buffer.name]}, kernels {buffer.first} to {buffer.last}"
        lines.append(f"{_sign(buffer, buffers)}  {buffer.name}: {buffer.nbytes} bytes {place}")
    lines.append(f"weights of {program.weights_bytes} bytes, inputs and outputs are the caller's")
    return "\n".join(lines)


def _picture(arena: ArenaPlan, buffers: Sequence[LiveBuffer]) -> list[str]:
    steps = max(buffer.last for buffer in buffers) + 1
    columns = min(WIDTH, steps)
    rows = [["."] * columns for _ in range(HEIGHT)]
    for buffer in sorted(buffers, key=lambda t: t.nbytes):  # what is large stays visible
        begin = arena.offsets[buffer.name]
        low, high = (at * HEIGHT // arena.nbytes for at in (begin, begin + buffer.nbytes - 1))
        left, right = (step * columns // steps for step in (buffer.first, buffer.last))
        for row in rows[low : high + 1]:
            row[left : right + 1] = _sign(buffer, buffers) * (right + 1 - left)
    return ["".join(row) for row in reversed(rows)]


def _sign(buffer: LiveBuffer, buffers: Sequence[LiveBuffer]) -> str:
    return SIGNS[buffers.index(buffer) % len(SIGNS)]


TEXTS: Mapping[str, Callable[[Steps], str]] = {"graph": graph_text, "groups": groups_text, "dot": dot_text}
