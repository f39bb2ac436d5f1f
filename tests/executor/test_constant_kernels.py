"""What depends on constants alone is made when a network is loaded: which launches, where it lies, what comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

import autosched as at
from autosched.codegen.c.source import GpuSource, Launch
from autosched.executor.constant_kernels import ConstantLaunches, find_constant_launches
from autosched.executor.gpu_model import GpuModel
from autosched.graph.graph import Graph, Node, Value
from autosched.graph.steps import Group
from autosched.kernel.spec import KernelSpec
from autosched.kernel.task import make_task
from autosched.planning.extract_tasks import Choices
from autosched.schedule import steps_to_json
from autosched.tuner.protocols import Candidate
from search_spaces.space import enumerate_grid
from tests.executor.test_gpu_model import check, make
from tests.executor.test_model import inputs_of

__all__ = ["make"]  # the fixture


def quantised(rows: int = 19, depth: int = 137, columns: int = 127) -> Graph:
    """x @ ((codes - zero) * scale), with as floats the weights are too large to be folded."""
    rng = np.random.default_rng(0)
    values = {
        "x": Value("x", (rows, depth), "float32"),
        "codes": Value("codes", (depth, columns), "int8"),
        "scale": Value("scale", (columns,), "float32"),
        "floats": Value("floats", (depth, columns), "float32"),
        "weights": Value("weights", (depth, columns), "float32"),
        "y": Value("y", (rows, columns), "float32"),
    }
    nodes = (
        Node("cast", ("codes",), ("floats",), {"dtype": "float32"}),
        Node("mul", ("floats", "scale"), ("weights",)),
        Node("matmul", ("x", "weights"), ("y",)),
    )
    constants = {
        "codes": rng.integers(-8, 8, (depth, columns)).astype("int8"),
        "scale": rng.uniform(0.1, 1, columns).astype("float32"),
    }
    return Graph(("x",), ("y",), nodes, values, constants)


@dataclass(frozen=True)
class Kernel:
    """What of a kernel matters here."""

    name: str


@dataclass
class Program:
    """A program whose values lie each by itself."""

    steps: tuple[Group, ...]
    kernels: dict[int, Kernel]
    graph: Graph
    backend: Any = field(default_factory=lambda: type("Backend", (), {"array_alignment": 64}))

    def root(self, name: str) -> str:
        return name

    def start(self, name: str) -> int:
        return 0


def launch(name: str, reads: str, writes: str) -> Launch:
    return Launch(name, (1, 1, 1), (32, 1, 1), (*reads, *writes), 0, False, tuple(writes))


def program(*kernels: tuple[str, str, tuple[tuple[str, str], ...]]) -> tuple[Program, dict[str, GpuSource]]:
    """Of kernels: the values that they read, one letter each, and write; of their launches what each reads and writes.
    A value is called in a kernel as in the graph, other letters are workspace. X is the input, Y the output, the
    constants are A and B."""
    names = sorted({x for inputs, outputs, _ in kernels for x in inputs + outputs})
    values = {name: Value(name, (5,), "float32") for name in names}
    constants = {name: np.ones(5, np.float32) for name in names if name in "AB"}
    steps, sources = [], {}
    for n, (inputs, outputs, launches) in enumerate(kernels):
        made = tuple(launch(f"k{n}_{i}", *each) for i, each in enumerate(launches))
        used = {b for each in made for b in each.buffers}
        scratch = tuple((b, 100) for b in sorted(used - {*inputs, *outputs}))
        sources[f"k{n}"] = GpuSource(f"k{n}", "cuda", "", made, tuple(inputs), tuple(outputs), scratch)
        steps.append(Group((), tuple(inputs), tuple(outputs)))
    graph = Graph(("X",), ("Y",), (), values, constants)
    return Program(tuple(steps), {n: Kernel(f"k{n}") for n in range(len(steps))}, graph), sources


def found(*kernels: tuple[str, str, tuple[tuple[str, str], ...]]) -> dict[int, list[int]]:
    made, sources = program(*kernels)
    return {step: sorted(numbers) for step, numbers in find_constant_launches(made, sources).launches.items()}  # type: ignore[arg-type]


def test_launches_that_read_constants_alone():
    assert found(("XA", "Y", (("A", "t"), ("Xt", "Y")))) == {0: [0]}
    assert found(("XA", "Y", (("X", "t"), ("A", "u"), ("tu", "Y")))) == {0: [1]}
    assert found(("XA", "Y", (("A", "t"), ("t", "u"), ("Xu", "Y")))) == {0: [0, 1]}
    assert found(("XA", "Y", (("XA", "Y"),))) == {}


def test_a_start_value_that_others_update_is_made_each_time():
    assert found(("XA", "Y", (("", "t"), ("Xt", "t"), ("t", "Y")))) == {}
    assert found(("XA", "Y", (("", "t"), ("At", "t"), ("Xt", "Y")))) == {0: [0, 1]}


def test_a_buffer_that_is_used_twice_is_made_each_time():
    """Its first content is read by what comes later than when a network is loaded."""
    assert found(("XAB", "Y", (("A", "t"), ("Xt", "u"), ("B", "t"), ("ut", "Y")))) == {}


def test_kernels_of_constants_and_what_reads_their_results():
    kernels = (("A", "C", (("A", "C"),)), ("XC", "D", (("C", "t"), ("Xt", "D"))), ("D", "Y", (("D", "Y"),)))
    assert found(*kernels) == {0: [0], 1: [0]}
    assert found(("A", "Y", (("A", "Y"),))) == {}  # the caller's memory


def test_what_nobody_says_it_writes_stays():
    made, sources = program(("XA", "Y", (("A", "t"), ("Xt", "Y"))))
    unknown = tuple(replace(each, writes=()) for each in sources["k0"].launches)
    assert not find_constant_launches(made, {"k0": replace(sources["k0"], launches=unknown)}).launches  # type: ignore[arg-type]


def test_steps_with_the_same_constants_share_what_is_made_of_them():
    made, sources = program(
        ("XA", "C", (("A", "t"), ("Xt", "C"))), ("XA", "C", (("A", "t"), ("Xt", "C"))), ("XC", "Y", (("XC", "Y"),))
    )
    made.kernels[1] = made.kernels[0]
    ahead = find_constant_launches(made, sources)  # type: ignore[arg-type]
    assert ahead == ConstantLaunches({0: frozenset({0}), 1: frozenset({0})}, {(0, "t"): 0, (1, "t"): 0}, 128, (0,))


def unpacked_first(kernel_specs: Sequence[KernelSpec]) -> list[KernelSpec]:
    """Schedules in which the weights lie unpacked in memory between two launches."""
    found = []
    for kernel_spec in kernel_specs:
        task, sketches = make_task(kernel_spec.request)
        (i,) = (n for n, sketch in enumerate(sketches) if sketch.name.endswith("unfolded/mul@root"))
        rows = task.model.legal_rows(i, enumerate_grid(sketches[i], 50, np.random.default_rng(0)))
        values = task.values(Candidate(i, tuple(map(int, rows[0]))))
        found.append(replace(kernel_spec, steps=steps_to_json(sketches[i].state, values)))
    return found


def launches_of(model: GpuModel) -> tuple[int, int]:
    """In a call, and of all kernels."""
    with model._transfer_blocks() as blocks:
        memory = [block.memory for block in blocks]
    calls = sum(len(model._bind(n, memory).launches) for n in model.program.kernels)
    return calls, sum(len(model.loaded[kernel.name].source.launches) for kernel in model.program.kernels.values())


@pytest.mark.parametrize("apart", [False, True])
def test_weights_are_unpacked_when_a_network_is_loaded(make, monkeypatch, apart):
    """By a launch of the kernel that reads them, or by a kernel of their own."""
    if apart:
        monkeypatch.setattr("autosched.graph.fusion.partition.should_inline", lambda *_, **__: False)
    graph = quantised()
    model = make(graph)
    model = model if apart else model.with_choices(Choices(unpacked_first))
    assert isinstance(model, GpuModel)
    assert model._constant.nbytes >= 4 * 137 * 127
    assert launches_of(model) == (1, 2)
    for seed in (1, 2, 3):
        given = {n: np.roll(x, seed) for n, x in inputs_of(graph).items()}
        check(graph, model(**given), given)
    assert at.verify(model).passed  # kernel by kernel
    changed = {name: (array // 2 if name == "codes" else array) for name, array in graph.constants.items()}
    other = Graph(graph.inputs, graph.outputs, graph.nodes, graph.values, changed)
    check(other, model.with_weights(changed)(**given), given)
