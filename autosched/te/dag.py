"""`ComputeDAG`: the stages behind one or several output tensors, in order, with unique names.

The user's tensors may share names; building the DAG *links* them: every tensor gets a name of its own (the first in
topological order keeps the user's, later ones become `name_1`, `name_2`) and the bodies refer to those names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from autosched.errors import ExpressionError
from autosched.ir.bitcast import Bitcast
from autosched.ir.conditions import chosen_by_data
from autosched.ir.expr import ARITHMETIC, COMPARISON, Binary, Call, Cast, Const, Expr, Load, Select, Var
from autosched.ir.instructions.precision import PRECISIONS
from autosched.target.far_weights import NEAR
from autosched.te.rewrites.prefix_scan import band, find_prefix_scan
from autosched.te.tensor import ComputeOp, PlaceholderOp, Tensor, TensorLoad, postorder, rewrite

if TYPE_CHECKING:
    import networkx

Op = PlaceholderOp | ComputeOp


class ComputeDAG:
    """A directed acyclic graph of stages; immutable.

    inputs: placeholders in the order of their creation, which is the order of a kernel's arguments; `weights` are the
    names of those that are declared constant, in the same order.
    outputs: as given. stages: producers before consumers. winograd: whether convolutions may be computed with
    Winograd's larger error (see `te.rewrites.winograd`). weights_in: where the weights lie at each call, as
    `target.far_weights` says.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    stages: tuple[ComputeOp, ...]
    weights: tuple[str, ...]
    winograd: bool
    weights_in: str

    def __init__(
        self,
        outputs: Tensor | Sequence[Tensor],
        content_hash: str | None = None,
        weights: Sequence[str] = (),
        winograd: bool = False,
        weights_in: str = NEAR,
    ) -> None:
        """`content_hash` is given by a rewriting of another DAG that stays the same workload; `weights` are the names
        of inputs that are declared constant, which is part of the workload, and so are `winograd` and `weights_in`.

        Raises ExpressionError for a weight that is no input, or when no other input is left.
        """
        given = _check_outputs(outputs)
        linker = _Linker(given)
        self.inputs = linker.inputs
        self.stages = linker.stages
        self.outputs = tuple(linker.linked(t) for t in given)
        self._hash = content_hash
        self.winograd = winograd
        self.weights_in = weights_in
        self.weights = _checked_weights(weights, [t.name for t in self.inputs])

    def __repr__(self) -> str:
        names = [", ".join(t.name for t in tensors) for tensors in (self.inputs, self.outputs)]
        return f"<ComputeDAG ({names[0]}) -> ({names[1]}), {len(self.stages)} stages>"

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """Every tensor by name: inputs, then what the stages write."""
        return {t.name: t for t in (*self.inputs, *(t for s in self.stages for t in s.outputs))}

    def stage(self, name: str) -> ComputeOp:
        """The stage called `name`."""
        for op in self.stages:
            if op.name == name:
                return op
        raise ExpressionError(f"there is no stage {name!r}; the stages are {', '.join(s.name for s in self.stages)}")

    def producer(self, name: str) -> ComputeOp | None:
        """The stage that writes tensor `name`, None for an input."""
        op = self.tensors[name].op
        return op if isinstance(op, ComputeOp) else None

    def reads(self, op: ComputeOp) -> tuple[Load, ...]:
        """The distinct loads of a stage, in order of first use."""
        return tuple(node for node in postorder(op.body) if isinstance(node, Load))

    @cached_property
    def _readers(self) -> dict[str, tuple[ComputeOp, ...]]:
        table: dict[str, list[ComputeOp]] = {name: [] for name in self.tensors}
        for op in self.stages:
            for tensor in op.inputs:
                table[tensor.name].append(op)
        return {name: tuple(ops) for name, ops in table.items()}

    def consumers(self, name: str) -> tuple[ComputeOp, ...]:
        """The stages that read the tensor `name`, or any tensor of the stage `name`."""
        if name in self._readers:
            return self._readers[name]
        written = {t.name for t in self.stage(name).outputs}
        return tuple(op for op in self.stages if any(t.name in written for t in op.inputs))

    def is_output(self, op: ComputeOp) -> bool:
        """Whether the caller sees a tensor of this stage."""
        return any(t.op is op for t in self.outputs)

    def with_weights(self, names: Sequence[str]) -> ComputeDAG:
        """The same with these inputs declared constant, which makes it another workload."""
        return ComputeDAG(self.outputs, weights=names, winograd=self.winograd, weights_in=self.weights_in)

    def with_winograd(self) -> ComputeDAG:
        """The same with Winograd's error accepted, which makes it another workload."""
        return ComputeDAG(self.outputs, weights=self.weights, winograd=True, weights_in=self.weights_in)

    def with_weights_in(self, place: str) -> ComputeDAG:
        """The same with its weights in another place, which makes it another workload."""
        return ComputeDAG(self.outputs, weights=self.weights, winograd=self.winograd, weights_in=place)

    def remade(self, make: Callable[[ComputeOp], tuple[Tensor, ...] | None]) -> ComputeDAG:
        """The same workload from what `make` gives for each stage, in whose inputs the earlier ones are remade; None
        leaves it as it is. This DAG where all stay."""
        table, changed = dict(self.tensors), False
        for op in self.stages:
            linked = replace(op, inputs=tuple(table[t.name] for t in op.inputs))
            made = make(linked)
            changed = changed or made is not None
            table.update(zip((t.name for t in op.outputs), made or linked.outputs, strict=True))
        if not changed:
            return self
        outputs = [table[t.name].seen_as(t.public_shape) for t in self.outputs]
        dag = ComputeDAG(outputs, self.content_hash, self.weights, self.winograd, self.weights_in)
        assert [t.name for t in dag.inputs] == [t.name for t in self.inputs], "an input of the kernel is lost"
        return dag

    @property
    def names(self) -> set[str]:
        """Of its inputs and stages."""
        return {op.name for op in (*(t.op for t in self.inputs), *self.stages)}

    @cached_property
    def flops(self) -> int:
        """Arithmetic on data: one for each add, subtract, multiply, divide, min, max, compare or function call.

        A multiply-add is two. A reduction counts its combiner once a point, a prefix scan once a result, a band and a
        scatter once an element. Of a select's branches the dearer one counts. Index arithmetic and casts are free.
        """
        return sum(_stage_flops(op) for op in self.stages)

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 (hex) of shapes, dtypes, views, expressions, which inputs are weights, where these lie and
        whether Winograd's error is accepted; independent of names."""
        return self._hash or hashlib.sha256(self.canonical_text.encode()).hexdigest()

    @property
    def canonical_text(self) -> str:
        """The text that is hashed: equal for equal graphs, whatever their names."""
        return "\n".join(_canonical(self))

    @cached_property
    def graph(self) -> networkx.DiGraph[str]:
        """Nodes are names of inputs and stages (attribute `op`), edges run from producer to consumer."""
        import networkx

        graph: networkx.DiGraph[str] = networkx.DiGraph()
        for tensor in self.inputs:
            graph.add_node(tensor.name, op=tensor.op)
        for op in self.stages:
            graph.add_node(op.name, op=op)
            graph.add_edges_from((t.op.name, op.name) for t in op.inputs)
        return graph


def _check_outputs(outputs: Any) -> tuple[Tensor, ...]:
    given = (outputs,) if isinstance(outputs, Tensor) else outputs
    if not isinstance(given, (tuple, list)):
        raise ExpressionError(
            f"the operator returned {outputs!r}, a {type(outputs).__name__}; return one output tensor or a tuple"
        )
    if not given:
        raise ExpressionError("the operator returned no tensor; return its output tensor or a tuple of them")
    keys: set[tuple[int, int]] = set()
    for tensor in given:
        if not isinstance(tensor, Tensor):
            raise ExpressionError(f"an output is {tensor!r}, a {type(tensor).__name__}, but must be a tensor")
        if isinstance(tensor.op, PlaceholderOp):
            raise ExpressionError(
                f"the output {tensor.name} is a placeholder, so nothing would be computed; "
                "return the result of te.compute, which may be a copy"
            )
        if tensor.key in keys:
            raise ExpressionError(f"the output {tensor.name} is listed twice; list each tensor once")
        keys.add(tensor.key)
    return tuple(given)


def _checked_weights(weights: Sequence[str], inputs: Sequence[str]) -> tuple[str, ...]:
    unknown = [name for name in weights if name not in inputs]
    if unknown:
        raise ExpressionError(f"{unknown[0]} cannot be a weight, as it is no input; the inputs are {', '.join(inputs)}")
    if weights and set(weights) == set(inputs):
        raise ExpressionError(f"all inputs ({', '.join(inputs)}) are weights, so nothing is left to run")
    return tuple(name for name in inputs if name in weights)


class _Linker:
    """Gives every operation behind some outputs a unique name and rebuilds the stages over plain loads."""

    def __init__(self, outputs: tuple[Tensor, ...]) -> None:
        ops, placeholders = _topological(outputs)
        names = _unique_names(placeholders, ops)
        self.table: dict[tuple[int, int], Tensor] = {}
        for tensor in placeholders:
            name = names[id(tensor.op)]
            assert isinstance(tensor.op, PlaceholderOp)
            op = PlaceholderOp(name, tensor.op.order)
            self.table[tensor.key] = Tensor(name, tensor.shape, tensor.dtype, op, 0, tensor.view)
        self.inputs = tuple(self.table.values())
        self.stages = tuple(self._link(op, names[id(op)]) for op in ops)

    def _link(self, op: ComputeOp, name: str) -> ComputeOp:
        local = {t.name: self.table[t.key].name for t in op.inputs}
        for own, linked in zip(op.outputs, replace(op, name=name).outputs, strict=True):
            local.setdefault(own.name, linked.name)

        def plain(node: Expr, new: Expr) -> Expr:
            if not isinstance(node, Load):
                return new
            linked = self.table[node.tensor.key].name if isinstance(node, TensorLoad) else local[node.buffer]
            load: Load = Load(linked, new.children, node.dtype)
            return load

        inputs = tuple(self.table[t.key] for t in op.inputs)
        made = ComputeOp(name, op.axes, op.reduce_axes, rewrite(op.body, plain), op.reducer, inputs)
        for tensor in made.outputs:
            self.table[(id(op), tensor.index)] = tensor
        return made

    def linked(self, tensor: Tensor) -> Tensor:
        """The DAG's tensor for the user's, with the user's view."""
        made = self.table[tensor.key]
        return Tensor(made.name, made.shape, made.dtype, made.op, made.index, tensor.view)


def _topological(outputs: tuple[Tensor, ...]) -> tuple[list[ComputeOp], list[Tensor]]:
    """Stages with producers first, in order of first use, and placeholders in order of creation."""
    ops: dict[int, ComputeOp] = {}
    placeholders: dict[int, Tensor] = {}
    stack: list[tuple[Tensor, bool]] = [(t, False) for t in reversed(outputs)]
    while stack:
        tensor, expanded = stack.pop()
        op = tensor.op
        if isinstance(op, PlaceholderOp):
            placeholders[id(op)] = tensor
        elif expanded:
            ops.setdefault(id(op), op)
        elif id(op) not in ops:
            stack.append((tensor, True))
            stack.extend((t, False) for t in reversed(op.inputs))
    return list(ops.values()), sorted(placeholders.values(), key=_creation)


def _creation(tensor: Tensor) -> int:
    assert isinstance(tensor.op, PlaceholderOp)
    return tensor.op.order


def _unique_names(placeholders: list[Tensor], ops: list[ComputeOp]) -> dict[int, str]:
    """A name for each operation; a stage with several outputs also occupies the names of its tensors."""
    everything: list[Op] = [*(t.op for t in placeholders), *ops]
    taken: set[str] = set()
    reserved = {op.name for op in everything}
    table: dict[int, str] = {}
    for op in everything:
        name, count = op.name, 0
        parts = len(op.body) if isinstance(op, ComputeOp) else 1
        while any(n in taken or (count and n in reserved) for n in _occupied(name, parts)):
            count += 1
            name = f"{op.name}_{count}"
        taken.update(_occupied(name, parts))
        table[id(op)] = name
    return table


def _occupied(name: str, parts: int) -> list[str]:
    return [name] if parts == 1 else [name, *(f"{name}.v{i}" for i in range(parts))]


_COUNTED = ARITHMETIC | COMPARISON
_FREE = {"not", *PRECISIONS}


def _stage_flops(op: ComputeOp) -> int:
    points, sums, window = 1, find_prefix_scan(op), band(op)
    for axis in (*op.axes, *op.reduce_axes):
        if sums is not None and axis is op.reduce_axes[sums.k]:
            continue
        if op.reducer is not None and not axis.reduce and chosen_by_data(op.body, op.reducer, axis.var) is not None:
            continue
        inside = window is not None and axis is op.reduce_axes[window.k]
        points *= max(0, min(axis.extent, window.last - window.first + 1)) if window and inside else axis.extent
    data = _data_nodes(op.body)
    cost = _count(op.body, data, set())
    if op.reducer is not None:
        results = op.reducer.results
        cost += _count(results, set(postorder(results)), set())
    return points * cost


def _data_nodes(roots: tuple[Expr, ...]) -> set[Expr]:
    """The nodes that depend on an element of a tensor; the others are index arithmetic or constants."""
    data_nodes: set[Expr] = set()
    for node in postorder(roots):
        if isinstance(node, Load) or any(child in data_nodes for child in node.children):
            data_nodes.add(node)
    return data_nodes


def _count(roots: Sequence[Expr], data: set[Expr], seen: set[Expr]) -> int:
    """Operations on data below `roots` that are not in `seen` yet (shared subexpressions are computed once)."""
    total = 0
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node in seen or isinstance(node, Load):
            continue
        seen.add(node)
        if isinstance(node, Select):
            total += _count((node.cond,), data, seen)
            branches = [(seen.copy(), branch) for branch in (node.a, node.b)]
            costs = [_count((branch,), data, known) for known, branch in branches]
            total += max(costs)
            seen |= branches[costs.index(max(costs))][0]
            continue
        if node in data and (
            (isinstance(node, Binary) and node.op in _COUNTED) or (isinstance(node, Call) and node.fn not in _FREE)
        ):
            total += 1
        stack.extend(node.children)
    return total


def _canonical(dag: ComputeDAG) -> list[str]:
    """The lines that are hashed: tensors, axes and nodes by number instead of by name, one node a line."""
    lines = ["autosched-dag 1"]
    numbers: dict[str, str] = {}
    for tensor in dag.inputs:
        numbers[tensor.name] = f"t{len(numbers)}"
        lines.append(f"input {numbers[tensor.name]} {tensor.dtype} {tensor.public_shape}")
    for op in dag.stages:
        for tensor in op.outputs:
            numbers[tensor.name] = f"t{len(numbers)}"
        axes = {a.var: f"a{i}" for i, a in enumerate((*op.axes, *op.reduce_axes))}
        extents = [[a.extent for a in group] for group in (op.axes, op.reduce_axes)]
        lines.append(f"stage {[numbers[t.name] for t in op.outputs]} {extents[0]} {extents[1]}")
        lines += _node_lines(op.body, axes, numbers)
        if op.reducer is not None:
            operands = {v: f"x{i}" for i, v in enumerate((*op.reducer.lhs, *op.reducer.rhs))}
            identity = [f"{c.value!r}:{c.dtype}" for c in op.reducer.identity]
            lines.append(f"reducer {[v.dtype for v in op.reducer.lhs]} {identity}")
            lines += _node_lines(op.reducer.results, operands, numbers)
    lines += [f"output {numbers[t.name]} {t.dtype} {t.public_shape}" for t in dag.outputs]
    lines += [f"weight {numbers[name]}" for name in dag.weights]
    lines += ["winograd"] * dag.winograd
    lines += [f"weights in {dag.weights_in}"] if dag.weights_in else []
    return lines


def _node_lines(roots: tuple[Expr, ...], variables: Mapping[Var, str], tensors: Mapping[str, str]) -> list[str]:
    place: dict[Expr, int] = {}
    lines: list[str] = []
    for node in postorder(roots):
        place[node] = len(place)
        lines.append(" ".join([_word(node, variables, tensors), *(str(place[c]) for c in node.children)]))
    return [*lines, f"values {[place[r] for r in roots]}"]


def _word(node: Expr, variables: Mapping[Var, str], tensors: Mapping[str, str]) -> str:
    match node:
        case Const(value=value, dtype=dtype):
            return f"const {value!r}:{dtype}"
        case Var():
            return variables[node]
        case Binary(op=op):
            return op
        case Call(fn=fn):
            return fn
        case Cast(dtype=dtype):
            return f"cast:{dtype}"
        case Bitcast(dtype=dtype):
            return f"bits:{dtype}"
        case Select():
            return "select"
        case Load(buffer=buffer):
            return f"load:{tensors[buffer]}"
    raise AssertionError(f"a {type(node).__name__} cannot stand in a stage")
