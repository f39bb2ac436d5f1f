"""Constant folding during import: shapes, and arithmetic on small constants.

Results of any size that only look at their operand are views. Other nodes are computed here only where all they read is
small, as shapes are: large constants are the passes' matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import NodeProto, helper

from autosched.errors import GraphError
from autosched.graph.graph import Array, Value
from autosched.graph.onnx.known_sizes import fold_sizes, is_of_sizes, size_array
from autosched.ir.dtype import numpy_dtype

SMALL = 1 << 16  # elements
LARGEST = 1 << 27  # elements of a folded result
# Operators that are never folded: dequantisation, for integer products, and random numbers.
KEPT = {"DequantizeLinear", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
KEPT |= {"Bernoulli", "Multinomial", "Dropout", "If", "Loop", "Scan", "SequenceMap"}  # their rules select subgraphs
KEPT |= {"Optional", "OptionalGetElement", "OptionalHasElement"}  # of sequences as well


def _constant_of_shape(arrays: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    value = attributes.get("value")
    one = np.zeros((), np.float32) if value is None else np.reshape(value, ())
    return np.broadcast_to(one, tuple(int(size) for size in arrays[0]))


def _expand(arrays: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    x, shape = arrays[0], tuple(int(size) for size in arrays[1])
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, shape))


def _transpose(arrays: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    return np.transpose(arrays[0], attributes.get("perm"))


def _constant(arrays: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    types = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    if len(attributes) != 1:
        raise GraphError(f"it has {len(attributes)} values, and takes one")
    (name,) = attributes
    if name == "value":
        return np.asarray(attributes[name])
    if name not in types:
        raise GraphError(f"a constant of {name} is not supported")
    return np.asarray(attributes[name], types[name])


VIEWS: Mapping[str, Callable[[Sequence[Array], Mapping[str, Any]], Array]] = {
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
    "Transpose": _transpose,
}
# The number of elements in results of operators that may enlarge their operands.
GROWING: Mapping[str, Callable[[Sequence[Any]], float]] = {
    "Range": lambda arrays: (float(arrays[1].item()) - float(arrays[0].item())) / (float(arrays[2].item()) or math.nan),
    "Tile": lambda arrays: arrays[0].size * math.prod(arrays[1].reshape(-1).tolist()),
    "OneHot": lambda arrays: arrays[0].size * float(arrays[1].item()),
}
OF_SHAPES = {"Shape", "Size"}  # operators of shapes, which read no elements
# Operators without a rule: their results are folded, or refused.
FOLDED_ONLY = {"Constant", "ConstantOfShape", *OF_SHAPES, "Range", "NonZero", "MelWeightMatrix"}


def folded(
    node: NodeProto,
    attributes: Mapping[str, Any],
    opsets: Mapping[str, int],
    operands: Sequence[Value | None],
    constants: Mapping[str, Array],
    sizes: Mapping[str, Array],
) -> tuple[Array, ...] | None:
    """Return the folded results of a node; None if they are not constant, or are left to the network."""
    if node.domain or node.op_type in KEPT:
        return None
    if node.op_type in OF_SHAPES and operands[0] is not None:
        return (_of_shape(node.op_type, operands[0].shape, attributes),)
    if node.op_type == "CastLike":  # the second operand says a type only
        operands, target = operands[:1], operands[1]
    arrays = [None if v is None else constants.get(v.name, sizes.get(v.name)) for v in operands]
    if any(v is not None and a is None for v, a in zip(operands, arrays, strict=True)):
        return None
    if any(map(is_of_sizes, arrays)):
        return fold_sizes(node.op_type, attributes, arrays, lambda given: by_reference(node, opsets, given))
    if node.op_type == "CastLike" and arrays[0] is not None and target is not None:
        return (arrays[0].astype(numpy_dtype(target.dtype)),) if arrays[0].size <= SMALL else None
    if node.op_type in VIEWS:
        return (VIEWS[node.op_type]([a for a in arrays if a is not None], attributes),)
    if not arrays or sum(a.size for a in arrays if a is not None) > SMALL:
        return None
    if node.op_type in GROWING and (count := GROWING[node.op_type](arrays)) > LARGEST:
        if node.op_type not in FOLDED_ONLY:
            return None
        raise GraphError(
            f"its {count:.0f} elements are more than {LARGEST}, the most that are computed while importing"
        )
    return by_reference(node, opsets, arrays)


def _of_shape(operator: str, shape: tuple[int, ...], attributes: Mapping[str, Any]) -> Array:
    if operator == "Size":
        return size_array([math.prod(shape)]).reshape(())
    return size_array(shape[attributes.get("start", 0) : attributes.get("end")])


def by_reference(
    node: NodeProto, opsets: Mapping[str, int], arrays: Sequence[Array | None]
) -> tuple[Array, ...] | None:
    """Evaluate a node by ONNX's reference; None for an unsupported operator, and for results that are no arrays."""
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.op_run import RuntimeContextError

    given = {name: array for name, array in zip(node.input, arrays, strict=True) if array is not None}
    ins, outs = ([helper.make_empty_tensor_value_info(n) for n in names if n] for names in (given, node.output))
    imports = [helper.make_opsetid("", opsets[""])]  # a node alone would be one of the newest version
    model = helper.make_model(helper.make_graph([node], "folded", ins, outs), opset_imports=imports)
    try:
        # The reference may write to its operands.
        results = ReferenceEvaluator(model).run(None, {k: a.copy() for k, a in given.items()})
    except (NotImplementedError, RuntimeContextError):
        return None
    except Exception as error:  # any that NumPy or the library has; it lacks some operands that the standard allows
        if node.op_type not in FOLDED_ONLY:
            return None
        raise GraphError(f"it cannot be computed of its constants: {error}") from error
    if not all(isinstance(r, np.ndarray | np.generic) for r in results):
        return None
    return tuple(np.asarray(r) for r in results)
