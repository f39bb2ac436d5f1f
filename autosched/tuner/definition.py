"""Definition of a workload: from its name or function and its options to its graph of stages.

A workload is a built-in name, `path/to/file.py:function`, or a Python function whose arguments have names and defaults
and which returns its output tensors.
"""

from __future__ import annotations

import inspect
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeAlias

from autosched.errors import AutoschedError, GraphError, StoreError, UsageError
from autosched.ir.instructions.precision import EXACT, FAST_FLOAT8
from autosched.ir.types import recorded_type
from autosched.target.far_weights import FAR, NEAR
from autosched.tuner.options import NO_OPTIONS, WorkloadOptions

if TYPE_CHECKING:
    from autosched.te import ComputeDAG, Tensor

Operator: TypeAlias = "Callable[..., Tensor | Sequence[Tensor]]"
Workload: TypeAlias = "str | Operator"


@dataclass(frozen=True)
class Definition:
    """A workload with its arguments. `shape`: the integer arguments in order. `spec`: JSON from which `dag` can be
    rebuilt."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    dag: ComputeDAG
    spec: str

    @property
    def sizes(self) -> dict[str, range]:
        """The ranges of the sizes that the expression declares, by name."""
        from autosched.te.sizes import declared_sizes

        return declared_sizes(self.dag)


def define(workload: Workload, options: WorkloadOptions = NO_OPTIONS) -> Definition:
    """Return the definition of a workload with these options.

    Raises UsageError for arguments that the workload does not have, ExpressionError for errors of its function.
    """
    if isinstance(workload, str):
        return _with_options(_define_named(workload, options), options)
    return _with_options(_define_function(workload, options), options)


def function_of(tensors: Sequence[Tensor]) -> Operator:
    """Return the function of an expression: of its outputs, which its inputs may precede in the order of creation.

    Raises UsageError for other tensors, and for objects that are none.
    """
    from autosched.te import ComputeDAG, PlaceholderOp, Tensor

    if not all(isinstance(t, Tensor) for t in tensors):
        raise UsageError(f"an expression is a list of tensors, as in [A, B, C], got {tensors!r}")
    outputs = tuple(t for t in tensors if not isinstance(t.op, PlaceholderOp))
    dag = ComputeDAG(outputs)
    orders = [t.op.order for t in dag.inputs if isinstance(t.op, PlaceholderOp)]
    given = [t.op.order if isinstance(t.op, PlaceholderOp) else -1 for t in tensors]
    if given != [-1] * len(outputs) and given != [*orders, *[-1] * len(outputs)]:
        names = ", ".join(t.name for t in (*dag.inputs, *dag.outputs))
        raise UsageError(f"the tensors of an expression are its inputs as they were made, then outputs: [{names}]")

    def expression() -> tuple[Tensor, ...]:
        return outputs

    expression.__name__ = outputs[0].name
    return expression


def dag_of_sizes(workload: Workload, definition: Definition, sizes: Mapping[str, int]) -> ComputeDAG:
    """Return the graph of a workload with other integer arguments, which may be sizes (`ir.size`).

    Raises UsageError for an argument that is no integer of the workload.
    """
    from autosched.te import ComputeDAG
    from autosched.te.operators.registry import outputs_of

    spec = json.loads(definition.spec)
    args = dict(spec["args"])
    for name in sizes:
        if not isinstance(args.get(name), int):
            numbers = ", ".join(key for key, value in args.items() if isinstance(value, int))
            raise UsageError(f"{definition.name} has no number {name} that could vary; it has {numbers or 'none'}")
    args.update(sizes)
    outputs = outputs_of(workload, args, spec["dtype"]) if isinstance(workload, str) else workload(**args)
    return ComputeDAG(outputs)


def redefinitions(spec: str, workload: Workload | None) -> list[Definition]:
    """Return the definitions of a stored `spec`, which may name several functions with the same graph: built-in ones,
    and the user's if it is given as `workload`. Raises what `redefine` raises if there is none."""
    from autosched.store.records import parse_data

    try:
        data: Any = parse_data(spec)
        texts = [spec, *(json.dumps(other, sort_keys=True) for other in data.get("also", ()))]
    except (StoreError, ValueError, TypeError, AttributeError):
        texts = [spec]
    definitions, errors = [], []
    for text in texts:
        try:
            definitions.append(redefine(text, workload))
        except AutoschedError as error:  # a function with other arguments, or a user's function
            errors.append(error)
    if not definitions:
        raise errors[0]
    return definitions


def own_names(spec: str) -> list[str]:
    """Return the names of the user's functions in a stored `spec`."""
    from autosched.store.records import parse_data
    from autosched.te.operators.registry import WORKLOADS

    data: Any = parse_data(spec)
    names = [str(entry.get("name")) for entry in (data, *data.get("also", ()))]
    return [name[:200] for name in names if name not in WORKLOADS]


def redefine(spec: str, workload: Workload | None) -> Definition:
    """Return the definition of a stored `spec`. Raises UsageError for a user's function that is not given as
    `workload`: a database may come from elsewhere and must not name code to run."""
    from autosched.store.records import parse_data
    from autosched.te.operators.registry import WORKLOADS, resolve

    try:
        data: Any = parse_data(spec)
        name, args, dtype = str(data["name"]), dict(data["args"]), str(data["dtype"])
        options = WorkloadOptions(
            weights=spec_weights(data), winograd=data.get("winograd") is True, precision=data.get("precision", EXACT)
        )
    except (StoreError, ValueError, TypeError, KeyError) as error:
        raise UsageError(f"the record's description of its workload cannot be understood: {spec[:80]!r}") from error
    if data.get("graph") is not None:
        return _define_group(name, dtype, data, options)
    if workload is not None and _is_own(workload):
        return define(workload, replace(options, settings=args))
    if name not in WORKLOADS:
        raise UsageError(
            f"the record's workload {name[:200]!r} is a function of the user's own: give it as workload "
            "(--workload FILE.py:FUNCTION)"
        )
    dag = resolve({"name": name, "args": args, "dtype": dtype})
    order = WORKLOADS[name].args  # the JSON is sorted by name
    definition = _definition(name, dag, {a: args[a] for a in order if a in args}, dtype, data)
    return _with_options(definition, options)


def _define_group(name: str, dtype: str, spec: Mapping[str, Any], options: WorkloadOptions) -> Definition:
    """Return the definition of a network's group of operators. Its shape is that of its first result."""
    from autosched.graph.group_description import described_dag

    try:
        dag = described_dag(spec["graph"])
    except GraphError as error:
        raise UsageError(str(error)) from error
    if (level := spec.get("weights_in", NEAR)) not in (NEAR, *FAR):
        raise UsageError(f"weights of a network lie in {' or '.join(FAR)}, the record says {str(level)[:80]!r}")
    dag = dag.with_weights_in(level) if level else dag
    dag = dag.with_winograd() if options.winograd else dag
    dag = dag if options.precision == EXACT else _less_precise(name, dag, options.precision)
    return Definition(name, dag.outputs[0].public_shape, dtype, dag, json.dumps(spec, sort_keys=True))


def spec_weights(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the weights in a stored description. Raises TypeError for a damaged one."""
    names = spec.get("weights", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError("weights must be a list of names")
    return tuple(names)


def _with_options(definition: Definition, options: WorkloadOptions) -> Definition:
    """Return the definition with the weights, Winograd and precision of the options."""
    dag, entries = definition.dag, dict[str, Any]()
    if options.weights:
        dag = dag.with_weights(options.weights)
        entries["weights"] = dag.weights
    if options.winograd:
        dag = _with_winograd(definition.name, dag)
        entries["winograd"] = True
    if options.precision != EXACT:
        dag = _less_precise(definition.name, dag, options.precision)
        entries["precision"] = options.precision
    if not entries:
        return definition
    return replace(definition, dag=dag, spec=json.dumps({**json.loads(definition.spec), **entries}, sort_keys=True))


def _less_precise(name: str, dag: ComputeDAG, precision: str) -> ComputeDAG:
    from autosched.te.rewrites.precision import with_precision

    rounded = with_precision(dag, precision)
    if rounded is dag:
        kind = "8-bit floats" if precision == FAST_FLOAT8 else "float32"
        raise UsageError(f"{name} has no sum of products of {kind}, which precision={precision!r} is for")
    return rounded


def _with_winograd(name: str, dag: ComputeDAG) -> ComputeDAG:
    from autosched.te.rewrites.winograd import match_stage

    if all(match_stage(op) is None for op in dag.stages):
        raise UsageError(f"{name} has no 3x3 convolution of stride 1, which Winograd's algorithm is for")
    return dag.with_winograd()


def arguments(function: Operator) -> dict[str, Any]:
    """Return the names and defaults of a workload function's arguments. Raises UsageError for one without either."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # not callable, or without a signature
        raise UsageError(
            f"a workload is a built-in name, 'path/to/file.py:function' or a function, got {function!r}"
        ) from None
    name = getattr(function, "__name__", repr(function))
    for p in parameters:
        if p.kind not in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) or p.default is p.empty:
            raise UsageError(f"argument {p.name} of the workload {name} needs a name and a default, as in {p.name}=1")
    return {p.name: p.default for p in parameters}


def _define_named(workload: str, options: WorkloadOptions) -> Definition:
    from autosched.te.operators.registry import build

    dag, spec = build(workload, options.shape, options.settings, options.batch, options.dtype)
    return _definition(workload, dag, spec["args"], str(spec.get("dtype") or _dtype(dag)), spec)


def _define_function(function: Operator, options: WorkloadOptions) -> Definition:
    from autosched.te import ComputeDAG

    values = {key: _recorded_value(default) for key, default in arguments(function).items()}
    name = getattr(function, "__name__", repr(function))
    numbers = [a for a, default in values.items() if isinstance(default, int)]
    given = _integers(name, options.shape)
    if len(given) > len(numbers) or (options.batch is not None and not numbers):
        raise UsageError(f"{name} has the numbers ({', '.join(numbers)}), but {len(given)} are given as shape or batch")
    values.update(zip(numbers, given, strict=False))
    settings = {key: _recorded_value(value) for key, value in (options.settings or {}).items()}
    if options.dtype is not None:
        settings["dtype"] = options.dtype
    unknown = [a for a in settings if a not in values]
    if unknown:
        raise UsageError(f"{name} has no argument {unknown[0]}; it has {', '.join(values) or 'none'}")
    values.update(settings)
    if options.batch is not None:
        first, (batch,) = numbers[0], _integers(name, [options.batch])
        values[first] = batch * values[first] if first == "M" else batch
    dag = ComputeDAG(function(**values))
    dtype = str(values.get("dtype") or _dtype(dag))
    spec = {"name": f"{inspect.getsourcefile(function)}:{name}", "args": values, "dtype": dtype}
    return _definition(name, dag, values, dtype, spec)


def _integers(name: str, given: object) -> list[int]:
    """Return a shape or a batch as Python's integers."""
    try:
        return [operator.index(n) for n in (() if given is None else given)]  # type: ignore[attr-defined]
    except TypeError:
        raise UsageError(f"{name}: shape and batch are whole numbers, as in shape=(64, 32), got {given!r}") from None


def _recorded_value(value: Any) -> Any:
    """Return a value as records hold it: NumPy's integers as Python's, and its types by name."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        return recorded_type(value)
    return operator.index(value)


def _definition(name: str, dag: ComputeDAG, args: Mapping[str, Any], dtype: str, spec: Mapping[str, Any]) -> Definition:
    shape = tuple(value for value in args.values() if isinstance(value, int))
    try:
        text = json.dumps(spec, sort_keys=True)
    except TypeError as error:
        raise UsageError(f"the arguments of {name} must be numbers or words to be recorded: {error}") from error
    return Definition(name, shape, dtype, dag, text)


def _is_own(workload: Workload) -> bool:
    """Return whether the workload is a user's function."""
    return not isinstance(workload, str) or ":" in workload


def _dtype(dag: ComputeDAG) -> str:
    return (dag.inputs or dag.outputs)[0].dtype
