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
from collections.abc import Mapping
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
        output = to or f"{self.layer}{operator}.{len(self.nodes)}"
        node = Node(operator, inputs, (output,), attributes, f"{self.layer}{operator}")
        (value,) = results_of(node, self.values)
        self.values[output] = value
        self.nodes.append(node)
        return output

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

    # Layers

    def graph(self) -> Graph:
        hyper = self.hyper
        tokens = self.input("tokens", (self.tokens,), "int64")
        start = self.input("start", (1,), "int64")
        inputs, caches = [tokens, start], list[str]()
        places = self.emit("add", start, self.constant("steps", np.arange(self.tokens)))
        x, angles, kept = self.embedded(tokens), self.angles(places), self.kept(places)
        for n in range(hyper.layers):
            self.layer = f"blk.{n}."
            sizes = {"key": hyper.key_size, "value": hyper.value_size}
            past = {
                which: self.input(f"{which}.{n}", (1, hyper.kv_heads, self.context, size), "float32")
                for which, size in sizes.items()
            }
            inputs += past.values()
            y, written = self.attention(self.norm(x, f"{self.layer}attn_norm"), past, places, angles, kept)
            x = self.emit("add", x, y)
            caches += written
            x = self.emit("add", x, self.feed_forward(self.norm(x, f"{self.layer}ffn_norm")))
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
        made = self.product(x, name, vocabulary)
        return self.emit("identity", made, to="scores")

    def angles(self, places: str) -> tuple[str, str]:
        """Cosines and sines [1, tokens, half] of the angles of the places."""
        hyper, half = self.hyper, self.hyper.turned // 2
        frequencies = hyper.frequency_base ** -(np.arange(half) / half) / hyper.frequency_scale
        if "rope_freqs.weight" in self.file.tensors:  # of models whose context was extended
            frequencies = frequencies / np.asarray(self.stored("rope_freqs.weight", (half,)).array, "float64")
        table = np.arange(self.context)[:, None] * frequencies
        made = []
        for name, function in (("cosines", np.cos), ("sines", np.sin)):
            constant = self.constant(name, function(table).astype("float32"))
            rows = self.emit("gather", constant, places, axis=0, indexing=PLAIN)
            made.append(self.emit("reshape", rows, shape=(1, 1, self.tokens, half)))
        return made[0], made[1]

    def kept(self, places: str) -> str:
        """Which places of the cache a token attends to: bool [1, 1, tokens, context]."""
        columns = self.constant("columns", np.arange(self.context)[None, None, None])
        return self.emit("less_equal", columns, self.emit("reshape", places, shape=(1, 1, self.tokens, 1)))

    def attention(
        self, x: str, past: Mapping[str, str], places: str, angles: tuple[str, str], kept: str
    ) -> tuple[str, list[str]]:
        """Return the attention of normalised `x`, and the caches with its keys and values."""
        hyper = self.hyper
        q = self.by_head(x, "attn_q", hyper.heads, hyper.key_size)
        k = self.by_head(x, "attn_k", hyper.kv_heads, hyper.key_size)
        v = self.by_head(x, "attn_v", hyper.kv_heads, hyper.value_size)
        q, k = self.turned(q, angles), self.turned(k, angles)
        written = [
            self.emit("write_rows", past[which], places, rows, axis=2, indexing=UNCHECKED, to=f"{past[which]}.written")
            for which, rows in (("key", k), ("value", v))
        ]
        y = self.emit("attention", q, *written, kept, scale=hyper.key_size**-0.5, causal=False)
        y = self.emit("transpose", y, perm=(0, 2, 1, 3))
        y = self.emit("reshape", y, shape=(self.tokens, hyper.heads * hyper.value_size))
        return self.product(y, f"{self.layer}attn_output", hyper.width), written

    def by_head(self, x: str, name: str, heads: int, size: int) -> str:
        """The product with a weight, normalised for each head if the file has a norm: [1, heads, tokens, size]."""
        y = self.product(x, f"{self.layer}{name}", heads * size)
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

    def feed_forward(self, x: str) -> str:
        hidden = self.stored(f"{self.layer}ffn_up.weight", (0, self.hyper.width)).shape[0]
        gate, up = (self.product(x, f"{self.layer}ffn_{which}", hidden) for which in ("gate", "up"))
        return self.product(self.emit("mul", self.activated(gate), up), f"{self.layer}ffn_down", self.hyper.width)

    def activated(self, x: str) -> str:
        if self.hyper.architecture.activation == "gelu":
            return self.emit("gelu", x, approximate="tanh")
        return self.emit("silu", x)
