"""One model: loaded once, called many times with fresh inputs, all outputs compared with the peer's.

The peer's results are computed before the model is loaded: where the memory of the process is damaged, it was not the
peer. One call often passes where a kernel has written beyond its arrays already, so there are many, and half of them
write to `out=` arrays that have guard bytes before and behind them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto

from experiments.differential.children import Facts, Report
from experiments.differential.judge import Judge, differences, largest_difference
from experiments.differential.peer import Array, Peer

GUARD_BYTES = 4096
GUARD = 0xA5
JUDGE_S = 20.0  # for the differences of a model; those of its later calls are taken for the same
Draw = Callable[[np.random.Generator], Mapping[str, Array]]


def guarded(shape: Sequence[int], dtype: Any) -> tuple[Array, Array]:
    """An array full of garbage, and the bytes that it lies in, GUARD_BYTES more on both sides."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    block = np.full(nbytes + 2 * GUARD_BYTES + 64, GUARD, "uint8")
    start = GUARD_BYTES + -(block.ctypes.data + GUARD_BYTES) % 64
    array = block[start : start + nbytes].view(dtype).reshape(shape)
    return array, block


def is_intact(array: Array, block: Array) -> bool:
    """Whether the bytes of `block` around `array` are as `guarded` has left them."""
    start = array.ctypes.data - block.ctypes.data if array.size else 0
    return bool((block[:start] == GUARD).all() and (block[start + array.nbytes :] == GUARD).all())


def try_model(
    model: ModelProto, load: Callable[[], Any], draw: Draw, n_calls: int, seed: int, report: Report,
    tolerance: float | None = None,
) -> Facts:  # fmt: skip
    """The verdict on a model: "right", "rounding", "undefined", "peers disagree", "wrong", or "no peer", with the
    `largest` difference. `load` gives the function that is tried, `draw` the inputs of a call by name, `seed` makes a
    trial repeatable. With a `tolerance` all that is beyond it is wrong."""
    report("peer")
    rng = np.random.default_rng(seed)
    try:
        peer = Peer(model)
        feeds = [draw(rng) for _ in range(n_calls)]
        wanted = [peer(feed) for feed in feeds]
    except Exception as error:  # of another project's program: any class
        return {"verdict": "no peer", "reason": f"{type(error).__name__}: {error}"[:300]}
    report("load")
    network = load()
    judge, kinds, first, largest, judged_s = Judge(model), set[str](), "", 0.0, 0.0
    for n, (feed, want) in enumerate(zip(feeds, wanted, strict=True)):
        report(f"call {n}")
        got, damage = called(network, feed, with_out=n % 2 == 1)
        if damage:
            return {"verdict": "wrong", "reason": f"call {n}: {damage}", "peer": peer.name}
        largest = max(largest, largest_difference(got, want))
        found = differences(peer.outputs, got, want, tolerance)
        if not found:
            continue
        if judged_s > JUDGE_S:
            continue
        start = time.monotonic()
        kind = "wrong" if tolerance is not None else judge.kind(feed, got, want, seed)
        judged_s += time.monotonic() - start
        reason = f"call {n}: {found[0].output}: {found[0].said}"
        if kind == "wrong":
            return {"verdict": kind, "reason": reason, "peer": peer.name, "largest": largest}
        kinds.add(kind)
        first = first or reason
    verdict = next((kind for kind in ("peers disagree", "undefined", "rounding") if kind in kinds), "right")
    return {"verdict": verdict, "peer": peer.name, "reason": first, "largest": largest}


def called(network: Any, feed: Mapping[str, Array], with_out: bool) -> tuple[list[Array], str]:
    """The outputs of one call, and what it has damaged, if anything."""
    given = {name: np.array(array, order="C") for name, array in feed.items()}
    arrays, blocks = [], []
    if with_out:
        pairs = [guarded(spec.shape, spec.numpy_dtype) for spec in network.outputs]
        arrays, blocks = [array for array, _ in pairs], [block for _, block in pairs]
        network(**given, out=arrays[0] if len(arrays) == 1 else tuple(arrays))
    else:
        results = network(**given)
        arrays = list(results) if isinstance(results, tuple) else [results]
    for spec, array, block in zip(network.outputs, arrays, blocks, strict=False):
        if not is_intact(array, block):
            return arrays, f"bytes beside the array of the output {spec.name} are overwritten"
    for name, array in feed.items():
        if not np.array_equal(given[name], array, equal_nan=array.dtype.kind == "f"):
            return arrays, f"the input {name} is overwritten"
    return arrays, ""


def inputs_of(model: ModelProto) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shape and type of each input that is no constant; all of its sizes must be numbers."""
    constants = {tensor.name for tensor in model.graph.initializer}
    return {
        info.name: (
            tuple(d.dim_value for d in info.type.tensor_type.shape.dim),
            np.dtype(onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)),
        )
        for info in model.graph.input
        if info.name not in constants
    }


def drawn(rng: np.random.Generator, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """Numbers of a type: floats around 0 and a few whole ones, small integers, truth values."""
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        return rng.integers(0 if dtype.kind == "u" else -8, 9, shape).astype(dtype)
    floats = rng.standard_normal(shape) * 2
    whole = np.where(rng.random(shape) < 0.125, np.round(floats), floats)
    return np.asarray(whole).astype(dtype)
