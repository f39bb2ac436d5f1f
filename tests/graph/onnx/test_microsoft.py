"""Operators of ONNX Runtime's domain: as it computes them, and some written out in NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from autosched.errors import GraphError  # noqa: E402
from autosched.executor.compile_graph import compile_graph  # noqa: E402
from autosched.graph.interpret import interpret  # noqa: E402
from autosched.graph.onnx.importer import import_model  # noqa: E402

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.normal(size=shape).astype(np.float32)


def ints(high: int, *shape: int, dtype: str = "int32") -> np.ndarray[Any, Any]:
    return RNG.integers(0, high, shape).astype(dtype)


def made(
    operator: str, given: Mapping[str, Any], outputs: int = 1, fixed: tuple[str, ...] = (), **attributes: Any
) -> onnx.ModelProto:
    """A model of one node; an input that is left out is None. Those in `fixed` are initializers."""
    names = [name if array is not None else "" for name, array in given.items()]
    results = [f"y{n}" for n in range(outputs)]
    node = helper.make_node(operator, names, results, domain=attributes.pop("domain", "com.microsoft"), **attributes)
    kinds = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in given.items() if array is not None}
    ins = [helper.make_tensor_value_info(n, k, given[n].shape) for n, k in kinds.items() if n not in fixed]
    outs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in results]
    tables = [numpy_helper.from_array(given[n], n) for n in fixed]
    graph = helper.make_graph([node], "test", ins, outs, tables)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def computed(model: onnx.ModelProto, given: Mapping[str, Any]) -> list[np.ndarray[Any, Any]]:
    graph = import_model(model, {}, {})
    results = interpret(graph, {name: given[name] for name in graph.inputs})
    return [results[name] for name in graph.outputs]


X, W = normal(2, 5, 12), normal(12, 36)
MASK = (np.arange(5) < np.array([[3], [5]])).astype(np.int32)
ANGLES = RNG.uniform(0, 3, (9, 2)).astype(np.float32)
SKIP = {"x": X, "skip": normal(2, 5, 12), "scale": normal(12), "shift": normal(12), "bias": normal(12)}
EMBED = {
    "ids": ints(11, 2, 5), "segments": ints(2, 2, 5), "words": normal(11, 12), "places": normal(9, 12),
    "kinds": normal(2, 12), "scale": normal(12), "shift": normal(12),
}  # fmt: skip
QKV = {"q": normal(2, 3, 12), "k": normal(2, 5, 12), "v": normal(2, 5, 8), "bias": normal(32)}


def few(bits: int, depth: int, group: int, **more: Any) -> dict[str, Any]:
    groups = -(-depth // group)
    packed = ints(256, 7, groups, group * bits // 8, dtype="uint8")
    return {"x": normal(3, depth), "packed": packed, "scales": normal(7 * groups), **more}


def grouped(length: int, cached: int | None, total: int) -> dict[str, Any]:
    """Two sequences with heads of 16, the second one as long as the longest, the first one shorter where keys are cached."""
    past = [None if cached is None else normal(2, 2, cached, 16) for _ in range(2)]
    lengths = np.array([total - 1 - 2 * (cached is not None), total - 1], "int32")
    angles = RNG.uniform(0, 3, (12, 8)).astype("float32")
    return {
        "q": normal(2, length, 64), "k": normal(2, length, 32), "v": normal(2, length, 32), "pk": past[0], "pv": past[1],
        "lengths": lengths, "total": np.array(total, "int32"), "cos": np.cos(angles), "sin": np.sin(angles),
    }  # fmt: skip


# name: (operator, inputs, initializers, results that are compared, attributes)
CASES: dict[str, tuple[str, dict[str, Any], tuple[str, ...], tuple[int, ...], dict[str, Any]]] = {
    "fused_matmul": ("FusedMatMul", {"a": normal(2, 5, 3), "b": normal(7, 5)}, (), (0,), {"transA": 1, "transB": 1, "alpha": 0.5}),
    "int4": ("MatMulNBits", few(4, 64, 32), ("packed", "scales"), (0,), {"K": 64, "N": 7, "bits": 4, "block_size": 32}),
    "int4_zeros": ("MatMulNBits", few(4, 48, 16, zeros=ints(256, 14, dtype="uint8")), ("packed", "scales", "zeros"), (0,), {"K": 48, "N": 7, "bits": 4, "block_size": 16}),
    "int4_rest": ("MatMulNBits", few(4, 40, 16, zeros=None, order=None, bias=normal(7)), ("packed", "scales"), (0,), {"K": 40, "N": 7, "bits": 4, "block_size": 16}),
    "int8": ("MatMulNBits", few(8, 32, 16), ("packed", "scales"), (0,), {"K": 32, "N": 7, "bits": 8, "block_size": 16}),
    "bias_gelu": ("BiasGelu", {"x": X, "b": normal(12)}, (), (0,), {}),
    "fast_gelu": ("FastGelu", {"x": X, "b": normal(12)}, (), (0,), {}),
    "gelu": ("Gelu", {"x": X}, (), (0,), {}),
    "quick_gelu": ("QuickGelu", {"x": X}, (), (0,), {"alpha": 1.5}),
    "skip": ("SkipLayerNormalization", SKIP, (), (0, 3), {"epsilon": 1e-3}),
    "skip_row": ("SkipLayerNormalization", {**SKIP, "skip": normal(1, 5, 12), "shift": None, "bias": None}, (), (0, 3), {}),
    "skip_rms": ("SkipSimplifiedLayerNormalization", {"x": X, "skip": SKIP["skip"], "scale": normal(12), "bias": normal(12)}, (), (0, 3), {}),
    "rms": ("SimplifiedLayerNormalization", {"x": X, "scale": normal(12)}, (), (0,), {"domain": "", "axis": -1}),
    "embed": ("EmbedLayerNormalization", EMBED, (), (0, 2), {"epsilon": 1e-3}),
    "embed_mask": ("EmbedLayerNormalization", {**EMBED, "segments": None, "kinds": None, "mask": MASK, "at": ints(9, 2, 5)}, (), (0, 1), {}),
    "attention": ("Attention", {"x": X, "w": W, "bias": normal(36)}, (), (0, 1), {"num_heads": 3}),
    "attention_causal": ("Attention", {"x": X, "w": W, "bias": normal(36)}, (), (0,), {"num_heads": 3, "unidirectional": 1, "scale": 0.3}),
    "attention_mask": ("Attention", {"x": X, "w": W, "bias": normal(36), "mask": MASK}, (), (0,), {"num_heads": 2}),
    "attention_lengths": ("Attention", {"x": X, "w": W, "bias": normal(36), "mask": MASK.sum(1).astype("int32")}, (), (0,), {"num_heads": 2}),
    "attention_added": ("Attention", {"x": X, "w": W, "bias": normal(36), "mask": MASK, "past": None, "added": normal(2, 3, 5, 5)}, (), (0,), {"num_heads": 3}),
    "attention_sizes": ("Attention", {"x": X, "w": normal(12, 28), "bias": normal(28)}, (), (0,), {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 12]}),
    "heads": ("MultiHeadAttention", QKV, (), (0,), {"num_heads": 4}),
    "heads_mask": ("MultiHeadAttention", {**QKV, "bias": None, "mask": MASK}, (), (0,), {"num_heads": 2}),
    "heads_past": ("MultiHeadAttention", {"q": normal(2, 3, 12), "k": normal(2, 3, 12), "v": normal(2, 3, 12), "bias": None, "mask": None, "added": None, "pk": normal(2, 4, 6, 3), "pv": normal(2, 4, 6, 3)}, (), (0, 1, 2), {"num_heads": 4}),
    "grouped_prompt": ("GroupQueryAttention", grouped(5, None, 5), ("total",), (0, 1, 2), {"num_heads": 4, "kv_num_heads": 2}),
    "grouped_step": ("GroupQueryAttention", grouped(1, 6, 7), ("total",), (0, 1, 2), {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}),
    "grouped_buffer": ("GroupQueryAttention", grouped(1, 9, 5), ("total",), (0, 1, 2), {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1, "rotary_interleaved": 1, "scale": 0.3}),
    "grouped_packed": ("GroupQueryAttention", {**grouped(1, 9, 5), "q": normal(2, 1, 128), "k": None, "v": None}, ("total",), (0, 1, 2), {"num_heads": 4, "kv_num_heads": 2}),
    "rotary": ("RotaryEmbedding", {"x": normal(2, 5, 12), "at": ints(9, 2, 5, dtype="int64"), "cos": np.cos(ANGLES), "sin": np.sin(ANGLES)}, (), (0,), {}),
    "rotary_interleaved": ("RotaryEmbedding", {"x": normal(2, 3, 5, 4), "at": np.array([2], "int64"), "cos": np.cos(ANGLES), "sin": np.sin(ANGLES)}, (), (0,), {"interleaved": 1}),
    "rotary_part": ("RotaryEmbedding", {"x": normal(2, 5, 18), "at": ints(9, 2, 5, dtype="int64"), "cos": np.cos(ANGLES), "sin": np.sin(ANGLES)}, (), (0,), {"num_heads": 3, "rotary_embedding_dim": 4}),
}  # fmt: skip


def scaled(letter: str, *shape: int, dtype: str = "uint8") -> dict[str, Any]:
    """Bytes with a scale and a zero. Signed ones have 7 bits: without VNNI, onnxruntime adds pairs of their products with
    unsigned bytes in 16 bits, which saturate."""
    low, count = (-60, 120) if dtype == "int8" else (0, 200)
    return {
        letter: (ints(count, *shape) + low).astype(dtype),
        f"{letter}s": np.array(RNG.uniform(0.01, 0.05), "float32"), f"{letter}z": np.array(ints(100) + low // 2, dtype),
    }  # fmt: skip


def result(dtype: str = "uint8") -> dict[str, Any]:
    return {"ys": np.float32(0.07), "yz": np.array(60, dtype)}


A, B, IMAGE = scaled("a", 3, 5), scaled("b", 5, 7, dtype="int8"), scaled("a", 2, 3, 7, 5)
_FIXED = ("as", "az", "bs", "bz", "ys", "yz")
CASES |= {
    "fused_conv": ("FusedConv", {"x": normal(2, 3, 7, 5), "w": normal(4, 3, 3, 3), "bias": normal(4), "z": normal(2, 4, 7, 5)}, (), (0,), {"activation": "Relu", "pads": [1, 1, 1, 1]}),
    "fused_conv_numbers": ("FusedConv", {"x": normal(2, 3, 7, 5), "w": normal(4, 3, 3, 3)}, (), (0,), {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]}),
    "fused_conv_clip": ("FusedConv", {"x": normal(2, 3, 7, 5), "w": normal(4, 3, 1, 1)}, (), (0,), {"activation": "Clip", "activation_params": [-0.5, 0.6]}),
    "fused_gemm": ("FusedGemm", {"a": normal(3, 5), "b": normal(7, 5), "c": normal(7)}, (), (0,), {"activation": "LeakyRelu", "activation_alpha": 0.3, "transB": 1}),
    "q_add": ("QLinearAdd", {**A, **scaled("b", 5), **result()}, _FIXED, (0,), {}),
    "q_mul": ("QLinearMul", {**A, **scaled("b", 3, 1), **result()}, _FIXED, (0,), {}),
    "q_sigmoid": ("QLinearSigmoid", {**A, "ys": np.float32(0.004), "yz": np.array(0, "uint8")}, ("as", "az", "ys", "yz"), (0,), {}),
    "q_leaky": ("QLinearLeakyRelu", {**A, **result()}, ("as", "az", "ys", "yz"), (0,), {"alpha": 0.2}),
    "q_softmax": ("QLinearSoftmax", {**A, "ys": np.float32(0.004), "yz": np.array(0, "uint8")}, ("as", "az", "ys", "yz"), (0,), {"axis": -1, "opset": 17}),
    "q_pool": ("QLinearAveragePool", {**IMAGE, **result()}, ("as", "az", "ys", "yz"), (0,), {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 0]}),
    "q_global": ("QLinearGlobalAveragePool", {**IMAGE, **result()}, ("as", "az", "ys", "yz"), (0,), {}),
    "q_concat": ("QLinearConcat", {**result(), **A, **scaled("b", 2, 5)}, _FIXED, (0,), {"axis": 0}),
    "q_gemm": ("QGemm", {**A, **B, "c": ints(99, 7) - 50, **result()}, (*_FIXED, "b", "c"), (0,), {}),
    "q_gemm_floats": ("QGemm", {**A, **scaled("b", 7, 5, dtype="int8")}, ("as", "az", "bs", "bz", "b"), (0,), {"transB": 1, "alpha": 0.5}),
    "q_matmul": ("MatMulIntegerToFloat", {"a": A["a"], "b": B["b"], "as": A["as"], "bs": B["bs"], "az": A["az"], "bz": B["bz"], "c": normal(7)}, ("b", "bs", "bz"), (0,), {}),
    "q_dynamic": ("DynamicQuantizeMatMul", {"a": normal(3, 5), "b": B["b"], "bs": B["bs"], "bz": B["bz"], "c": normal(7)}, ("b", "bs", "bz"), (0,), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_as_onnxruntime_computes_it(name):
    runtime = pytest.importorskip("onnxruntime")
    operator, given, fixed, compared, attributes = CASES[name]
    model = made(operator, given, max(compared) + 1, fixed, **attributes)
    for n in reversed(range(max(compared))):
        if n not in compared:
            model.graph.node[0].output[n] = ""
            del model.graph.output[n]
    if name == "embed_mask":
        model.graph.output[1].type.tensor_type.elem_type = TensorProto.INT32
    if any(name in given for name in ("ys", "yz")):
        model.graph.output[0].type.tensor_type.elem_type = TensorProto.UINT8
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = session.run(None, {i.name: given[i.name] for i in session.get_inputs()})
    for got, want in zip(computed(model, given), wanted, strict=True):
        if "lengths" in given and got.ndim == 4:  # behind a sequence's keys a cache holds anything
            counted = (np.arange(got.shape[2]) <= given["lengths"][:, None])[:, None, :, None]
            got, want = np.where(counted, got, 0), np.where(counted, want, 0)
        ties = 1 if got.dtype == np.uint8 else 0  # rounding of what lies between two numbers
        np.testing.assert_allclose(got, want.astype(got.dtype), rtol=2e-4, atol=max(ties, 2e-5))


def test_a_cache_goes_on_where_the_prompt_ended():
    """The last token of a prompt, given alone with the keys of the others, attends as in the whole."""
    x, words = {n: normal(1, 6, w) for n, w in (("q", 64), ("k", 32), ("v", 32))}, {"num_heads": 4, "kv_num_heads": 2}

    def run(part: slice, past: Any, total: int) -> list[np.ndarray[Any, Any]]:
        given = {
            **{n: a[:, part] for n, a in x.items()}, "pk": past and past[0], "pv": past and past[1],
            "lengths": np.array([total - 1], "int32"), "total": np.array(total, "int32"),
        }  # fmt: skip
        return computed(made("GroupQueryAttention", given, 3, ("total",), **words), given)

    whole = run(slice(0, 6), None, 6)
    first = run(slice(0, 5), None, 5)
    last = run(slice(5, 6), first[1:], 6)
    np.testing.assert_allclose(last[0], whole[0][:, 5:], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(last[1], whole[1], rtol=1e-6)


def test_weights_of_four_bits_are_halves_of_bytes():
    given = few(4, 48, 16, zeros=ints(256, 14, dtype="uint8"))
    model = made("MatMulNBits", given, 1, ("packed", "scales", "zeros"), K=48, N=7, bits=4, block_size=16)
    halves = [np.stack([given[n] & 15, given[n] >> 4], -1).astype(np.float64) for n in ("packed", "zeros")]
    q, zeros = halves[0].reshape(7, 3, 16), halves[1].reshape(7, 4)[:, :3, None]
    weight = ((q - zeros) * given["scales"].reshape(7, 3, 1)).reshape(7, 48)
    (got,) = computed(model, given)
    np.testing.assert_allclose(got, given["x"] @ weight.T, rtol=1e-6, atol=1e-6)
    graph = import_model(model, {}, {})
    np.testing.assert_allclose(compile_graph(graph, threads=1)(given["x"]), got, rtol=1e-5, atol=1e-5)


def test_attention_leaves_out_what_is_masked():
    given = {"x": X, "w": W, "bias": None, "mask": MASK.sum(1).astype("int32")}
    (got,) = computed(made("Attention", given, num_heads=2), given)
    short = {"x": X[:1, :3], "w": W}
    (want,) = computed(made("Attention", short, num_heads=2), short)
    np.testing.assert_allclose(got[:1, :3], want, rtol=1e-6)


def test_the_sum_is_a_result_of_the_norm():
    given = {"x": X, "skip": X, "scale": np.ones(12, np.float32)}
    model = made("SkipSimplifiedLayerNormalization", given, 4, epsilon=0.0)
    for n in (2, 1):
        model.graph.node[0].output[n] = ""
        del model.graph.output[n]
    norm, total = computed(model, given)
    np.testing.assert_allclose(total, 2 * X)
    np.testing.assert_allclose(np.square(norm).mean(-1), 1.0, rtol=1e-6)


@pytest.mark.parametrize(
    ("operator", "given", "attributes", "message"),
    [
        ("MatMulNBits", few(4, 32, 32), {"K": 32, "N": 7, "bits": 5, "block_size": 32}, "weights of 5 bits is not supported"),
        ("FusedMatMul", {"a": X, "b": X}, {"transBatchA": 1}, "transBatchA is not supported"),
        ("FusedGemm", {"a": X[0], "b": W}, {"activation": "Shout"}, "the activation Shout"),
        ("Attention", {"x": X, "w": W, "bias": None, "mask": normal(3, 4)}, {"num_heads": 3}, "a mask of the shape"),
        ("BifurcationDetector", {"a": X}, {}, "operators that are not supported: com.microsoft.BifurcationDetector"),
    ],
)  # fmt: skip
def test_what_is_not_supported(operator, given, attributes, message):
    with pytest.raises(GraphError, match=message):
        computed(made(operator, given, **attributes), given)
