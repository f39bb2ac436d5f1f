"""A network against the reference: its outputs, and each kernel by itself.

The reference of the outputs is the graph as it was imported, node by node in float64. Each kernel is run on inputs of
the reference and compared with its nodes in float64 for the same inputs, so that its error is its own. If all kernels
are right, but the outputs are not, it is the passes, or how the parts were put together: `ideal` tells which, the
outputs of the graph after passes with kernels that are exact. Where kernels and passes are right, and an output is
beyond its tolerance nevertheless, the kernels run once more, one after the other on each other's results. If each is
right for what it was given, what their errors come to at the outputs is accepted, and the tolerance besides: a network
of right kernels is wrong only if it computes something else than these do.

A kernel beyond its tolerance may still be within the bounds that records are held to, which follow from its operations
and hold for any data and order of sums: equal numbers are rounded alike, integers that are rounded floats may be
neighbours near a tie. Such bounds of long sums are wide. So they excuse floats only where the outputs are right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from autosched.executor.kernel_origin import origin_of
from autosched.executor.model import Model
from autosched.graph.fusion.partition import dag_of
from autosched.graph.graph import Array, Graph
from autosched.graph.interpret import Arithmetic, evaluate_node, exact, interpret, plain
from autosched.graph.mapped_arrays import check_mapped
from autosched.graph.steps import Alias, Group, Join, Write
from autosched.ir.dtype import DTYPES
from autosched.te.reference.evaluate import Reference, evaluate, within
from autosched.verification import isolation
from autosched.verification.isolation import ProgramDied
from autosched.verification.sample_inputs import InputSet
from autosched.verification.tolerances import WINOGRAD, Comparison, compare, error, size_of

Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class KernelCheck:
    """`worst`: that of its results which is nearest to its bound. `origin`: see `network.kernels.origin_of`."""

    step: int
    operators: str
    origin: str
    worst: Comparison

    @property
    def label(self) -> str:
        return _label(self.operators, self.origin)


@dataclass(frozen=True)
class Verification:
    """`outputs`: for each kind of inputs the comparison of each output. `kernels`: in the order in which they run, on
    the first kind of inputs, or the first that shows an error; up to the first that is beyond its bound, where one was
    to be located. `ideal`: as `outputs`, of the graph after passes with exact kernels. `foreign`: of onnxruntime's.
    `death`: a sentence on machine code that ended its process, as what writes outside its memory may; nothing was
    compared after that."""

    outputs: Mapping[str, tuple[Comparison, ...]]
    kernels: tuple[KernelCheck, ...]
    ideal: tuple[Comparison, ...]
    foreign: Mapping[str, tuple[Comparison, ...]]
    death: str = ""

    @property
    def passed(self) -> bool:
        kernels = (kernel.worst for kernel in self.kernels)
        compared = (*self.all_outputs, *kernels, *self.ideal, *_flat(self.foreign))
        return not self.death and all(c.passed for c in compared)

    @property
    def all_outputs(self) -> tuple[Comparison, ...]:
        return _flat(self.outputs)

    @property
    def worst_output(self) -> Comparison:
        return max(self.all_outputs, key=lambda c: c.of_bound)

    @property
    def worst_kernel(self) -> KernelCheck | None:
        return max(self.kernels, key=lambda kernel: kernel.worst.of_bound, default=None)

    @property
    def first_wrong(self) -> KernelCheck | None:
        """The first kernel beyond its bound."""
        return next((kernel for kernel in self.kernels if not kernel.worst.passed), None)

    def summary(self) -> str:
        """What is wrong, or how near the bounds it comes, in one sentence."""
        if self.death:
            return self.death
        wrong = next((c for c in self.all_outputs if not c.passed), None)
        foreign = next((c for c in _flat(self.foreign) if not c.passed), None)
        if wrong is not None:
            return f"the output {wrong} {self._culprit()}"
        if self.first_wrong is not None:
            return f"the kernel {self.first_wrong.label} is wrong: {self.first_wrong.worst}"
        if foreign is not None:
            return f"onnxruntime has other results than the reference: {foreign}"
        return f"the output nearest to its bound is {self.worst_output}"

    def _culprit(self) -> str:
        if self.first_wrong is not None:
            return f"because of the kernel {self.first_wrong.label}: {self.first_wrong.worst}"
        if not all(c.passed for c in self.ideal):
            return "because of what passes make of the graph: it is wrong with exact kernels, too"
        return "though each kernel is right by itself: it is how they were put together"


def verify_network(
    model: Model, inputs: Sequence[InputSet], locate: bool = False, foreign: Mapping[str, Arrays] | None = None
) -> Verification:
    """Runs the network and its kernels, each call in a process of its own (`isolation`). `locate`: of the kernels none
    after the first that is beyond its bound. `foreign`: outputs of another program for each kind of inputs, which are
    compared with the reference, too."""
    known: dict[str, tuple[Arrays, Arrays]] = {}
    outputs: dict[str, tuple[Comparison, ...]] = {}
    for given in inputs:
        known[given.kind] = references(model, given.arrays)
        try:
            found = isolation.results(model, given.arrays)
        except ProgramDied as death:
            step = isolation.step_that_dies(model, given.arrays)
            return Verification(outputs, (), (), {}, _death_of(model, death, step))
        outputs[given.kind] = _compared(found, *known[given.kind], _loosened(model))
    others = {} if foreign is None else {kind: _compared(foreign[kind], *known[kind], 1.0) for kind in known}
    return _explained(model, inputs, known, outputs, others, locate)


def verify_outputs(model: Model, given: InputSet, known: tuple[Arrays, Arrays]) -> Verification:
    """Run the network once, and its kernels by themselves only where an output is beyond its tolerance, up to the first
    wrong one. `known`: its `references` for these inputs."""
    outputs = {given.kind: compare_outputs(model, given.arrays, known)}
    if all(c.passed for c in outputs[given.kind]):
        return Verification(outputs, (), (), {})
    return _explained(model, [given], {given.kind: known}, outputs, {}, locate=True)


def compare_outputs(model: Model, arrays: Arrays, known: tuple[Arrays, Arrays]) -> tuple[Comparison, ...]:
    """Runs the network once, and no kernel by itself. `known`: its `references` for these arrays."""
    return _compared(_results(model, arrays), *known, _loosened(model))


def _explained(
    model: Model,
    inputs: Sequence[InputSet],
    known: Mapping[str, tuple[Arrays, Arrays]],
    outputs: Mapping[str, tuple[Comparison, ...]],
    foreign: Mapping[str, tuple[Comparison, ...]],
    locate: bool,
) -> Verification:
    """The outputs' comparisons with those of kernels, on the first inputs that show an error; see the module."""
    beyond = [given for given in inputs if not all(c.passed for c in outputs[given.kind])]
    suspect = (beyond or inputs)[0]
    walk = _KernelWalk(model, suspect.arrays, excuses_floats=not beyond)
    kernels = []
    try:
        for kernel in walk.checks():
            kernels.append(kernel)
            if locate and not kernel.worst.passed:
                break
    except ProgramDied as death:
        return Verification(outputs, tuple(kernels), (), foreign, _death_of(model, death, walk.step))
    ended = len(kernels) == len(model.program.kernels)
    ideal = _compared(walk.outputs(), *known[suspect.kind], _loosened(model)) if ended else ()
    if ended and all(c.passed for c in (*ideal, *(kernel.worst for kernel in kernels))):
        widened = {given.kind: _with_errors_of_kernels(model, given, known, outputs) for given in beyond}
        outputs = {**outputs, **widened}
    return Verification(outputs, tuple(kernels), ideal, foreign)


def _death_of(model: Model, death: ProgramDied, step: int) -> str:
    if step < 0:
        return f"the process that ran the network {death}, and not when its kernels are called one after the other"
    group = model.program.steps[step]
    assert isinstance(group, Group)
    return f"the process that ran the network {death} in the kernel {_label(_operators(group), origin_of(model, step))}"


def _with_errors_of_kernels(
    model: Model,
    given: InputSet,
    known: Mapping[str, tuple[Arrays, Arrays]],
    outputs: Mapping[str, tuple[Comparison, ...]],
) -> tuple[Comparison, ...]:
    """The outputs' comparisons, their bounds wider by what the errors of right kernels come to; as they are where one
    of the kernels is wrong for what the kernels before give it."""
    walk, (wanted, _) = _KernelWalk(model, given.arrays, in_a_row=True), known[given.kind]
    if not all(kernel.worst.passed for kernel in walk.checks()):
        return outputs[given.kind]
    reached = walk.outputs()
    return tuple(replace(c, bound=c.bound.plus(error(reached[c.name], wanted[c.name]))) for c in outputs[given.kind])


def references(model: Model, arrays: Arrays) -> tuple[Arrays, Arrays]:
    """The outputs in float64, and of a plain evaluation. Raises GraphError where a constant cannot be read any more."""
    check_mapped(model.original.constants)
    return interpret(model.original, arrays, exact), interpret(model.original, arrays, plain)


def _results(model: Model, arrays: Arrays) -> Arrays:
    found = model(*(arrays[name] for name in model.original.inputs))
    return dict(zip(model.original.outputs, found if isinstance(found, tuple) else (found,), strict=True))


def _flat(comparisons: Mapping[str, tuple[Comparison, ...]]) -> tuple[Comparison, ...]:
    return tuple(c for found in comparisons.values() for c in found)


def _loosened(model: Model) -> float:
    return WINOGRAD if any(kernel.winograd for kernel in model.program.kernels.values()) else 1.0


def _compared(got: Arrays, wanted: Arrays, usual: Arrays, loosened: float) -> tuple[Comparison, ...]:
    return tuple(compare(name, got[name], want, usual[name], loosened=loosened) for name, want in wanted.items())


class _KernelWalk:
    """The values of a program's graph: each kernel's results computed in float64 and rounded to their types, or, with
    `in_a_row`, what the kernel itself gives. `excuses_floats`: whether the bounds of operations count for them."""

    def __init__(self, model: Model, arrays: Arrays, *, in_a_row: bool = False, excuses_floats: bool = False) -> None:
        self._model, self._program = model, model.program
        self._in_a_row, self._excuses_floats = in_a_row, excuses_floats
        graph = self._program.graph
        self._values: dict[str, Array] = dict(graph.constants)
        for name, original in zip(graph.inputs, model.original.inputs, strict=True):
            self._values[name] = arrays[original]
        self._last: dict[str, int] = {}
        for n, step in enumerate(self._program.steps):
            if not isinstance(step, Alias):
                self._last.update((self._base(name), n) for name in _read(step))
        self._kept = {self._base(name) for name in graph.outputs}
        self.step = -1  # the last that was run

    def checks(self) -> Iterator[KernelCheck]:
        for n, step in enumerate(self._program.steps):
            if isinstance(step, Alias):
                continue
            if isinstance(step, Join):
                parts = [self._value(name) for name in step.parts]
                self._values[step.output] = step.of(parts, self._program.graph.values[step.output].shape)
            elif isinstance(step, Write):
                self._values[step.output] = step.of(*map(self._value, step.reads))
            else:
                yield self._check(n, step)
            for name in {self._base(name) for name in _read(step)}:
                if self._last[name] == n and name not in self._kept:
                    self._values.pop(name, None)

    def outputs(self) -> dict[str, Array]:
        """Of the whole network, after all checks."""
        ends = zip(self._model.original.outputs, self._program.graph.outputs, strict=True)
        return {original: self._value(name) for original, name in ends}

    def _check(self, n: int, group: Group) -> KernelCheck:
        graph = self._program.graph
        given = {name: self._value(name) for name in group.inputs}
        wanted, usual = (_evaluated(graph, group, given, how) for how in (exact, plain))
        self.step, computed = n, {k: a for k, a in given.items() if not graph.is_constant(self._base(k))}
        got = isolation.run_step(self._model, n, computed)
        loosened = WINOGRAD if self._program.kernels[n].winograd else 1.0
        found = [compare(name, got[name], wanted[name], usual[name], loosened=loosened) for name in group.outputs]
        counts = self._excuses_floats or not any(DTYPES[graph.values[name].dtype].is_float for name in group.outputs)
        if counts and not all(c.passed for c in found):
            tile = self._program.kernels[n].winograd
            found = _by_operations(found, _operation_errors(graph, group, given, tile), got)
        worst = max(found, key=lambda c: c.of_bound)
        for name in group.outputs:
            dtype = DTYPES[graph.values[name].dtype].numpy_dtype
            self._values[name] = got[name] if self._in_a_row else wanted[name].astype(dtype, copy=False)
        return KernelCheck(n, _operators(group), origin_of(self._model, n), worst)

    def _base(self, name: str) -> str:
        return self._program.bases.get(name, name)

    def _value(self, name: str) -> Array:
        view = self._program.views.get(name, Alias(name, name))
        return view.part_of(self._values[view.base], self._program.graph.values[name].shape)


def _label(operators: str, origin: str) -> str:
    return f"{operators} ({origin})" if origin else operators


def _operators(group: Group) -> str:
    return " ".join(node.operator for node in group.nodes)


def _read(step: Group | Join | Write) -> tuple[str, ...]:
    if isinstance(step, Write):
        return step.reads
    return step.inputs if isinstance(step, Group) else step.parts


def _evaluated(graph: Graph, group: Group, given: Arrays, arithmetic: Arithmetic) -> dict[str, Array]:
    """The group's outputs, node by node."""
    values = dict(given)
    for node in group.nodes:
        values.update(zip(node.outputs, evaluate_node(node, graph, values, arithmetic), strict=True))
    return {name: values[name] for name in group.outputs}


def _operation_errors(graph: Graph, group: Group, given: Arrays, tile: int) -> tuple[Reference, ...]:
    """The group's outputs with the errors that its operations may have, in any order."""
    return evaluate(dag_of(graph, group), {f"x{n}": given[name] for n, name in enumerate(group.inputs)}, tile)


def _by_operations(found: Sequence[Comparison], references: Sequence[Reference], got: Arrays) -> list[Comparison]:
    """With the bounds that follow from the operations, where each element is within its own."""
    kept = []
    for c, reference in zip(found, references, strict=True):
        if within(reference, got[c.name]).all():
            kept.append(replace(c, bound=c.bound.wider(size_of(reference.bound, reference.value))))
        else:
            kept.append(c)
    return kept
