"""Peers: other runtimes of networks that `autosched bench` compares with, each called in its own process.

Their settings minimise the latency of a single request, in the network's own types, with the given number of threads.
PyTorch runs torch modules; the others read ONNX files, to which modules are exported.
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
    """A network to be compared. `word`: the argument that names it. `onnx`: its file or that of its export, if any.
    `db`: the database with our records. `names`: of all inputs. `fixed`: values of the inputs that are constants of our
    network; peers are given them at each call."""

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
        """Kind of the target."""
        return self.target.split()[0]

    @property
    def is_on_gpu(self) -> bool:
        return self.kind in GPUS


@dataclass(frozen=True)
class NetworkRun:
    """A loaded network. `run`: the function that is timed. `results`: converts what `run` returns to arrays. `version`:
    of the runtime. `is_quantised`: whether the network is known to round to bytes."""

    run: Callable[[], Any]
    results: Callable[[Any], list[Any]]
    version: str
    is_quantised: bool = False


def ours(case: NetworkCase, inputs: Sequence[Any]) -> NetworkRun:
    from autosched import __version__, api
    from autosched.cli.network.arguments import find_network

    network = find_network(case.word, case.settings)
    assert network is not None
    threads = None if case.is_on_gpu else case.threads
    model = api.load(
        network.model, network.example_inputs, sizes=case.sizes, inputs=case.fixed, target=case.target, threads=threads,
        db=case.db, specialise="now",
    )  # fmt: skip
    inputs = [x for name, x in zip(case.names, inputs, strict=True) if name not in case.fixed]
    is_quantised = model.original.rounds_to_bytes
    if not case.is_on_gpu:
        return NetworkRun(lambda: model(*inputs), _flat, __version__, is_quantised)
    arrays, device = [to_device(array, case.kind) for array in inputs], shared_device(case.kind)

    def run() -> Any:
        results = model(*arrays)
        device.synchronise()
        return results

    return NetworkRun(run, _flat, __version__, is_quantised)


def torch_eager(case: NetworkCase, inputs: Sequence[Any]) -> NetworkRun:
    import torch

    module, tensors = _module(case, inputs)

    def run() -> Any:
        with torch.inference_mode():
            return _synchronised(module(*tensors), case)

    return NetworkRun(run, _flat, torch.__version__)


def torch_inductor(case: NetworkCase, inputs: Sequence[Any]) -> NetworkRun:
    """Load with torch.compile, with frozen weights; on a GPU with CUDA graphs."""
    import torch
    import torch._inductor.config as inductor

    module, tensors = _module(case, inputs)
    inductor.freezing = not case.is_on_gpu
    compiled = torch.compile(module, dynamic=False, mode="reduce-overhead" if case.is_on_gpu else None)

    def run() -> Any:
        with torch.no_grad():
            return _synchronised(compiled(*tensors), case)

    return NetworkRun(run, _flat, torch.__version__)


def _module(case: NetworkCase, inputs: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Return the module and its inputs, and set the number of torch's threads."""
    import torch

    from autosched.cli.network.arguments import find_network
    from autosched.graph.torch.program import is_program

    torch.set_num_threads(case.threads)
    network = find_network(case.word, case.settings)
    if network is None or network.suffix:
        raise UsageError("it takes FILE.py:FUNCTION, a torch module, and no files")
    tensors = [torch.from_numpy(array).to(case.kind) for array in inputs]
    if is_program(network.model):
        return network.model.module(), tensors
    return network.model.eval().to(case.kind), tensors


def _synchronised(results: Any, case: NetworkCase) -> Any:
    """Return torch's results after the GPU has computed them."""
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
    request, arrays = compiled.create_infer_request(), list(inputs)
    return NetworkRun(
        lambda: request.infer(arrays), lambda results: [results[port] for port in compiled.outputs], ov.__version__
    )


def _onnx(case: NetworkCase) -> Path:
    if case.onnx is None:
        raise UsageError("it takes ONNX files, and there is none of this network")
    return case.onnx


def export_onnx(case: NetworkCase, inputs: Sequence[Any]) -> None:
    """Write a torch module to the file `case.onnx`."""
    import torch

    module, tensors = _module(case, inputs)
    with torch.no_grad():
        torch.onnx.export(module, tuple(tensors), dynamo=True, verbose=False).save(str(_onnx(case)))


def _flat(results: Any) -> list[Any]:
    """Return the arrays in a network's results, in order."""
    import numpy as np

    if isinstance(results, Mapping):
        return [array for each in results.values() for array in _flat(each)]
    if isinstance(results, (tuple, list)):
        return [array for each in results for array in _flat(each)]
    if hasattr(results, "cpu"):  # a tensor of torch on any device
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
    """Return the named peers, or all. Raises UsageError for an unknown name."""
    unknown = [name for name in names or () if name not in NETWORK_PEERS]
    if unknown:
        raise UsageError(f"there is no peer {unknown[0]!r} of networks: --peers takes {', '.join(NETWORK_PEERS)}")
    return tuple(dict.fromkeys(names or NETWORK_PEERS))


def why_missing(name: str, is_module: bool, kind: str = "cpu") -> str | None:
    """Return why a peer cannot run on a kind of target; None if it may."""
    if kind != "cpu" and (kind != "cuda" or name not in TORCH_ONLY):
        return f"it does not run on {kind} here"
    if find_spec(PACKAGES[name]) is None:
        return f"the package {PACKAGES[name]} is not installed: pip install 'autosched[peers]'"
    if name in TORCH_ONLY and not is_module:
        return "it takes FILE.py:FUNCTION, a torch module, and no files"
    return None
