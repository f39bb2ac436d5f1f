"""Which of the standard's own test cases of single operators are imported and computed as they say.

    python -m tests.graph.onnx.conformance             all cases; how many pass, and why others do not
    python -m tests.graph.onnx.conformance --update    writes those that pass into the list, which may only grow
    python -m tests.graph.onnx.conformance softmax     the cases whose name has this word, each with its outcome
    python -m tests.graph.onnx.conformance --compiled  the listed cases as kernels, in processes that may end
    python -m tests.graph.onnx.conformance --loaded    all cases as `autosched.load` runs them, nodes without a rule too
    python -m tests.graph.onnx.conformance --traced    the listed cases with symbols for all sizes

The list lacks test_resize_downsample_scales_linear_align_corners and its cubic sibling: they expect the size before it is
rounded down in the formula, where ONNX Runtime and PyTorch have the size of the result.

A case is one operator, or what the standard defines it by, with inputs and what is expected. An input that must be known
while importing, as a shape, is made a constant of the model; all others stay inputs, so that nothing is compared with
itself.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, ValueInfoProto, numpy_helper

import autosched
from autosched.errors import GraphError, RefusedNodes, UsageError
from autosched.graph.graph import Array, Graph
from autosched.graph.interpret import interpret
from autosched.graph.onnx.held_types import held
from autosched.graph.onnx.importer import import_model
from autosched.graph.onnx.site import NotConstant
from autosched.graph.passes import run_passes
from autosched.graph.traces import numbered_graph, symbolic_sizes
from autosched.ir.dtype import DTYPES
from autosched.ir.size import Guards, value_of
from tests.graph.outcomes import Outcome, found, in_processes

LIST = Path(__file__).with_name("passed.txt")
SUBSET = ("add", "cast", "constant", "constantofshape", "identity", "relu", "shape", "size", "sum", "where")
SEED = 7  # of the data that cases draw
Run = Callable[[Graph, Mapping[str, Array]], Mapping[str, Array]]
Read = Callable[[ModelProto, Mapping[str, int], Mapping[str, Array]], Graph]
Case = Any  # onnx.backend.test.case.test_case.TestCase, which has no types
PASSED = "passed"
CASE_S = 120


def cases_of(modules: Iterable[str] | None = None) -> list[Case]:
    """All cases, or those of some modules of the standard's tests, as `conv`; all take half a minute to make."""
    from onnx.backend.test.case import node

    np.random.seed(SEED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # cases overflow and divide by 0 on purpose
        if modules is None:
            return list(node.collect_testcases())
        for name in modules:
            importlib.import_module(f"{node.__name__}.{name}")
    return list(node._NodeTestCases)


def outcome_of(case: Case, run: Run = interpret, read: Read = import_model) -> Outcome:
    given, results_expected = case.data_sets[0]
    inputs = tensors_of(case.model.graph.input, given)
    expected = tensors_of(case.model.graph.output, results_expected)
    if any(array is None for array in (*inputs.values(), *expected.values())):
        return Outcome("refused", "optional values without content")
    model = with_sequences_of_tensors(case.model, given)
    try:
        graph = imported(model, inputs, read)
        with np.errstate(all="ignore"):
            results = run(graph, {name: held(inputs[name]) for name in graph.inputs})
    except GraphError as error:
        return Outcome("refused", str(error))
    if set(results) != set(expected):
        return Outcome("wrong", f"the outputs are {sorted(results)} instead of {sorted(expected)}")
    for name, array in expected.items():
        if difference := differs(results[name], held(array), case):
            return Outcome("wrong", f"{name}: {difference}")
    return Outcome(PASSED)


def tensors_of(infos: Sequence[ValueInfoProto], held: Sequence[Any]) -> dict[str, Any]:
    """By name the arrays that a case has of its inputs or outputs; those of a sequence x are x[0], x[1], ..."""
    arrays: dict[str, Any] = {}
    for info, one in zip(infos, held, strict=False):
        parts = enumerate(one) if isinstance(one, list) else ()
        arrays |= {f"{info.name}[{n}]": as_array(part) for n, part in parts}
        arrays |= {} if isinstance(one, list) else {info.name: as_array(one)}
    return arrays


def with_sequences_of_tensors(model: ModelProto, held: Sequence[Any]) -> ModelProto:
    """The model with an input for each tensor of a sequence that is an input, which a node then makes of them."""
    if not any(isinstance(one, list) for one in held):
        return model
    changed = ModelProto()
    changed.CopyFrom(model)
    del changed.graph.input[:]
    for info, one in zip(model.graph.input, held, strict=True):
        parts = tensors_of([info], [one])
        for name, array in parts.items():
            dtype = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            changed.graph.input.append(onnx.helper.make_tensor_value_info(name, dtype, array.shape))
        if not isinstance(one, list):
            continue
        operator = "SequenceConstruct" if parts else "SequenceEmpty"
        changed.graph.node.insert(0, onnx.helper.make_node(operator, [*parts], [info.name]))
    return changed


def as_array(given: Any) -> Any:
    """An array of what a case holds; None for an optional value without content."""
    if isinstance(given, onnx.TensorProto):
        return numpy_helper.to_array(given)
    return np.asarray(given) if isinstance(given, np.ndarray | np.generic) else None


def imported(model: ModelProto, inputs: dict[str, Array], read: Read) -> Graph:
    """The graph of a case. Inputs that must be known become constants, one after the other; where what must be known is
    computed, those are the inputs of integers, as sizes are."""
    fixed = dict[str, Array]()
    while True:
        try:
            return read(model, {}, fixed)
        except RefusedNodes as refused:
            error = refused.__cause__
            if not isinstance(error, NotConstant):
                raise
            left = {name: array for name, array in inputs.items() if name not in fixed}
            names = [error.value] if error.value in left else [n for n, a in left.items() if a.dtype.kind in "iub"]
            if not names:
                raise
            fixed |= {name: inputs[name] for name in names}


def traced(model: ModelProto, _: Mapping[str, int], fixed: Mapping[str, Array]) -> Graph:
    """The graph after passes of a model whose sizes of more than 1 are symbols, with their numbers."""
    varying, sizes = ModelProto(), dict[str, int]()
    varying.CopyFrom(model)
    for info in varying.graph.input:
        if info.name in fixed or info.type.WhichOneof("value") != "tensor_type":
            continue
        for n, dim in enumerate(info.type.tensor_type.shape.dim):
            if dim.dim_value > 1:
                sizes[f"{info.name}_{n}"] = dim.dim_value
                dim.dim_param = f"{info.name}_{n}"
    with Guards() as guards:
        symbols = symbolic_sizes(guards, sizes, dict.fromkeys(sizes, range(1 << 30)))
        return numbered_graph(run_passes(import_model(varying, symbols, fixed))[0], value_of)


def differs(result: Array, expected: Array, case: Case) -> str:
    """What is different, or nothing."""
    if (result.dtype, result.shape) != (expected.dtype, expected.shape):
        return f"{result.dtype}{list(result.shape)} instead of {expected.dtype}{list(expected.shape)}"
    if expected.dtype.kind in "biu":
        count = int((result != expected).sum())
        return f"{count} of {expected.size} elements are different" if count else ""
    # What is expected was computed in its own type, which rounds more often than we do.
    rtol = max(case.rtol, 4 * float(DTYPES[expected.dtype.name].unit_roundoff))
    a, b = (array.astype(np.float64) for array in (result, expected))
    close = np.isclose(a, b, rtol=rtol, atol=case.atol, equal_nan=True)
    worst = np.nanmax(np.abs(a - b)) if not close.all() else 0.0
    return "" if close.all() else f"{int((~close).sum())} of {expected.size} elements differ, by up to {worst:.3g}"


def listed() -> list[str]:
    return LIST.read_text(encoding="utf-8").split()


def by_kernels(graph: Graph, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    """The outputs as the compiled network computes them."""
    from autosched.executor.compile_graph import compile_graph

    results = compile_graph(graph, threads=1)(*(inputs[name] for name in graph.inputs))
    return dict(zip(graph.outputs, results if isinstance(results, tuple) else (results,), strict=True))


def as_loaded(case: Case) -> Outcome:
    """The outcome of a case by `autosched.load`, with all inputs as they are given."""
    given, expected = ([as_array(a) for a in arrays] for arrays in case.data_sets[0])
    if any(array is None for array in (*given, *expected)):
        return Outcome("refused", "sequences and optional values")
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "case.onnx"
        onnx.save(case.model, path)
        try:
            results = autosched.load(path, threads=1, specialise="never")(*map(held, given))
        except (GraphError, UsageError) as error:
            return Outcome("refused", str(error))
    results = results if isinstance(results, tuple) else (results,)
    for info, result, array in zip(case.model.graph.output, results, map(held, expected), strict=True):
        if array.dtype.kind == "O":
            difference = "" if np.array_equal(np.asarray(result, object), array) else "the texts are different"
        else:
            difference = differs(np.asarray(result), array, case)
        if difference:
            return Outcome("wrong", f"{info.name}: {difference}")
    return Outcome(PASSED)


def outcomes(cases: Sequence[Case], compiled: bool, loaded: bool, read: Read) -> Iterator[tuple[str, Outcome]]:
    """By the reference, or by kernels in processes, which LLVM may end."""
    if compiled or loaded:
        judge = as_loaded if loaded else lambda case: outcome_of(case, by_kernels)
        yield from ((case.name, o) for case, o in in_processes(cases, judge, CASE_S))
    else:
        yield from ((case.name, found(case, lambda each: outcome_of(each, read=read))) for case in cases)


def reason(why: str) -> str:
    """A refusal without what is of its case alone, to count it."""
    for word in ("there is no operator ", "not supported: "):
        if word in why:
            return word + why.partition(word)[2].partition(" (")[0]
    return why.partition(": ")[2][:90] or why[:90]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.graph.onnx.conformance")
    parser.add_argument("words", nargs="*", help="cases whose name has all of these")
    parser.add_argument("--update", action="store_true", help="write the list of cases that pass")
    parser.add_argument("--compiled", action="store_true", help="the listed cases as compiled kernels")
    parser.add_argument("--loaded", action="store_true", help="as `autosched.load` runs them")
    parser.add_argument("--traced", action="store_true", help="the listed cases with symbols for all sizes")
    options = parser.parse_args()
    if options.update and (options.words or options.compiled or options.loaded or options.traced):
        parser.error("the list is written of all cases by the reference: give --update alone")
    known = set(listed())
    chosen = [case for case in cases_of() if all(word in case.name for word in options.words)]
    cases = [case for case in chosen if case.name in known or not (options.compiled or options.traced)]
    results = dict(outcomes(cases, options.compiled, options.loaded, traced if options.traced else import_model))
    if options.words:
        print("\n".join(f"{name}: {o.kind} {o.why}" for name, o in results.items()))
        return 0
    report(results)
    passed = sorted(name for name, o in results.items() if o.kind == PASSED)
    if lost := sorted(set(listed()) - set(passed)):
        print(f"{len(lost)} listed cases do not pass: {', '.join(lost)}")
        return 1
    if options.update:
        LIST.write_text("\n".join(passed) + "\n", encoding="utf-8")
        print(f"written to {LIST.name}")
    return 0


def report(results: dict[str, Outcome]) -> None:
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    for name, o in results.items():
        if o.kind != PASSED:
            reasons[o.kind][reason(o.why) if o.kind == "refused" else f"{name}: {o.why[:150]}"] += 1
    for kind, counter in reasons.items():
        print(f"{kind} ({counter.total()}):")
        print("\n".join(f"  {count:4} {why}" for why, count in counter.most_common()))
    passed = sum(o.kind == PASSED for o in results.values())
    print(f"{passed} of {len(results)} cases pass; onnx {onnx.__version__}")


if __name__ == "__main__":
    sys.exit(main())
