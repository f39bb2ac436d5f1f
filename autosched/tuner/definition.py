"""What the user wrote, with numbers put in: from a workload's name or function to its DAG.

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
from autosched.ir.instructions.precision import EXACT
from autosched.ir.types import recorded_type
from autosched.target.far_weights import FAR, NEAR
from autosched.tuner.options import NOTHING, Asked

if TYPE_CHECKING:
    from autosched.te import ComputeDAG, Tensor

Operator: TypeAlias = "Callable[..., Tensor | Sequence[Tensor]]"
Workload: TypeAlias = "str | Operator"


@dataclass(frozen=True)
class Definition:
    """A workload with its numbers: `shape` are the integer arguments in order, `spec` the JSON that rebuilds `dag`."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    dag: ComputeDAG
    spec: str


def define(workload: Workload, asked: Asked = NOTHING) -> Definition:
    """`workload` with its numbers, its weights and, where that is accepted, larger errors.

    Raises UsageError for arguments that the workload does not have, and ExpressionError for what its function does
    wrong.
    """
    found = _by_name(workload, asked) if isinstance(workload, str) else _of_function(workload, asked)
    return _declared(found, asked)


def redefinitions(spec: str, workload: Workload | None) -> list[Definition]:
    """The definitions of a stored `spec`: of all functions of the same content that are built in, or, given as
    `workload`, the user's own. Raises UsageError as `redefine` does where there is none."""
    from autosched.store.records import parse_data

    try:
        data: Any = parse_data(spec)
        texts = [spec, *(json.dumps(other, sort_keys=True) for other in data.get("also", ()))]
    except (StoreError, ValueError, TypeError, AttributeError):
        texts = [spec]
    found, errors = [], []
    for text in texts:
        try:
            found.append(redefine(text, workload))
        except AutoschedError as error:  # of a function of other arguments, or of the user's own
            errors.append(error)
    if not found:
        raise errors[0]
    return found


def own_names(spec: str) -> list[str]:
    """What the user's functions among those of a stored `spec` are called."""
    from autosched.store.records import parse_data
    from autosched.te.operators.registry import WORKLOADS

    data: Any = parse_data(spec)
    names = [str(entry.get("name")) for entry in (data, *data.get("also", ()))]
    return [name[:200] for name in names if name not in WORKLOADS]


def redefine(spec: str, workload: Workload | None) -> Definition:
    """The definition of a stored `spec`. Raises UsageError for a user's function that is not given as `workload`:
    a database may come from elsewhere and must not name code to run."""
    from autosched.store.records import parse_data
    from autosched.te.operators.registry import WORKLOADS, resolve

    try:
        data: Any = parse_data(spec)
        name, args, dtype = str(data["name"]), dict(data["args"]), str(data["dtype"])
        asked = Asked(
            weights=spec_weights(data), winograd=data.get("winograd") is True, precision=data.get("precision", EXACT)
        )
    except (StoreError, ValueError, TypeError, KeyError) as error:
        raise UsageError(f"the record's description of its workload cannot be understood: {spec[:80]!r}") from error
    if data.get("graph") is not None:
        return _of_network(name, dtype, data, asked)
    if workload is not None and _is_own(workload):
        return define(workload, replace(asked, settings=args))
    if name not in WORKLOADS:
        raise UsageError(
            f"the record's workload {name[:200]!r} is a function of the user's own: give it as workload "
            "(--workload FILE.py:FUNCTION)"
        )
    dag = resolve({"name": name, "args": args, "dtype": dtype})
    known = WORKLOADS[name].args  # the JSON has them sorted by name
    found = _definition(name, dag, {a: args[a] for a in known if a in args}, dtype, data)
    return _declared(found, asked)


def _of_network(name: str, dtype: str, spec: Mapping[str, Any], asked: Asked) -> Definition:
    """A kernel of a network, which is described by the operators in it. Its shape is that of its first result."""
    from autosched.graph.group_description import described_dag

    try:
        dag = described_dag(spec["graph"])
    except GraphError as error:
        raise UsageError(str(error)) from error
    if (place := spec.get("weights_in", NEAR)) not in (NEAR, *FAR):
        raise UsageError(f"weights of a network lie in {' or '.join(FAR)}, the record says {str(place)[:80]!r}")
    dag = dag.with_weights_in(place) if place else dag
    dag = dag.with_winograd() if asked.winograd else dag
    dag = dag if asked.precision == EXACT else _less_precise(name, dag, asked.precision)
    return Definition(name, dag.outputs[0].public_shape, dtype, dag, json.dumps(spec, sort_keys=True))


def spec_weights(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """The weights that a stored description names. Raises TypeError where it makes no sense."""
    names = spec.get("weights", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError("weights must be a list of names")
    return tuple(names)


def _declared(found: Definition, asked: Asked) -> Definition:
    """The definition with inputs as weights and, where they are accepted, with Winograd's error and products that are
    less precise."""
    dag, declared = found.dag, dict[str, Any]()
    if asked.weights:
        dag = dag.with_weights(asked.weights)
        declared["weights"] = dag.weights
    if asked.winograd:
        dag = _with_winograd(found.name, dag)
        declared["winograd"] = True
    if asked.precision != EXACT:
        dag = _less_precise(found.name, dag, asked.precision)
        declared["precision"] = asked.precision
    if not declared:
        return found
    return replace(found, dag=dag, spec=json.dumps({**json.loads(found.spec), **declared}, sort_keys=True))


def _less_precise(name: str, dag: ComputeDAG, precision: str) -> ComputeDAG:
    from autosched.te.rewrites.precision import with_precision

    made = with_precision(dag, precision)
    if made is dag:
        raise UsageError(f"{name} has no sum of products of float32, which precision={precision!r} is for")
    return made


def _with_winograd(name: str, dag: ComputeDAG) -> ComputeDAG:
    from autosched.te.rewrites.winograd import match_stage

    if all(match_stage(op) is None for op in dag.stages):
        raise UsageError(f"{name} has no 3x3 convolution of stride 1, which Winograd's algorithm is for")
    return dag.with_winograd()


def arguments(function: Operator) -> dict[str, Any]:
    """Names and defaults of a workload function's arguments. Raises UsageError where one has no name or no default."""
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


def _by_name(workload: str, asked: Asked) -> Definition:
    from autosched.te.operators.registry import build

    dag, spec = build(workload, asked.shape, asked.settings, asked.batch, asked.dtype)
    return _definition(workload, dag, spec["args"], str(spec.get("dtype") or _dtype(dag)), spec)


def _of_function(function: Operator, asked: Asked) -> Definition:
    from autosched.te import ComputeDAG

    values = {key: _plain(default) for key, default in arguments(function).items()}
    name = getattr(function, "__name__", repr(function))
    numbers = [a for a, default in values.items() if isinstance(default, int)]
    given = _numbers(name, asked.shape)
    if len(given) > len(numbers) or (asked.batch is not None and not numbers):
        raise UsageError(f"{name} has the numbers ({', '.join(numbers)}), but {len(given)} are given as shape or batch")
    values.update(zip(numbers, given, strict=False))
    chosen = {key: _plain(value) for key, value in (asked.settings or {}).items()}
    if asked.dtype is not None:
        chosen["dtype"] = asked.dtype
    unknown = [a for a in chosen if a not in values]
    if unknown:
        raise UsageError(f"{name} has no argument {unknown[0]}; it has {', '.join(values) or 'none'}")
    values.update(chosen)
    if asked.batch is not None:
        first, (times,) = numbers[0], _numbers(name, [asked.batch])
        values[first] = times * values[first] if first == "M" else times
    dag = ComputeDAG(function(**values))
    used = str(values.get("dtype") or _dtype(dag))
    spec = {"name": f"{inspect.getsourcefile(function)}:{name}", "args": values, "dtype": used}
    return _definition(name, dag, values, used, spec)


def _numbers(name: str, given: object) -> list[int]:
    """A shape or a batch as plain integers."""
    try:
        return [operator.index(n) for n in (() if given is None else given)]  # type: ignore[attr-defined]
    except TypeError:
        raise UsageError(f"{name}: shape and batch are whole numbers, as in shape=(64, 32), got {given!r}") from None


def _plain(value: Any) -> Any:
    """NumPy's integers as Python's, and its types by their names, which are what records hold."""
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
    """Whether it is the user's function, in a file or not."""
    return not isinstance(workload, str) or ":" in workload


def _dtype(dag: ComputeDAG) -> str:
    return (dag.inputs or dag.outputs)[0].dtype
