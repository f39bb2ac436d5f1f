"""The step `networks`: whole networks beside PyTorch, eager and compiled, with and without CUDA graphs.

All take the same tensors of the card, and are timed in turn from the host, each call with what comes behind it on the
stream waited for: the latency of one request. Ours is untuned first; what time is left then goes into tuning. A dry run
has one small network, in the simulator.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, TypeAlias

import numpy as np

import autosched as at
from autosched.graph.graph import Graph, Node, Value
from autosched.measure.timing import interleaved, python_clock
from experiments.gpu.peers import start_torch
from experiments.gpu.steps import Row, StepRequest

RESERVE_S = 5.0
ROUNDS, SAMPLE_S = 8, 0.05
SHOWN = 8  # kernels in a row, those that take longest
LEAST_TUNING_S = 30.0
TOLERANCE = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}  # of the root mean square, against float32
Call: TypeAlias = Callable[[], Any]


@dataclass(frozen=True)
class NetworkOnCard:
    """A network of `experiments.networks.models` in a type."""

    name: str
    dtype: str

    @property
    def label(self) -> str:
        return f"{self.name} {self.dtype}"


NETWORKS = tuple(
    NetworkOnCard(name, dtype)
    for name, dtype in (
        ("bert_base", "float16"), ("resnet50", "float16"), ("bert_base", "float32"), ("resnet50", "float32"),
        ("bert_base", "bfloat16"), ("resnet50", "bfloat16"),
    )
)  # fmt: skip


def predict(request: StepRequest) -> str:
    return (
        "untuned: BERT-base f16 0.6-1.0 ms, ResNet-50 f16 0.8-1.5 ms, f32 twice that; torch with CUDA graphs 0.5-0.8 "
        "ms, eager 3-6 ms for its launches"
    )


def measure(request: StepRequest) -> Iterator[tuple[str, Row]]:
    """Each network untuned beside its peers, then each tuned in an equal share of what is left."""
    if request.is_dry:
        yield "small float32", simulated()
        return
    end, torch = time.monotonic() + request.seconds - RESERVE_S, start_torch()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield "card", {"name": torch.cuda.get_device_name(), "torch": torch.__version__}
    seen: dict[NetworkOnCard, Any] = {}
    for case in NETWORKS:
        if time.monotonic() < end:
            row, model = compared(torch, case)
            yield case.label, row
            seen |= {} if model is None else {case: model}
    for n, (case, model) in enumerate(seen.items()):
        share_s = (end - time.monotonic()) / (len(seen) - n)
        if share_s >= LEAST_TUNING_S:
            yield f"{case.label} tuned", tuned(model, share_s, request)


def compared(torch: Any, case: NetworkOnCard) -> tuple[Row, Any]:
    """Seconds of a call of each, and how far ours is from float32; with our network, None where it does not run."""
    from experiments.networks.models import build

    module, inputs = build(case.name)
    kind = getattr(torch, case.dtype)
    cast = tuple(t.to(kind) if t.is_floating_point() else t for t in inputs)
    row: Row = {}
    calls: dict[str, Call] = {}
    model = None
    with torch.inference_mode():
        want = _flat(copy.deepcopy(module).cuda()(*(t.cuda() for t in inputs)))
        module = module.to(kind)
        on_card = tuple(t.cuda() for t in cast)
        begun = time.monotonic()
        try:
            model = at.load(module, cast, target="cuda")
            got = _flat(model(*on_card))
            row |= {"load_s": time.monotonic() - begun, "tasks": len(model.tasks), "error": _error(got, want)}
            if row["error"] <= TOLERANCE[case.dtype]:
                calls["ours"] = partial(model, *on_card)
            row |= _kernels(model)
        except Exception as error:  # the step goes on with what runs
            row["ours_error"] = _words(error)
        own = module.cuda()
        ways = {"eager": None, "compiled": "default", "cudagraphs": "reduce-overhead"}
        for name, mode in ways.items():
            try:
                run = own if mode is None else torch.compile(own, mode=mode, dynamic=False)
                run(*on_card)
                calls[name] = partial(run, *on_card)
            except Exception as error:
                row[f"{name}_error"] = _words(error)
        return row | _timed(torch, calls), model


def _timed(torch: Any, calls: Mapping[str, Call]) -> Row:
    def waited(call: Call) -> None:
        call()
        torch.cuda.synchronize()

    clocks = {name: python_clock(partial(waited, call)) for name, call in calls.items()}
    for clock in clocks.values():
        clock(3)
    samples = interleaved(clocks, ROUNDS, SAMPLE_S) if clocks else {}
    return {f"{name}_s": median(found) for name, found in samples.items()}


def _kernels(model: Any) -> Row:
    """By the device's events: all together, the whole as one graph, and what takes longest."""
    found = at.explain(model)
    longest = {f"{layer.count} x {layer.operators}"[:80]: layer.seconds for layer in found.layers[:SHOWN]}
    return {"kernels_s": found.kernels_s, "graph_s": found.call_s, "least_s": found.least_s, "longest": longest}


def tuned(model: Any, seconds: float, request: StepRequest) -> Row:
    """By events: whole calls before and after."""
    try:
        found = at.tune(model, budget_s=seconds, db=request.out / "networks.db")
    except Exception as error:
        return {"ours_error": _words(error)}
    facts = {"trials": found.trials, "failed": found.failed, "wall_s": found.wall_s, "verified": found.verified}
    return {"start_s": found.start_latency_s, "graph_s": found.latency_s, "kernels_s": found.kernels_s, **facts}


def simulated() -> Row:
    """A product, relu and a product, each kernel executed on the processor."""
    rng = np.random.default_rng(0)
    values = {v.name: v for v in (Value("x", (5, 7), "float32"), Value("h", (5, 9), "float32"),
                                  Value("r", (5, 9), "float32"), Value("y", (5, 3), "float32"))}  # fmt: skip
    weights = {"a": rng.normal(size=(9, 7)).astype("float32"), "b": rng.normal(size=(3, 9)).astype("float32")}
    values |= {name: Value(name, array.shape, "float32") for name, array in weights.items()}
    nodes = (Node("linear", ("x", "a"), ("h",)), Node("relu", ("h",), ("r",)), Node("linear", ("r", "b"), ("y",)))
    model = at.load(Graph(("x",), ("y",), nodes, values, weights), target="cuda", simulate=True, records=False)
    found = at.verify(model)
    return {"tasks": len(model.tasks), "verified": found.passed, "error": found.worst_output.error.rms}


def summary(rows: Mapping[str, Row]) -> str:
    """A line for each network."""
    return "\n".join(line(label, row) for label, row in rows.items() if label != "card") or "nothing was timed"


def line(label: str, row: Row) -> str:
    """One row in words."""
    times = [f"{key[:-2]} {1e3 * value:.3f} ms" for key, value in row.items() if key.endswith("_s") and key != "wall_s"]
    errors = [f"{key}: {value}" for key, value in row.items() if key.endswith("_error")]
    checked = [f"error {row['error']:.2g}"] if "error" in row else []
    return f"{label}: {', '.join([*times, *checked, *errors]) or 'nothing'}"


def _flat(results: Any) -> list[Any]:
    """The tensors of a network's results, in order."""
    if isinstance(results, Mapping):
        results = list(results.values())
    if isinstance(results, (tuple, list)):
        return [tensor for part in results for tensor in _flat(part)]
    return [results.float().clone()]


def _error(got: list[Any], want: list[Any]) -> float:
    """The largest of all results: rms(got - want) / rms(want)."""
    return max(
        float(((g - w).square().mean().sqrt()) / w.square().mean().sqrt()) for g, w in zip(got, want, strict=True)
    )


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
