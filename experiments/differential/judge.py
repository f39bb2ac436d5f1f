"""The comparison of outputs, and which differences are rounding or undefined by the standard.

Random graphs amplify rounding: floor(x), x == y and sin(1e6 x) turn one unit in the last place into another result.
So an output that is out of tolerance is held to the same model with noise: each element that an inexact operator
computes is multiplied by 1 + d, |d| up to 16 units in the last place. An element may differ by ten times as much as
noise makes it differ.
Conversions of NaN, infinities and numbers out of range to integers are undefined, as is all that follows from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from experiments.differential.peer import UNOPTIMISED, Array, Peer, Run, evaluator, node_by_node, runtime

# Operators whose results are elements of their operands or are exact by the standard.
EXACT = frozenset(
    (
        *("Abs", "Cast", "Ceil", "Clip", "Concat", "Constant", "ConstantOfShape", "DepthToSpace", "Expand", "Flatten"),
        *("Floor", "Gather", "GatherElements", "GlobalMaxPool", "Identity", "Max", "MaxPool", "Min", "Neg", "Pad"),
        *("ReduceMax", "ReduceMin", "Relu", "Reshape", "Round", "Shape", "Sign", "Slice", "SpaceToDepth", "Split"),
        *("Squeeze", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where"),
    )
)
TOLERANCE = {"float64": 1e-5, "float32": 1e-4, "float16": 1e-2}  # of 1 + |element|
# Both peers compute parts of what is float64 in float32, such as the scales of Resize.
ULP = {"float64": 2.0**-23, "float32": 2.0**-23, "float16": 2.0**-10}
N_NOISES = 24
NOISE_ULPS = 16.0
SHIFTS = ((0, 0), (-2, 2), (1, 1), (-1, -1))  # what noise adds: from and to, in units of the least subnormal
SPREAD = 10.0  # an element may differ by so many times what noise changes it


@dataclass(frozen=True)
class OutputDifference:
    """The elements of one output that are out of tolerance, or another shape or type."""

    output: str
    said: str
    elements: Array | None = None  # a mask; None where shape or type differ


def differences(
    names: Sequence[str], got: Sequence[Array], want: Sequence[Array], tolerance: float | None = None
) -> list[OutputDifference]:
    """What is out of `tolerance`, which by default is the one of each output's type."""
    found = []
    for name, a, b in zip(names, got, want, strict=True):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            found.append(OutputDifference(name, f"{a.dtype}{list(a.shape)} instead of {b.dtype}{list(b.shape)}"))
            continue
        apart = out_of_tolerance(a, b, tolerance)
        if apart.any():
            first = tuple(int(n) for n in np.argwhere(apart)[0])
            said = f"{int(apart.sum())} of {a.size} elements, first {list(first)}: {a[first]} instead of {b[first]}"
            found.append(OutputDifference(name, said, apart))
    return found


def out_of_tolerance(a: Array, b: Array, tolerance: float | None = None, extra: Array | float = 0.0) -> Array:
    """The mask of elements of `a` that differ from `b` by more than the tolerance and `extra`."""
    if b.dtype.kind not in "fc":
        return np.asarray(a != b) if not np.any(extra) else np.abs(a.astype("float64") - b.astype("float64")) > extra
    wide_a, wide_b = a.astype("float64"), b.astype("float64")
    bound = tolerance if tolerance is not None else TOLERANCE[b.dtype.name]
    with np.errstate(all="ignore"):
        close = (np.abs(wide_a - wide_b) <= bound * (1 + np.abs(wide_b)) + extra) & np.isfinite(wide_a + wide_b)
    return np.asarray(~(close | (wide_a == wide_b) | (np.isnan(wide_a) & np.isnan(wide_b))))


def largest_difference(got: Sequence[Array], want: Sequence[Array]) -> float:
    """The largest |a - b| / (1 + |b|) of finite elements of all outputs."""
    largest = 0.0
    for a, b in zip(got, want, strict=True):
        wide_a, wide_b = a.astype("float64"), b.astype("float64")
        if a.shape == b.shape and a.size:
            with np.errstate(all="ignore"):
                apart = np.abs(wide_a - wide_b) / (1 + np.abs(wide_b))
            largest = max(largest, float(np.max(apart, initial=0.0, where=np.isfinite(apart))))
    return largest


class Judge:
    """Says of what kind a difference is: "undefined", "rounding", "peers disagree" or "wrong"."""

    def __init__(self, model: ModelProto) -> None:
        self._model = model
        self._noisy: Noisy | None = None

    def kind(self, feed: Mapping[str, Array], got: Sequence[Array], want: Sequence[Array], seed: int) -> str:
        """The kind of the differences between `got` and `want`, the peer's results on `feed`."""
        if any(d.elements is None for d in differences(self._outputs, got, want)):
            return "wrong"
        noisy = self._noisy_results(feed, seed)
        if self._is_undefined(noisy):
            return "undefined"
        masks = self._beyond(got, want, noisy)
        if not any(mask.any() for mask in masks):
            return "rounding"
        for other in self._other_peers():
            try:
                with np.errstate(all="ignore"):
                    second = [np.asarray(result) for result in other(None, dict(feed))]
            except Exception:  # of an operator that it does not compute: any class
                continue
            if all((a.dtype, a.shape) == (b.dtype, b.shape) for a, b in zip(got, second, strict=True)):
                masks = [a & b for a, b in zip(masks, self._beyond(got, second, noisy), strict=True)]
        return "wrong" if any(mask.any() for mask in masks) else "peers disagree"

    def _other_peers(self) -> list[Run]:
        """The peers beside the first one that take the model."""
        found = []
        for make in (partial(runtime, level=UNOPTIMISED), evaluator, node_by_node):
            try:
                found.append(make(self._model))
            except ValueError:
                continue
        return found

    @property
    def _outputs(self) -> list[str]:
        return [info.name for info in self._model.graph.output]

    def _beyond(
        self, got: Sequence[Array], want: Sequence[Array], noisy: Sequence[Sequence[Array]]
    ) -> list[Array]:  # fmt: skip
        """For each output the mask of elements that differ from `want` by more than noise explains."""
        masks = []
        for n, (a, b) in enumerate(zip(got, want, strict=True)):
            runs = np.stack([run[n].astype("float64") for run in noisy])
            wide = b.astype("float64")
            with np.errstate(all="ignore"):
                spread = np.max(np.abs(runs - wide), axis=0)
            is_stable = np.isfinite(spread) | (runs == wide).all(axis=0) | (np.isnan(runs) & np.isnan(wide)).all(axis=0)
            # A divisor that may be a zero of either sign makes infinities of either sign, and their sum is no number.
            has_both = (runs == np.inf).any(axis=0) & (runs == -np.inf).any(axis=0)
            may_be = (runs == a).any(axis=0) | (np.isnan(a.astype("float64")) & has_both)
            is_stable |= np.isinf(runs).all(axis=0) & ~may_be
            extra = SPREAD * np.where(np.isfinite(spread), spread, 0.0)
            mask = out_of_tolerance(a, b, None, extra) & is_stable
            # Where noise flips many integers, as indices of minima among equals, a few runs do not flip each of them.
            if b.dtype.kind in "biu" and mask.sum() <= (runs != wide).reshape(len(runs), -1).sum(axis=1).max():
                mask = np.zeros_like(mask)
            masks.append(mask)
        return masks

    def _noisy_results(self, feed: Mapping[str, Array], seed: int) -> list[list[Array]]:
        if self._noisy is None:
            self._noisy = with_noise(self._model, feed)
        rng = np.random.default_rng(seed)
        return [self._noisy.run(feed, rng) for _ in range(N_NOISES)]

    def _is_undefined(self, noisy: Sequence[Sequence[Array]]) -> bool:
        """Whether a number is converted to an integer type that does not hold it."""
        for place, dtype in self._noisy.conversions if self._noisy is not None else ():
            limits = np.iinfo(dtype)
            for run in noisy:
                values = run[place].astype("float64")
                if not ((values > float(limits.min) - 1) & (values < float(limits.max) + 1)).all():
                    return True
        return False


@dataclass(frozen=True)
class Noisy:
    """A model with a factor behind every inexact operator: `runs` compute it, `factors` has type and shape of each by
    its input's name, `conversions` the number of each output that is converted to integers, with the integer's type."""

    runs: Sequence[Run]
    factors: Mapping[str, tuple[str, tuple[int, ...]]]
    conversions: Sequence[tuple[int, str]]

    def run(self, feed: Mapping[str, Array], rng: np.random.Generator) -> list[Array]:
        """The outputs with random factors."""
        noise: dict[str, Array] = {}
        low, high = SHIFTS[int(rng.integers(len(SHIFTS)))]
        for name, (dtype, shape) in self.factors.items():
            ulps = rng.uniform(-NOISE_ULPS, NOISE_ULPS, shape)
            noise[name] = np.asarray(1 + ulps * ULP[dtype], dtype)
            # Zeros have either sign, and subnormals, frequent in half precision, do not change by a factor.
            least = rng.integers(low, high + 1, shape) * float(np.finfo(dtype).smallest_subnormal)
            noise[f"{name}.least"] = np.asarray(least, dtype)
        run = self.runs[int(rng.integers(len(self.runs)))]
        try:
            with np.errstate(all="ignore"):
                return [np.asarray(result) for result in run(None, {**feed, **noise})]
        except Exception:  # of an operator that the evaluator does not compute: any class
            if run is self.runs[0]:
                raise
            return [np.asarray(result) for result in self.runs[0](None, {**feed, **noise})]


def with_noise(model: ModelProto, feed: Mapping[str, Array]) -> Noisy:
    """The model with noise, for inputs of the shapes of `feed`."""
    types, shapes = value_types(model), _shapes_of_inexact(model, feed)
    noisy = ModelProto()
    noisy.CopyFrom(model)
    graph = noisy.graph
    nodes: list[NodeProto] = []
    factors: dict[str, tuple[str, tuple[int, ...]]] = {}
    conversions: list[tuple[int, str]] = []
    for node in model.graph.node:
        changed = NodeProto()
        changed.CopyFrom(node)
        nodes.append(changed)
        if node.op_type == "Cast" and (to := _integer_type(node)) and types.get(node.input[0], "") in TOLERANCE:
            watched = f"{node.output[0]}.operand"
            nodes.append(helper.make_node("Identity", [node.input[0]], [watched]))
            conversions.append((len(graph.output), to))
            graph.output.append(_info(watched, types[node.input[0]]))
        for n, name in enumerate(node.output):
            if name in shapes:
                changed.output[n], factor = f"{name}.exact", f"{name}.factor"
                factors[factor] = (types[name], shapes[name])
                nodes.append(helper.make_node("Mul", [changed.output[n], factor], [f"{name}.scaled"]))
                nodes.append(helper.make_node("Add", [f"{name}.scaled", f"{factor}.least"], [name]))
                graph.input.extend((_info(factor, types[name]), _info(f"{factor}.least", types[name])))
    del graph.node[:]
    graph.node.extend(nodes)
    return Noisy(_runs_of(noisy, types), factors, conversions)


def _runs_of(model: ModelProto, types: Mapping[str, str]) -> list[Run]:
    """The peers that compute a model with noise. ONNX Runtime does not round to half precision between operators; the
    reference evaluator does, so that both are results that rounding can make."""
    found = [Peer(model, UNOPTIMISED).run]
    if "float16" in types.values():
        try:
            found.append(evaluator(model))
        except ValueError:
            return found
    return found


def _shapes_of_inexact(model: ModelProto, feed: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
    """The shapes of the floating-point results of all inexact operators, by running the model with these as outputs."""
    types = value_types(model)
    names = [
        name
        for node in model.graph.node
        if node.op_type not in EXACT
        for name in node.output
        if types.get(name, "") in TOLERANCE
    ]
    probe = ModelProto()
    probe.CopyFrom(model)
    del probe.graph.output[:]
    probe.graph.output.extend(_info(name, types[name]) for name in names)
    results = Peer(probe)(feed) if names else []
    return {name: result.shape for name, result in zip(names, results, strict=True)}


def _info(name: str, dtype: str) -> ValueInfoProto:
    """A value of any shape."""
    return helper.make_tensor_value_info(name, _onnx_type(dtype), None)


def value_types(model: ModelProto) -> dict[str, str]:
    """NumPy's name of the type of each value of the main graph that shape inference knows."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    infos = (*inferred.value_info, *inferred.input, *inferred.output)
    return {
        info.name: helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type).name
        for info in infos
        if info.type.tensor_type.elem_type not in (TensorProto.UNDEFINED, TensorProto.STRING)
    }


def _onnx_type(dtype: str) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def _integer_type(node: NodeProto) -> str:
    """The type that a Cast converts to where it is one of integers, else nothing."""
    to = next(a.i for a in node.attribute if a.name == "to")
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(to))
    return dtype.name if dtype.kind in "iu" else ""
