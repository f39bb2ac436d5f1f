"""Every operator on integers at both ends of every type, by the reference and by kernels, against NumPy and torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from autosched.errors import GraphError
from autosched.executor.compile_graph import compile_graph
from autosched.graph.graph import Graph, Node, Value
from autosched.graph.operators import build
from autosched.schedule import initial_state
from autosched.te import ComputeDAG, placeholder
from tests.codegen.running import HOST, check_outputs, run
from tests.codegen.running import build as compiled

Array = np.ndarray[Any, Any]
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
WITH_ARITHMETIC_IN_TORCH = ("int8", "uint8", "int16", "int32", "int64")


def ends(dtype: str) -> Array:
    """The least and the largest numbers of a type, halves of them, and what is near 0."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    found = {low, low + 1, low // 2, high // 2, high - 1, high, 0, 1, 2, 3, 7, 100, *((-1, -2, -3, -7) if low else ())}
    return np.array(sorted(found), dtype)


def pairs(dtype: str) -> tuple[Array, Array]:
    a, b = np.meshgrid(ends(dtype), ends(dtype))
    return a.ravel(), b.ravel()


def by_integers(function: Callable[[int, int], int]) -> Callable[[Array, Array], Array]:
    """A function of Python's integers, of which the last bits are taken."""

    def apply(a: Array, b: Array) -> Array:
        mask = (1 << 8 * a.itemsize) - 1
        found = [function(int(x), int(y)) & mask for x, y in zip(a, b, strict=True)]
        return np.array(found, f"uint{8 * a.itemsize}").view(a.dtype)

    return apply


def truncated(x: int, y: int) -> int:
    """C's quotient; 0 where the divisor is, as NumPy has it for `//`."""
    return 0 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def power(x: int, y: int) -> int:
    """torch's: of a negative exponent what is left of 1 / x**-y without its fraction."""
    return pow(x, y, 1 << 64) if y >= 0 else pow(x, -y % 2 + 2) if abs(x) == 1 else 0


UNARY: dict[str, Callable[[Array], Array]] = {
    "abs": np.abs,
    "neg": np.negative,
    "sign": np.sign,
    "relu": lambda a: np.maximum(a, 0).astype(a.dtype),
    "bitwise_not": np.invert,
    "identity": lambda a: a,
}
BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": by_integers(truncated),
    "floor_div": np.floor_divide,
    "mod": np.mod,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "shift_left": np.left_shift,
    "shift_right": np.right_shift,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "pow": by_integers(power),
    "fmod": np.fmod,
}
REDUCTIONS: dict[str, Callable[[Array], Array]] = {
    "reduce_sum": lambda a: a.sum(1, a.dtype),
    "reduce_prod": lambda a: a.prod(1, a.dtype),
    "reduce_max": lambda a: a.max(1),
    "reduce_min": lambda a: a.min(1),
}
FLOATS = ("float32", "float64")


def by_kernel(nodes: list[Node], *arrays: Array) -> list[Array]:
    """The results of operators, all of them in one kernel, which is also held to the reference."""
    tensors = {f"x{n}": placeholder(a.shape, a.dtype.name, f"x{n}") for n, a in enumerate(arrays)}
    dag = ComputeDAG([t for node in nodes for t in build(node, [tensors[x] for x in node.inputs if x is not None])])
    inputs = {t.name: arrays[int(t.name[1:])] for t in dag.inputs}
    outputs = run(compiled(initial_state(dag), HOST, 1), dag, inputs, HOST)
    check_outputs(dag, inputs, outputs, "operators on integers")
    return outputs


def check(nodes: list[Node], expected: list[Array], *arrays: Array) -> None:
    for node, got, wanted in zip(nodes, by_kernel(nodes, *arrays), expected, strict=True):
        assert got.dtype == wanted.dtype, node
        np.testing.assert_array_equal(got, wanted, err_msg=str(node))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_operators_are_numpys_at_the_ends_of_each_type(dtype):
    """Sums, products and negated numbers wrap around; what is divided by 0 is 0."""
    a, b = pairs(dtype)
    nodes = [Node(name, ("x0",), (f"u{n}",)) for n, name in enumerate(UNARY)]
    for n, name in enumerate(BINARY):
        operator, attributes = ("mod", {"fmod": True}) if name == "fmod" else (name, {})
        nodes.append(Node(operator, ("x0", "x1"), (f"b{n}",), attributes))
    with np.errstate(all="ignore"):
        expected = [f(a) for f in UNARY.values()] + [f(a, b) for f in BINARY.values()]
    check(nodes, expected, a, b)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_reductions_wrap_around(dtype):
    x = np.stack([ends(dtype), ends(dtype)[::-1]])
    nodes = [Node(n, ("x0",), (n,), {"axes": (1,), "keepdims": False}) for n in REDUCTIONS]
    nodes.append(Node("cumsum", ("x0",), ("sums",), {"axis": 1}))
    check(nodes, [*(f(x) for f in REDUCTIONS.values()), x.cumsum(1, dtype)], x)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_conversions(dtype):
    """Upper bits are lost, or the nearest number is taken; floats lose their fraction, and NaN becomes 0."""
    a, kinds = ends(dtype), ("bool", *INTEGERS, *FLOATS)
    nodes = [Node("cast", ("x0",), (f"c{n}",), {"dtype": kind}) for n, kind in enumerate(kinds)]
    nodes += [Node("cast", ("x0",), (f"s{n}",), {"dtype": kind, "saturate": True}) for n, kind in enumerate(INTEGERS)]
    limits = [np.iinfo(kind) for kind in INTEGERS]
    wide = a.astype(object)
    expected = [a.astype(kind) for kind in kinds]
    expected += [np.clip(wide, i.min, i.max).astype(kind) for kind, i in zip(INTEGERS, limits, strict=True)]
    check(nodes, expected, a)


@pytest.mark.parametrize("kind", FLOATS)
def test_conversions_of_floats(kind):
    largest = float(np.finfo(kind).max)
    x = np.array(
        [0.9, -0.9, 127.5, -128.5, 2.0**31, -(2.0**31), 2.0**63, -(2.0**63), largest, -largest, 300.0, 1e-30], kind
    )
    nodes = [Node("cast", ("x0",), (f"s{n}",), {"dtype": d, "saturate": True}) for n, d in enumerate(INTEGERS)]
    whole = np.array([int(v) for v in x.tolist()], object)
    expected = [np.clip(whole, np.iinfo(d).min, np.iinfo(d).max).astype(d) for d in INTEGERS]
    special = np.array([np.nan, np.inf, -np.inf], kind)
    check(nodes, [np.append(e, np.array([0, np.iinfo(e.dtype).max, np.iinfo(e.dtype).min], e.dtype)) for e in expected],
          np.append(x, special))  # fmt: skip


@pytest.mark.parametrize("dtype", WITH_ARITHMETIC_IN_TORCH)
def test_operators_are_torchs_at_the_ends_of_each_type(dtype):
    torch = pytest.importorskip("torch")
    from tests.graph.test_torch_rules import Function
    from tests.graph.torch_models import by_reference, loaded

    a, b = pairs(dtype)
    kept = (b != 0) & ~((b == -1) & (a == np.iinfo(dtype).min))  # torch raises, or the processor does
    x, y = torch.from_numpy(a[kept]), torch.from_numpy(b[kept])
    bits = torch.from_numpy((b[kept].astype("int64") % (8 * b.itemsize)).astype(dtype))

    def function(p, q, shift):
        return (
            p + q, p - q, p * q, p // q, p % q, torch.fmod(p, q), torch.div(p, q, rounding_mode="floor"),
            torch.div(p, q, rounding_mode="trunc"), -p, torch.abs(p), torch.sign(p), torch.maximum(p, q), p << shift,
            p >> shift, p // 3, p % 7, torch.clamp(p, 3, 100), torch.pow(p, q), p.sum(), p.cumsum(0), p.to(torch.int8),
            p.to(torch.uint8), p.to(torch.int32), p.to(torch.float32),
        )  # fmt: skip

    expected = function(x, y, bits)
    found = by_reference(loaded(Function(function), (x, y, bits)), (x, y, bits))
    for n, (got, wanted) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_array_equal(got, wanted.numpy(), err_msg=f"result {n}")


def test_bits_are_those_of_torchs_views():
    """To a type of the same size, to smaller and larger ones along the last axis, and through arithmetic."""
    torch = pytest.importorskip("torch")
    from tests.graph.test_torch_rules import Function
    from tests.graph.torch_models import by_reference, loaded

    x = torch.from_numpy(np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32))
    u, w = torch.from_numpy(ends("uint16")[None, :8]), torch.from_numpy(ends("uint64"))

    def function(x, u, w):
        return (
            x.view(torch.int32), x.view(torch.int16), x.view(torch.uint8), x.view(torch.float64),
            x.to(torch.float16).view(torch.int16), x.to(torch.bfloat16).view(torch.uint16), u.view(torch.int16),
            u.view(torch.uint32), u.to(torch.int64) + 1, w.view(torch.int64), w.view(torch.uint8), w.to(torch.float32),
            w.to(torch.float64), w.to(torch.int32), (x.view(torch.int32) & 0x7FFFFFFF).view(torch.float32),
        )  # fmt: skip

    expected = [y.numpy() for y in function(x, u, w)]
    graph = loaded(Function(function), (x, u, w))
    nodes = [node for node in graph.nodes if node.operator == "bitcast" and node.inputs[0] in graph.inputs]
    assert len(nodes) >= 8
    for got, wanted in zip(by_reference(graph, (x, u, w)), expected, strict=True):
        np.testing.assert_array_equal(got, wanted, strict=True)
    results = compile_graph(graph, threads=1)(x.numpy(), u.numpy(), w.numpy())
    for got, wanted in zip(results, expected, strict=True):
        np.testing.assert_array_equal(got.view(f"u{wanted.itemsize}"), wanted.view(f"u{wanted.itemsize}"), strict=True)


@pytest.mark.parametrize(("array", "dtype"), [(np.zeros((2, 3), "int16"), "int32"), (np.zeros((), "int64"), "int8")])
def test_elements_that_are_no_whole_numbers_of_another_type(array, dtype):
    with pytest.raises(GraphError, match=f"are no numbers of {dtype}: the last axis does not fit"):
        build(Node("bitcast", ("x0",), ("y",), {"dtype": dtype}), [placeholder(array.shape, array.dtype.name, "x0")])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_indices_of_every_type_are_checked_and_count_from_the_end_where_they_have_a_sign(dtype):
    row, size = np.iinfo(dtype), 5
    graph = one_gather(dtype, size)
    model = compile_graph(graph, threads=1)
    x = np.arange(size, dtype=np.float32)
    inside = np.array([0, 4, *((-1, -5) if row.min else (1, 2))], dtype)
    np.testing.assert_array_equal(model(x, inside), x[inside.astype(int)])
    for wrong in {size, row.max, row.min if row.min else row.max - 1}:
        with pytest.raises(IndexError, match="is out of range"):
            model(x, np.array([0, wrong, 1, 2], dtype))


def one_gather(dtype, size):
    values = {
        v.name: v for v in (Value("x", (size,), "float32"), Value("ids", (4,), dtype), Value("y", (4,), "float32"))
    }
    return Graph(("x", "ids"), ("y",), (Node("gather", ("x", "ids"), ("y",), {"axis": 0}),), values, {})
