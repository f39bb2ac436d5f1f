"""Verification of a network: outputs and each kernel against the reference.

The reference of the outputs is the imported graph, evaluated node by node in float64. Each kernel runs on inputs of the
reference and is compared with its nodes in float64 on the same inputs, so that its error contains no other kernel's.
If an output is wrong and all kernels are right, the graph passes or the assembly of the program are wrong; `ideal`
decides which: the outputs of the graph after passes, computed in float64.

If kernels and passes are right and an output exceeds its tolerance, the kernels run once more, each on the results of
earlier kernels. If each is right for these inputs, the propagated error at the outputs is accepted in addition to the
tolerance: it is the rounding error of right kernels.

A kernel that exceeds its tolerance may still be within the error bounds that records are checked by, which follow from
its operations and hold for all data and orders of sums. These bounds are wide for long sums, so they are accepted for
integers, which may be rounded to a neighbour near a tie, and for floats only if the outputs are right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from autosched.errors import UsageError
from autosched.executor.kernel_origin import kernel_origin
from autosched.executor.model import Model
from autosched.graph.fusion.partition import dag_of
from autosched.graph.graph import Array, Graph
from autosched.graph.interpret import Arithmetic, evaluate_node, exact, interpret, plain
from autosched.graph.mapped_arrays import check_mapped
from autosched.graph.steps import Alias, Group, Join, Repeat, Write
from autosched.ir.dtype import DTYPES
from autosched.te.reference.evaluate import Reference, evaluate, within
from autosched.verification import isolation
from autosched.verification.isolation import ProgramDied
from autosched.verification.sample_inputs import InputSet, input_sets
from autosched.verification.tolerances import WINOGRAD_FACTOR, Comparison, compare, error_of_bounds, measure_error

Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class KernelCheck:
    """The check of one kernel. `worst`: its result with the largest relative error. `origin`: see `kernel_origin`."""

    step: int
    operators: str
    origin: str
    worst: Comparison

    @property
    def label(self) -> str:
        return _label(self.operators, self.origin)


@dataclass(frozen=True)
class Verification:
    """The comparisons of a network with its reference.

    `outputs`: comparison of each output, by the kind of inputs. `kernels`: in execution order, on the first kind of
    inputs with a wrong output, else the first kind; if a wrong kernel was to be located, up to that. `ideal`: outputs
    of the graph after passes, computed in float64. `foreign`: outputs of onnxruntime. `death`: message about a process
    that machine code has ended, empty without one; nothing was compared after that.
    """

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
        return max(self.all_outputs, key=lambda c: c.relative_error)

    @property
    def worst_kernel(self) -> KernelCheck | None:
        return max(self.kernels, key=lambda kernel: kernel.worst.relative_error, default=None)

    @property
    def first_wrong(self) -> KernelCheck | None:
        """The first kernel that exceeds its tolerance."""
        return next((kernel for kernel in self.kernels if not kernel.worst.passed), None)

    def summary(self) -> str:
        """Return a sentence on the first wrong result, or on the largest relative error."""
        if self.death:
            return self.death
        wrong = next((c for c in self.all_outputs if not c.passed), None)
        foreign = next((c for c in _flat(self.foreign) if not c.passed), None)
        if wrong is not None:
            return f"the output {wrong} {self._cause()}"
        if self.first_wrong is not None:
            return f"the kernel {self.first_wrong.label} is wrong: {self.first_wrong.worst}"
        if foreign is not None:
            return f"onnxruntime has other results than the reference: {foreign}"
        return f"the output nearest to its bound is {self.worst_output}"

    def _cause(self) -> str:
        if self.first_wrong is not None:
            return f"because of the kernel {self.first_wrong.label}: {self.first_wrong.worst}"
        if not all(c.passed for c in self.ideal):
            return "because of what passes make of the graph: it is wrong with exact kernels, too"
        return "though each kernel is right by itself: it is how they were put together"


def verify_network(
    model: Model, inputs: Sequence[InputSet], locate: bool = False, foreign: Mapping[str, Arrays] | None = None
) -> Verification:
    """Verify outputs and kernels of a network, each call in a forked process (`isolation`).

    `locate`: stop at the first wrong kernel. `foreign`: outputs of another program by the kind of inputs, which are
    compared with the reference too.
    """
    expected: dict[str, tuple[Arrays, Arrays]] = {}
    outputs: dict[str, tuple[Comparison, ...]] = {}
    for each in inputs:
        expected[each.kind] = references(model, each.arrays)
        try:
            results = isolation.results(model, each.arrays)
        except ProgramDied as death:
            step = isolation.step_that_dies(model, each.arrays)
            return Verification(outputs, (), (), {}, _death_message(model, death, step))
        outputs[each.kind] = _compare_all(results, *expected[each.kind], _tolerance_factor(model))
    others = {} if foreign is None else {kind: _compare_all(foreign[kind], *expected[kind], 1.0) for kind in expected}
    return _check_kernels(model, inputs, expected, outputs, others, locate)


def join(parts: Sequence[Verification]) -> Verification:
    """Return the verification of a network in these parts. Raises UsageError if there is none."""
    if not parts:
        raise UsageError("no part of the network is compiled: there is nothing to verify")
    outputs = {kind: tuple(c for part in parts for c in part.outputs.get(kind, ())) for kind in parts[0].outputs}
    kernels = tuple(kernel for part in parts for kernel in part.kernels)
    ideal = tuple(comparison for part in parts for comparison in part.ideal)
    return Verification(outputs, kernels, ideal, {}, next((part.death for part in parts if part.death), ""))


def with_bodies(whole: Verification, bodies: Sequence[Verification]) -> Verification:
    """Add the verifications of the bodies of a network's loops: their outputs and kernels count as kernels do."""
    parts = (whole, *bodies)
    return replace(
        whole,
        kernels=tuple(kernel for part in parts for kernel in part.kernels),
        ideal=tuple(c for part in parts for c in (*(part.all_outputs if part is not whole else ()), *part.ideal)),
        death=next((part.death for part in parts if part.death), ""),
    )


def verify_outputs(model: Model, inputs: InputSet, expected: tuple[Arrays, Arrays]) -> Verification:
    """Verify the outputs, and the kernels up to the first wrong one only if an output exceeds its tolerance.

    `expected`: the network's `references` for these inputs.
    """
    outputs = {inputs.kind: compare_outputs(model, inputs.arrays, expected)}
    if all(c.passed for c in outputs[inputs.kind]):
        return Verification(outputs, (), (), {})
    whole = _check_kernels(model, [inputs], {inputs.kind: expected}, outputs, {}, locate=True)
    bodies = () if whole.first_wrong else model.bodies
    return with_bodies(whole, [verify_network(body, input_sets(body.original), locate=True) for body in bodies])


def compare_outputs(model: Model, arrays: Arrays, expected: tuple[Arrays, Arrays]) -> tuple[Comparison, ...]:
    """Run the network in this process, and compare its outputs. `expected`: its `references` for these arrays."""
    return _compare_all(_results(model, arrays), *expected, _tolerance_factor(model))


def _check_kernels(
    model: Model,
    inputs: Sequence[InputSet],
    expected: Mapping[str, tuple[Arrays, Arrays]],
    outputs: Mapping[str, tuple[Comparison, ...]],
    foreign: Mapping[str, tuple[Comparison, ...]],
    locate: bool,
) -> Verification:
    """Complete the verification of outputs by that of kernels, on the first inputs with a wrong output."""
    failed = [each for each in inputs if not all(c.passed for c in outputs[each.kind])]
    suspect = (failed or inputs)[0]
    walk = _KernelWalk(model, suspect.arrays, bounds_floats=not failed)
    kernels = []
    try:
        for kernel in walk.checks():
            kernels.append(kernel)
            if locate and not kernel.worst.passed:
                break
    except ProgramDied as death:
        return Verification(outputs, tuple(kernels), (), foreign, _death_message(model, death, walk.step))
    is_complete = len(kernels) == len(model.program.kernels)
    ideal = _compare_all(walk.outputs(), *expected[suspect.kind], _tolerance_factor(model)) if is_complete else ()
    if is_complete and all(c.passed for c in (*ideal, *(kernel.worst for kernel in kernels))):
        widened = {each.kind: _with_propagated_errors(model, each, expected, outputs) for each in failed}
        outputs = {**outputs, **widened}
    return Verification(outputs, tuple(kernels), ideal, foreign)


def _death_message(model: Model, death: ProgramDied, step: int) -> str:
    if step < 0:
        return f"the process that ran the network {death}, and not when its kernels are called one after the other"
    group = model.program.steps[step]
    assert isinstance(group, Group)
    kernel = _label(_operators(group), kernel_origin(group))
    return f"the process that ran the network {death} in the kernel {kernel}"


def _with_propagated_errors(
    model: Model,
    inputs: InputSet,
    expected: Mapping[str, tuple[Arrays, Arrays]],
    outputs: Mapping[str, tuple[Comparison, ...]],
) -> tuple[Comparison, ...]:
    """Return the comparisons of the outputs with tolerances increased by the propagated errors of the kernels;
    unchanged if a kernel is wrong for the results of earlier kernels."""
    walk, (exact_outputs, _) = _KernelWalk(model, inputs.arrays, is_chained=True), expected[inputs.kind]
    comparisons = outputs[inputs.kind]
    if not all(kernel.worst.passed for kernel in walk.checks()):
        return comparisons
    results = walk.outputs()
    return tuple(
        replace(c, tolerance=c.tolerance.plus(measure_error(results[c.name], exact_outputs[c.name])))
        for c in comparisons
    )


def references(model: Model, arrays: Arrays) -> tuple[Arrays, Arrays]:
    """Return the outputs in float64, and those of a plain evaluation. Raises GraphError if a constant can no longer be
    read."""
    check_mapped(model.original.constants)
    return interpret(model.original, arrays, exact), interpret(model.original, arrays, plain)


def _results(model: Model, arrays: Arrays) -> Arrays:
    outputs = model(*(arrays[name] for name in model.original.inputs))
    return dict(zip(model.original.outputs, outputs if isinstance(outputs, tuple) else (outputs,), strict=True))


def _flat(comparisons: Mapping[str, tuple[Comparison, ...]]) -> tuple[Comparison, ...]:
    return tuple(c for each in comparisons.values() for c in each)


def _tolerance_factor(model: Model) -> float:
    return WINOGRAD_FACTOR if any(kernel.winograd for kernel in model.program.kernels.values()) else 1.0


def _compare_all(results: Arrays, reference: Arrays, plain: Arrays, factor: float) -> tuple[Comparison, ...]:
    return tuple(compare(name, results[name], exact, plain[name], factor=factor) for name, exact in reference.items())


class _KernelWalk:
    """Checks of the kernels of a program in order, on the values of its graph.

    The values are those of each kernel's nodes in float64, rounded to their types; if `is_chained`, those that the
    kernel computes. `bounds_floats`: whether the error bounds of operations are accepted for floats.
    """

    def __init__(self, model: Model, arrays: Arrays, *, is_chained: bool = False, bounds_floats: bool = False) -> None:
        self._model, self._program = model, model.program
        self._is_chained, self._bounds_floats = is_chained, bounds_floats
        graph = self._program.graph
        self._values: dict[str, Array] = dict(graph.constants)
        for name, original in zip(graph.inputs, model.original.inputs, strict=True):
            self._values[name] = arrays[original]
        self._last_use: dict[str, int] = {}
        for n, step in enumerate(self._program.steps):
            if not isinstance(step, Alias):
                self._last_use.update((self._base(name), n) for name in _read(step))
        self._kept = {self._base(name) for name in graph.outputs}
        self.step = -1  # of the kernel that ran last

    def checks(self) -> Iterator[KernelCheck]:
        for n, step in enumerate(self._program.steps):
            if isinstance(step, Alias):
                continue
            if isinstance(step, Join):
                parts = [self._value(name) for name in step.parts]
                self._values[step.output] = step.of(parts, self._program.graph.values[step.output].shape)
            elif isinstance(step, Repeat):
                given = {name: self._value(name) for name in step.node.used}
                self._values.update(self._repeat(step, given))
            elif isinstance(step, Write):
                self._values[step.output] = step.of(*map(self._value, step.reads))
            else:
                yield self._check(n, step)
            for name in {self._base(name) for name in _read(step)}:
                if self._last_use[name] == n and name not in self._kept:
                    self._values.pop(name, None)

    def _repeat(self, loop: Repeat, given: Arrays) -> dict[str, Array]:
        """Return the results of a loop, in float64 and rounded to their types. Its kernels are checked in its body."""
        results = evaluate_node(loop.node, self._program.graph, given, exact)
        types = [DTYPES[self._program.graph.values[name].dtype].numpy_dtype for name in loop.outputs]
        return {n: a.astype(dtype) for n, a, dtype in zip(loop.outputs, results, types, strict=True)}

    def outputs(self) -> dict[str, Array]:
        """Return the outputs of the network, after all checks."""
        names = zip(self._model.original.outputs, self._program.graph.outputs, strict=True)
        return {original: self._value(name) for original, name in names}

    def _check(self, n: int, group: Group) -> KernelCheck:
        graph = self._program.graph
        inputs = {name: self._value(name) for name in group.inputs}
        reference, usual = (_evaluate_group(graph, group, inputs, arithmetic) for arithmetic in (exact, plain))
        self.step, varying = n, {k: a for k, a in inputs.items() if not graph.is_constant(self._base(k))}
        results = isolation.run_step(self._model, n, varying)
        tile = self._program.kernels[n].winograd
        factor = WINOGRAD_FACTOR if tile else 1.0
        comparisons = [
            compare(name, results[name], reference[name], usual[name], factor=factor) for name in group.outputs
        ]
        has_floats = any(DTYPES[graph.values[name].dtype].is_float for name in group.outputs)
        if (self._bounds_floats or not has_floats) and not all(c.passed for c in comparisons):
            comparisons = _within_bounds(comparisons, _error_bounds(graph, group, inputs, tile), results)
        worst = max(comparisons, key=lambda c: c.relative_error)
        for name in group.outputs:
            dtype = DTYPES[graph.values[name].dtype].numpy_dtype
            self._values[name] = results[name] if self._is_chained else reference[name].astype(dtype, copy=False)
        return KernelCheck(self._program.first_step + n, _operators(group), kernel_origin(group), worst)

    def _base(self, name: str) -> str:
        return self._program.bases.get(name, name)

    def _value(self, name: str) -> Array:
        view = self._program.views.get(name, Alias(name, name))
        return view.part_of(self._values[view.base], self._program.graph.values[name].shape)


def _label(operators: str, origin: str) -> str:
    return f"{operators} ({origin})" if origin else operators


def _operators(group: Group) -> str:
    return " ".join(node.operator for node in group.nodes)


def _read(step: Group | Join | Write | Repeat) -> tuple[str, ...]:
    if isinstance(step, Write | Repeat):
        return step.reads
    return step.inputs if isinstance(step, Group) else step.parts


def _evaluate_group(graph: Graph, group: Group, inputs: Arrays, arithmetic: Arithmetic) -> dict[str, Array]:
    """Return the group's outputs, computed node by node."""
    values = dict(inputs)
    for node in group.nodes:
        values.update(zip(node.outputs, evaluate_node(node, graph, values, arithmetic), strict=True))
    return {name: values[name] for name in group.outputs}


def _error_bounds(graph: Graph, group: Group, inputs: Arrays, tile: int) -> tuple[Reference, ...]:
    """Return the group's outputs with the error bounds of its operations, in any order."""
    return evaluate(dag_of(graph, group), {f"x{n}": inputs[name] for n, name in enumerate(group.inputs)}, tile)


def _within_bounds(
    comparisons: Sequence[Comparison], references: Sequence[Reference], results: Arrays
) -> list[Comparison]:
    """Widen the tolerance of each result whose elements are all within their error bounds to these bounds."""
    widened = []
    for c, reference in zip(comparisons, references, strict=True):
        if within(reference, results[c.name]).all():
            bounds = error_of_bounds(reference.bound, reference.value)
            widened.append(replace(c, tolerance=c.tolerance.maximum(bounds)))
        else:
            widened.append(c)
    return widened
