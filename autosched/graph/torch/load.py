"""Import of PyTorch modules and fx graphs as graphs of operators.

Each ATen operator is imported by its rule. Nodes that depend on no input, as masks and positions, are evaluated by
torch at import; parameters and buffers become constants in their own memory. All operators without a rule are named in
one message.
"""

from __future__ import annotations

import inspect
import operator
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._decomp import get_decompositions
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.utils._python_dispatch import _disable_current_modes

from autosched.errors import GraphError, locating_bugs
from autosched.graph.graph import Graph, Value
from autosched.graph.torch.builder import TraceBuilder, array_of, value_of
from autosched.graph.torch.decompose import decomposed
from autosched.graph.torch.rules import rules
from autosched.graph.torch.sizes import (
    NoNumber,
    TensorLayout,
    dense_strides,
    layout_of,
    numbers_for,
    with_layout,
    with_numbers,
)
from autosched.graph.verify import verify
from autosched.ir.size import has_size

# Assertions, which are redundant for known shapes.
_CHECKS = (
    *("aten._assert_tensor_metadata.default", "aten._assert_async.msg", "aten._assert_scalar.default"),
    *("aten.sym_constrain_range.default", "aten.sym_constrain_range_for_size.default"),
)


def load_torch(module: torch.nn.Module, example_inputs: Sequence[torch.Tensor]) -> Graph:
    """Return the graph of a module for inputs of the shapes and types of `example_inputs`.

    Outputs are in the order of the leaves of the module's result. Raises GraphError.
    """
    return of_program(type(module).__name__, _exported(module, example_inputs))


def of_program(name: str, program: Any, traced: fx.GraphModule | None = None) -> Graph:
    """Return the graph of an exported program of ATen operators, called `name`.

    `traced`: the fx graph with numbers for symbolic sizes, if the program has such.
    """
    whole = program.graph_module if traced is None else traced
    drop_empty_parts(whole.graph)
    placeholders = {node.name: node for node in whole.graph.find_nodes(op="placeholder")}
    b = TraceBuilder()
    results: dict[str, Any] = {}
    inputs: list[str] = []
    for spec in program.graph_signature.input_specs:
        argument = spec.arg.name
        if spec.kind.name == "USER_INPUT":
            if isinstance(value := placeholders[argument].meta.get("val"), torch.Tensor):
                results[argument] = b.declare(value_of(value, argument))
                inputs.append(results[argument].name)
            else:
                results[argument] = getattr(spec.arg, "value", None)
            continue
        tensor = _state(program, spec.target)
        results[argument] = tensor if spec.kind.name == "CONSTANT_TENSOR" else _constant(b, tensor, str(spec.target))
    changed = [str(s.target) for s in program.graph_signature.output_specs if s.kind.name != "USER_OUTPUT"]
    if changed:
        raise GraphError(f"the module {name} changes {', '.join(changed)}, which a network cannot")
    return _walk(b, whole, results, inputs, name)


@dataclass
class AnyShapes:
    """A module that is imported for inputs of several shapes.

    It is exported once for all shapes with the same sizes of 1, if torch supports that, else for each shape.
    """

    module: torch.nn.Module
    example_inputs: Sequence[torch.Tensor]
    _programs: dict[tuple[object, ...], Any] = field(default_factory=dict)

    def graph(self, shapes: Sequence[tuple[int, ...]]) -> Graph:
        """Return the graph for inputs of these shapes, whose sizes may be of a trace.

        Raises GraphError, also for sizes of a trace if torch does not export the module with symbols for them.
        """
        inputs = [
            x if not has_size(shape) and tuple(x.shape) == shape else _zeros(shape, x.dtype)
            for x, shape in zip(self.example_inputs, shapes, strict=True)
        ]
        program = self._program(inputs)
        traced = None if program is None else for_inputs(program, inputs)
        if traced is None:
            if any(map(has_size, shapes)):
                raise GraphError(f"{type(self.module).__name__} is not exported for all sizes at once")
            return load_torch(self.module, inputs)
        return of_program(type(self.module).__name__, program, traced)

    def _program(self, inputs: Sequence[torch.Tensor]) -> Any:
        """Return a program with symbols for the sizes that are not 1, or None if it cannot be exported."""
        key = tuple(tuple(n == 1 for n in x.shape) for x in inputs)
        if key not in self._programs:
            try:
                self._programs[key] = _exported(self.module, inputs, varying=True)
            except GraphError:  # reported if the export fails for fixed sizes, too
                self._programs[key] = None
        return self._programs[key]


def _zeros(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return with_layout(TensorLayout(tuple(shape), dense_strides(shape)), dtype, device="cpu").zero_()


def for_inputs(program: Any, inputs: Sequence[torch.Tensor]) -> fx.GraphModule | None:
    """Return the fx graph of a program for the sizes of inputs; None if it does not support them."""
    names = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    placeholders = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    if len(names) != len(inputs):
        return None
    numbers = numbers_for([placeholders[name] for name in names], inputs)
    try:
        return None if numbers is None else with_numbers(program.graph_module, numbers)
    except NoNumber:
        return None


def load_fx(
    module: fx.GraphModule, example_inputs: Sequence[Any], constants: Mapping[int, torch.Tensor] | None = None
) -> Graph:
    """Return the graph of an fx graph of ATen operators, of AOTAutograd or a partition of it.

    `constants`: arguments that are constant, by position; the others are inputs. Raises GraphError.
    """
    placeholders = module.graph.find_nodes(op="placeholder")
    if not all("val" in node.meta for node in module.graph.nodes if node.op != "output"):
        FakeTensorProp(module).propagate(*example_inputs)
    b = TraceBuilder()
    results: dict[str, Any] = {}
    inputs: list[str] = []
    for n, node in enumerate(placeholders):
        if constants is not None and n in constants:
            results[node.name] = _constant(b, constants[n], node.name)
        else:
            results[node.name] = b.declare(value_of(_tensor(node), node.name))
            inputs.append(results[node.name].name)
    return _walk(b, module, results, inputs, type(module).__name__)


def drop_empty_parts(graph: fx.Graph) -> None:
    """Remove empty tensors from concatenations, as those with which caches begin."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.cat.default):
        parts: Any = node.args[0]
        full = [part for part in parts if "val" not in part.meta or part.meta["val"].numel() != 0]
        if 0 < len(full) < len(parts):
            node.args = (full, *node.args[1:])
    graph.eliminate_dead_code()


def drop_restrides(graph: fx.Graph) -> None:
    """Remove views that only change the strides of axes of size 1, as global pools of channels-last images have."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.as_strided.default):
        source: Any = node.args[0]
        x, y = source.meta.get("val"), node.meta.get("val")
        if x is None or y is None:
            continue
        ours, theirs = layout_of(x), layout_of(y)
        if ours.shape != theirs.shape or ours.start != theirs.start:
            continue
        if all(size == 1 or old == new for size, old, new in zip(*ours[:2], theirs.strides, strict=True)):
            node.replace_all_uses_with(source, delete_user_cb=lambda user: user.op != "output")
    graph.eliminate_dead_code()


def can_load(node: fx.Node) -> bool:
    """Whether a node of an fx graph of ATen operators can be imported with all results that are read."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        source = node.args[0]
        return isinstance(source, fx.Node) and can_load(source)
    b = TraceBuilder()
    try:
        if not node.all_input_nodes:
            return _can_fold(node, ()) and None not in _expected_results(node)
        if str(node.target) not in rules():
            return False
        results = _apply(b, node, lambda n: _declared(b, n))
    except GraphError:
        return False
    return all(results[index] is not None for index in _read_results(node))


def _declared(b: TraceBuilder, node: fx.Node) -> Value | tuple[Value, ...]:
    """Declare the results of another node as inputs."""
    value = node.meta.get("val")
    if isinstance(value, tuple | list):
        return tuple(b.declare(value_of(part, node.name)) for part in value)
    return b.declare(value_of(_tensor(node), node.name))


def _exported(module: torch.nn.Module, example_inputs: Sequence[torch.Tensor], varying: bool = False) -> Any:
    """Export a module by torch.export without decomposing composite operators that have a rule. Raises GraphError.

    `varying`: with symbols for sizes where possible.
    """
    sizes = _varying_sizes(module, example_inputs) if varying else None
    with torch.no_grad(), without_treespec_warnings():
        try:
            program = torch.export.export(module, tuple(example_inputs), dynamic_shapes=sizes, strict=False)
            return program.run_decompositions(decompositions())
        except Exception as error:  # of many kinds, those of the module's own code among them
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise GraphError(f"torch.export cannot trace {type(module).__name__}: {reason}") from error


def _varying_sizes(module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """Return what torch.export is told: all sizes of the inputs vary. Inputs of *arguments are one tuple."""
    sizes = [dict.fromkeys(range(x.dim()), torch.export.Dim.AUTO) for x in inputs]
    kinds = [parameter.kind for parameter in inspect.signature(module.forward).parameters.values()]
    n = next((n for n, kind in enumerate(kinds) if kind is inspect.Parameter.VAR_POSITIONAL), len(sizes))
    return (*sizes[:n], tuple(sizes[n:])) if n < len(sizes) else tuple(sizes)


@contextmanager
def without_treespec_warnings() -> Iterator[None]:
    """Silence the warnings of torch before 2.14 about its own class LeafSpec when it copies an exported program."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*treespec", FutureWarning)
        yield


# Operators of training, which torch.export's table does not decompose.
_OF_TRAINING = ("_native_batch_norm_legit_functional", "native_batch_norm_backward", "batch_norm_backward")


def decompositions() -> dict[Any, Any]:
    """Return torch's decompositions and ours of operators without a rule."""
    table: dict[Any, Any] = torch.export.default_decompositions()
    table.update(decomposed())
    table.update(get_decompositions([getattr(torch.ops.aten, name) for name in _OF_TRAINING]))
    for overload in [each for each in table if str(each) in rules()]:
        del table[overload]
    return table


def _state(program: Any, target: str) -> torch.Tensor:
    """Return a parameter, buffer or constant of an exported program; non-persistent buffers are its constants."""
    tensor: torch.Tensor = program.state_dict[target] if target in program.state_dict else program.constants[target]
    return tensor


def _constant(b: TraceBuilder, tensor: torch.Tensor, name: str) -> Value:
    value_of(tensor, name)  # raises for unsupported shapes and types
    return b.constant(array_of(tensor), name)


def _tensor(node: fx.Node) -> torch.Tensor:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        raise GraphError(f"{node.name} is no tensor")
    return value


def _expected_results(node: fx.Node) -> tuple[Value | None, ...]:
    """Return the results of a node by torch; None for one that is no tensor, or is empty and not read."""
    value = node.meta.get("val")
    if not isinstance(value, tuple | list):
        return (value_of(value, node.name) if isinstance(value, torch.Tensor) else None,)
    read = _read_results(node)
    return tuple(
        value_of(part, node.name) if isinstance(part, torch.Tensor) and (n in read or part.numel() > 0) else None
        for n, part in enumerate(value)
    )


def _read_results(node: fx.Node) -> set[Any]:
    """Return which of several results are read."""
    return {user.args[1] for user in node.users if user.target is operator.getitem and user.users}


def _origin(node: fx.Node) -> str:
    """Return the operator and its submodule, for messages."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next((entry[0] for entry in reversed(stack.values()) if isinstance(entry[0], str) and entry[0]), "")
    return f"{node.target} ({path})" if path else str(node.target)


def _bug_at(module: str, node: fx.Node, _: Exception) -> str:
    return f"a bug of autosched: the module {module} cannot be imported: {_origin(node)}"


def _can_fold(node: fx.Node, arguments: Sequence[Any]) -> bool:
    """Whether torch can evaluate the node at import: a deterministic operator of constants."""
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded in target.tags:
        return False
    return not any(isinstance(x, Value | _Refused) for x in arguments)


def _has_size(data: Any) -> bool:
    """Whether a size of a trace is among arguments."""
    return has_size((data,)) or (isinstance(data, list | tuple) and any(map(_has_size, data)))


def _mapped(node: fx.Node, value: Callable[[fx.Node], Any]) -> Any:
    """Replace the nodes among all arguments by values."""
    as_argument: Any = value
    return fx.map_arg((node.args, dict(node.kwargs)), as_argument)


def _arguments(node: fx.Node, value: Callable[[fx.Node], Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return all arguments of a node, defaults included; `value` maps another node to its value."""
    args, kwargs = _mapped(node, value)
    positional = [*args]
    named: dict[str, Any] = {}
    target: Any = node.target
    for n, argument in enumerate(target._schema.arguments):
        value_or_default = kwargs.get(argument.name, argument.default_value)
        if argument.kwarg_only:
            named[argument.name] = value_or_default
        elif n >= len(positional):
            positional.append(value_or_default)
    return positional, named


def _apply(b: TraceBuilder, node: fx.Node, value: Callable[[fx.Node], Any]) -> Any:
    """Apply the rule of a node: a value, or a tuple with None for a result that the rule does not compute."""
    b.expected, b.origin = _expected_results(node), _origin(node)
    args, named = _arguments(node, value)
    results = rules()[str(node.target)](b, *args, **named)
    for result, expected in zip(results if isinstance(results, tuple) else (results,), b.expected, strict=True):
        if (
            result is not None
            and expected is not None
            and (result.shape, result.dtype) != (expected.shape, expected.dtype)
        ):
            raise GraphError(f"{b.origin}: it makes {expected}, but its rule {result}")
    return results


class _Refused:
    """The result of a node that cannot be imported; all such nodes are named in one message."""


_REFUSED = _Refused()


@dataclass
class _Walk:
    """The import of the nodes of an fx graph in order."""

    b: TraceBuilder
    results: dict[str, Any]  # by node: a value, a tensor that torch has computed, a tuple of them, _REFUSED
    refused: Counter[str] = field(default_factory=Counter)
    as_constants: dict[int, Value] = field(default_factory=dict)  # by the identity of a tensor in `results`

    def visit(self, node: fx.Node) -> None:
        try:
            self.results[node.name] = self.result(node)
        except GraphError as error:
            self.refused[str(error)] += 1
            self.results[node.name] = _REFUSED

    def result(self, node: fx.Node) -> Any:
        arguments = [x for n in node.all_input_nodes for x in _parts(self.results[n.name])]
        target: Any = node.target
        if target is operator.getitem:
            return self.part(node)
        if str(target) in _CHECKS:
            return None
        if _can_fold(node, arguments) and not (str(node.target) in rules() and _has_size(node.args)):
            args, kwargs = _mapped(node, lambda n: self.results[n.name])
            with _disable_current_modes(), torch.no_grad():
                return target(*args, **kwargs)
        if str(node.target) not in rules():
            raise GraphError(str(node.target))
        if any(x is _REFUSED for x in arguments):
            return _REFUSED
        return _apply(self.b, node, lambda n: self.value(self.results[n.name]))

    def part(self, node: fx.Node) -> Any:
        """Return one of several results, which may be unread."""
        source: Any = node.args[0]
        results, index = self.results[source.name], node.args[1]
        result = results if results is _REFUSED else results[index]
        if result is None and node.users:
            raise GraphError(f"result {index} of {source.target}")
        return result

    def value(self, result: Any) -> Any:
        """Return a value; a tensor that torch has computed becomes a constant when it is read."""
        if not isinstance(result, torch.Tensor):
            return result
        if id(result) not in self.as_constants:
            self.as_constants[id(result)] = _constant(self.b, result, "computed")
        return self.as_constants[id(result)]


def _parts(result: Any) -> Sequence[Any]:
    return result if isinstance(result, tuple | list) else (result,)


def _walk(b: TraceBuilder, module: fx.GraphModule, results: dict[str, Any], inputs: Sequence[str], name: str) -> Graph:
    walk = _Walk(b, results)
    for node in module.graph.nodes:
        if node.op == "get_attr":
            results[node.name] = _attribute(module, str(node.target))
        elif node.op == "call_function":
            with locating_bugs(partial(_bug_at, name, node)):
                walk.visit(node)
    if walk.refused:
        words = (f"{what} ({count})" if count > 1 else what for what, count in sorted(walk.refused.items()))
        raise GraphError(f"{name} has operators that networks do not take: {'; '.join(words)}")
    (end,) = module.graph.find_nodes(op="output")
    ends = [results[x.name] if isinstance(x, fx.Node) else x for x in _parts(end.args[0])]
    outputs = [walk.value(x) for x in ends]
    if not all(isinstance(value, Value) for value in outputs):
        positions = [n for n, value in enumerate(outputs) if not isinstance(value, Value)]
        raise GraphError(f"{name}: outputs {positions} are no tensors")
    graph = b.graph(inputs, [value.name for value in outputs], name)
    verify(graph)
    return graph


def _attribute(module: torch.nn.Module, path: str) -> Any:
    """Return the attribute of an fx module that a get_attr node reads."""
    attribute: Any = module
    for part in path.split("."):
        attribute = getattr(attribute, part)
    return attribute
