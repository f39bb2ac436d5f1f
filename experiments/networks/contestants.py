"""Who takes part: each a function that loads a network in this process and gives what runs it once.

Versions and settings are those that users of such a runtime have: latency of one request at a time in float32, as many
threads as asked for, nothing tuned for hours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from autosched.runtime.tensors import Array

OURS, EAGER, INDUCTOR, FREEZING, ORT, OPENVINO = "autosched", "eager", "inductor", "freezing", "onnxruntime", "openvino"
PEERS = (EAGER, INDUCTOR, FREEZING, ORT, OPENVINO)
FROM_ONNX = (ORT, OPENVINO)
MODEL, INPUTS = "model.onnx", "inputs.npz"


@dataclass(frozen=True)
class Entrance:
    """What a contestant is asked to load. `directory` has the exported network, for those that read it."""

    network: str
    batch: int
    threads: int
    reduced: bool
    directory: Path


@dataclass(frozen=True)
class Loaded:
    """`run` gives results as the library has them, `arrays` the same as arrays; `facts` go into the entry."""

    run: Callable[[], Any]
    arrays: Callable[[], list[Array]]
    facts: Mapping[str, Any] = field(default_factory=dict)
    model: Any = None


def ours(entrance: Entrance) -> Loaded:
    import autosched

    module, tensors = built(entrance)
    inputs = [t.numpy() for t in tensors]
    models, seconds = [], []
    for _ in range(2):  # with an empty cache, as the caller has made it, and with a full one
        start = time.perf_counter()
        models = [autosched.load(module, tensors, threads=entrance.threads)]
        seconds.append(time.perf_counter() - start)
    model = models[0]
    facts = {
        "load_s": seconds[0], "warm_load_s": seconds[1], "tasks": len(model.tasks),
        "kernels": sum(task.count for task in model.tasks), "arena_bytes": model.arena_bytes,
        "bound_bytes": model.bound_bytes, "weights_bytes": model.program.weights_bytes,
    }  # fmt: skip
    return Loaded(lambda: model(*inputs), lambda: list(as_tuple(model(*inputs))), facts, model)


def eager(entrance: Entrance) -> Loaded:
    import torch

    start = time.perf_counter()
    module, tensors = built(entrance)

    def run() -> Any:
        with torch.inference_mode():
            return module(*tensors)

    return Loaded(run, lambda: numpy_of(run()), {"load_s": time.perf_counter() - start, "version": torch.__version__})


def inductor(entrance: Entrance, freezing: bool = False) -> Loaded:
    import torch

    module, tensors = built(entrance)
    inductor_config = torch._inductor.config
    inductor_config.freezing = freezing
    inductor_config.force_disable_caches = True  # compiling is timed
    compiled = torch.compile(module, fullgraph=True)

    def run() -> Any:
        with torch.no_grad():
            return compiled(*tensors)

    start = time.perf_counter()
    run()
    return Loaded(run, lambda: numpy_of(run()), {"load_s": time.perf_counter() - start, "version": torch.__version__})


def frozen(entrance: Entrance) -> Loaded:
    return inductor(entrance, freezing=True)


def onnxruntime(entrance: Entrance) -> Loaded:
    import onnxruntime as ort

    inputs = exported_inputs(entrance.directory)
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = entrance.threads, 1
    start = time.perf_counter()
    path = str(entrance.directory / MODEL)
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    seconds = time.perf_counter() - start
    feed = dict(zip((i.name for i in session.get_inputs()), inputs, strict=True))
    facts = {"load_s": seconds, "version": ort.__version__}
    return Loaded(lambda: session.run(None, feed), lambda: list(session.run(None, feed)), facts)


def openvino(entrance: Entrance) -> Loaded:
    import openvino as ov

    inputs = exported_inputs(entrance.directory)
    hints = {
        "INFERENCE_NUM_THREADS": entrance.threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }  # fmt: skip
    start = time.perf_counter()
    core = ov.Core()
    compiled = core.compile_model(core.read_model(str(entrance.directory / MODEL)), "CPU", hints)
    seconds = time.perf_counter() - start
    request, ports = compiled.create_infer_request(), compiled.outputs

    def arrays() -> list[Array]:
        found = request.infer(inputs)
        return [np.array(found[port]) for port in ports]

    return Loaded(lambda: request.infer(inputs), arrays, {"load_s": seconds, "version": ov.__version__})


MAKERS: Mapping[str, Callable[[Entrance], Loaded]] = {
    OURS: ours, EAGER: eager, INDUCTOR: inductor, FREEZING: frozen, ORT: onnxruntime, OPENVINO: openvino,
}  # fmt: skip


def export(entrance: Entrance) -> dict[str, Any]:
    """Writes the network as an ONNX file, and its inputs."""
    import torch

    module, tensors = built(entrance)
    with torch.no_grad():
        torch.onnx.export(module, tensors, dynamo=True, verbose=False).save(str(entrance.directory / MODEL))
    np.savez(entrance.directory / INPUTS, **{f"in{n}": t.numpy() for n, t in enumerate(tensors)})
    return {}


def built(entrance: Entrance) -> tuple[Any, tuple[Any, ...]]:
    """The module and its inputs; torch keeps to the threads from now on."""
    import torch

    from experiments.networks.models import build

    torch.set_num_threads(entrance.threads)
    return build(entrance.network, entrance.batch, reduced=entrance.reduced)


def exported_inputs(directory: Path) -> list[Array]:
    with np.load(directory / INPUTS) as found:
        return [found[f"in{n}"] for n in range(len(found.files))]


def as_tuple(results: Any) -> tuple[Any, ...]:
    return tuple(results) if isinstance(results, tuple | list) else (results,)


def numpy_of(results: Any) -> list[Array]:
    return [t.numpy() for t in as_tuple(results)]


def relative_error(got: Sequence[Array], want: Sequence[Array]) -> float:
    """The largest of all results: rms(got - want) / rms(want); infinite for other shapes and values that are none."""
    if [a.shape for a in got] != [a.shape for a in want]:
        return float("inf")
    worst = 0.0
    for g, w in zip(got, want, strict=True):
        difference = rms(g.astype(np.float64) - w) / max(rms(w), 1e-30)
        worst = max(worst, difference if np.isfinite(difference) else float("inf"))
    return worst


def rms(array: Array) -> float:
    return float(np.sqrt(np.mean(np.square(array, dtype=np.float64))))
