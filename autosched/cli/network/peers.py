"""Runtimes of whole networks, as `autosched bench` times them: each loads a network in this process and runs it.

Settings are those for the latency of one request at a time, in the network's own types, with as many threads as asked
for. PyTorch takes networks that are its modules; the others read ONNX files, to which modules are exported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from autosched.errors import UsageError
from autosched.runtime.gpu.arrays import DeviceArray, to_device
from autosched.runtime.gpu.devices import GPUS, shared_device

OURS = "ours"


@dataclass(frozen=True)
class NetworkCase:
    """A network as words say it. `onnx`: its file, or the one that it is exported to; None where there is neither.
    `db`: the database with our records. `names`: of all inputs; `fixed`: the values of those that our network has as
    constants, which others get with each call."""

    word: str
    settings: Mapping[str, int | str]
    sizes: Mapping[str, int]
    threads: int
    onnx: Path | None
    db: Path | None = None
    target: str = "cpu"
    names: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Of the target: what arrays are on."""
        return self.target.split()[0]

    @property
    def is_on_gpu(self) -> bool:
        return self.kind in GPUS


@dataclass(frozen=True)
class NetworkRun:
    """`run` is what is timed. `results`: of a run, as arrays. `version`: of the runtime. `is_quantised`: whether the
    network is known to round to bytes on the way."""

    run: Callable[[], Any]
    results: Callable[[Any], list[Any]]
    version: str
    is_quantised: bool = False


def ours(case: NetworkCase, inputs: Sequence[Any]) -> NetworkRun:
    from autosched import __version__, api
    from autosched.cli.network.arguments import find_network

    found = find_network(case.word, case.settings)
    assert found is not None
    threads = None if case.is_on_gpu else case.threads
    model = api.load(
        found.model, found.example_inputs, sizes=case.sizes, inputs=case.fixed, target=case.target, threads=threads,
        db=case.db,
    )  # fmt: skip
    inputs = [x for name, x in zip(case.names, inputs, strict=True) if name not in case.fixed]
    is_quantised = model.original.rounds_to_bytes
    if not case.is_on_gpu:
        return NetworkRun(lambda: model(*inputs), _flat, __version__, is_quantised)
    given, device = [to_device(array, case.kind) for array in inputs], shared_device(case.kind)

    def run() -> Any:
        results = model(*given)
        device.synchronise()
        return results

    return NetworkRun(run, _flat, __version__, is_quantised)


def torch_eager(case: NetworkCase, inputs: Sequence[Any]) -> NetworkRun:
    import torch

    module, tensors = _module(case, inputs)

    def run() -> Any:
        with torch.inference_mode():
            return _waited(module(*tensors), case)

    return NetworkRun(run, _flat, torch.__version__)


def torch_inductor(case: NetworkCase, inputs: Sequence[Any]) -> NetworkRun:
    """With weights frozen; on a GPU as CUDA graphs."""
    import torch
    import torch._inductor.config as inductor

    module, tensors = _module(case, inputs)
    inductor.freezing = not case.is_on_gpu
    compiled = torch.compile(module, dynamic=False, mode="reduce-overhead" if case.is_on_gpu else None)

    def run() -> Any:
        with torch.no_grad():
            return _waited(compiled(*tensors), case)

    return NetworkRun(run, _flat, torch.__version__)


def _module(case: NetworkCase, inputs: Sequence[Any]) -> tuple[Any, list[Any]]:
    """The module and its inputs; torch keeps to the threads from now on."""
    import torch

    from autosched.cli.network.arguments import find_network
    from autosched.graph.torch.program import is_program

    torch.set_num_threads(case.threads)
    found = find_network(case.word, case.settings)
    if found is None or found.suffix:
        raise UsageError("it takes FILE.py:FUNCTION, a torch module, and no files")
    tensors = [torch.from_numpy(array).to(case.kind) for array in inputs]
    if is_program(found.model):
        return found.model.module(), tensors
    return found.model.eval().to(case.kind), tensors


def _waited(results: Any, case: NetworkCase) -> Any:
    """The results of torch, once they are there."""
    if case.is_on_gpu:
        import torch

        torch.cuda.synchronize()
    return results


def onnxruntime(case: NetworkCase, inputs: Sequence[Any]) -> NetworkRun:
    import onnxruntime as runtime

    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = case.threads, 1
    session = runtime.InferenceSession(str(_onnx(case)), options, providers=["CPUExecutionProvider"])
    feed = dict(zip((i.name for i in session.get_inputs()), inputs, strict=True))
    return NetworkRun(lambda: session.run(None, feed), _flat, runtime.__version__)


def openvino(case: NetworkCase, inputs: Sequence[Any]) -> NetworkRun:
    import openvino as ov

    hints = {
        "INFERENCE_NUM_THREADS": case.threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }  # fmt: skip
    core = ov.Core()
    model = core.read_model(str(_onnx(case)))
    model.reshape({port: list(array.shape) for port, array in zip(model.inputs, inputs, strict=True)})
    compiled = core.compile_model(model, "CPU", hints)
    request, given = compiled.create_infer_request(), list(inputs)
    return NetworkRun(
        lambda: request.infer(given), lambda found: [found[port] for port in compiled.outputs], ov.__version__
    )


def _onnx(case: NetworkCase) -> Path:
    if case.onnx is None:
        raise UsageError("it takes ONNX files, and there is none of this network")
    return case.onnx


def export_onnx(case: NetworkCase, inputs: Sequence[Any]) -> None:
    """Writes a torch module to the file `case.onnx`."""
    import torch

    module, tensors = _module(case, inputs)
    with torch.no_grad():
        torch.onnx.export(module, tuple(tensors), dynamo=True, verbose=False).save(str(_onnx(case)))


def _flat(results: Any) -> list[Any]:
    """The arrays in what a network returns, in the order in which they appear."""
    import numpy as np

    if isinstance(results, Mapping):
        return [array for part in results.values() for array in _flat(part)]
    if isinstance(results, (tuple, list)):
        return [array for part in results for array in _flat(part)]
    if hasattr(results, "cpu"):  # a tensor of torch, wherever it is
        results = results.cpu()
    if isinstance(results, DeviceArray):
        return [results.numpy()]
    return [] if results is None else [np.array(results)]


NETWORK_PEERS: Mapping[str, Callable[[NetworkCase, Sequence[Any]], NetworkRun]] = {
    "torch": torch_eager, "inductor": torch_inductor, "onnxruntime": onnxruntime, "openvino": openvino,
}  # fmt: skip
PACKAGES = {"torch": "torch", "inductor": "torch", "onnxruntime": "onnxruntime", "openvino": "openvino"}
TORCH_ONLY = ("torch", "inductor")


def known_peers(names: Sequence[str] | None) -> tuple[str, ...]:
    """The peers that are named, or all. Raises UsageError for one that there is not."""
    unknown = [name for name in names or () if name not in NETWORK_PEERS]
    if unknown:
        raise UsageError(f"there is no peer {unknown[0]!r} of networks: --peers takes {', '.join(NETWORK_PEERS)}")
    return tuple(dict.fromkeys(names or NETWORK_PEERS))


def why_missing(name: str, is_module: bool, kind: str = "cpu") -> str | None:
    """Why a peer does not take part on a kind of target; None where nothing is known against it."""
    if kind != "cpu" and (kind != "cuda" or name not in TORCH_ONLY):
        return f"it does not run on {kind} here"
    if find_spec(PACKAGES[name]) is None:
        return f"the package {PACKAGES[name]} is not installed: pip install 'autosched[peers]'"
    if name in TORCH_ONLY and not is_module:
        return "it takes FILE.py:FUNCTION, a torch module, and no files"
    return None
