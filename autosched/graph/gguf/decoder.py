"""The graph of a decoder in a GGUF file: tokens and caches in, scores of the next tokens and caches out.

    tokens        int64 [tokens]                              their numbers
    start         int64 [1]                                   how many came before
    key.0 ...     float32 [1, kv_heads, context, key_size]    the caches of each layer
    value.0 ...   float32 [1, kv_heads, context, value_size]

    scores        float32 [tokens, vocabulary]                of what follows each token
    key.0.written ...                                         the caches with the rows of the tokens, from `start` on

Rows of a cache after those of the tokens have no effect. Numbers of tokens and places out of range are errors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from autosched.errors import GraphError, UsageError
from autosched.graph.gguf.hyperparameters import Hyperparameters, hyperparameters
from autosched.graph.gguf.reader import GgufFile, StoredTensor, read_gguf
from autosched.graph.graph import Array, Attribute, Graph, Node, Value
from autosched.graph.operators import results_of
from autosched.graph.operators.gathers import PLAIN, UNCHECKED
from autosched.graph.verify import verify

TOKENS, CONTEXT = SIZES = ("tokens", "context")
DEFAULT_CONTEXT = 2048  # at most, unless `sizes` says it


def load_gguf(path: Path, sizes: Mapping[str, int]) -> Graph:
    """Return the graph of a language model. `sizes`: `tokens` of a call, by default 1, and the `context`, for how many
    the caches have room, by default that of the model, but at most DEFAULT_CONTEXT.

    Raises GraphError for a damaged file and an unsupported model, UsageError for other sizes.
    """
    file = read_gguf(path)
    hyper = hyperparameters(file)
    if unknown := sorted(sizes.keys() - set(SIZES)):
        raise UsageError(f"{path} has no size {unknown[0]}: the sizes of a GGUF file are {' and '.join(SIZES)}")
    tokens, context = sizes.get(TOKENS, 1), sizes.get(CONTEXT, min(hyper.context, DEFAULT_CONTEXT))
    if tokens < 1 or context < tokens:
        raise UsageError(f"{path} needs at least one token, and a context of as many, but got {tokens} and {context}")
    return _Decoder(file, hyper, tokens, context).graph()


def input_shapes(path: Path) -> dict[str, tuple[str, tuple[int | str, ...]]]:
    """Return the types and shapes of a model's inputs by name, with names for the sizes that may be chosen."""
    graph = load_gguf(path, {})
    shapes: dict[str, tuple[str, tuple[int | str, ...]]] = {}
    for name in graph.inputs:
        value = graph.values[name]
        is_cache = len(value.shape) == 4
        shape: tuple[int | str, ...] = (*value.shape[:2], CONTEXT, value.shape[3]) if is_cache else value.shape
        shapes[name] = value.dtype, (TOKENS,) if name == "tokens" else shape
    return shapes


class _Decoder:
    """The graph under construction."""

    def __init__(self, file: GgufFile, hyper: Hyperparameters, tokens: int, context: int) -> None:
        self.file, self.hyper = file, hyper
        self.tokens, self.context = tokens, context
        self.values: dict[str, Value] = {}
        self.constants: dict[str, Array] = {}
        self.nodes: list[Node] = []
        self.layer = ""

    # Values

    def input(self, name: str, shape: tuple[int, ...], dtype: str) -> str:
        self.values[name] = Value(name, shape, dtype)
        return name

    def constant(self, name: str, array: Array) -> str:
        if name not in self.constants:
            self.values[name] = Value(name, array.shape, array.dtype.name)
            self.constants[name] = array
        return name

    def emit(self, operator: str, *inputs: str | None, to: str = "", **attributes: Attribute) -> str:
        return self.emit_all((to or f"{self.layer}{operator}.{len(self.nodes)}",), operator, inputs, attributes)[0]

    def emit_all(
        self, outputs: tuple[str, ...], operator: str, inputs: Sequence[str | None], attributes: Mapping[str, Attribute]
    ) -> tuple[str, ...]:
        node = Node(operator, tuple(inputs), outputs, attributes, f"{self.layer}{operator}")
        self.values |= {value.name: value for value in results_of(node, self.values)}
        self.nodes.append(node)
        return outputs

    def shape(self, name: str) -> tuple[int, ...]:
        return self.values[name].shape

    # Tensors of the file

    def stored(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        """Raises GraphError if there is none, or one of another shape; a size of 0 stands for any."""
        tensor = self.file.tensors.get(name)
        if tensor is None:
            raise GraphError(f"{self.file.path} has no tensor {name}")
        if len(shape) != len(tensor.shape) or any(n not in (0, m) for n, m in zip(shape, tensor.shape, strict=True)):
            raise GraphError(
                f"{self.file.path} has the tensor {name} of shape {list(tensor.shape)}, where the metadata say "
                f"{list(shape)}"
            )
        return tensor

    def weight(self, name: str, shape: tuple[int, ...]) -> str:
        """The constant of a tensor, as it is stored."""
        return self.constant(name, self.stored(name, shape).array)

    def vector(self, name: str, size: int) -> str | None:
        """A vector of floats; None if the file has no such tensor."""
        if name not in self.file.tensors:
            return None
        return self.constant(name, np.asarray(self.stored(name, (size,)).array, "float32"))

    def product(self, x: str, name: str, width: int) -> str:
        """x times the transposed weight `name`, and its bias, if it has one."""
        shape = (width, self.shape(x)[-1])
        tensor, weight = self.stored(f"{name}.weight", shape), self.weight(f"{name}.weight", shape)
        bias = self.vector(f"{name}.bias", width)
        if tensor.block is None:
            return self.emit("linear", x, weight, bias)
        return self.emit("linear_blocks", x, weight, bias, block=tensor.block)

    def norm(self, x: str, name: str) -> str:
        scale = self.vector(f"{name}.weight", self.shape(x)[-1])
        if scale is None:
            raise GraphError(f"{self.file.path} has no tensor {name}.weight")
        return self.emit("rms_norm", x, scale, axes=1, epsilon=self.hyper.epsilon)

    def norm_after(self, x: str, name: str) -> str:
        """The norm of what a layer adds, if the file has one."""
        return self.norm(x, f"{self.layer}{name}") if f"{self.layer}{name}.weight" in self.file.tensors else x

    # Layers

    def graph(self) -> Graph:
        hyper = self.hyper
        tokens = self.input("tokens", (self.tokens,), "int64")
        start = self.input("start", (1,), "int64")
        inputs, caches = [tokens, start], list[str]()
        firsts = self.constant("first places", np.arange(self.context - self.tokens + 1))
        first = self.emit("gather", firsts, start, axis=0, indexing=PLAIN)  # `start`, checked
        places = self.emit("add", first, self.constant("steps", np.arange(self.tokens)))
        x, angles, everywhere = self.embedded(tokens), self.angles(places), self.kept(places)
        near = self.kept(places, hyper.window) if hyper.window < self.context else everywhere
        for n in range(hyper.layers):
            self.layer = f"blk.{n}."
            sizes = {"key": hyper.key_size, "value": hyper.value_size}
            past = {
                which: self.input(f"{which}.{n}", (1, hyper.kv_heads, self.context, size), "float32")
                for which, size in sizes.items()
            }
            inputs += past.values()
            is_near = hyper.architecture.window_each and n % hyper.architecture.window_each == 0
            kept = near if is_near else everywhere
            y, written = self.attention(self.norm(x, f"{self.layer}attn_norm"), past, places, angles, kept)
            x = self.emit("add", x, self.norm_after(y, "post_attention_norm"))
            caches += written
            y = self.feed_forward(self.norm(x, f"{self.layer}ffn_norm"))
            x = self.emit("add", x, self.norm_after(y, "post_ffw_norm"))
        self.layer = ""
        scores = self.scores(self.norm(x, "output_norm"))
        outputs = (scores, *caches)
        name = self.file.path.stem
        whole = Graph(tuple(inputs), outputs, (), self.values, self.constants, name).with_nodes(self.nodes)
        verify(whole)
        return whole

    def embedded(self, tokens: str) -> str:
        """The rows of the embedding."""
        table = self.stored("token_embd.weight", (0, self.hyper.width))
        rows = self.emit("gather", self.weight("token_embd.weight", table.shape), tokens, axis=0, indexing=PLAIN)
        if table.block is not None:
            rows = self.emit("dequantize_blocks", rows, block=table.block)
        elif self.values[rows].dtype != "float32":
            rows = self.emit("cast", rows, dtype="float32")
        if not self.hyper.architecture.scales_embeddings:
            return rows
        root = np.array(math.sqrt(self.hyper.width), "float32")
        return self.emit("mul", rows, self.constant("root of the width", root))

    def scores(self, x: str) -> str:
        """The products with the rows of `output.weight`; where the file has none, with those of the embedding."""
        name = "output" if "output.weight" in self.file.tensors else "token_embd"
        vocabulary = self.stored(f"{name}.weight", (0, self.hyper.width)).shape[0]
        made = self.capped(self.product(x, name, vocabulary), self.hyper.output_cap)
        return self.emit("identity", made, to="scores")

    def capped(self, x: str, cap: float) -> str:
        """x for small numbers, and no more than `cap` for large ones."""
        if math.isinf(cap):
            return x
        limit = self.constant(f"cap {cap}", np.array(cap, "float32"))
        return self.emit("mul", self.emit("tanh", self.emit("div", x, limit)), limit)

    def angles(self, places: str) -> tuple[str, str]:
        """Cosines and sines [1, tokens, half] of the angles of the places."""
        hyper, half = self.hyper, self.hyper.turned // 2
        frequencies = hyper.frequency_base ** -(np.arange(half) / half) / hyper.frequency_scale
        is_long = self.context > hyper.short_context
        for name in ("rope_freqs", f"rope_factors_{'long' if is_long else 'short'}"):  # of models with long contexts
            if f"{name}.weight" in self.file.tensors:
                frequencies = frequencies / np.asarray(self.stored(f"{name}.weight", (half,)).array, "float64")
        table = np.arange(self.context)[:, None] * frequencies
        made = []
        for name, function in (("cosines", np.cos), ("sines", np.sin)):
            constant = self.constant(name, (function(table) * hyper.angle_factor).astype("float32"))
            rows = self.emit("gather", constant, places, axis=0, indexing=UNCHECKED)
            made.append(self.emit("reshape", rows, shape=(1, 1, self.tokens, half)))
        return made[0], made[1]

    def kept(self, places: str, window: int = 0) -> str:
        """Which places of the cache a token attends to, of the last `window` if that is not 0: bool [1, 1, tokens,
        context]."""
        columns = self.constant("columns", np.arange(self.context)[None, None, None])
        own = self.emit("reshape", places, shape=(1, 1, self.tokens, 1))
        before = self.emit("less_equal", columns, own)
        if not window:
            return before
        first = self.emit("sub", own, self.constant("window", np.array(window)))
        return self.emit("logical_and", before, self.emit("greater", columns, first))

    def attention(
        self, x: str, past: Mapping[str, str], places: str, angles: tuple[str, str], kept: str
    ) -> tuple[str, list[str]]:
        """Return the attention of normalised `x`, and the caches with its keys and values."""
        hyper = self.hyper
        q, k, v = self.queries_keys_values(x)
        q, k = self.turned(q, angles), self.turned(k, angles)
        written = [
            self.emit("write_rows", past[which], places, rows, axis=2, indexing=UNCHECKED, to=f"{past[which]}.written")
            for which, rows in (("key", k), ("value", v))
        ]
        y = self.mixed(q, written[0], written[1], kept)
        y = self.emit("transpose", y, perm=(0, 2, 1, 3))
        y = self.emit("reshape", y, shape=(self.tokens, hyper.heads * hyper.value_size))
        return self.product(y, f"{self.layer}attn_output", hyper.width), written

    def mixed(self, q: str, k: str, v: str, kept: str) -> str:
        """Attention of q[1, heads, tokens, key_size] and the caches; by its definition where scores have a cap."""
        hyper = self.hyper
        if math.isinf(hyper.score_cap):
            return self.emit("attention", q, k, v, kept, scale=hyper.score_scale, causal=False)
        each = hyper.heads // hyper.kv_heads
        rows = (1, hyper.kv_heads, each * self.tokens)
        q = self.emit("reshape", q, shape=(*rows, hyper.key_size))
        scores = self.emit("matmul", q, self.emit("transpose", k, perm=(0, 1, 3, 2)))
        scale = self.constant("scale of scores", np.array(hyper.score_scale, "float32"))
        scores = self.capped(self.emit("mul", scores, scale), hyper.score_cap)
        scores = self.emit("reshape", scores, shape=(1, hyper.heads, self.tokens, self.context))
        least = self.constant("score of what is not kept", np.array(-math.inf, "float32"))
        weights = self.emit("softmax", self.emit("where", kept, scores, least), axis=3)
        y = self.emit("matmul", self.emit("reshape", weights, shape=(*rows, self.context)), v)
        return self.emit("reshape", y, shape=(1, hyper.heads, self.tokens, hyper.value_size))

    def queries_keys_values(self, x: str) -> tuple[str, str, str]:
        """Each by head; their weights may be stored as one."""
        hyper, together = self.hyper, f"{self.layer}attn_qkv"
        sizes = {
            "attn_q": (hyper.heads, hyper.key_size),
            "attn_k": (hyper.kv_heads, hyper.key_size),
            "attn_v": (hyper.kv_heads, hyper.value_size),
        }
        widths = [heads * size for heads, size in sizes.values()]
        if f"{together}.weight" in self.file.tensors:
            parts = self.parts(self.product(x, together, sum(widths)), widths)
        else:
            parts = [self.product(x, f"{self.layer}{name}", width) for name, width in zip(sizes, widths, strict=True)]
        q, k, v = (self.by_head(y, name, *sizes[name]) for y, name in zip(parts, sizes, strict=True))
        return q, k, v

    def parts(self, x: str, widths: Sequence[int]) -> list[str]:
        """The columns of x, so many for each part."""
        ends = [sum(widths[: n + 1]) for n in range(len(widths))]
        return [self.part(x, 1, end - width, end) for end, width in zip(ends, widths, strict=True)]

    def by_head(self, y: str, name: str, heads: int, size: int) -> str:
        """y[tokens, heads * size], normalised for each head if the file has a norm: [1, heads, tokens, size]."""
        y = self.emit("reshape", y, shape=(1, self.tokens, heads, size))
        if f"{self.layer}{name}_norm.weight" in self.file.tensors:
            y = self.norm(y, f"{self.layer}{name}_norm")
        return self.emit("transpose", y, perm=(0, 2, 1, 3))

    def turned(self, x: str, angles: tuple[str, str]) -> str:
        """x[1, heads, tokens, size] with its pairs turned by the angles of their places; what is behind them stays."""
        *lead, size = self.shape(x)
        half, interleaved = self.hyper.turned // 2, self.hyper.architecture.interleaved
        cos, sin = angles
        if interleaved:
            pairs = self.emit("reshape", self.part(x, 3, 0, 2 * half), shape=(*lead, half, 2))
            a, b = (self.emit("reshape", self.part(pairs, 4, n, n + 1), shape=(*lead, half)) for n in (0, 1))
        else:
            a, b = (self.part(x, 3, n * half, (n + 1) * half) for n in (0, 1))
        one = self.emit("sub", self.emit("mul", a, cos), self.emit("mul", b, sin))
        other = self.emit("add", self.emit("mul", a, sin), self.emit("mul", b, cos))
        if interleaved:
            sides = [self.emit("reshape", t, shape=(*lead, half, 1)) for t in (one, other)]
            y = self.emit("reshape", self.emit("concat", *sides, axis=4), shape=(*lead, 2 * half))
        else:
            y = self.emit("concat", one, other, axis=3)
        return y if size == 2 * half else self.emit("concat", y, self.part(x, 3, 2 * half, size), axis=3)

    def part(self, x: str, axis: int, start: int, stop: int) -> str:
        if (start, stop) == (0, self.shape(x)[axis]):
            return x
        return self.emit("slice", x, starts=(start,), stops=(stop,), axes=(axis,), steps=(1,))

    def experts(self, x: str) -> str:
        """The experts that score best for a token, weighted by the softmax of their scores."""
        hyper = self.hyper
        router = self.stored(f"{self.layer}ffn_gate_inp.weight", (0, hyper.width))
        if not 0 < hyper.experts_used <= router.shape[0]:
            raise GraphError(f"{self.file.path} uses {hyper.experts_used} of {router.shape[0]} experts")
        scores = self.product(x, f"{self.layer}ffn_gate_inp", router.shape[0])
        outputs = (f"{self.layer}scores of experts", f"{self.layer}experts")
        best, ids = self.emit_all(outputs, "top_k", (scores,), {"k": hyper.experts_used, "axis": 1, "largest": True})
        gate, up = (self.chosen(x, f"{self.layer}ffn_{which}_exps", ids) for which in ("gate", "up"))
        y = self.chosen(self.emit("mul", self.activated(gate), up), f"{self.layer}ffn_down_exps", ids)
        weights = self.emit("softmax", best, axis=1)
        weights = self.emit("reshape", weights, shape=(self.tokens, 1, hyper.experts_used))
        return self.emit("reshape", self.emit("matmul", weights, y), shape=(self.tokens, hyper.width))

    def chosen(self, x: str, name: str, ids: str) -> str:
        """The products with the chosen matrices of a weight: [tokens, experts_used, rows]."""
        shape = (0, 0, self.shape(x)[-1])
        tensor, weight = self.stored(f"{name}.weight", shape), self.weight(f"{name}.weight", shape)
        return self.emit("linear_chosen", x, weight, ids, block=tensor.block)

    def feed_forward(self, x: str) -> str:
        if f"{self.layer}ffn_gate_inp.weight" in self.file.tensors:
            return self.experts(x)
        hidden = self.stored(f"{self.layer}ffn_up.weight", (0, self.hyper.width)).shape[0]
        up = self.product(x, f"{self.layer}ffn_up", hidden)
        if f"{self.layer}ffn_gate.weight" in self.file.tensors:
            gate = self.product(x, f"{self.layer}ffn_gate", hidden)
        else:  # the rows of the gate are the first half
            gate, up = self.parts(up, (hidden // 2, hidden - hidden // 2))
        return self.product(self.emit("mul", self.activated(gate), up), f"{self.layer}ffn_down", self.hyper.width)

    def activated(self, x: str) -> str:
        if self.hyper.architecture.activation == "gelu":
            return self.emit("gelu", x, approximate="tanh")
        return self.emit("silu", x)
