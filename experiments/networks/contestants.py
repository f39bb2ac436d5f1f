"""Who takes part: each a function that loads a network in this process and gives what runs it once.

Versions and settings are those that users of such a runtime have: latency of one request at a time, as many threads as
asked for, nothing tuned for hours. Ours may take part three times: as loaded, tuned for some seconds, and so with
Winograd's transforms allowed. Networks whose name ends in `_int8` are the float32 ones, quantised by ONNX Runtime
(static, QDQ, signed weights by channel); only those that read ONNX files have them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from autosched.runtime.tensors import Array

OURS, EAGER, INDUCTOR, FREEZING, ORT, OPENVINO = "autosched", "eager", "inductor", "freezing", "onnxruntime", "openvino"
TUNED, WINOGRAD = "tuned", "winograd"
OWN = (OURS, TUNED, WINOGRAD)
PEERS = (EAGER, INDUCTOR, FREEZING, ORT, OPENVINO)
FROM_ONNX = (ORT, OPENVINO)
MODEL, INPUTS = "model.onnx", "inputs.npz"
INT8 = "_int8"
CALIBRATIONS = 4  # inputs by which ranges of bytes are found


@dataclass(frozen=True)
class Entrance:
    """What a contestant is asked to load. `directory` has the exported network, for those that read it; `tuning_s`: how
    long ours are tuned, those that are."""

    network: str
    batch: int
    threads: int
    reduced: bool
    directory: Path
    tuning_s: float = 0.0

    @property
    def is_int8(self) -> bool:
        return self.network.endswith(INT8)


@dataclass(frozen=True)
class Loaded:
    """`run` gives results as the library has them, `arrays` the same as arrays; `facts` go into the entry."""

    run: Callable[[], Any]
    arrays: Callable[[], list[Array]]
    facts: Mapping[str, Any] = field(default_factory=dict)
    model: Any = None


def ours(entrance: Entrance) -> Loaded:
    models, seconds = [], []
    load, inputs = loader(entrance)
    for _ in range(2):  # with an empty cache, as the caller has made it, and with a full one
        start = time.perf_counter()
        models = [load()]
        seconds.append(time.perf_counter() - start)
    return of_model(models[0], inputs, {"load_s": seconds[0], "warm_load_s": seconds[1]})


def tuned(entrance: Entrance, winograd: bool = False) -> Loaded:
    import autosched

    load, inputs = loader(entrance, winograd)
    start = time.perf_counter()
    found = autosched.tune(load(), budget_s=entrance.tuning_s, db=entrance.directory / f"{winograd}.db")
    facts = {"load_s": time.perf_counter() - start, "trials": found.trials, "start_s": found.start_latency_s}
    return of_model(found.model, inputs, facts)


def tuned_winograd(entrance: Entrance) -> Loaded:
    return tuned(entrance, winograd=True)


def loader(entrance: Entrance, winograd: bool = False) -> tuple[Callable[[], Any], list[Array]]:
    """What loads ours, and its inputs; from the file, where only that has the network."""
    import autosched

    load = partial(autosched.load, threads=entrance.threads, winograd=winograd, specialise="now")
    if entrance.is_int8:
        return partial(load, entrance.directory / MODEL), exported_inputs(entrance.directory)
    module, tensors = built(entrance)
    return partial(load, module, tensors), [t.numpy() for t in tensors]


def of_model(model: Any, inputs: Sequence[Array], facts: Mapping[str, Any]) -> Loaded:
    facts = {
        **facts, "tasks": len(model.tasks), "kernels": sum(task.count for task in model.tasks),
        "arena_bytes": model.arena_bytes, "bound_bytes": model.bound_bytes,
        "weights_bytes": model.program.weights_bytes,
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
    OURS: ours, TUNED: tuned, WINOGRAD: tuned_winograd,
    EAGER: eager, INDUCTOR: inductor, FREEZING: frozen, ORT: onnxruntime, OPENVINO: openvino,
}  # fmt: skip


def export(entrance: Entrance) -> dict[str, Any]:
    """Writes the network as an ONNX file, and its inputs."""
    import torch

    module, tensors = built(entrance)
    with torch.no_grad():
        torch.onnx.export(module, tensors, dynamo=True, verbose=False).save(str(entrance.directory / MODEL))
    inputs = {f"in{n}": t.numpy() for n, t in enumerate(tensors)}
    np.savez(entrance.directory / INPUTS, **inputs)
    if entrance.is_int8:
        quantise(entrance.directory / MODEL, list(inputs.values()))
    return {}


def quantise(path: Path, inputs: Sequence[Array]) -> None:
    """The file with all that ONNX Runtime quantises as bytes, by ranges on random inputs like the given ones."""
    from onnxruntime import InferenceSession
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    names = [i.name for i in InferenceSession(str(path), providers=["CPUExecutionProvider"]).get_inputs()]
    rng = np.random.default_rng(0)
    feeds = [
        {n: rng.standard_normal(x.shape, "float32") for n, x in zip(names, inputs, strict=True)}
        for _ in range(CALIBRATIONS)
    ]

    class Reader(CalibrationDataReader):
        def get_next(self) -> dict[str, Array] | None:
            return feeds.pop() if feeds else None

    prepared = path.with_suffix(".prepared.onnx")
    quant_pre_process(str(path), str(prepared), skip_symbolic_shape=True)
    quantize_static(
        str(prepared), str(path), Reader(), quant_format=QuantFormat.QDQ, per_channel=True,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, extra_options={"WeightSymmetric": True},
    )  # fmt: skip


def built(entrance: Entrance) -> tuple[Any, tuple[Any, ...]]:
    """The module and its inputs; torch keeps to the threads from now on."""
    import torch

    from experiments.networks.models import build

    torch.set_num_threads(entrance.threads)
    return build(entrance.network.removesuffix(INT8), entrance.batch, reduced=entrance.reduced)


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
